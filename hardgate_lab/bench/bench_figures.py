"""The figures of `hardgate bench`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from hardgate_lab.bench.bench_layer import Timing
from hardgate_lab.rig.figures import new_figure, save_figure


def break_even(rows: list[Timing]) -> float | None:
    """The density at which the kernels are as fast as dense torch, by linear interpolation."""
    for a, b in itertools.pairwise(rows):
        ra, rb = a.ratio("sparse"), b.ratio("sparse")
        if ra >= 1 > rb:
            return a.density + (b.density - a.density) * (ra - 1) / (ra - rb)
    return None


def figures(timings: list[Timing], folder: Path) -> list[Path]:
    """Speed-up against density; time and memory against width."""
    density = new_figure(7, 4.5)
    _speed_up(density.subplots(), [t for t in timings if t.table == "density"])

    rows = [t for t in timings if t.table == "width"]
    measured = [t for t in rows if t.megabytes]
    width = new_figure(10 if measured else 7, 4.5)
    left, *right = width.subplots(1, 2 if measured else 1, squeeze=False).flat
    _against_width(left, rows, "milliseconds")
    for axis in right:
        _against_width(axis, measured, "megabytes")
    title = "Forward pass of the layer against its width, 784 inputs, 10 outputs"
    width.suptitle(title, fontsize=11)
    return [
        save_figure(density, folder / "bench-density.png"),
        save_figure(width, folder / "bench-width.png"),
    ]


def _speed_up(axis: Any, timings: list[Timing]) -> None:
    for k, case in enumerate(dict.fromkeys(t.case for t in timings)):
        rows = [t for t in timings if t.case == case]
        x = [t.density for t in rows]
        axis.plot(x, [t.ratio("sparse") for t in rows], f"C{k}o-", label=f"{case}, kernels")
        axis.plot(x, [t.ratio("auto") for t in rows], f"C{k}x:", label=f"{case}, auto")
        even = break_even(rows)
        if even is not None:
            axis.axvline(even, color=f"C{k}", alpha=0.4, linewidth=1)
            axis.annotate(f"{even:.2f}", (even, 1.05 * 1.2**k), color=f"C{k}", fontsize=8)
    axis.axhline(1, color="0.5", linewidth=0.8)
    axis.set(xscale="log", yscale="log", xlabel="density of the gates")
    axis.set(ylabel="times faster than dense torch", title="Forward pass, B = 32")
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)


def _against_width(axis: Any, timings: list[Timing], quantity: str) -> None:
    """`quantity` is a field of the timings: milliseconds, or megabytes at most."""
    for k, batch in enumerate((1, 32)):
        rows = [t for t in timings if t.batch == batch]
        x = [int(t.case) for t in rows]
        for candidate, name, style in (("dense", "dense", "s--"), ("sparse", "kernels", "o-")):
            y = [getattr(t, quantity)[candidate] for t in rows]
            axis.plot(x, y, f"C{k}{style}", label=f"{name}, B={batch}")
    axis.set(xscale="log", xlabel="experts (200 on per example)")
    if quantity == "milliseconds":
        axis.set(yscale="log", ylabel="ms")
    else:  # some of the peaks are too small to be seen
        axis.set_yscale("symlog", linthresh=0.1)
        axis.set(ylabel="MB at the peak, besides weights and inputs", ylim=(-0.01, None))
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)
