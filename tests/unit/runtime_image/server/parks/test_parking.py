"""Parks of a real small engine on a Unix socket: it is put to sleep, woken, and asked its samples.

The engine has the faults of `tests/support/sleepy_engine`; the sidecar's loop is the real one.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from registry.model.parks import ENGINES, ParkSettings
from registry.model.servers import ServerSettings
from registry.spec import park_hooks
from runtime_image.contract.link import Kind
from runtime_image.contract.parks import (
    IDLE_LEAST,
    Life,
    LifeCommand,
    LifeState,
    ParkHooks,
    life_from,
)
from runtime_image.contract.samples import (
    GoldenPlan,
    GoldenRule,
    GoldenSample,
    SampleRequest,
    SampleVerdict,
    golden_from_json,
)
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import Frame, LinkError
from runtime_image.replica.loop import Loop
from runtime_image.server.connecting import Server
from runtime_image.server.golden.requests import LONG_PROMPT, PROMPT, prefix_request
from runtime_image.server.golden_asks import asked
from runtime_image.server.parks.engine import ParkedEngine
from runtime_image.server.parks.parking import Parking
from runtime_image.server.trial import learn_golden
from tests.support.sleepy_engine import SleepyEngine, running

LIMIT_MS = 60_000
"""Milliseconds of a call where the test does not wait for their end."""
SHORT_MS = 700
PARK, UNPARK, VERIFY = Kind.PARK, Kind.UNPARK, Kind.VERIFY
API = GoldenPlan(base="/v1", model="m")
ECHO = '{"model": "m", "prompt": "a b c", "max_tokens": 4, "logprobs": 1, "echo": true}'
MARKED = GoldenPlan(SampleRequest("/v1/completions", "POST", {}, ECHO, golden=True))


def vllm_hooks() -> ParkHooks:
    """The calls of the preset."""
    engine = ENGINES["vllm"]
    park = ParkSettings("vllm", engine.sleep, engine.wake, engine.check)
    hooks = park_hooks(ServerSettings(("vllm",), park=park))
    assert hooks is not None
    return hooks


def learnt(server: Server, plan: GoldenPlan = API) -> GoldenSample:
    """The golden sample of a trial, whose start has taken so long that any answer is quick."""
    spec = ServerSpec("a@1", ("x",), golden_plan=plan)
    return golden_from_json(learn_golden(spec, server, Path(), 1e6)["golden"])


def frame(kind: Kind, ms: int = LIMIT_MS, body: bytes | None = None) -> Frame:
    """A frame of the manager."""
    idle = IDLE_LEAST.pack(1) if kind is PARK else b""
    return Frame(kind, 0, 0, ms, b"", idle if body is None else body)


@dataclass
class Sidecar:
    """The parts of a sidecar around its parks."""

    loop: Loop
    engine: SleepyEngine
    server: Server
    told: list[tuple[Life, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dial: int = 1
    is_open: bool = False
    golden: GoldenSample = field(init=False)
    parking: Parking = field(init=False)

    def begin(self, golden: GoldenSample, hooks: ParkHooks | None = None) -> None:
        """Serve."""
        self.golden = golden
        engine = ParkedEngine(hooks or vllm_hooks(), self.server, Path(), golden)
        self.parking = Parking(self.loop, engine, self, self, self._tell)

    def _tell(self, life: Life, dial: int) -> None:
        self.told.append((life, dial))

    def tell(self, kind: Kind, ms: int = LIMIT_MS) -> Life:
        """Handle a frame of the manager; return what became of it."""
        self.parking.handle(frame(kind, ms), self.dial)
        return self.answer()[0]

    def answer(self) -> tuple[Life, int]:
        """Turn the loop until something is told; return it, and to which manager."""
        while not self.told:
            self.loop._turn()
        return self.told.pop()

    # Exchanges and Readings of the parks

    def park(self, if_idle_ms: int) -> None:
        self.notes.append(f"park {if_idle_ms}")
        if not self.is_open:
            self.parking.on_quiet(self.dial)

    def serve(self) -> None:
        self.notes.append("serve")

    def rest(self) -> None:
        self.notes.append("rest")

    def resume(self) -> None:
        self.notes.append("resume")


@contextmanager
def sidecar(*options: str, fault: str = "", plan: GoldenPlan = API) -> Iterator[Sidecar]:
    """An engine that sleeps, and the sidecar that has learnt its golden sample."""
    folder = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))
    try:
        with (
            running(folder, *options, fault=fault) as engine,
            closing(Loop(time.monotonic)) as loop,
        ):
            server = Server(0, engine.socket_path, is_shared=False)
            made = Sidecar(loop, engine, server)
            if fault == "hung":
                with running_sound(folder) as sound:
                    made.begin(learnt(Server(0, sound.socket_path, is_shared=False), plan))
            else:
                made.begin(learnt(server, plan))
            yield made
    finally:
        shutil.rmtree(folder)


@contextmanager
def running_sound(folder: Path) -> Iterator[SleepyEngine]:
    """A sound engine beside a hung one."""
    below = folder / "s"
    below.mkdir()
    with running(below) as engine:
        yield engine


def test_an_engine_sleeps_and_comes_back_right() -> None:
    """It frees its memory; exchanges are opened only after its samples."""
    with sidecar("--slow", "0.05") as one:
        parked = one.tell(PARK)
        assert (parked["life"], parked["problem"]) == (LifeState.PARKED, "")
        assert 50 <= parked["took_ms"] < LIMIT_MS
        assert one.engine.held_mib == 512
        assert one.notes == ["park 1", "rest"]
        assert one.parking.state is LifeState.PARKED

        awake = one.tell(UNPARK)
        assert (awake["life"], awake["problem"]) == (LifeState.VERIFYING, "")
        assert one.engine.held_mib == 8192
        assert "serve" not in one.notes

        right = one.tell(VERIFY)
        assert (right["life"], right["problem"]) == (LifeState.READY, "")
        assert right["took_ms"] > 0
        assert one.notes == ["park 1", "rest", "resume", "serve"]

        again = [one.tell(kind)["life"] for kind in (PARK, UNPARK, VERIFY)]
        assert again == [LifeState.PARKED, LifeState.VERIFYING, LifeState.READY]


SLEEP_FAULTS = {
    "sleep-fails": "POST /sleep?level=1: expected a status from 200 to 299, got 500 {}",
    "sleep-dies": "POST /sleep?level=1: expected an answer, got ",
    "sleep-hangs": "POST /sleep?level=1: expected an answer, got no whole answer within 0.7 s",
    "no-sleep-mode": "GET /is_sleeping: expected is_sleeping true within 0.7 s after POST /sleep",
}


@pytest.mark.parametrize("fault", SLEEP_FAULTS)
def test_a_sleep_that_fails_is_told(fault: str) -> None:
    """No exchange is opened again: the manager ends the replica, and the first end counts."""
    with sidecar(fault=fault) as one:
        life = one.tell(PARK, SHORT_MS)
        assert life["life"] == LifeState.PARKING
        assert life["problem"].startswith(SLEEP_FAULTS[fault])
        assert one.parking.state is LifeState.PARKING
        assert [one.tell(kind) for kind in (PARK, UNPARK, VERIFY)] == [life] * 3
        assert "serve" not in one.notes


WAKE_FAULTS = {
    "wake-fails": "POST /wake_up: expected a status from 200 to 299, got 500 {}",
    "wake-dies": "POST /wake_up: expected an answer, got ",
    "wake-hangs": "POST /wake_up: expected an answer, got no whole answer within 0.7 s",
    "stays-asleep": "GET /is_sleeping: expected is_sleeping false within 0.7 s after POST /wake_up",
}


@pytest.mark.parametrize("fault", WAKE_FAULTS)
def test_a_wake_that_fails_is_told(fault: str) -> None:
    """An answer of 200 is not believed alone."""
    with sidecar(fault=fault) as one:
        assert one.tell(PARK)["life"] == LifeState.PARKED
        life = one.tell(UNPARK, SHORT_MS)
        assert life["life"] == LifeState.UNPARKING
        assert life["problem"].startswith(WAKE_FAULTS[fault])
        assert one.tell(VERIFY) == life
        assert "serve" not in one.notes


WRONG = {
    "garbage": "after the wake: wrong: expected log probabilities of the prompt",
    "garbage-later": "after the wake: wrong: expected log probabilities of the tokens",
    "stale-prefix": "after the wake, with a prompt that was cached: wrong: expected log prob",
    "lies": "after the wake: none: the server answered 503",
}


@pytest.mark.parametrize("fault", WRONG)
def test_an_engine_that_comes_back_wrong_serves_nobody(fault: str) -> None:
    """Each fault is seen by the samples alone: calls and checks were answered well."""
    with sidecar(fault=fault) as one:
        assert one.tell(PARK)["problem"] == one.tell(UNPARK)["problem"] == ""
        life = one.tell(VERIFY)
        assert life["life"] == LifeState.VERIFYING
        assert life["problem"].startswith(f"the golden sample {WRONG[fault]}")
        one.parking.handle(frame(VERIFY), 1)
        assert one.told.pop() == (life, 1), "a second ask may be right by chance"
        assert "serve" not in one.notes
        assert "resume" not in one.notes


@pytest.mark.parametrize("plan", [API, MARKED], ids=["of the API", "of the manifest"])
def test_a_stale_cache_is_seen_by_the_second_sample_alone(plan: GoldenPlan) -> None:
    """The first one asks for log probabilities of its prompt, for which the cache is left out."""
    with sidecar(fault="stale-prefix", plan=plan) as one:
        assert one.tell(PARK)["problem"] == one.tell(UNPARK)["problem"] == ""
        assert asked(one.golden, one.server, Path(), waits=False)["verdict"] == SampleVerdict.RIGHT
        assert "a prompt that was cached" in one.tell(VERIFY)["problem"]


@pytest.mark.parametrize("fault", ["frees-nothing", "frees-half"])
def test_what_is_freed_is_not_the_sidecars_to_see(fault: str) -> None:
    """The engine says that it sleeps; what it holds is in the readings of NVML alone."""
    with sidecar(fault=fault) as one:
        assert one.tell(PARK)["life"] == LifeState.PARKED
        assert one.engine.held_mib > 512


def test_an_answer_before_the_sleep_is_awaited() -> None:
    """The check says when."""
    with sidecar("--slow", "0.3", fault="early") as one:
        life = one.tell(PARK)
        assert life["life"] == LifeState.PARKED
        assert life["took_ms"] >= 250
        assert one.engine.held_mib == 512


def test_a_hung_engine_is_seen_before_the_sleep() -> None:
    """Its samples are asked first."""
    with sidecar(fault="hung") as one:
        golden = replace(one.golden, usual_ms=1.0)
        one.begin(golden)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("runtime_image.contract.samples.LIMIT_S", 0.2)
            life = one.tell(PARK, SHORT_MS)
        assert life["life"] == LifeState.PARKING
        assert life["problem"].startswith("the golden sample before the sleep: no answer: ")
        assert one.engine.held_mib == 8192


def test_level_two_comes_back_as_garbage() -> None:
    """Its weights are gone: the sample sees it."""
    hooks = replace(vllm_hooks(), sleep=SampleRequest("/sleep?level=2", "POST"))
    with sidecar() as one:
        one.begin(one.golden, hooks)
        assert one.tell(PARK)["problem"] == one.tell(UNPARK)["problem"] == ""
        assert "wrong" in one.tell(VERIFY)["problem"]


def test_calls_without_a_check_are_believed_until_the_sample() -> None:
    """As SGLang's."""
    hooks = replace(vllm_hooks(), check=None)
    with sidecar(fault="no-sleep-mode") as one:
        one.begin(one.golden, hooks)
        assert [one.tell(kind)["problem"] for kind in (PARK, UNPARK, VERIFY)] == [""] * 3


