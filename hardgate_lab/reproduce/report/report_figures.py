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
        "one line for each row, epoch by epoch: the error on the validation images, and the loss "
        "in training. Lower is better.",
        "As in the paper's figure; the scales are logarithmic. Where a row has several seeds, the "
        "line is their mean, and each seed is a faint line. Test images are not in the curves.",
        _there(
            curve(rows, "valid_error", "Validation error", "%"),
            curve(rows, "train_loss", "Training loss", "mean cross-entropy, as trained"),
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
        "how many gates are open in training, epoch by epoch, which should settle in the grey "
        "band; and the weight λ of the penalty that brings them there.",
        "Grey: the target, 10 ± 1 % in the paper's experiment. λ is adapted for rectifiers (L1) "
        "and fixed for the others (KL). Rows without a penalty are not shown.",
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
        "how many gates (upwards) are open how often (to the right): at 0 a gate never opens, at "
        "1 it opens for every image.",
        "Measured on the validation images, with deterministic gates. Dead gates never open. "
        "Rows whose gates are always open are not shown. The scale upwards is logarithmic.",
        tuple(firing(results) for results in _selective(experiment)),
        columns=3,
    )


def _classes(experiment: Experiment) -> Picture:
    """Which class uses which gate."""
    firsts = [results[0] for results in _selective(experiment)]
    return Picture(
        "classes",
        "Gates by class",
        "each column is a gate, each line a class of images. Bright: the gate opens for most "
        "images of that class. A gate with one bright spot has specialised.",
        "Measured on the validation images. Shown are the gates whose use differs most between "
        "classes, sorted by the class that uses them most; of the first seed.",
        tuple(heat(result) for result in firsts if result.class_use),
        columns=3,
    )


def _cost(experiment: Experiment) -> Picture:
    """Multiplications, time, decisiveness."""
    return Picture(
        "cost",
        "Cost",
        "what one image costs with skipping (coloured) and without (grey), how long an epoch of "
        "training takes, and how much of a gate's decision comes from the image.",
        "Multiplications include the gater. Seconds depend on what else the machine did. "
        "Decisiveness is the share of a gate's on/off variance that the input decides: at 0 a "
        "coin decides, at 1 the input alone.",
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
