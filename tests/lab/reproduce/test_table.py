"""The table of errors: means and spreads over seeds, and which rows reach the paper's."""

from __future__ import annotations

from typing import Any

import pytest

from hardgate_lab.reproduce.table import lines, rich_table


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


@pytest.mark.parametrize(
    ("test", "canonical", "reached"),
    [(1.6, True, True), (1.60001, True, False), (1.0, False, False), (9.0, True, False)],
)
def test_only_real_data_at_or_below_the_paper_are_green(
    test: float, canonical: bool, reached: bool
) -> None:
    (row,) = rich_table([record(test, canonical=canonical)]).rows
    assert (row.style == "green") == reached
