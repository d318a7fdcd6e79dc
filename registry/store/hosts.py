"""Hosts beside the local machine: in the database, and in memory for those that need them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from registry.errors import BadRequest, Conflict, Unknown
from registry.model.hosts import (
    HOSTS_MAX,
    LOCAL_HOST,
    HostKind,
    KubernetesHost,
    SshHost,
    StoredHost,
    where,
)
from registry.names import HOST_LABEL, check_labels, check_name
from registry.store.clusters import check_cluster
from registry.store.database import Database
from registry.store.records import decode_record, encode_record
from runtime_image.contract.proposals import did_you_mean, nearest

ADDRESS_MAX: Final = 320
"""Max characters of [USER@]HOST[:PORT]: a host name has at most 253 (RFC 1035)."""
PATH_MAX: Final = 4096
SOCKET_MAX: Final = 107
"""Max bytes of a Unix socket's path (unix(7))."""
SLOTS_MAX: Final = 256
FILES_MIN_MIB: Final = 64
FILES_MAX_MIB: Final = 2**30
GPUS_MAX: Final = 4096
HOST_KEY_MAX: Final = 16_384
_HOST_KEY: Final = re.compile(r"[a-z][a-z0-9@.-]{2,63} [A-Za-z0-9+/]{16,}={0,2}")
"""Public key as a line of OpenSSH without its comment (sshd(8), AUTHORIZED_KEYS FILE FORMAT)."""

Subscriber = Callable[[str, StoredHost | None], None]
"""Called with the name of a host, and with the host, None if it was removed."""


class HostStore:
    """Durable storage of hosts, with a copy in memory. Single-threaded but for the database."""

    def __init__(self, database: Database, hosts: list[StoredHost]) -> None:
        self._database = database
        self._hosts = {host.name: host for host in hosts}
        self._subscribers: dict[object, Subscriber] = {}
        self._writing = asyncio.Lock()

    @classmethod
    async def open(cls, database: Database) -> HostStore:
        """Read the hosts of a database. Raises StoreUnavailable."""
        rows = await database.read("SELECT record FROM hosts ORDER BY name")
        return cls(database, [_decoded(row[0]) for row in rows])

    def all(self) -> list[StoredHost]:
        """Return every host by name, without the local one."""
        return [self._hosts[name] for name in sorted(self._hosts)]

    def has(self, name: str) -> bool:
        """Return whether there is a host of this name."""
        return name in self._hosts

    def get(self, name: str) -> StoredHost:
        """Return a host. Raises Unknown, naming similar ones."""
        host = self._hosts.get(name)
        if host is None:
            near = nearest(name, self._hosts, 1)
            raise Unknown(f"no host {name[:80]!r}{did_you_mean(near)}")
        return host

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` after each change; return the function that ends this."""
        token = object()
        self._subscribers[token] = subscriber

        def end() -> None:
            self._subscribers.pop(token, None)

        return end

    def check_new(self, host: StoredHost) -> None:
        """Raise BadRequest or Conflict if `add` would refuse the host."""
        check_host(host)
        if host.name in self._hosts:
            raise Conflict(f"there is a host {host.name} already: {where(self._hosts[host.name])}")
        for other in self._hosts.values():
            if type(other) is type(host) and where(other) == where(host):
                # Both would have the same devices.
                raise Conflict(f"{where(host)} is the host {other.name} already")
        if len(self._hosts) >= HOSTS_MAX:
            raise Conflict(f"there are {HOSTS_MAX} hosts already; remove one first")

    async def add(self, host: StoredHost) -> StoredHost:
        """Store a new host. Raises BadRequest, Conflict, StoreUnavailable."""
        async with self._writing:
            self.check_new(host)
            await self._save(host)
        return host

    async def change(self, name: str, changes: dict[str, Any]) -> StoredHost:
        """Change fields of a host, by their names. Raises BadRequest, Unknown, StoreUnavailable."""
        async with self._writing:
            host = replace(self.get(name), **changes)
            check_host(host)
            await self._save(host)
        return host

    async def remove(self, name: str) -> StoredHost:
        """Remove a host and return it. Raises Unknown, StoreUnavailable."""
        async with self._writing:
            host = self.get(name)
            async with self._database.write(is_vital=True) as transaction:
                await transaction.query("DELETE FROM hosts WHERE name = ?", (name,))
            del self._hosts[name]
            self._publish(name, None)
        return host

    async def _save(self, host: StoredHost) -> None:
        async with self._database.write(is_vital=True) as transaction:
            await transaction.query(
                "INSERT OR REPLACE INTO hosts VALUES (?, ?)", (host.name, encode_record(host))
            )
        self._hosts[host.name] = host
        self._publish(host.name, host)

    def _publish(self, name: str, host: StoredHost | None) -> None:
        for subscriber in list(self._subscribers.values()):
            subscriber(name, host)


def check_own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the labels that an operator gives a host. Raises BadRequest."""
    if HOST_LABEL in labels:
        raise BadRequest(f"labels: every host has the label {HOST_LABEL}=NAME; choose another key")
    return check_labels(labels)


def _decoded(record: str) -> StoredHost:
    if decode_record(record, HostKind).kind == "ssh":
        return decode_record(record, SshHost)
    return decode_record(record, KubernetesHost)


def check_host(host: StoredHost) -> None:
    """Raise BadRequest for the first field that is not valid. Only the host can check the rest."""
    check_name(host.name)
    if host.name == LOCAL_HOST:
        raise BadRequest(f"{LOCAL_HOST!r} is the name of the machine that the server runs on")
    check_own_labels(host.labels)
    if isinstance(host, SshHost):
        _check_login(host)
    else:
        check_cluster(host)


def _check_login(host: SshHost) -> None:
    _check_text("address", host.address, ADDRESS_MAX)
    _check_text("identity", host.identity, PATH_MAX)
    _check_text("gpus", host.gpus, GPUS_MAX)
    _check_text("engine", host.engine, SOCKET_MAX)
    if host.identity and not host.identity.startswith(("/", "~")):
        raise BadRequest(
            "identity: expected the absolute path of a private key on the server's machine, got"
            f" {host.identity[:80]!r}"
        )
    if not host.address:
        raise BadRequest("address: expected [USER@]HOST[:PORT], got nothing")
    if not host.engine.startswith("/"):
        raise BadRequest(
            f"engine: expected the absolute path of a Unix socket, got {host.engine!r}"
        )
    if not host.gpus:
        raise BadRequest("gpus: expected 'all', 'none' or numbers and UUIDs, got nothing")
    _check_range("cpu_slots", host.cpu_slots, 0, SLOTS_MAX)
    _check_range("files_mib", host.files_mib, FILES_MIN_MIB, FILES_MAX_MIB)
    if host.host_key:
        _check_text("host_key", host.host_key, HOST_KEY_MAX)
        if _HOST_KEY.fullmatch(host.host_key) is None:
            raise BadRequest(
                "host_key: expected a public key such as 'ssh-ed25519 AAAA...', got"
                f" {host.host_key[:80]!r}"
            )


def _check_text(field: str, value: str, most: int) -> None:
    if len(value.encode(errors="replace")) > most or not value.isprintable():
        raise BadRequest(
            f"{field}: expected at most {most} bytes of printable text, got {value[:80]!r}"
        )


def _check_range(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadRequest(f"{field}: expected {least} to {most}, got {value}")
