"""The driver with events and lists in any order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from pool_manager.drivers.docker import containers as images
from pool_manager.drivers.docker.driver import DockerDriver, DockerSettings
from pool_manager.drivers.docker.engine import Times
from pool_manager.drivers.docker.spec import (
    HOLDER,
    MIB,
    OWNER,
    PART,
    REPLICA,
    SERVER,
    SIDECAR,
    UID,
    Owner,
)
from pool_manager.drivers.environment import STANDBY_CAP_MIB
from pool_manager.drivers.uids import DEFAULT, UidAllocator, parse_range
from pool_manager.ports import ServerContainer
from pool_manager.settings import PoolSettings
from registry.errors import DriverError, EngineDown
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord
from tests.support.containers import ImageRecorder, RecordedEngine, Recorder, refusal
from tests.support.scenes import a_record

RECORD = replace(a_record(), memory_mib=STANDBY_CAP_MIB["cpu"] + 1)
ID = RECORD.id
NOWHERE = Path("/nowhere")
LOST = requests.exceptions.ConnectionError("gone")


class Played:
    """A driver over a recorded engine; the test plays the engine's events."""

    def __init__(self, client: Recorder, folder: Path) -> None:
        settings = DockerSettings(
            url="",
            images={"cpu": "image:1"},
            owner=Owner.of(folder),
            pool=PoolSettings(folder, folder, folder, log_bytes=10_000),
            times=Times(limit_after_s=0.0, refill_after_s=1000.0),
        )
        self.client = client
        self.engine = RecordedEngine(client)
        engine: Any = self.engine
        self.driver = DockerDriver(settings, engine, {})
        # The engine's events are the test's own.
        self.driver._listener = Silent()  # type: ignore[assignment]
        self.exits: list[tuple[str, str]] = []
        self.driver.exits.subscribe(lambda id, end: self.exits.append((id, end.how)))
        self.tasks = Tasks("test")

    def begin_start(self, record: ReplicaRecord = RECORD) -> asyncio.Task[None]:
        """A start whose answer waits at the gate."""
        self.engine.gate.clear()
        return self.tasks.spawn("start", self.driver.start(record, NOWHERE, NOWHERE))

    async def asked(self, doing: str) -> None:
        """Wait until the engine has done that, whether its answer has come or not."""
        async with asyncio.timeout(60):
            while await self.engine.asked.get() != doing:
                pass

    def hear(self, container: str, code: int | None, replica: str = ID) -> None:
        """Play an exit or an out-of-memory event of the engine."""
        attributes = {REPLICA: replica, OWNER: "x"}
        if code is not None:
            attributes["exitCode"] = str(code)
        action = "oom" if code is None else "die"
        self.driver._on_event(
            {"Action": action, "Actor": {"ID": container, "Attributes": attributes}}
        )

    def shows(self, container: str, state: str = "running", **labels: str) -> None:
        """The engine's next lists show this container too."""
        self.client.listed.append({"Id": container, "State": state, "Labels": labels})


class Silent:
    """Stands for a listener that hears nothing."""

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
async def played(tmp_path: Path) -> AsyncIterator[Played]:
    made = Played(Recorder(), tmp_path)
    yield made
    made.engine.gate.set()
    await made.tasks.close()
    await made.driver.close()


@pytest.mark.usefixtures("forgotten_sockets")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_no_engine(tmp_path: Path, played: Played) -> None:
    """Without an engine the driver cannot be opened; the error says how to start one."""
    settings = replace(played.driver._settings, url=f"unix://{tmp_path}/none.sock")

    with pytest.raises(EngineDown, match="sudo systemctl start docker"):
        await DockerDriver.open(settings)


@pytest.mark.docker
@pytest.mark.slow
async def test_an_image_that_cannot_be_used(engine: str, tmp_path: Path, played: Played) -> None:
    """A missing image is reported with the command that builds it."""
    images = {"cpu": "fngate-nope:1"}
    settings = replace(played.driver._settings, url=engine, images=images)

    with pytest.raises(DriverError) as failed:
        await DockerDriver.open(settings)

    assert failed.value.message.startswith("cannot use image fngate-nope:1: the engine says: ")
    todo = "build it: fnctl image build cpu, or gpu"
    assert failed.value.message.endswith(f"o such image: fngate-nope:1; {todo}")


