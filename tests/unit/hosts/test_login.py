from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from hosts.commands import Completed
from hosts.errors import SHOWN_MAX, Unreachable
from hosts.login import (
    HostKeyClient,
    KnownHosts,
    Login,
    Target,
    connection_broken,
    host_key_refused,
    known_hosts,
    login_failure,
    parse_target,
    unreachable_error,
)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("gpu1", Target("gpu1")),
        ("nn@gpu1", Target("gpu1", "nn")),
        ("nn@gpu1.example.org:2222", Target("gpu1.example.org", "nn", 2222)),
        ("10.0.0.5:22", Target("10.0.0.5", None, 22)),
        ("fe80::1%eth0", Target("fe80::1%eth0")),
        ("nn@[::1]:22", Target("::1", "nn", 22)),
        ("[::1]", Target("::1")),
    ],
)
def test_a_target_is_read(text: str, target: Target) -> None:
    """User and port are optional; an IPv6 address with a port needs brackets."""
    assert parse_target(text) == target
    assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        *("", "@", "nn@", "@gpu1", "-oProxyCommand=x", "a@-x", "a b", "gpu1:", "gpu1:0"),
        *("gpu1:65536", "gpu1:x", "[::1]x", "[::1", "gpu1\n", "a;b", "nn@gpu1:22:"),
    ],
)
def test_a_malformed_target_is_refused(text: str) -> None:
    """A target without a host, or one that could be read as an option, is refused."""
    with pytest.raises(ValueError, match="expected"):
        parse_target(text)


@pytest.mark.parametrize("text", ["h:" + "9" * 50_000, "a b" * 50_000])
def test_the_error_for_a_long_target_is_short(text: str) -> None:
    """The refused text is shown only as far as a reader needs it."""
    with pytest.raises(ValueError, match="expected") as caught:
        parse_target(text)

    assert len(str(caught.value)) < 500


def test_the_command_by_hand_names_the_given_options() -> None:
    """The command to try by hand logs in to the same place."""
    assert Target("gpu1").command() == "ssh gpu1"
    assert Target("::1", "nn", 2222).command("ssh-copy-id") == "ssh-copy-id -p 2222 nn@::1"


TARGET = Target("gpu1", "nn")
PLACE = ("127.0.0.1", 8080)


@pytest.mark.parametrize(
    ("error", "text", "hint"),
    [
        (asyncssh.PermissionDenied("no"), "accepts none of your SSH keys", "ssh-copy-id nn@gpu1"),
        (TimeoutError(), "in time", "ssh nn@gpu1"),
        (asyncssh.KeyEncryptionError("locked"), "private key cannot be used", "ssh-add"),
        (asyncssh.KeyImportError("odd"), "private key cannot be used", "ssh-add"),
        (asyncssh.ConfigParseError("line 3"), "~/.ssh/config: line 3", "correct that line"),
        (asyncssh.ConnectionLost("gone"), "ended the connection: gone", "ssh nn@gpu1"),
        (ConnectionRefusedError(111, "Connection refused"), ": Connection refused", "ssh nn@gpu1"),
        (FileNotFoundError(2, "No such file", "/k"), "SSH: /k: No such file", "ssh nn@gpu1"),
        (ValueError("odd"), "by SSH: odd", "ssh nn@gpu1"),
    ],
)
def test_a_failed_login_has_a_remedy(error: Exception, text: str, hint: str) -> None:
    """Each reason for a failed login has its own text and command."""
    told = login_failure(TARGET, error)

    assert text in str(told)
    assert hint in told.__notes__[0]


def test_a_private_key_that_cannot_be_used_is_named() -> None:
    """The file is named if the login has one of its own."""
    error = asyncssh.KeyImportError("odd")

    assert "private key /k cannot be used: odd" in str(login_failure(TARGET, error, Path("/k")))


def test_advice_is_optional() -> None:
    """Advice is optional; a broken connection always has a reason and advice."""
    assert not hasattr(unreachable_error("text"), "__notes__")
    assert "no reason given" in str(connection_broken(TARGET, ""))
    assert "fnctl ls" in connection_broken(TARGET, "x").__notes__[0]


LOGIN = Login(Target("gpu1", "nn", 2222))


