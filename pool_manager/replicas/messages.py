"""Checks of replicas' messages on their control links.

Replicas may run foreign code: numbers, texts and nesting have limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, cast, get_args

from pool_manager.core import events
from pool_manager.core.health.liveness import Reading
from pool_manager.core.state import State
from runtime_image.contract.control import PHASES, WAKE_PHASES, SessionName
from runtime_image.contract.gpus import Reading as GpuReading
from runtime_image.contract.health import SAID_MAX, Learnt, Ready
from runtime_image.contract.link import REFUTATION_MAX
from runtime_image.contract.parks import LifeCommand, LifeState, life_from, state_from
from runtime_image.contract.samples import REASON_MAX as SAMPLE_REASON_MAX
from runtime_image.contract.samples import Sampled, SampleVerdict
from runtime_image.link.frames import Frame, LinkError

LIMIT_MAX: Final = 65536
"""Largest accepted number of concurrent requests of a replica."""
NUMBER_MAX: Final = 1e9
"""Upper bound of plausible numbers (milliseconds, MiB) from a replica."""
COUNT_MAX: Final = 10**9
"""Largest accepted whole number of anything else."""
TOTAL_MAX: Final = 2**63
"""Largest accepted total of bytes."""
COUNTER_MAX: Final = 1e300
"""Largest accepted value of a metric; NaN and infinity are over it."""
REASON_MAX: Final = 4000
STAGE_MAX: Final = 20
VERDICTS: Final = frozenset(SampleVerdict)
STATUS_MAX: Final = 999
GPUS_MAX: Final = 64
"""Max GPUs of one replica."""
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
LINE_MAX: Final = 100
"""Max characters of what a probe met."""
WORDS: Final = "fngate replica: "
"""Prefix of the log line with which a replica exits on its own."""
_REPORTED: Final = ("load_ms", "memory_mib")
_READY: Final = frozenset({"", *Ready})
_SESSIONS: Final = frozenset(get_args(SessionName))


def parse_loaded(id: str, data: dict[str, Any]) -> events.Loaded:
    """Parse the body of LOADED, or the same object in HELLO. Raises LinkError."""
    limit, memory = data.get("limit"), data.get("memory_mib")
    if not isinstance(limit, int) or not 0 <= limit <= LIMIT_MAX:
        raise LinkError(f"malformed LOADED: limit {limit!r}")
    if not isinstance(memory, int | float) or not is_number(memory):
        raise LinkError(f"malformed LOADED: memory_mib {memory!r}")
    try:
        ready_for_s, learnt = number(data.get("ready_for_s", 0.0)), _learnt(data.get("learnt"))
        life = state_from(data.get("life")) or LifeState.READY
    except ValueError as error:
        raise LinkError(f"malformed LOADED: {error}") from error
    return events.Loaded(
        id,
        limit,
        bool(data.get("marks_started", True)),
        float(memory),
        parse_numbers(data.get("phases", {})),
        _report(data.get("report")),
        text(data.get("batching_off", ""), REFUTATION_MAX),
        _session(data.get("session")),
        text(data.get("not_compiled", ""), REASON_MAX),
        ready_for_s,
        learnt,
        State(life),
        is_unparkable=data.get("life") is None,
        has_slept=data.get("has_slept") is True,
        gpus=parse_gpus(data.get("gpus")),
    )


def parse_gpus(value: Any) -> tuple[GpuReading, ...]:
    """Parse the GPUs of a HELLO or a LOADED, None for none. Raises LinkError."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > GPUS_MAX:
        raise LinkError(f"expected a list of at most {GPUS_MAX} GPUs, got {str(value)[:80]!r}")
    try:
        return tuple(_gpu(one) for one in value)
    except ValueError as error:
        raise LinkError(f"malformed GPU: {error}") from error


