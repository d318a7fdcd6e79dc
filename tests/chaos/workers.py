"""Gateway workers are killed under load, then their supervisor."""

from __future__ import annotations

import asyncio
import http.client
import os
import random
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.ledger import Ledger
from tests.support import models
from tests.support.process_server import END_S, ServerProcess, server_process, wait_end
from tests.support.worker_server import Line, until_replaced, watch, worker_pids

WORKERS = 2
CALLERS = 12
NAME = "affine"
SCALE, OFFSET = 3, 5
LIFE_S = (0.1, 1.0)
"""Seconds for which all workers run between two kills."""
DROPPED = (http.client.HTTPException, OSError)


@dataclass
class Clients:
    """Client threads; each uses one connection until it is cut off.

    `killed`: pids of killed workers, recorded before the kill.
    """

    server: ServerProcess
    ledger: Ledger
    killed: set[int] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call_on(self, index: int) -> None:
        """Run one client thread."""
        number = index
        while not self.ended.is_set():
            line = self._connect()
            while line is not None and not self.ended.is_set():
                number += CALLERS
                if not self._call(line, number % 100_000):
                    break
            if line is not None:
                line.close()

    def _connect(self) -> Line | None:
        try:
            return Line(self.server)
        except DROPPED:
            # The worker died before the client could ask for its pid.
            self._count("connections lost before the first request")
            return None

    def _call(self, line: Line, number: int) -> bool:
        """Send one request; return whether the connection is still usable."""
        try:
            status, document = line.call(NAME, {"x": [[number, 0, 0, 0]]})
        except DROPPED as error:
            if line.pid not in self.killed:
                self.ledger.violated(f"cut off by a worker that was not killed: {error!r}")
            self._count("cut off")
            return False
        if status != 200:
            self.ledger.violated(f"x = {number}: {status} {document}")
        elif document["outputs"]["y"][0][0] != SCALE * number + OFFSET:
            self.ledger.violated(f"x = {number}: wrong content {document}")
        else:
            self._count("right")
        return True

    def _count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1


def _run(data: Path, seed: int, kills: int) -> Ledger:
    chance = random.Random(seed)
    ledger = Ledger("gateway processes that are killed", {"kills": kills, "workers": WORKERS})
    with server_process(data / "data", "--workers", str(WORKERS), "--cpu-slots", "2") as server:
        model = models.affine(data, SCALE, OFFSET)
        server.fnctl_json("deploy", str(model), "--name", NAME)
        clients = Clients(server, ledger)
        threads = [threading.Thread(target=clients.call_on, args=(i,)) for i in range(CALLERS)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(kills):
                clients.ended.wait(chance.uniform(*LIFE_S))
                _kill_one(clients, chance)
            clients.ended.wait(LIFE_S[1])
        finally:
            clients.ended.set()
            for thread in threads:
                thread.join(END_S)
        _check_counts(clients)
        _check_log(server, ledger)
        _kill_supervisor(server, ledger)
    ledger.figures |= clients.counts
    return ledger


def _kill_one(clients: Clients, chance: random.Random) -> None:
    assert clients.server.process is not None
    victim = chance.choice(worker_pids(clients.server.process.pid))
    clients.killed.add(victim)
    gone = watch(victim)
    os.kill(victim, signal.SIGKILL)
    wait_end(gone)
    until_replaced(clients.server, victim)


def _check_counts(clients: Clients) -> None:
    """Every answer that a client received is counted; cut-off requests may be counted, too."""
    line = Line(clients.server)
    _, page = line.ask("GET", "/metrics", headers=clients.server.headers)
    line.close()
    labels = f'function="{NAME}",namespace="default",outcome="ok",reason=""'
    [row] = [
        r for r in page.decode().splitlines() if r.startswith(f"fngate_requests_total{{{labels}")
    ]
    counted = int(float(row.split()[-1]))
    most = clients.counts["right"] + clients.counts["cut off"]
    clients.ledger.figures["counted"] = counted
    clients.ledger.require(
        clients.counts["right"] <= counted <= most,
        f"{counted} are counted, {clients.counts['right']} to {most} were answered",
    )


def _check_log(server: ServerProcess, ledger: Ledger) -> None:
    """The log reports worker deaths and no other error."""
    for line in server.complaints:
        if '"a worker ended"' not in line:
            ledger.violated(f"the server's log: {line.rstrip()}")


def _kill_supervisor(server: ServerProcess, ledger: Ledger) -> None:
    """Workers exit when their supervisor dies."""
    assert server.process is not None
    ends = [watch(pid) for pid in worker_pids(server.process.pid)]
    ledger.require(len(ends) == WORKERS, f"{len(ends)} workers are left")
    server.kill()
    for end in ends:
        wait_end(end)


async def run(data: Path, seed: int, kills: int = 15) -> Ledger:
    """Only connections of killed workers are cut off, every answer is right and counted, and no
    worker outlives the supervisor."""
    return await asyncio.to_thread(_run, data, seed, kills)
