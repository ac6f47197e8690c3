"""`python tools/draw_figure1.py`: the paper's Fig. 1 with numbers, as docs/figures/figure1.svg.

Plain SVG text, no dependency. The drawing has a background of its own and follows the reader's
light or dark theme, so it is legible on any page.
"""

from __future__ import annotations

from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "docs" / "figures" / "figure1.svg"

IN, GATES, OUT = 784, 2000, 10  # the paper's network
RATE = 0.1
DRAWN = 20  # gates that stand for all 2000
ON = (4, 13)  # a tenth of them

WIDTH, HEIGHT = 900, 590
LEFT, STEP = 372, 20  # the first gate, and the distance between gates
GATE_Y, EXPERT_Y = 122, 308
PRODUCT_Y = (196, 234)  # where the two gates that are on meet their experts

DIGIT = (  # an input, coarsely
    "..........",
    "...####...",
    "..##..##..",
    "......##..",
    ".....##...",
    "....##....",
    "...##.....",
    "..##......",
    "..#######.",
    "..........",
)

STYLE = """
  .card { fill: #ffffff; stroke: #d8dde6 }
  text { fill: #1f2733; font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif;
         font-size: 16px }
  .title { font-size: 19px; font-weight: 600 }
  .small { font-size: 14.5px; fill: #5a6575 }
  .big { font-size: 18px; font-weight: 600 }
  .middle { text-anchor: middle }
  .end { text-anchor: end }
  .on-gate { fill: #d9480f; font-weight: 600 }
  .on-expert { fill: #1864ab; font-weight: 600 }
  .gate { fill: #e8590c; stroke: #e8590c }
  .expert { fill: #1c7ed6; stroke: #1c7ed6 }
  .off { fill: none; stroke: #a9b3c1; stroke-width: 1.4 }
  .skipped { fill: none; stroke: #a9b3c1; stroke-width: 1.4; stroke-dasharray: 3 3 }
  .flow { fill: none; stroke: #5a6575; stroke-width: 1.6 }
  .gate-flow { fill: none; stroke: #e8590c; stroke-width: 1.8 }
  .expert-flow { fill: none; stroke: #1c7ed6; stroke-width: 1.8 }
  .ink { fill: #1f2733 }
  .paper { fill: #eef1f5 }
  .box { fill: #fff1e6; stroke: #e8590c; stroke-width: 1.4 }
  .output { fill: #eef1f5; stroke: #5a6575; stroke-width: 1.4 }
  .head { fill: #5a6575 }
  .rule { stroke: #d8dde6 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22; stroke: #333c48 }
    text { fill: #e6eaf0 }
    .small { fill: #a3afbf }
    .on-gate { fill: #ffa94d }
    .on-expert { fill: #74c0fc }
    .gate { fill: #fd7e14; stroke: #fd7e14 }
    .expert { fill: #339af0; stroke: #339af0 }
    .off, .skipped { stroke: #6b7787 }
    .flow { stroke: #a3afbf }
    .gate-flow { stroke: #fd7e14 }
    .expert-flow { stroke: #339af0 }
    .ink { fill: #e6eaf0 }
    .paper { fill: #242c37 }
    .box { fill: #33231a; stroke: #fd7e14 }
    .output { fill: #242c37; stroke: #a3afbf }
    .head { fill: #a3afbf }
    .rule { stroke: #333c48 }
  }
"""


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """One line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{words}</text>'


def circle(x: float, y: float, radius: float, kind: str) -> str:
    """A unit."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{kind}"/>'


def box(x: float, y: float, width: float, height: float, kind: str, corner: float = 4) -> str:
    """A rectangle."""
    size = f'width="{width:g}" height="{height:g}" rx="{corner:g}"'
    return f'<rect x="{x:g}" y="{y:g}" {size} class="{kind}"/>'


def path(d: str, kind: str, arrow: bool = False) -> str:
    """A line, with an arrow at its end if wanted."""
    end = ' marker-end="url(#arrow)"' if arrow else ""
    return f'<path d="{d}" class="{kind}"{end}/>'


def millions(n: float) -> str:
    """1 272 400 → 1.27."""
    return f"{n / 1e6:.2f}"


