from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from admin.cli.live.events import StreamItem
from admin.cli.top.app import AT_ONCE_MAX, BackgroundRequests, Outcome, Top
from admin.cli.top.lines import Line, text
from admin.cli.top.terminal import HungUp
from admin.cli.top.view import Request
from admin.client.client import Client
from admin.client.sse import Disconnected
from tests.support.admin_api import AdminApi, Canned
from tests.support.event_server import line, read, snapshot

UNTIL_S = 60.0
PATH = "/admin/v1/functions/a"


@pytest.fixture
def background(api: AdminApi) -> Iterator[BackgroundRequests]:
    made = BackgroundRequests(Client(api.url, "k"))
    yield made
    made.join(UNTIL_S)


def done(background: BackgroundRequests, *requests: Request) -> list[Outcome]:
    """Start the requests and return their outcomes."""
    assert all(background.start(request) for request in requests)
    background.join(UNTIL_S)
    return list(background.outcomes())


def test_the_outcome_is_a_line(api: AdminApi, background: BackgroundRequests) -> None:
    """The outcome of warm and sleep is the line that the verbs print."""
    api.on(
        "POST",
        f"{PATH}/warm",
        Canned({"revision": "a@1", "took_ms": 12.0}),
    )
    slept = {"name": "a", "asked": 1, "stay": 1, "min": 1, "reasons": ["min is 1"]}
    api.on("POST", f"{PATH}/sleep", Canned(slept))

    warm, sleep = Request("warm", "a"), Request("sleep", "a")

    assert done(background, warm) == [Outcome(warm, "a@1 is warm after 12 ms")]
    assert done(background, sleep) == [
        Outcome(sleep, "a: 1 replica asked to stop 1 replica stays: min is 1")
    ]


def test_a_why_keeps_its_lines(api: AdminApi, background: BackgroundRequests) -> None:
    """The outcome of why keeps its line breaks, for a page of its own."""
    decisions = [{"at_s": 1.0, "text": "wakes"}]
    api.on("GET", f"{PATH}/why", Canned({"state": "warm", "reason": "x", "decisions": decisions}))

    [outcome] = done(background, Request("why", "a"))

    assert outcome.text.startswith("warm: x\n\ndecisions\n")


def test_a_refusal_is_told(api: AdminApi, background: BackgroundRequests) -> None:
    """A refusal or an unreachable server is an outcome with a text."""
    problem = {"title": "No room", "detail": "every device is busy", "code": "no_room"}
    api.on("POST", f"{PATH}/warm", Canned(problem, status=503))
    refused = done(background, Request("warm", "a"))
    api.close()
    alone = done(background, Request("sleep", "a"))

    assert refused[0].text == "warm a: No room: every device is busy"
    assert alone[0].text.startswith(f"sleep a: {api.url} does not answer")


def test_one_thing_is_not_asked_twice_at_once(
    api: AdminApi, background: BackgroundRequests
) -> None:
    """A request that is already running is not started again, nor more than AT_ONCE_MAX."""
    go_on = threading.Event()
    answer = Canned({"revision": "a@1", "took_ms": 1.0}, before=lambda: go_on.wait(UNTIL_S))
    for number in range(AT_ONCE_MAX):
        api.on("POST", f"/admin/v1/functions/f{number}/warm", answer)

    taken = [background.start(Request("warm", f"f{number}")) for number in (0, 0, *range(1, 12))]
    go_on.set()
    background.join(UNTIL_S)

    assert taken == [True, False, *[True] * (AT_ONCE_MAX - 1), *[False] * 4]
    assert len(list(background.outcomes())) == AT_ONCE_MAX
    assert done(background, Request("warm", "f0"))


WHOLE = read(*snapshot([line("a"), line("b")]))


class Scene:
    """Feed, background requests, screen and terminal of one run; records what was shown and
    requested."""

    def __init__(self, *turns: str, news: list[StreamItem] | None = None) -> None:
        self.news = WHOLE if news is None else news
        self.turns = iter(turns)
        self.shown: list[list[str]] = []
        self.asked: list[Request] = []
        self.told: list[Outcome] = []
        self.opened = 0
        self.is_open = self.is_raw = self.is_stopping = self.is_resized = False
        self.stops = 0
        self.size = (100, 20)
        self.spoilt: list[bool] = []

    def take(self) -> Iterator[StreamItem]:
        """Return the events of the feed."""
        news, self.news = self.news, []
        yield from news

    def start(self, request: Request) -> bool:
        """Record a background request."""
        self.asked.append(request)
        return True

    def outcomes(self) -> Iterator[Outcome]:
        """Return the outcomes of background requests."""
        told, self.told = self.told, []
        yield from told

    def open(self) -> None:
        """Open the screen."""
        self.is_open, self.opened = True, self.opened + 1

    def close(self) -> None:
        """Close the screen."""
        self.is_open = False

    def show(self, lines: list[Line], anew: bool) -> None:
        """Record the lines shown."""
        assert self.is_open
        assert self.is_raw
        self.shown.append([text(one) for one in lines])
        self.spoilt.append(anew)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Enter the terminal's context."""
        yield

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Enter the terminal's raw mode."""
        self.is_raw = True
        try:
            yield
        finally:
            self.is_raw = False

    def wait(self, timeout_s: float) -> list[str]:
        """Play the next turn: keys separated by spaces, or an event."""
        turn = next(self.turns)
        if turn == "hang up":
            raise HungUp
        self.is_stopping = turn == "ctrl-z"
        self.is_resized = turn == "resize"
        return turn.split() if turn not in ("ctrl-z", "resize", "wait") else []

    def was_resized(self) -> bool:
        """Return whether this turn is a resize."""
        return self.is_resized

    def was_stopped(self) -> bool:
        """Return whether this turn is Ctrl-Z."""
        return self.is_stopping

    def stop(self) -> None:
        """Stop and continue, as Ctrl-Z and fg do."""
        assert not self.is_open
        assert not self.is_raw
        self.stops += 1


