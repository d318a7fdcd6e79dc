"""What a server may leave after a scenario: lines of its log, and no processes."""

from __future__ import annotations

import asyncio

from tests.chaos.footprint import until
from tests.chaos.ledger import Ledger
from tests.support import faulty_server
from tests.support.process_server import ServerProcess

EXPECTED = ('"a worker ended"', '"the server is gone')
"""Errors in the log that kills of workers and of the supervisor cause."""
GONE_S = 30.0


def check_log(server: ServerProcess, ledger: Ledger, *excused: str) -> None:
    """Check that a running server has logged nothing but what kills explain, and lines with what is
    excused. A stop adds lines of its own."""
    for line in server.complaints:
        if not any(known in line for known in (*EXPECTED, *excused)):
            ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")


async def require_gone(server: ServerProcess, ledger: Ledger) -> None:
    """Stop a server, and require that it leaves no replica, and no process of its functions'
    servers."""
    await asyncio.to_thread(server.stop)

    async def is_gone() -> bool:
        return not (server.replica_pids() or faulty_server.survivors(server.data))

    if not await until(is_gone, GONE_S):
        ledger.violated(f"replicas are left: {server.replica_pids()}")
        ledger.violated(f"processes are left: {faulty_server.survivors(server.data)}")