def network() -> list[str]:
    """Input, gater, gates, experts, products, output."""
    parts = [
        text(30, 44, "The paper's Fig. 1", "title"),
        text(30, 66, "one layer, one input", "small"),
    ]
    for row, line in enumerate(DIGIT):
        for column, pixel in enumerate(line):
            kind = "ink" if pixel == "#" else "paper"
            parts.append(box(36 + 10 * column, 168 + 10 * row, 9, 9, kind, 1.5))
    parts.append(text(86, 290, "input x", "middle"))
    parts.append(text(86, 309, f"{IN} pixels", "middle small"))

    parts.append(text(LEFT - 10, 62, "The gater decides which experts are used"))
    parts.append(path(f"M 142 196 C 168 176, 164 {GATE_Y}, 190 {GATE_Y}", "flow", True))
    parts.append(box(198, GATE_Y - 36, 112, 72, "box", 8))
    parts.append(text(254, GATE_Y - 7, "hidden layer", "middle"))
    parts.append(text(254, GATE_Y + 15, "400 tanh", "middle"))
    parts.append(path(f"M 312 {GATE_Y} H {LEFT - 20}", "flow", True))
    on = int(RATE * GATES)
    parts.append(text(LEFT - 10, 92, f"{GATES} gates, {on} on (10 %)", "on-gate"))

    y, bus = EXPERT_Y, EXPERT_Y + 24
    last = LEFT + STEP * ON[-1]
    parts.append(path(f"M 142 238 C 220 244, 250 {bus}, 340 {bus} H {last}", "expert-flow"))
    for i in range(DRAWN):
        x, kinds = LEFT + STEP * i, ("gate", "expert") if i in ON else ("off", "skipped")
        if i in ON:
            parts.append(path(f"M {x} {GATE_Y} V {bus}", "expert-flow"))
            parts.append(path(f"M {x} {GATE_Y} V {PRODUCT_Y[ON.index(i)]}", "gate-flow"))
        parts += [circle(x, GATE_Y, 7, kinds[0]), circle(x, y, 7, kinds[1])]
    for row in (GATE_Y, y):
        parts.append(text(LEFT + STEP * DRAWN - 6, row + 4, "…"))
    for i, product in zip(ON, PRODUCT_Y, strict=True):
        x = LEFT + STEP * i
        middle = (PRODUCT_Y[0] + PRODUCT_Y[-1]) / 2
        parts.append(
            path(
                f"M {x + 11} {product} H 720 C 760 {product}, 760 {middle}, 800 {middle}",
                "flow",
                True,
            )
        )
    for i, product in zip(ON, PRODUCT_Y, strict=True):
        parts.append(circle(LEFT + STEP * i, product, 11, "output"))
        parts.append(text(LEFT + STEP * i, product + 5.5, "×", "middle"))

    words = f"{GATES} experts: {on} computed, {GATES - on} skipped"
    parts.append(text(LEFT - 10, bus + 30, words, "on-expert"))
    parts.append(text(LEFT - 10, bus + 52, "Gate off: not evaluated, weights not read.", "small"))

    for i in range(OUT):
        parts.append(circle(820, middle - 67.5 + 15 * i, 5.5, "output"))
    parts.append(text(820, middle + 102, "output y", "middle"))
    parts.append(text(820, middle + 121, f"{OUT} classes", "middle small"))
    return parts


def bars() -> list[str]:
    """Multiplications for one input: done, and skipped."""
    top, left, width = 436, 232, 470
    most = IN * 400 + 400 * GATES + GATES * (IN + OUT)
    parts = [
        f'<path d="M 30 {top - 24} H {WIDTH - 30}" class="rule"/>',
        text(30, top + 4, "Multiplications for one input, in millions", "title"),
    ]
    for number, hidden in enumerate((400, 100)):
        y = top + 24 + 46 * number
        gater = IN * hidden + hidden * GATES
        experts = GATES * (IN + OUT)
        done = gater + RATE * experts
        x: float = left
        whose = "the paper's gater" if hidden == 400 else "a narrower gater"
        parts.append(text(30, y + 14, f"{IN}–{hidden}–{GATES}"))
        parts.append(text(30, y + 32, whose, "small"))
        for part, kind in ((gater, "gate"), (RATE * experts, "expert"), (None, "skipped")):
            length = width * ((gater + experts - done) if part is None else part) / most
            parts.append(box(x + 1, y, length - 2, 26, kind, 3))
            x += length
        x, dense = left + width + 16, gater + experts
        parts.append(text(x, y + 11, f"{millions(done)} of {millions(dense)}", "big"))
        parts.append(text(x, y + 29, f"{dense / done:.1f} times fewer", "small"))
    y = top + 126
    for x, kind, name in (
        (left, "gate", "gater"),
        (left + 84, "expert", "experts that are on"),
        (left + 276, "skipped", "skipped"),
    ):
        parts.append(box(x, y - 12, 14, 14, kind, 3))
        parts.append(text(x + 21, y, name, "small"))
    return parts


def draw() -> str:
    """The whole figure."""
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M 0 0.8 L 10 5 L 0 9.2 z" class="head"/>'
        "</marker></defs>"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="t">'
    )
    title = (
        "A gater turns 200 of 2000 gates on; only their experts are computed, "
        "multiplied by their gates and summed into the output."
    )
    parts = [
        head,
        f'<title id="t">{title}</title>',
        f"<style>{STYLE}</style>",
        arrow,
        box(0.5, 0.5, WIDTH - 1, HEIGHT - 1, "card", 12),
        *network(),
        *bars(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(draw())
    print(f"→ {TARGET}")
