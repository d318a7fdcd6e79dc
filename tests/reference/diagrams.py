"""docs/images/*.svg: the life and park of a replica, the parts of a server, a cold call, hosts."""

from __future__ import annotations

from collections.abc import Mapping

from pool_manager.core.state import TRANSITIONS, State, Step
from runtime_image.contract.control import PHASES, WAKE_PHASES
from tests.reference.svg import Drawing, Point

STATE_SIZE = (130, 44)
PLACES: dict[State, Point] = {
    State.STARTING: (50, 80),
    State.STANDBY: (250, 80),
    State.LOADING: (450, 80),
    State.READY: (650, 80),
    State.DRAINING: (650, 200),
    State.RELEASING: (650, 310),
    State.STOPPED: (450, 310),
}
LOST_Y, LOST_X, DRAIN_Y = 36, 830, 222
LABELS: dict[tuple[State, Step], Point] = {
    (State.STARTING, Step.GREETED): (215, 94),
    (State.STANDBY, Step.BOUND): (415, 94),
    (State.LOADING, Step.LOADED): (615, 94),
    (State.STANDBY, Step.DRAINED): (285, 160),
    (State.LOADING, Step.DRAINED): (485, 160),
    (State.READY, Step.DRAINED): (665, 166),
    (State.DRAINING, Step.NOT_IDLE): (769, 166),
    (State.RELEASING, Step.RELEASED): (615, 324),
}
"""Base lines of the steps' names. `lost` has one name for all states."""
PARKS: dict[State, Point] = {
    State.LOADING: (50, 80),
    State.READY: (50, 200),
    State.PARKING: (290, 200),
    State.PROVING: (530, 200),
    State.PARKED: (770, 200),
    State.UNPARKING: (770, 320),
    State.VERIFYING: (290, 320),
    State.DRAINING: (530, 80),
}
"""The states of a park, with those that lead to it and out of it."""
PARK_ROUTES: dict[tuple[State, Step], tuple[list[Point], Point]] = {
    (State.LOADING, Step.FOUND_PARKING): ([(180, 102), (325, 102), (325, 200)], (252, 94)),
    (State.LOADING, Step.FOUND_ASLEEP): (
        [(150, 80), (150, 60), (720, 60), (720, 180), (635, 180), (635, 200)],
        (400, 52),
    ),
    (State.LOADING, Step.FOUND_WAKING): (
        [(75, 124), (75, 170), (20, 170), (20, 390), (835, 390), (835, 364)],
        (372, 382),
    ),
    (State.READY, Step.PARK): ([(180, 212), (290, 212)], (235, 206)),
    (State.PARKING, Step.NOT_IDLE): ([(290, 234), (180, 234)], (235, 250)),
    (State.PARKING, Step.ASLEEP): ([(420, 222), (530, 222)], (475, 214)),
    (State.DRAINING, Step.ASLEEP): ([(595, 124), (595, 200)], (560, 160)),
    (State.PROVING, Step.PROVED): ([(660, 222), (770, 222)], (715, 214)),
    (State.PARKING, Step.DRAINED): ([(385, 200), (385, 102), (530, 102)], (460, 94)),
    (State.PARKED, Step.UNPARK): ([(835, 244), (835, 320)], (870, 286)),
    (State.UNPARKING, Step.AWAKE): ([(770, 342), (420, 342)], (595, 334)),
    (State.VERIFYING, Step.VERIFIED): ([(290, 342), (115, 342), (115, 244)], (200, 334)),
}
"""The lines of its steps, and the base lines of their names."""


def replica_life() -> str:
    """The table of a replica's states. Raises ValueError where a step has no place."""
    drawing = Drawing(860, 380, "Life of a replica", _table(TRANSITIONS))
    for state in PLACES:
        for step, after in TRANSITIONS[state].items():
            if after not in PLACES or (state, step) in PARK_ROUTES:
                continue  # `replica_park` shows it
            drawing.line(_route(state, step, after), arrow=_has_tip(state, step))
            if step is not Step.LOST:
                drawing.text(LABELS[state, step], step.value, kind="small")
    drawing.line([(14, 102), (50, 102)])
    drawing.line([(PLACES[State.STARTING][0] + 65, LOST_Y), (LOST_X, LOST_Y)], arrow=False)
    drawing.line([(LOST_X, LOST_Y), (LOST_X, 332), (780, 332)])
    drawing.text(
        (440, LOST_Y - 9), "lost: exit, crash, hang, refused load, lost device", kind="small"
    )
    for state, place in PLACES.items():
        drawing.box(place, STATE_SIZE, state.value, kind="main" if state is State.READY else "box")
    return drawing.source()