def test_the_model_folder_has_one_path(played: Played) -> None:
    """The model path is the mount point."""
    assert played.driver.model_path(NOWHERE) == "/model"


def users(played: Played) -> list[str]:
    """Return the users as which replicas' containers were to run."""
    return [one["User"] for one in played.client.configs if REPLICA in one["Labels"]]


async def test_every_replica_has_a_user_of_its_own(played: Played) -> None:
    """Each replica has its own user id and group of the data folder's slice, also as a label."""
    for id in ("aaaa0001", "aaaa0002", "aaaa0003"):
        await played.driver.start(replace(RECORD, id=id), NOWHERE, NOWHERE)

    numbers = [int(user.partition(":")[0]) for user in users(played)]
    assert users(played) == [f"{number}:{number}" for number in numbers]
    assert len({*numbers}) == 3
    assert {*numbers} <= {*played.driver._settings.uids}
    labels = [one["Labels"].get(UID) for one in played.client.configs if REPLICA in one["Labels"]]
    assert labels == [str(number) for number in numbers]


async def test_a_user_is_free_when_its_replica_is_released(tmp_path: Path) -> None:
    """A failed start keeps its user id until the release, since processes of it may run."""
    played = Played(Recorder(start=[refusal(500, "no")]), tmp_path)
    part = range(2**20, 2**20 + 2)
    played.driver._uids = UidAllocator(part)

    with pytest.raises(DriverError, match="cannot start"):
        await played.driver.start(RECORD, NOWHERE, NOWHERE)
    other = replace(RECORD, id="aaaa0002")
    with pytest.raises(DriverError, match="every user id for replicas is taken"):
        await played.driver.start(other, NOWHERE, NOWHERE)
    await played.driver.release(ID)
    await played.driver.start(other, NOWHERE, NOWHERE)

    assert users(played) == [f"{part[1]}:{part[1]}"] * 2
    await played.driver.close()


async def test_the_user_of_an_adopted_replica_is_taken(played: Played) -> None:
    """An adopted replica's user id is taken until its release; one of an earlier server may have
    none."""
    part = range(2**20, 2**20 + 3)
    played.driver._uids = UidAllocator(part)
    played.shows("c7", **{REPLICA: "aaaa0007", UID: str(part[1])})
    played.shows("c8", **{REPLICA: "aaaa0008"})
    played.shows("c9", **{REPLICA: "aaaa0009", UID: "many"})
    await played.driver.list()

    await played.driver.start(replace(RECORD, id="aaaa0001"), NOWHERE, NOWHERE)
    await played.driver.release("aaaa0007")
    await played.driver.start(replace(RECORD, id="aaaa0002"), NOWHERE, NOWHERE)

    assert users(played) == [f"{part[2]}:{part[2]}", f"{part[1]}:{part[1]}"]


def test_user_ids_that_do_not_exist_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """User ids that do not exist are refused before any container; the reason names a range that
    fits."""
    uid_map = tmp_path / "uid_map"
    uid_map.write_text("0 100000 65536\n")
    monkeypatch.setattr(images, "UID_MAP", uid_map)

    with pytest.raises(DriverError, match="set FN_REPLICA_UIDS=32767:32767"):
        images.check_uids(parse_range(DEFAULT))


async def test_a_device_without_an_image(played: Played) -> None:
    """A device kind without an image is refused before any call to the engine."""
    with pytest.raises(DriverError, match="no runtime image for devices of kind cuda"):
        await played.driver.start(replace(RECORD, device_kind="cuda"), NOWHERE, NOWHERE)


async def test_an_end_before_the_start_has_returned(played: Played) -> None:
    """An exit before the start has returned is reported once, after it, including an earlier
    out-of-memory event."""
    start = played.begin_start()
    await played.asked("start a container")
    played.hear("c1", None)
    played.hear("c1", 137)
    assert played.exits == []
    played.engine.gate.set()
    await start
    played.hear("c1", 137)

    assert played.exits == [(ID, "ran out of memory and was killed by SIGKILL")]


