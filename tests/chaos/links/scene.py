"""Hostile peers at the server's door, and at the listener of a replica: none enters, and nobody
else notices.

Four phases alternate, several turns of each: `quiet`; `elsewhere`, in which the same attackers
attack another process, so that they cost this machine the same; `attack`, as fast as they can; and
`judged`, slow enough for the door's limits, so that each connection gets to the door's decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hosts.tls.authority import AUTHORITY_FILE
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.enrolment import replica_name
from tests.chaos.calls import client
from tests.chaos.floods import ROW
from tests.chaos.footprint import PROBE, pause, until
from tests.chaos.ledger import Ledger
from tests.chaos.links.attacks import AT_REPLICA, AT_SERVER, Outcome, Target
from tests.chaos.links.elsewhere import elsewhere
from tests.chaos.links.good import GoodReplica
from tests.chaos.links.identities import hostile
from tests.chaos.links.served import GOOD, OTHER, TOKENS
from tests.support import models
from tests.support.caller import Caller
from tests.support.dial_in.places import free_port, loopback
from tests.support.process_server import server_process
from tests.support.small_authority import Identity

PHASES: Final = ("quiet", "elsewhere", "attack", "judged")
FAR: Final = 'schema = 1\nmodel = "add_one.onnx"\n[device]\nhost = { kind = "dial-in" }\n'
START_S: Final = 30.0
SETTLE_S: Final = 20.0
CALL_EVERY_S: Final = 0.01
PACE_S: Final = 120.0
"""Connections a second that the door lets strangers begin."""
RSS_GROWTH_MIB: Final = 96
"""Max growth of the server's memory during an attack: 256 unfinished handshakes, and bodies of
ENROL."""
DESCRIPTORS_MAX: Final = 320
"""Max growth of its descriptors: the unfinished connections, and those of the good replica."""
LATER_MIB: Final = 24
"""Max growth that stays."""
FETCHED_MIN: Final = 0.9
"""Min share of the good replica's FETCHes, each with a connection of its own, that succeed."""


@dataclass(frozen=True)
class Dose:
    """Amounts of a run."""

    seed: int
    connections: int = 100_000
    """Hostile connections in all turns of `attack`, without those of the crowd."""
    judged: int = 20_000
    """Those in all turns of `judged`."""
    turns: int = 3
    quiet_s: float = 20.0
    threads: int = 96
    crowd: int = 250
    sources: int = 1000


