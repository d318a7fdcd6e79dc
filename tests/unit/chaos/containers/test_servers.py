"""What a server's log may complain of."""

from __future__ import annotations

import json
from pathlib import Path

from tests.chaos.containers.servers import EXCUSED, complaints, leftovers
from tests.support.process_server import ServerProcess


def test_only_the_engines_absence_is_excused(tmp_path: Path) -> None:
    """Any other error and every traceback is a complaint."""
    server = ServerProcess(tmp_path)
    other = json.dumps({"event": "a background task died", "level": "error"})
    server.complaints.extend([json.dumps({"event": event}) for event in EXCUSED])
    server.complaints.extend([other + "\n", "Traceback (most recent call last):\n"])

    assert complaints(server) == [other, "Traceback (most recent call last):"]


def test_folders_of_replicas_are_leftovers(tmp_path: Path) -> None:
    """Both that of its sockets and that of its model; others are not."""
    for name in ("run/aaaa0001", "replicas/aaaa0001", "blobs/aa"):
        (tmp_path / name).mkdir(parents=True)

    found = leftovers(ServerProcess(tmp_path))

    assert sorted(found) == [str(tmp_path / name) for name in ("replicas/aaaa0001", "run/aaaa0001")]
