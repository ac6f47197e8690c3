"""On which machine, and with which versions, a result was taken."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

import hardgate


def versions() -> dict[str, str]:
    """The versions of hardgate, torch and Python."""
    return {
        "hardgate": hardgate.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def machine() -> dict[str, object]:
    """The versions, the processor, and how many threads torch uses."""
    return {**versions(), "processor": processor(), "threads": torch.get_num_threads()}


def processor() -> str:
    """The processor, as the system names it."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