async def test_the_end_of_an_earlier_try(played: Played) -> None:
    """Events of a container that a start tried and gave up are not those of the replica."""
    start = played.begin_start()
    await played.asked("start a container")
    played.hear("c0", 128)
    played.engine.gate.set()
    await start
    played.hear("c0", 128)

    assert played.exits == []
    assert not played.driver._containers[ID].is_reported


async def test_limits_wait_for_the_start(played: Played) -> None:
    """`limit` waits until the start has returned: a replica may connect earlier."""
    start = played.begin_start()
    await played.asked("start a container")
    limit = played.tasks.spawn("limit", played.driver.limit(RECORD))
    played.engine.gate.set()
    await start
    await limit

    assert "limit c1" in played.client.done


async def test_limits_of_a_start_that_failed(tmp_path: Path) -> None:
    """`limit` of a failed start raises DriverError."""
    played = Played(Recorder(start=[refusal(500, "no")]), tmp_path)
    # The failure waits as an answer would.
    played.client.remove_container = lambda *_, **__: None  # type: ignore[method-assign]
    start = played.begin_start()
    limit = played.tasks.spawn("limit", played.driver.limit(RECORD))

    with pytest.raises(DriverError, match="cannot start a container"):
        await start
    with pytest.raises(DriverError, match=f"cannot limit {ID}: it does not run"):
        await limit
    played.engine.gate.set()
    await played.driver.close()


async def test_a_release_waits_for_the_start(played: Played) -> None:
    """A release waits for the start, which would otherwise leave a container behind."""
    start = played.begin_start()
    await played.asked("start a container")
    release = played.tasks.spawn("release", played.driver.release(ID))
    played.engine.gate.set()
    await start
    await release

    assert played.client.left == set()
    assert played.exits == [(ID, "exited")]


async def test_a_release_while_the_engine_is_away(tmp_path: Path) -> None:
    """A release while the engine is away raises, and a second one removes the container."""
    played = Played(Recorder(remove=[LOST]), tmp_path)
    await played.driver.start(RECORD, NOWHERE, NOWHERE)

    with pytest.raises(EngineDown):
        await played.driver.release(ID)
    await played.driver.release(ID)

    assert played.client.left == set()
    await played.driver.close()


async def test_who_is_released_during_a_list_is_not_adopted(played: Played) -> None:
    """A replica released while a list is read is not adopted from it."""
    await played.driver.start(RECORD, NOWHERE, NOWHERE)
    played.shows("c1", **{REPLICA: ID})
    played.engine.gate.clear()
    listing = played.tasks.spawn("list", played.driver.list())
    await played.asked("list containers")
    release = played.tasks.spawn("release", played.driver.release(ID))
    await played.asked("remove a container")
    played.client.listed.clear()
    played.engine.gate.set()
    await release

    assert await listing == set()
    assert await played.driver.list() == set()
    assert played.exits == [(ID, "exited")]


async def test_who_ends_before_it_is_adopted_is_not(played: Played) -> None:
    """A replica that exits between the list and its adoption is not adopted."""
    played.shows("c7", **{REPLICA: "aaaa0007"})
    played.engine.gate.clear()
    listing = played.tasks.spawn("list", played.driver.list())
    await played.asked("list containers")
    played.hear("c7", 0, "aaaa0007")
    played.engine.gate.set()

    assert await listing == set()


async def test_who_runs_is_adopted(played: Played) -> None:
    """Running and paused containers are adopted; their exits are reported once."""
    played.shows("c7", **{REPLICA: "aaaa0007"})
    played.shows("c8", "paused", **{REPLICA: "aaaa0008"})

    assert await played.driver.list() == {"aaaa0007", "aaaa0008"}
    played.hear("c7", 3, "aaaa0007")
    played.hear("c7", 3, "aaaa0007")

    assert played.exits == [("aaaa0007", "exited with code 3")]
    assert await played.driver.list() == {"aaaa0008"}


