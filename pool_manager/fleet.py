"""The hosts of a manager by name, and the host of each replica."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

import structlog

from pool_manager.core.state import Device
from pool_manager.driver import Exits
from pool_manager.host import ReplicaHost
from pool_manager.images import Images, RemovedImage
from pool_manager.ports import GpuView
from pool_manager.subscribers import Subscribers
from registry.errors import DriverError, EngineDown, HostDown
from runtime_image.contract.control import ReplicaRecord

log = structlog.get_logger()


class Fleet:
    """The hosts that a manager has at present. `first` is the one whose images and records are this
    process's; a replica that nobody has registered counts as one of its."""

    def __init__(self, first: ReplicaHost) -> None:
        self.first = first
        self.exits = Exits()
        """Those of all hosts."""
        self.engine_losses = Subscribers[[str, str]]()
        """Those of all hosts: the name of the host and the reason."""
        self._hosts: dict[str, ReplicaHost] = {}
        self._unsubscribe: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {}
        """What ends the subscriptions at a host, by its name."""
        self._host_of: dict[str, str] = {}
        self._records: dict[str, dict[str, ReplicaRecord]] = {}
        self.add(first)

    def __iter__(self) -> Iterator[ReplicaHost]:
        """Iterate over the hosts as they are now, in the order of their first announcement."""
        return iter(list(self._hosts.values()))

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, host: ReplicaHost) -> None:
        """Add a host, in place of one of the same name."""
        if self._hosts.get(host.name) is not host:
            self._end_subscriptions(host.name)
            self._hosts[host.name] = host
            self._unsubscribe[host.name] = (
                host.exits.subscribe(self.exits.notify),
                host.engine_losses.subscribe(partial(self.engine_losses.notify, host.name)),
            )

    def remove(self, name: str) -> None:
        """Remove a host, if there is one of this name."""
        self._hosts.pop(name, None)
        self._end_subscriptions(name)
        self._drop_records(name)

    def _end_subscriptions(self, name: str) -> None:
        for unsubscribe in self._unsubscribe.pop(name, ()):
            unsubscribe()

    def find(self, name: str) -> ReplicaHost | None:
        """Return a host, None if there is none of this name."""
        return self._hosts.get(name)

    def get(self, name: str) -> ReplicaHost:
        """Return a host. Raises HostDown if it was removed."""
        try:
            return self._hosts[name]
        except KeyError:
            raise HostDown(f"host {name} was removed") from None

    def gpu_view(self, device: Device) -> GpuView | None:
        """Return a GPU as last polled, None for any other device."""
        host = self._hosts.get(device.host)
        return host.gpus.view(device.id) if host is not None else None

    async def list_of(self, name: str) -> set[str]:
        """Return the ids of all replicas that run on a host. Raises DriverError."""
        return await self.get(name).driver.list()

    def name_of(self, id: str) -> str:
        """Return the name of a replica's host."""
        return self._host_of.get(id, self.first.name)

    def of(self, id: str) -> ReplicaHost:
        """Return the host of a replica. Raises HostDown if it was removed."""
        return self.get(self.name_of(id))

    def explained(self, name: str, error: EngineDown) -> EngineDown:
        """Return the reason of an engine's silence: HostDown if its host cannot be reached."""
        host = self._hosts.get(name)
        if isinstance(error, HostDown) or host is None or not host.transport.why_down:
            return error
        return HostDown(f"host {name} is not up: {host.transport.why_down}")

    def records(self, host: str) -> dict[str, ReplicaRecord]:
        """Return the records of the replicas of a host by id, as they change."""
        return self._records.setdefault(host, {})

    def adopt(self, record: ReplicaRecord) -> None:
        """Register a replica, or its changed record, before any operation on it."""
        self._host_of[record.id] = record.host
        self.records(record.host)[record.id] = record

    def forget(self, id: str) -> None:
        """Forget a replica that was released or given up."""
        host = self._host_of.pop(id, "")
        if host:
            self.records(host).pop(id, None)
            self._drop_records(host)

    def _drop_records(self, host: str) -> None:
        """Drop the records of a host that was removed, once none is left."""
        if host not in self._hosts and not self._records.get(host):
            self._records.pop(host, None)


class FleetImages:
    """`Images` of the first host, which removes this server's pins from the others, too: their
    images are sent again when a start there needs them."""

    def __init__(self, own: Images, fleet: Fleet) -> None:
        self._own = own
        self._fleet = fleet
        self.find, self.pull = own.find, own.pull
        self.pin, self.pinned = own.pin, own.pinned

    @property
    def maps_users(self) -> bool:
        """Whether that is so on the first host, and there is no other."""
        return self._own.maps_users and len(self._fleet) == 1

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Remove the pins from all images except those with these ids."""
        await self._fleet.first.files.unpin_others(ids)
        await self._unpin_there(ids)

    async def prune(self, ids: Collection[str]) -> list[RemovedImage]:
        """Remove the images that deploys have pulled to the first host, except those with these
        ids."""
        removed = await self._own.prune(ids)
        await self._unpin_there(ids)
        return removed

    async def _unpin_there(self, ids: Collection[str]) -> None:
        for host in self._fleet:
            if host is not self._fleet.first and not host.transport.why_down:
                try:
                    await host.files.unpin_others(ids)
                except DriverError as error:
                    log.warning(
                        "pins of images could not be removed", host=host.name, reason=error.message
                    )
