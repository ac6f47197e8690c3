"""Semantic hashing: images as 32 hard bits, found again by Hamming distance.

Two autoencoders differ in the middle: one has a layer of hard binary units there, the other real
numbers. Labels only judge: of the 100 training images nearest to a test image by their codes, how
many show the same digit? The third rival cuts the real numbers to bits after training.

    python examples/semantic_hashing.py        # one to two minutes on one core
    python examples/semantic_hashing.py --data DIR --seed 1    # with MNIST's files in DIR
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hardgate
from hardgate_lab.rig.mnist import Dataset, load

BITS, HIDDEN, NEAREST = 32, 256, 100
EXPECTED, TOLERANCE = 0.83, 0.02  # precision of the binary code with --seed 0; chance is 0.1


def encoder(code: nn.Module) -> nn.Sequential:
    """Images `[n, 784]` → codes `[n, BITS]`; `code` makes them binary or leaves them real."""
    return nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, BITS), code)


def train(encode: nn.Sequential, x: Tensor, epochs: int) -> list[float]:
    """The autoencoder's loss in nats by epoch; only the code passes from encoder to decoder."""
    decode = nn.Sequential(nn.Linear(BITS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 784))
    optimiser = torch.optim.Adam([*encode.parameters(), *decode.parameters()], lr=3e-3)
    curve = []
    for epoch in range(epochs):
        losses = []
        for rows in torch.randperm(len(x)).split(100):
            pixels = decode(encode(x[rows]))
            loss = binary_cross_entropy_with_logits(pixels, x[rows], reduction="sum") / len(rows)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        curve.append(sum(losses) / len(losses))
        print(f"epoch {epoch + 1:2}  loss {curve[-1]:.1f} nats", flush=True)
    return curve


@torch.no_grad()
def precision(encode: nn.Sequential, data: Dataset, queries: int) -> Tensor:
    """The share of the nearest training images with the label of each query, `[queries]`.

    The Euclidean distance of two binary codes is the root of their Hamming distance. Queries are
    the last test images: the settings were chosen with the first 2000.
    """
    known, asked = encode(data.train.x), encode(data.test.x[-queries:])
    near = [torch.cdist(q, known).topk(NEAREST, largest=False).indices for q in asked.split(500)]
    return (data.train.y[torch.cat(near)] == data.test.y[-queries:, None]).float().mean(1)


def draw(path: Path, curves: dict[str, list[float]], found: dict[str, Tensor], facts: Any) -> None:
    """Training, and precision by digit for the three codes."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    for name, curve in curves.items():
        left.plot(range(1, len(curve) + 1), curve, "o-", label=name)
    left.set(xlabel="epoch", ylabel="loss in nats", title="reconstruction in training")
    left.legend()
    for k, values in enumerate(found.values()):
        bars = right.bar(k, values.mean().item(), color=f"C{k}")
        right.bar_label(bars, fmt="%.3f")
    right.axhline(0.1, color="0.5", linestyle=":")
    right.set_xticks(range(len(found)), list(found))
    right.set(ylabel=f"precision at {NEAREST}", ylim=(0, 1.05), title="retrieval; dotted: chance")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Source": json.dumps(facts)})
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train both, measure the three codes, draw; returns the facts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="MNIST's files; else by name")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and batches (0)")
    parser.add_argument("--quick", action="store_true", help="a few seconds, for the tests")
    parser.add_argument("--figure", type=Path, default="out/example-hashing.png", metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers into it")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    data = load("mnist", options.data)
    images, queries = (2000, 500) if options.quick else (len(data.train.y), 2000)
    x = data.train.x[:images]
    binary = encoder(hardgate.StraightThrough(sigmoid_derivative=True))
    real = encoder(nn.Identity())
    curves = {}
    for name, encode in {"binary": binary, "real": real}.items():
        print(name)
        curves[name] = train(encode, x, epochs=10)
    cut = nn.Sequential(real, hardgate.StraightThrough(sample=False))
    hardgate.calibrate_thresholds(cut, x.split(1000), rate=0.5, per_unit=True)  # at the medians
    codes = {"32 bits, learnt": binary, "32 bits, cut from real": cut, "32 real numbers": real}
    found = {name: precision(code.eval(), data, queries) for name, code in codes.items()}
    learnt, thresholded, exact = (values.mean().item() for values in found.values())
    facts = {"seed": options.seed, "quick": options.quick, "precision": learnt}
    facts |= {"cut": thresholded, "real": exact}
    draw(options.figure, curves, found, facts)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        records = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps({**records, "semantic_hashing": facts}, indent=2) + "\n")
    print(f"cut from real {thresholded:.3f}, real {exact:.3f} → {options.figure}")
    print(f"precision {learnt:.3f}; expected of a full run {EXPECTED} ± {TOLERANCE} (seed 0)")
    return facts


if __name__ == "__main__":
    main()