def test_a_check_must_say_true_or_false() -> None:
    """Anything else says nothing."""
    hooks = replace(vllm_hooks(), check=SampleRequest("/health"))
    with sidecar() as one:
        one.begin(one.golden, hooks)
        life = one.tell(PARK)
        assert life["problem"] == "GET /health: expected is_sleeping true or false, got {}"


def test_the_loop_goes_on_while_an_engine_sleeps() -> None:
    """PINGs are answered meanwhile; a second command is not begun."""
    with sidecar(fault="sleep-hangs") as one:
        turns: list[LifeState] = []

        def turn() -> None:
            turns.append(one.parking.state)
            one.parking.handle(frame(PARK, SHORT_MS), one.dial)
            one.loop.after(0.02, turn)

        one.loop.after(0.0, turn)
        life = one.tell(PARK, SHORT_MS)
        assert life["life"] == LifeState.PARKING
        assert len(turns) > 5
        assert set(turns) == {LifeState.PARKING}
        assert one.notes == ["park 1", "rest"]
        # The last turn may have come after the end, which is told again then.
        assert all(again == (life, 1) for again in one.told)


def test_an_open_exchange_keeps_the_engine_awake() -> None:
    """The slots tell when it is over; another manager than the one that asked gets no park."""
    with sidecar() as one:
        one.is_open = True
        one.parking.handle(frame(PARK), 1)
        assert one.notes == ["park 1"]
        assert one.parking.state is LifeState.READY
        one.parking.on_quiet(2)
        assert one.notes == ["park 1", "serve"]
        assert one.parking.state is LifeState.READY


