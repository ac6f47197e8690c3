"""Our estimators beside those of other libraries, both held against enumeration.

Bias with its z-score, variance of one draw, and time, on the `smooth` problem of the lab: four
units, whose true gradient is known. The peers are no dependencies of hardgate. Each runs in a
process of its own, as some change torch when they are imported; those that are not installed are
left out, and named. In an environment of its own:

    python -m venv peers && peers/bin/pip install torch==2.13.0 -e . safetensors
    peers/bin/pip install reinmax==0.1.0 relaxit==1.2.1 storchastic==0.3.7
    peers/bin/python benchmarks/estimators_peers.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardgate import exact_expectation, expectation
from hardgate_lab.rig.candidates import candidates_named
from hardgate_lab.rig.problems import PROBLEMS

PROBLEM = PROBLEMS["smooth"]
DRAWS, BATCH, ROUNDS = 50_000, 1000, 20  # of gradients; of those that are timed; of timings
COLUMNS = ("of", "estimator", "bias %", "z", "variance", "µs")

Draw = Callable[[Tensor], Tensor]  # logits [N, D] → N draws of the gradient
Truth = Callable[[Tensor], Tensor]  # logits [D] → E f(h), differentiable


class Pair(NamedTuple):
    """A peer's estimator and ours, which estimate the same gradient."""

    theirs: str
    draw: Draw
    ours: str
    truth: Truth


def of_binary(a: Tensor) -> Tensor:
    """E f(b), b ~ Bernoulli(σ(a))."""
    return exact_expectation(PROBLEM.f, a)


def of_times_smooth(a: Tensor) -> Tensor:
    """E f(b√p), b ~ Bernoulli(√p): the objective of a unit that is stochastic times smooth."""
    root = torch.sigmoid(a).sqrt()
    return exact_expectation(lambda b: PROBLEM.f(b * root), torch.logit(root))


def through(sample: Callable[[Tensor], Tensor]) -> Draw:
    """Back-propagation through samples `[N, D]`."""

    def draw(logits: Tensor) -> Tensor:
        a = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(PROBLEM.f(sample(a)).sum(), a)
        return gradient

    return draw


def ours(code: str) -> Draw:
    """The same by hardgate."""
    (candidate,) = candidates_named(code, [2])
    made = candidate.make()

    def draw(logits: Tensor) -> Tensor:
        a = logits.clone().requires_grad_()
        expectation(PROBLEM.f, a, made).sum().backward()
        assert a.grad is not None
        return a.grad

    return draw


def torch_pairs() -> list[Pair]:
    """torch's own relaxation."""
    from torch.distributions import RelaxedBernoulli

    def relaxed(a: Tensor) -> Tensor:
        b: Tensor = RelaxedBernoulli(torch.tensor(0.5), logits=a).rsample()
        return b

    return [Pair("RelaxedBernoulli(0.5)", through(relaxed), "BinaryConcrete(0.5)", of_binary)]


def reinmax_pairs() -> list[Pair]:
    """Liu et al.'s ReinMax, for categories; of two of them here, with logits a and 0."""
    reinmax = import_module("reinmax").reinmax

    def sample(a: Tensor) -> Tensor:
        one_hot, _ = reinmax(torch.stack([a, torch.zeros_like(a)], -1), tau=1.0)
        b: Tensor = one_hot[..., 0]
        return b

    return [Pair("reinmax(tau=1)", through(sample), "ReinMax()", of_binary)]


def relaxit_pairs() -> list[Pair]:
    """Straight-through and stochastic times smooth."""
    relaxit = import_module("relaxit.distributions")
    st = through(lambda a: relaxit.StraightThroughBernoulli(logits=a).rsample())
    sts = through(lambda a: relaxit.StochasticTimesSmooth(logits=a).rsample())
    straight = "StraightThrough(sigmoid_derivative=True)"
    return [
        Pair("StraightThroughBernoulli", st, straight, of_binary),
        Pair("StochasticTimesSmooth", sts, "StochasticTimesSmooth()", of_times_smooth),
    ]


