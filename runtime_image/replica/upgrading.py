"""Upgrades of a serving replica to a compiled model, as the manager asks for them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime_image.contract.compiled import CompiledModel, UpgradeResult, compiled_from_json
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.base import Engine
from runtime_image.engines.upgrade import SessionUpgrade
from runtime_image.link.frames import Frame, LinkError
from runtime_image.replica.worker import end_process

BUSY: Final = "another upgrade is in progress"
REASON_MAX: Final = 4000


def read_upgrade(frame: Frame) -> tuple[CompiledModel, list[FetchedFile]]:
    """Return the compiled model of an UPGRADE, and the files to fetch. Raises LinkError."""
    try:
        data = json.loads(frame.body)
        return compiled_from_json(data["compiled"]), data.get("files", [])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LinkError(f"malformed UPGRADE: {error!r}"[:300]) from error


class Upgrades:
    """Upgrades one engine at a time. Used in the loop's thread."""

    def __init__(  # noqa: PLR0913 - what an upgrade needs of its replica
        self,
        engine: Engine,
        spec: ModelSpec,
        record: ReplicaRecord,
        *,
        fetch: Callable[[list[FetchedFile]], object],
        limit_rows: Callable[[int], None],
        post: Callable[[Callable[[], None]], None],
        report: Callable[[UpgradeResult], None],
    ) -> None:
        """`fetch(files)` adds files to the model folder, blocking, or raises LoadError;
        `limit_rows(rows)` bounds joined runs; `post` runs something in the loop, where `report` is
        called once for every upgrade."""
        self._engine = engine
        self._spec = spec
        self._record = record
        self._fetch = fetch
        self._limit_rows = limit_rows
        self._post = post
        self._report = report
        self._current: SessionUpgrade | None = None
        self._is_fetching = False
        compiled = spec.compiled if engine.session == "compiled" else None
        self._key = compiled.key if compiled is not None else ""
        if compiled is not None:
            self._limit(compiled)

    def start(self, compiled: CompiledModel, files: list[FetchedFile]) -> None:
        """Exchange the session for that of `compiled`, between two runs, once its `files` are
        fetched; report the result."""
        if self._current is not None or self._is_fetching:
            self._finish(BUSY)
        elif compiled.key == self._key:
            self._finish("")
        elif files:
            self._is_fetching = True
            work = (compiled, files)
            threading.Thread(target=self._add, args=work, name="add", daemon=True).start()
        else:
            self._start(compiled)

    def abandon(self) -> bool:
        """Prevent further building. True if ONNX Runtime is building."""
        return self._current is not None and self._current.abandon()

    def _add(self, compiled: CompiledModel, files: list[FetchedFile]) -> None:
        """Fetch files, in a thread of its own: the replica serves on."""
        reason = ""
        try:
            self._fetch(files)
        except LoadError as error:
            reason = str(error)
        except BaseException as error:  # noqa: BLE001 - a thread's error would be lost
            end_process(error)
        self._post(lambda: self._added(compiled, reason))

    def _added(self, compiled: CompiledModel, reason: str) -> None:
        self._is_fetching = False
        if reason:
            self._finish(reason)
        else:
            self._start(compiled)

    def _start(self, compiled: CompiledModel) -> None:
        from runtime_image.engines.compiled import Place, compiled_upgrade

        record = self._record
        place = Place(self._spec, Path(record.model_dir), record.device_kind, record.threads)
        upgrade = compiled_upgrade(
            self._engine,
            place,
            compiled,
            before=lambda: self._limit(compiled),
            ended=lambda reason: self._post(lambda: self._end(compiled.key, reason)),
        )
        if isinstance(upgrade, str):
            self._finish(upgrade)
            return
        self._current = upgrade
        upgrade.start(record.memory_mib)

    def _limit(self, compiled: CompiledModel) -> None:
        from runtime_image.compilers.ranges import rows_max

        self._limit_rows(rows_max(compiled.ranges))

    def _end(self, key: str, reason: str) -> None:
        self._current = None
        if not reason:
            self._key = key
        self._finish(reason)

    def _finish(self, reason: str) -> None:
        self._report({"session": self._engine.session, "reason": reason[:REASON_MAX]})
