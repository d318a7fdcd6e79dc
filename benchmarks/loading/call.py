"""The call that a load repeats, and the result of a load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A POST to a server on this machine."""

    port: int
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def request(self) -> bytes:
        """Encode the call as an HTTP/1.1 request."""
        heads = {
            "Host": f"127.0.0.1:{self.port}",
            "Content-Type": "application/json",
            **self.headers,
            "Content-Length": str(len(self.body)),
        }
        lines = [
            f"POST {self.path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in heads.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


@dataclass(frozen=True, slots=True)
class Load:
    """A load: `connections` with one call at a time each, for `seconds`, or, with `each` above 0,
    for that many calls per connection."""

    call: Call
    connections: int
    seconds: float = 2.0
    each: int = 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of a load. `errors`: answers other than 2xx, and broken connections."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int
    last_ms: float = 0.0
    """Milliseconds from the first call to the last answer; 0 if unknown."""
    ended_s: tuple[tuple[float, float], ...] = ()
    """If requested, for each answer: second of its end, and its duration in milliseconds."""

    def __post_init__(self) -> None:
        if self.requests < 0 or self.seconds <= 0:
            raise ValueError(
                f"load: expected answers and seconds above 0, got {self.requests} in {self.seconds}"
            )

    @property
    def per_s(self) -> float:
        """Successful answers per second."""
        return self.requests / self.seconds

    @classmethod
    def from_json(cls, line: str) -> Loaded:
        """Decode a result, the fields as an object. Raises ValueError for anything else."""
        try:
            data: dict[str, Any] = json.loads(line)
            ended = tuple((float(at), float(ms)) for at, ms in data.pop("ended_s", ()))
            return cls(**data, ended_s=ended)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"load: expected its figures as JSON, got {line[:200]!r}") from error
