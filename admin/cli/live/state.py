"""State of a server, computed from its events: resources, activity, rates. Pure.

An incoming snapshot is kept separate until it is complete, so that readers always see one
consistent state of the server, current or marked as old. `now` is in seconds of this machine's
monotonic clock; the server's clock (Unix seconds) is known only from its beats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from admin.cli.live.events import StreamItem
from admin.client.sse import Disconnected
from admin.client.transport import Unreachable
from admin.text import duration, get, one_line, place_of, plain

TEXT_MAX: Final = 300
"""Max characters of an entry."""
ACTIVITY_MAX: Final = 200
TREND_MAX: Final = 60
"""Max rates per function, one per second."""
QUIET_S: Final = 3.0
"""Seconds without an event after which the state counts as old; a server beats every second."""
SNAPSHOT_S: Final = 30.0
"""Max seconds of a snapshot; ten thousand functions take much less."""

Item = dict[str, Any]


class FunctionChanges:
    """Tracker of the functions that changed since the last call of `since`."""

    def __init__(self) -> None:
        self._shown: dict[str, dict[str, Any]] = {}

    def since(self, functions: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Return new and changed functions in order of name, then removed ones.

        A removed function is {"name": its name, "state": "gone"}.
        """
        changed = [functions[name] for name in sorted(functions) if self._is_new(functions[name])]
        gone = [{"name": name, "state": "gone"} for name in sorted(self._shown.keys() - functions)]
        self._shown = dict(functions)
        return changed + gone

    def _is_new(self, line: dict[str, Any]) -> bool:
        return self._shown.get(line["name"]) != line


@dataclass(frozen=True, slots=True)
class ActivityEntry:
    """Decision, cold start, operation or error at `at_s` (Unix seconds) of `function` ("" = none).

    Entries with `is_bad` may need the operator. `operation` is an operation's id or ""; a later
    entry with the same id replaces this one.
    """

    at_s: float
    kind: str
    function: str
    text: str
    is_bad: bool = False
    operation: str = ""


def activity_entry(kind: str, data: dict[str, Any]) -> ActivityEntry | None:
    """Return the entry for an event of this kind; None if the event only changes the state."""
    make = _ENTRY_MAKERS.get(kind)
    return make(data) if make else None


def _decision(data: dict[str, Any]) -> ActivityEntry:
    return ActivityEntry(
        seconds(data.get("at_s")), "decision", name(data), _short(get(data, "text"))
    )


def _cold_start(data: dict[str, Any]) -> ActivityEntry:
    outcome = get(data, "outcome")
    took = duration(seconds(data.get("total_ms")))
    text = f"revision {get(data, 'number')} {outcome} after {took} on {place_of(data)}"
    at_s = seconds(data.get("at_s"))
    return ActivityEntry(at_s, "cold start", name(data), _short(text), outcome != "ready")


def _operation(data: dict[str, Any]) -> ActivityEntry:
    state = get(data, "state")
    text = f"{get(data, 'kind')} {state}"
    if state == "running":
        text = f"{get(data, 'kind')}: {get(data, 'phase')}"
    if why := get(data, "error", "detail"):
        text = f"{text}: {why}"
    at_s = seconds(data.get("ended_s")) or seconds(data.get("created_s"))
    is_bad = state == "failed"
    return ActivityEntry(at_s, "operation", name(data), _short(text), is_bad, get(data, "id"))


def _error(data: dict[str, Any]) -> ActivityEntry:
    count = int(seconds(data.get("count")) or 1)
    times = f"{count} x " if count > 1 else ""
    where = f" ({get(data, 'replica')})" if data.get("replica") else ""
    text = f"{times}{get(data, 'code')}: {get(data, 'detail')}{where}"
    return ActivityEntry(seconds(data.get("at_s")), "error", name(data), _short(text), True)


def _host(data: dict[str, Any]) -> ActivityEntry:
    is_bad = data.get("change") in ("unreachable", "gone")
    return ActivityEntry(seconds(data.get("at_s")), "host", "", _short(get(data, "text")), is_bad)