@dataclass
class Phase:
    """Measurements of one phase over all turns."""

    calls: list[float] = field(default_factory=list)
    """Seconds of each call to a local function."""
    pings: list[float] = field(default_factory=list)
    fetches: list[float] = field(default_factory=list)
    refused: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    medians: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Median and 99th percentile of each turn, by what is measured."""


@dataclass
class Scene:
    """One run."""

    folder: Path
    dose: Dose
    ledger: Ledger
    pid: int
    """The process that is attacked."""
    caller: Caller
    phases: dict[str, Phase] = field(default_factory=lambda: {name: Phase() for name in PHASES})
    kinds: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    crowd: Counter[str] = field(default_factory=Counter)
    most_mib: float = 0.0
    most_descriptors: int = 0
    longest_s: float = 0.0

    def seen(self) -> dict[str, Any]:
        """What the admissions were asked."""
        path = self.folder / "seen.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    async def turn(
        self, name: str, good: GoodReplica | None, target: Path | None, turn: int
    ) -> None:
        """Measure one phase, while attackers attack `target`. `good` is for a door."""
        phase, began_s, cpu_s = self.phases[name], time.monotonic(), cpu_seconds(self.pid)
        calls: list[float] = []
        attacking = (
            asyncio.ensure_future(self._attack(name, target, turn))
            if target is not None
            else asyncio.ensure_future(pause(self.dose.quiet_s))
        )
        while not attacking.done():
            asked_s = time.monotonic()
            answer = await self.caller.call("affine", ROW)
            calls.append(time.monotonic() - asked_s)
            phase.statuses[answer.status] += 1
            self._look()
            await asyncio.wait([attacking], timeout=CALL_EVERY_S)
        await attacking
        ended_s = time.monotonic()
        phase.seconds += ended_s - began_s
        phase.cpu_s += cpu_seconds(self.pid) - cpu_s
        phase.calls += calls
        measured = {"call": calls}
        if good is not None:
            await pause(1.0)  # until it has told its PINGs
            pings = [s for at, s in self.seen()["pings"] if began_s <= at < ended_s]
            fetches = [s for at, s in list(good.fetched) if began_s <= at < ended_s]
            phase.refused += sum(began_s <= at < ended_s for at, _ in list(good.refused))
            phase.pings += pings
            phase.fetches += fetches
            measured |= {"ping": pings, "fetch": fetches}
        for kind, times in measured.items():
            phase.medians[f"{kind} p50"].append(percentile(times, 0.5))
            phase.medians[f"{kind} p99"].append(percentile(times, 0.99))

    def _look(self) -> None:
        self.most_mib = max(self.most_mib, rss_mib(self.pid))
        self.most_descriptors = max(self.most_descriptors, descriptors(self.pid))

    async def _attack(self, name: str, target: Path, turn: int) -> None:
        dose = self.dose
        counts = {
            "elsewhere": min(dose.connections // dose.turns, 200 * round(dose.quiet_s)),
            "attack": dose.connections // dose.turns,
            "judged": dose.judged // dose.turns,
        }
        count = counts[name]
        options = {
            "seed": dose.seed + turn,
            "threads": dose.threads,
            "sources": dose.sources,
            "crowd": 0 if name == "judged" else dose.crowd,
            "pace": PACE_S if name == "judged" else 0,
        }
        command = [str(target), str(count)]
        command += [word for key, value in options.items() for word in (f"--{key}", str(value))]
        attackers = await asyncio.create_subprocess_exec(
            *("nice", sys.executable, "-m", "tests.chaos.links", *command),
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await attackers.communicate()
        if name != "elsewhere":
            self._count(json.loads(said))

    def _count(self, told: dict[str, Any]) -> None:
        for kind, outcomes in told["kinds"].items():
            self.kinds[kind].update(outcomes)
        for text, count in told["errors"].items():
            self.ledger.violated(f"{count} times {text}")
        self.crowd.update(told["crowd"]["kinds"])
        self.crowd["entered"] += told["crowd"]["entered"]
        self.longest_s = max(self.longest_s, told["crowd"]["kept for at most"])


async def run(data: Path, dose: Dose) -> Ledger:
    """Attack the door while a good replica is linked and fetches, and local calls go on."""
    ledger = Ledger("hostile links", {"connections": dose.connections})
    folder = data / "door"
    folder.mkdir(parents=True)
    program = (sys.executable, "-m", "tests.chaos.links.served", str(folder))
    with server_process(data / "data", program=program, environment=PROBE) as server:
        async with client(server) as caller, elsewhere(folder) as other:
            await caller.deploy(models.add_one(data), name="affine")
            at = folder / "target.json"

            async def is_open() -> bool:
                return at.exists()

            assert await until(is_open, START_S), "the door did not open"
            assert server.process is not None
            scene = Scene(folder, dose, ledger, server.process.pid, caller)
            with GoodReplica(Target.load(at), TOKENS[GOOD]) as good:
                before = await _play(scene, good, at, other)
            _judge(scene, before)
            _judge_door(scene, good)
        complaints = [line for line in server.complaints if '"warning"' not in line]
        for line in complaints[:5]:
            ledger.violated(f"the server's log: {line.rstrip()[-400:]}")
        ledger.figures["complaints"] = len(server.complaints)
    return ledger


async def run_at_replica(data: Path, dose: Dose) -> Ledger:
    """Attack the listener of a replica that has dialled in, while calls to it go on."""
    ledger = Ledger("hostile links at a replica", {"connections": dose.connections})
    folder = data / "door"
    folder.mkdir(parents=True)
    places = data / "places.json"
    places.write_text(json.dumps([loopback("far", data).to_json()]))
    program = (sys.executable, "-m", "tests.support.dial_in")
    port = free_port()
    environment = {"FN_LINK_LISTEN": f"127.0.0.1:{port}", "FN_TEST_PLACES": str(places)}
    with server_process(data / "data", program=program, environment=environment) as server:
        async with client(server) as caller, elsewhere(folder) as other:
            await caller.deploy(models.add_one(data), name="affine", manifest=FAR, min=1, max=1)
            assert (await caller.call("affine", ROW)).status == 200
            ((id, pid),) = _linked(data)
            at = _target(server.data, folder, data, id)
            scene = Scene(folder, dose, ledger, pid, caller)
            before = await _play(scene, None, at, other)
            _judge(scene, before, AT_REPLICA)
        for line in list(server.complaints)[:5]:
            ledger.violated(f"the server's log: {line.rstrip()[-400:]}")
    return ledger


def _linked(data: Path) -> list[tuple[str, int]]:
    """Return id and pid of each replica of the place that has a model."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"runtime_image" in words and os.fsencode(data / "far") in words[-2]:
                id = Path(os.fsdecode(words[-2])).name
                if any((data / "far" / "models" / id).iterdir()):
                    found.append((id, int(entry.name)))
    return found


def _target(server: Path, folder: Path, data: Path, id: str) -> Path:
    """Write the target of a replica's listener, and the identities; return its path."""
    kept = (server / "link" / AUTHORITY_FILE).read_bytes()
    genuine = Identity.load(kept, kept)
    for name, identity in hostile(genuine, id, OTHER, 10**6).items():
        identity.write(folder, name)
    (folder / "authority.pem").write_text(genuine.pem)
    (record,) = [*data.rglob(f"{id}/replica.json")]
    listens = TlsAddress.parse(json.loads(record.read_text())["data"])
    target = {
        "host": listens.host,
        "port": listens.port,
        "server_name": replica_name(id),
        "folder": str(folder),
    }
    (folder / "target.json").write_text(json.dumps(target))
    return folder / "target.json"


