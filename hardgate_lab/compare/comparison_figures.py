"""The figures of `hardgate compare`: variance against cost, and the bias–variance plane."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardgate_lab.compare.comparison import Comparison, Row
from hardgate_lab.rig.figures import new_figure, save_figure

_MARKERS = "osD^vP*X<>"
_LEAST_BIAS = 1e-4  # the left edge of the plane: a hundredth of a percent
_ENTRY = 0.19  # inches of a line in the legend


def figures(comparisons: Sequence[Comparison], path: Path) -> list[Path]:
    """Both figures: `path`, and beside it the plane, as `…-bias.png`."""
    comparisons = [r for r in comparisons if _comparable(r)]
    if not comparisons:
        return []
    style = _styles(comparisons)
    n, least = len(comparisons), _ENTRY * len(style) + 0.8
    fig = new_figure(13.0, max(least, 3.3 * n + 0.8))
    axes = fig.subplots(n, 2, squeeze=False, sharey="row")
    for (left, right), comparison in zip(axes, comparisons, strict=True):
        _cost(left, comparison, style, lambda r: r.measured.evals, "evaluations of f per gradient")
        _cost(right, comparison, style, lambda r: r.microseconds, "µs per gradient")
    _finish(fig, "Variance of one gradient against its cost; grey: equal variance × cost", style)
    save_figure(fig, path)
    columns = min(3, n)
    lines = -(-n // columns)
    fig = new_figure(4.6 * columns + 2.5, max(least, 4.2 * lines + 0.8))
    axes = fig.subplots(lines, columns, squeeze=False)
    for axis, comparison in zip(axes.flat, comparisons, strict=False):
        _plane(axis, comparison, style)
    for axis in list(axes.flat)[n:]:
        axis.set_axis_off()
    _finish(fig, "Bias and variance of one gradient; left edge: unbiased, or no bias seen", style)
    return [path, save_figure(fig, plane_of(path))]


def plane_of(path: Path) -> Path:
    """Where the bias–variance plane goes: beside the other figure."""
    return path.with_name(f"{path.stem}-bias{path.suffix}")


def _comparable(comparison: Comparison) -> list[Row]:
    return [row for row in comparison.rows if not row.own_objective]


def _styles(comparisons: Sequence[Comparison]) -> dict[str, dict[str, Any]]:
    """A colour for each class, a marker for each of its forms; hollow where biased."""
    rows = {row.estimator: row for comparison in comparisons for row in _comparable(comparison)}
    classes: dict[str, list[str]] = {}
    for name in rows:
        classes.setdefault(name.partition("(")[0], []).append(name)
    style: dict[str, dict[str, Any]] = {}
    for k, forms in enumerate(classes.values()):
        colour = f"C{k % 10}"
        for j, name in enumerate(forms):
            marker = _MARKERS[(j + k // 10) % len(_MARKERS)]
            face = colour if rows[name].unbiased else "white"
            style[name] = {"color": colour, "marker": marker, "markerfacecolor": face}
    return style


def _cost(axis: Any, comparison: Comparison, style: Any, cost: Any, label: str) -> None:
    """Points with error bars, lines of equal efficiency, and names on the unbiased front."""
    rows = [r for r in _comparable(comparison) if r.measured.variance > 0]
    for row in rows:
        m = row.measured
        error = min(m.variance_error, 0.99 * m.variance)
        axis.errorbar(cost(row), m.variance, error, capsize=2, ls="", ms=6, **style[row.estimator])
    axis.set(xscale="log", yscale="log", xlabel=label, ylabel="variance")
    costs = [cost(row) for row in rows] or [1.0]
    axis.set_xlim(min(costs) / 1.2, max(costs) * 1.2)  # matplotlib's own may be empty for one point
    axis.xaxis.set_major_formatter("{x:g}")
    low, high = axis.get_xlim()
    axis.xaxis.set_minor_formatter("{x:g}" if high < 20 * low else "")
    axis.tick_params(axis="x", which="both", labelsize=7)
    _guides(axis, rows, cost)
    best = front([r for r in rows if r.unbiased], cost)
    for row in sorted(best, key=lambda r: cost(r) * r.measured.variance):
        at, shift = (cost(row), row.measured.variance), {"textcoords": "offset points"}
        axis.annotate(row.estimator, at, xytext=(5, -9), fontsize=7, **shift)
    axis.set_title(_title(comparison), fontsize=9)
    axis.grid(alpha=0.25)


def _guides(axis: Any, rows: Sequence[Row], cost: Any) -> None:
    """Lines along which variance × cost is the same, a factor of 10 apart."""
    if not rows:
        return
    (low, high), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    product = min(cost(r) * r.measured.variance for r in rows)
    for _ in range(12):
        axis.plot([low, high], [product / low, product / high], color="0.85", zorder=0, lw=0.8)
        product *= 10
    axis.set(xlim=(low, high), ylim=(bottom, top))


def front(rows: Sequence[Row], cost: Any) -> list[Row]:
    """Those that nobody beats in both cost and variance."""
    kept: list[Row] = []
    for row in sorted(rows, key=lambda r: (cost(r), r.measured.variance)):
        if not kept or row.measured.variance < kept[-1].measured.variance:
            kept.append(row)
    return kept


def _plane(axis: Any, comparison: Comparison, style: Any) -> None:
    rows, square = _comparable(comparison), comparison.scale**2
    floor = min((r.measured.variance for r in rows if r.measured.variance), default=square) / 10
    for row in rows:
        m = row.measured
        seen = not row.unbiased and m.bias > 2 * m.noise and m.bias > _LEAST_BIAS
        x, dx = 100 * (m.bias if seen else _LEAST_BIAS), 100 * m.noise if seen else 0.0
        y = max(m.variance, floor)
        dy = min(m.variance_error, 0.99 * y)
        form = style[row.estimator]
        axis.errorbar(x, y / square, dy / square, min(dx, 0.99 * x), ls="", ms=6, **form)
    axis.set(xscale="log", yscale="log", xlabel="bias, % of the true gradient")
    axis.set(ylabel="variance / ‖true gradient‖²")
    axis.set_title(_title(comparison), fontsize=9)
    axis.grid(alpha=0.25)


def _title(comparison: Comparison) -> str:
    """What fits above a panel."""
    title = f"{comparison.problem}: {comparison.about}"
    return title if len(title) < 60 else comparison.problem


def _finish(fig: Any, title: str, style: dict[str, dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="none", label=name, **form) for name, form in style.items()]
    fig.legend(handles=handles, loc="outside right upper", fontsize=7.5, title="hollow: biased")
    fig.suptitle(title, fontsize=11)
    fig.draw_without_rendering()  # which decides where everything is
    for axis in fig.axes:
        thin(axis)


def thin(axis: Any) -> None:
    """Take away names that lie on others: the first ones stay, and the legend has all."""
    kept: list[Any] = []
    for text in list(axis.texts):
        box = text.get_window_extent()
        if any(box.overlaps(other) for other in kept):
            text.remove()
        else:
            kept.append(box)
