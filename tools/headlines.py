"""`python tools/headlines.py`: the short tables of README.md and docs/index.md, from `results/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hardgate_lab.reproduce import table
from hardgate_lab.rig.markers import write

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/index.md")

ROWS = ("noisy_rectifier", "straight_through", "stochastic_times_smooth", "stochastic_binary")
OURS = ("best", "dense")

# table and case of `hardgate bench`, batch, column, what the reader sees
SPEED = (
    ("forward", "1024-4096-1024", 1, "sparse", "forward, 1 input"),
    ("forward", "1024-4096-1024", 32, "sparse", "forward, 32 inputs"),
    ("forward + backward", "1024-4096-1024", 32, "sparse", "forward and backward, 32 inputs"),
    (
        "forward + backward",
        "1024-4096-1024 blocks of 16",
        256,
        "sparse",
        "the same in blocks of 16, 256 inputs",
    ),
    (
        "training step",
        'NoisyRectifier("gaussian"), bottleneck 400',
        32,
        "FusedSGD",
        "training step of the paper's network, noisy rectifier",
    ),
    (
        "training step",
        "StraightThrough(), bottleneck 400",
        32,
        "FusedSGD",
        "training step of the paper's network, exact straight-through",
    ),
)


def errors() -> str:
    """Test errors beside the paper's, without the columns of the long table."""
    folder = ROOT / "results" / "reproduce"
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    cells = {line[0]: line for line in table.lines(records)}
    test = table.COLUMNS.index("test")
    rows = [cells[table.LABELS[row]] for row in (*ROWS, *OURS)]
    head = ["| gater | test error, % | paper |", "| --- | ---: | ---: |"]
    return "\n".join(head + [f"| {r[0]} | {r[test]} | {r[test + 1]} |" for r in rows])


def bench() -> dict[str, Any]:
    """The committed benchmark."""
    record: dict[str, Any] = json.loads((ROOT / "results" / "bench.json").read_text())
    return record


def milliseconds() -> list[tuple[str, float, float]]:
    """What SPEED asks for: words, dense torch, ours."""
    rows = {(t["table"], t["case"], t["batch"]): t["milliseconds"] for t in bench()["timings"]}
    return [
        (words, rows[name, case, batch]["dense"], rows[name, case, batch][column])
        for name, case, batch, column, words in SPEED
    ]


def machine() -> str:
    """Processor, threads and torch of the benchmark."""
    record = bench()
    return f"{record['processor']}, {record['threads']} threads, torch {record['torch']}"


def speed() -> str:
    """A few rows of the benchmark, wins and losses, and the machine that they were taken on."""
    out = ["| | dense torch, ms | hardgate, ms | times as fast |", "| --- | ---: | ---: | ---: |"]
    for words, dense, ours in milliseconds():
        out.append(f"| {words} | {dense:.2f} | {ours:.2f} | {dense / ours:.1f} |")
    return "\n".join([*out, "", f"Processor: {machine()}."])


def speed_line() -> str:
    """The same in a sentence."""
    one, _, step, _, noisy, exact = (f"{dense / ours:.1f}" for _, dense, ours in milliseconds())
    return (
        f"**Speed** on a CPU ({machine()}), with 10 % of the gates on: a layer of 4096 experts "
        f"between 1024 inputs and\noutputs is {one} times as fast as dense torch for one input, "
        f"and {step} times for 32, forward and backward. A training step\nof the paper's network "
        f"is {noisy} times as fast with the noisy rectifier, and {exact} times with exact "
        "straight-through, which\nneeds every expert ([all figures](conditional.md#measured))."
    )


def headlines(page: str) -> str:
    """`page` with its short tables written anew."""
    return write(page, {"speed": speed, "speed-line": speed_line, "errors": errors})


if __name__ == "__main__":
    for name in PAGES:
        path = ROOT / name
        path.write_text(headlines(path.read_text()))
