"""The table and the figure of `hardgate toy`, beside the published figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from hardgate_lab.rig.figures import line_style, new_figure, save_figure
from hardgate_lab.rig.machine import versions
from hardgate_lab.rig.markers import embed
from hardgate_lab.rig.text_tables import markdown_table, terminal_table
from hardgate_lab.toy.toy_problem import PUBLISHED, Curve, Toy

COLUMNS = ("estimator", "objective", "published", "variance: start", "half-way", "end")


def rows(curves: Sequence[Curve]) -> list[tuple[str, ...]]:
    """By final objective, the best first; the cells of COLUMNS."""
    ranked = sorted(curves, key=lambda c: -statistics.fmean(c.final))
    return [(c.estimator + " *" * (not c.unbiased), *_cells(c)) for c in ranked]


def _cells(curve: Curve) -> tuple[str, ...]:
    spread = f" ± {statistics.stdev(curve.final):.5f}" if len(curve.final) > 1 else ""
    published = PUBLISHED.get(curve.estimator)
    variance = curve.variance
    return (
        f"{statistics.fmean(curve.final):.5f}{spread}",
        "" if published is None else f"{published:.4f}",
        *(f"{x:.2g}" for x in (variance[0], variance[len(variance) // 2], variance[-1])),
    )


def table(curves: Sequence[Curve], toy: Toy) -> Table:
    """For the terminal."""
    title = f"mean (b − {toy.t})² after {toy.steps} steps; optimum {toy.optimum:.6f}; * biased"
    return terminal_table(COLUMNS, rows(curves), title=title)


def record(curves: Sequence[Curve], toy: Toy, seeds: Sequence[int]) -> dict[str, Any]:
    """What `--json` writes."""
    return {
        **versions(),
        "settings": {**asdict(toy), "start": toy.start, "optimum": toy.optimum},
        "seeds": list(seeds),
        "published": PUBLISHED,
        "curves": [asdict(curve) for curve in curves],
    }


def write(page: str, record: dict[str, Any]) -> str:
    """`page` with the recorded table written anew."""
    return embed(page, "toy", markdown(record))


def markdown(record: dict[str, Any]) -> str:
    """The recorded curves' ends as a table."""
    curves = [Curve(**curve) for curve in record["curves"]]
    settings = record["settings"]
    n = len(record["seeds"])
    first = (
        f"{'One seed' if n == 1 else f'{n} seeds (± standard deviation)'}; start "
        f"{settings['start']:.6f}, optimum {settings['optimum']:.6f}. * biased."
    )
    coded = [(f"`{name}`".replace(" *`", "` *"), *cells) for name, *cells in rows(curves)]
    return f"{first}\n\n{markdown_table(COLUMNS, coded)}"


def figure(curves: Sequence[Curve], toy: Toy, path: Path) -> None:
    """Objective and gradient variance along the ascent; published ends as ticks on the right."""
    fig = new_figure(13, 5)
    left, right = fig.subplots(1, 2)
    ranked = sorted(curves, key=lambda c: -statistics.fmean(c.final))
    for k, curve in enumerate(ranked):
        style: dict[str, Any] = line_style(k)
        left.plot(curve.steps, curve.objective, label=curve.estimator, **style)
        if max(curve.variance) > 0:
            right.plot(curve.steps, curve.variance, **style)
        if curve.estimator in PUBLISHED and toy == Toy():
            left.plot(1.01 * toy.steps, PUBLISHED[curve.estimator], "<", color=style["color"])
    left.axhline(toy.optimum, color="0.6", linewidth=0.8)
    left.set(
        xlabel="step", ylabel="E mean (b − t)²", title="Objective (◂ published, line: optimum)"
    )
    right.set(xlabel="step", ylabel="Σ Var(g)", yscale="log", title="Variance of a step's gradient")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    fig.legend(loc="outside right upper", fontsize=8)
    fig.suptitle(
        f"D = {toy.units}, t = {toy.t}, {toy.evals} evaluations per step, RMSprop {toy.lr}",
        fontsize=11,
    )
    save_figure(fig, path)
