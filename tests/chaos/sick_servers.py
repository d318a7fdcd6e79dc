"""Twelve ways in which a server is sick and ten in which it is healthy and odd, all at once.

Each is a function of its own, under one server with callers that go on calling. A sick one is
replaced, or stays and is reported, as `docs/explanation/hung-servers.md` says; a healthy one never
is. No call is lost: each gets a right answer or a documented error.

Limits of silences are LIMIT_S instead of 30 s (learnt) and 300 s (not learnt), also in the first
ten minutes. So a prefill of 12 s stands to them as one of 20 minutes to the real ones. Limits of
probes, of trials and of replacements are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.chaos.footprint import pause, until
from tests.chaos.ledger import Ledger
from tests.support import chat_server, sick_server
from tests.support.process_server import ServerProcess, server_process

LIMIT_S = 3.0
"""Silence that is suspicious in this run, in seconds."""
PROGRAM = f"""
import pool_manager.core.health.liveness as it
import pool_manager.manager as managing
it.LIMIT_MIN_S = it.UNLEARNT_S = {LIMIT_S}
it.NEW_FACTOR = 1.0
was = managing.Manager._gpu_use
def use(self, id):
    replica = self._machine.cluster.find(id)
    return 0.9 if replica is not None and "/gpu-busy@" in replica.pool else was(self, id)
managing.Manager._gpu_use = use
import admin.cli.main
admin.cli.main.main()
"""
"""A server with those limits, and a GPU that is always busy for one function."""
REPLACED_S = 120.0
"""Max seconds until a sick server is replaced, on a loaded machine."""
COUNTED_S = 30.0
AGAIN_S = 0.5
TIMEOUT_S = 180.0
DEPLOYS = 4
"""Deploys at once."""
DEPLOY_S = 600.0
SLOTS = "64"
NAMED = {
    502: {"upstream_failed", "replica_hung", "replica_died"},
    503: {"wait_budget_over"},
    504: {"upstream_timeout"},
}
"""Problem codes that callers of sick servers may get."""
COUNTER = '[health]\ncounter = "steps_total"\nstep_s = 60'
OK = 200


@dataclass
class Case:
    """What happened to one function."""

    name: str
    answers: Counter[str] = field(default_factory=Counter)
    """Ends of its calls."""
    seconds: float | None = None
    """From the beginning of its sickness to the first answer of another process, or its report."""


@dataclass(frozen=True)
class Kind:
    """One kind of server."""

    name: str
    play: Callable[[Scene, Case], Awaitable[None]]
    """Make it sick or odd, and call it until that is over."""
    reason: str = ""
    """Why it is to be replaced, as in metrics; "" if it is not to be."""
    times: int = 1
    """How often, if `reason` is given."""
    told: str = ""
    """What `fnctl why` has to say afterwards."""
    refused: int = 0
    """Min calls that get an error."""
    options: tuple[str, ...] = ()
    limits: str = ""
    ready: str = "/health"
    more: str = ""
    is_chat: bool = False
    """Whether it is a server of models, with a golden sample."""


class Scene:
    """One server with its functions."""

    def __init__(self, server: ServerProcess, ledger: Ledger, folder: Path) -> None:
        self.server = server
        self.ledger = ledger
        self.folder = folder
        self.session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), connector=aiohttp.TCPConnector(limit=0)
        )
        self._deploying = asyncio.Semaphore(DEPLOYS)

    def corrupt(self, name: str, *, is_wrong: bool) -> None:
        """Make the server of models answer wrong from now on, or right."""
        mark = self.folder / f"{name}.mark"
        if is_wrong:
            mark.touch()
        else:
            mark.unlink()

    async def call(self, case: Case, path: str, method: str = "POST", allowed: int = OK) -> str:
        """Call once, and count how it ends; return the body of a right answer, else "".

        `allowed` is the status of a right answer.
        """
        url = f"{self.server.url}/fn/{case.name}{path}"
        try:
            async with self.session.request(method, url) as answer:
                status, body = answer.status, await answer.text()
        except (TimeoutError, aiohttp.ClientError) as error:
            self._lost(case, repr(error))
            return ""
        if status == allowed:
            case.answers["answered"] += 1
            return body
        code = json.loads(body).get("code", "") if body.startswith("{") else body[:200]
        if code in NAMED.get(status, ()):
            case.answers[f"{status} {code}"] += 1
        else:
            self._lost(case, f"{status} {code}")
        return ""

    def _lost(self, case: Case, text: str) -> None:
        case.answers["lost"] += 1
        self.ledger.violated(f"{case.name}: a call was lost: {text}")

    async def turn(self, case: Case, way: str) -> str:
        """Make the server of a case sick; return the id of its process."""
        return await self.call(case, f"/turn/{way}", "GET")

    async def until_another(self, case: Case, before: str, path: str = "/work") -> None:
        """Call until a process answers that is not `before`."""
        began_s = time.monotonic()

        async def is_another() -> bool:
            got = await self.call(case, path)
            return got not in ("", before)

        if await until(is_another, REPLACED_S):
            case.seconds = time.monotonic() - began_s
        else:
            self.ledger.violated(f"{case.name}: no other server answers after {REPLACED_S:.0f} s")

    async def calls(self, case: Case, path: str, seconds: float, allowed: int = OK) -> None:
        """Call one after another for so many seconds."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            await self.call(case, path, allowed=allowed)
            await pause(AGAIN_S)

    async def deploy(self, kind: Kind) -> bool:
        """Deploy the function of a kind; return whether that succeeded."""
        name, options = kind.name, tuple(one.format(self=self) for one in kind.options)
        if kind.is_chat:
            mark = str(self.folder / f"{name}.mark")
            path = chat_server.bundle(self.folder, name, "--corrupt", mark, more=kind.more)
        else:
            tables = {"limits": kind.limits, "ready": kind.ready, "more": kind.more}
            path = sick_server.bundle(self.folder, name, *options, **tables)
        command = ("deploy", str(path), "--trust")
        async with self._deploying:
            done = await asyncio.to_thread(self.server.fnctl, *command, timeout_s=DEPLOY_S)
        self.ledger.require(done.returncode == 0, f"{name}: not deployed: {done.stderr[-500:]}")
        return done.returncode == 0

    async def why(self, case: Case) -> str:
        """Return what `fnctl why` says."""
        return (await asyncio.to_thread(self.server.fnctl, "why", case.name)).stdout

    async def replaced(self, name: str) -> Counter[str]:
        """Return how often servers of a function were replaced, by reason."""
        async with self.session.get(f"{self.server.url}/metrics") as answer:
            text = await answer.text()
        wanted = rf'fngate_replicas_replaced_total{{function="{name}",.*reason="(\w+)"}} (\S+)'
        return Counter({reason: int(float(n)) for reason, n in re.findall(wanted, text)})