_ENTRY_MAKERS: Final[dict[str, Callable[[dict[str, Any]], ActivityEntry]]] = {
    "decision": _decision,
    "cold_start": _cold_start,
    "operation": _operation,
    "error": _error,
    "host": _host,
}


def name(data: dict[str, Any]) -> str:
    """Return the name of an event's function."""
    return plain(get(data, "function") or get(data, "name"))


def seconds(value: Any) -> float:
    """Return `value` if it is a number, else 0.0."""
    return float(value) if isinstance(value, int | float) else 0.0


def _short(text: str) -> str:
    return one_line(plain(text))[:TEXT_MAX]


@dataclass(slots=True)
class Resources:
    """The server, and its functions, replicas, devices and hosts by name or id."""

    server: Item = field(default_factory=dict)
    functions: dict[str, Item] = field(default_factory=dict)
    replicas: dict[str, Item] = field(default_factory=dict)
    devices: dict[str, Item] = field(default_factory=dict)
    hosts: dict[str, Item] = field(default_factory=dict)
    received_s: dict[str, float] = field(default_factory=dict)
    """Time (`now`) of receipt by function, from which its `ready_in_ms` is counted down."""

    def upsert(self, kind: str, data: Item, now: float) -> None:
        """Store new and changed items; invalid items are ignored."""
        known, key = self._named(kind)
        for item in data.get("items") or ():
            if isinstance(item, dict) and isinstance(item.get(key), str):
                known[item[key]] = item
                if kind == "functions":
                    self.received_s[item[key]] = now

    def forget(self, data: Item) -> None:
        """Remove items that no longer exist."""
        for kind in ("functions", "replicas", "devices", "hosts"):
            known, _ = self._named(kind)
            for key in data.get(kind) or ():
                known.pop(key, None)
        for name in data.get("functions") or ():
            self.received_s.pop(name, None)

    def _named(self, kind: str) -> tuple[dict[str, Item], str]:
        if kind in ("functions", "hosts"):
            return (self.functions if kind == "functions" else self.hosts), "name"
        return (self.replicas if kind == "replicas" else self.devices), "id"


class Placed(NamedTuple):
    """A replica on one of its devices."""

    replica: Item
    at: int
    """Which of its devices this is, from 1."""
    total: int
    """Number of its devices."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Lost connection: the reason, and the time (`now`) of the next attempt."""

    why: str
    retry_s: float