async def test_leftovers_are_removed(played: Played) -> None:
    """Stopped containers and networks of an earlier server are removed; containers being started
    are not."""
    start = played.begin_start()
    await played.asked("start a container")
    played.shows("c1", "created", **{REPLICA: ID})
    played.shows("c7", "exited", **{REPLICA: "aaaa0007"})
    played.shows("c8", "running", **{HOLDER: "77"})
    played.shows("c9", "created", **{HOLDER: "78"})
    played.engine.gate.set()
    running = await played.driver.list()
    await start

    assert running == set()
    removed = [one for one in played.client.done if one.startswith("remove")]
    assert removed == ["remove c7", "remove c8", "remove c9"]


async def test_a_leftover_that_cannot_be_removed(tmp_path: Path) -> None:
    """A leftover that cannot be removed does not prevent a start; an engine that is away does."""
    played = Played(Recorder(remove=[refusal(500, "device is busy"), LOST]), tmp_path)
    played.shows("c7", "dead", **{REPLICA: "aaaa0007"})

    assert await played.driver.list() == set()
    with pytest.raises(EngineDown):
        await played.driver.list()
    played.client.listed.clear()
    await played.driver.close()


async def test_who_is_missing_from_the_list_has_ended(tmp_path: Path) -> None:
    """A replica missing from the list is inspected for its exit, which is reported once."""
    played = Played(Recorder(inspect=[refusal(404, "No such container: c1")]), tmp_path)
    await played.driver.start(RECORD, NOWHERE, NOWHERE)

    assert await played.driver.list() == set()
    assert await played.driver.list() == set()
    assert played.exits == [(ID, "exited")]
    assert played.client.done.count("inspect c1") == 1
    await played.driver.close()


async def test_a_log_is_not_overwritten_with_nothing(played: Played, tmp_path: Path) -> None:
    """The saved log of a container that is gone is kept."""
    log = tmp_path / "log"
    log.write_bytes(b"the last word\n")
    played.shows("c7", **{REPLICA: "aaaa0007"})
    await played.driver.list()

    await played.driver.save_log("aaaa0007", log)

    assert log.read_bytes() == b"the last word\n"


async def test_closing_twice(played: Played) -> None:
    """A second `close` has no effect, and later events are ignored."""
    await played.driver.close()
    await played.driver.close()
    played.driver._on_connected()


IMAGE = ServerContainer("sha256:1")
KILLED = "was killed by SIGKILL"


@pytest.fixture
async def paired(tmp_path: Path) -> AsyncIterator[Played]:
    """A driver with a server function's replica: c1 is its sidecar, c2 its server."""
    made = Played(ImageRecorder(), tmp_path)
    await made.driver.start(RECORD, NOWHERE, NOWHERE, IMAGE)
    yield made
    made.engine.gate.set()
    await made.tasks.close()
    await made.driver.close()


@pytest.mark.parametrize(
    ("container", "code", "said"),
    [
        ("c1", 0, "exited with code 0"),
        ("c1", 70, "lost its sidecar, which exited with code 70"),
        ("c2", 0, "lost its server, which exited with code 0 by itself (it must stay in the"),
        ("c2", 137, f"lost its server, which {KILLED}"),
    ],
)
async def test_the_first_end_of_a_pair_counts(
    paired: Played, container: str, code: int, said: str
) -> None:
    """The second one is not reported."""
    paired.hear(container, code)
    paired.hear("c1", 137)
    paired.hear("c2", 137)

    [(id, how)] = paired.exits
    assert (id, how[: len(said)]) == (ID, said)


@pytest.mark.parametrize(
    ("container", "said"),
    [
        ("c2", f"ran out of memory and {KILLED}"),
        ("c1", f"lost its sidecar, which ran out of memory and {KILLED}"),
    ],
)
async def test_whose_memory_was_short(paired: Played, container: str, said: str) -> None:
    """The function's cap is the server's; the sidecar's end is not put down to it."""
    paired.hear(container, None)
    paired.hear(container, 137)

    assert paired.exits == [(ID, said)]


async def test_one_of_a_pair_does_not_explain_the_other(paired: Played) -> None:
    """A sidecar that ran out of memory and lived on is no reason of the server's end."""
    paired.hear("c1", None)
    paired.hear("c2", 137)

    assert paired.exits == [(ID, f"lost its server, which {KILLED}")]