def turns(way: str, path: str = "/work") -> Callable[[Scene, Case], Awaitable[None]]:
    """Return a play: the server becomes sick in a way, and is called until another answers."""

    async def play(scene: Scene, case: Case) -> None:
        before = await scene.call(case, path)
        await scene.turn(case, way)
        await pause(AGAIN_S)
        await scene.until_another(case, before, path)

    return play


def called(path: str, seconds: float) -> Callable[[Scene, Case], Awaitable[None]]:
    """Return a play: the server is called for a while."""
    return lambda scene, case: scene.calls(case, path, seconds)


async def only_deployed(_scene: Scene, _case: Case) -> None:
    """Play nothing: its trial was what is odd, and each start takes as long."""


async def stops_engine(scene: Scene, case: Case) -> None:
    """Stop the engine behind the server that lives, while a call waits for it."""
    before = await scene.call(case, "/engine")
    await scene.turn(case, "engine")
    await scene.until_another(case, before, "/engine")


async def one_stuck(scene: Scene, case: Case) -> None:
    """One slot never answers, the others go on."""
    async with asyncio.TaskGroup() as group:
        group.create_task(scene.call(case, "/never"))
        group.create_task(scene.calls(case, "/work", 20.0))


async def stuck_for_a_while(scene: Scene, case: Case) -> None:
    """Everything stands still for 40 s, then all calls are answered."""
    await scene.turn(case, "stuck?s=40")
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(scene.call(case, "/work"))
    await scene.calls(case, "/work", 5.0)


