"""Advice, worked out by a process of its own: a case on its standard input, rows on its output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Final

import msgspec
import structlog

from admin.advice.advice import Case, Row, advise
from registry.errors import AdviceUnavailable, ShuttingDown

log = structlog.get_logger()

MODULE: Final = "admin.advice.process"
LOWEST: Final = 19
"""The highest niceness: whatever else runs on this machine goes first."""
LIMIT_S: Final = 120
RETRY_S: Final = 10.0


class Advisor:
    """Runs the child, which takes seconds of a processor's time, at most once at a time."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._child: asyncio.subprocess.Process | None = None
        self._is_busy = self._is_closed = False

    async def rows(self, case: Case) -> list[Row]:
        """Play a case; whoever stops waiting ends it.

        Raises AdviceUnavailable where another is being played, or this one takes too long or
        fails; ShuttingDown where the server goes first.
        """
        if self._is_busy:
            raise AdviceUnavailable(
                "another advice is being worked out, and only one is at a time",
                retry_after_s=RETRY_S,
            )
        self._is_busy = True
        try:
            async with asyncio.timeout(self._limit_s):
                output = await self._play(msgspec.json.encode(case))
        except TimeoutError:
            raise AdviceUnavailable(
                f"it was not worked out within {self._limit_s:g} s: ask for fewer hours, or when"
                " this machine has less to do",
                retry_after_s=RETRY_S,
            ) from None
        finally:
            self._is_busy = False
        return msgspec.json.decode(output, type=list[Row])

    async def _play(self, question: bytes) -> bytes:
        if self._is_closed:
            raise ShuttingDown("the server is shutting down")
        # -P: a folder called admin in the working directory is not ours.
        child = self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, complaints = await child.communicate(question)
        finally:
            self._child = None
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                # Shielded: a second cancellation must not leave a process that nobody waits for.
                await asyncio.shield(child.wait())
        if self._is_closed:
            raise ShuttingDown("the server is shutting down")
        if child.returncode == -signal.SIGALRM:
            raise TimeoutError
        if child.returncode:
            said = complaints.decode(errors="replace").strip()
            log.error("an advice could not be worked out", code=child.returncode, said=said[-2000:])
            raise AdviceUnavailable(f"it could not be worked out: exit code {child.returncode}")
        return output

    async def close(self, _app: object = None) -> None:
        """aiohttp's shutdown signal: who waits is answered now."""
        self._is_closed = True
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()


def main() -> None:
    """The child process. An alarm ends it after LIMIT_S: a server that is killed cannot."""
    os.nice(LOWEST)
    signal.alarm(LIMIT_S)
    case = msgspec.json.decode(sys.stdin.buffer.read(), type=Case)
    sys.stdout.buffer.write(msgspec.json.encode(advise(case)))


if __name__ == "__main__":
    main()