async def test_a_pair_is_released_in_order(paired: Played) -> None:
    """The server first, which would outlive its sidecar; its last words are saved in between."""
    client: Any = paired.client
    await paired.driver.save_log(ID, NOWHERE)
    client.done.clear()
    client.ended = {"c1": 0}
    kill = client.kill

    def end(container: str, signal: str) -> None:
        kill(container, signal)
        client.ended[container] = 0

    client.kill = end
    await paired.driver.release(ID)

    done = [one for one in client.done if not one.startswith("inspect")]
    assert done == ["kill c2 SIGTERM", "logs c2", "logs c1", "remove c2", "remove c1"]
    assert paired.exits == [(ID, "exited")]
    assert client.left == set()


async def test_a_pair_is_terminated_by_its_sidecar(paired: Played) -> None:
    """It shuts what is open; the server is stopped by the release."""
    await paired.driver.terminate(ID)

    assert paired.client.done[-1] == "kill c1 SIGTERM"


async def test_a_pair_has_the_processes_of_both(paired: Played) -> None:
    """The server's alone would do for memory, the sidecar's may be gone already."""
    there = {"c1": ["11"], "c2": ["21", "22"]}

    def top(container: str) -> dict[str, Any]:
        if container not in there:
            raise refusal(409, "is not running")
        return {"Titles": ["UID", "PID"], "Processes": [["x", pid] for pid in there[container]]}

    paired.client.top = top  # type: ignore[attr-defined]

    assert await paired.driver.processes.pids(ID) == {11, 21, 22}
    del there["c1"]
    assert await paired.driver.processes.pids(ID) == {21, 22}
    del there["c2"]
    assert await paired.driver.processes.pids(ID) is None


async def test_the_memory_of_a_pair_is_the_servers(paired: Played) -> None:
    """The sidecar has a cap of its own."""
    await paired.driver.limit(RECORD)

    assert "limit c2" in paired.client.done
    assert "limit c1" not in paired.client.done


async def test_a_pair_has_one_user_of_its_own(paired: Played) -> None:
    """The sidecar's; the server has the image's."""
    sidecar, server = paired.client.configs
    assert sidecar["Labels"][UID] == sidecar["User"].partition(":")[0]
    assert "User" not in server
    assert (server["Labels"][UID], server["Labels"][HOLDER]) == ("", "")


async def test_a_pair_counts_if_both_run(played: Played) -> None:
    """Both are adopted, with the sidecar's user; what is left of others is removed, servers
    first."""
    numbers = {UID: "2000000000"}
    played.shows("c7", **{REPLICA: "aaaa0007", PART: SIDECAR}, **numbers)
    played.shows("c8", "paused", **{REPLICA: "aaaa0007", PART: SERVER})
    for container, id, part, state in (
        ("d1", "bbbb0001", SIDECAR, "running"),
        ("d2", "bbbb0001", SERVER, "exited"),
        ("e1", "bbbb0002", SIDECAR, "running"),
        ("f2", "bbbb0003", SERVER, "running"),
        ("g1", "aaaa0004", "user", "created"),
    ):
        played.shows(container, state, **{REPLICA: id, PART: part})

    assert await played.driver.list() == {"aaaa0007"}

    removed = [one for one in played.client.done if one.startswith("remove")]
    assert removed == ["remove d2", "remove f2", "remove g1", "remove d1", "remove e1"]
    assert played.driver._uids._held == {"aaaa0007": 2_000_000_000}
    played.hear("c8", 3, "aaaa0007")
    assert played.exits == [("aaaa0007", "lost its server, which exited with code 3")]


