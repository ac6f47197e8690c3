"""What a training step costs with each rival: all of them in turn, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hardgate_lab.rig.timing import interleave
from hardgate_lab.vae.vae_data import Digits
from hardgate_lab.vae.vae_run import Run, Settings

_SECONDS = 0.4  # for each rival
CLOCK = (
    "median milliseconds of a training step, one thread, the estimators taking turns step by step "
    "in one process; seconds are steps times that"
)


def milliseconds(settings: Sequence[Settings], data: Digits) -> dict[str, float]:
    """The median time of a step, by the estimator's code.

    A run's own clock would tell what else the machine did meanwhile. Here whatever that is befalls
    all of them alike, so that they compare, also when they were trained on different days.

    Args:
        settings: of the rivals.
        data: to train on.
    """
    torch.set_num_threads(1)
    runs = {each.estimator: Run(each, data) for each in settings}
    return interleave(
        {name: run.step for name, run in runs.items()}, seconds=_SECONDS * len(runs), least=15
    )