@pytest.fixture
def run() -> Callable[[Scene], Request]:
    """Run a scene on a clock that advances 0.25 s at each reading."""

    def started(scene: Scene) -> Request:
        clock = itertools.count(100.0, 0.25)
        top = Top(scene, scene, scene, scene, url="http://a:1", clock=lambda: next(clock))  # type: ignore[arg-type]
        return top.run()

    return started


def test_it_is_shown_until_the_user_quits(run: Callable[[Scene], Request]) -> None:
    """The screen is shown until q, then screen and terminal are restored."""
    scene = Scene("wait", "q")

    ended = run(scene)

    assert ended == Request("quit")
    assert (scene.is_open, scene.is_raw, scene.opened) == (False, False, 1)
    assert any(one.startswith("a ") for one in scene.shown[0])
    assert scene.spoilt == [True, False]


def test_any_end_restores_the_terminal(run: Callable[[Scene], Request]) -> None:
    """Errors and a terminal that hangs up restore screen and terminal too."""
    scene = Scene("wait", "hang up")

    with pytest.raises(HungUp):
        run(scene)

    assert not scene.is_open
    assert not scene.is_raw


def test_keys_act_on_what_the_last_one_changed(run: Callable[[Scene], Request]) -> None:
    """Each key acts on the result of the one before, even if they arrive faster than the screen is
    drawn."""
    scene = Scene("wait", "/ b enter w", "escape down w", "q")

    run(scene)

    assert scene.asked == [Request("warm", "b"), Request("warm", "b")]


def test_ctrl_z_stops_it_with_the_terminal_in_order(run: Callable[[Scene], Request]) -> None:
    """Ctrl-Z stops the program with the terminal restored; afterwards the whole screen is drawn."""
    scene = Scene("wait", "ctrl-z", "wait", "q")

    run(scene)

    assert (scene.stops, scene.opened) == (1, 2)
    assert scene.spoilt == [True, False, True, False]


def test_another_size_is_drawn_anew(run: Callable[[Scene], Request]) -> None:
    """A resize, and Ctrl-L, redraw the whole screen."""
    scene = Scene("wait", "resize", "redraw", "q")

    run(scene)

    assert scene.spoilt == [True, False, True, True]


def test_why_is_asked_and_shown(run: Callable[[Scene], Request]) -> None:
    """The why page is requested again and again while it is shown."""
    scene = Scene("enter", *["wait"] * 12, "q", "q")
    scene.told = [Outcome(Request("why", "zzz"), "of another function")]
    asked = scene.start

    def start(request: Request) -> bool:
        scene.told.append(Outcome(request, "cold: no calls"))
        return asked(request)

    scene.start = start  # type: ignore[method-assign]

    run(scene)

    assert len(scene.asked) > 2
    assert {*scene.asked} == {Request("why", "a")}
    assert scene.shown[3][2:5] == ["a", "", "cold: no calls"]
    assert not any("of another" in one for shown in scene.shown for one in shown)


def test_an_outcome_is_shown_for_a_while(run: Callable[[Scene], Request]) -> None:
    """The outcome of a request is shown for a while in place of the keys."""
    scene = Scene("wait", "w", "wait", *["wait"] * 60, "q")

    run(scene)

    assert scene.shown[2][-1] == "warm a …"
    assert scene.shown[-1][-1].startswith("q quit")


def test_a_break_is_told(run: Callable[[Scene], Request]) -> None:
    """The first line reports a lost connection as long as it lasts."""
    scene = Scene("wait", "q", news=[*WHOLE, Disconnected("nobody there", 4.0)])

    run(scene)

    assert "reconnecting in" in scene.shown[0][0]
    assert scene.shown[0][-1] == "nobody there"


def test_an_outcome_is_told(run: Callable[[Scene], Request]) -> None:
    """An outcome is shown in the last line."""
    scene = Scene("wait", "q")
    scene.told = [Outcome(Request("warm", "a"), "a@1 is warm after 12 ms")]

    run(scene)

    assert scene.shown[0][-1] == "a@1 is warm after 12 ms"