def replica_park() -> str:
    """The states of a park. Raises KeyError where a step has no place."""
    states = (
        State.PARKING,
        State.PROVING,
        State.PARKED,
        State.UNPARKING,
        State.VERIFYING,
    )
    rows = {
        state: {
            step: after
            for step, after in TRANSITIONS[state].items()
            if step is not Step.LOST and (state in states or after in states)
        }
        for state in PARKS
    }
    drawing = Drawing(980, 430, "Park of a replica", _table(rows))
    for state, steps in rows.items():
        for step in steps:
            points, label = PARK_ROUTES[state, step]
            drawing.line(points)
            drawing.text(label, step.value, kind="small")
    for state, place in PARKS.items():
        drawing.box(place, STATE_SIZE, state.value, kind="main" if state is State.READY else "box")
    drawing.text((490, 30), "lost: from each of them to releasing", kind="small")
    return drawing.source()


def _table(rows: Mapping[State, Mapping[Step, State]]) -> str:
    steps = [(a, step, b) for a, there in rows.items() for step, b in there.items()]
    return "; ".join(f"{a.value} to {b.value}: {step.value}" for a, step, b in steps)


def _has_tip(state: State, step: Step) -> bool:
    """Whether the step's line ends at a box and not in a line that others share."""
    return step is not Step.LOST and (state, step) != (State.LOADING, Step.DRAINED)


def _route(state: State, step: Step, after: State) -> list[Point]:
    (x, y), (to_x, to_y), (width, height) = PLACES[state], PLACES[after], STATE_SIZE
    middle = y + height / 2
    if step is Step.LOST:
        if state is State.DRAINING:
            return [(x + width, middle), (LOST_X, middle)]
        return [(x + width / 2, y), (x + width / 2, LOST_Y)]
    if (state, step) == (State.DRAINING, Step.NOT_IDLE):
        return [(x + 85, y), (x + 85, to_y + height)]
    if (state, step) == (State.READY, Step.DRAINED):
        return [(x + 45, y + height), (x + 45, to_y)]
    if step is Step.DRAINED:
        end = to_x if state is State.STANDBY else x + width / 2
        return [(x + width / 2, y + height), (x + width / 2, DRAIN_Y), (end, DRAIN_Y)]
    if (state, step) not in LABELS:
        raise ValueError(f"the step {state} -> {step} has no place in the picture")
    return (
        [(x + width, middle), (to_x, middle)] if to_x > x else [(x, middle), (to_x + width, middle)]
    )


def overview() -> str:
    """The parts of a server and what they exchange."""
    text = (
        "A client calls the gateway, which holds the request and sends it to a replica. "
        "The pool manager starts and ends replicas by the gateway's demand. The admin API"
        " changes functions in the store."
    )
    drawing = Drawing(900, 430, "Parts of a server", text)
    drawing.rectangle((220, 24), (430, 382), "group")
    drawing.text((236, 46), "server", "start", "small")
    drawing.box((30, 70), (130, 60), "client", "any HTTP client")
    drawing.box((30, 320), (130, 60), "operator", "fnctl, browser")
    drawing.box((260, 70), (170, 60), "gateway", "HTTP, queues", kind="main")
    drawing.box((260, 195), (170, 60), "pool manager", "scaling, devices", kind="main")
    drawing.box((260, 320), (170, 60), "admin API", "deploys, events")
    drawing.box((490, 320), (130, 60), "store", "SQLite, blobs")
    for x in (748, 740, 732):
        drawing.box((x, 803 - x), (136, 70), "")
    drawing.box((732, 71), (136, 70), "replica", "one model, batches", "process, container")
    drawing.box((732, 195), (136, 60), "standby", "no model yet")
    drawing.line([(160, 100), (260, 100)])
    drawing.text((190, 90), "calls", kind="small")
    drawing.line([(430, 100), (732, 100)])
    drawing.text((581, 90), "requests and answers", kind="small")
    drawing.line([(315, 130), (315, 195)])
    drawing.text((306, 167), "demand", "end", "small")
    drawing.line([(375, 195), (375, 130)])
    drawing.text((384, 167), "endpoints", "start", "small")
    drawing.line([(430, 215), (690, 215), (690, 125), (732, 125)])
    drawing.text((560, 205), "start, bind, drain, end", kind="small")
    drawing.line([(430, 238), (732, 238)])
    drawing.line([(160, 350), (260, 350)])
    drawing.line([(345, 320), (345, 255)])
    drawing.text((354, 292), "pools, trials", "start", "small")
    drawing.line([(430, 350), (490, 350)])
    return drawing.source()


