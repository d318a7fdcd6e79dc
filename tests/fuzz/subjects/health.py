"""Readers of what shows how a server fares: its metrics, its golden sample, frames about both."""

from __future__ import annotations

import json
import math
import re
import socket
import time
from contextlib import suppress
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from pool_manager.core import events
from pool_manager.core.health.liveness import Silences, Watch
from pool_manager.replicas.messages import (
    LINE_MAX,
    NUMBER_MAX,
    parse_frame,
    parse_health,
    parse_probed,
    parse_sampled,
)
from registry.errors import FnError
from registry.manifest import parse_manifest
from registry.model.servers import PathRules
from registry.path_rules import CompiledPaths
from runtime_image.contract.health import SAID_MAX
from runtime_image.contract.link import Kind
from runtime_image.contract.parks import TOOK_MAX_MS, LifeAnswer, life_from, state_from
from runtime_image.contract.samples import (
    REASON_MAX,
    Answer,
    GoldenRule,
    GoldenSample,
    Picture,
    SampleRequest,
    SampleVerdict,
    golden_from_json,
    golden_to_json,
)
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.replica.loop import Loop
from runtime_image.server.connecting import Server
from runtime_image.server.counter import read_counter
from runtime_image.server.golden.rules import differs
from runtime_image.server.links import Links
from tests.fuzz.subject import KIB, THREAD_S, Bound, Subject
from tests.fuzz.subjects.bodies import _frames

METRIC: Final = "steps_total"
_STRANGE: Final = re.compile(rb"[^\t\r\n -~]")
METRICS: Final = (
    b"# HELP steps_total Steps.\n# TYPE steps_total counter\n"
    b'steps_total{model="a} \\"b\\\\",rank="0"} 17.0 1395066363000\nsteps_total{model="c"} 3\n'
    b'steps_total_created{model="a"} 1.7e9\n',
    b"steps_total 5e3\r\nsteps 4\nsteps_total\t1\n",
)


def _check_counter(data: bytes, found: Any) -> None:
    """A finite number, the one that Prometheus' own parser reads in what it accepts. Other white
    space than blanks and tabs, which it accepts, is none in the format."""
    assert found is None or math.isfinite(found)
    if _STRANGE.search(data):
        return
    try:
        families = [*text_string_to_metric_families(data.decode())]
    except (ValueError, KeyError, IndexError, OverflowError):
        return
    values = [one.value for family in families for one in family.samples if one.name == METRIC]
    finite = [one for one in values if math.isfinite(one)]
    total = sum(finite) if finite else None
    assert (total is None) == (found is None), f"expected {total}, got {found}"
    assert total is None or math.isclose(total, found), f"expected {total}, got {found}"


def _samples() -> tuple[bytes, ...]:
    request = SampleRequest("/v1/completions", "POST", {"A": "b"}, "{}", 200, golden=True)
    head = Answer(200, "application/json")
    answers = {
        GoldenRule.LOGPROBS: Answer(
            *(200, "a/b", "", (-1.0, -2.5), ("a", " b"), (-0.5, -1e-3)),
        ),
        GoldenRule.TEXT: Answer(*(200, "", "", (), (), (), "a b")),
        GoldenRule.EMBEDDING: Answer(*(200, "", "", (), (), (), "", (0.25, -1e3))),
        GoldenRule.PICTURE: Answer(200, "image/png", pixels=Picture(2, 1, 1, "AAE=")),
        GoldenRule.BYTES: Answer(200, "", "0" * 64),
        GoldenRule.STATUS: head,
    }
    samples = (GoldenSample(request, rule, one, 3.5, 0.02) for rule, one in answers.items())
    return tuple(json.dumps(golden_to_json(one)).encode() for one in samples)


def _golden(data: bytes) -> GoldenSample:
    """Return the golden sample of a trial's report."""
    return golden_from_json(parse_frame(Frame(Kind.LOADED, 0, 0, 0, b"", data)))


def _check_golden(_data: bytes, found: Any) -> None:
    """It is what it was once it was stored, ends in time, and its own answer is right."""
    if isinstance(found, Exception):
        return
    assert golden_from_json(json.loads(json.dumps(golden_to_json(found)))) == found
    assert 0 < found.limit_s <= 600
    assert differs(found, found.answer) == "", "its own answer is wrong"


