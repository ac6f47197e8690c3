"""The options of `hardgate vae`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hardgate_lab.reproduce.session import writable
from hardgate_lab.rig.candidates import UnknownEstimatorError
from hardgate_lab.rig.outputs import MOST_SEED
from hardgate_lab.vae.vae_candidates import QUICK, rivals
from hardgate_lab.vae.vae_data import load
from hardgate_lab.vae.vae_run import Settings
from hardgate_lab.vae.vae_session import REFUSALS, Plan, vae
from hardgate_lab.vae.vae_train import Budget, discard

PRESETS = {"quick": Budget(2000), "full": Budget(20_000, 120)}


def vae_command(
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            help="An estimator or a unit, like RLOO or 'RLOO(4)'; repeatable. 'all': every one of "
            f"at most 4 evaluations. If left out: {', '.join(QUICK)}."
        ),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(help="Measure this one's variance too, without training with it; or 'all'."),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(help="quick: 2000 steps; full: 20 000 steps and 120 seconds, of each."),
    ] = "quick",
    steps: Annotated[int | None, typer.Option(min=1, help="Other than the preset's.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Go on past the steps until every run has had this many seconds, by the measured "
            "time of its step, so that they compare at equal seconds.",
        ),
    ] = None,
    lr: Annotated[float, typer.Option(min=1e-6, max=1, help="Of Adam, for all.")] = Settings.lr,
    every: Annotated[
        int, typer.Option(min=1, help="Steps between two points of the curves.")
    ] = Settings.every,
    units: Annotated[int, typer.Option(min=1, max=4096)] = Settings.units,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Of weights, batches and noise.")
    ] = 0,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder of Larochelle's binarized_mnist_packed.npz or .amat files, or of "
            "MNIST's, which is then binarised with a fixed seed. If left out, Larochelle's where "
            "they are cached, else MNIST by name."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Checkpoints, weights, records.")] = Path("out/vae"),
    figures: Annotated[Path, typer.Option(help="The folder of the figures.")] = Path("out"),
    records: Annotated[
        Path | None, typer.Option(help="Also put the records, without weights, in this folder.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start these runs anew; removes what they left.")
    ] = False,
) -> None:
    """Train a Bernoulli VAE with each estimator; compare ELBO and variance.

    200 linear Bernoulli units between a linear encoder and a linear decoder,
    with a learned prior, on static binarised MNIST. Only the reconstruction
    term is estimated; the divergence from the prior is exact. The runs take
    turns with one thread, and the table shows the test ELBO, always with hard
    samples, at equal steps, equal evaluations and equal seconds: steps times
    the median time of a step, taken in turns before the training. The variance
    is that of all estimators on the models of one trajectory, the first
    estimator's.

    It may be killed at any time: the same command carries on, and ends with
    the same bits. With more --steps, it goes on from where it ended.

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
        chosen = rivals(estimator or QUICK)
        measured = {**chosen, **rivals(measure or [])}
    except UnknownEstimatorError as error:
        raise typer.BadParameter(str(error), param_hint="--estimator") from None
    settings = tuple(Settings(name, seed, units, lr=lr, every=every) for name in chosen)
    try:
        for path in (figures / "vae-elbo.png", *([records / "x.json"] if records else [])):
            writable(path)
        digits = load(data, say=lambda message: console.print(message, highlight=False))
        if fresh:  # only now that there is something to train on
            discard(settings, out)
        code = vae(Plan(measured, settings, budget, out, figures, records), digits, console)
    except REFUSALS as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)
