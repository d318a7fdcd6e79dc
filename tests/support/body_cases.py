"""Bodies at /v1 and what must happen to each: `tests/data/model_bodies.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).parents[1] / "data" / "model_bodies.toml"
SERVED = "org/m"
"""The server's name of the model."""


class BodyCase(NamedTuple):
    """One row of the table."""

    name: str
    body: bytes
    model: str
    edited: bytes
    """What a server gets that knows the model as SERVED and is asked for its usage."""
    is_stream: bool
    refused: str
    """Part of the message of the refusal, "" if the body passes."""
    param: str | None
    is_cut: bool
    """Whether each beginning of the body is refused, too."""


def body_cases() -> list[BodyCase]:
    """Return the rows of the table."""
    return [_case(name, row) for name, row in tomllib.loads(TABLE.read_text()).items()]


def _case(name: str, row: dict[str, Any]) -> BodyCase:
    coding, repeats = row.pop("coding", "utf-8"), row.pop("repeat", [])
    repeats = [(one[0], one[1] * one[2]) for one in zip(*[iter(repeats)] * 3, strict=True)]

    def filled(text: str) -> str:
        for mark, found in repeats:
            assert mark in text or not text.startswith("{"), name
            text = text.replace(mark, found)
        return text

    body = bytes.fromhex(row.pop("bytes")) if "bytes" in row else b""
    body = body or filled(row.pop("body")).encode(coding)
    usual = body.replace(b'"web"', b'"%b"' % SERVED.encode(), 1)
    edited = row.pop("edited", "")
    case = BodyCase(
        name,
        body,
        filled(row.pop("model", "web")),
        edited.encode() if edited else usual,
        row.pop("stream", False),
        row.pop("refused", ""),
        row.pop("param", None),
        row.pop("cut", False),
    )
    assert not row, (name, row)
    return case
