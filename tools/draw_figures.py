"""Draw the figures of the docs that show the recorded runs of the paper's experiment.

`make readme` runs it in the root of the repository.
"""

from __future__ import annotations

from pathlib import Path

from hardgate_lab.reproduce.report.write_report import write_figures

if __name__ == "__main__":
    names = ("curves", "sparsity", "classes")
    write_figures(Path("results/reproduce"), Path("docs/figures"), names)
    print(*(f"→ docs/figures/reproduce-{name}.png" for name in names), sep="\n")
