"""The options of `hardgate vae`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hardgate_lab.rig.candidates import UnknownEstimatorError
from hardgate_lab.rig.checkpoint import SaveError
from hardgate_lab.rig.idx import DataError
from hardgate_lab.rig.lock import LockedError
from hardgate_lab.rig.options import Fresh, Seed
from hardgate_lab.rig.outputs import check_writable
from hardgate_lab.rig.progress import say
from hardgate_lab.rig.same_run import MismatchError
from hardgate_lab.vae.take_turns import Budget, discard
from hardgate_lab.vae.vae_candidates import QUICK, trainable
from hardgate_lab.vae.vae_data import load
from hardgate_lab.vae.vae_experiment import VaePlan, vae
from hardgate_lab.vae.vae_run import VaeSettings

PRESETS = {"quick": Budget(2000), "full": Budget(20_000, 120)}
_REFUSALS = (SaveError, DataError, LockedError, MismatchError)  # the message says what to do


def vae_command(
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            help="Train with this estimator or unit, like RLOO or 'RLOO(4)'; repeatable. 'all': "
            f"every one that evaluates f at most 4 times. If left out: {', '.join(QUICK)}."
        ),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(help="Measure this one's variance too, but do not train with it; or 'all'."),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="quick: 2000 steps; full: 20 000 steps, and at least 120 seconds, of each."
        ),
    ] = "quick",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Train this many steps, not the preset's.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Train fast estimators for more steps, until each has had this many seconds.",
        ),
    ] = None,
    lr: Annotated[
        float, typer.Option(min=1e-6, max=1, help="Learning rate of Adam.")
    ] = VaeSettings.lr,
    every: Annotated[
        int, typer.Option(min=1, help="Steps between two points of the curves.")
    ] = VaeSettings.every,
    units: Annotated[
        int, typer.Option(min=1, max=4096, help="Bernoulli units of the code.")
    ] = VaeSettings.units,
    seed: Seed = 0,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with binarized_mnist_packed.npz or Larochelle's .amat files; or with "
            "MNIST's files, which are then binarised with a fixed seed. If left out, Larochelle's "
            "files are used where they are cached, else MNIST."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, weights and records.")] = Path(
        "out/vae"
    ),
    figures: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("out"),
    records: Annotated[
        Path | None, typer.Option(help="Also write the records, without weights, to this folder.")
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Train a Bernoulli VAE with each estimator, and compare ELBO and variance.

    The model has 200 Bernoulli units between a linear encoder and a linear
    decoder, a learned prior, and static binarised MNIST as data. Only the
    reconstruction term is estimated; the KL term is exact. The runs take
    turns, with one thread.

    The table shows the test ELBO at equal steps, at equal evaluations of f
    and at equal seconds; it is always computed with hard samples. Seconds are
    steps times the median time of a step, which is measured first. The
    variance of every estimator is measured on the same models: those that the
    first estimator passed in training.

    You may stop it at any time. The same command then carries on, and ends
    with the same bits. With more --steps, it goes on from where it ended.

    Examples:

        hardgate vae

        hardgate vae --estimator DisARM --estimator 'RLOO(4)' --steps 5000

        hardgate vae --estimator RLOO --estimator ReinMax --measure all

        hardgate vae --estimator all --preset full --records results/vae
    """
    console = Console()
    if preset not in PRESETS:
        raise typer.BadParameter(
            f"{preset!r} is not a preset; expected one of {', '.join(PRESETS)}.",
            param_hint="--preset",
        )
    budget = PRESETS[preset]
    budget = Budget(steps or budget.steps, budget.seconds if seconds is None else seconds)
    try:
        chosen = trainable(estimator or QUICK)
        measured = {**chosen, **trainable(measure or [])}
    except UnknownEstimatorError as error:
        raise typer.BadParameter(str(error), param_hint="--estimator") from None
    settings = tuple(VaeSettings(name, seed, units, lr=lr, every=every) for name in chosen)
    try:
        for path in (figures / "vae-elbo.png", *([records / "x.json"] if records else [])):
            check_writable(path)
        digits = load(data, say=lambda message: say(console, message))
        if fresh:  # only now that there is something to train on
            discard(settings, out)
        code = vae(VaePlan(measured, settings, budget, out, figures, records), digits, console)
    except _REFUSALS as error:
        say(console, str(error), style="red")
        raise typer.Exit(1) from None
    raise typer.Exit(code)
