"""State of a server, computed from its events: resources, activity, rates. Pure.

An incoming snapshot is kept separate until it is complete, so that readers always see one
consistent state of the server, current or marked as old. `now` is in seconds of this machine's
monotonic clock; the server's clock (Unix seconds) is known only from its beats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from admin.cli.live.events import Ignored, StreamItem
from admin.client.sse import Disconnected
from admin.client.transport import Unreachable
from admin.documents import events
from admin.documents.deploys import OperationRow
from admin.documents.functions import FunctionRow
from admin.documents.hosts import HostRow
from admin.documents.server import DeviceRow, ReplicaRow
from admin.text import duration, one_line, place_of, plain
from registry.model.history import ColdStart

TEXT_MAX: Final = 300
"""Max characters of an entry."""
ACTIVITY_MAX: Final = 200
TREND_MAX: Final = 60
"""Max rates per function, one per second."""
QUIET_S: Final = 3.0
"""Seconds without an event after which the state counts as old; a server beats every second."""
SNAPSHOT_S: Final = 30.0
"""Max seconds of a snapshot; ten thousand functions take much less."""
IGNORED_MAX: Final = 8
"""Max kinds of events of which the state says why they are ignored."""


T = TypeVar("T")
Occurrence = events.DecisionEvent | ColdStart | OperationRow | events.ErrorEvent | events.HostEvent
ResourceEvent = (
    events.FunctionsEvent
    | events.ReplicasEvent
    | events.DevicesEvent
    | events.HostsEvent
    | events.GoneEvent
)


class FunctionChanges:
    """Tracker of the functions that changed since the last call of `since`."""

    def __init__(self) -> None:
        self._shown: dict[str, FunctionRow] = {}

    def since(self, functions: Mapping[str, FunctionRow]) -> tuple[list[FunctionRow], list[str]]:
        """Return new and changed functions, and the names of removed ones, both in order of
        name."""
        shown, self._shown = self._shown, dict(functions)
        changed = _ordered(functions)
        gone = sorted(shown.keys() - functions)
        return [one for one in changed if shown.get(one.name) != one], gone


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


def activity_entry(event: Occurrence) -> ActivityEntry:
    """Return the entry for what has happened, with texts that are safe for a line of a terminal."""
    function, is_bad, operation = "", False, ""
    at_s = event.at_s if not isinstance(event, OperationRow) else event.ended_s or event.created_s
    match event:
        case events.DecisionEvent():
            kind, function, text = "decision", event.function, event.text
        case ColdStart():
            kind, function, is_bad = "cold start", event.name, event.outcome != "ready"
            took = f"{event.outcome} after {duration(event.total_ms)} on {place_of(event)}"
            text = f"revision {event.number} {took}"
        case OperationRow():
            kind, function, operation = "operation", event.name, event.id
            is_bad, is_running = event.state == "failed", event.state == "running"
            text = f"{event.kind}: {event.phase}" if is_running else f"{event.kind} {event.state}"
            if why := event.error.detail:
                text = f"{text}: {why}"
        case events.ErrorEvent():
            kind, function, is_bad = "error", event.function, True
            times = f"{event.count} x " if event.count > 1 else ""
            where = f" ({event.replica})" if event.replica else ""
            text = f"{times}{event.code}: {event.detail}{where}"
        case events.HostEvent():
            kind, text, is_bad = "host", event.text, event.change in ("unreachable", "gone")
    short = one_line(plain(text))[:TEXT_MAX]
    return ActivityEntry(at_s, kind, plain(function), short, is_bad, operation)


@dataclass(slots=True)
class Resources:
    """The server, and its functions, replicas, devices and hosts by name or id."""

    server: events.ServerFacts | None = None
    functions: dict[str, FunctionRow] = field(default_factory=dict)
    replicas: dict[str, ReplicaRow] = field(default_factory=dict)
    devices: dict[str, DeviceRow] = field(default_factory=dict)
    hosts: dict[str, HostRow] = field(default_factory=dict)
    received_s: dict[str, float] = field(default_factory=dict)
    """Time (`now`) of receipt by function, from which its `ready_in_ms` is counted down."""

    def apply(self, event: ResourceEvent, now: float) -> None:
        """Store new and changed items, or forget those that no longer exist."""
        match event:
            case events.FunctionsEvent():
                self.functions.update({one.name: one for one in event.items})
                self.received_s.update({one.name: now for one in event.items})
            case events.ReplicasEvent():
                self.replicas.update({one.id: one for one in event.items})
            case events.DevicesEvent():
                self.devices.update({one.id: one for one in event.items})
            case events.HostsEvent():
                self.hosts.update({one.name: one for one in event.items})
            case events.GoneEvent():
                _forget(self.functions, event.functions)
                _forget(self.received_s, event.functions)
                _forget(self.replicas, event.replicas)
                _forget(self.devices, event.devices or ())
                _forget(self.hosts, event.hosts or ())


def _forget(known: dict[str, T], keys: Iterable[str]) -> None:
    for key in keys:
        known.pop(key, None)


class Placed(NamedTuple):
    """A replica on one of its devices."""

    replica: ReplicaRow
    at: int
    """Which of its devices this is, from 1."""
    total: int
    """Number of its devices."""


class LiveState:
    """State of a server after the events applied so far."""

    def __init__(self) -> None:
        self.resources = Resources()
        self.beat: events.BeatEvent | None = None
        self.activity: deque[ActivityEntry] = deque(maxlen=ACTIVITY_MAX)
        self.trends: dict[str, deque[float]] = {}
        self.ignored: dict[str, str] = {}
        """Why events of the present snapshot and later were ignored, by their kind."""
        self.retry_s: float | None = None
        """Time (`now`) of the next attempt to connect; None without an outage."""
        self.is_complete = False
        """True once any snapshot was complete."""
        self._incoming: Resources | None = None
        self._last_event_s = 0.0
        self._beat_received_s = 0.0

    @property
    def is_reading(self) -> bool:
        """True until a first snapshot is complete, and while a later one is incomplete."""
        return self._incoming is not None or not self.is_complete

    def apply(self, item: StreamItem, now: float) -> None:
        """Apply an event, or record a lost connection, or why an event is ignored."""
        if isinstance(item, Disconnected):
            self.retry_s = now + item.pause_s
            # The next connection starts with a whole snapshot.
            self._incoming = None
            self.trends.clear()
            return
        self.retry_s, self._last_event_s = None, now
        match item:
            case Ignored():
                if item.kind in self.ignored or len(self.ignored) < IGNORED_MAX:
                    self.ignored[item.kind] = item.why
            case events.ResetEvent():
                self._incoming = Resources(item.server)
                self.ignored.clear()
            case events.ReadyEvent():
                if self._incoming is not None:
                    self.resources, self._incoming = self._incoming, None
                self.is_complete = True
            case events.BeatEvent():
                self.beat, self._beat_received_s = item, now
                self._append_rates()
            case (
                events.DecisionEvent()
                | ColdStart()
                | OperationRow()
                | events.ErrorEvent()
                | events.HostEvent()
            ):
                self._record(activity_entry(item))
            case _:
                resources = self.resources if self._incoming is None else self._incoming
                resources.apply(item, now)

    def _record(self, entry: ActivityEntry) -> None:
        """Append `entry` unless it is there; it replaces earlier entries of the same operation."""
        if entry in self.activity:
            return
        if entry.operation:
            before = [each for each in self.activity if each.operation == entry.operation]
            for each in before:
                self.activity.remove(each)
        self.activity.append(entry)

    def is_live(self, now: float) -> bool:
        """Return whether the state is current."""
        is_heard = self.retry_s is None and now - self._last_event_s < QUIET_S
        return is_heard and not self.is_reading

    def age_s(self, now: float) -> float:
        """Return the seconds since the last event."""
        return max(0.0, now - self._last_event_s)

    def server_s(self, now: float) -> float:
        """Return the server's clock (Unix s), stopped while the state is old; 0.0 before a beat."""
        if self.beat is None:
            return 0.0
        until = now if self.is_live(now) else self._last_event_s
        return self.beat.at_s + max(0.0, until - self._beat_received_s)

    def on_device(self) -> dict[str, list[Placed]]:
        """Return the replicas by the id of their device, in order of their ids. One on several
        devices is there once for each."""
        found: dict[str, list[Placed]] = {}
        replicas = self.resources.replicas
        for id in sorted(replicas):
            devices = replicas[id].devices
            for at, device in enumerate(devices, 1):
                found.setdefault(device, []).append(Placed(replicas[id], at, len(devices)))
        return found

    def _append_rates(self) -> None:
        """Append one rate to each trend; trends that contain only zeros are dropped."""
        functions = self.resources.functions
        for one in functions.values():
            if one.rate and one.name not in self.trends:
                self.trends[one.name] = deque(maxlen=TREND_MAX)
        for name in [*self.trends]:
            row = functions.get(name)
            self.trends[name].append(0.0 if row is None else row.rate)
            if not any(self.trends[name]):
                del self.trends[name]


