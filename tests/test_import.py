"""`import hardgate`: quick, and without side effects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hardgate

IMPORT = """
import sys, warnings
import torch
def observe():
    return (torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.get_num_threads(),
            list(warnings.filters), torch.is_grad_enabled(), torch.get_default_device(),
            torch.are_deterministic_algorithms_enabled())
before, loaded = observe(), set(sys.modules)
import hardgate
assert observe() == before
new = {name for name in set(sys.modules) - loaded if not name.startswith("hardgate")}
heavy = ("numba", "matplotlib", "rich", "typer", "scipy", "torch._dynamo", "torch._inductor")
print(sorted(name for name in new if name.startswith(heavy)))
print(sorted(name for name in sys.modules if name.split(".")[0] in heavy))
"""


def test_importing_has_no_side_effects() -> None:
    root = Path(hardgate.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[]", "[]"]


def test_import_is_quick() -> None:
    """0.3 s beyond `import torch` is the bound; some 0.04 s is what it takes."""
    code = (
        "import torch, time; start = time.perf_counter(); import hardgate\n"
        "print(time.perf_counter() - start)"
    )
    best = min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    )
    assert best < 0.3
