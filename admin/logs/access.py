"""The access log's lines, beside those of the server's own log."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from gateway.observing.handover import Write
from gateway.observing.record import RequestRecord
from runtime_image.contract.control import PHASES

PIECE: Final = 4096
"""Bytes written at once: as much as a pipe takes without mixing it with what others write."""


def access_writer(form: Literal["human", "json"], descriptor: int = 2) -> Write:
    """Writes lines to `descriptor`, in the form of the server's log; whole lines at once, so that
    several processes may share it. What cannot be written is lost."""
    line = _json if form == "json" else _human

    def write(records: list[RequestRecord], left_out: int) -> None:
        lines = [line(record) for record in records]
        if left_out:
            lines.append(_LEFT_OUT[form](left_out))
        piece = b""
        for one in lines:
            if piece and len(piece) + len(one) > PIECE:
                _put(descriptor, piece)
                piece = b""
            piece += one
        _put(descriptor, piece)

    return write


def _put(descriptor: int, piece: bytes) -> None:
    # The disk is full or the reader gone: requests go on.
    try:
        os.write(descriptor, piece)
    except OSError:
        return


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _json(record: RequestRecord) -> bytes:
    fields: dict[str, Any] = {"request_id": record.request_id}
    if record.trace_id:
        fields["trace_id"] = record.trace_id
    fields |= {
        "function": record.function,
        "revision": record.revision,
        "replica": record.replica,
        "outcome": record.outcome,
        "status": record.status,
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "ms": round(record.ms, 3),
        "queue_ms": round(record.queue_ms, 3),
        "sends": record.sends,
        **_receipt(record),
        "event": "request",
        "level": "info",
        "timestamp": _time(record.at_s),
    }
    return msgspec.json.encode(fields) + b"\n"


def _receipt(record: RequestRecord) -> dict[str, Any]:
    """What a replica's answer adds: its own times, the rows of its batch, the cold start."""
    receipt = record.receipt
    if receipt is None:
        return {"is_cold": False}
    _, decode_us, batch_us, compute_us, encode_us, rows = receipt.meta
    fields: dict[str, Any] = {
        "decode_ms": decode_us / 1e3,
        "batch_ms": batch_us / 1e3,
        "compute_ms": compute_us / 1e3,
        "encode_ms": encode_us / 1e3,
        "rows": rows,
        "is_cold": receipt.is_cold,
    }
    if receipt.is_cold:
        # By our names: those that a replica gives may be anything.
        known = [phase for phase in PHASES if phase in receipt.phases]
        fields["phases"] = {phase: round(receipt.phases[phase], 3) for phase in known}
    return fields


def _human(record: RequestRecord) -> bytes:
    fields = _receipt(record)
    cold = " cold" if fields.pop("is_cold") else ""
    phases = fields.pop("phases", {})
    own = "".join(f" {name}={_number(value)}" for name, value in fields.items())
    own += "".join(f" {phase}={ms:.3f}" for phase, ms in phases.items())
    trace = f" trace_id={record.trace_id}" if record.trace_id else ""
    return (
        f"{_time(record.at_s)} [info     ] request                        {record.outcome}{cold}"
        f" status={record.status or '-'} ms={record.ms:.3f} queue_ms={record.queue_ms:.3f}"
        f" function={record.function or '-'} revision={record.revision or '-'}"
        f" replica={record.replica or '-'} sends={record.sends} bytes_in={record.bytes_in}"
        f" bytes_out={record.bytes_out}{own} request_id={record.request_id}{trace}\n"
    ).encode()


def _number(value: float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


_LEFT_OUT: Final[dict[str, Callable[[int], bytes]]] = {
    "json": lambda count: (
        msgspec.json.encode({"event": "access events left out", "count": count, "level": "warning"})
        + b"\n"
    ),
    "human": lambda count: f"[warning  ] access events left out         count={count}\n".encode(),
}
