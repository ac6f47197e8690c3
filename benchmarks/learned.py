"""The conditional layer behind gates that a training run learnt, not random ones.

Learned gates are skewed: some experts are on for most images, many for hardly any. For a finished
run of `hardgate reproduce`, experts and output of its network are computed for validation images,
dense and sparse, behind the gates of evaluation, and behind as many that are on at random places.
Equality with dense is asserted before anything is timed. The candidates take turns of six calls;
medians of the last five are shown. Run it on an idle machine:

    hardgate reproduce --row straight_through
    python benchmarks/learned.py out/reproduce/mnist-quick/straight_through-0 [DATA]
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from hardgate_lab.bench.bench_layer import Layer
from hardgate_lab.reproduce.network import Gated
from hardgate_lab.reproduce.settings import Settings
from hardgate_lab.rig.idx import CLASSES
from hardgate_lab.rig.machine import machine
from hardgate_lab.rig.memory import reuse_memory
from hardgate_lab.rig.mnist import load
from hardgate_lab.rig.timing import Call, rounds

BATCHES, SECONDS = (1, 32, 256), 2.0


def network(folder: Path, features: int) -> Gated:
    """The network of a finished run, as it was tested."""
    settings = Settings(**json.loads((folder / "record.json").read_text("utf-8"))["settings"])
    if settings.unit == "none":
        raise SystemExit(f"{folder} expected the run of a row with gates, got the dense network.")
    model = Gated(settings, features, CLASSES)
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    return model.eval()


def layer(model: Gated, x: Tensor, gates: Tensor) -> Layer:
    """The experts and the output of the network, behind these gates."""
    experts, out = model.layer.experts, model.layer.out
    found = Layer(x, gates, experts.weight, experts.bias, out.weight, out.bias, 1)
    expected, y = found.dense(), found.conditional("sparse")
    assert (y - expected).norm() <= 3e-5 * expected.norm()
    return found


def scattered(gates: Tensor) -> Tensor:
    """The same gates in random places."""
    return gates.flatten()[torch.randperm(gates.numel())].view_as(gates)


@torch.no_grad()
def main() -> None:
    """Print how skewed the gates are, and the table."""
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    torch.manual_seed(0)
    reuse_memory()
    images = load("mnist", Path(sys.argv[2]) if len(sys.argv) == 3 else None).valid.x
    model = network(Path(sys.argv[1]), images.shape[1])
    on = (model.layer.gater(images) != 0).float().mean(0)
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print(
        f"{len(on)} gates, {on.mean():.1%} on; {(on < 0.01).float().mean():.0%} of them for less "
        f"than 1 % of the images, {(on > 0.3).float().mean():.0%} for more than 30 %"
    )
    for B in BATCHES:
        x = images[:B]
        learned = model.layer.gater(x)
        for name, gates in (("learned", learned), ("random", scattered(learned))):
            found = layer(model, x, gates)
            runs: dict[str, Call] = {
                "dense": found.dense,
                "sparse": partial(found.conditional, "sparse"),
            }
            ms, _ = rounds(runs, SECONDS)
            ratio, density = ms["dense"] / ms["sparse"], (gates != 0).float().mean()
            times = f"dense {ms['dense']:.3f} ms  sparse {ms['sparse']:.3f} ms  {ratio:.1f}×"
            print(f"B={B:<4} {name:8} {density:.1%} on  {times}", flush=True)


if __name__ == "__main__":
    main()
