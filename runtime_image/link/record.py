"""Reads and checks the record in a replica's run folder."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_args

from runtime_image.contract.control import RECORD_FILE, ReplicaRecord, Role, is_texts, record_from
from runtime_image.contract.link import VERSION

EXIT_OTHER_LINK: Final = 76
"""Exit code of a replica whose manager has another link version (sysexits.h: EX_PROTOCOL)."""
EXIT_BAD_RECORD: Final = 65
"""Exit code of a replica whose record cannot be read (sysexits.h: EX_DATAERR)."""
RECORD_MAX: Final = 64 * 1024
"""Max bytes of a record."""

_TEXTS: Final = (
    "id",
    "token",
    "role",
    "namespace",
    "bound",
    "model_dir",
    "device_kind",
    "engine",
    "host",
    "control",
    "data",
    "greeting",
)
_NUMBERS: Final = ("threads", "orphan_s", "memory_mib", "launched_s")


class RecordRefused(Exception):
    """The replica cannot run with its record; `exit_code` classifies the reason."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


def read_record(run_dir: Path) -> ReplicaRecord:
    """Read the record in `run_dir`. Raises RecordRefused, or OSError without a record."""
    with (run_dir / RECORD_FILE).open("rb") as file:
        return checked_record(_parse(file.read(RECORD_MAX + 1)))


def checked_record(data: dict[str, Any]) -> ReplicaRecord:
    """Return the record with these fields, as JSON has them. Raises RecordRefused.

    Checks the link version first: a record of another version may have any fields.
    """
    link = data.get("link")
    if type(link) is not int or link != VERSION:
        got = "none" if link is None else json.dumps(link)[:20]
        raise RecordRefused(
            f"this replica speaks link version {VERSION}, its manager {got}:"
            " image and server are different releases; run `fnctl image build` with the server's",
            EXIT_OTHER_LINK,
        )
    _check_fields(data)
    return record_from(data)


def engine_of(run_dir: Path) -> str:
    """Return the engine of a record, "" if it cannot be read; `read_record` then says why."""
    try:
        return read_record(run_dir).engine
    except (RecordRefused, OSError):
        return ""


def _parse(text: bytes) -> dict[str, Any]:
    if len(text) > RECORD_MAX:
        raise _bad(f"expected at most {RECORD_MAX} bytes")
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _bad(str(error)) from error
    if not isinstance(data, dict):
        raise _bad(f"expected an object, got {type(data).__name__}")
    return data


def _check_fields(data: dict[str, Any]) -> None:
    known = {field.name for field in fields(ReplicaRecord)}
    if missing := known - data.keys():
        raise _bad(f"missing fields: {', '.join(sorted(missing))}")
    if unknown := data.keys() - known:
        raise _bad(f"unknown fields: {', '.join(sorted(unknown))[:200]}")
    _check_words(data)
    _check_numbers(data)


def _check_words(data: dict[str, Any]) -> None:
    for name in _TEXTS:
        if not isinstance(data[name], str):
            raise _bad(f"expected a string as {name}, got {_short(data[name])}")
    if not is_texts(data["devices"]):
        raise _bad(f"expected strings as devices, got {_short(data['devices'])}")
    role = data["role"]
    if role not in get_args(Role):
        raise _bad(f"expected one of {', '.join(get_args(Role))} as role, got {_short(role)}")


def _check_numbers(data: dict[str, Any]) -> None:
    for name in _NUMBERS:
        if not is_number(data[name]):
            raise _bad(f"expected a number of 0 or more as {name}, got {_short(data[name])}")
    phases = data["phases"]
    if not isinstance(phases, dict) or not all(map(is_number, phases.values())):
        raise _bad(f"expected milliseconds by phase as phases, got {_short(phases)}")


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number of 0 or more."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _short(value: Any) -> str:
    return repr(str(value)[:100])


def _bad(reason: str) -> RecordRefused:
    return RecordRefused(f"malformed {RECORD_FILE}: {reason}", EXIT_BAD_RECORD)