def test_a_new_manager_asks_again_and_is_told_what_became_of_it() -> None:
    """HELLO has the life, whose command it tells again."""
    with sidecar() as one:
        one.parking.handle(frame(PARK), 1)
        one.parking.handle(frame(PARK), 2)
        life, dial = one.answer()
        assert (life["life"], dial) == (LifeState.PARKED, 2)
        one.dial = 3
        assert one.tell(PARK) == life
        one.parking.handle(frame(UNPARK), 3)
        one.parking.handle(frame(UNPARK), 4)
        assert one.told == [], "what became of the park is no answer to it"
        life, dial = one.answer()
        assert (life["life"], dial) == (LifeState.VERIFYING, 4)
        assert one.tell(VERIFY)["life"] == LifeState.READY
        assert one.tell(UNPARK)["life"] == LifeState.READY


def test_who_has_it_take_exchanges_is_told_that_it_sleeps() -> None:
    """RESUME wakes nothing: what became of the park is told again, until the server serves."""
    with sidecar() as one:
        one.parking.repeat(1)
        assert not one.parking.has_slept
        one.parking.handle(frame(PARK), 1)
        one.parking.repeat(1)
        assert one.told == [], "its engine is being put to sleep"
        life, _ = one.answer()
        one.parking.repeat(7)
        assert one.answer() == (life, 7)
        one.tell(UNPARK)
        one.tell(VERIFY)
        one.parking.repeat(1)
        assert one.told == []
        assert one.parking.has_slept