async def sick_again(scene: Scene, case: Case) -> None:
    """Each server that follows is sick from its first call on."""
    began_s = time.monotonic()

    async def is_reported() -> bool:
        await scene.call(case, "/work")
        return GIVEN_UP in await scene.why(case)

    await until(is_reported, REPLACED_S)
    case.seconds = time.monotonic() - began_s


async def wrong_answers(scene: Scene, case: Case) -> None:
    """An idle server of models answers its golden sample wrong."""
    await asyncio.to_thread(scene.server.fnctl, "warm", case.name)
    began_s = time.monotonic()
    scene.corrupt(case.name, is_wrong=True)

    async def is_replaced() -> bool:
        return bool(await scene.replaced(case.name))

    if await until(is_replaced, REPLACED_S):
        case.seconds = time.monotonic() - began_s
    scene.corrupt(case.name, is_wrong=False)


async def hung_start(scene: Scene, case: Case) -> None:
    """Each start after the trial hangs: its caller is told in time, and `sleep` ends it."""
    await scene.call(case, "/work")
    done = await asyncio.to_thread(scene.server.fnctl, "sleep", case.name)
    scene.ledger.require(done.returncode == 0, f"{case.name}: {done.stderr}")

    async def is_cold() -> bool:
        (row,) = [
            one
            for one in (await asyncio.to_thread(scene.server.fnctl_json, "ls"))["items"]
            if one["name"] == case.name
        ]
        return bool(row["state"] == "cold")

    scene.ledger.require(await until(is_cold, 30.0), f"{case.name}: sleep does not end its start")


async def slow_reader(scene: Scene, case: Case) -> None:
    """A client takes nothing of an answer for longer than any limit."""
    url = f"{scene.server.url}/fn/{case.name}/big?mib=64"
    async with scene.session.get(url) as answer:
        await answer.content.readexactly(2**20)
        await pause(4 * LIMIT_S)
        rest = await answer.read()
    case.answers["answered" if len(rest) == 63 * 2**20 else "lost"] += 1


async def bursts(scene: Scene, case: Case) -> None:
    """Nothing comes for long, then much at once: it waits for its turn."""
    for _ in range(2):
        await pause(10.0)
        async with asyncio.TaskGroup() as group:
            for _ in range(40):
                group.create_task(scene.call(case, "/work?s=1"))


async def bad_callers(scene: Scene, case: Case) -> None:
    """Hundreds of answers are 500, as callers ask for nonsense."""
    for _ in range(200):
        await scene.call(case, "/error", allowed=500)
    await scene.call(case, "/work")


GIVEN_UP = "that replaced one another have answered no call"
FIRST_BYTE = "first_byte_s = 3"
SICK = (
    Kind("fails-at-ready", turns("fails"), "failing", refused=1),
    Kind("dead-by-close", turns("closes"), "failing", refused=1),
    Kind("dead-by-silence", turns("silent"), "unready", refused=1, limits=FIRST_BYTE),
    Kind("stopped-listening", turns("refuses"), "refused"),
    Kind("one-stuck-slot", one_stuck, refused=1, limits="first_byte_s = 10\nconcurrency = 4"),
    Kind("stuck-for-40-s", stuck_for_a_while, told="answers again"),
    Kind("sigstop", turns("stops"), "unready", refused=1, limits=FIRST_BYTE),
    Kind("memory-full", turns("full"), "failing", refused=1),
    Kind(
        "sick-again",
        sick_again,
        "failing",
        times=3,
        told=GIVEN_UP,
        refused=1,
        options=("--born", "closes"),
    ),
    Kind(
        "wrong-answers",
        wrong_answers,
        "wrong_sample",
        is_chat=True,
        more="[health]\nsample_every_s = 1",
    ),
    Kind(
        "hung-start",
        hung_start,
        refused=1,
        options=("--hangs-after", "{self.folder}/hung-start.mark"),
        limits="wait_s = 5",
    ),
    Kind(
        "engine-stopped",
        stops_engine,
        "hung_idle",
        options=("--engine",),
        more=COUNTER,
        refused=1,
    ),
)
ODD = (
    Kind("long-prefill", called("/work?s=12&steps=1&spin=1", 1.0), more=COUNTER),
    Kind("compile-pause", called("/work?s=12&spin=1", 1.0), more=COUNTER),
    Kind("missing-404", only_deployed, options=("--missing", "240")),
    Kind("root-is-401", called("/work", 10.0), ready=""),
    Kind("slow-reader", slow_reader),
    Kind("gpu-busy", called("/work?s=12", 1.0), more=COUNTER),
    Kind("gc-pauses", called("/freeze?s=4", 15.0)),
    Kind("bursts", bursts, limits="concurrency = 4"),
    Kind("loading-503", called("/work", 5.0), options=("--loading", "20")),
    Kind("bad-callers", bad_callers),
)
SMALL = {
    "fails-at-ready",
    "sick-again",
    "engine-stopped",
    "compile-pause",
    "root-is-401",
    "slow-reader",
    "gpu-busy",
}
"""Kinds that no test shows by itself; under a minute together."""
PULSE = Kind("pulse", called("/work", 0.0))
"""A server whose stream never stands still: else the host itself would be taken for the cause."""


