"""`python -m hardgate` is the `hardgate` command, which lives in `hardgate_lab`."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("hardgate_lab", run_name="__main__")
