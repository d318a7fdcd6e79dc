"""Starts and stops the replicas of one node as Pods.

Each start writes the API server once, or twice if the server has secrets. A start returns when the
scheduler has placed the Pod; what the kubelet does then is followed in the background, because a
release has to wait for the end of a start, and a kubelet may pull an image for minutes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from hosts.errors import shown
from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.errors import CONFLICT, NOT_FOUND, ApiAway, ApiRefused
from hosts.kubernetes.objects import PODS, REPLICA_LABEL, SECRETS, Kind, ObjectT
from pool_manager.core import events
from pool_manager.core.state import STARTING_MAX_S, Device
from pool_manager.driver import EngineLosses, Exit, Exits, Processes
from pool_manager.drivers.environment import MODEL_TARGET
from pool_manager.drivers.uids import UidAllocator
from pool_manager.hosts.kubernetes import pod_specs
from pool_manager.hosts.kubernetes.claims import Claims
from pool_manager.hosts.kubernetes.ends import (
    PodFate,
    node_of,
    progress_of,
    refusal_of,
    trouble_of,
)
from pool_manager.hosts.kubernetes.pod_specs import PodNeeds, PodOwner, PodPlace, PodRequest
from pool_manager.hosts.kubernetes.pods import Pods
from pool_manager.images import Images
from pool_manager.ports import Binding, ServerContainer
from pool_manager.replicas.logs import Ask, Spool
from registry.errors import DriverError, EngineDown, PlacementRefused, StartRefused
from registry.model.hosts import Ability, KubernetesHost
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.server import ENGINE, ServerSpec

log = structlog.get_logger()

SCHEDULE_S: Final = 10.0
"""Seconds in which the scheduler has to place a Pod, or to refuse it."""
REPEAT_S: Final = 10.0
"""Seconds after which what a start waits for is said again."""
GONE_S: Final = 30.0
"""Seconds beyond its grace in which a Pod that is deleted has to be gone; then the release is tried
again later."""
LEASE_SPARE_S: Final = 5.0
"""Added to the lease of a replica that may run on unseen: clocks differ, and it ends itself."""
LOG_BYTES: Final = 1024 * 1024
"""Max bytes of a container's output that are read at once: the last ones."""
UNUSABLE: Final = (400, 413, 422)
"""Codes of the API server for an object that it takes at no time."""
EXISTS: Final = "AlreadyExists"
POLICY: Final = "violates PodSecurity"
"""Part of its text for a Pod that the policy of the namespace refuses; without it a 403 is of a
quota, of another admission, or of missing rights."""
GRACE_S: Final = 1.0
"""Seconds that a replica without a server gets to end."""


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What the replicas of a node get of it."""

    cpu_millis: int
    """Thousandths of a CPU of each replica."""
    resource: str = ""
    """Resource of the device plugin; "" where GPUs come by claims, or not at all."""
    claimed: Mapping[str, Device] = field(default_factory=dict)
    """The GPUs that come by claims, by id."""


@dataclass(slots=True)
class PodSettings:
    """What the drivers of all nodes of a cluster have in common."""

    client: KubernetesClient
    pods: Pods
    claims: Claims
    owner: PodOwner
    """Replaced before the first start, when what deletes the Pods is known."""
    uids: UidAllocator
    authority: str
    """Certificate of the authority of the server's door, PEM."""
    memory_mib: int
    """Cap of a replica whose function names none, as in `PoolSettings`."""
    emit: Callable[[events.Event], None]
    clock: Callable[[], float]


