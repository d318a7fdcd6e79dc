"""The start and the end of the two containers of a server function's replica."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from pool_manager.drivers.docker import pairs
from pool_manager.drivers.docker.containers import Parts, Started
from pool_manager.drivers.docker.pairs import ImageUsers, PairEnd, PairStart, begin_pair
from pool_manager.drivers.docker.server_spec import Ids, Pair
from pool_manager.drivers.docker.spec import MountPaths, Owner, by_cdi, by_request
from pool_manager.ports import ServerContainer
from registry.errors import DriverError, EngineDown
from registry.model.servers import Mount
from tests.support.containers import ImageRecorder as Client
from tests.support.containers import RecordedEngine, refusal
from tests.support.scenes import a_record

NOWHERE = Path("/nowhere")
RECORD = replace(a_record(), engine="server")
NO_CDI = 'could not select device driver "cdi" with capabilities: []'
NOT_RUNNING = refusal(409, "cannot join network of a non running container: c1")


def packed(text: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return an archive with one file, as the engine sends it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        member = tarfile.TarInfo("passwd")
        member.size, member.type = len(text) * (kind == tarfile.REGTYPE), kind
        archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


def start(gpus: tuple[str, ...] = (), users: ImageUsers | None = None, **server: Any) -> PairStart:
    pair = Pair(
        RECORD,
        ServerContainer("sha256:1", **server),
        Owner("0123456789abcdef"),
        MountPaths(NOWHERE, NOWHERE, 10_000),
    )
    return PairStart(pair, "runtime:1", 9001, gpus, (by_cdi, by_request), users or ImageUsers())


def test_the_sidecar_starts_first() -> None:
    """The server then joins its network."""
    client = Client()

    assert begin_pair(client.api, start()) == Started("c2", None, "c1")
    assert client.done == [
        "image sha256:1",
        "create fngate-sidecar-aaaa0009-0123",
        "start c1",
        "create fngate-digits-1-aaaa0009-0123",
        "start c2",
    ]
    assert client.modes == ["none", "container:c1"]


def test_an_image_for_another_machine_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may emulate its processor; if the server ends, this may be the reason."""
    monkeypatch.setattr(pairs.platform, "machine", lambda: "x86_64")
    client = Client()
    client.architecture = "arm64"

    started = begin_pair(client.api, start())

    assert started.doubt == "the image is for arm64, this machine is amd64"


def test_the_gpu_is_the_servers() -> None:
    """In the first way that the engine knows; the sidecar has none."""
    client = Client(start=[None, refusal(500, NO_CDI)])

    assert begin_pair(client.api, start(("GPU-1",))) == Started("c3", by_request, "c1")
    assert ["DeviceRequests" in one["HostConfig"] for one in client.configs] == [False, True, True]
    assert client.left == {"c1", "c3"}


def test_a_server_that_cannot_start_takes_its_sidecar_along() -> None:
    """The engine's reason stays."""
    client = Client(start=[None, refusal(400, "exec: no such file: server")])

    with pytest.raises(DriverError, match="exec: no such file: server"):
        begin_pair(client.api, start())

    assert client.left == set()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            b"fngate replica: no record\n",
            "the sidecar exited with code 3: fngate replica: no record",
        ),
        (b"", "the sidecar exited with code 3"),
    ],
)
def test_a_sidecar_that_has_ended_is_the_reason(output: bytes, said: str) -> None:
    """Not that nobody can join its network."""
    client = Client(start=[None, NOT_RUNNING])
    client.ended["c1"], client.output = 3, output

    with pytest.raises(DriverError) as failed:
        begin_pair(client.api, start())

    assert failed.value.message == said
    assert client.left == set()


def test_a_sidecar_of_which_nothing_is_known() -> None:
    """The reason is the start's own."""
    client = Client(start=[None, NOT_RUNNING], inspect=[refusal(500, "busy")])

    with pytest.raises(DriverError, match="non running container"):
        begin_pair(client.api, start())


def test_a_missing_image_starts_nothing() -> None:
    """It is named, with the way out; other errors are the engine's."""
    client = Client(image=[refusal(404, "No such image"), refusal(500, "busy")])

    with pytest.raises(
        DriverError, match=r"^the image sha256:1 is no longer on the engine: deploy"
    ):
        begin_pair(client.api, start())
    with pytest.raises(Exception, match="busy"):
        begin_pair(client.api, start())
    assert client.left == set()


