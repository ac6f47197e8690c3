"""What every test starts from, and fixtures that several files use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    """A test draws the same numbers alone and in any order."""
    torch.manual_seed(0)


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """torch.compile forgets what it traced: else it stops compiling after eight versions."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
