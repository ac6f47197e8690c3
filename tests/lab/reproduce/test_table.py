"""The table of errors: means and spreads over seeds, and which rows reach the paper's."""

from __future__ import annotations

from typing import Any

from hardgate_lab.reproduce.table import lines


def record(test: float, seed: int = 0, *, canonical: bool = True) -> dict[str, Any]:
    return {
        **{"row": "rectifier", "seed": seed, "dataset": "mnist", "preset": "paper"},
        **{"canonical": canonical, "train_loss": 0.002, "seconds": 10.0 * (seed + 1)},
        **{"valid_error": test + 1, "test_error": test},
        **{"density_train": 0.1, "density_test": 0.11 + 0.02 * seed},
    }


def test_a_line_has_the_mean_and_the_standard_deviation_over_seeds() -> None:
    (line,) = lines([record(1.0), record(2.0, 1), record(4.5, 2)])
    assert line[3] == "3.50±1.80"  # of 1, 2, 4.5 and one more: √(Σ(x - x̄)²/2) = 1.803
    assert line[5] == "2.50±1.80"
    assert line[1] == "2.0e-3"
    assert line[7] == "10.0/13.0"
    assert line[8] == "20"
    (alone,) = lines([record(1.0)])
    assert alone[5] == "1.00"
