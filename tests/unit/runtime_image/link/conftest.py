"""Fixtures of the link tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.greetings import Pair


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Socket pair: the replica's blocking end and the manager's end."""
    replica, manager = socket.socketpair()
    manager.setblocking(False)
    yield replica, manager
    replica.close()
    manager.close()