HEALTH: Final = (
    b'{"open":3,"moved":70000,"given":60000,"unread":false,"counter":17.5,"cpu":0.5,'
    b'"is_traced":false,"probes":2,"ready":"silent","said":"no answer within 5 s"}'
)
PROBED: Final = b'{"path":"/up","status":404,"answer":"Not Found","seconds":61.5}'
SAMPLED: Final = b'{"verdict":"wrong","ms":12.5,"reason":"expected status 200, got 500"}'


def _life(data: dict[str, Any]) -> LifeAnswer:
    """Return what a LIFE says. Raises LinkError."""
    try:
        state_from(data.get("life"))
        return life_from(data)
    except ValueError as error:
        raise LinkError(f"malformed LIFE: {error}") from error


LIFE: Final = b'{"life":"parking","problem":"POST /sleep: got 500","took_ms":20000.5}'
TOLD: Final = (b"\0" + HEALTH, b"\1" + PROBED, b"\2" + SAMPLED, b"\3" + LIFE)
_PARSERS: Final = {
    0: lambda data: parse_health("0a", data),
    1: lambda data: parse_probed("0a", data),
    2: parse_sampled,
    3: _life,
}


def _told(data: bytes) -> Any:
    """Return what a manager makes of a sidecar's message; the first byte chooses its kind."""
    parse = _PARSERS[data[0] % len(_PARSERS) if data else 0]
    return parse(parse_frame(Frame(Kind.HEALTH, 0, 0, 0, b"", data[1:])))


def _check_told(_data: bytes, found: Any) -> None:
    """Numbers are those that can be, texts are short, and a judgement can be made of a reading."""
    if isinstance(found, events.Observed):
        reading = found.reading
        assert len(reading.said) <= SAID_MAX
        assert reading.counter is None or math.isfinite(reading.counter)
        watch = Watch(0.0)
        for now in (1.0, 2.0, 400.0):
            assert len(watch.read(reading, now, Silences()).text) < 4 * SAID_MAX
    elif isinstance(found, events.Probed):
        assert (found.path + found.answer).isprintable()
        assert max(len(found.path), len(found.answer)) <= LINE_MAX
        assert 0 <= found.seconds <= NUMBER_MAX
    elif isinstance(found, LifeAnswer):
        assert len(found.problem) <= REASON_MAX
        assert 0 <= found.took_s <= TOOK_MAX_MS / 1e3
    elif isinstance(found, dict):
        assert found["verdict"] in set(SampleVerdict)
        assert len(found["reason"]) <= REASON_MAX


TABLES: Final = (
    b'hang = "report"\ncounter = "vllm:steps_total"\nmetrics = "/metrics?a=b"\nstep_s = 120\n'
    b"sample_every_s = 60.5\n",
    b"hang = 'off'\nstep_s = 0x10\nmetrics = '/m'\ncounter = ''\n",
)


def _table(data: bytes) -> Any:
    """Return what a manifest's table [health] says."""
    text = data.decode("utf-8", "replace")
    head = 'schema = 1\n[server]\ncommand = ["x", "${PORT}"]\n[[sample]]\ngolden = true\n[health]\n'
    return parse_manifest(head + text, ()).health


def _check_table(_data: bytes, found: Any) -> None:
    """The request for the counter is one line, and the counter one name."""
    if not isinstance(found, Exception) and found is not None:
        assert found.metrics.startswith("/")
        assert found.metrics.isascii()
        assert not set(found.metrics) & set(" \r\n\0")
        assert found.counter is None or found.counter.replace(":", "_").isidentifier() ^ (
            not found.counter
        )
        assert found.step_s is None or 1 <= found.step_s <= 86_400
        assert found.sample_every_s == 0 or 1 <= found.sample_every_s <= 86_400


PARKS: Final = (
    b'sleep = "POST /s?level=1"\nwake = \'PUT /w {"tags": ["a b"]}\'\ncheck = "GET /c"\n',
    b'engine = "vllm"\npark_s = 60.5\n',
)


