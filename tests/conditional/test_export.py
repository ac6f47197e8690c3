"""torch.export of a network in eval mode: saved, loaded elsewhere, the same outputs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hardgate
from hardgate import ConditionalMLP, Unit

LOAD = """
import sys, torch, hardgate
program, inputs = torch.export.load(sys.argv[1]), torch.load(sys.argv[2])
with torch.no_grad():
    torch.save([program.module()(x) for x in inputs], sys.argv[3])
"""


def stack(unit: Unit) -> nn.Module:
    torch.manual_seed(0)
    first = ConditionalMLP(20, 64, 12, bottleneck=8, unit=unit, block_size=4)
    second = hardgate.ConditionalLinear(12, 32, bottleneck=6, unit=unit)
    return nn.Sequential(first, second, nn.Linear(32, 5)).eval()


def export(model: nn.Module) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(model, (torch.randn(6, 20),), dynamic_shapes=[{0: batch}])


@pytest.mark.parametrize("name", hardgate.UNITS)
def test_every_unit(name: str) -> None:
    model, x = stack(hardgate.UNITS[name]()), torch.randn(9, 20)
    program = export(model)
    torch.testing.assert_close(program.module()(x), model(x))
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert sum("hardgate.conditional" in call for call in calls) == 2, "one operation a layer"
    assert not any("nonzero" in call for call in calls)


# torch calls a weight that is stored unit-major incomplete, and saves it all the same.
@pytest.mark.filterwarnings("ignore:No complete tensor found in the group")
def test_in_another_process(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ConditionalMLP(784, 2000, 10, bottleneck=50, unit=hardgate.StraightThrough()).eval()
    hardgate.calibrate_thresholds(model, [torch.randn(50, 784)])
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (torch.randn(6, 784),), dynamic_shapes=[{0: batch}])
    files = [str(tmp_path / name) for name in ("model.pt2", "inputs.pt", "outputs.pt")]
    inputs = [torch.randn(32, 784), torch.randn(3, 784)]
    torch.export.save(program, files[0])
    torch.save(inputs, files[1])
    subprocess.run([sys.executable, "-c", LOAD, *files], check=True, capture_output=True)
    for x, y in zip(inputs, torch.load(files[2]), strict=True):
        torch.testing.assert_close(y, model(x), rtol=3e-5, atol=3e-5)


def test_all_leading_axes_may_vary() -> None:
    torch.manual_seed(0)
    model = ConditionalMLP(6, 32, 3, bottleneck=5, unit=hardgate.Rectifier()).eval()
    axes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("time", min=1)}
    program = torch.export.export(model, (torch.randn(4, 3, 6),), dynamic_shapes=[axes])
    for shape in ((2, 5, 6), (7, 2, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), model(x))
