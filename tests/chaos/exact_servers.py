"""The limit of a server function, over several gateway workers and far more clients."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from tests.chaos.ledger import Ledger
from tests.support import faulty_server
from tests.support.process_server import server_process
from tests.support.raw_http import connected, request

WORKERS, LIMIT, CLIENTS = 4, 8, 200
HOLD_MS = 10
LIMITS = f"concurrency = {LIMIT}"


async def run(data: Path, calls: int = 20) -> Ledger:
    """Let CLIENTS clients make `calls` calls each; the server never sees more than LIMIT at once.

    Half of the clients keep their connections, the others use a new one for each call.
    """
    ledger = Ledger(
        "the limit of a server", {"workers": WORKERS, "limit": LIMIT, "clients": CLIENTS}
    )
    counts: Counter[str] = Counter()
    with server_process(data / "data", "--workers", str(WORKERS), "--cpu-slots", "1") as server:
        await asyncio.to_thread(faulty_server.deploy, server, data, "web", limits=LIMITS)
        port = urlsplit(server.url).port
        assert port is not None

        async def work(number: int) -> None:
            left = calls
            while left:
                async with connected(port) as connection:
                    for _ in range(left if number % 2 else 1):
                        token = f"{number}-{left}"
                        target = f"/fn/web/concurrency?ms={HOLD_MS}"
                        await connection.send(request("GET", target, None, {"Token": token}))
                        got = await connection.answer()
                        left -= 1
                        counts[str(got.status)] += 1
                        if got.status != 200 or got.json()["token"] != token:
                            ledger.violated(f"#{number}: {got}")
                            return
                        counts["max"] = max(counts["max"], got.json()["max"])

        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(work(number))
        for line in list(server.complaints)[:5]:
            ledger.violated(f"the server's log: {line.rstrip()}")
    ledger.figures |= counts
    ledger.require(counts["max"] <= LIMIT, f"the server saw {counts['max']} exchanges at once")
    ledger.require(counts["max"] == LIMIT, f"only {counts['max']} of {LIMIT} slots were used")
    return ledger
