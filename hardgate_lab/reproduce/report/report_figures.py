"""The figures: learning curves, sparsity, firing rates, use by class, cost."""

from __future__ import annotations

from collections.abc import Sequence

from hardgate_lab.reproduce.report.bars import bars
from hardgate_lab.reproduce.report.curves import curve
from hardgate_lab.reproduce.report.gates import firing, heat
from hardgate_lab.reproduce.report.runs import Experiment, Result
from hardgate_lab.reproduce.report.style import Panel, Picture


def pictures(experiment: Experiment) -> list[Picture]:
    """All that the records of an experiment allow."""
    makers = (_curves, _sparsity, _firing, _classes, _cost)
    return [picture for make in makers if (picture := make(experiment)).panels]


def _curves(experiment: Experiment) -> Picture:
    """The paper's figure: validation error and training criterion by epoch."""
    rows = experiment.rows
    return Picture(
        "curves",
        "Learning curves",
        "By epoch, as in the paper's figure. The test images are not in them: they are read once, "
        "when a run is finished. Of several seeds: their mean, and each of them as a faint line.",
        _there(
            curve(rows, "valid_error", "Validation error", "%"),
            curve(rows, "train_loss", "Training criterion", "mean cross-entropy, as trained"),
        ),
    )


def _sparsity(experiment: Experiment) -> Picture:
    """Density against its target, and λ."""
    rows = {row: results for row, results in experiment.rows.items() if results[0].sparse}
    rates = {result.settings.get("rate") for results in rows.values() for result in results}
    targets = sorted(rate for rate in rates if isinstance(rate, float))
    return Picture(
        "sparsity",
        "Density and λ",
        "Grey: the target, 10 ± 1 % in the paper's experiment. λ is adapted for rectifiers (L1) "
        "and fixed for the others (KL). Rows that nothing holds sparse are not shown.",
        _there(
            curve(rows, "density", "Gates on in training", "%", 100.0, targets),
            curve(rows, "weight", "Weight λ of the penalty", "λ"),
        ),
    )


def _firing(experiment: Experiment) -> Picture:
    """How many gates are on how often."""
    return Picture(
        "firing",
        "Firing rates",
        "How many gates are on for which share of the validation images, with deterministic gates; "
        "dead ones never, always-on ones for all. Rows whose gates are never off are not shown.",
        tuple(firing(results) for results in _selective(experiment)),
        columns=3,
    )


def _classes(experiment: Experiment) -> Picture:
    """Which class uses which gate."""
    firsts = [results[0] for results in _selective(experiment)]
    return Picture(
        "classes",
        "Gates by class",
        "How often a gate is on for the validation images of each class: the gates whose use "
        "differs most between classes, sorted by the class that uses them most. First seed.",
        tuple(heat(result) for result in firsts if result.class_use),
        columns=3,
    )


def _cost(experiment: Experiment) -> Picture:
    """Multiplications, time, decisiveness."""
    return Picture(
        "cost",
        "Gates and cost",
        "Multiplications for an example, of the deterministic network, gater included; in grey "
        "those without skipping. Decisiveness is the share of a gate's on/off variance that the "
        "input decides: at 0 a coin decides, at 1 the input alone. Seconds depend on what ran "
        "beside.",
        _there(
            bars(experiment, "Million multiplications", "needed", ".2f", 1e-6, behind="dense"),
            bars(experiment, "Seconds of training per epoch", "epoch_seconds", ".1f"),
            bars(experiment, "Decisiveness", "decisiveness", ".2f"),
        ),
        columns=3,
    )


def _there(*panels: Panel | None) -> tuple[Panel, ...]:
    return tuple(panel for panel in panels if panel is not None)


def _selective(experiment: Experiment) -> list[Sequence[Result]]:
    return [results for results in experiment.rows.values() if results[0].selective]
