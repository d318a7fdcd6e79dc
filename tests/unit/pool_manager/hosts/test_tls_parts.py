"""Transport and files of replicas that dial in: a closed door, and a clock of the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from hosts.tls.authority import LIFE_S, Authority
from hosts.tls.door import LinkDoor
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.tls_parts import AdmittedReplica, FetchedFiles, TlsTransport
from pool_manager.ports import Binding, PythonRun, ServerContainer
from registry.errors import HostDown, StartRefused
from registry.model.bundles import Bundle, BundleFile
from registry.model.servers import Mount
from registry.tasks import Tasks
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.model import ModelSpec
from tests.support.scenes import a_record

ID = "aaaa0001"
FILES = tuple(BundleFile(name, 3, name * 16) for name in ("a", "b", "c", "d"))
BINDING = Binding(
    ModelSpec("digits@1", model="a"),
    Bundle("", FILES[:1]),
    "default",
    "digits",
    1,
    prepared=FILES[1:2],
    compiled=FILES[2:3],
)


class Rig:
    """The parts of one host, with a record of its replica."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_800_000_000.0
        self.tasks = Tasks("test")
        record = replace(a_record(), id=ID, token="secret", host="node1", data="tls://:7443")
        self.records: dict[str, ReplicaRecord] = {ID: replace(record, greeting="ab")}
        services = HostServices(
            announce=lambda _host, _labels, _is_draining: None,
            withdraw=lambda _name, _is_gone: None,
            seen=(),
            records=lambda _name: self.records,
            path=folder.joinpath,
            rewrite=self.rewrite,
            answers=lambda _name: False,
            emit=lambda _event: None,
            changed=lambda _name: None,
            tasks=self.tasks,
            clock=lambda: self.now,
            wall=lambda: self.now,
        )
        authority = Authority.open(folder / "link", 3, lambda: self.now)
        self.door = LinkDoor(TlsAddress("127.0.0.1", 0), None, authority, lambda: self.now)
        self.files = FetchedFiles("node1", self.door, services)
        self.transport, self.other = (
            TlsTransport(name, "cluster", self.door, self.files, services)
            for name in ("node1", "node2")
        )

    def rewrite(self, record: ReplicaRecord) -> None:
        self.records[record.id] = record

    @property
    def record(self) -> ReplicaRecord:
        return self.records[ID]

    def listen(self, *, is_new: bool = True) -> AdmittedReplica:
        """Admit the replica."""
        admitted = self.transport.listen(self.record, is_new=is_new).connections
        assert isinstance(admitted, AdmittedReplica)
        return admitted


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    yield made
    await made.tasks.close()


async def test_a_replica_is_located_once_it_has_enrolled(rig: Rig) -> None:
    """Its address is what the record says, so that a later manager knows it, too."""
    admitted = rig.listen()
    rig.transport.set_down("")
    assert rig.transport.located(rig.record).path == ""
    with pytest.raises(ConnectionError, match="has not enrolled"):
        async with rig.transport.reader(rig.record):
            pass

    sent = await admitted.enrol("fd00::7", 7443)

    assert sent == rig.record
    assert sent.data == "tls://[fd00::7]:7443"
    assert rig.transport.located(sent) == (
        *("tls://[fd00::7]:7443/aaaa0001.replica.fngate", "cluster", "ab", sent.link),
    )
    assert rig.transport.routes == {"cluster": rig.door.gateway_route()}


async def test_all_hosts_of_an_engine_have_one_route(rig: Rig) -> None:
    """It is the same in each message to gateways for half a day; then only it is another one, with
    which a gateway goes on (`TlsConnection.renew`)."""
    route = rig.transport.routes
    rig.now += LIFE_S / 2 - 1
    assert rig.transport.routes == rig.other.routes == route

    rig.now += 1
    renewed = rig.transport.routes
    assert renewed.keys() == route.keys()
    assert rig.other.routes == renewed != route
    assert rig.transport.located(rig.record) == rig.other.located(rig.record)


async def test_a_token_is_used_once(rig: Rig) -> None:
    """Also by a later manager; a replica that was released cannot enrol any more."""
    admitted = rig.listen()
    await admitted.enrol("10.0.0.7", 7443)
    with pytest.raises(HostDown, match="has enrolled before"):
        await admitted.enrol("10.0.0.8", 7443)

    assert rig.listen(is_new=False).is_enrolled
    del rig.records[ID]
    assert admitted.is_enrolled


