"""What goes over the wire beside what was asked for."""

from __future__ import annotations

from pathlib import Path

from hosts.connection import HostConnection
from hosts.login import Login, parse_target
from registry.tasks import Tasks
from tests.support.sshd import sshd


async def test_no_packet_is_sent_to_be_ignored(tmp_path: Path) -> None:
    """Half of all packets of asyncssh are, which only ciphers in CBC mode need."""
    with sshd(tmp_path / "ssh", "LogLevel DEBUG3") as server:
        tasks = Tasks("test")
        login = Login(parse_target(server.target), server.identity, server.known_hosts)
        connection = HostConnection(login, tasks, name="gpu2")
        connection.open()
        await connection.wait_up(30)
        at = len(server.log.read_text())

        await connection.run("true", timeout_s=30)
        said = server.log.read_text()[at:]

        await connection.close()
        await tasks.close()
    assert "receive packet: type 98" in said  # the command
    assert "receive packet: type 2\n" not in said
