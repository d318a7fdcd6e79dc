"""The ResourceClaims of a cluster: one for each GPU in use, shared by all Pods on it.

A claim is what keeps a GPU from other users of the cluster, so it is given back `claim_idle_s`
after the last replica. Pods that have to wait for it are the API server's matter: it deletes a
claim only when no Pod uses it any more.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import structlog

from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.errors import CONFLICT, NOT_FOUND, ApiAway, ApiRefused
from hosts.kubernetes.objects import (
    CLAIMS,
    OWNER_LABEL,
    CelSelector,
    DeviceClaim,
    DeviceRequest,
    DeviceSelector,
    ExactRequest,
    Metadata,
    OwnerReference,
    ResourceClaim,
    ResourceClaimSpec,
)
from pool_manager.core.state import Device
from pool_manager.hosts.kubernetes.node_gpus import qualified
from registry.model.hosts import KubernetesHost, id_on
from registry.tasks import Tasks

log = structlog.get_logger()

LOOK_S: Final = 2.0
"""Seconds between two looks at whether claims are to be given back."""
AGAIN_S: Final = 10.0
"""Seconds after which a claim that could not be given back is tried again."""
MAKE_S: Final = 10.0
"""Time limit of the end of an old claim in whose place one is to be made."""
MAKE_STEP_S: Final = 0.25
REQUEST: Final = "gpu"
"""Name of the only request of a claim."""
_NVIDIA: Final = re.compile(r"(GPU|MIG)-[0-9a-f-]{1,60}[0-9a-f]")


def owner_part(owner: str) -> str:
    """Return eight characters for the names of a server's objects: they tell the objects of two
    servers apart for people. OWNER_LABEL is what decides."""
    return hashlib.sha256(owner.encode()).hexdigest()[:8]


def claim_name(owner: str, uuid: str) -> str:
    """Return the name of the claim of a GPU: another one for each UUID and server."""
    if _NVIDIA.fullmatch(uuid):
        return f"fn-{owner_part(owner)}-{uuid.lower()}"
    return f"fn-{owner_part(owner)}-{hashlib.sha256(uuid.encode()).hexdigest()[:32]}"


def claim_of(
    device: Device, definition: KubernetesHost, owner: str, references: tuple[OwnerReference, ...]
) -> ResourceClaim:
    """Return the claim of a GPU of a node: exactly that device, by its UUID. Names in the
    expression were checked (`registry/store/clusters.py`, `node_gpus`): nothing needs quoting."""
    uuid = _uuid(device)
    driver = definition.device_class
    domain, attribute = qualified(definition.uuid_attribute, driver)
    # A class is matched first, so that the driver needs no condition of its own.
    expression = f"device.attributes['{domain}'].{attribute} == '{uuid}'"
    exactly = ExactRequest(
        device_class_name=definition.slice_class if device.is_slice else driver,
        selectors=(DeviceSelector(cel=CelSelector(expression=expression)),),
    )
    return ResourceClaim(
        metadata=Metadata(
            name=claim_name(owner, uuid),
            labels={OWNER_LABEL: owner},
            owner_references=references,
        ),
        spec=ResourceClaimSpec(
            devices=DeviceClaim(requests=(DeviceRequest(name=REQUEST, exactly=exactly),))
        ),
    )


@dataclass(slots=True)
class HeldClaim:
    """A claim that is in use, or was a moment ago."""

    name: str
    users: set[str] = field(default_factory=set)
    """Ids of the replicas on its GPU."""
    uid: str = ""
    """Of the object, "" while it is not known whether there is one."""
    due_s: float = 0.0
    """When it is to be given back, in monotonic seconds, if it has no users."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever makes or deletes the object."""


class ClaimTable:
    """Which claims are in use, by device. No I/O."""

    def __init__(self, owner: str, idle_s: float) -> None:
        self._owner = owner
        self.idle_s = idle_s
        """Seconds after the last use until a claim is given back."""
        self._claims: dict[str, HeldClaim] = {}
        self._devices: dict[str, set[str]] = {}
        """The devices whose claims a replica uses, by its id."""

    def use(self, device: str, uuid: str, id: str) -> HeldClaim:
        """Return the claim of a device, which a replica uses from now on."""
        claim = self._claims.setdefault(device, HeldClaim(claim_name(self._owner, uuid)))
        claim.users.add(id)
        self._devices.setdefault(id, set()).add(device)
        return claim

    def end_use(self, id: str, now: float) -> None:
        """End the use of all claims by a replica."""
        for device in self._devices.pop(id, ()):
            claim = self._claims[device]
            claim.users.discard(id)
            claim.due_s = now + self.idle_s

    def find(self, device: str) -> HeldClaim | None:
        """Return the claim of a device, None if it has none."""
        return self._claims.get(device)

    def due(self, now: float) -> list[str]:
        """Return the devices whose claims are to be given back."""
        return [
            device
            for device, claim in self._claims.items()
            if not claim.users and now >= claim.due_s
        ]

    def forget(self, device: str) -> None:
        """Drop the claim of a device, which is gone; a used one stays, to be made anew."""
        claim = self._claims[device]
        claim.uid = ""
        if not claim.users:
            del self._claims[device]

    def names(self) -> frozenset[str]:
        """Return the names of all claims that are known."""
        return frozenset(claim.name for claim in self._claims.values())

    @property
    def used(self) -> int:
        """The number of claims that have users."""
        return sum(1 for claim in self._claims.values() if claim.users)


