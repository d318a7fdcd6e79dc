"""Commands on a host: a session of its own each, with limits on time and output."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import asyncssh

from hosts.errors import ConnectionLost, shown

OUTPUT_MAX: Final = 1024 * 1024
"""Max bytes of stdout and stderr together; a command that sends more is ended."""
SIGNALLED: Final = -1
"""Exit status of a command that a signal ended."""


@dataclass(frozen=True, slots=True)
class Completed:
    """Command that has ended; `exit_status` is SIGNALLED if a signal ended it."""

    exit_status: int
    stdout: bytes
    stderr: bytes

    def text(self) -> str:
        """Return stderr, else stdout, as one line for an error message."""
        return shown((self.stderr.strip() or self.stdout.strip()).decode("utf-8", "replace"))


class CommandSession(asyncssh.SSHClientSession[bytes]):
    """Callbacks of a command's channel; `done` has its end.

    An abandoned session closes its channel as soon as it is open.
    """

    def __init__(self) -> None:
        self.done: asyncio.Future[Completed] = asyncio.get_running_loop().create_future()
        self.is_abandoned = False
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._status: int | None = None
        self._out = bytearray()
        self._errors = bytearray()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Store the channel (asyncssh callback)."""
        self._channel = chan
        if self.is_abandoned:
            chan.abort()

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        """Collect output up to a limit (asyncssh callback)."""
        (self._out if datatype is None else self._errors).extend(data)
        if len(self._out) + len(self._errors) > OUTPUT_MAX:
            self._end(OSError(f"expected at most {OUTPUT_MAX} bytes of output, got more"))
            self.abandon()

    def exit_status_received(self, status: int) -> None:
        """Store the exit status (asyncssh callback)."""
        self._status = status

    def exit_signal_received(
        self,
        signal: str,  # noqa: ARG002 - asyncssh's
        core_dumped: bool,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        lang: str,  # noqa: ARG002
    ) -> None:
        """Store that a signal ended the command (asyncssh callback)."""
        self._status = SIGNALLED

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete: the channel is closed (asyncssh callback)."""
        if self._status is None:
            self._end(ConnectionLost(f"the command's channel broke: {exc or 'no exit status'}"))
        elif not self.done.done():
            completed = Completed(self._status, bytes(self._out), bytes(self._errors))
            self.done.set_result(completed)

    def abandon(self) -> None:
        """Close the channel now, or when it opens."""
        self.is_abandoned = True
        if not self.done.cancel() and not self.done.cancelled():
            self.done.exception()  # or asyncio reports one that nobody awaits
        if self._channel is not None:
            self._channel.abort()

    def send(self, data: bytes) -> None:
        """Send the standard input and its end."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(data)
            self._channel.write_eof()

    def _end(self, error: OSError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def start_command(
    connection: asyncssh.SSHClientConnection, command: str, session: CommandSession
) -> None:
    """Start `command` in the login's shell. Raises asyncssh.Error or OSError.

    Settings of ~/.ssh/config that concern a person's shell are not used.
    """
    await connection.create_session(
        lambda: session,
        command,
        encoding=None,
        request_pty=False,
        env=None,
        send_env=None,
        x11_forwarding=False,
    )
