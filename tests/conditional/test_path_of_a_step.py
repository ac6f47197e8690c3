"""How many files an input passes on its way through a training step of `ConditionalMLP`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch

import hardgate
from hardgate import ConditionalMLP, NoisyRectifier

ROOT = Path(hardgate.__file__).parent
# The way down, and back the same way. Files of `_base` are asked (may a kernel run here?) but hold
# no part of the way. `cpu.py` and `draws.py` call other compiled files, which Python never sees.
WAY = {
    "conditional/_layer.py",
    "conditional/gater.py",
    "units/_unit.py",
    "units/noisy_rectifier.py",
    "noise.py",
    "functional/neurons.py",
    "kernels/op.py",
    "kernels/dispatch.py",
    "kernels/sparse.py",
    "kernels/compiler.py",
    "kernels/compiled/cpu.py",
    "kernels/compiled/draws.py",
}


def test_a_training_step_passes_a_dozen_files() -> None:
    torch.manual_seed(0)
    model = ConditionalMLP(784, 2000, 10, bottleneck=100, unit=NoisyRectifier())
    optimiser, x = torch.optim.SGD(model.parameters(), 0.01), torch.randn(32, 784)
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            files.add(path.relative_to(ROOT).as_posix())

    def step() -> None:
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()

    step()  # compiles
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    path = model.telemetry().path
    assert path is not None
    assert path.backend == "sparse"
    assert len(WAY) == 12
    assert {name for name in files if not name.startswith("_base/")} <= WAY
