"""Real replicas that dial in and fetch their files; the test is their server."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from runtime_image.contract.enrolment import Fetch, FetchedFile
from runtime_image.contract.link import Kind
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import Frame
from tests.support.blocking import BlockingLink
from tests.support.dial_in_replica import DialInReplica
from tests.support.remote_replica import MODEL_ROW

pytestmark = pytest.mark.slow


class Files:
    """The model folder of a replica, whose files are taken away and served by content instead."""

    def __init__(self, replica: DialInReplica) -> None:
        self._replica = replica
        self._contents: dict[str, bytes] = {}
        self.named: list[FetchedFile] = []
        for path in sorted(replica.model_dir.iterdir()):
            content = path.read_bytes()
            path.unlink()
            sha256 = hashlib.sha256(content).hexdigest()
            self._contents[sha256] = content
            self.named.append({"path": path.name, "size": len(content), "sha256": sha256})

    def serve(self, count: int = 0) -> None:
        """Answer as many FETCHes of one connection, all files by default."""
        link, frame = self._replica.door.fetcher()
        for number in range(count or len(self.named)):
            frame = link.next(Kind.FETCH) if number else frame
            asked: Fetch = json.loads(frame.body)
            at = asked["offset"]
            part = self._contents[asked["sha256"]][at : at + asked["length"]]
            link.send(Kind.PART, frame.id, part)
            link.send(Kind.END, frame.id)

    def refuse(self) -> None:
        """Answer one FETCH with other bytes."""
        link, frame = self._replica.door.fetcher()
        asked: Fetch = json.loads(frame.body)
        link.send(Kind.PART, frame.id, bytes(asked["length"]))
        link.send(Kind.END, frame.id)


@pytest.fixture
def root() -> Iterator[Path]:
    with TemporaryDirectory(prefix="fn-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(params=["model", "server"])
def replica(request: pytest.FixtureRequest, root: Path) -> Iterator[DialInReplica]:
    """A model with a handler, and a server, each without its files."""
    argv = (sys.executable, "-I", "server.py", "${PORT}")
    spec: dict[str, Any] = {}
    if request.param == "server":
        spec["spec"] = ServerSpec("web@1", argv, start_s=60.0)
    with closing(DialInReplica(root, **spec)) as made:
        yield made


def pong(link: BlockingLink) -> Frame:
    link.send(Kind.PING)
    return link.next(Kind.PONG)


def test_files_are_fetched_before_the_load(replica: DialInReplica) -> None:
    """The replica answers PING meanwhile. LOADED has the phase; a second BIND changes nothing."""
    files = Files(replica)
    link = replica.greeted()
    replica.bind(link, files.named)
    replica.bind(link, files.named)
    pong(link)
    files.serve()

    loaded = json.loads(link.next(Kind.LOADED).body)
    assert loaded["phases"]["fetch"] > 0
    assert loaded["phases"]["load"] > 0
    assert {path.name for path in replica.model_dir.iterdir()} >= {
        one["path"] for one in files.named
    }
    if not isinstance(replica.spec, ServerSpec):
        data = replica.connect()
        data.hello()
        data.request(1, body=MODEL_ROW)
        assert data.answer().kind is Kind.RESPONSE


def test_what_is_there_is_not_fetched(replica: DialInReplica) -> None:
    """Then there is no phase."""
    contents = {path: path.read_bytes() for path in replica.model_dir.iterdir()}
    files = Files(replica)
    for path, content in contents.items():
        path.write_bytes(content)
    link = replica.greeted()
    replica.bind(link, files.named)
    assert "fetch" not in json.loads(link.next(Kind.LOADED).body)["phases"]


def test_a_fetch_that_fails_is_a_failed_load(replica: DialInReplica) -> None:
    """With its stage and both hashes."""
    files = Files(replica)
    link = replica.greeted()
    replica.bind(link, files.named)
    files.refuse()

    failed = json.loads(link.next(Kind.LOAD_FAILED).body)
    assert failed["stage"] == "fetch"
    assert f"sha256 {files.named[0]['sha256']}, got " in failed["reason"]


def test_a_replica_that_ends_waits_for_no_fetch(replica: DialInReplica) -> None:
    """A request to end ends it in the middle of one."""
    files = Files(replica)
    link = replica.greeted()
    replica.bind(link, files.named)
    _open, _frame = replica.door.fetcher()
    replica.signal(signal.SIGTERM)
    assert replica.exit() == 0