def hosts() -> str:
    """Connections between server, hosts and replicas on other machines."""
    text = (
        "The pool manager keeps one SSH connection to each other host: for its Docker engine, "
        "control links, files and images. Each gateway worker keeps two: one for calls, one for "
        "bodies over 64 KiB. Replicas and the agent connect to a socket that SSH forwards to the "
        "pool manager. Nothing but sshd listens on a network port."
    )
    drawing = Drawing(900, 470, "Connections with several hosts", text)
    drawing.rectangle((150, 20), (250, 430), "group")
    drawing.text((166, 42), "the server's machine: host local", "start", "small")
    drawing.rectangle((560, 20), (320, 430), "group")
    drawing.text((576, 42), "another host, such as gpu2", "start", "small")
    drawing.box((20, 70), (100, 60), "client", "HTTP")
    drawing.box((180, 70), (190, 60), "gateway", "each worker", kind="main")
    drawing.box((180, 240), (190, 60), "pool manager", "places replicas", kind="main")
    drawing.box((180, 360), (190, 60), "replicas", "of this machine")
    drawing.box((590, 70), (110, 330), "sshd", "port 22")
    drawing.box((740, 56), (120, 150), "replica", "model or server")
    drawing.text((800, 90), "data.sock", kind="small")
    drawing.text((800, 184), "ctl.sock", kind="small")
    drawing.box((740, 244), (120, 56), "agent", "GPUs, disk")
    drawing.box((740, 338), (120, 56), "Docker", "engine")
    for points in (
        [(120, 100), (180, 100)],
        [(370, 90), (590, 90)],
        [(370, 112), (590, 112)],
        [(370, 270), (590, 270)],
        [(250, 130), (250, 240)],
        [(300, 240), (300, 130)],
        [(275, 300), (275, 360)],
        [(700, 84), (740, 84)],
        [(740, 178), (700, 178)],
        [(740, 272), (700, 272)],
        [(700, 366), (740, 366)],
    ):
        drawing.line(points)
    for at, words in (
        ((479, 82), "SSH: calls"),
        ((479, 128), "SSH: bodies over 64 KiB"),
        ((479, 262), "SSH: control"),
        ((479, 288), "engine, control links,"),
        ((479, 304), "files, images"),
        ((215, 190), "demand"),
        ((340, 190), "endpoints"),
    ):
        drawing.text(at, words, kind="small")
    return drawing.source()


LANES = {"client": 90, "gateway": 290, "pool manager": 490, "replica": 690}
MESSAGES = (
    ("client", "gateway", "POST /fn/digits", ""),
    ("gateway", "pool manager", "demand: 1 held", ""),
    ("pool manager", "replica", "start a process", "place, evict"),
    ("replica", "pool manager", "HELLO", "start, import"),
    ("pool manager", "replica", "BIND: the model", "bind"),
    ("replica", "pool manager", "LOADED", "fetch, read, load"),
    ("pool manager", "gateway", "endpoints: ready", ""),
    ("gateway", "replica", "request", ""),
    ("replica", "gateway", "answer", "first_run"),
    ("gateway", "client", "200, Server-Timing", ""),
)
"""From, to, message, and the phases of the cold start that end with it."""
ROW = 44


def cold_call() -> str:
    """The messages of a call that finds no replica. Raises ValueError where the phases "
    "are others."""
    named = {phase for *_, phases in MESSAGES for phase in phases.split(", ") if phase}
    if named != (known := {*PHASES} - {*WAKE_PHASES}):
        raise ValueError(f"the phases of a cold start are others: {named ^ known}")
    height = 90 + ROW * len(MESSAGES)
    text = "; ".join(f"{a} to {b}: {message}" for a, b, message, _ in MESSAGES)
    drawing = Drawing(880, height + 20, "A cold call", text)
    for name, x in LANES.items():
        drawing.line([(x, 62), (x, height)], "thin", arrow=False)
        drawing.box((x - 65, 20), (130, 40), name, kind="main" if name == "replica" else "box")
    for place, (sender, receiver, message, phases) in enumerate(MESSAGES):
        start, end, y = LANES[sender], LANES[receiver], 100 + ROW * place
        drawing.line([(start, y), (end, y)])
        drawing.text(((start + end) / 2, y - 7), message)
        if phases:
            drawing.text((LANES["replica"] + 74, y + 4), phases, "start", "small")
    drawing.text((LANES["replica"] + 74, 45), "phases", "start", "small")
    held = 100 + ROW, 100 + ROW * 7
    drawing.rectangle((LANES["gateway"] - 5, held[0]), (10, held[1] - held[0]), "main")
    drawing.text((LANES["gateway"] - 14, sum(held) / 2), "held in the queue", "end", "small")
    return drawing.source()


PICTURES = {
    "replica-life": replica_life,
    "replica-park": replica_park,
    "overview": overview,
    "cold-call": cold_call,
    "hosts": hosts,
}
