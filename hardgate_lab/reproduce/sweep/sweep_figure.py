"""The importances of the settings as a bar chart."""

from __future__ import annotations

from pathlib import Path

from hardgate_lab.rig.figures import new_figure, save_figure


def draw(importances: dict[str, float], title: str, path: Path) -> None:
    """One bar per setting, the most important on top."""
    names = list(importances)[::-1]
    figure = new_figure(7, 1 + 0.35 * len(names))
    axis = figure.subplots()
    axis.barh(names, [importances[name] for name in names], color="#0072B2")
    axis.set_xlabel("share of the difference between good and other trials (PED-ANOVA)")
    axis.set_title(title, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