def storchastic_pairs() -> list[Pair]:
    """Score function, ARM, DisARM, REBAR and the relaxation."""
    storch, method_of = import_module("storch"), import_module("storch.method")

    cost = storch.deterministic(lambda b: PROBLEM.f(b.float()))  # its DisARM samples are bool

    def draw(make: Callable[[], Any]) -> Draw:
        method = make()

        def gradient(logits: Tensor) -> Tensor:
            a = logits.clone().requires_grad_()
            independent = storch.denote_independent(a, 0, "draws")
            b = method(torch.distributions.Bernoulli(logits=independent))
            storch.add_cost(cost(b), "f")
            storch.backward()
            assert a.grad is not None
            return a.grad * len(a)  # its backward takes the mean over the draws

        return gradient

    made: dict[str, tuple[str, Callable[[], Any]]] = {
        "ScoreFunction": ("REINFORCE()", lambda: method_of.ScoreFunction("b")),
        'ScoreFunction(2, "batch_average")': (
            "RLOO(2)",
            lambda: method_of.ScoreFunction("b", n_samples=2, baseline_factory="batch_average"),
        ),
        "ARM": ("ARM()", lambda: method_of.ARM("b")),
        "DisARM": ("DisARM()", lambda: method_of.DisARM("b")),
        "REBAR": ("REBAR()", lambda: method_of.REBAR("b")),
        "GumbelSoftmax(0.5)": (
            "BinaryConcrete(0.5)",
            lambda: method_of.GumbelSoftmax("b", initial_temperature=0.5),
        ),
    }
    return [Pair(name, draw(make), beside, of_binary) for name, (beside, make) in made.items()]


PEERS: dict[str, Callable[[], list[Pair]]] = {
    "torch": torch_pairs,
    "reinmax": reinmax_pairs,
    "relaxit": relaxit_pairs,
    "storchastic": storchastic_pairs,
}


def measure(of: str, name: str, draw: Draw, truth: Truth) -> dict[str, Any]:
    """A row of the table; an estimator that fails says why."""
    a = PROBLEM.logits.clone().requires_grad_()
    (exact,) = torch.autograd.grad(truth(a), a)
    logits = PROBLEM.logits.float().expand(BATCH, -1)
    try:
        g = torch.cat([draw(logits).double() for _ in range(DRAWS // BATCH)])
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            draw(logits)
            times.append(1e6 * (time.perf_counter() - start))
    except Exception as error:
        return {"of": of, "estimator": name, "failed": f"{type(error).__name__}: {error}"[:200]}
    off = g.mean(0) - exact
    return {
        "of": of,
        "estimator": name,
        "bias": (100 * off.norm() / exact.norm()).item(),
        "z": (off / (g.std(0) / len(g) ** 0.5)).abs().max().item(),
        "variance": g.var(0).sum().item(),
        "microseconds": statistics.median(times),
    }


def worker(peer: str) -> list[dict[str, Any]]:
    """All rows of a peer: its own, and ours."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for pair in PEERS[peer]():
        rows.append(measure(peer, pair.theirs, pair.draw, pair.truth))
        rows.append(measure("hardgate", pair.ours, ours(pair.ours), pair.truth))
    return rows


def collect(peer: str) -> list[dict[str, Any]]:
    """The rows of a peer from a process of its own; none, and a line, if it cannot run."""
    command = [sys.executable, __file__, "--peer", peer]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{peer}: left out ({done.stderr.strip().splitlines()[-1]})", file=sys.stderr)
        return []
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    if "failed" in row:
        return row["of"], row["estimator"], row["failed"], "", "", ""
    numbers = (f"{row['bias']:.1f}", f"{row['z']:.1f}", f"{row['variance']:.3g}")
    return row["of"], row["estimator"], *numbers, f"{row['microseconds']:.0f}"


def main() -> None:
    """Print the table; with --markdown for a page."""
    parser = argparse.ArgumentParser(description="Estimators beside those of other libraries.")
    parser.add_argument("--peer", choices=PEERS, help="only this one, as JSON")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    if options.peer:
        print(json.dumps(worker(options.peer)))
        return
    rows = [cells(row) for peer in PEERS for row in collect(peer)]
    print(f"{DRAWS} draws; µs: of {BATCH} gradients at once, one thread, {ROUNDS} times, median\n")
    if options.markdown:
        lines = [COLUMNS, ("---", "---", "---:", "---:", "---:", "---:"), *rows]
        print("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return
    for of, estimator, *numbers in [COLUMNS, *rows]:
        print(f"{of:12}{estimator:42}" + "".join(f"{number:>10}" for number in numbers))


if __name__ == "__main__":
    main()