async def _pulse(scene: Scene, over: asyncio.Event) -> None:
    """Read streams of PULSE until the run is over; each must be whole."""
    url = f"{scene.server.url}/fn/{PULSE.name}/events?s=10"
    while not over.is_set():
        with contextlib.suppress(aiohttp.ClientError):
            async with scene.session.get(url) as answer:
                if (await answer.text()).endswith("data: end\n\n"):
                    continue
        scene.ledger.violated("the stream of a healthy server was cut")
        return


async def _play(scene: Scene, kind: Kind, expected: Counter[str]) -> None:
    """Deploy a kind, play it, and hold what happened against what is to happen."""
    case, ledger = Case(kind.name), scene.ledger
    if not await scene.deploy(kind):
        return
    await kind.play(scene, case)

    async def is_counted() -> bool:
        return await scene.replaced(kind.name) == expected

    await until(is_counted, COUNTED_S)  # the old one may end a moment after the new one answers
    got = await scene.replaced(kind.name)
    ledger.require(got == expected, f"{kind.name}: replaced {dict(got)}, not {dict(expected)}")
    why = await scene.why(case) if kind.told else ""
    ledger.require(kind.told in why, f"{kind.name}: `why` does not say {kind.told!r}: {why}")
    refused = sum(case.answers.values()) - case.answers["answered"] - case.answers["lost"]
    ledger.require(refused >= kind.refused, f"{kind.name}: no caller was told of it")
    if not kind.refused and not kind.reason:
        ledger.require(not refused, f"{kind.name}: {dict(case.answers)}")
    took = "" if case.seconds is None else f" after {case.seconds:.0f} s"
    how = ", ".join(f"{n} x {reason}" for reason, n in got.items()) or "none"
    calls = ", ".join(f"{count} {end}" for end, count in sorted(case.answers.items()))
    ledger.figures[kind.name] = f"replaced: {how}{took}; calls: {calls or 'none'}"


async def run(data: Path, kinds: tuple[Kind, ...] = SICK + ODD) -> Ledger:
    """Play all kinds at once. Each is replaced, or not, as documented, and no call is lost."""
    ledger = Ledger("sick servers", {"sick": 0, "odd": 0, "limit of a silence": f"{LIMIT_S:g} s"})
    program = (sys.executable, "-c", PROGRAM)
    with server_process(data / "data", "--cpu-slots", SLOTS, program=program) as server:
        scene, over = Scene(server, ledger, data), asyncio.Event()
        async with scene.session:
            await scene.deploy(PULSE)
            beating = asyncio.create_task(_pulse(scene, over))
            async with asyncio.TaskGroup() as group:
                for kind in kinds:
                    is_sick = kind in SICK
                    ledger.figures["sick" if is_sick else "odd"] += 1
                    expected = Counter({kind.reason: kind.times} if kind.reason else {})
                    group.create_task(_play(scene, kind, expected))
            over.set()
            await beating
            ledger.require(not await scene.replaced(PULSE.name), "the pulse was replaced")
        for line in list(server.complaints)[:5]:
            ledger.violated(f"the server's log: {line.rstrip()[-1000:]}")
    return ledger
