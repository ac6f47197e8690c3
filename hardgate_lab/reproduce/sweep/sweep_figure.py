"""The importances as a bar chart."""

from __future__ import annotations

from pathlib import Path


def draw(importances: dict[str, float], title: str, path: Path) -> None:
    """One bar per setting, the most important on top."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(importances)[::-1]
    fig, axis = plt.subplots(figsize=(7, 1 + 0.35 * len(names)), layout="constrained")
    axis.barh(names, [importances[name] for name in names], color="#0072B2")
    axis.set_xlabel("share of what sets the better trials apart (PED-ANOVA)")
    axis.set_title(title, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    fig.savefig(path, dpi=120)
    plt.close(fig)
