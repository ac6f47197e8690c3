"""The policy for statistical tests: z-scores, fixed seeds, a declared failure rate.

A test compares the mean of n draws with a known value and looks at the largest |z| over its
coordinates, z = (mean - truth) / (std / √n). Seeds are fixed, so a passing test goes on passing;
`Z_LEVEL` says how often a *right* implementation would have failed under another seed: with some
4200 z-scores (counted) and at most 5000, P(any |z| > 5.5) ≤ 5000 · 3.8e-8 < 2e-4.
Counts of rare events stay above n·p = 20, where the normal approximation holds.
A wrong implementation has to be *seen*: negative controls demand |z| > `Z_WRONG`.
"""

from __future__ import annotations

import torch
from torch import Tensor

Z_LEVEL = 5.5
Z_WRONG = 10.0


def z_scores(draws: Tensor, truth: Tensor | float) -> Tensor:
    """One z-score per coordinate for draws `[n, ...]`; draws that do not scatter must be exact."""
    draws = draws.double()
    error: Tensor = draws.mean(0) - truth
    standard_error = draws.std(0) / len(draws) ** 0.5
    rounding = 1e-6 * (1 + torch.as_tensor(truth).abs().max())
    z: Tensor = error / standard_error.clamp(min=(rounding / 5).item())
    return z


def largest_z(draws: Tensor, truth: Tensor | float) -> float:
    return z_scores(draws, truth).abs().max().item()
