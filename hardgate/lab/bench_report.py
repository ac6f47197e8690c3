"""The tables and figures of `hardgate bench`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from hardgate.lab.bench import Timing
from hardgate.lab.page import embed

_KINDS = ("forward", "forward + backward", "training step")


def tables(timings: list[Timing]) -> list[Table]:
    """One table for each kind of measurement that is not a figure."""
    out = []
    for kind in _KINDS:
        rows = [t for t in timings if t.table == kind]
        if not rows:
            continue
        rivals = list(dict.fromkeys(name for t in rows for name in t.milliseconds))
        table = Table(title=f"{kind} (ms, and × faster than dense)", box=SIMPLE, padding=0)
        table.title_justify = "left"
        table.add_column("case", no_wrap=True)
        table.add_column("B", justify="right")
        for name in rivals:
            table.add_column(name, justify="right", no_wrap=True)
        for t in rows:
            table.add_row(t.case, str(t.batch), *(_cell(t, name) for name in rivals))
        out.append(table)
    return out


def _cell(timing: Timing, name: str) -> str:
    if name not in timing.milliseconds:
        return ""
    ms = f"{timing.milliseconds[name]:.2f}"
    return ms if name == next(iter(timing.milliseconds)) else f"{ms} {timing.ratio(name):.1f}×"


def write(page: str, record: dict[str, Any]) -> str:
    """`page` with what `--json` recorded written anew as tables."""
    return embed(page, "bench", markdown(record))


def markdown(record: dict[str, Any]) -> str:
    """The recorded timings as Markdown."""
    timings = [Timing(**row) for row in record["timings"]]
    where = ", ".join(f"{key} {value}" for key, value in record.items() if key != "timings")
    parts = [f"Taken on: {where}. Milliseconds, and in brackets times faster than dense."]
    for kind in _KINDS:
        rows = [t for t in timings if t.table == kind]
        rivals = list(dict.fromkeys(name for t in rows for name in t.milliseconds))
        lines = [f"| {kind} | B | " + " | ".join(rivals) + " |", "|---|---|" + "---|" * len(rivals)]
        for t in rows:
            cells = [
                _cell(t, name).replace(" ", " (") + ")" * (" " in _cell(t, name)) for name in rivals
            ]
            lines.append(f"| {t.case.replace('|', '/')} | {t.batch} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def break_even(rows: list[Timing]) -> float | None:
    """The density at which the kernels are as fast as dense torch, by linear interpolation."""
    for a, b in itertools.pairwise(rows):
        ra, rb = a.ratio("sparse"), b.ratio("sparse")
        if ra >= 1 > rb:
            return a.density + (b.density - a.density) * (ra - 1) / (ra - rb)
    return None


def figures(timings: list[Timing], folder: Path) -> list[Path]:
    """Speed-up against density, time against width."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "bench-density.png", folder / "bench-width.png"]
    fig, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    cases = list(dict.fromkeys(t.case for t in timings if t.table == "density"))
    for k, case in enumerate(cases):
        rows = [t for t in timings if t.table == "density" and t.case == case]
        x = [t.density for t in rows]
        axis.plot(x, [t.ratio("sparse") for t in rows], f"C{k}o-", label=f"{case}, kernels")
        axis.plot(x, [t.ratio("auto") for t in rows], f"C{k}x:", label=f"{case}, auto")
        even = break_even(rows)
        if even is not None:
            axis.axvline(even, color=f"C{k}", alpha=0.4, linewidth=1)
            axis.annotate(f"{even:.2f}", (even, 1.05), color=f"C{k}", fontsize=8)
    axis.axhline(1, color="0.5", linewidth=0.8)
    axis.set(xscale="log", yscale="log", xlabel="density of the gates")
    axis.set(ylabel="times faster than dense torch", title="Forward pass, B = 32")
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)
    fig.savefig(paths[0], dpi=120)
    plt.close(fig)

    fig, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for k, batch in enumerate((1, 32)):
        rows = [t for t in timings if t.table == "width" and t.batch == batch]
        x = [int(t.case) for t in rows]
        axis.plot(x, [t.milliseconds["dense"] for t in rows], f"C{k}s--", label=f"dense, B={batch}")
        axis.plot(
            x, [t.milliseconds["sparse"] for t in rows], f"C{k}o-", label=f"kernels, B={batch}"
        )
    axis.set(xscale="log", yscale="log", xlabel="experts (200 on per example)", ylabel="ms")
    axis.set(title="Forward pass of the layer against its width, 784 inputs, 10 outputs")
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)
    fig.savefig(paths[1], dpi=120)
    plt.close(fig)
    return paths