async def _play(scene: Scene, good: GoodReplica | None, at: Path, other: Path) -> tuple[float, int]:
    """Play all phases; return memory in MiB and descriptors before."""
    dose = scene.dose
    await scene.turn("quiet", good, None, -1)  # warms up
    scene.phases["quiet"] = Phase()
    begun_mib, begun = rss_mib(scene.pid), descriptors(scene.pid)
    scene.most_mib, scene.most_descriptors = begun_mib, begun
    for turn in range(dose.turns):
        await scene.turn("quiet", good, None, turn)
        await scene.turn("elsewhere", good, other, turn)
        await scene.turn("attack", good, at, turn)
        if dose.judged:
            await scene.turn("judged", good, at, turn)

    async def is_as_before() -> bool:
        if good is not None:
            os.kill(scene.pid, signal.SIGUSR1)  # it collects garbage and trims its heap
        return descriptors(scene.pid) <= begun + 4 and rss_mib(scene.pid) <= begun_mib + LATER_MIB

    await until(is_as_before, SETTLE_S, 0.5)
    return begun_mib, begun


def _judge(
    scene: Scene, before: tuple[float, int], kinds: Mapping[str, object] = AT_SERVER
) -> None:
    ledger, (begun_mib, begun) = scene.ledger, before
    after_mib, after = rss_mib(scene.pid), descriptors(scene.pid)
    totals: Counter[str] = Counter()
    for counts in scene.kinds.values():
        totals.update(counts)
    ledger.figures["outcomes"] = dict(totals)
    ledger.figures["kinds"] = {kind: dict(counts) for kind, counts in sorted(scene.kinds.items())}
    ledger.figures["crowd"] = dict(scene.crowd)
    ledger.figures["longest wait of a peer (s)"] = round(scene.longest_s, 2)
    ledger.figures["memory (MiB: before, most, after)"] = (begun_mib, scene.most_mib, after_mib)
    ledger.figures["descriptors (before, most, after)"] = (begun, scene.most_descriptors, after)
    for name, phase in scene.phases.items():
        ledger.figures[name] = _shown(phase)
    ledger.figures["ratios to quiet, by turn"] = _ratios(scene.phases)
    entered = totals[Outcome.ENTERED] + scene.crowd["entered"]
    ledger.require(not entered, f"{entered} entered: {scene.kinds}")
    ledger.require(set(scene.kinds) == set(kinds), "not all kinds of attacks were made")
    for name, phase in scene.phases.items():
        ledger.require(set(phase.statuses) <= {200}, f"{name}: calls got {phase.statuses}")
    growth = scene.most_mib - begun_mib
    ledger.require(growth <= RSS_GROWTH_MIB, f"memory grew by {growth} MiB")
    more = scene.most_descriptors - begun
    ledger.require(more <= DESCRIPTORS_MAX, f"{more} descriptors more")
    ledger.require(after <= begun + 4, f"{after - begun} descriptors are left")
    ledger.require(after_mib <= begun_mib + LATER_MIB, f"{after_mib - begun_mib} MiB are left")


def _judge_door(scene: Scene, good: GoodReplica) -> None:
    """What only the server's door must hold."""
    ledger, seen = scene.ledger, scene.seen()
    ledger.figures["refusals that the door counts"] = seen["refusals"]
    ledger.figures["admissions"] = seen["seen"]
    admitted = {key: n for key, n in seen["seen"].items() if key.startswith(("enrolled", "welc"))}
    ledger.require(admitted == {f"welcomed {GOOD}": 1}, f"the door let in {admitted}")
    ledger.require(not good.breaks, f"the good link broke: {good.breaks}")
    attack = scene.phases["attack"]
    share = len(attack.fetches) / max(1, len(attack.fetches) + attack.refused)
    ledger.require(share >= FETCHED_MIN, f"{share:.2f} of FETCHes: {good.refused[:3]}")


def _shown(phase: Phase) -> dict[str, Any]:
    return {
        "seconds": round(phase.seconds, 1),
        "calls": len(phase.calls),
        "call ms p50, p99, max": milliseconds(phase.calls),
        "ping ms p50, p99, max": milliseconds(phase.pings),
        "fetch of 8 MiB ms p50, p99, max": milliseconds(phase.fetches),
        "fetches, refused": (len(phase.fetches), phase.refused),
        "CPU share of the server": round(phase.cpu_s / max(phase.seconds, 1e-9), 3),
    }


def _ratios(phases: dict[str, Phase]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    quiet = phases["quiet"].medians
    for name in PHASES[1:]:
        for what, values in phases[name].medians.items():
            ratios = [a / b for a, b in zip(values, quiet[what], strict=True) if b]
            if ratios:
                found[f"{name}: {what}"] = (
                    f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                )
    return found


def percentile(times: Sequence[float], share: float) -> float:
    """Return a percentile, 0 of nothing."""
    return sorted(times)[int((len(times) - 1) * share)] if times else 0.0


def milliseconds(times: Sequence[float]) -> tuple[float, float, float]:
    """Return median, 99th percentile and maximum."""
    return (
        round(percentile(times, 0.5) * 1e3, 2),
        round(percentile(times, 0.99) * 1e3, 2),
        round(max(times, default=0.0) * 1e3, 2),
    )


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))
