from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from admin.client import ssh
from admin.client.ssh import HostKeyClient, KnownHosts, Login, Target, host_key_refused, known_hosts
from admin.client.transport import Unreachable

LOGIN = Login(Target("gpu1", "nn", 2222))


def line(host: str) -> str:
    return f"{host} {asyncssh.generate_private_key('ssh-ed25519').export_public_key().decode()}"


def test_the_usual_file_is_taken(home: Path) -> None:
    """Without any word, the file that ssh uses is the one."""
    path = home / ".ssh" / "known_hosts"
    path.write_text(line("[gpu1]:2222"))

    known = known_hosts(LOGIN, [])

    assert path in known.files
    assert len(known.match("gpu1", "", 2222)[0]) == 1
    assert (known.name, known.has_key) == ("[gpu1]:2222", True)


def test_no_file_means_that_nobody_is_known(home: Path) -> None:
    """A missing file is an empty list, and never None, which would switch checking off."""
    known = known_hosts(LOGIN, [])

    assert isinstance(known, KnownHosts)
    assert not any(known.match("gpu1", "", None))
    assert not known.has_key


def test_configured_files_take_the_place_of_the_usual_ones(home: Path, tmp_path: Path) -> None:
    """UserKnownHostsFile of ~/.ssh/config counts, and --known-hosts above it."""
    (home / ".ssh" / "known_hosts").write_text(line("gpu1"))
    (tmp_path / "a").write_text(line("gpu2"))
    (tmp_path / "b").write_text(line("gpu3"))

    configured = known_hosts(LOGIN, [str(tmp_path / "a")])
    given = known_hosts(replace(LOGIN, known_hosts=tmp_path / "b"), [str(tmp_path / "a")])

    assert [any(configured.match(host, "", None)) for host in ("gpu1", "gpu2")] == [False, True]
    assert [any(given.match(host, "", None)) for host in ("gpu2", "gpu3")] == [False, True]


@pytest.mark.parametrize("content", [None, "@wrong gpu1 ssh-ed25519 AAAA\n", "x" * 200])
def test_a_file_that_cannot_be_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """A file that was named and is missing, wrong or endless stops everything."""
    monkeypatch.setattr(ssh, "FILE_MAX", 100)
    if content is not None:
        (tmp_path / "k").write_text(content)

    with pytest.raises(Unreachable, match="known hosts cannot be read"):
        known_hosts(replace(LOGIN, known_hosts=tmp_path / "k"), [])


def test_a_changed_key_is_told_from_an_unknown_one(home: Path) -> None:
    """Who has another key in the file has changed; who has none is not known yet."""
    (home / ".ssh" / "known_hosts").write_text(line("[gpu1]:2222"))
    known, host_key_client = known_hosts(LOGIN, []), HostKeyClient()
    key = asyncssh.generate_private_key("ssh-ed25519").convert_to_public()
    assert not host_key_client.validate_host_public_key("gpu1", "", 2222, key)

    known.match("gpu1", "", 2222)
    changed = host_key_refused(LOGIN, known, host_key_client)
    known.match("gpu9", "", 2222)
    unknown = host_key_refused(LOGIN, known, host_key_client)

    assert "CHANGED" in str(changed)
    assert "ssh-keygen -R '[gpu1]:2222'" in changed.__notes__[0]
    assert "is not known" in str(unknown)
    assert unknown.__notes__[0].endswith("ssh -p 2222 nn@gpu1")
    assert key.get_fingerprint() in str(unknown)


def test_a_file_of_ones_own_is_named_in_what_to_do(tmp_path: Path) -> None:
    """With --known-hosts, logging in by hand writes into that file."""
    (tmp_path / "k").touch()
    login = replace(LOGIN, known_hosts=tmp_path / "k")

    error = host_key_refused(login, known_hosts(login, []), HostKeyClient())

    assert f"ssh -o UserKnownHostsFile={tmp_path / 'k'} -p 2222 nn@gpu1" in error.__notes__[0]


def test_the_reason_of_an_end_is_kept() -> None:
    """Why a connection was lost can be told later."""
    lost_reason, closed = HostKeyClient(), HostKeyClient()

    lost_reason.connection_lost(OSError("no route"))
    closed.connection_lost(None)

    assert (lost_reason.lost_reason, closed.lost_reason) == ("no route", "the server closed it")
