"""Upgrades of a serving replica to a compiled model, as the manager asks for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime_image.contract.compiled import CompiledModel, UpgradeResult, compiled_from_json
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.base import Engine
from runtime_image.engines.upgrade import SessionUpgrade
from runtime_image.link.frames import Frame, LinkError

BUSY: Final = "another upgrade is in progress"
REASON_MAX: Final = 4000


def read_upgrade(frame: Frame) -> CompiledModel:
    """Return the compiled model of an UPGRADE. Raises LinkError."""
    try:
        return compiled_from_json(json.loads(frame.body)["compiled"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LinkError(f"malformed UPGRADE: {error!r}"[:300]) from error


class Upgrades:
    """Upgrades one engine at a time. Used in the loop's thread."""

    def __init__(
        self,
        engine: Engine,
        spec: ModelSpec,
        record: ReplicaRecord,
        *,
        limit_rows: Callable[[int], None],
        post: Callable[[Callable[[], None]], None],
        report: Callable[[UpgradeResult], None],
    ) -> None:
        """`limit_rows(rows)` bounds joined runs; `post` runs something in the loop, where `report`
        is called once for every upgrade."""
        self._engine = engine
        self._spec = spec
        self._record = record
        self._limit_rows = limit_rows
        self._post = post
        self._report = report
        self._current: SessionUpgrade | None = None
        compiled = spec.compiled if engine.session == "compiled" else None
        self._key = compiled.key if compiled is not None else ""
        if compiled is not None:
            self._limit(compiled)

    def start(self, compiled: CompiledModel) -> None:
        """Exchange the session for that of `compiled`, between two runs; report the result."""
        if self._current is not None:
            self._finish(BUSY)
        elif compiled.key == self._key:
            self._finish("")
        else:
            self._start(compiled)

    def abandon(self) -> bool:
        """Prevent further building. True if ONNX Runtime is building."""
        return self._current is not None and self._current.abandon()

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
