"""Upgrades on request: one at a time, each with one result."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.compiled import CompiledModel, UpgradeResult
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.errors import LoadError
from runtime_image.contract.link import VERSION, Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.loading import load_engine
from runtime_image.link.frames import Frame, LinkError
from runtime_image.replica.upgrading import BUSY, Upgrades, read_upgrade
from tests.support import compiled as compiling
from tests.support import models

WAIT_S = 60.0


class Scene:
    """Upgrades of one engine; what they post is run by the test."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self.engine = load_engine(spec, folder, device_kind="cpu", threads=1)
        self.limits: list[int] = []
        self.fetch: Callable[[list[FetchedFile]], None] = lambda _files: None
        self.results: list[UpgradeResult] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._is_posted = threading.Semaphore(0)
        record = ReplicaRecord(
            *("a", "t", "serve", "default", "default/digits@1", str(folder), ("cpu:0",), "cpu"),
            engine="onnx",
            threads=1,
            orphan_s=0.0,
            memory_mib=0,
            launched_s=0.0,
            link=VERSION,
        )
        self.upgrades = Upgrades(
            self.engine,
            spec,
            record,
            fetch=lambda files: self.fetch(files),
            limit_rows=self.limits.append,
            post=self._post,
            report=self.results.append,
        )

    def _post(self, work: Callable[[], None]) -> None:
        self._posted.append(work)
        self._is_posted.release()

    def turn(self) -> None:
        """Run what one upgrade posts at its end."""
        assert self._is_posted.acquire(timeout=WAIT_S)
        self._posted.popleft()()


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    return compiling.spec(models.add_one(tmp_path))


@pytest.fixture
def compiled(tmp_path: Path, spec: ModelSpec) -> CompiledModel:
    return compiling.compile_in(tmp_path, spec)


def test_upgrades_run_one_after_the_other(
    tmp_path: Path, spec: ModelSpec, compiled: CompiledModel
) -> None:
    """A second one meanwhile is refused; afterwards the same key is done at once, and a failed one
    may be tried again. Joined rows are limited before the exchange."""
    scene = Scene(tmp_path, compiling.serving(spec, None))
    other = replace(compiled, key="other")

    scene.upgrades.start(other, [])
    scene.upgrades.start(compiled, [])
    scene.turn()
    scene.upgrades.start(compiled, [])
    scene.turn()
    scene.upgrades.start(compiled, [])

    busy, failed, done, again = scene.results
    assert busy == {"session": "original", "reason": BUSY}
    assert failed["reason"].startswith("another key")
    assert done == again == {"session": "compiled", "reason": ""}
    assert scene.limits == [8]
    assert scene.upgrades.abandon() is False


def test_a_replica_that_starts_compiled_is_limited(
    tmp_path: Path, spec: ModelSpec, compiled: CompiledModel
) -> None:
    """Its key is known, so an upgrade to it is done at once."""
    scene = Scene(tmp_path, compiling.serving(spec, compiled))
    scene.upgrades.start(compiled, [])

    assert scene.limits == [8]
    assert scene.results == [{"session": "compiled", "reason": ""}]


def test_a_replica_without_its_compiled_model_is_not_limited(
    tmp_path: Path, spec: ModelSpec, compiled: CompiledModel
) -> None:
    """The ordinary session takes any number of rows."""
    scene = Scene(tmp_path, compiling.serving(spec, replace(compiled, key="other")))

    assert scene.engine.session == "original"
    assert scene.limits == []


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"compiled": 7}', b'{"compiled": {}}', b"[" * 100_000, b"\xff"],
)
def test_a_malformed_upgrade_is_an_error_of_the_link(body: bytes) -> None:
    """Whatever the body is."""
    with pytest.raises(LinkError, match="malformed UPGRADE"):
        read_upgrade(frame(body))


def test_an_upgrade_carries_a_compiled_model(compiled: CompiledModel) -> None:
    """As JSON of its fields, with the files to fetch, if any."""
    body = {"compiled": asdict(compiled)}
    assert read_upgrade(frame(json.dumps(body).encode())) == (compiled, [])
    file: FetchedFile = {"path": "a", "size": 1, "sha256": "0" * 64}
    assert read_upgrade(frame(json.dumps({**body, "files": [file]}).encode())) == (compiled, [file])


def test_files_are_fetched_before_the_exchange(
    tmp_path: Path, spec: ModelSpec, compiled: CompiledModel
) -> None:
    """Outside the loop's thread, which serves meanwhile; another upgrade is refused until then. One
    whose files cannot be fetched has that as its reason, and leaves the session."""
    scene = Scene(tmp_path, compiling.serving(spec, None))
    file: FetchedFile = {"path": "a", "size": 1, "sha256": "0" * 64}
    threads: list[str] = []
    reasons = iter(["the server is away", ""])

    def fetch(files: list[FetchedFile]) -> None:
        assert files == [file]
        threads.append(threading.current_thread().name)
        if reason := next(reasons):
            raise LoadError(reason)

    scene.fetch = fetch
    scene.upgrades.start(compiled, [file])
    scene.upgrades.start(compiled, [file])
    scene.turn()
    scene.upgrades.start(compiled, [file])
    scene.turn()
    scene.turn()

    busy, failed, done = scene.results
    assert busy["reason"] == BUSY
    assert failed == {"session": "original", "reason": "the server is away"}
    assert done == {"session": "compiled", "reason": ""}
    assert threading.current_thread().name not in threads


def frame(body: bytes) -> Frame:
    fields: dict[str, Any] = {"flags": 0, "id": 0, "aux": 0, "meta": b""}
    return Frame(kind=Kind.UPGRADE, body=body, **fields)
