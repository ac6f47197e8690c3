"""A recurrent network that skips 97 of 100 updates, and remembers as well as one that skips none.

Among a hundred symbols three are marked; after the last, the network names the three in order. A
`Gater` decides at each step, hard, whether the state is updated. In training a skipped update is
computed for its straight-through gradient; in evaluation mode only the rows that update are run.

    python examples/skip_rnn.py                # two to three minutes on one core
    python examples/skip_rnn.py --seed 1 --figure out/mine.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import hardgate

SYMBOLS, MARKED, HIDDEN = 8, 3, 48
LENGTHS = (100, 200, 400, 800)  # trained on the first alone
EXPECTED, TOLERANCE = 1.0, 0.01  # the accuracy at length 100 with --seed 0; chance is 1/8


def sequences(n: int, length: int) -> tuple[Tensor, Tensor]:
    """Inputs `[length, n, SYMBOLS + 1]`, the last the mark; the marked symbols `[n, MARKED]`."""
    symbols = torch.randint(SYMBOLS, (length, n))
    when = torch.rand(length, n).topk(MARKED, dim=0).indices.sort(dim=0).values
    mark = torch.zeros(length, n).scatter_(0, when, 1.0)
    x = torch.cat([one_hot(symbols, SYMBOLS).float(), mark.unsqueeze(-1)], dim=-1)
    return x, symbols.gather(0, when).T


class SkipRNN(nn.Module):
    """sₜ = sₜ₋₁ + uₜ·(GRU(xₜ, sₜ₋₁) - sₜ₋₁) with uₜ = 0 or 1; without a gater uₜ = 1."""

    def __init__(self, gater: hardgate.Gater | None) -> None:
        """`gater` decides from the input; None: every step updates."""
        super().__init__()
        self.cell = nn.GRUCell(SYMBOLS + 1, HIDDEN)
        self.gater = gater
        self.out = nn.Linear(HIDDEN, MARKED * SYMBOLS)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores `[n, SYMBOLS, MARKED]` and the updates `[length, n, 1]`."""
        updates = torch.ones_like(x[..., :1]) if self.gater is None else self.gater(x)
        state = x.new_zeros(x.shape[1], HIDDEN)
        for x_t, u_t in zip(x, updates, strict=True):
            if self.training:
                state = torch.lerp(state, self.cell(x_t, state), u_t)
            else:
                rows = u_t.squeeze(-1).nonzero().squeeze(-1)
                state[rows] = self.cell(x_t[rows], state[rows])  # only these are computed
        return self.out(state).unflatten(-1, (SYMBOLS, MARKED)), updates


def train(model: SkipRNN, steps: int, length: int) -> None:
    """Adam, whose rate falls to 0 over the second half."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 0.01 * min(1.0, 2 - 2 * step / steps)
        x, y = sequences(100, length)
        scores, updates = model(x)
        loss = cross_entropy(scores, y)
        optimiser.zero_grad()
        (loss + hardgate.sparsity_loss(model)).backward()  # zero where there is no gater
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 49:
            share = updates.mean().item()
            print(f"step {step + 1:4}  loss {loss:.3f}  updates {100 * share:.0f} %", flush=True)


@torch.no_grad()
def measure(model: SkipRNN, n: int, length: int) -> tuple[float, float]:
    """On n new sequences: the share of the marked symbols named, the updates per sequence."""
    x, y = sequences(n, length)
    scores, updates = model.eval()(x)
    return (scores.argmax(1) == y).float().mean().item(), updates.sum().item() / len(y)


def draw(path: Path, model: SkipRNN, results: dict[str, list[Any]], facts: Any) -> None:
    """Which steps update the state, and accuracy by length."""
    from matplotlib import pyplot as plt

    x, _ = sequences(20, 100)
    with torch.no_grad():
        _, updates = model.eval()(x)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    left.scatter(*x[..., -1].nonzero().T, marker="s", s=60, facecolors="none", edgecolors="C3")
    left.scatter(*updates[..., 0].nonzero().T, marker="|", s=50, color="C0")
    left.set(
        xlabel="step (square: marked, bar: the state is updated)", ylabel="test sequence", yticks=[]
    )
    for name, measured in results.items():
        right.plot(LENGTHS, [accuracy for accuracy, _ in measured], "o-", label=name)
    right.set(xscale="log", xlabel="length (trained on 100)", ylabel="accuracy", ylim=(0, 1.05))
    right.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
    right.minorticks_off()
    right.axhline(1 / SYMBOLS, color="0.5", linestyle=":", label="chance")
    right.legend(loc="center left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Source": json.dumps(facts)})
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train both networks, measure them, draw; returns the facts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights and sequences (0)")
    parser.add_argument("--quick", action="store_true", help="a few seconds, for the tests")
    parser.add_argument("--figure", type=Path, default="out/example-skip-rnn.png", metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers into it")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    steps, length, n = (100, 20, 200) if options.quick else (500, LENGTHS[0], 1000)
    budget = hardgate.KLTarget(MARKED / length, weight=0.03)  # the fraction of steps that update
    unit = hardgate.StraightThrough(sigmoid_derivative=True)
    gater = hardgate.Gater(SYMBOLS + 1, 1, 8, unit, rate=0.5, sparsity=budget)
    models = {"skips": SkipRNN(gater), "always updates": SkipRNN(None)}
    results: dict[str, list[Any]] = {}
    for name, model in models.items():
        print(name)
        train(model, steps, length)
        results[name] = [measure(model, n, each) for each in LENGTHS]
    (accuracy, updates), (always, _) = (measured[0] for measured in results.values())
    facts = {"seed": options.seed, "quick": options.quick, "accuracy": accuracy}
    facts |= {"always": always, "updates": updates, "longest": results["skips"][-1][0]}
    facts |= {"longest_always": results["always updates"][-1][0]}
    draw(options.figure, models["skips"], results, facts)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        records = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps({**records, "skip_rnn": facts}, indent=2) + "\n")
    print(f"{updates:.1f} updates of {LENGTHS[0]}; always updating {always:.3f} → {options.figure}")
    print(f"accuracy {accuracy:.3f}; expected of a full run {EXPECTED} ± {TOLERANCE} (seed 0)")
    return facts


if __name__ == "__main__":
    main()
