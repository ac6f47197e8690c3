"""Where and with what a result was taken."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

import hardgate


def versions() -> dict[str, str]:
    """Of what every result depends on."""
    return {
        "hardgate": hardgate.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def processor() -> str:
    """The processor, as the system names it."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
