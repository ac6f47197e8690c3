"""Compiled modules, run for once as they were written."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def as_written() -> AbstractContextManager[None]:
    """Run compiled modules uncompiled: what was compiled before takes no notice of new hooks."""
    compiler: Any = torch.compiler
    if "torch._dynamo" not in sys.modules or not hasattr(compiler, "set_stance"):
        return nullcontext()  # nothing is compiled (loading it takes seconds), or torch < 2.6
    stance: AbstractContextManager[None] = compiler.set_stance("force_eager")
    return stance