def test_an_engine_without_its_bridge() -> None:
    """It would start the container without a network; other errors are the engine's."""
    client = Client(network=[None, refusal(404, "no such network"), refusal(500, "busy")])

    begin_pair(client.api, start(network="egress"))
    with pytest.raises(DriverError, match="expected the engine's network bridge, got none"):
        begin_pair(client.api, start(network="egress"))
    with pytest.raises(Exception, match="busy"):
        begin_pair(client.api, start(network="egress"))

    assert client.modes == ["bridge", "container:c1"]


def test_file_systems_below_a_read_only_mount(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An older engine cannot make them read-only, so the start is refused."""
    info = tmp_path / "mountinfo"
    info.write_text("36 35 98:0 / /srv/models/big rw - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr(pairs, "MOUNTS", info)
    mounts = (Mount("models", "/srv/models", "/models"),)
    client = Client()

    with pytest.raises(DriverError, match=r"^/srv/models/big is a file system of its own"):
        begin_pair(client.api, start(mounts=mounts))
    client.api_version = "1.44"
    begin_pair(client.api, start(mounts=mounts))

    [mount] = client.configs[1]["HostConfig"]["Mounts"]
    assert mount["BindOptions"]["ReadOnlyForceRecursive"] is True


def test_the_images_user_owns_the_volumes() -> None:
    """Its name is looked up in the image's files, once, in a container that never runs."""
    client, users = Client({"User": "web", "Volumes": {"/data": {}}}), ImageUsers()
    client.files["/etc/passwd"] = packed("web:x:101:102::/:\n")

    begin_pair(client.api, start(users=users))
    begin_pair(client.api, start(users=users))

    looks = [one for one in client.configs if one["Labels"].get("fngate.part") == "user"]
    assert [one["Cmd"] for one in looks] == [["none"]]
    assert "start c1" not in client.done
    assert "c1" not in client.left
    assert [one["HostConfig"]["Tmpfs"] for one in looks] == [{"/data": ""}]
    folders = client.configs[-1]["HostConfig"]["Tmpfs"]
    assert "uid=101,gid=102" in folders["/data"]


def test_too_many_volumes_start_nothing() -> None:
    """Not even the container that shows the image's files."""
    client = Client({"User": "web", "Volumes": {f"/{number}": {} for number in range(1000)}})

    with pytest.raises(DriverError, match="the image has 1000 VOLUMEs"):
        begin_pair(client.api, start())

    assert client.configs == []


def test_an_image_without_folders_needs_no_user() -> None:
    """Nothing is looked up."""
    client = Client({"User": "web", "Volumes": None})

    begin_pair(client.api, start())

    assert len(client.configs) == 2


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("", "/function"), ("/", "/function"), ("/app", None), (None, "/function")],
)
def test_an_image_may_name_its_working_folder(folder: str | None, expected: str | None) -> None:
    """Builders write "/" for an image that names none."""
    client = Client({"WorkingDir": folder})

    begin_pair(client.api, start(has_files=True))

    assert client.configs[-1].get("WorkingDir") == expected


@pytest.mark.parametrize(
    "file", [b"no archive at all", packed("", tarfile.SYMTYPE), packed("other:x:1:1::/:\n"), None]
)
def test_an_image_that_does_not_say_its_user(file: bytes | None) -> None:
    """No file, a link, or no such row: its folders are everybody's."""
    client = Client({"User": "web", "Volumes": {"/data": {}}})
    if file is not None:
        client.files["/etc/passwd"] = file

    begin_pair(client.api, start())

    assert "mode=1777" in client.configs[-1]["HostConfig"]["Tmpfs"]["/data"]


def test_a_hostile_file_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file over the limit counts as none."""
    monkeypatch.setattr(pairs, "FILE_MAX", 600)
    client = Client()
    client.files["/etc/passwd"] = packed("web:x:101:102::/:\n" * 100)

    assert ImageUsers().find(client.api, "sha256:1", "web", {}) is None


def test_an_engine_that_cannot_show_a_file() -> None:
    """The error is passed on, and the container is removed."""
    client = Client(read=[refusal(500, "busy")])

    with pytest.raises(Exception, match="busy"):
        ImageUsers().find(client.api, "sha256:1", "web", {})
    assert client.left == set()


def test_few_users_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit they are looked up again."""
    monkeypatch.setattr(pairs, "IDS_MAX", 1)
    client, users = Client(), ImageUsers()
    client.files["/etc/passwd"] = packed("web:x:101:102::/:\n")

    found = [users.find(client.api, image, "web", {}) for image in ("a", "b", "b", "a")]

    assert found == [Ids(101, 102)] * 4
    assert len(client.configs) == 3


