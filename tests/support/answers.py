"""Answers of the admin API as a client has them."""

from __future__ import annotations

from typing import Any

import msgspec


def as_sent(answer: Any) -> Any:
    """Return a Struct, or anything else that msgspec encodes, as the JSON that a client reads."""
    return msgspec.json.decode(msgspec.json.encode(answer))
