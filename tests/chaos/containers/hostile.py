"""Hostile functions in containers, each exhausting another shared resource, while innocent
functions are called and started. Every answer must be right, every cold start must succeed and the
server must stay unharmed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from functions.digits import train
from tests.chaos.calls import client
from tests.chaos.ledger import Ledger
from tests.support.both_drivers import HOSTILE
from tests.support.caller import Caller
from tests.support.container_server import ContainerServer, container_server
from tests.support.process_server import FNCTL, ServerProcess

DIGITS = Path(train.__file__).parent
SEVEN = (DIGITS / "seven.png").read_bytes()
IMAGE = {"Content-Type": "image/png"}
WARM, COLD = "warm", ("cold-a", "cold-b")
WATCHES = Path("/proc/sys/fs/epoll/max_user_watches")
USER = 23456
"""An unprivileged user id that may use the engine."""
HOARD_MIB = 2048
"""Memory of a hoarder: its epoll watches alone take more than 1 GiB."""
SMALL_MIB = 192
QUIET = (
    *("inotify", "POSIX timers", "waiting signals", "keys", "pipe buffers", "locked memory"),
    *("System V", "message queues", "file locks", "threads", "sockets and calls"),
    *("scratch space", "descriptors in flight"),
)
"""Kinds of hoarding that need little memory and CPU time."""
LOUD: tuple[dict[str, Any], ...] = (
    {"attack": "forks"},
    {"attack": "memory"},
    {"attack": "keep_full", "folder": "/tmp"},
    {"attack": "kill_all"},
    {"attack": "close_all"},
    {"attack": "talk", "seconds": 2},
    {"attack": "spin", "seconds": 2},
    {"attack": "data_lie", "lie": "an answer to nobody"},
    {"attack": "data_lie", "lie": "a length of 4 GiB"},
    {"attack": "control_lie", "lie": "an unknown kind", "seconds": 60},
    {"attack": "control_lie", "lie": "answers to no PING", "seconds": 60},
)
CALL_S = 600
"""Max seconds of an attack: some hoard millions of objects on a busy machine."""
CALM_STARTS = 5
AFTER_STARTS = 5
"""Cold starts before the attacks, and after them while all hoards are still held."""


@dataclass(frozen=True)
class Dose:
    """`hostile` functions, of which `hoarders` hoard everything at once; at most `at_once`
    functions attack concurrently. `is_root`: whether the server runs as root."""

    seed: int
    hostile: int = 100
    hoarders: int = 2
    at_once: int = 6
    is_root: bool = True
    watches_max: int = 0
    """Temporary kernel limit on epoll watches per user, so that a small dose reaches it quickly; 0
    leaves the limit unchanged."""


class Innocents:
    """Callers of three innocent functions, which share only the machine with hostile ones."""

    def __init__(self, caller: Caller, ledger: Ledger) -> None:
        self._caller = caller
        self._ledger = ledger
        self.waits_s: dict[str, list[float]] = defaultdict(list)

    async def call(self, name: str, when: str) -> None:
        """Send one request; its answer must be right."""
        began_s = time.monotonic()
        answer = await self._caller.request("POST", f"/fn/{name}", SEVEN, IMAGE)
        took_s = time.monotonic() - began_s
        is_right = answer.status == 200 and answer.json()["outputs"]["label"] == [7]
        self._ledger.require(is_right, f"{when}: {name}: {answer.status} {answer.body[:500]!r}")
        is_cold = "cold" in answer.headers.get("Server-Timing", "")
        self.waits_s[f"{when}: {'cold' if is_cold else 'warm'}"].append(took_s)

    async def cold(self, name: str, when: str) -> None:
        """Send a request to a function after putting it to sleep."""
        await self._caller.admin("POST", f"/functions/{name}/sleep")
        await self.call(name, when)

    async def run(self, ended: asyncio.Event) -> None:
        """Call without pauses until `ended`."""

        async def go_on(name: str, *, cold: bool) -> None:
            while not ended.is_set():
                await (self.cold if cold else self.call)(name, "under attack")

        async with asyncio.TaskGroup() as group:
            group.create_task(go_on(WARM, cold=False))
            for name in COLD:
                group.create_task(go_on(name, cold=True))

    def figures(self) -> dict[str, str]:
        """Return count, median and longest wait per kind of call."""
        return {
            kind: f"{len(waits)}, median {statistics.median(waits) * 1e3:.0f} ms, longest"
            f" {max(waits) * 1e3:.0f} ms"
            for kind, waits in sorted(self.waits_s.items())
        }


class Scene:
    """A server with innocent and hostile functions; each hostile function has one container."""

    def __init__(self, dose: Dose, caller: Caller, ledger: Ledger) -> None:
        self._dose = dose
        self._caller = caller
        self._ledger = ledger
        self._chance = random.Random(dose.seed)
        self._places = asyncio.Semaphore(dose.at_once)
        self.innocents = Innocents(caller, ledger)
        self.statuses: Counter[str] = Counter()
        self.taken: dict[str, list[Any]] = {}
        self.uids: list[int] = []

    async def play(self) -> None:
        """Deploy, call in peace, attack, and call again while all hoards are held."""
        await self._caller.deploy(DIGITS, name=WARM, min=1)
        for name in COLD:
            await self._caller.deploy(DIGITS, name=name, idle_s=0.05)
        for number in range(self._dose.hostile):
            memory = HOARD_MIB if number < self._dose.hoarders else SMALL_MIB
            options: dict[str, Any] = {"memory_mib": memory, "timeout_s": CALL_S, "idle_s": 3600}
            await self._caller.deploy(HOSTILE, name=f"hostile-{number}", **options)
        for at in range(CALM_STARTS):
            await self.innocents.cold(COLD[at % len(COLD)], "in peace")
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.innocents.run(ended))
            try:
                async with asyncio.TaskGroup() as attacks:
                    for number in range(self._dose.hostile):
                        attacks.create_task(self._attack(number))
            finally:
                ended.set()
        for at in range(AFTER_STARTS):
            await self.innocents.cold(COLD[at % len(COLD)], "afterwards")
        await self._check()

    async def _attack(self, number: int) -> None:
        async with self._places:
            for order in self._orders(number):
                answer = await self._caller.call(f"hostile-{number}", {"inputs": {"order": order}})
                code = "" if answer.status == 200 else f" {answer.json()['code']}"
                self.statuses[f"{order['attack']}: {answer.status}{code}"] += 1
                if order["attack"] == "hoard" and answer.status == 200:
                    said = answer.json()["outputs"]["said"]
                    self.taken |= said["taken"]
                    self.uids.append(said["uid"])

    def _orders(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the attacks of a function. Full hoarders have the lowest numbers; all others end
        with a hoard."""
        if number < self._dose.hoarders:
            yield {"attack": "hoard"}
            return
        yield LOUD[number % len(LOUD)]
        yield {"attack": "hoard", "kinds": self._chance.sample(QUIET, 4)}

    async def _check(self) -> None:
        """Innocent functions have no errors, and no two hoarders share a user id."""
        for name in (WARM, *COLD):
            errors = (await self._caller.admin("GET", f"/functions/{name}/errors")).json()["items"]
            why = (await self._caller.admin("GET", f"/functions/{name}/why")).json()
            outcomes = Counter(one["outcome"].partition(":")[0] for one in why["cold_starts"])
            self._ledger.require(not errors, f"errors of {name}: {errors[:3]}")
            self._ledger.require("failed" not in outcomes, f"cold starts of {name}: {outcomes}")
        self._ledger.require(len({*self.uids}) == len(self.uids), f"users: {self.uids}")
        self._ledger.figures |= {
            "innocents": self.innocents.figures(),
            "hostile answers": dict(sorted(self.statuses.items())),
            "taken (how much, refused with, seconds)": self.taken,
        }


