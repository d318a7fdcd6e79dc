"""Operations on single containers, also with a real engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest

from pool_manager.drivers.docker import containers
from pool_manager.drivers.docker.containers import ContainerExit
from pool_manager.drivers.docker.spec import HOLDER, OWNER, REPLICA
from pool_manager.replicas.logs import fresh
from registry.errors import DriverError
from tests.support.containers import Recorder, refusal
from tests.support.engine import remove_container

Run = Callable[..., str]

NAME = f"test-containers-{uuid.uuid4().hex[:8]}"
"""Of this process: others may use the engine just now."""
ECHO = ["-u", "-c", "print('one'); print('two'); raise SystemExit(3)"]
WAIT = ["-c", "import signal; signal.pause()"]


@pytest.fixture
def api(engine: str) -> Iterator[docker.APIClient]:
    client = docker.APIClient(base_url=engine, version="1.41")
    yield client
    for one in containers.owned(client, NAME):
        remove_container(client, one["Id"])
    client.close()


@pytest.fixture
def run(api: docker.APIClient, runtime_image: str) -> Run:
    """Starts a container."""

    def start(command: list[str] = WAIT, **labels: str) -> str:
        config: dict[str, Any] = {
            "Image": runtime_image,
            "Entrypoint": ["python3"],
            "Cmd": command,
            "Labels": {OWNER: NAME, **labels},
            "HostConfig": {"NetworkMode": "none", "Init": True},
        }
        container: str = api.create_container_from_config(config)["Id"]
        api.start(container)
        return container

    return start


docker_test = [pytest.mark.docker, pytest.mark.slow]


class TestOfARealEngine:
    """Operations on containers of a real engine."""

    pytestmark = docker_test

    def test_what_is_listed(self, api: docker.APIClient, run: Run) -> None:
        """`owned` lists only the owner's containers, in any state; they are classified by their
        labels."""
        replica, holder = run(**{REPLICA: "aaaa0001"}), run(**{HOLDER: "77"})
        paused, ended = run(**{REPLICA: "aaaa0002"}), run(ECHO, **{REPLICA: "aaaa0003"})
        api.pause(paused)
        api.wait(ended)

        listed = containers.owned(api, NAME)

        assert {one["Id"] for one in listed} == {replica, holder, paused, ended}
        alive = {id: parts.main for id, parts in containers.alive(listed).items()}
        assert alive == {"aaaa0001": replica, "aaaa0002": paused}
        assert containers.holding(listed) == {"77": holder}
        assert containers.owned(api, "another") == []

    def test_ends(self, api: docker.APIClient, run: Run) -> None:
        """`exit_of` is None while it runs, has the code after its end, and no code once it is
        gone."""
        container, ended = run(), run(ECHO)
        api.wait(ended)
        running = containers.exit_of(api, container)
        containers.kill(api, container)
        api.wait(container)
        killed = containers.exit_of(api, container)
        containers.remove(api, container)

        assert running is None
        assert killed == ContainerExit(137, out_of_memory=False)
        assert containers.exit_of(api, ended) == ContainerExit(3, out_of_memory=False)
        assert containers.exit_of(api, container) == ContainerExit(None, out_of_memory=False)

    def test_what_is_done_to_what_has_ended(self, api: docker.APIClient, run: Run) -> None:
        """Operations on an ended or removed container have no effect, except that it cannot be
        limited."""
        container = run(ECHO)
        api.wait(container)

        for _ in range(2):
            containers.terminate(api, container)
            containers.kill(api, container)
            assert containers.pids(api, container) is None
            containers.remove(api, container)
        assert containers.output(api, container, 0) is None

    def test_term_is_passed_on(self, api: docker.APIClient, run: Run) -> None:
        """TERM is forwarded by the first process to the program."""
        container = run()

        containers.terminate(api, container)

        assert api.wait(container)["StatusCode"] == 143

    def test_output(self, api: docker.APIClient, run: Run) -> None:
        """`output` returns both streams with timestamps, also after the end."""
        container = run(ECHO)
        api.wait(container)

        lines = fresh(containers.output(api, container, 0) or b"", "")
        assert sorted(text for _, text in lines) == [b"one\n", b"two\n"]
        assert fresh(containers.output(api, container, 1) or b"", lines[-1][0]) == []

    def test_limits_and_name(self, api: docker.APIClient, run: Run) -> None:
        """Limits can be raised and lowered while a container runs, repeatedly."""
        container = run()
        for memory in (64 * 2**20, 3000 * 2**20, 100 * 2**20, 100 * 2**20):
            limits = {
                "CpuPeriod": 100_000,
                "CpuQuota": 50_000,
                "Memory": memory,
                "MemorySwap": memory,
            }
            containers.limit(api, container, limits, "test-containers-limited")
            shown = api.inspect_container(container)
            assert {key: shown["HostConfig"][key] for key in limits} == limits
            assert shown["Name"] == "/test-containers-limited"

    def test_processes(self, api: docker.APIClient, run: Run) -> None:
        """`pids` returns the host's pids."""
        container = run()
        shown = api.inspect_container(container)["State"]["Pid"]

        assert shown in (containers.pids(api, container) or ())

    def test_holders_are_removed(self, api: docker.APIClient, run: Run) -> None:
        """`remove_holders` removes holders only, no replicas."""
        replica = run(**{REPLICA: "aaaa0001"})
        run(**{HOLDER: "77"})

        containers.remove_holders(api, NAME)

        assert [one["Id"] for one in containers.owned(api, NAME)] == [replica]


def test_somebody_else_removes_it() -> None:
    """`remove` waits until a removal in progress by another client has ended."""
    client = Recorder(
        remove=[refusal(409, "removal of container c1 is already in progress")],
        inspect=[None, refusal(404, "No such container: c1")],
    )

    containers.remove(client.api, "c1")

    assert client.done == ["remove c1", "inspect c1", "inspect c1"]


def test_a_removal_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that does not end raises DriverError."""
    monkeypatch.setattr(containers, "GONE_S", 0.0)
    client = Recorder(remove=[refusal(409, "removal of container c1 is already in progress")])

    with pytest.raises(DriverError, match="container c1 was not removed"):
        containers.remove(client.api, "c1")


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: containers.remove(client, "c1"),
        lambda client: containers.kill(client, "c1"),
        lambda client: containers.exit_of(client, "c1"),
    ],
)
def test_other_errors_are_passed_on(ask: Callable[[Any], object]) -> None:
    """Errors other than "not found" and "conflict" are passed on."""
    broken = refusal(500, "device is busy")
    client = Recorder(remove=[broken], kill=[broken], inspect=[broken])

    with pytest.raises(docker.errors.APIError, match="device is busy"):
        ask(client.api)
