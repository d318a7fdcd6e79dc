"""Tests of the main job over containers: the same answers as over processes, and the restrictions
of each container."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from functions.digits import train
from runtime_image.contract.link import VERSION
from tests.support.container_server import ContainerServer, container_server, until
from tests.support.engine import connected
from tests.support.process_server import FNCTL

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(120)]

DIGITS = Path(train.__file__).parent
SEVEN = ("digits", "-i", f"image=@{DIGITS / 'seven.png'}")
FILES = ["digits.onnx", "seven.png"]
MIB = 2**20
CAP_MIB = 300
OTHER_VERSION = """
FROM {image}
USER root
RUN link=$(python3 -c "import runtime_image.contract.link as it; print(it.__file__)"); \\
    sed -i "s/^VERSION: Final = .*/VERSION: Final = {other}/" "$link"; \\
    rm "$(dirname "$link")"/__pycache__/link.*
USER 10001:10001
"""


@pytest.fixture
def server(engine: str, runtime_image: str, tmp_path: Path) -> Iterator[ContainerServer]:
    """A server over containers with digits deployed and cold."""
    with container_server(tmp_path / "data", engine, runtime_image) as server:
        deployed = server.fnctl("deploy", str(DIGITS), "--memory", str(CAP_MIB))
        assert deployed.returncode == 0, deployed.stderr
        yield server


def ready_standbys(server: ContainerServer) -> list[dict[str, Any]]:
    """Return the containers of ready standbys."""
    return [one for one in server.containers("standby").values() if one["State"]["Running"]]


def serving(server: ContainerServer) -> dict[str, Any]:
    """Return the only container whose record is that of a serving replica."""
    [found] = [
        one for one in server.containers().values() if record(server, one)["role"] == "serve"
    ]
    return found


def record(server: ContainerServer, container: dict[str, Any]) -> dict[str, Any]:
    id = container["Config"]["Labels"]["fngate.replica"]
    [path] = server.data.rglob(f"{id}/replica.json")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


async def test_answers_are_onnx_runtimes_and_one_container_is_started(
    server: ContainerServer,
) -> None:
    """500 simultaneous calls of a cold function are all right, with a receipt, by one replica."""
    scans, _ = train.held_out()
    session = ort.InferenceSession(str(DIGITS / "digits.onnx"))
    expected = session.run(["label"], {"image": scans})[0]
    timings = []
    async with server.session() as http:

        async def call(index: int) -> int:
            body = {"inputs": {"image": [scans[index].tolist()]}}
            async with http.post("/fn/digits", json=body) as response:
                assert response.status == 200, await response.text()
                timings.append(response.headers["Server-Timing"])
                return int((await response.json())["outputs"]["label"][0])

        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call(index % 450)) for index in range(500)]
    got = np.array([each.result() for each in calls])

    assert (got == np.resize(expected, 500)).all()
    assert {re.findall(r'replica;desc="(\w+)"', timing)[0] for timing in timings} == {
        serving(server)["Config"]["Labels"]["fngate.replica"]
    }
    cold = [timing for timing in timings if timing.startswith("cold")]
    assert cold
    assert all(f"{phase};dur=" in cold[0] for phase in ("place", "bind", "load", "queue", "decode"))
    assert max(int(rows) for t in timings for rows in re.findall(r'desc="(\d+) rows"', t)) >= 32


def test_a_running_replica_is_shut_in(server: ContainerServer) -> None:
    """The container of a serving replica has every restriction, and its function's limits, which it
    did not have as a standby."""
    until(lambda: len(ready_standbys(server)) == 1, "no standby came")
    [standby] = ready_standbys(server)
    before = server.models(standby)
    server.fnctl_json("invoke", *SEVEN)
    until(
        lambda: serving(server)["HostConfig"]["Memory"] == CAP_MIB * MIB,
        "the limits of the function were not set",
    )
    # A standby gets its name in the background.
    until(lambda: bool(server.containers("digits-1-")), "the container was not renamed")
    [name] = server.containers("digits-1-")
    shown = serving(server)
    host, config = shown["HostConfig"], shown["Config"]

    assert before == []
    assert server.models(shown) == FILES
    assert name == shown["Name"].removeprefix("/")
    assert shown["Id"] == standby["Id"]
    assert [*shown["NetworkSettings"]["Networks"]] in (["none"], [])
    assert host["NetworkMode"] == "none" or host["NetworkMode"].startswith("container:")
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    uid = config["Labels"]["fngate.uid"]
    assert config["User"] == f"{uid}:{uid}" == standby["Config"]["User"]
    assert int(uid) >= 1879048192
    assert 0 < host["PidsLimit"] <= 256
    assert host["Memory"] == host["MemorySwap"] == CAP_MIB * MIB
    assert host["CpuQuota"] == record(server, shown)["threads"] * host["CpuPeriod"] > 0
    assert host["Tmpfs"] == {"/tmp": "size=100%,mode=1777,nosuid,nodev"}
    assert host["Init"]
    assert host["LogConfig"]["Type"] == "json-file"
    assert int(host["LogConfig"]["Config"]["max-size"]) <= MIB
    limits = {one["Name"]: one["Hard"] for one in host["Ulimits"]}
    assert limits == {"core": 0, "nofile": 4096, "sigpending": 1024, "msgqueue": 0}
    assert host["RestartPolicy"]["Name"] in ("", "no")
    mounts = {mount["Destination"]: mount for mount in shown["Mounts"]}
    assert {*mounts} == {"/model", "/run/fngate"}
    assert not any(mount["RW"] for mount in mounts.values())
    assert all(mount["Source"].startswith(str(server.data)) for mount in mounts.values())
    for wide in ("Privileged", "Devices", "DeviceRequests", "Binds", "VolumesFrom"):
        assert not host[wide], wide
    for namespace in ("PidMode", "IpcMode", "UTSMode", "UsernsMode"):
        assert host[namespace] in ("", "private"), namespace


def test_a_killed_server_finds_its_containers_again(server: ContainerServer) -> None:
    """After kill -9 of the idle server the next one adopts the container and answers warm as soon
    as it is ready."""
    server.fnctl_json("invoke", *SEVEN)
    before = serving(server)["Id"]
    server.kill()
    assert serving(server)["Id"] == before

    server.start()
    answer = server.fnctl_json("invoke", *SEVEN)

    assert answer["outputs"]["label"] == [7]
    assert not answer["receipt"]["cold"]
    assert serving(server)["Id"] == before


def test_idle_containers_go(server: ContainerServer) -> None:
    """After idle_s nothing is left of the function, and the next call is cold."""
    assert server.fnctl("scale", "digits", "--idle", "0.2").returncode == 0
    first = server.fnctl_json("invoke", *SEVEN)["receipt"]["replica"]

    def is_gone() -> bool:
        labels = [one["Config"]["Labels"] for one in server.containers().values()]
        return first not in [label["fngate.replica"] for label in labels]

    until(is_gone, "an idle replica's container is still there")
    second = server.fnctl_json("invoke", *SEVEN)

    assert second["receipt"]["cold"]
    assert second["receipt"]["replica"] != first


def test_a_stopped_server_leaves_nothing(server: ContainerServer) -> None:
    """After SIGINT the server exits with 0 and leaves neither containers nor sockets."""
    server.fnctl_json("invoke", *SEVEN)
    assert server.everything()

    assert server.stop() == 0
    assert server.everything() == []
    assert server.sockets() == []


def test_two_servers_do_not_touch_each_others(
    server: ContainerServer, engine: str, runtime_image: str, tmp_path: Path
) -> None:
    """Two servers on one engine, each killed and restarted while the other serves, keep their
    containers."""
    with container_server(tmp_path / "other", engine, runtime_image) as other:
        assert other.fnctl("deploy", str(DIGITS)).returncode == 0
        both = (server, other)
        for each in both:
            each.fnctl_json("invoke", *SEVEN)
        before = [serving(each)["Id"] for each in both]
        for killed, kept in itertools.permutations(both):
            killed.kill()
            assert kept.fnctl_json("invoke", *SEVEN)["outputs"]["label"] == [7]
            killed.start()
            assert not killed.fnctl_json("invoke", *SEVEN)["receipt"]["cold"]

        assert [serving(each)["Id"] for each in both] == before
        assert other.stop() == 0
        assert serving(server)["Id"] == before[0]


def test_a_function_is_heard_from_inside(server: ContainerServer, tmp_path: Path) -> None:
    """A handler's load error refuses the deploy, and its output is in the logs, as over
    processes."""
    broken = handler(tmp_path / "broken", "raise OSError('no weights')")
    refused = server.fnctl("deploy", str(broken), "--trust")
    talks = handler(tmp_path / "talks", "print('hello')")
    taken = server.fnctl("deploy", str(talks), "--trust")
    server.fnctl_json("invoke", "talks", "-d", '{"inputs": {"x": 1}}')

    lines = server.fnctl("logs", "talks").stdout.splitlines()
    assert (refused.returncode, taken.returncode) == (1, 0)
    assert (
        "handler.py load(ctx) raised OSError: no weights (handler.py:2 in load)" in refused.stderr
    )
    assert [line.partition(" | ")[2] for line in lines][-1:] == ["hello"]


def test_an_image_of_another_link_version_is_refused(
    engine: str, runtime_image: str, tmp_path: Path
) -> None:
    """An image with another link version in its label is refused before a start, with the command
    to rebuild it."""
    label = f"FROM {runtime_image}\nLABEL fngate.link={VERSION + 1}\n"
    with derived_image(engine, label) as image:
        refused = subprocess.run(
            [FNCTL, "serve", "--port", "0", "--driver", "docker", "--data", str(tmp_path / "data")],
            env={**os.environ, "FN_DOCKER_HOST": engine, "FN_IMAGE_CPU": image},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert refused.returncode == 1
    assert f"speaks link version {VERSION + 1}, this server speaks {VERSION}" in refused.stderr
    assert "fnctl image build cpu" in refused.stderr


def test_an_image_that_lies_about_its_version_says_so(
    server: ContainerServer, engine: str, runtime_image: str
) -> None:
    """If an image's label is wrong, its replicas refuse the record, and their message is the
    reason."""
    server.stop()
    dockerfile = OTHER_VERSION.format(image=runtime_image, other=VERSION + 1)
    with (
        derived_image(engine, dockerfile) as image,
        container_server(server.data, engine, image) as lying,
    ):
        answer = lying.fnctl("invoke", *SEVEN, "--wait", "3")
        why = lying.fnctl("why", "digits").stdout

    assert answer.returncode == 1
    assert f"this replica speaks link version {VERSION + 1}, its manager {VERSION}" in why


@contextmanager
def derived_image(engine: str, dockerfile: str) -> Iterator[str]:
    """Build an image from another one; yield its tag and remove it afterwards."""
    tag = f"fngate-test:{uuid.uuid4().hex}"
    with connected(engine) as client:
        client.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=tag, rm=True)
        try:
            yield tag
        finally:
            client.images.remove(tag, force=True)


def handler(made: Path, load: str) -> Path:
    """Create a function of one handler with this code at load."""
    made.mkdir()
    (made / "function.toml").write_text(
        'schema = 1\nname = "talks"\n[runtime]\nengine = "python"\n[input.x]\nkind = "json"\n'
    )
    (made / "handler.py").write_text(
        f"def load(ctx):\n    {load}\ndef predict(inputs, ctx):\n    return {{'ok': True}}\n"
    )
    return made