def test_a_command_before_the_first_park_is_not_answered() -> None:
    """There is nothing to tell, and the manager has a limit."""
    with sidecar() as one:
        one.parking.handle(frame(UNPARK), 1)
        one.parking.handle(frame(VERIFY), 1)
        assert one.told == []
        assert one.parking.state is LifeState.READY


@pytest.mark.parametrize(
    "bad",
    [frame(PARK, 0), frame(UNPARK, 2**32 - 1), frame(PARK, body=b""), frame(PARK, body=bytes(5))],
    ids=["no limit", "an hour and more", "no idle time", "a longer body"],
)
def test_malformed_commands_end_the_link(bad: Frame) -> None:
    """Limits are bounded."""
    with sidecar() as one, pytest.raises(LinkError, match=f"malformed {Kind(bad.kind).name}"):
        one.parking.handle(bad, 1)


def test_what_lives_are_told_is_read_by_the_manager() -> None:
    """Each LIFE says which command it answers."""
    with sidecar() as one:
        read = [life_from(one.tell(kind)) for kind in (PARK, UNPARK, VERIFY)]
    assert [one.command for one in read] == list(LifeCommand)
    assert {one.problem for one in read} == {""}


@pytest.mark.parametrize(
    ("is_private", "is_shared", "why_not"),
    [(True, False, ""), (False, True, ""), (True, True, "other users of this host can reach")],
)
def test_a_port_that_others_reach_is_not_used(
    is_private: bool, is_shared: bool, why_not: str
) -> None:
    """Control calls of a preset need no key; calls of one's own are their owner's concern."""
    hooks = replace(vllm_hooks(), is_private=is_private)
    golden = GoldenSample(SampleRequest(), GoldenRule.STATUS, None, 1.0)  # type: ignore[arg-type]
    engine = ParkedEngine(hooks, Server(1, None, is_shared=is_shared), Path(), golden)
    assert engine.why_not.startswith(why_not)
    assert bool(engine.why_not) is bool(why_not)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (f'{{"prompt": "{PROMPT}", "echo": true, "logprobs": 5}}', "prompt"),
        (
            f'{{"messages": [{{"role": "user", "content": "{PROMPT}"}}], "prompt_logprobs": 1}}',
            "messages",
        ),
    ],
)
def test_the_long_prompt_is_asked_as_the_short_one(body: str, name: str) -> None:
    """But for what leaves the cache of prefixes out."""
    found = prefix_request(SampleRequest("/v1/x", "POST", {"A": "b"}, body, 200))
    assert found is not None
    assert (found.path, found.method, found.headers) == ("/v1/x", "POST", {"A": "b"})
    assert LONG_PROMPT in found.body
    assert f'"{name}"' in found.body
    assert "echo" not in found.body
    assert "prompt_logprobs" not in found.body


@pytest.mark.parametrize("body", ["", "@body.json", "[1]", '{"prompt": "x"}', '{"messages": []}'])
def test_other_samples_have_no_long_prompt(body: str) -> None:
    """Their owner's request itself is asked before the sleep and after it."""
    assert prefix_request(SampleRequest(body=body)) is None
