"""The curves of a run for TensorBoard, one point per epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardgate_lab.reproduce.settings import Settings, SettingsError

_NAMES = {
    "train_loss": "loss/train",
    "valid_loss": "loss/valid",
    "valid_error": "error/valid",
    "density": "gates/density",
    "weight": "gates/weight",  # λ
}


def check() -> None:
    """Raise now if TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            f"--tensorboard needs TensorBoard ({error}). Type: pip install 'hardgate[tensorboard]'"
        ) from None


class Board:
    """Event files with error, loss, density, λ and learning rate.

    A run that carries on draws all of its curves again, which it has from its checkpoint: no
    point is there twice, and none is missing.

    Args:
        folder: where; event files that are there are removed.
        settings: of the run.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second to import

        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        # From step 1 on: a TensorBoard that watches the folder forgets what it has read so far.
        self._writer = SummaryWriter(str(folder), purge_step=1)
        self._settings, self._epochs = settings, 0

    def write(self, curves: Mapping[str, Sequence[float | None]]) -> None:
        """Add the epochs that are not there yet.

        Args:
            curves: values by epoch, None where there is no number.
        """
        for epoch in range(self._epochs, len(curves["train_loss"])):
            values = {tag: curves[name][epoch] for name, tag in _NAMES.items() if name in curves}
            values["learning rate"] = self._settings.learning_rate(epoch)  # at its start
            for tag, value in values.items():
                if value is not None:
                    self._writer.add_scalar(tag, value, epoch + 1)
            self._epochs = epoch + 1
        self._writer.flush()

    def finish(self, record: Mapping[str, Any]) -> None:
        """All of a finished run, its test error at the epoch that was chosen."""
        self.write(record["curves"])
        self._writer.add_scalar("error/test", record["test_error"], record["best_epoch"])
        self._writer.close()