def _park_table(data: bytes) -> Any:
    """Return what a manifest's table [park] says."""
    text = data.decode("utf-8", "replace")
    server = '[server]\ncommand = "vllm ${PORT} --enable-sleep-mode"\n'
    head = f'schema = 1\n{server}[openai]\n[device]\nkind = "cuda"\n[park]\n'
    found = parse_manifest(head + text, ()).server
    return found and found.park


def _check_park_table(_data: bytes, found: Any) -> None:
    """Each call is one request of one line, whose path no caller reaches."""
    if isinstance(found, Exception) or found is None:
        return
    paths = CompiledPaths(PathRules(), "", found.control)
    for call in filter(None, (found.sleep, found.wake, found.check)):
        assert call.method.isascii()
        assert call.method.isupper()
        assert call.path.startswith("/")
        assert call.path.isascii()
        assert not set(call.path) & set(" \r\n\0#")
        assert not call.body or json.loads(call.body) is not Ellipsis
        try:
            paths.judge(call.method.encode(), call.path.partition("?")[0].encode())
        except FnError:
            continue
        raise AssertionError(f"a caller reaches {call.path}")
    assert 60 <= found.park_s <= 30 * 86_400


GATEWAY: Final = tuple(
    b"".join(b"".join(pack(*frame)) for frame in frames)
    for frames in (
        [(Kind.OPEN, 1), (Kind.UNANSWERED, 1), (Kind.END, 1), (Kind.UNANSWERED, 7)],
        [(Kind.SAMPLE, 0), (Kind.UNANSWERED, 0)],
        [(Kind.OPEN, 1), (Kind.OPEN, 2), (Kind.TUNNEL, 1), (Kind.END, 2), (Kind.UNANSWERED, 2)],
    )
)


def _exchanged(data: bytes) -> tuple[int, int]:
    """Return how often a gateway's frames make a sidecar suspect its server, and how many of them
    say so before the first that is refused."""
    suspicions: list[int] = []
    loop, listener = Loop(time.monotonic), socket.socket(socket.AF_UNIX)
    try:
        links = Links(
            loop,
            listener,
            Server(1, None, is_shared=False),
            ServerSpec("web@1", ("x",), concurrency=2),
            first_open=lambda: None,
            not_idle=lambda _: None,
            stop=lambda: None,
            suspect=lambda: suspicions.append(1),
        )
        links._table.join(1, 0.0)
        said = 0
        with suppress(LinkError):
            for frame in _frames(data):
                if frame.kind is not Kind.HELLO:
                    links._decide(1, frame)
                    said += frame.kind is Kind.UNANSWERED
        return len(suspicions), said
    finally:
        listener.close()
        loop.close()


def _check_exchanged(_data: bytes, found: Any) -> None:
    """Nothing but UNANSWERED does."""
    assert found[0] == found[1]


_REPORT: Final = (KeyError, TypeError, ValueError, LinkError)
"""What the reader of a trial's report expects of a golden sample (`admin/deploy/plan.py`)."""

HEALTHS = (
    Subject(
        *("metrics", lambda data: read_counter(data, METRIC), METRICS, 64 * KIB, ()),
        check=_check_counter,
    ),
    Subject("golden-sample", _golden, _samples(), 256 * KIB, _REPORT, check=_check_golden),
    Subject(
        *("told", _told, TOLD, 256 * KIB),
        refusals=(LinkError,),
        check=_check_told,
    ),
    Subject(
        *("health-table", _table, TABLES, 16 * KIB, (FnError,), THREAD_S, _check_table),
        lines=Bound(12_000, 24),
        memory=Bound(192 * KIB, 160),
    ),
    Subject(
        *("park-table", _park_table, PARKS, 16 * KIB, (FnError,), THREAD_S, _check_park_table),
        lines=Bound(12_000, 24),
        memory=Bound(192 * KIB, 160),
    ),
    Subject(
        *("gateway-frames", _exchanged, GATEWAY, 64 * KIB, ()),
        check=_check_exchanged,
        memory=Bound(2_600 * KIB, 24),
    ),
)