class Ending:
    """A pair that is stopped. Time passes only in its waits; `plan`: container ends at a second."""

    def __init__(self, client: Client, plan: dict[str, float]) -> None:
        self.client, self.plan, self.now = client, plan, 0.0
        engine: Any = RecordedEngine(client)
        self.end = PairEnd(engine, sleep=self._sleep, clock=lambda: self.now)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        for container, at_s in self.plan.items():
            if self.now >= at_s:
                self.client.ended[container] = 0

    @property
    def signals(self) -> list[str]:
        """Signals sent."""
        return [one for one in self.client.done if one.startswith("kill")]


PAIR = Parts("server", "sidecar", is_pair=True)


async def test_the_sidecar_shuts_what_is_open_before_the_server_stops() -> None:
    """Each is waited for; the server's signal and grace are its container's."""
    client = Client()
    client.kept["server"] = {"StopSignal": "SIGQUIT", "StopTimeout": 3}
    ending = Ending(client, {"sidecar": 0.5, "server": 2.0})

    await ending.end.stop(PAIR)

    assert ending.signals == ["kill sidecar SIGTERM", "kill server SIGQUIT"]
    assert 2.0 <= ending.now < 2.6


@pytest.mark.parametrize("said", ["Invalid signal: FOO", "Cannot kill container: bad signal"])
async def test_a_stop_signal_that_is_none_is_term(said: str) -> None:
    """An image may name any text as STOPSIGNAL; its replica is released all the same."""
    client = Client(kill=[None, refusal(400, said)])
    client.kept["server"] = {"StopSignal": "FOO", "StopTimeout": 3}
    ending = Ending(client, {"sidecar": 0.1, "server": 0.3})

    await ending.end.stop(PAIR)

    assert ending.signals == ["kill sidecar SIGTERM", "kill server FOO", "kill server SIGTERM"]


async def test_a_stop_signal_does_not_outlive_the_engine() -> None:
    """An engine that is away is no reason for another signal."""
    client = Client(kill=[None, requests.exceptions.ConnectionError("refused")])
    ending = Ending(client, {"sidecar": 0.1})

    with pytest.raises(EngineDown):
        await ending.end.stop(PAIR)

    assert ending.signals == ["kill sidecar SIGTERM", "kill server SIGTERM"]


async def test_nobody_is_waited_for_without_end() -> None:
    """Two seconds for the sidecar, its grace for the server."""
    client = Client()
    client.kept["server"] = {"StopTimeout": 3}
    ending = Ending(client, {})

    await ending.end.stop(PAIR)

    assert ending.now == pytest.approx(5.0)


async def test_a_grace_may_be_cut() -> None:
    """The start of a manager does not wait for minutes."""
    client = Client()
    client.kept["server"] = {"StopTimeout": 600}
    ending = Ending(client, {"sidecar": 0.1})

    await ending.end.stop(PAIR, 10.0)

    assert 10.0 < ending.now < 11.0


@pytest.mark.parametrize(
    ("parts", "ended", "signals"),
    [
        (PAIR, {"sidecar": 0}, ["kill server SIGTERM"]),
        (PAIR, {"server": 0}, ["kill sidecar SIGTERM"]),
        (PAIR, {"sidecar": 0, "server": 0}, []),
        (Parts("server", is_pair=True), {}, ["kill server SIGTERM"]),
        (Parts("", "sidecar", is_pair=True), {}, ["kill sidecar SIGTERM"]),
    ],
)
async def test_what_has_ended_gets_no_signal(
    parts: Parts, ended: dict[str, int], signals: list[str]
) -> None:
    """An earlier server may have left only one of the two."""
    client = Client()
    client.ended |= ended
    ending = Ending(client, {"sidecar": 0.1, "server": 0.3})

    await ending.end.stop(parts)

    assert ending.signals == signals


async def test_without_grace_a_server_gets_no_signal() -> None:
    """It is killed by its removal."""
    client = Client()
    client.kept["server"] = {"StopTimeout": 0}
    ending = Ending(client, {"sidecar": 0.1})

    await ending.end.stop(PAIR)

    assert ending.signals == ["kill sidecar SIGTERM"]


async def test_a_container_that_is_gone_is_no_error() -> None:
    """It was removed meanwhile; other errors are passed on."""
    gone, away = refusal(404, "No such container"), refusal(500, "busy")
    ending = Ending(Client(inspect=[gone, gone]), {})
    await ending.end.stop(PAIR)
    assert ending.signals == []

    with pytest.raises(DriverError, match="busy"):
        await Ending(Client(inspect=[away]), {}).end.stop(PAIR)
