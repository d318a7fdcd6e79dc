"""Advice computed in a separate process: a case on its standard input, rows on its output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Final

import msgspec
import structlog

from admin.advice.advice import Case, advise
from admin.documents.history import AdviceRow
from registry.errors import AdviceUnavailable, ShuttingDown

log = structlog.get_logger()

MODULE: Final = "admin.advice.process"
LOWEST: Final = 19
"""Highest niceness: everything else on this machine has priority."""
LIMIT_S: Final = 120
RETRY_S: Final = 10.0


class Advisor:
    """Runner of the child process, which takes seconds of CPU time; one child at a time."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._child: asyncio.subprocess.Process | None = None
        self._is_busy = self._is_closed = False

    async def rows(self, case: Case) -> list[AdviceRow]:
        """Simulate a case; cancelling the call ends the child.

        Raises AdviceUnavailable if another case is being simulated, or if this one takes too long
        or fails; ShuttingDown if the server shuts down first.
        """
        if self._is_busy:
            raise AdviceUnavailable(
                "another advice is being computed, and only one runs at a time",
                retry_after_s=RETRY_S,
            )
        self._is_busy = True
        try:
            async with asyncio.timeout(self._limit_s):
                output = await self._play(msgspec.json.encode(case))
        except TimeoutError:
            raise AdviceUnavailable(
                f"the advice was not computed within {self._limit_s:g} s: ask for fewer hours, or"
                " when this machine has less load",
                retry_after_s=RETRY_S,
            ) from None
        finally:
            self._is_busy = False
        return msgspec.json.decode(output, type=list[AdviceRow])

    async def _play(self, question: bytes) -> bytes:
        if self._is_closed:
            raise ShuttingDown("the server is shutting down")
        # With -P, a folder named admin in the working directory is not imported.
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
                # Shielded: a second cancellation must not leave a zombie process.
                await asyncio.shield(child.wait())
        if self._is_closed:
            raise ShuttingDown("the server is shutting down")
        if child.returncode == -signal.SIGALRM:
            raise TimeoutError
        if child.returncode:
            said = complaints.decode(errors="replace").strip()
            log.error("an advice could not be worked out", code=child.returncode, said=said[-2000:])
            raise AdviceUnavailable(
                f"the advice could not be computed: exit code {child.returncode}"
            )
        return output

    async def close(self, _app: object = None) -> None:
        """Answer waiting requests now (handler of aiohttp's shutdown signal)."""
        self._is_closed = True
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()


def main() -> None:
    """Run the child process. An alarm ends it after LIMIT_S, even if the server was killed."""
    os.nice(LOWEST)
    signal.alarm(LIMIT_S)
    case = msgspec.json.decode(sys.stdin.buffer.read(), type=Case)
    sys.stdout.buffer.write(msgspec.json.encode(advise(case)))


if __name__ == "__main__":
    main()
