"""What a replica says of itself over its control link, checked: it may run foreign code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from pool_manager.core import events
from runtime_image.contract.control import PHASES
from runtime_image.contract.link import REFUTATION_MAX
from runtime_image.link.frames import Frame, LinkError

LIMIT_MAX: Final = 65536
"""Requests at once."""
NUMBER_MAX: Final = 1e9
"""More than any replica has milliseconds or MiB."""
REASON_MAX: Final = 4000
STAGE_MAX: Final = 20
WORDS: Final = "fngate replica: "
"""How the line begins in which a replica gives itself up."""
_REPORTED: Final = ("load_ms", "memory_mib")


def loaded(id: str, data: dict[str, Any]) -> events.Loaded:
    """LOADED, or what HELLO says of it. Raises LinkError."""
    limit, memory = data.get("limit"), data.get("memory_mib")
    if not isinstance(limit, int) or not 0 <= limit <= LIMIT_MAX:
        raise LinkError(f"malformed LOADED: limit {limit!r}")
    if not isinstance(memory, int | float) or not is_number(memory):
        raise LinkError(f"malformed LOADED: memory_mib {memory!r}")
    return events.Loaded(
        id,
        limit,
        bool(data.get("marks_started", True)),
        float(memory),
        numbers(data.get("phases", {})),
        _report(data.get("report")),
        text(data.get("batching_off", ""), REFUTATION_MAX),
    )


def batching_off(id: str, data: dict[str, Any]) -> events.BatchingRefuted:
    """BATCHING_OFF."""
    reason = text(data.get("reason", ""), REFUTATION_MAX) or "it gave no reason"
    return events.BatchingRefuted(id, reason)


def load_failed(id: str, data: dict[str, Any]) -> events.Lost:
    """LOAD_FAILED."""
    reason, stage = text(data.get("reason", ""), REASON_MAX), text(data.get("stage", ""), STAGE_MAX)
    return events.Lost(id, reason, stage=stage)


def last_words(lines: Sequence[str]) -> str:
    """Why a replica could not even begin, by the last of its `lines`; "" where it does not say."""
    said = lines[-1] if lines else ""
    return text(said.removeprefix(WORDS), REASON_MAX) if said.startswith(WORDS) else ""


def numbers(data: Any) -> dict[str, float]:
    """Phases in milliseconds: numbers by known, short names. What is none is left out."""
    if not isinstance(data, dict):
        return {}
    return {name: round(float(data[name]), 3) for name in PHASES if is_number(data.get(name))}


def text(value: Any, length_max: int) -> str:
    """As text that can be stored and sent: JSON may hold halves of characters."""
    return str(value)[:length_max].encode("utf-8", "replace").decode()


def read(frame: Frame) -> dict[str, Any]:
    """A frame's JSON object. Raises LinkError."""
    try:
        data = json.loads(frame.body)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"malformed {frame.kind.name}: {error}") from error
    if not isinstance(data, dict):
        raise LinkError(f"malformed {frame.kind.name}: not an object")
    return data


def _report(data: Any) -> dict[str, Any]:
    """What a trial measured; who asked for it checks the rest. Its numbers decide about others."""
    if not isinstance(data, dict):
        return {}
    for name in _REPORTED:
        if name in data and not is_number(data[name]):
            raise LinkError(f"malformed LOADED: report {name} {data[name]!r}")
    latencies = data.get("latency_ms", {})
    if not isinstance(latencies, dict) or not all(map(is_number, latencies.values())):
        raise LinkError("malformed LOADED: report latency_ms")
    if not _is_text(data):
        raise LinkError("malformed LOADED: report holds what is no text")
    return data


def is_number(value: Any) -> bool:
    """Not NaN, which is neither more nor less than anything it is compared with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= NUMBER_MAX


def _is_text(data: dict[str, Any]) -> bool:
    """Whether it can be stored: no halves of characters, and no bottomless lists."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
