"""How long a training step takes with each candidate; they take turns, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hardgate_lab.rig.timing import interleave
from hardgate_lab.vae.vae_data import Digits
from hardgate_lab.vae.vae_run import VaeRun, VaeSettings

_SECONDS = 0.4  # for each candidate
CLOCK = (
    "median milliseconds of a training step, one thread, the estimators taking turns step by step "
    "in one process; seconds are steps times that"
)


def milliseconds(settings: Sequence[VaeSettings], data: Digits) -> dict[str, float]:
    """The median time of a step, by the estimator's code.

    The time that a run takes depends on what else the machine does. Here all candidates take turns,
    so whatever slows the machine slows them alike, and their times compare.

    Args:
        settings: one for each candidate.
        data: to train on.
    """
    torch.set_num_threads(1)
    runs = {each.estimator: VaeRun(each, data) for each in settings}
    return interleave(
        {name: run.step for name, run in runs.items()}, seconds=_SECONDS * len(runs), least=15
    )
