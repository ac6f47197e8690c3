"""Rows of the experiment under `torchrun`: `torchrun -m tests.support.torchrun_rows FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hardgate_lab.reproduce import data_parallel, torchrun, train
from tests.support.tiny_runs import dataset, job

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    # 200 images in batches of 15: 7 rows here, 8 there, and 5 in the last batch.
    "kl": ("straight_through", {"batch": 15}),
    "l1": ("noisy_rectifier", {"batch": 15, "average": 0.9}),
    "baseline": ("stochastic_binary", {"batch": 15, "momentum": 0.5}),
    "rate": ("best", {"batch": 15, "sparsity": "rate", "sparsity_weight": 0.1}),
    "dropout": ("dense", {"batch": 15}),
    "sharpness": ("straight_through", {"batch": 15, "rho": 0.1}),
    "two noises": ("stochastic_times_smooth", {"batch": 15, "beta": 40.1}),
    # One image is left for the last batch: the first process has none.
    "nothing to do": ("stochastic_binary", {"batch": 199, "lr": 0.5}),
    "nothing to steer": ("straight_through", {"batch": 199, "sparsity": "rate"}),
}
APART = "kl"  # the row that is also trained without `synchronise_`


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    data, part = dataset(), data_parallel.Shard(dist.get_rank(), dist.get_world_size())
    for name, (row, changes) in ROWS.items():
        train.train(job(folder / name, row, **changes), data, _silent, _silent, part)
    vars(data_parallel)["synchronise_"] = lambda model: model
    row, changes = ROWS[APART]
    train.train(job(folder / "apart", row, **changes), data, _silent, _silent, part)
    torchrun.leave(0)


def _silent(_: object) -> None:
    pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))