class PodDriver:
    """`Driver` of one node."""

    kind = "kubernetes"
    is_contained = True
    abilities = frozenset({Ability.IMAGE})
    images: Images | None = None

    def __init__(
        self,
        node: str,
        definition: KubernetesHost,
        share: NodeShare,
        settings: PodSettings,
        records: Mapping[str, ReplicaRecord],
        tasks: Tasks,
    ) -> None:
        """`records` has those of the replicas of this host."""
        self.exits, self.engine_losses = Exits(), EngineLosses()
        self.node = node
        self.definition, self.share = definition, share
        """As they are now; their owner replaces them."""
        self.processes: Processes = PodProcesses(settings.pods)
        self._pods, self._client = settings.pods, settings.client
        self._settings, self._records, self._tasks = settings, records, tasks
        self._needs: dict[str, PodNeeds] = {}
        self._uncapped: set[str] = set()
        """Replicas whose cap is no limit that somebody has set, but follows from what they need."""
        self._never: set[str] = set()
        """Replicas of this manager for which no Pod can have been made."""
        self._secrets: set[str] = set()
        """Replicas for which a Secret may have been made."""
        self._left_s: dict[str, float] = {}
        """Since when nobody renews the lease of a replica."""
        self._logs: dict[str, Path] = {}
        self._spool = Spool()
        self._unsubscribe = (
            settings.pods.exits.subscribe(self._on_exit),
            settings.pods.engine_losses.subscribe(self.engine_losses.notify),
        )

    def close_listeners(self) -> None:
        """Listen no more to the table: the node is no host any more."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def expect(self, id: str, binding: Binding | None) -> None:
        """Take down what a replica that is about to start is for, or a standby that is about to get
        its model; None for a standby that starts."""
        self._needs[id] = needs_of(binding)
        is_capped = binding is not None and (binding.memory_mib or self._settings.memory_mib)
        if binding is None or is_capped:
            self._uncapped.discard(id)
        else:
            self._uncapped.add(id)

    def model_path(self, model_dir: Path) -> str:  # noqa: ARG002 - the same in each Pod
        """Return the mount point of the model folder, the same in each Pod."""
        return MODEL_TARGET

    # Starts

    async def start(
        self,
        record: ReplicaRecord,
        run_dir: Path,  # noqa: ARG002 - the replica gets its record as it enrols
        log: Path,  # noqa: ARG002 - written by `save_log`
        server: ServerContainer | None = None,
    ) -> None:
        """Make the Pod, and return when the scheduler has placed it; the Pod of an earlier try of
        the same start is taken as it is."""
        id = record.id
        self._never.add(id)
        self._pods.check()
        if server is not None and (why := pod_specs.why_not(server)):
            raise StartRefused(why)
        request = await self._request(record, server)
        if (secret := pod_specs.secret_for(request)) is not None:
            self._secrets.add(id)
            await self._create(SECRETS, secret, "its Secret")
        self._never.discard(id)
        try:
            made = await self._create(PODS, pod_specs.pod_for(request), "its Pod")
        except DriverError as error:
            if not isinstance(error.__cause__, ApiAway):
                self._never.add(id)
            raise
        self._pods.made(id, made)
        try:
            await self._await_place(id)
        except PlacementRefused:
            for device in record.devices:
                if device in self.share.claimed:  # somebody may have deleted its claim
                    self._settings.claims.doubt(self.share.claimed[device])
            raise
        self._tasks.spawn(f"follow the start of {id}", self._follow(id))

    async def _request(self, record: ReplicaRecord, server: ServerContainer | None) -> PodRequest:
        kind, share, settings = record.device_kind, self.share, self._settings
        claims: tuple[str, ...] = ()
        if kind != "cpu" and not self.definition.cuda_image:
            raise PlacementRefused("the cluster has no image for GPUs any more")
        if kind != "cpu" and share.claimed:
            claims = tuple([await self._claim(device, record.id) for device in record.devices])
        return PodRequest(
            record,
            self.definition,
            settings.owner,
            PodPlace(self.node, share.cpu_millis, claims, share.resource),
            self._needs.get(record.id, PodNeeds()),
            settings.authority,
            settings.uids.take(record.id),
            server,
        )

    async def _claim(self, device: str, id: str) -> str:
        found = self.share.claimed.get(device)
        if found is None:
            raise PlacementRefused(f"node {self.node} has no device {device} any more")
        try:
            return await self._settings.claims.use(found, id)
        except (ApiRefused, ApiAway) as error:
            raise self._refused("the claim of its GPU", error) from error

    async def _create(self, kind: Kind[ObjectT], object: ObjectT, what: str) -> ObjectT:
        """Make an object; if the answer is lost, it is tried once more. Raises DriverError, whose
        cause is ApiAway if it may have been made."""
        try:
            return await self._made(kind, object, what)
        except ApiRefused as error:
            raise self._refused(what, error) from error
        except ApiAway as error:
            if self._pods.why_away:
                raise self._refused(what, error) from error
            lost = error
        try:
            return await self._made(kind, object, what)
        except (ApiRefused, ApiAway) as error:
            # What refuses it may be a quota that the first one has used up.
            raise self._refused(what, error) from lost

    async def _made(self, kind: Kind[ObjectT], object: ObjectT, what: str) -> ObjectT:
        """Make an object. One that exists is that of an earlier try, as its name is used once."""
        try:
            return await self._client.create(kind, object)
        except ApiRefused as error:
            if error.reason != EXISTS:
                raise
        if kind.name == SECRETS.name:  # which this server may not read
            return object
        name = object.metadata.name
        try:
            found = await self._client.get(kind, name)
        except ApiRefused as error:
            raise ApiAway(f"{what} exists, and cannot be read: {error}") from error
        if found.metadata.labels.get(REPLICA_LABEL) != object.metadata.labels[REPLICA_LABEL]:
            raise DriverError(f"{what} cannot be made: there is another one, {name}")
        return found

    def _refused(self, what: str, error: ApiRefused | ApiAway) -> DriverError:
        """Return the error of a start of which `what` could not be made."""
        if isinstance(error, ApiAway):
            if self._pods.why_away:
                return EngineDown(f"the API server of the cluster does not answer: {error}")
            return PlacementRefused(f"{what} could not be made: {error}")
        text = f"{what} was refused: {shown(error)}"
        if error.code in UNUSABLE or POLICY in str(error):
            return StartRefused(text)
        return PlacementRefused(text)

    async def _await_place(self, id: str) -> None:
        """Return when the Pod has a node. Raises PlacementRefused with the scheduler's words, and
        then has asked for its deletion."""
        fate = await self._pods.wait(id, self._is_decided, SCHEDULE_S)
        if fate is not None and not fate.is_over and fate.pod.spec.node_name:
            return
        self._pods.check()
        if fate is None or fate.is_over:
            how = fate.end.how if fate is not None and fate.end is not None else "its Pod is gone"
            raise PlacementRefused(how)
        why = refusal_of(fate.pod) or f"the scheduler has not placed it within {SCHEDULE_S:g} s"
        self._pods.refused(id, why)
        try:
            await self._delete(id)
        except DriverError as error:
            log.info("a refused Pod is left to its release", replica=id, reason=error.message)
        raise PlacementRefused(why)

    def _is_decided(self, fate: PodFate | None) -> bool:
        if fate is None or fate.is_over or self._pods.why_away:
            return True
        return bool(fate.pod.spec.node_name or refusal_of(fate.pod))

    async def _follow(self, id: str) -> None:
        """Say what a start waits for, until its containers run; end one that cannot succeed."""
        until_s = self._settings.clock() + STARTING_MAX_S
        said, said_s, troubled_s = "", -math.inf, math.inf
        while (now := self._settings.clock()) < until_s:
            fate = self._pods.fate(id)
            text = progress_of(fate.pod) if fate is not None and not fate.is_over else ""
            if fate is None or not text:
                return
            trouble = trouble_of(fate.pod)
            if trouble is None:
                troubled_s = math.inf
            elif now - (troubled_s := min(troubled_s, now)) >= trouble.patience_s:
                why = f"its container does not start: {trouble.text}"
                self._settings.emit(events.Lost(id, why, is_lasting=trouble.is_lasting))
                return
            if text != said or now - said_s >= REPEAT_S:
                self._settings.emit(events.Starting(id, f"its Pod {text}"))
                said, said_s = text, now
            left_s = REPEAT_S if trouble is None else troubled_s + trouble.patience_s - now
            await self._pods.wait(id, _has_changed(fate), min(REPEAT_S, left_s))

    # Facts

    async def list(self) -> set[str]:
        """Return the ids of the replicas whose Pods are on this node, and have not ended. Pods
        without a record are deleted by the table."""
        self._pods.check()
        found = set()
        for id, fate in self._pods.on_node(self.node):
            self._adopt(id, fate)
            if not fate.is_over and not fate.is_asked:
                found.add(id)
        return found

    def _adopt(self, id: str, fate: PodFate) -> None:
        spec = fate.pod.spec
        users = [one.security_context for one in (*spec.init_containers, *spec.containers)]
        uids = [one.run_as_user for one in users if one is not None]
        own = spec.security_context.run_as_user if spec.security_context is not None else None
        self._settings.uids.adopt(id, next((one for one in (own, *uids) if one is not None), None))

    def _on_exit(self, id: str, end: Exit) -> None:
        fate = self._pods.fate(id)
        if fate is not None and node_of(fate.pod) == self.node:
            self.exits.notify(id, end)

    # Limits and logs

    async def limit(self, record: ReplicaRecord) -> None:
        """Give the container of a standby the cap of its model, if somebody has set one or the
        model needs more than standbys have. A cap that follows from what a function needs is no
        limit to be kept: without a write, the standby keeps its own."""
        id = record.id
        fate = self._pods.fate(id)
        if fate is None or fate.is_over:
            raise DriverError(f"cannot limit {id}: it does not run")
        container = fate.pod.spec.containers[0]
        has_mib = pod_specs.mib_in(container.resources.limits)
        wanted_mib = record.memory_mib
        if not wanted_mib or wanted_mib == has_mib:
            return
        if wanted_mib < has_mib and id in self._uncapped:
            return
        body = pod_specs.resized(container, wanted_mib)
        name = fate.pod.metadata.name
        try:
            await self._client.patch(PODS, name, body, subresource="resize")
        except ApiRefused as error:
            if error.code == NOT_FOUND:
                self._pods.can_resize = False
            if wanted_mib < has_mib and error.code not in (NOT_FOUND, CONFLICT):
                # Clusters before 1.34 lower no limit; the replica keeps the cap by its own
                # RLIMIT_DATA.
                log.info("a cap could not be lowered", replica=id, reason=shown(error))
                return
            raise DriverError(f"the cap of {id} could not be set: {shown(error)}") from error
        except ApiAway as error:
            self._pods.check()
            raise DriverError(f"the cap of {id} could not be set: {shown(error)}") from error

    async def save_log(self, id: str, log: Path) -> None:
        """Append the replica's output since the last call, as the kubelet keeps it, to `log`; of a
        server function, the server's and the sidecar's."""
        fate = self._pods.fate(id)
        if fate is None or fate.gone_s is not None or not fate.pod.spec.node_name:
            return
        self._logs[id] = log
        sources = {
            status.name: self._output_of(fate.pod.metadata.name, status.name)
            for status in (
                *fate.pod.status.container_statuses,
                *fate.pod.status.init_container_statuses,
            )
            if status.state.running is not None or status.state.terminated is not None
        }
        if sources:
            await self._spool.fetch(id, log, sources)

    def _output_of(self, pod: str, container: str) -> Ask:
        async def ask(since_s: int) -> bytes | None:
            try:
                output = await self._client.log(pod, container, LOG_BYTES, since_s)
            except ApiRefused:
                return None  # it is gone, or has no output yet
            except ApiAway as error:
                raise DriverError(f"the output of {pod} cannot be read: {shown(error)}") from error
            return stamped(output, is_cut=len(output) >= LOG_BYTES)

        return ask

    # Ends

    async def terminate(self, id: str) -> None:
        """Ask for the deletion of the Pod: TERM to the server, or to the replica, within the grace
        of the Pod; then to the sidecar."""
        await self._delete(id)

    async def release(self, id: str) -> None:
        """Delete the Pod, and return when nothing of it runs any more: by its last object, or by
        its lease, where it was deleted otherwise and nobody can see what runs."""
        self._left_s.setdefault(id, self._settings.clock())
        if id not in self._never:
            await self._end(id)
        await self._remove_secret(id)
        self._pods.forget(id)
        self._spool.forget(id)
        self._settings.uids.free(id)
        self._settings.claims.end_use(id)
        self._needs.pop(id, None)
        self._left_s.pop(id, None)
        self._logs.pop(id, None)
        for ids in (self._never, self._uncapped, self._secrets):
            ids.discard(id)

    async def _end(self, id: str) -> None:
        """Return when nothing of a replica runs any more. Raises DriverError that says what is
        missing."""
        self._pods.check()
        fate = await self._delete(id)
        if fate is not None and fate.gone_s is None:
            limit_s = (fate.pod.spec.termination_grace_period_seconds or 0) + GONE_S
            if fate.pod.spec.init_containers:
                await self._save_last_words(id, limit_s)
            fate = await self._pods.wait(id, self._is_gone, limit_s)
            self._pods.check()
        if fate is None and id not in self._records:
            return  # none of this server's
        name = pod_specs.pod_name(id, self._settings.owner)
        if fate is not None and fate.gone_s is None:
            self._pods.look_again()
            node = fate.pod.spec.node_name or self.node
            raise DriverError(f"the Pod {name} is not gone yet: node {node} has not confirmed it")
        left_s, lease_s = self._left_s[id], self._lease_s(id)
        # Without any object of it: it was deleted while no server of this store has looked.
        gone_s = max(left_s, self._pods.synced_s or left_s)
        free_s = gone_s + lease_s if fate is None else fate.free_s(lease_s, left_s)
        if free_s is not None and (rest_s := free_s - self._settings.clock()) > 0:
            raise DriverError(
                f"the Pod {name} was deleted without a proof that its containers have ended: what"
                f" runs of it ends within {math.ceil(rest_s)} s, by its lease"
            )

    async def _save_last_words(self, id: str, limit_s: float) -> None:
        """Save what a server writes at its stop signal, between its end and that of its Pod."""
        log = self._logs.get(id)
        fate = await self._pods.wait(id, self._is_ended, limit_s)
        if log is not None and fate is not None and fate.gone_s is None:
            with contextlib.suppress(DriverError, OSError):
                await self.save_log(id, log)

    def _is_ended(self, fate: PodFate | None) -> bool:
        return fate is None or fate.is_over or bool(self._pods.why_away)

    def _is_gone(self, fate: PodFate | None) -> bool:
        return fate is None or fate.gone_s is not None or bool(self._pods.why_away)

    def _lease_s(self, id: str) -> float:
        record = self._records.get(id)
        return (record.orphan_s if record is not None else 0.0) + LEASE_SPARE_S

    async def _delete(self, id: str) -> PodFate | None:
        """Ask for the deletion of a Pod, unless it is gone; return what is known of it."""
        before, fate = self._pods.fate(id), self._pods.asked(id)
        if fate is not None and fate.gone_s is not None:
            return fate
        if before is not None and before.is_asked and before.pod.metadata.deletion_timestamp:
            return fate
        # Somebody else may have asked for it with a longer grace.
        uid = fate.id if fate is not None else ""
        name = pod_specs.pod_name(id, self._settings.owner)
        try:
            await self._client.delete(PODS, name, uid=uid)
        except ApiRefused as error:
            if error.code not in (NOT_FOUND, CONFLICT):
                raise DriverError(f"the Pod {name} cannot be deleted: {shown(error)}") from error
            self._pods.look_again()  # its last event is on its way, or was missed
        except ApiAway as error:
            self._pods.check()
            raise DriverError(f"the Pod {name} cannot be deleted: {shown(error)}") from error
        return self._pods.fate(id)

    async def _remove_secret(self, id: str) -> None:
        """Delete the Secret of a replica, if it may have one."""
        record = self._records.get(id)
        is_adopted = id not in self._needs and record is not None and record.engine == ENGINE
        if id not in self._secrets and not is_adopted:
            return
        name = pod_specs.pod_name(id, self._settings.owner)
        try:
            await self._client.delete(SECRETS, name)
        except ApiRefused as error:
            if error.code != NOT_FOUND:
                raise DriverError(f"the Secret {name} cannot be deleted: {shown(error)}") from error
        except ApiAway as error:
            self._pods.check()
            raise DriverError(f"the Secret {name} cannot be deleted: {shown(error)}") from error

    async def close(self) -> None:
        """Listen no more. Pods continue to run."""
        self.close_listeners()


class PodProcesses:
    """`Processes` of Pods: a cluster does not show them."""

    has_other_users = False

    def __init__(self, pods: Pods) -> None:
        self._pods = pods

    async def pids(self, id: str) -> frozenset[int] | None:
        """Return none for a replica whose Pod has ended, None for any other."""
        fate = self._pods.fate(id)
        return frozenset() if fate is not None and fate.is_proven else None

    async def used_mib(self, id: str) -> float | None:  # noqa: ARG002 - of any
        """Return None: it is not known."""
        return None


def needs_of(binding: Binding | None) -> PodNeeds:
    """Return what the Pod of a replica needs for its binding, or of a standby."""
    if binding is None:
        return PodNeeds(stop_grace_s=GRACE_S)
    container, spec = binding.container, binding.spec
    grace_s, network = GRACE_S, "none"
    if isinstance(spec, ServerSpec):
        grace_s, network = spec.stop_grace_s, spec.network
    if container is not None:
        grace_s, network = container.stop_grace_s, container.network
    files = (*binding.required.files, *binding.prepared, *binding.compiled)
    return PodNeeds(
        binding.measured_mib,
        sum(one.size for one in files) / 2**20,
        grace_s,
        binding.preemptible,
        network,
    )


def stamped(output: bytes, *, is_cut: bool = False) -> bytes:
    """Return the lines of a log with timestamps as engines of containers write them: in UTC, with
    nine digits. A runtime may write them in the zone of its node. A line without one is left out,
    and the first one if the output is cut: a function could make the rest of its line look like a
    whole one."""
    found = []
    for line in output.split(b"\n")[is_cut:-1]:
        stamp, _, text = line.partition(b" ")
        if (shown_stamp := _in_utc(stamp.decode("ascii", "replace"))) is not None:
            found.append(shown_stamp.encode() + b" " + text + b"\n")
    return b"".join(found)


def _in_utc(stamp: str) -> str | None:
    """Return a timestamp of RFC 3339 in UTC with nine digits, None if it is none."""
    whole, dot, rest = stamp.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :] if dot else ""
    try:
        at = datetime.fromisoformat(whole + zone if dot else whole)
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{digits[:9]:0<9}Z"


def _has_changed(before: PodFate) -> Callable[[PodFate | None], bool]:
    return lambda fate: fate is not before
