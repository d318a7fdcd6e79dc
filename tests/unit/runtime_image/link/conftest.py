"""What the tests of links share."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.greetings import Pair


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The replica's blocking end and the manager's."""
    replica, manager = socket.socketpair()
    manager.setblocking(False)
    yield replica, manager
    replica.close()
    manager.close()
