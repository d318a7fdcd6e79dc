"""When to probe a server, and when it is ready. Pure; `now` is monotonic seconds.

Ready means an HTTP answer with the right status, never a connection: a server accepts connections
while it loads, and some accept and never answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runtime_image.contract.health import Ready

PROBE_S: Final = 1.0
"""Seconds that a probe waits for its answer."""
_INTERVALS: Final = ((1.0, 0.025), (10.0, 0.1))
"""Seconds since the start, and interval until then. Servers log every probe."""
_INTERVAL_LAST_S: Final = 0.5
_ANY_BELOW: Final = 500
"""Without a path of its own, a server that answers at all is ready."""
_READY: Final = range(200, 400)
LINE_MAX: Final = 200
"""Max characters of a status line that are shown."""
_CHANGES_MAX: Final = 50
"""Max changes of the answer that are logged."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a probe: the status, 0 without an HTTP answer, and its text for people."""

    status: int
    text: str
    lack: Ready = Ready.FAILING
    """What came instead of an HTTP answer, if `status` is 0."""
    whole: bytes = b""
    """All bytes of the answer, if the probe reads its body."""

    @property
    def health(self) -> Ready:
        """What the answer says about a server that was ready before. Any status below 500 shows
        that it works: it may limit its callers, or have another path by now."""
        if not self.status:
            return self.lack
        return Ready.RIGHT if self.status < _ANY_BELOW else Ready.FAILING


class Readiness:
    """The probes of one start."""

    def __init__(self, path: str, start_s: float, now: float) -> None:
        """`path` as in `ServerSpec.ready`. Raises ValueError if it is no path."""
        self.path = path or "/"
        if not self.path.startswith("/") or not all("!" <= char <= "~" for char in self.path):
            raise ValueError(f"ready: expected a path that begins with /, got {path!r}")
        self._accepts = _READY if path else range(200, _ANY_BELOW)
        self._began_s = now
        self._until_s = now + start_s
        self._changes = 0
        self.last = Answer(0, "not probed yet")
        self.last_since_s = now
        self.is_ready = False

    @property
    def expected(self) -> str:
        """The answer that makes the server ready."""
        return f"a status from {self._accepts.start} to {self._accepts.stop - 1} for {self.path}"

    def accepts(self, answer: Answer) -> bool:
        """Whether an answer makes the server ready."""
        return answer.status in self._accepts

    def is_over(self, now: float) -> bool:
        """Whether the time to start has passed."""
        return now >= self._until_s

    def pause_s(self, now: float) -> float:
        """Return the seconds until the next probe."""
        passed_s = now - self._began_s
        pause_s = next((every for until, every in _INTERVALS if passed_s < until), _INTERVAL_LAST_S)
        return max(0.0, min(pause_s, self._until_s - now))

    def answered(self, answer: Answer, now: float) -> str:
        """Record a probe's answer; return a line for the log if it changed, else ""."""
        is_new = answer.text != self.last.text
        if is_new:
            self.last_since_s = now
        self.last = answer
        self.is_ready = self.accepts(answer)
        self._changes += is_new
        if not is_new or self._changes > _CHANGES_MAX:
            return ""
        return f"GET {self.path}: {answer.text}"


def request(path: str, host: str, version: str = "1.1") -> bytes:
    """Return the probe's request. To one of HTTP/1.0 no answer may have a chunked coding (RFC 9112,
    6.1)."""
    head = f"GET {path} HTTP/{version}\r\nHost: {host}\r\nUser-Agent: fngate-probe\r\n"
    return f"{head}Accept: */*\r\nConnection: close\r\n\r\n".encode("ascii")


def read_status(data: bytes) -> Answer | None:
    """Return the final answer at the start of `data`; None if more bytes are needed.

    Interim answers (1xx) are skipped (RFC 9110, 15.2).
    """
    while True:
        line, found, rest = data.partition(b"\n")
        text = line.decode("latin-1").strip()[:LINE_MAX]
        if not b"HTTP/".startswith(line[:5]):
            return Answer(0, f"expected HTTP/1.1, got {text[:50]!r}")
        if not found:
            return None if len(line) < LINE_MAX else Answer(0, "a status line that is too long")
        version, _, said = text.partition(" ")
        code = said[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not (code.isascii() and code.isdigit()):
            return Answer(0, f"expected HTTP/1.1, got {text[:50]!r}")
        if len(code) != 3 or not code.startswith("1") or code == "101":
            return Answer(int(code), said or code)
        _, found, data = (b"\n" + rest).partition(b"\n\r\n")  # it may have no fields
        if not found:
            return None


def failure(readiness: Readiness, what: str, port: int, elsewhere: str) -> str:
    """Return why a start failed: `what` happened, the answer expected and the one got.

    `elsewhere` names the addresses on which the server listens instead of `port`; 0 for a Unix
    socket.
    """
    text = f"{what}; expected {readiness.expected}, got: {readiness.last.text}"
    if not elsewhere:
        return text
    return f"{text}; {misplaced(port, elsewhere)}"


def misplaced(port: int, elsewhere: str) -> str:
    """Return where a server listens, and where it should; arguments as of `failure`."""
    expected = f"port {port} (${{PORT}})" if port else "the socket ${SOCKET}"
    return f"the server listens on {elsewhere}, expected {expected}"
