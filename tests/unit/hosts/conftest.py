"""Fixtures: a real SSH server, and a home folder without keys."""

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
    # The start files of this user's shell may be slow, and leave locks when they are killed.
    with sshd(tmp_path / "ssh", f"SetEnv HOME={tmp_path}") as server:
        yield server


@pytest.fixture
def login(far: Sshd) -> Login:
    """Return the login for `far`."""
    return Login(parse_target(far.target), far.identity, far.known_hosts)
