"""One other host over a real sshd, without an engine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pool_manager.core import events
from pool_manager.hosts.remote_host import RemoteHost
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings
from pool_manager.settings import PoolSettings
from registry.model.hosts import SshHost
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord
from tests.support.modelled import Clock
from tests.support.operator import until
from tests.support.sshd import SFTP, Sshd, sshd

pytestmark = pytest.mark.slow


@pytest.fixture
def far(leaks: object) -> Iterator[Sshd]:
    # The path of a socket below it must be short.
    with tempfile.TemporaryDirectory(prefix="fn-") as folder, sshd(Path(folder, "s")) as server:
        yield server


@pytest.fixture
async def host(far: Sshd, tmp_path: Path) -> AsyncIterator[RemoteHost]:
    tasks, clock = Tasks("test"), Clock()
    said: list[events.Event] = []
    records: dict[str, ReplicaRecord] = {}
    services = HostServices(
        announce=lambda _host, _labels, _is_draining: None,
        withdraw=lambda _name, _is_gone: None,
        seen=(),
        records=lambda _name: records,
        path=tmp_path.joinpath,
        rewrite=lambda _record: None,
        answers=lambda _name: False,
        emit=said.append,
        changed=lambda _name: None,
        tasks=tasks,
        clock=clock,
        wall=clock,
    )
    address, key = far.target, far.host_key
    definition = SshHost("gpu2", address=address, host_key=key, identity=str(far.identity))
    settings = HostSettings("server", {}, range(1))
    made = RemoteHost(definition, settings, PoolSettings(tmp_path, tmp_path, tmp_path), services)
    made.open()
    yield made
    await made.close()
    await tasks.close()


async def test_a_host_that_is_being_joined_has_answered(host: RemoteHost) -> None:
    """Sending an image may take minutes."""
    seen = {host.why_down}
    await until(lambda: seen.add(host.why_down) or "no runtime image" in host.reason)

    assert "connected; it is being prepared" in seen
    assert "no runtime image" in host.why_down


async def test_a_host_that_lost_its_files_gets_its_folders_again(
    far: Sshd, host: RemoteHost
) -> None:
    """As after a boot with an empty home folder: the control socket needs its folder, which is made
    before it, so that the connection stays."""
    base = far.folder / ".fngate" / host.owner
    socket = base / "control/ctl.sock"
    await until(lambda: "no runtime image" in host.reason)
    assert socket.is_socket()
    far.stop()
    await until(lambda: not host.connection.is_up)
    shutil.rmtree(base)

    far.start(SFTP)
    await until(lambda: host.connection.generation > 1 and "no runtime image" in host.reason)

    assert socket.is_socket()
    assert host.connection.is_up
    assert host.connection.generation == 2