def _gpu(value: Any) -> GpuReading:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {str(value)[:80]!r}")
    uuid = value.get("uuid")
    if not isinstance(uuid, str) or _UUID.fullmatch(uuid) is None:
        raise ValueError(f"expected a UUID, got {str(uuid)[:80]!r}")
    total, used = value.get("total_mib"), value.get("used_mib")
    return GpuReading(
        uuid,
        "",
        total_mib=None if total is None else number(total),
        used_mib=None if used is None else number(used),
    )


def _learnt(value: Any) -> Learnt | None:
    """Return a `Learnt` from HELLO, None for none. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {str(value)[:80]!r}")
    seconds = (number(value.get("usual_s")), number(value.get("longest_s")))
    return Learnt(count(value.get("known")), *seconds)


def parse_probed(id: str, data: dict[str, Any]) -> events.Probed:
    """Parse the body of PROBED. Raises LinkError."""
    status, seconds = data.get("status"), data.get("seconds")
    if type(status) is not int or not 0 <= status <= STATUS_MAX:
        raise LinkError(f"malformed PROBED: status {str(status)[:40]!r}")
    if not is_number(seconds):
        raise LinkError(f"malformed PROBED: seconds {str(seconds)[:40]!r}")
    path, answer = _line(data.get("path", "")), _line(data.get("answer", ""))
    return events.Probed(id, path, status, answer, float(cast("float", seconds)))


def _line(value: Any) -> str:
    """Return `value` as one printable line of at most LINE_MAX characters."""
    return "".join(char if char.isprintable() else "?" for char in text(value, LINE_MAX))


def parse_upgraded(id: str, data: dict[str, Any]) -> events.Upgraded:
    """Parse the body of UPGRADED. Raises LinkError unless it names a session and, for any but the
    compiled one, a reason. A replica that keeps an older compiled session has a reason, too."""
    session, reason = _session(data.get("session")), text(data.get("reason", ""), REASON_MAX)
    if not session or (session != "compiled" and not reason):
        raise LinkError(
            f"malformed UPGRADED: session {str(data.get('session'))[:40]!r}, reason {reason[:80]!r}"
        )
    return events.Upgraded(id, session, reason)


def parse_health(id: str, data: dict[str, Any]) -> events.Observed:
    """Parse the body of HEALTH. Raises LinkError."""
    ready = data.get("ready", "")
    if not isinstance(ready, str) or ready not in _READY:
        raise LinkError(f"malformed HEALTH: ready {text(ready, 40)!r}")
    try:
        reading = Reading(
            open=count(data.get("open")),
            moved=count(data.get("moved"), TOTAL_MAX),
            given=count(data.get("given"), TOTAL_MAX),
            unread=bool(data.get("unread")),
            counter=_finite(data.get("counter")),
            cpu=None if data.get("cpu") is None else number(data.get("cpu")),
            is_traced=bool(data.get("is_traced")),
            probes=count(data.get("probes")),
            ready=Ready(ready) if ready else None,
            said=text(data.get("said", ""), SAID_MAX),
        )
    except ValueError as error:
        raise LinkError(f"malformed HEALTH: {error}") from error
    return events.Observed(id, reading)


def _finite(value: Any) -> float | None:
    """Return the value of a metric, None for anything but a finite number."""
    is_finite = type(value) in (int, float) and abs(value) <= COUNTER_MAX
    return float(value) if is_finite else None


def _session(value: Any) -> str:
    """Return a session's name, "" for anything else."""
    return value if isinstance(value, str) and value in _SESSIONS else ""


def parse_batching_off(id: str, data: dict[str, Any]) -> events.BatchingRefuted:
    """Parse the body of BATCHING_OFF."""
    reason = text(data.get("reason", ""), REFUTATION_MAX) or "no reason given"
    return events.BatchingRefuted(id, reason)


def parse_sampled(data: dict[str, Any]) -> Sampled:
    """Parse the body of SAMPLED. Raises LinkError."""
    verdict, ms = data.get("verdict"), data.get("ms")
    if not isinstance(verdict, str) or verdict not in VERDICTS:
        raise LinkError(f"malformed SAMPLED: verdict {str(verdict)[:40]!r}")
    try:
        took_ms = number(ms)
    except ValueError as error:
        raise LinkError(f"malformed SAMPLED: ms: {error}") from error
    reason = text(data.get("reason", ""), SAMPLE_REASON_MAX)
    return {"verdict": verdict, "ms": took_ms, "reason": reason}


