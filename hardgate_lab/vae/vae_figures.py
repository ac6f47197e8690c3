"""The figures of `hardgate vae`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hardgate_lab.rig.figures import line_style, new_figure, save_figure
from hardgate_lab.vae.vae_record import name_of

Record = dict[str, Any]
_AXES: dict[str, Callable[[Record], list[float]]] = {
    "steps": lambda record: record["curve"]["step"],
    "evaluations of f": lambda r: [r["n_evals"] * step for step in r["curve"]["step"]],
    "seconds": lambda r: [r["milliseconds"] / 1e3 * step for step in r["curve"]["step"]],
}


def figures(
    records: Sequence[Record], variance: Sequence[dict[str, Any]], folder: Path
) -> list[Path]:
    """ELBO against steps, evaluations and seconds; variance along the trajectory."""
    style = {name_of(record): line_style(number) for number, record in enumerate(records)}
    figure = new_figure(14, 5.5)
    axes = figure.subplots(1, 3, sharey=True)
    for axis, (label, x) in zip(axes, _AXES.items(), strict=True):
        for record in records:
            name = name_of(record)
            axis.plot(x(record), record["curve"]["test"], label=name, linewidth=1.2, **style[name])
        axis.set(xlabel=label, xlim=(0, None))  # each to its own end
        axis.locator_params(axis="x", nbins=6)
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="test ELBO, nats", ylim=_worth_seeing(records))
    _finish(figure, axes[0], f"Bernoulli VAE, {records[0]['dataset']}")
    paths = [save_figure(figure, folder / "vae-elbo.png")]
    if variance:
        figure = new_figure(9, 5.5)
        axis = figure.subplots()
        _along(axis, variance, style)
        _finish(figure, axis, "Variance of the gradient at the encoder's logits")
        paths.append(save_figure(figure, folder / "vae-variance.png"))
    return paths


def _worth_seeing(records: Sequence[Record]) -> tuple[float, float]:
    """From where the slowest is after a tenth of its way, up to the best."""
    curves = [record["curve"]["test"] for record in records]
    best = max(map(max, curves))
    low = min(curve[len(curve) // 10] for curve in curves)
    return max(low, best - 40), best + 1


def _along(axis: Any, variance: Sequence[dict[str, Any]], style: dict[str, dict[str, str]]) -> None:
    for name in style:  # those that were trained; the table has the others
        rows = [row for row in variance if row["estimator"] == name]
        x, y = [row["step"] for row in rows], [row["variance"] for row in rows]
        error = [row["error"] for row in rows]
        axis.errorbar(x, y, error, label=name, marker="o", markersize=3, **style[name])
    axis.set(xscale="log", yscale="log", xlabel="step of the trajectory")
    axis.set(ylabel="Σ Var, per image")
    axis.grid(alpha=0.3, which="both")


def _finish(fig: Any, axis: Any, title: str) -> None:
    handles, labels = axis.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside right upper", fontsize=8)
    fig.suptitle(title, fontsize=11, x=0.05, ha="left")  # the legend is on the right
