"""Three conditional layers in a stack: each computes a tenth of its experts, for MNIST.

Every layer has its own gater, its own controller and rectified experts. `start_gates_` starts all
gates at their rate on real images, `sparsity_loss` collects the penalties of all layers, and
`calibrate_thresholds` sets the test-time thresholds from the bottom up.

    python examples/deep_stack.py              # two to three minutes on one core
    python examples/deep_stack.py --data DIR --seed 1    # with MNIST's files in DIR
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hardgate
from hardgate import ConditionalLinear, ConditionalMLP
from hardgate_lab.rig.mnist import load

WIDTH, RATE = 800, 0.1
EXPECTED, TOLERANCE = 3.2, 0.4  # the test error in % with --seed 0


def stack() -> nn.Sequential:
    """784 → 800 → 800 → 800 → 10; the norms keep signals in scale that are zero for nine tenths."""

    def options() -> dict[str, Any]:  # a unit and a controller of its own for each layer
        unit, control = hardgate.NoisyRectifier(scale=0.3), hardgate.AdaptiveL1(RATE)
        return {"bottleneck": 50, "unit": unit, "sparsity": control, "activation": "relu"}

    return nn.Sequential(
        ConditionalLinear(784, WIDTH, **options()),
        nn.LayerNorm(WIDTH),
        ConditionalLinear(WIDTH, WIDTH, **options()),
        nn.LayerNorm(WIDTH),
        ConditionalMLP(WIDTH, WIDTH, 10, **options()),
    )


def layers(model: nn.Sequential) -> list[ConditionalLinear | ConditionalMLP]:
    """The conditional layers of the stack."""
    return [layer for layer in model if isinstance(layer, (ConditionalLinear, ConditionalMLP))]


def train(model: nn.Sequential, x: Tensor, y: Tensor, epochs: int) -> list[list[float]]:
    """SGD inside the backward pass, whose rate falls to 0; by epoch: the layers' densities."""
    hardgate.start_gates_(model, x[:500])
    optimiser = hardgate.FusedSGD(model, lr=0.1, gater_lr=0.01)
    steps = epochs * -(-len(y) // 50)
    decay = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min(1.0, 2 - 2 * s / steps))
    curve = []
    for epoch in range(epochs):
        seen = torch.zeros(3)
        batches = torch.randperm(len(y)).split(50)
        for rows in batches:
            loss = cross_entropy(model(x[rows]), y[rows])
            optimiser.zero_grad()
            (loss + hardgate.sparsity_loss(model)).backward()
            optimiser.step()
            decay.step()
            seen += torch.tensor([layer.telemetry().density for layer in layers(model)])
        curve.append((seen / len(batches)).tolist())
        shares = ", ".join(f"{100 * share:.1f}" for share in curve[-1])
        print(f"epoch {epoch + 1:2}  loss {loss:.3f}  gates on {shares} %", flush=True)
    return curve


@torch.no_grad()
def error(model: nn.Sequential, x: Tensor, y: Tensor) -> float:
    """In %, of the deterministic network."""
    wrong: Tensor = model.eval()(x).argmax(-1) != y
    return 100 * wrong.float().mean().item()


def draw(path: Path, curve: list[list[float]], facts: Any) -> None:
    """Densities by epoch, and the multiplications of each layer."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    for k, shares in enumerate(zip(*curve, strict=True)):
        left.plot(range(1, len(curve) + 1), shares, "o-", label=f"layer {k + 1}")
    left.axhline(RATE, color="0.5", linestyle="--", label="target")
    left.set(xlabel="epoch", ylabel="gates on in training", ylim=(0, 0.15))
    left.set_xticks(range(1, len(curve) + 1))
    left.legend(ncols=2)
    names = [f"layer {k + 1}\n{100 * share:.1f} % on" for k, share in enumerate(facts["density"])]
    for offset, key, label in ((-0.2, "dense", "dense"), (0.2, "done", "done, gater included")):
        values = [count / 1e3 for count in facts[key]]
        bars = right.bar([k + offset for k in range(3)], values, width=0.4, label=label)
        right.bar_label(bars, fmt="%.0f")
    right.set_xticks(range(3), names)
    right.set(ylabel="thousand multiplications per image", ylim=(0, 900))
    right.legend(loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Source": json.dumps(facts)})
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train, calibrate, count, draw; returns the facts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="MNIST's files; else by name")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and batches (0)")
    parser.add_argument("--quick", action="store_true", help="a few seconds, for the tests")
    parser.add_argument("--figure", type=Path, default="out/example-stack.png", metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers into it")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    data = load("mnist", options.data)
    model = stack()
    images = 2000 if options.quick else len(data.train.y)
    curve = train(model, data.train.x[:images], data.train.y[:images], epochs=8)
    hardgate.calibrate_thresholds(model, data.train.x[:5000].split(1000), rate=RATE)
    percent = error(model, data.test.x, data.test.y)
    passes, n = [layer.telemetry() for layer in layers(model)], len(data.test.y)
    dense = [layer.experts.weight.numel() + layer.fan_out() * WIDTH for layer in layers(model)]
    facts = {"seed": options.seed, "quick": options.quick, "error": percent, "dense": dense}
    facts |= {"done": [p.multiplications // n for p in passes]}
    facts |= {"density": [p.density for p in passes]}
    draw(options.figure, curve, facts)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        records = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps({**records, "deep_stack": facts}, indent=2) + "\n")
    share = 100 * sum(facts["done"]) / sum(dense)
    print(f"{share:.0f} % of a dense network's multiplications → {options.figure}")
    print(f"error {percent:.2f} %; expected of a full run {EXPECTED} ± {TOLERANCE} % (seed 0)")
    return facts


if __name__ == "__main__":
    main()