@contextmanager
def fewer_watches(most: int) -> Iterator[None]:
    """Set the machine's limit on epoll watches per user, then restore it; 0 leaves it unchanged."""
    before = WATCHES.read_text()
    if most:
        WATCHES.write_text(f"{most}\n")
    try:
        yield
    finally:
        if most:
            WATCHES.write_text(before)


@contextmanager
def serving(
    data: Path, dose: Dose, url: str, image: str, **environment: str
) -> Iterator[ContainerServer]:
    """Start a server over containers without standbys: every cold start starts a container."""
    program: tuple[str, ...] = (FNCTL,)
    if not dose.is_root:
        data.mkdir(parents=True, exist_ok=True)
        data.parent.chmod(0o755)
        os.chown(data, USER, USER)
        group = Path(url.removeprefix("unix://")).stat().st_gid
        # dac_read_search lets it read this checkout; it has no other capability of root.
        program = (
            *("setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={group}"),
            *("--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"),
            *("--bounding-set=-all,+dac_read_search", FNCTL),
        )
    variables = {
        "FN_CPU_SLOTS": str(min(256, dose.hostile + 6)),
        "FN_STANDBYS": "0",
        "FN_HOST_MEMORY_MIB": "1000000",
        "FN_PING_S": "5",
        **environment,
    }
    with container_server(data, url, image, program=program, **variables) as server:
        yield server


async def run(data: Path, dose: Dose, url: str, image: str) -> Ledger:
    """Run the whole scenario in an empty folder, on the engine at `url`."""
    whose = "root" if dose.is_root else f"user {USER}"
    ledger = Ledger(f"hostile containers under a server of {whose}", {"dose": asdict(dose)})
    with fewer_watches(dose.watches_max), serving(data, dose, url, image) as server:
        process = server.process
        assert process is not None
        async with client(server, 2 * CALL_S) as caller:
            scene = Scene(dose, caller, ledger)
            try:
                await scene.play()
            except* Exception as errors:  # noqa: BLE001 - keep the results so far
                ledger.violated(f"the run ended early: {errors.exceptions!r}")
        ledger.require(process.poll() is None, f"the server ended with {process.returncode}")
        for line in complaints(server):
            ledger.violated(f"the server's log: {line}")
    return ledger


def complaints(server: ServerProcess) -> list[str]:
    """Return the errors in the server's log."""
    found = []
    for line in server.complaints:
        with suppress(ValueError):
            said = json.loads(line)
            found.append(f"{said.get('event')} {said.get('task', '')} {said.get('exception', '')}")
            continue
        found.append(line)
    return found
