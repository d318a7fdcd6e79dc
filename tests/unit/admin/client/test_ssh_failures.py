from __future__ import annotations

import asyncssh
import pytest

from admin.client.ssh import (
    Target,
    channel_failure,
    connection_broken,
    login_failure,
    unreachable_error,
)

TARGET = Target("gpu1", "nn")
PLACE = ("127.0.0.1", 8080)


@pytest.mark.parametrize(
    ("error", "text", "hint"),
    [
        (asyncssh.PermissionDenied("no"), "takes none of your SSH keys", "ssh-copy-id nn@gpu1"),
        (TimeoutError(), "in time", "ssh nn@gpu1"),
        (asyncssh.KeyEncryptionError("locked"), "private key cannot be used", "ssh-add"),
        (asyncssh.KeyImportError("odd"), "private key cannot be used", "ssh-add"),
        (asyncssh.ConfigParseError("line 3"), "~/.ssh/config: line 3", "mend that line"),
        (asyncssh.ConnectionLost("gone"), "ended the connection: gone", "ssh nn@gpu1"),
        (ConnectionRefusedError(111, "Connection refused"), ": Connection refused", "ssh nn@gpu1"),
        (ValueError("odd"), "by SSH: odd", "ssh nn@gpu1"),
    ],
)
def test_a_failed_login_says_what_mends_it(error: Exception, text: str, hint: str) -> None:
    """Each way a login can fail has its words and a command."""
    told = login_failure(TARGET, error)

    assert text in str(told)
    assert hint in told.__notes__[0]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (asyncssh.ChannelOpenError(1, "prohibited"), "forbids forwarding to 127.0.0.1:8080"),
        (asyncssh.ChannelOpenError(2, "Connection refused"), "nobody listens on 127.0.0.1:8080"),
        (asyncssh.ChannelOpenError(2, "No route to host"), "No route to host"),
        (TimeoutError(), "in time"),
        (OSError("broken"), "broke: broken"),
    ],
)
def test_a_refused_channel_says_why(error: Exception, text: str) -> None:
    """Forbidden, nobody there, unreachable, silent and broken are told apart."""
    assert text in str(channel_failure(TARGET, PLACE, error))


def test_what_to_do_next_is_optional() -> None:
    """A text may stand alone; a broken connection always has a reason and advice."""
    assert not hasattr(unreachable_error("text"), "__notes__")
    assert "no reason given" in str(connection_broken(TARGET, ""))
    assert "fnctl ls" in connection_broken(TARGET, "x").__notes__[0]
