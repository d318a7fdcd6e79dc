"""Fixtures: a real SSH server, and a home folder without keys."""

from __future__ import annotations

from collections.abc import Callable

from admin.client.tunnel import Tunnel
from tests.support.ssh_fixtures import far, home, login

__all__ = ["far", "home", "login"]

Open = Callable[..., Tunnel]
