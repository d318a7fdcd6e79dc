"""What the server's events add up to: functions, replicas, devices, what happened. Pure.

A snapshot that is still coming in is kept apart until it is whole, so that what is shown is
always one state of the server, or an old one that says so. Times named `now` are seconds of this
machine's steady clock; the server's own clock, in Unix seconds, is only known from its beats.

What has changed since the last look, function by function. Pure.

Events worth a line of their own: decisions, cold starts, operations, errors. Pure.

One whole picture of a server, read and let go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from admin.cli.live.events import Broken, News
from admin.client.transport import Unreachable
from admin.text import duration, get, one_line, plain


class Changes:
    """Remembers the functions' lines as they were last shown."""

    def __init__(self) -> None:
        self._shown: dict[str, dict[str, Any]] = {}

    def since(self, functions: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """The lines that are new or other than last time, in order of name, then those gone.

        One that is gone is {"name": its name, "state": "gone"}.
        """
        changed = [functions[name] for name in sorted(functions) if self._is_new(functions[name])]
        gone = [{"name": name, "state": "gone"} for name in sorted(self._shown.keys() - functions)]
        self._shown = dict(functions)
        return changed + gone

    def _is_new(self, line: dict[str, Any]) -> bool:
        return self._shown.get(line["name"]) != line


TEXT_MAX: Final = 300
"""Characters kept of a happening."""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened at `at_s` (Unix seconds) to `function`, "" for none.

    `is_bad`: somebody may have to do something about it. `operation` is the id of the one it is
    about, "" for none: what is told of it later takes this one's place.
    """

    at_s: float
    kind: str
    function: str
    text: str
    is_bad: bool = False
    operation: str = ""


def happening(kind: str, data: dict[str, Any]) -> Happening | None:
    """What an event of this kind tells, None where it only changes the state."""
    make = _MAKERS.get(kind)
    return make(data) if make else None


def _decision(data: dict[str, Any]) -> Happening:
    return Happening(seconds(data.get("at_s")), "decision", name(data), _short(get(data, "text")))


def _cold_start(data: dict[str, Any]) -> Happening:
    outcome = get(data, "outcome")
    took = duration(seconds(data.get("total_ms")))
    text = f"revision {get(data, 'number')} {outcome} after {took} on {get(data, 'device_kind')}"
    at_s = seconds(data.get("at_s"))
    return Happening(at_s, "cold start", name(data), _short(text), outcome != "ready")


def _operation(data: dict[str, Any]) -> Happening:
    state = get(data, "state")
    text = f"{get(data, 'kind')} {state}"
    if state == "running":
        text = f"{get(data, 'kind')}: {get(data, 'phase')}"
    if why := get(data, "error", "detail"):
        text = f"{text}: {why}"
    at_s = seconds(data.get("ended_s")) or seconds(data.get("created_s"))
    is_bad = state == "failed"
    return Happening(at_s, "operation", name(data), _short(text), is_bad, get(data, "id"))


def _error(data: dict[str, Any]) -> Happening:
    count = int(seconds(data.get("count")) or 1)
    times = f"{count} x " if count > 1 else ""
    where = f" ({get(data, 'replica')})" if data.get("replica") else ""
    text = f"{times}{get(data, 'code')}: {get(data, 'detail')}{where}"
    return Happening(seconds(data.get("at_s")), "error", name(data), _short(text), True)


_MAKERS: Final[dict[str, Callable[[dict[str, Any]], Happening]]] = {
    "decision": _decision,
    "cold_start": _cold_start,
    "operation": _operation,
    "error": _error,
}


def name(data: dict[str, Any]) -> str:
    """The function an event is about."""
    return plain(get(data, "function") or get(data, "name"))


def seconds(value: Any) -> float:
    """A number that may be missing or be none; 0.0 then."""
    return float(value) if isinstance(value, int | float) else 0.0


def _short(text: str) -> str:
    return one_line(plain(text))[:TEXT_MAX]


Item = dict[str, Any]

HAPPENED_MAX: Final = 200
TREND_MAX: Final = 60
"""Rates kept of a function, one a second."""
QUIET_S: Final = 3.0
"""A server beats every second; after so long without a word the picture counts as old."""


@dataclass(slots=True)
class Facts:
    """The server's nouns by their names or ids, as last told."""

    server: Item = field(default_factory=dict)
    functions: dict[str, Item] = field(default_factory=dict)
    replicas: dict[str, Item] = field(default_factory=dict)
    devices: dict[str, Item] = field(default_factory=dict)
    told_s: dict[str, float] = field(default_factory=dict)
    """When (`now`) a function's line came: where the countdown of its `ready_in_ms` begins."""

    def upsert(self, kind: str, data: Item, now: float) -> None:
        """Take over items that are so now; whatever is no item is passed over."""
        known, key = self._named(kind)
        for item in data.get("items") or ():
            if isinstance(item, dict) and isinstance(item.get(key), str):
                known[item[key]] = item
                if kind == "functions":
                    self.told_s[item[key]] = now

    def forget(self, data: Item) -> None:
        """Drop what is gone."""
        for kind in ("functions", "replicas"):
            known, _ = self._named(kind)
            for key in data.get(kind) or ():
                known.pop(key, None)
        for name in data.get("functions") or ():
            self.told_s.pop(name, None)

    def _named(self, kind: str) -> tuple[dict[str, Item], str]:
        if kind == "functions":
            return self.functions, "name"
        return (self.replicas if kind == "replicas" else self.devices), "id"


@dataclass(frozen=True, slots=True)
class Break:
    """The connection is lost: why, and when (`now`) the next try is."""

    why: str
    again_s: float


class Picture:
    """The state of a server, from the events that were applied."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.beat: Item = {}
        self.happened: deque[Happening] = deque(maxlen=HAPPENED_MAX)
        self.trends: dict[str, deque[float]] = {}
        self.lost: Break | None = None
        self.is_complete = False
        """Whether a snapshot has been read to its end, ever."""
        self.version = 0
        """Grows with every change."""
        self._coming: Facts | None = None
        self._heard_s = 0.0
        self._beat_heard_s = 0.0

    @property
    def is_reading(self) -> bool:
        """Whether a snapshot is coming in that is not whole yet."""
        return self._coming is not None or not self.is_complete

    def apply(self, kind: str, data: Item, now: float) -> None:
        """Take in one event. Kinds that nobody knows are passed over: a newer server has more."""
        self.lost = None
        self._heard_s = now
        self.version += 1
        if change := self._changes().get(kind):
            change(data, now)
        elif (told := happening(kind, data)) and told not in self.happened:
            self._tell(told)

    def _tell(self, told: Happening) -> None:
        """Keep it, in place of what was told of the same operation before."""
        if told.operation:
            before = [each for each in self.happened if each.operation == told.operation]
            for each in before:
                self.happened.remove(each)
        self.happened.append(told)

    def broke(self, why: str, again_s: float) -> None:
        """The connection is lost; the next try is at `again_s`. What is known is old from now."""
        self.lost = Break(why, again_s)
        # What had come of a snapshot is of no use: another one follows, or what it began with.
        self._coming = None
        self.trends.clear()
        self.version += 1

    def is_live(self, now: float) -> bool:
        """Whether what is shown is how things are."""
        is_heard = self.lost is None and now - self._heard_s < QUIET_S
        return is_heard and not self.is_reading

    def age_s(self, now: float) -> float:
        """Seconds since the server's last word."""
        return max(0.0, now - self._heard_s)

    def server_s(self, now: float) -> float:
        """What the server's clock says, in Unix seconds; it stands still while nothing is heard.

        0.0 until its first beat.
        """
        at_s = seconds(self.beat.get("at_s"))
        if not at_s:
            return 0.0
        until = now if self.is_live(now) else self._heard_s
        return at_s + max(0.0, until - self._beat_heard_s)

    def on_device(self) -> dict[str, list[Item]]:
        """The replicas by the id of their device, each list in order of id."""
        found: dict[str, list[Item]] = {}
        for replica in sorted(self.facts.replicas.values(), key=lambda each: str(each["id"])):
            found.setdefault(str(replica.get("device")), []).append(replica)
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
        }

    @property
    def _target(self) -> Facts:
        return self.facts if self._coming is None else self._coming

    def _reset(self, data: Item, _now: float) -> None:
        server = data.get("server")
        self._coming = Facts(server if isinstance(server, dict) else {})

    def _ready(self, _data: Item, _now: float) -> None:
        if self._coming is not None:
            self.facts, self._coming = self._coming, None
        self.is_complete = True

    def _upsert(self, kind: str, data: Item, now: float) -> None:
        self._target.upsert(kind, data, now)

    def _beat(self, data: Item, now: float) -> None:
        self.beat, self._beat_heard_s = data, now
        self._note_rates(self.facts.functions.values())

    def _note_rates(self, items: Iterable[Item]) -> None:
        """Lengthen the trends by one; those that are flat on the ground are let go."""
        active = {str(item["name"]): seconds(item.get("rate")) for item in items}
        for name, rate in active.items():
            if rate and name not in self.trends:
                self.trends[name] = deque(maxlen=TREND_MAX)
        for name in [*self.trends]:
            self.trends[name].append(active.get(name, 0.0))
            if not any(self.trends[name]):
                del self.trends[name]


WHOLE_S: Final = 30.0
"""Seconds within which a snapshot is whole; a server needs much less for ten thousand functions."""


def whole_picture(news: Iterator[News], clock: Callable[[], float]) -> Picture:
    """The picture once its snapshot is whole and the server has told its figures.

    Raises ApiError, or Unreachable where the events break before.
    """
    picture, until_s = Picture(), clock() + WHOLE_S
    for each in news:
        now = clock()
        if isinstance(each, Broken):
            raise Unreachable(each.why)
        picture.apply(each.kind, each.data, now)
        if not picture.is_reading and picture.beat:
            return picture
        if now > until_s:
            break
    raise Unreachable(f"the server told no whole picture within {WHOLE_S:.0f} s")


def snapshot_json(picture: Picture) -> dict[str, Any]:
    """A picture as one JSON object: the nouns in order of name or id."""
    facts = picture.facts
    return {
        "server": facts.server,
        "beat": picture.beat,
        "functions": [facts.functions[name] for name in sorted(facts.functions)],
        "replicas": [facts.replicas[id] for id in sorted(facts.replicas)],
        "devices": [facts.devices[id] for id in sorted(facts.devices)],
        "happened": [asdict(each) for each in picture.happened],
    }
