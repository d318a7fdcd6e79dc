"""Fixtures of SSH logins: a real SSH server, a home folder without keys, and a login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.login import Login, parse_target
from tests.support.sshd import Sshd, sshd


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Create the home folder in which ~/.ssh is looked up."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def far(leaks: object, tmp_path: Path) -> Iterator[Sshd]:
    """Run an SSH server."""
    with sshd(tmp_path / "ssh") as server:
        yield server


@pytest.fixture
def login(far: Sshd) -> Login:
    """Return the login for `far`."""
    return Login(parse_target(far.target), far.identity, far.known_hosts)