def line(host: str) -> str:
    return f"{host} {asyncssh.generate_private_key('ssh-ed25519').export_public_key().decode()}"


def test_the_usual_file_is_taken(home: Path) -> None:
    """By default known hosts are read from ssh's file."""
    path = home / ".ssh" / "known_hosts"
    path.write_text(line("[gpu1]:2222"))

    known = known_hosts(LOGIN, [])

    assert path in known.files
    assert len(known.match("gpu1", "", 2222)[0]) == 1
    assert (known.name, known.has_key) == ("[gpu1]:2222", True)


def test_a_missing_file_is_an_empty_list(home: Path) -> None:
    """A missing file gives an empty list of known hosts, never None, which would disable the
    check."""
    known = known_hosts(LOGIN, [])

    assert isinstance(known, KnownHosts)
    assert not any(known.match("gpu1", "", None))
    assert not known.has_key


def test_configured_files_take_the_place_of_the_usual_ones(home: Path, tmp_path: Path) -> None:
    """UserKnownHostsFile of ~/.ssh/config replaces the default, and --known-hosts replaces both."""
    (home / ".ssh" / "known_hosts").write_text(line("gpu1"))
    (tmp_path / "a").write_text(line("gpu2"))
    (tmp_path / "b").write_text(line("gpu3"))

    configured = known_hosts(LOGIN, [str(tmp_path / "a")])
    given = known_hosts(replace(LOGIN, known_hosts=tmp_path / "b"), [str(tmp_path / "a")])

    assert [any(configured.match(host, "", None)) for host in ("gpu1", "gpu2")] == [False, True]
    assert [any(given.match(host, "", None)) for host in ("gpu2", "gpu3")] == [False, True]


@pytest.mark.parametrize("content", [None, "@wrong gpu1 ssh-ed25519 AAAA\n", "x" * 200])
def test_an_unusable_known_hosts_file_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """A named file that is missing, malformed or endless is an error."""
    monkeypatch.setattr("hosts.login.FILE_MAX", 100)
    if content is not None:
        (tmp_path / "k").write_text(content)

    with pytest.raises(Unreachable, match="known hosts files are not readable"):
        known_hosts(replace(LOGIN, known_hosts=tmp_path / "k"), [])


def test_a_changed_key_differs_from_an_unknown_one(home: Path) -> None:
    """A host with another key in the file has changed; one without any is unknown."""
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


def test_a_configured_known_hosts_file_is_named_in_the_remedy(tmp_path: Path) -> None:
    """With --known-hosts, the advised login writes into that file."""
    (tmp_path / "k").touch()
    login = replace(LOGIN, known_hosts=tmp_path / "k")

    error = host_key_refused(login, known_hosts(login, []), HostKeyClient())

    assert f"ssh -o UserKnownHostsFile={tmp_path / 'k'} -p 2222 nn@gpu1" in error.__notes__[0]


HOSTILE = "\x1b[2Jbye\x07\n\u202e" + "A" * 200_000
"""Text of a host: clears the screen, writes backwards, and has no end."""


@pytest.mark.parametrize(
    "error",
    [
        asyncssh.DisconnectError(11, HOSTILE),
        asyncssh.PermissionDenied(HOSTILE),
        asyncssh.ProtocolError(HOSTILE),
        OSError(HOSTILE),
    ],
)
def test_what_a_host_says_is_one_short_line(error: Exception) -> None:
    """A host chooses the text with which it ends a connection: it is shown to people, and kept with
    each event."""
    lost = HostKeyClient()
    lost.connection_lost(error)
    output = Completed(1, b"", HOSTILE.encode()).text()

    for text in (str(login_failure(TARGET, error)), lost.lost_reason, output):
        assert "bye" in text
        assert text.isprintable()
        assert len(text) < SHOWN_MAX + 100


def test_the_reason_of_an_end_is_kept() -> None:
    """The reason for a lost connection is kept for later."""
    lost_reason, closed = HostKeyClient(), HostKeyClient()

    lost_reason.connection_lost(OSError("no route"))
    closed.connection_lost(None)

    assert (lost_reason.lost_reason, closed.lost_reason) == ("no route", "the server closed it")
