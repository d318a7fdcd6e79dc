"""What the server received and did, for `/tally`: counts, refused heads, targets by token."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

KEPT_MAX = 1000
TOKENS_MAX = 200_000


@dataclass
class Tally:
    """Counts since the start, or since the last reset.

    `malformed`: heads that a strict parser refuses; a proxy must never send one. `tokens`: number
    of requests that carried each token. `targets`: the last request targets.
    """

    connections: int = 0
    requests: int = 0
    open: int = 0
    open_max: int = 0
    frames: int = 0
    malformed: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_MAX))
    tokens: Counter[str] = field(default_factory=Counter)
    targets: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_MAX))

    def entered(self) -> None:
        """Count an exchange of `/concurrency` that begins."""
        self.open += 1
        self.open_max = max(self.open_max, self.open)

    def left(self) -> None:
        """Count an exchange of `/concurrency` that ends."""
        self.open -= 1

    def saw(self, target: str, token: str) -> None:
        """Record one complete request head."""
        self.requests += 1
        self.targets.append(target)
        if token and (token in self.tokens or len(self.tokens) < TOKENS_MAX):
            self.tokens[token] += 1

    def to_json(self, *, tokens: bool) -> dict[str, Any]:
        """Return everything as plain data; the tokens only if asked for."""
        return {
            "connections": self.connections,
            "requests": self.requests,
            "open": self.open,
            "open_max": self.open_max,
            "frames": self.frames,
            "malformed": list(self.malformed),
            "targets": list(self.targets) if tokens else [],
            "tokens": dict(self.tokens) if tokens else {},
        }

    def reset(self) -> None:
        """Forget everything but the exchanges that are open."""
        self.connections = self.requests = self.frames = 0
        self.open_max = self.open
        self.malformed.clear()
        self.tokens.clear()
        self.targets.clear()