class Claims:
    """The claims of one server in a cluster. Event loop thread only.

    Methods that ask the API server raise ApiRefused and ApiAway.
    """

    def __init__(
        self,
        client: KubernetesClient,
        definition: KubernetesHost,
        owner: str,
        clock: Callable[[], float],
        *,
        references: tuple[OwnerReference, ...] = (),
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`owner` is the value of OWNER_LABEL; `references` are those of each claim. `clock`
        returns monotonic seconds, and `pause` is awaited between two looks."""
        self._client, self._owner = client, owner
        self.references = references
        self._clock, self._pause = clock, pause
        self._definition = definition
        self._table = ClaimTable(owner, definition.claim_idle_s)

    def define(self, definition: KubernetesHost) -> None:
        """Apply a changed definition: claims that exist stay as they are."""
        self._definition, self._table.idle_s = definition, definition.claim_idle_s

    def open(self, tasks: Tasks) -> None:
        """Give back in the background what is not used any more."""
        tasks.spawn("claims", self._look())

    async def _look(self) -> None:
        while True:
            await self._pause(LOOK_S)
            try:
                await self.give_back()
            except Exception:  # a failed look must not end the looking
                log.exception("claims could not be looked at")

    @property
    def used(self) -> int:
        """The number of GPUs that replicas are on."""
        return self._table.used

    def adopt(self, devices: Collection[Device], id: str) -> None:
        """Record the claims that a replica of an earlier manager uses. Nothing is asked."""
        for device in devices:
            self._table.use(device.id, _uuid(device), id)

    async def use(self, device: Device, id: str) -> str:
        """Return the name of the claim of a GPU, for a Pod of this replica, once there is such a
        claim. Ends with `end_use`, also if this fails."""
        claim = self._table.use(device.id, _uuid(device), id)
        async with claim.turn:
            if not claim.uid:
                claim.uid = await self._made(device)
        return claim.name

    def end_use(self, id: str) -> None:
        """Record that a replica is gone, or has not been started."""
        self._table.end_use(id, self._clock())

    def doubt(self, device: Device) -> None:
        """Have the next use of a GPU look whether its claim is there: a Pod was not scheduled, and
        somebody may have deleted the claim."""
        if (claim := self._table.find(device.id)) is not None:
            claim.uid = ""

    async def give_back(self) -> None:
        """Delete the claims that are due. One that cannot be deleted is tried again later."""
        for device in self._table.due(self._clock()):
            claim = self._table.find(device)
            if claim is None:
                continue
            async with claim.turn:
                if claim.users:  # used again while others were deleted
                    continue
                try:
                    await self._deleted(claim.name, claim.uid)
                except (ApiRefused, ApiAway) as error:
                    log.warning("a claim cannot be given back", claim=claim.name, reason=str(error))
                    claim.due_s = self._clock() + AGAIN_S
                    continue
                # A user that has come meanwhile waits for its turn, and makes the claim anew.
                self._table.forget(device)

    async def sweep(self, *, is_whole: bool = False) -> int:
        """Delete the claims of this server that no adopted replica uses: an earlier manager has
        left them behind. Return their number. Called before the first start, once all that runs
        is adopted. A cluster without dynamic resource allocation has none. `is_whole`: delete all,
        as the cluster is used no more."""
        try:
            found, _ = await self._client.list(CLAIMS, f"{OWNER_LABEL}={self._owner}")
        except ApiRefused as error:
            if error.code == NOT_FOUND:
                return 0
            raise
        kept = frozenset[str]() if is_whole else self._table.names()
        left = [one for name, one in found.items() if name not in kept]
        for one in left:
            await self._deleted(one.metadata.name, one.metadata.uid)
        return len(left)

    async def _made(self, device: Device) -> str:
        """Return the uid of the claim of a device, which is made unless it is there. One that is
        being deleted is waited for: a new one of its name can be made only after that."""
        wanted = claim_of(device, self._definition, self._owner, self.references)
        until_s = self._clock() + MAKE_S
        while True:
            try:
                return (await self._client.create(CLAIMS, wanted)).metadata.uid
            except ApiRefused as error:
                if error.code != CONFLICT:
                    raise
                there = await self._found(wanted.metadata.name)
                if there is not None and not there.metadata.deletion_timestamp:
                    if there.spec == wanted.spec:
                        return there.metadata.uid
                    if there.metadata.labels.get(OWNER_LABEL) != self._owner:
                        raise
                    # It was made for the same GPU under another definition.
                    await self._deleted(wanted.metadata.name, there.metadata.uid)
                if self._clock() >= until_s:
                    raise
            await self._pause(MAKE_STEP_S)

    async def _found(self, name: str) -> ResourceClaim | None:
        try:
            return await self._client.get(CLAIMS, name)
        except ApiRefused as error:
            if error.code != NOT_FOUND:
                raise
        return None

    async def _deleted(self, name: str, uid: str) -> None:
        """Delete a claim. Returns if it is gone, or is another one by now."""
        try:
            await self._client.delete(CLAIMS, name, uid=uid)
        except ApiRefused as error:
            if error.code not in (NOT_FOUND, CONFLICT):
                raise


def _uuid(device: Device) -> str:
    return device.id.removeprefix(id_on(device.host, ""))
