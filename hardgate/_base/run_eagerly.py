"""Run compiled modules eagerly, within a context."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def run_eagerly() -> AbstractContextManager[None]:
    """Within, compiled modules run eagerly: compiled code ignores hooks that were added later."""
    compiler: Any = torch.compiler
    if "torch._dynamo" not in sys.modules or not hasattr(compiler, "set_stance"):
        return nullcontext()  # nothing is compiled; importing torch._dynamo takes seconds
    stance: AbstractContextManager[None] = compiler.set_stance("force_eager")
    return stance