def read_live_state(items: Iterator[StreamItem], clock: Callable[[], float]) -> LiveState:
    """Read events until there is a complete snapshot and a beat, and return that state.

    Raises ApiError, or Unreachable if the connection ends before, or the server is of another
    release and sends none that can be read.
    """
    live, until_s = LiveState(), clock() + SNAPSHOT_S
    for each in items:
        now = clock()
        if isinstance(each, Disconnected):
            raise Unreachable(each.why)
        live.apply(each, now)
        if not live.is_reading and live.beat:
            return live
        if now > until_s:
            break
    ignored = "".join(f"; ignored: {kind}: {why}" for kind, why in live.ignored.items())
    raise Unreachable(f"the server sent no complete snapshot within {SNAPSHOT_S:.0f} s{ignored}")


def snapshot_json(live: LiveState) -> dict[str, Any]:
    """Return the state as one JSON object, resources in order of name or id."""
    resources = live.resources
    found: dict[str, Any] = msgspec.to_builtins(
        {
            "server": resources.server,
            "beat": live.beat,
            "functions": _ordered(resources.functions),
            "replicas": _ordered(resources.replicas),
            "devices": _ordered(resources.devices),
            "hosts": _ordered(resources.hosts),
            "ignored": live.ignored,
            "happened": [asdict(each) for each in live.activity],
        }
    )
    return found


def _ordered(rows: Mapping[str, T]) -> list[T]:
    return [rows[key] for key in sorted(rows)]
