"""A server on this machine, and what the loader said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.tiny_mnist import Server


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