class LiveState:
    """State of a server after the events applied so far."""

    def __init__(self) -> None:
        self.resources = Resources()
        self.beat: Item = {}
        self.activity: deque[ActivityEntry] = deque(maxlen=ACTIVITY_MAX)
        self.trends: dict[str, deque[float]] = {}
        self.outage: Outage | None = None
        self.is_complete = False
        """True once any snapshot was complete."""
        self.version = 0
        """Incremented on every change."""
        self._incoming: Resources | None = None
        self._last_event_s = 0.0
        self._beat_received_s = 0.0

    @property
    def is_reading(self) -> bool:
        """True until a first snapshot is complete, and while a later one is incomplete."""
        return self._incoming is not None or not self.is_complete

    def apply(self, kind: str, data: Item, now: float) -> None:
        """Apply one event. Unknown kinds are ignored, as a newer server may send more."""
        self.outage = None
        self._last_event_s = now
        self.version += 1
        if change := self._changes().get(kind):
            change(data, now)
        elif (entry := activity_entry(kind, data)) and entry not in self.activity:
            self._record(entry)

    def _record(self, entry: ActivityEntry) -> None:
        """Append `entry`; it replaces earlier entries of the same operation."""
        if entry.operation:
            before = [each for each in self.activity if each.operation == entry.operation]
            for each in before:
                self.activity.remove(each)
        self.activity.append(entry)

    def update(self, item: StreamItem, now: float) -> None:
        """Apply an event, or record a lost connection."""
        if isinstance(item, Disconnected):
            self.disconnected(item.why, now + item.pause_s)
        else:
            self.apply(item.kind, item.data, now)

    def disconnected(self, why: str, retry_s: float) -> None:
        """Record a lost connection, after which the state is old. Next attempt at `retry_s`."""
        self.outage = Outage(why, retry_s)
        # The next connection starts with a whole snapshot.
        self._incoming = None
        self.trends.clear()
        self.version += 1

    def is_live(self, now: float) -> bool:
        """Return whether the state is current."""
        is_heard = self.outage is None and now - self._last_event_s < QUIET_S
        return is_heard and not self.is_reading

    def age_s(self, now: float) -> float:
        """Return the seconds since the last event."""
        return max(0.0, now - self._last_event_s)

    def server_s(self, now: float) -> float:
        """Return the server's clock (Unix s), stopped while the state is old; 0.0 before a beat."""
        at_s = seconds(self.beat.get("at_s"))
        if not at_s:
            return 0.0
        until = now if self.is_live(now) else self._last_event_s
        return at_s + max(0.0, until - self._beat_received_s)

    def on_device(self) -> dict[str, list[Placed]]:
        """Return the replicas by the id of their device, in order of their ids. One on several
        devices is there once for each."""
        found: dict[str, list[Placed]] = {}
        for replica in sorted(self.resources.replicas.values(), key=lambda each: str(each["id"])):
            devices = replica.get("devices")
            if not isinstance(devices, list) or not devices:
                devices = [replica.get("device")]  # a server of an earlier release names one
            for at, device in enumerate(devices, 1):
                found.setdefault(str(device), []).append(Placed(replica, at, len(devices)))
        return found

    def _changes(self) -> dict[str, Callable[[Item, float], None]]:
        return {
            "reset": self._reset,
            "ready": self._ready,
            "beat": self._beat,
            "gone": lambda data, _now: self._target.forget(data),
            "functions": lambda data, now: self._upsert("functions", data, now),
            "replicas": lambda data, now: self._upsert("replicas", data, now),
            "devices": lambda data, now: self._upsert("devices", data, now),
            "hosts": lambda data, now: self._upsert("hosts", data, now),
        }

    @property
    def _target(self) -> Resources:
        return self.resources if self._incoming is None else self._incoming

    def _reset(self, data: Item, _now: float) -> None:
        server = data.get("server")
        self._incoming = Resources(server if isinstance(server, dict) else {})

    def _ready(self, _data: Item, _now: float) -> None:
        if self._incoming is not None:
            self.resources, self._incoming = self._incoming, None
        self.is_complete = True

    def _upsert(self, kind: str, data: Item, now: float) -> None:
        self._target.upsert(kind, data, now)

    def _beat(self, data: Item, now: float) -> None:
        self.beat, self._beat_received_s = data, now
        self._append_rates(self.resources.functions.values())

    def _append_rates(self, items: Iterable[Item]) -> None:
        """Append one rate to each trend; trends that contain only zeros are dropped."""
        active = {str(item["name"]): seconds(item.get("rate")) for item in items}
        for name, rate in active.items():
            if rate and name not in self.trends:
                self.trends[name] = deque(maxlen=TREND_MAX)
        for name in [*self.trends]:
            self.trends[name].append(active.get(name, 0.0))
            if not any(self.trends[name]):
                del self.trends[name]


def read_live_state(items: Iterator[StreamItem], clock: Callable[[], float]) -> LiveState:
    """Read events until there is a complete snapshot and a beat, and return that state.

    Raises ApiError, or Unreachable if the connection ends before.
    """
    live, until_s = LiveState(), clock() + SNAPSHOT_S
    for each in items:
        now = clock()
        if isinstance(each, Disconnected):
            raise Unreachable(each.why)
        live.apply(each.kind, each.data, now)
        if not live.is_reading and live.beat:
            return live
        if now > until_s:
            break
    raise Unreachable(f"the server sent no complete snapshot within {SNAPSHOT_S:.0f} s")


def snapshot_json(live: LiveState) -> dict[str, Any]:
    """Return the state as one JSON object, resources in order of name or id."""
    resources = live.resources
    return {
        "server": resources.server,
        "beat": live.beat,
        "functions": [resources.functions[name] for name in sorted(resources.functions)],
        "replicas": [resources.replicas[id] for id in sorted(resources.replicas)],
        "devices": [resources.devices[id] for id in sorted(resources.devices)],
        "hosts": [resources.hosts[name] for name in sorted(resources.hosts)],
        "happened": [asdict(each) for each in live.activity],
    }