async def test_a_certificate_is_renewed_at_half_of_its_life(rig: Rig) -> None:
    """The first one came with the enrolment."""
    admitted = rig.listen()
    await admitted.enrol("10.0.0.7", 7443)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        admitted.connected(theirs)
        assert admitted.renewal() is None
        rig.now += LIFE_S / 2 - 1
        assert admitted.renewal() is None
        rig.now += 1
        first = admitted.renewal()
        assert first is not None
        assert admitted.renewal() is None
        rig.now += LIFE_S / 2
        second = admitted.renewal()

    assert second is not None
    assert first["certificate"] != second["certificate"]
    assert first["key"] != second["key"]


async def test_a_replica_that_dials_again_gets_a_new_certificate(rig: Rig) -> None:
    """The last one may be lost, or of an earlier server or a wrong clock."""
    admitted = rig.listen()
    await admitted.enrol("10.0.0.7", 7443)
    pairs = [socket.socketpair() for _ in range(3)]
    admitted.connected(pairs[0][0])
    assert admitted.renewal() is None
    admitted.connected(pairs[1][0])
    assert admitted.renewal() is not None
    assert admitted.renewal() is None
    rig.now -= 3600  # the clock was ahead: peers may find the certificate not yet valid
    assert admitted.renewal() is not None

    later = rig.listen(is_new=False)
    later.connected(pairs[2][0])
    assert later.renewal() is not None
    later.close()
    admitted.close()
    for _, theirs in pairs:
        assert theirs.recv(1) == b""  # `close` has closed what nobody accepted
        theirs.close()


async def test_a_connection_waits_for_its_host(rig: Rig) -> None:
    """Each answer prolongs a lease, so there is none before the host is up."""
    admitted = rig.listen()
    ours, theirs = socket.socketpair()
    admitted.connected(ours)
    accepting = asyncio.ensure_future(admitted.accept())
    await asyncio.sleep(0)
    assert not accepting.done()
    rig.transport.set_down("")
    sock, hello = await accepting
    assert (sock, hello) == (ours, None)
    ours.close()
    theirs.close()


async def test_a_host_that_is_away_is_not_read(rig: Rig) -> None:
    """Its reason is in the error."""
    rig.transport.set_down("the node is gone")
    assert rig.transport.why_down == "the node is gone"
    with pytest.raises(HostDown, match="host node1 is not up: the node is gone"):
        async with rig.transport.reader(rig.record):
            pass


async def test_a_replica_may_fetch_what_it_is_told_to(rig: Rig, tmp_path: Path) -> None:
    """All required files, optional groups that are stored as a whole, and what is added later; not
    before its BIND, and not after its end."""
    (tmp_path / FILES[1].sha256).write_text("b")
    admitted = rig.listen()
    await rig.files.place(ID, BINDING)
    assert admitted.file(FILES[0].sha256) is None

    told = await rig.files.to_fetch(ID, BINDING)
    assert told == [{"path": one.path, "size": 3, "sha256": one.sha256} for one in FILES[:2]]
    more = await rig.files.add(ID, FILES[3:])

    assert [one["path"] for one in more] == ["d"]
    allowed = [admitted.file(one.sha256) for one in FILES]
    assert allowed == [
        tmp_path / one.sha256 if one in (*FILES[:2], FILES[3]) else None for one in FILES
    ]
    assert rig.files.allowed("aaaa0002", FILES[0].sha256) is None
    await rig.files.remove(ID)
    assert admitted.file(FILES[0].sha256) is None


async def test_what_is_on_this_machine_alone_is_refused(rig: Rig) -> None:
    """At the start, with what to do."""
    await rig.files.send(BINDING)
    with pytest.raises(StartRefused, match="no Python environments"):
        await rig.files.send(replace(BINDING, python=PythonRun("env", None)))
    apart = ServerContainer("image", mounts=(Mount("data", "/data", "/data"),))
    with pytest.raises(StartRefused, match="no folders to mount"):
        await rig.files.send(replace(BINDING, container=apart))
