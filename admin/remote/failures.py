"""What can go wrong with SSH, in an operator's words and with what mends it."""

from __future__ import annotations

from typing import Final

import asyncssh

from admin.remote.target import Target
from admin.transport import Unreachable

REFUSED_TEXT: Final = "Connection refused"
"""What OpenSSH's server says of a port on which nobody listens (strerror of ECONNREFUSED)."""


def because(text: str, hint: str = "") -> Unreachable:
    """An Unreachable that says `text`, and `hint` for what to do next."""
    error = Unreachable(text)
    if hint:
        error.add_note(hint)
    return error


def login_failure(target: Target, error: Exception) -> Unreachable:
    """Why nobody could log in to `target`."""
    by_hand = f"see whether this works: {target.command()}"
    if isinstance(error, asyncssh.PermissionDenied):
        return because(
            f"{target} takes none of your SSH keys: {error}",
            f"name one with --identity FILE, or: {target.command('ssh-copy-id')}",
        )
    if isinstance(error, TimeoutError | asyncssh.TimeoutError):
        return because(f"{target} does not answer SSH in time", by_hand)
    if isinstance(error, asyncssh.KeyEncryptionError | asyncssh.KeyImportError):
        return because(f"the private key cannot be used: {error}", "ssh-add FILE, then again")
    if isinstance(error, asyncssh.ConfigParseError):
        return because(f"~/.ssh/config: {error}", "mend that line of ~/.ssh/config")
    if isinstance(error, asyncssh.DisconnectError):
        return because(f"the SSH server of {target} ended the connection: {error}", by_hand)
    reason = getattr(error, "strerror", None) or error
    return because(f"{target} cannot be reached by SSH: {reason}", by_hand)


def channel_failure(target: Target, place: tuple[str, int], error: Exception) -> Unreachable:
    """Why `target` opened no way to the gateway at `place`, as seen from there."""
    host, port = place
    shown = f"{host}:{port}"
    if isinstance(error, asyncssh.ChannelOpenError):
        if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
            return because(
                f"the SSH server of {target} forbids forwarding to {shown}",
                f"set in its sshd_config: AllowTcpForwarding local, PermitOpen {shown}",
            )
        if REFUSED_TEXT in error.reason:
            return because(
                f"nobody listens on {shown} of {target}",
                f"start it there with fnctl serve, or name it: --url http://{host}:PORT",
            )
        return because(f"{target} cannot reach {shown}: {error.reason}")
    if isinstance(error, TimeoutError | asyncssh.TimeoutError):
        return because(f"{target} opens no connection to {shown} in time")
    return lost(target, str(error))


def lost(target: Target, reason: str) -> Unreachable:
    """The connection broke while it was used."""
    return because(
        f"the SSH connection to {target} broke: {reason or 'no reason given'}",
        "what was begun there may go on: look with fnctl ls and fnctl show before you try again",
    )
