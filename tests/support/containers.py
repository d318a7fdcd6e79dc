"""Direct view of the containers that a Docker driver made, bypassing the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import docker
import requests

from pool_manager.drivers.docker import spec
from pool_manager.drivers.docker.containers import holder_number, owned, part, replica_id
from pool_manager.drivers.docker.engine import ENGINE_ERRORS, translate
from pool_manager.settings import PoolSettings
from registry.tasks import Tasks
from tests.support.engine import remove_container

UNTIL_S = 90.0
NOT_FOUND = 404


class Containers:
    """Containers on the engine at `url` that belong to the server with these `settings`."""

    def __init__(self, url: str, settings: PoolSettings) -> None:
        self.api = docker.APIClient(base_url=url, version="1.41", timeout=UNTIL_S)
        self.owner = spec.Owner(spec.owner_name(settings.run_dir.parent))

    def replicas(self) -> dict[str, str]:
        """Return the container of each replica, in any state."""
        listed = owned(self.api, self.owner.name)
        return {replica_id(one): one["Id"] for one in listed if replica_id(one)}

    def holders(self) -> set[str]:
        """Return the containers that hold a network."""
        return {one["Id"] for one in owned(self.api, self.owner.name) if holder_number(one)}

    def parts(self) -> dict[tuple[str, str], str]:
        """Return the containers by replica and part, in any state."""
        listed = owned(self.api, self.owner.name)
        return {(replica_id(one), part(one)): one["Id"] for one in listed if replica_id(one)}

    def part(self, replica: str, name: str) -> dict[str, Any]:
        """Return `docker inspect` of one of the two containers of a replica."""
        shown: dict[str, Any] = self.api.inspect_container(self.parts()[replica, name])
        return shown

    def inspect(self, replica: str) -> dict[str, Any]:
        """Return `docker inspect` of a replica's container."""
        shown: dict[str, Any] = self.api.inspect_container(self.replicas()[replica])
        return shown

    def memory_mib(self, replica: str) -> int:
        """Return the memory limit of a replica's container."""
        return int(self.inspect(replica)["HostConfig"]["Memory"]) // spec.MIB

    def leave(self, image: str, labels: dict[str, str], **settings: Any) -> str:
        """Create (not start) a container as an earlier server may have left it; return its id."""
        config = {
            "Image": image,
            "Entrypoint": ["sleep"],
            "Cmd": ["600"],
            "Labels": {spec.OWNER: self.owner.name, **labels},
            "HostConfig": {"NetworkMode": "none"},
            **settings,
        }
        made: str = self.api.create_container_from_config(config)["Id"]
        return made

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll the engine until `condition` holds."""
        async with asyncio.timeout(UNTIL_S):
            while not await asyncio.to_thread(condition):
                pass

    def wipe(self) -> None:
        """Remove all containers of this server."""
        for one in owned(self.api, self.owner.name):
            remove_container(self.api, one["Id"])

    def close(self) -> None:
        """Close the client."""
        self.api.close()


def refusal(code: int, said: str) -> docker.errors.APIError:
    """Return docker-py's exception for an engine answer with this status."""
    response = requests.Response()
    response.status_code = code
    kind = docker.errors.NotFound if code == NOT_FOUND else docker.errors.APIError
    return kind(said, response, said)


class Recorder:
    """Fake docker-py client for tests of the call order.

    `errors`: for each call, the exceptions to raise in turn; None raises nothing. `done`: calls
    made, `left`: existing containers, `modes`: requested network modes.
    """

    def __init__(self, **errors: list[Exception | None]) -> None:
        self._errors = errors
        self.done: list[str] = []
        self.left: set[str] = set()
        self.modes: list[str] = []
        self.configs: list[dict[str, Any]] = []
        self.listed: list[dict[str, Any]] = []
        self._made = 0
        self.api: Any = self

    def _do(self, call: str, subject: str) -> None:
        self.done.append(f"{call} {subject}")
        errors = self._errors.get(call, [])
        if errors and (error := errors.pop(0)) is not None:
            raise error

    def create_container_from_config(
        self, config: dict[str, Any], name: str = ""
    ) -> dict[str, str]:
        self.configs.append(config)
        self.modes.append(config["HostConfig"].get("NetworkMode", ""))
        self._do("create", name)
        self._made += 1
        self.left.add(f"c{self._made}")
        return {"Id": f"c{self._made}"}

    def start(self, container: str) -> None:
        self._do("start", container)

    def remove_container(self, container: str, *, force: bool, v: bool) -> None:
        self._do("remove", container)
        self.left.discard(container)

    def inspect_container(self, container: str) -> dict[str, Any]:
        self._do("inspect", container)
        return {"State": {"Running": True}}

    def update_container(self, container: str, **limits: Any) -> None:
        self._do("limit", container)

    def rename(self, container: str, name: str) -> None:
        self._do("rename", container)

    def logs(self, container: str, **query: Any) -> bytes:
        self._do("logs", container)
        raise refusal(NOT_FOUND, "No such container")

    def kill(self, container: str, signal: str) -> None:
        self._do("kill", container)

    def containers(self, **query: Any) -> list[dict[str, Any]]:
        self._do("list", "all")
        return self.listed


class ImageRecorder(Recorder):
    """Recorder with one image.

    `config`: the image's Config; `files`: archives of its files; `ended`: exit codes of containers
    that have ended; `kept`: Config of containers; `output`: the output of each.
    """

    def __init__(self, config: dict[str, Any] | None = None, **errors: Any) -> None:
        super().__init__(**errors)
        self.config = config or {}
        self.files: dict[str, bytes] = {}
        self.ended: dict[str, int] = {}
        self.kept: dict[str, dict[str, Any]] = {}
        self.output = b""
        self.api_version = "1.41"
        self.architecture = ""

    def inspect_image(self, image: str) -> dict[str, Any]:
        self._do("image", image)
        return {"Config": self.config, "Architecture": self.architecture}

    def inspect_network(self, name: str) -> dict[str, Any]:
        self._do("network", name)
        return {"Name": name}

    def get_archive(self, container: str, path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        self._do("read", path)
        if path not in self.files:
            raise refusal(NOT_FOUND, "no such file")
        return (part for part in [self.files[path]]), {}

    def inspect_container(self, container: str) -> dict[str, Any]:
        super().inspect_container(container)
        state = {"Running": container not in self.ended, "ExitCode": self.ended.get(container, 0)}
        return {"State": state, "Config": self.kept.get(container, {})}

    def logs(self, container: str, **query: Any) -> bytes:
        self._do("logs", container)
        return self.output

    def kill(self, container: str, signal: str) -> None:
        self._do("kill", f"{container} {signal}")


class RecordedEngine:
    """Fake of the driver's `Engine`: runs calls in the loop's thread, after a gate opens."""

    def __init__(self, client: Recorder) -> None:
        self.client = client
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: asyncio.Queue[str] = asyncio.Queue(1000)

    async def call(self, doing: str, work: Callable[[Any], Any]) -> Any:
        """Run `work` once the gate is open. Errors are translated as by the real engine."""
        self.asked.put_nowait(doing)
        try:
            answer = work(self.client)
        except ENGINE_ERRORS as error:
            raise translate(error, doing) from error
        await self.gate.wait()
        return answer

    start = call

    def close(self) -> None:
        """Nothing to release."""


async def settled(tasks: Tasks) -> None:
    """Wait until all these tasks are gone."""
    async with asyncio.timeout(UNTIL_S):
        while len(tasks):
            await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