async def test_a_pair_that_is_starting_is_no_leftover(tmp_path: Path) -> None:
    """Its sidecar runs before its server does."""
    played = Played(ImageRecorder(), tmp_path)
    played.engine.gate.clear()
    start = played.tasks.spawn("start", played.driver.start(RECORD, NOWHERE, NOWHERE, IMAGE))
    await played.asked("start a container")
    played.shows("c1", **{REPLICA: ID, PART: SIDECAR})
    played.engine.gate.set()

    assert await played.driver.list() == set()
    await start

    assert not [one for one in played.client.done if one.startswith("remove")]
    await played.driver.close()


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ({"c1": 137}, f"lost its sidecar, which {KILLED}"),
        ({"c2": 137}, f"lost its server, which {KILLED}"),
        ({"c1": 0, "c2": 3}, "lost its server, which exited with code 3"),
    ],
)
async def test_the_end_of_a_pair_that_was_missed(
    paired: Played, ended: dict[str, int], said: str
) -> None:
    """Both containers are looked at; the server's end explains more."""
    client: Any = paired.client
    client.ended = ended
    for container, part in (("c1", SIDECAR), ("c2", SERVER)):
        state = "exited" if container in ended else "running"
        paired.shows(container, state, **{REPLICA: ID, PART: part})

    assert await paired.driver.list() == set()
    assert await paired.driver.list() == set()
    assert paired.exits == [(ID, said)]


async def test_a_pair_whose_memory_ran_out_unseen(paired: Played) -> None:
    """The engine keeps that it did."""
    client: Any = paired.client

    def inspect(container: str) -> dict[str, Any]:
        is_over = container == "c2"
        return {"State": {"Running": not is_over, "ExitCode": 137, "OOMKilled": is_over}}

    client.inspect_container = inspect
    paired.shows("c1", **{REPLICA: ID, PART: SIDECAR})

    await paired.driver.list()

    assert paired.exits == [(ID, f"ran out of memory and {KILLED}")]


async def test_a_pair_of_an_earlier_server_is_released(played: Played) -> None:
    """It is found by its labels."""
    client = played.client = ImageRecorder()
    played.engine.client = client
    client.ended = {"c7": 0, "c8": 0}
    played.shows("c7", **{REPLICA: "aaaa0007", PART: SIDECAR})
    played.shows("c8", **{REPLICA: "aaaa0007", PART: SERVER})

    await played.driver.release("aaaa0007")

    removed = [one for one in client.done if one.startswith("remove")]
    assert removed == ["remove c8", "remove c7"]


@pytest.mark.parametrize(
    ("stats", "mib"),
    [
        ({"usage": 30 * 2**20, "stats": {"total_inactive_file": 10 * 2**20}}, 20.0),
        ({"usage": 30 * 2**20, "stats": {"inactive_file": 5 * 2**20}}, 25.0),
        ({"usage": 2**20}, 1.0),
        ({"usage": 1, "stats": {"inactive_file": 2**20}}, 0.0),
        ({}, None),
        (None, None),
    ],
)
async def test_the_engine_measures_a_server(
    paired: Played, stats: dict[str, Any] | None, mib: float | None
) -> None:
    """Without files that were not used lately; cgroup v1 and v2 name these differently."""
    paired.client.stats = lambda *_, **__: {"memory_stats": stats}  # type: ignore[attr-defined]

    assert await paired.driver.processes.used_mib(ID) == mib


async def test_a_server_is_measured_once_its_start_has_returned(tmp_path: Path) -> None:
    """A fast server is ready before the engine's answer to its start has been read."""
    played = Played(ImageRecorder(), tmp_path)
    played.client.stats = lambda *_, **__: {"memory_stats": {"usage": MIB}}  # type: ignore[attr-defined]
    played.engine.gate.clear()
    start = played.tasks.spawn("start", played.driver.start(RECORD, NOWHERE, NOWHERE, IMAGE))
    await played.asked("start a container")
    measured = played.tasks.spawn("measure", played.driver.processes.used_mib(ID))
    await asyncio.sleep(0)  # it is asked for before the start returns

    played.engine.gate.set()

    assert await measured == 1.0
    await start
    await played.driver.close()


async def test_what_cannot_be_measured(paired: Played, played: Played) -> None:
    """A container that is gone, and a model, which measures itself; other errors are passed on."""
    answers = [refusal(404, "gone"), refusal(500, "busy")]

    def stats(*_: object, **__: object) -> None:
        raise answers.pop(0)

    paired.client.stats = stats  # type: ignore[attr-defined]
    await played.driver.start(RECORD, NOWHERE, NOWHERE)

    assert await paired.driver.processes.used_mib(ID) is None
    with pytest.raises(DriverError, match="busy"):
        await paired.driver.processes.used_mib(ID)
    assert await played.driver.processes.used_mib(ID) is None