def parse_life(
    id: str, data: dict[str, Any]
) -> events.ParkAnswered | events.UnparkAnswered | events.Verified:
    """Parse the body of LIFE. Raises LinkError."""
    try:
        command, problem, took_s, host_mib = life_from(data)
    except ValueError as error:
        raise LinkError(f"malformed LIFE: {error}") from error
    problem = text(problem, SAMPLE_REASON_MAX)
    match command:
        case LifeCommand.PARK:
            return events.ParkAnswered(id, problem, took_s)
        case LifeCommand.UNPARK:
            return events.UnparkAnswered(id, problem, took_s, host_mib)
        case LifeCommand.VERIFY:
            return events.Verified(id, problem)


def parse_load_failed(id: str, data: dict[str, Any]) -> events.Lost:
    """Parse the body of LOAD_FAILED."""
    reason, stage = text(data.get("reason", ""), REASON_MAX), text(data.get("stage", ""), STAGE_MAX)
    return events.Lost(id, reason, stage=stage)


def last_words(lines: Sequence[str]) -> str:
    """Return the reason in a replica's last log line if it exited on its own, else ""."""
    said = lines[-1] if lines else ""
    return text(said.removeprefix(WORDS), REASON_MAX) if said.startswith(WORDS) else ""


def parse_numbers(data: Any) -> dict[str, float]:
    """Return phases in milliseconds by the known names of a start; drops unknown names and invalid
    values. The manager itself measures a wake."""
    if not isinstance(data, dict):
        return {}
    names = (name for name in PHASES if name not in WAKE_PHASES)
    return {name: round(float(data[name]), 3) for name in names if is_number(data.get(name))}


def number(value: Any) -> float:
    """Return a number that is_number accepts. Raises ValueError."""
    if not is_number(value):
        raise ValueError(f"expected a number from 0 to {NUMBER_MAX:g}, got {str(value)[:80]!r}")
    return float(value)


def count(value: Any, most: int = COUNT_MAX) -> int:
    """Return a whole number from 0 to `most`. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"expected a whole number from 0 to {most}, got {str(value)[:80]!r}")
    return value


def text(value: Any, length_max: int) -> str:
    """Return `value` as valid text of limited length: JSON may contain lone surrogates."""
    return str(value)[:length_max].encode("utf-8", "replace").decode()


def parse_frame(frame: Frame) -> dict[str, Any]:
    """Return a frame's JSON object. Raises LinkError."""
    try:
        data = json.loads(frame.body)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"malformed {frame.kind.name}: {error}") from error
    if not isinstance(data, dict):
        raise LinkError(f"malformed {frame.kind.name}: not an object")
    return data


def _report(data: Any) -> dict[str, Any]:
    """Return a trial's report. Its numbers are validated here, because they affect decisions about
    other replicas; the deploy validates the rest. Raises LinkError."""
    if not isinstance(data, dict):
        return {}
    for name in _REPORTED:
        if name in data and not is_number(data[name]):
            raise LinkError(f"malformed LOADED: report {name} {data[name]!r}")
    latencies = data.get("latency_ms", {})
    if not isinstance(latencies, dict) or not all(map(is_number, latencies.values())):
        raise LinkError("malformed LOADED: report latency_ms")
    if not _is_text(data):
        raise LinkError("malformed LOADED: report contains invalid text")
    return data


def is_number(value: Any) -> bool:
    """Whether `value` is a number from 0 to NUMBER_MAX. NaN is rejected, since it compares false
    with every bound."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= NUMBER_MAX


def _is_text(data: dict[str, Any]) -> bool:
    """Whether a report can be stored: no lone surrogates, no excessive nesting."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
