"""The life of one Pod on its node."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.support.kubernetes import statuses
from tests.support.kubernetes.conditions import condition, set_condition, status_of
from tests.support.kubernetes.containers import ContainerRefused, plan_of, user_of
from tests.support.kubernetes.memory import MemoryGroup
from tests.support.kubernetes.pace import elapse
from tests.support.kubernetes.quantities import number, requested
from tests.support.kubernetes.runtime import Container, Image, Sandbox
from tests.support.kubernetes.statuses import Known, Stage
from tests.support.kubernetes.store import NODES, PODS, Json
from tests.support.kubernetes.volumes import MountFailed

if TYPE_CHECKING:
    from tests.support.kubernetes.kubelet import Kubelet

GPU = "nvidia.com/gpu"


class PodGone(Exception):
    """The API has the Pod no more: it was deleted without grace, or is another one."""


class PodDeleted(Exception):
    """The Pod is to end."""


class PodWorker:
    """Starts a Pod, watches it, and ends it. `wake` says that something may have changed."""

    def __init__(self, kubelet: Kubelet, pod: Json) -> None:
        self.wake = asyncio.Event()
        self.known = Known()
        self._kubelet, self._pod = kubelet, pod
        self._uid: str = pod["metadata"]["uid"]
        self._pace = kubelet.pace
        self._eviction = ""

    @property
    def _sandbox(self) -> Sandbox | None:
        return self._kubelet.runtime.sandboxes.get(self._uid)

    @property
    def _containers(self) -> dict[str, Container]:
        sandbox = self._sandbox
        return sandbox.containers if sandbox is not None else {}

    def evict(self, why: str) -> None:
        """End the Pod for want of a resource of the node."""
        self._eviction = why
        self.wake.set()

    async def run(self) -> None:
        """Do everything; ends when the Pod has, or its kubelet."""
        try:
            if not await self._admit():
                return
            try:
                await self._start()
                await self._follow()
            except PodDeleted:
                await self._stop(int(self._pod["metadata"]["deletionGracePeriodSeconds"]))
            await self._finish()
        except PodGone:
            self.known.stage = Stage.FINAL
            await self._end_containers(int(self._pod["spec"]["terminationGracePeriodSeconds"]))
            await self._kubelet.runtime.remove(self._uid)

    # The Pod, as the API has it

    def _look(self) -> None:
        """Read the Pod again, if the API server is reached. Raises PodGone."""
        if not self._kubelet.online.is_set():
            return
        metadata = self._pod["metadata"]
        found = self._kubelet.store.get(PODS, metadata["name"], metadata["namespace"])
        if found is None or found["metadata"]["uid"] != self._uid:
            raise PodGone
        self._pod = found

    def _check(self) -> None:
        """Raise PodDeleted or PodGone if the Pod is to end."""
        self._look()
        if self._pod["metadata"].get("deletionTimestamp"):
            raise PodDeleted

    async def _write(self) -> None:
        """Write the status of now, when the API server is reached."""
        await self._kubelet.online.wait()
        self._look()
        kubelet = self._kubelet
        made = statuses.status(
            self._pod, self._containers, self.known, kubelet.address, kubelet.store.now()
        )
        for key in ("reason", "message"):
            if key in self._pod["status"]:
                made[key] = self._pod["status"][key]
        self._pod = kubelet.store.change(PODS, self._pod, lambda one: one.update(status=made))

    async def _pause(self, wait_s: float) -> None:
        """Wait; raise PodDeleted or PodGone as soon as the Pod is to end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while (left_s := until - loop.time()) > 0:
            self._check()
            self.wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), left_s)
        self._check()

    # The start

    async def _admit(self) -> bool:
        """Take the Pod's devices; refuse a Pod that the node has none for."""
        await self._kubelet.online.wait()
        self._look()
        if self._sandbox is not None:
            return True
        if why := self._kubelet.why_not_admitted(self._pod):

            def fail(one: Json) -> None:
                one["status"] |= {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
                one["status"]["message"] = f"Pod was rejected: {why}"

            self._kubelet.store.change(PODS, self._pod, fail)
            return False
        if wanted := requested(self._pod)[GPU]:
            self.known.devices[GPU] = self._kubelet.free_gpus()[:wanted]
        return True

    async def _start(self) -> None:
        """Start what does not run yet. Raises PodDeleted, PodGone."""
        kubelet, known = self._kubelet, self.known
        known.started_at = kubelet.store.now()
        if (sandbox := self._sandbox) is None:
            self._check()
            await self._write()
            await self._pause(self._pace.sandbox_s)
            await self._mount()
            security = self._pod["spec"].get("securityContext") or {}
            sysctls = {one["name"]: one["value"] for one in security.get("sysctls", [])}
            sandbox = await kubelet.runtime.sandbox(self._uid, sysctls)
            sandbox.devices = known.devices
            known.stage = Stage.STARTING
            await self._write()
        known.devices, known.restarts = sandbox.devices, sandbox.restarts
        if known.stage == Stage.CREATING:
            known.stage = Stage.STARTING
        known.address = sandbox.network.address
        spec = self._pod["spec"]
        for one in spec.get("initContainers", []):
            await self._begin(sandbox, one)
            if one.get("restartPolicy") != "Always":
                await self._complete(sandbox.containers[one["name"]])
            elif probe := one.get("startupProbe"):
                await self._probe(sandbox, one["name"], probe["exec"]["command"])
            await self._write()
        await asyncio.gather(*(self._begin(sandbox, one) for one in spec["containers"]))
        known.stage = Stage.RUNNING
        await self._write()

    async def _probe(self, sandbox: Sandbox, name: str, command: list[str]) -> None:
        """Return once a command has succeeded in a container. Raises PodDeleted, PodGone."""
        while True:
            container = sandbox.containers[name]
            enter = ["nsenter", "-t", str(container.pid), "-m", "-r", "--", *command]
            ran = await asyncio.create_subprocess_exec(*enter, stderr=asyncio.subprocess.DEVNULL)
            if await ran.wait() == 0:
                return
            await self._pause(self._pace.backoff_s)

    async def _mount(self) -> None:
        """Make the volumes; wait for what they need, as the kubelet does."""
        while True:
            try:
                self._kubelet.volumes.make(self._pod, self._kubelet.runtime.folder / self._uid)
            except MountFailed:
                await self._pause(self._pace.backoff_s)
            else:
                return

    async def _begin(self, sandbox: Sandbox, spec: Json) -> None:
        """Start a container, unless it has been started. Raises PodDeleted, PodGone."""
        name = spec["name"]
        while name not in sandbox.containers:
            image = await self._pulled(spec)
            try:
                plan = self._plan(sandbox, spec, image)
                user_of(self._pod, spec, image)
            except (MountFailed, ContainerRefused) as error:
                self.known.waiting[name] = "CreateContainerConfigError", str(error)
                await self._write()
                await self._pause(self._pace.backoff_s)
                continue
            self.known.waiting.pop(name, None)
            await self._pause(self._pace.start_s)
            await self._launch(sandbox, spec, plan, image)

    async def _launch(self, sandbox: Sandbox, spec: Json, plan: Json, image: Image) -> None:
        name = spec["name"]
        limits = (spec.get("resources") or {}).get("limits") or {}
        memory = MemoryGroup(f"{self._uid[:8]}-{name}-{sandbox.restarts.get(name, 0)}")
        if "memory" in limits:
            memory.limit(int(number(limits["memory"])))
        container = Container(name, plan_of(plan, memory), memory, image)
        sandbox.containers[name] = container
        await container.start(self._kubelet.store.now, self.wake.set)

    def _plan(self, sandbox: Sandbox, spec: Json, image: Image) -> Json:
        environment = self._kubelet.volumes.environment(self._pod, spec, sandbox.network.address)
        devices = [*sandbox.devices.get(GPU, []), *self._kubelet.claimed(self._pod)]
        if devices:
            environment = {"NVIDIA_VISIBLE_DEVICES": ",".join(devices), **environment}
        restarts = sandbox.restarts.get(spec["name"], 0)
        return {
            "pod": self._pod,
            "container": spec,
            "image": image,
            "environment": environment,
            "folder": sandbox.folder,
            "network": sandbox.network.pid,
            "log": str(sandbox.folder / f"{spec['name']}.{restarts}.log"),
        }

    async def _pulled(self, spec: Json) -> Image:
        """Return the image of a container; wait for it as the kubelet does."""
        name, reference = spec["name"], spec["image"]
        is_first = True
        while True:
            image = self._kubelet.images(reference)
            if image is not None and not image.pull_error:
                if image.pull_s:
                    await self._pause(image.pull_s)
                return image
            why = image.pull_error if image is not None else _not_pulled(reference)
            back_off = f'Back-off pulling image "{reference}": ErrImagePull: {why}'
            for waiting in (("ErrImagePull", why), ("ImagePullBackOff", back_off)):
                self.known.waiting[name] = waiting
                await self._write()
                await self._pause(self._pace.backoff_s * (0.5 if is_first else 1.0))
            is_first = False

    async def _complete(self, container: Container) -> None:
        """Wait for the end of an init container. A failure is the Pod's: restartPolicy is Never."""
        while not container.ended.is_set():
            self._check()
            self.wake.clear()
            await self.wake.wait()

    # While it runs

    async def _follow(self) -> None:
        """Return when all main containers have ended, or the Pod is evicted. Raises PodDeleted,
        PodGone."""
        while True:
            self._check()
            if self._eviction:
                self._say_evicted()
                await self._stop(0)
                return
            main = [self._containers[one["name"]] for one in self._pod["spec"]["containers"]]
            if all(one.ended.is_set() for one in main):
                await self._pause(self._pace.notice_s)
                await self._write()
                await self._pause(self._pace.final_s)
                await self._stop(int(self._pod["spec"]["terminationGracePeriodSeconds"]))
                return
            if self._is_contradicted():
                await self._write()
            if any(one.ended.is_set() for one in self._sidecars()):
                await self._restart_sidecars()
            await self._resize()
            self.wake.clear()
            if self._needs_look(main):
                continue
            await self.wake.wait()

    def _is_contradicted(self) -> bool:
        """Whether the node was said to be silent meanwhile, and the Pod not ready therefore."""
        is_all = all(one.is_running for one in self._containers.values())
        return is_all and status_of(self._pod, "Ready") == "False"

    def _needs_look(self, main: Sequence[Container]) -> bool:
        """Whether something has changed since the beginning of this turn."""
        return bool(self._eviction) or all(one.ended.is_set() for one in main)

    def _sidecars(self) -> list[Container]:
        return [
            self._containers[one["name"]]
            for one in self._pod["spec"].get("initContainers", [])
            if one.get("restartPolicy") == "Always" and one["name"] in self._containers
        ]

    async def _restart_sidecars(self) -> None:
        sandbox = self._sandbox
        assert sandbox is not None
        await self._pause(self._pace.notice_s)
        await self._write()
        await self._pause(self._pace.backoff_s)
        for spec in self._pod["spec"].get("initContainers", []):
            name = spec["name"]
            found = sandbox.containers.get(name)
            if found in self._sidecars() and found is not None and found.ended.is_set():
                sandbox.restarts[name] = sandbox.restarts.get(name, 0) + 1
                del sandbox.containers[name]
                await self._begin(sandbox, spec)
        await self._write()

    async def _resize(self) -> None:
        """Bring the memory limits of the spec into force."""
        kubelet, known = self._kubelet, self.known
        if not kubelet.online.is_set():
            return
        changed = {
            one["name"]: one.get("resources") or {}
            for one in self._pod["spec"]["containers"]
            if self._in_force(one["name"]) != (one.get("resources") or {})
        }
        if not changed:
            return
        node = kubelet.store.get(NODES, kubelet.name)
        assert node is not None
        most = number(node["status"]["allocatable"].get("memory", 0))
        wanted = requested(self._pod)["memory"]
        if wanted > most:
            why = f"memory, requested: {wanted}, capacity: {int(most)}"
            known.why_not_resized = f"Node didn't have enough capacity: {why}"
            await self._write()
            return
        known.why_not_resized, known.is_resizing = "", True
        before = {name: self._in_force(name) for name in changed}
        known.resources |= before
        await self._write()
        for name, resources in changed.items():
            limit = (resources.get("limits") or {}).get("memory")
            if limit is not None:
                self._containers[name].memory.limit(int(number(limit)))
            known.resources[name] = resources
        known.is_resizing = False
        await self._write()

    def _in_force(self, name: str) -> Json:
        if name in self.known.resources:
            return self.known.resources[name]
        for one in self._pod["status"].get("containerStatuses", []):
            if one["name"] == name and "resources" in one:
                found: Json = one["resources"]
                return found
        return {}

    def _say_evicted(self) -> None:
        why = self._eviction
        now = self._kubelet.store.now()
        made = condition("DisruptionTarget", "True", now, "TerminationByKubelet", why)

        def change(one: Json) -> None:
            set_condition(one, made)
            one["status"] |= {"reason": "Evicted", "message": why}

        self._pod = self._kubelet.store.change(PODS, self._pod, change)

    # The end

    async def _stop(self, grace_s: int) -> None:
        """End all containers, sidecars last, and the sandbox; write the last status."""
        await self._write()
        await self._end_containers(grace_s)
        if self._sidecars():
            self.known.stage = Stage.ENDED
            await self._write()
        self.known.stage = Stage.FINAL
        ended = dict(self._containers)
        await self._write()
        if (sandbox := self._sandbox) is not None:
            sandbox.containers = ended

    async def _end_containers(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        sidecars = self._sidecars()
        main = [one for one in self._containers.values() if one not in sidecars]
        for group in (main, *([one] for one in reversed(sidecars))):
            left_s = max(0.0, until - loop.time())
            await self._end_group(group, left_s)

    async def _end_group(self, group: Sequence[Container], grace_s: float) -> None:
        """Send TERM, and KILL after the grace period, or sooner if the Pod's is shortened."""
        running = [one for one in group if not one.ended.is_set()]
        for one in running:
            one.signal(signal.SIGTERM)
        ends = [asyncio.ensure_future(one.ended.wait()) for one in running]
        try:
            if ends and grace_s > 0:
                await asyncio.wait(ends, timeout=grace_s)
            for one in running:
                one.signal(signal.SIGKILL)
            if ends:
                await asyncio.wait(ends)
        finally:
            for end in ends:
                end.cancel()

    async def _finish(self) -> None:
        """Keep the Pod that has ended until it is deleted, then remove it from the API."""
        while not self._pod["metadata"].get("deletionTimestamp"):
            self.wake.clear()
            await self.wake.wait()
            self._look()
        await self._kubelet.online.wait()
        self._look()
        await elapse(self._pace.final_s)  # its output can still be read
        await self._kubelet.runtime.remove(self._uid)
        await self._kubelet.online.wait()
        self._kubelet.finalize(self._pod)


def _not_pulled(reference: str) -> str:
    """Return what the kubelet says of an image that no registry has."""
    host, _, rest = reference.partition("/")
    name, _, tag = rest.rpartition(":")
    head = f'failed to pull and unpack image "{reference}": failed to resolve reference'
    asked = f'failed to do request: Head "http://{host}/v2/{name}/manifests/{tag}"'
    return f'{head} "{reference}": {asked}: dial tcp 127.0.0.1:80: connect: connection refused'
