"""`hardgate compare`: every unit on every toy problem, as rows, a table and a figure."""

from __future__ import annotations

import itertools
import math
import platform
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.box import SIMPLE
from rich.table import Table

import hardgate
from hardgate.lab.measure import Measurement, measure, microseconds
from hardgate.lab.problems import PROBLEMS
from hardgate.units import UNITS

# Some 300 z-scores are looked at; one beyond 5 among them has probability below 2e-4.
Z_LEVEL = 5.0


@dataclass(frozen=True)
class Row:
    """One unit on one problem."""

    problem: str
    unit: str
    unbiased: bool
    measured: Measurement
    microseconds: float

    @property
    def contradicts(self) -> bool:
        """Declared unbiased, but measured otherwise."""
        return self.unbiased and self.measured.z > Z_LEVEL


def compare(problems: Iterable[str], samples: int, seed: int) -> Iterator[Row]:
    """Measure unit after unit; one row as soon as it is known."""
    problems = list(problems)
    own_seed = itertools.count(seed * len(UNITS) * len(PROBLEMS))  # rows do not share their luck
    for name, make in UNITS.items():
        cost = microseconds(make())
        for problem in problems:
            measured = measure(make(), PROBLEMS[problem], samples, next(own_seed))
            yield Row(problem, name, make().unbiased, measured, cost)


def table(problem: str, rows: Iterable[Row]) -> Table:
    """The rows of one problem, for the terminal."""
    about = PROBLEMS[problem].about
    title = f"{problem}: {about}"
    out = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, padding=0)
    out.add_column("unit", no_wrap=True)
    for column in ("bias", "z", "variance", "evals", "µs"):
        out.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        m = row.measured
        style = "bold red" if row.contradicts else "green" if row.unbiased else ""
        z = "∞" if m.z > 1e5 else _short(m.z)
        bias, cost = _short(100 * m.bias) + " %", f"{row.microseconds:.0f}"
        cells = (bias, z, f"{m.variance:.3g}", str(m.evals), cost)
        out.add_row(row.unit, *cells, style=style)
    return out


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def record(rows: Iterable[Row], seed: int) -> dict[str, object]:
    """What `--json` writes: the rows, and where they were measured."""
    return {
        "hardgate": hardgate.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "seed": seed,
        "rows": [
            {
                "problem": row.problem,
                "unit": row.unit,
                "unbiased": row.unbiased,
                **{k: _finite(v) for k, v in asdict(row.measured).items()},
                "microseconds": row.microseconds,
            }
            for row in rows
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def figure(rows: list[Row], path: Path) -> None:
    """Two dot plots side by side: relative bias and variance, one colour per problem."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    units = list(dict.fromkeys(row.unit for row in rows))
    problems = list(dict.fromkeys(row.problem for row in rows))
    height = {unit: len(units) - k for k, unit in enumerate(units)}
    fig, (left, right) = plt.subplots(1, 2, figsize=(12, 5.5), sharey=True, layout="constrained")
    for k, problem in enumerate(problems):
        here = [row for row in rows if row.problem == problem]
        offset = 0.13 * ((len(problems) - 1) / 2 - k)
        y = [height[row.unit] + offset for row in here]
        shared = {"s": 36, "color": f"C{k}", "label": problem}
        left.scatter([max(100 * row.measured.bias, 0.01) for row in here], y, **shared)
        right.scatter([max(row.measured.variance, 1e-3) for row in here], y, **shared)
    left.set(xscale="log", xlabel="bias, % of the true gradient (left edge: 0.01 or less)")
    right.set(xscale="log", xlabel="variance of one draw, summed over units (left edge: 0)")
    left.set_yticks(list(height.values()), [_label(rows, unit) for unit in units])
    for axis in (left, right):
        axis.grid(axis="x", alpha=0.3)
        for y0 in height.values():
            axis.axhline(y0 - 0.5, color="0.92", linewidth=0.8, zorder=0)
    samples = rows[0].measured.samples
    left.set_title("Bias (an unbiased unit shows its sampling error only)", fontsize=10)
    right.set_title("Variance", fontsize=10)
    right.legend(title="problem", loc="lower right", fontsize=8, title_fontsize=8)
    fig.suptitle(f"Gradient of each unit against the exact one, {samples:,} draws; * = unbiased")
    fig.savefig(path, dpi=120)
    plt.close(fig)


def _label(rows: list[Row], unit: str) -> str:
    return unit + (" *" if next(row.unbiased for row in rows if row.unit == unit) else "")
