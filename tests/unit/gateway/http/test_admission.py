"""Tests of admission: heads, preferences, remembered admissions, cold checks."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.access import Access
from gateway.dispatch.call import Priority
from gateway.http.admission import (
    IN_LOOP_MAX,
    KEPT_MAX,
    NOT_CORRELATED,
    WAITING_MAX,
    Admissions,
    ColdCheck,
    Correlation,
    Head,
    correlate,
    make_head,
    requested_priority,
    requested_wait_s,
)
from registry.catalog import Catalog
from registry.errors import BadRequest, FnError, NoKey, QueueFull, UnknownFunction, WrongScope
from registry.model import Key, Limits
from registry.store.keys import KeyRing, fingerprint
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import InputRule
from runtime_image.link.meta import RequestMeta
from tests.support import nouns


def head(ref: str = "digits", **headers: str) -> Head:
    """A head with these headers; names with _ for -."""
    named = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    return make_head(ref, "localhost", lambda name: named.get(name.lower()))


def test_the_name_is_the_ref_without_its_revision() -> None:
    """digits@3 is a revision of digits."""
    assert (head("digits@3").name, head("digits").name) == ("digits", "digits")


def test_what_travels_to_the_replica() -> None:
    """Three headers, empty where they are not there."""
    full = head(content_type="a/b", accept="c/d", inference_header_content_length="7")
    assert full.meta() == RequestMeta("a/b", "c/d", 7, "")
    assert head().meta() == RequestMeta("", "", -1, "")


@pytest.mark.parametrize("length", ["-1", "x", "9" * 12, "1 "])
def test_a_length_that_is_none(length: str) -> None:
    """The error names the header and what came."""
    with pytest.raises(BadRequest, match="Inference-Header-Content-Length: expected a number"):
        head(inference_header_content_length=length).meta()


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "kept"),
    [("a", "a"), ("A.b-3_c", "A.b-3_c"), ("x" * 128, "x" * 128), ("x" * 129, "")]
    + [(bad, "") for bad in ("", "a b", "a/b", "a\r\nb", "\u00e4", "a\n", '"a"')],
)
def test_a_request_id_that_may_stand_anywhere_is_kept(given: str, kept: str) -> None:
    """In headers, in JSON, in lines of logs."""
    named = {"X-Request-Id": given}
    assert correlate(named.get) == Correlation(kept, "")


def test_a_trace_is_kept_if_it_is_one() -> None:
    """Beside an id or alone."""
    assert correlate({"traceparent": PARENT}.get) == Correlation("", PARENT)
    both = {"traceparent": "nonsense", "X-Request-Id": "a"}
    assert correlate(both.get) == Correlation("a", "")


def test_most_requests_are_not_correlated() -> None:
    """One object for all of them."""
    assert correlate({"Accept": "a/b"}.get) is NOT_CORRELATED


@pytest.mark.parametrize(
    ("header", "seconds", "applied"),
    [
        (None, 55.0, ""),
        ("", 55.0, ""),
        ("respond-async", 55.0, ""),
        ("wait=0", 0.0, "wait=0"),
        ("wait=10", 10.0, "wait=10"),
        ("WAIT = 10", 10.0, "wait=10"),
        ('wait="10"', 10.0, "wait=10"),
        ("respond-async, wait=10", 10.0, "wait=10"),
        ("handling=lenient; wait=9", 9.0, "wait=9"),
        ("wait=5000", 600.0, "wait=600"),
        ("await=10", 55.0, ""),
    ],
)
def test_a_wait_is_read_where_there_is_one(
    header: str | None, seconds: float, applied: str
) -> None:
    """Prefer: wait counts up to the server's limit; what was applied is what is waited."""
    assert requested_wait_s(header, 55.0, 600.0) == (seconds, applied)


@pytest.mark.parametrize("value", ["", "soon", "-1", "1.5", "9999999999", "0x10", "\u0663"])
def test_a_malformed_wait_is_ignored(value: str) -> None:
    """Only whole seconds are a wait (RFC 7240, 4.3); all else is as no header (RFC 7240, 2)."""
    assert requested_wait_s(f"wait={value}", 55.0, 600.0) == (55.0, "")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, Priority.NORMAL),
        ("", Priority.NORMAL),
        ("u=0", Priority.HIGH),
        ("u=2", Priority.HIGH),
        ("u=3", Priority.NORMAL),
        ("u=4", Priority.LOW),
        ("u=7, i", Priority.LOW),
        ("i, u = 1", Priority.HIGH),
        ("u=8", Priority.NORMAL),
        ("u=", Priority.NORMAL),
        ("u=high", Priority.NORMAL),
    ],
)
def test_urgency_is_one_of_three_priorities(header: str | None, expected: Priority) -> None:
    """Urgency 3 is the default, and nonsense counts as no header (RFC 9218, 4)."""
    assert requested_priority(header) is expected


KEYED = head(authorization="Bearer fn_k")
KEY = Key("k", fingerprint("fn_k"), ("invoke",))


class World:
    """A catalog with digits, a ring with one key, and what they admit."""

    def __init__(self) -> None:
        self.catalog = Catalog([nouns.deployed()])
        self.ring = KeyRing([KEY])
        access = Access("127.0.0.1", (), self.ring, "fn_t")
        self.admissions = Admissions(access, self.catalog, wait_max_s=600.0, held_bytes_max=2**30)

    def admit(self, asked: Head = KEYED) -> None:
        """As a reader of HTTP does when it does not know the head. Raises FnError."""
        self.admissions.admit(asked, asked, self.admissions.resolve(asked))


def test_an_admission_says_how_its_calls_are_run() -> None:
    """By the function's limits and the head's wishes."""
    world = World()
    world.catalog.put_function(
        nouns.function(limits=Limits(timeout_s=2.0, wait_s=3.0, queue=4, body_mib=5))
    )
    plain, wishing = KEYED, KEYED._replace(ref="digits@1", prefer="wait=7", priority="u=0")
    for asked in (plain, wishing):
        world.admit(asked)

    found, other = world.admissions.find(plain), world.admissions.find(wishing)
    assert found is not None
    assert other is not None
    assert (found.timeout_s, found.wait_s, found.queue_max) == (2.0, 3.0, 4)
    assert (found.body_max, found.is_pinned, found.applied) == (5 * 2**20, False, "")
    assert (other.wait_s, other.applied, other.is_pinned) == (7.0, "wait=7", True)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (head(), NoKey),
        (head(authorization="Bearer fn_x"), NoKey),
        (KEYED._replace(ref="nobody"), UnknownFunction),
        (KEYED._replace(json_length="x"), BadRequest),
    ],
)
def test_what_is_refused_is_not_remembered(asked: Head, error: type[FnError]) -> None:
    """The next time it is checked again."""
    world = World()
    with pytest.raises(error):
        world.admit(asked)
    assert world.admissions.find(asked) is None


def test_every_change_of_keys_counts_at_once() -> None:
    """A key that goes, and one that comes in its place with other rights."""
    world = World()
    world.admit()
    assert world.admissions.find(KEYED) is not None

    world.ring.put(Key("k", KEY.sha256, ("read",)))
    assert world.admissions.find(KEYED) is None
    with pytest.raises(WrongScope):
        world.admit()

    world.ring.put(KEY)
    world.admit()
    world.ring.remove(KEY)
    world.ring.put(Key("o", "0" * 64, ("invoke",)))
    assert world.admissions.find(KEYED) is None


def test_every_change_of_the_catalog_counts_at_once() -> None:
    """New settings, a new revision, a function that goes."""
    world = World()
    for change in (
        lambda: world.catalog.put_function(nouns.function(limits=Limits(queue=1))),
        lambda: world.catalog.put(nouns.deployed(number=2)),
        lambda: world.catalog.remove("digits"),
    ):
        world.admit()
        change()
        assert world.admissions.find(KEYED) is None


def test_what_is_remembered_is_bounded() -> None:
    """At the limit all are forgotten."""
    world = World()
    for number in range(KEPT_MAX + 1):
        world.admit(KEYED._replace(accept=str(number)))
    kept = sum(
        world.admissions.find(KEYED._replace(accept=str(n))) is not None for n in range(KEPT_MAX)
    )
    assert kept == 0
    assert world.admissions.find(KEYED._replace(accept=str(KEPT_MAX))) is not None


def test_what_is_long_is_not_remembered() -> None:
    """Else callers could fill the memory with their headers."""
    world = World()
    asked = KEYED._replace(accept="x" * 2000)
    world.admit(asked)
    assert world.admissions.find(asked) is None


JSON = RequestMeta("application/json", "", -1, "")
GOOD = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'


@pytest.fixture
def checker() -> Iterator[ColdCheck]:
    """A check, closed afterwards."""
    checker = ColdCheck()
    yield checker
    checker.close()


def rows(count: int, width: int = 4) -> bytes:
    """A JSON body of so many rows."""
    return json.dumps({"inputs": {"x": [[0.5] * width] * count}}).encode()


async def checked(checker: ColdCheck, meta: RequestMeta, body: bytes, revision: Any) -> None:
    """Wait for a check, small or large; raises what it found."""
    found: asyncio.Queue[BaseException | None] = asyncio.Queue(1)
    future = checker.check(meta, body, revision, found.put_nowait)
    if future is None:
        return
    try:
        error = await found.get()
    except asyncio.CancelledError:
        future.cancel()
        raise
    if error is not None:
        raise error


async def refusal(checker: ColdCheck, body: bytes, meta: RequestMeta = JSON, **fields: Any) -> str:
    """Why this body is refused, "" if it is not."""
    try:
        await checked(checker, meta, body, nouns.revision(**fields))
    except RequestError as error:
        return error.message
    return ""


async def test_good_input_passes_in_every_form(checker: ColdCheck) -> None:
    """Nothing is refused that a replica would take, small or large."""
    binary = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{'
    binary += b'"binary_data_size":16}}]}'
    with_length = RequestMeta("application/octet-stream", "", len(binary), "")

    assert await refusal(checker, GOOD) == ""
    assert await refusal(checker, rows(IN_LOOP_MAX // 10)) == ""
    assert await refusal(checker, binary + b"\0" * 16, with_length) == ""


async def test_bad_input_is_refused_small_or_large(checker: ColdCheck) -> None:
    """The text names input, expected and got, wherever the check ran."""
    small, large = rows(1, width=3), rows(IN_LOOP_MAX // 10, width=3)

    assert len(small) <= IN_LOOP_MAX < len(large)
    for body in (small, large):
        assert await refusal(checker, body) == (
            "input 'x': expected FP32 of shape [-1, 4], got a list of 3 at index [0]"
        )


async def test_a_declared_finite_input_is_held_to_it(checker: ColdCheck) -> None:
    """NaN is only refused where the manifest says so."""
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{'
    head += b'"binary_data_size":16}}]}'
    body = head + b"\0\0\xc0\x7f" * 4
    meta = RequestMeta("application/octet-stream", "", len(head), "")

    assert await refusal(checker, body, meta) == ""
    strict = await refusal(checker, body, meta, inputs={"x": InputRule(finite=True)})
    assert strict == "input 'x': expected finite FP32 values, got NaN or infinity at index [0, 0]"


async def crowd(checker: ColdCheck) -> tuple[list[asyncio.Task[None]], threading.Event]:
    """As many checks of large bodies as may wait, behind a thread that the event lets go."""
    gate = threading.Event()
    checker._thread.submit(gate.wait)
    large = rows(IN_LOOP_MAX // 10)
    tasks = [
        asyncio.create_task(checked(checker, JSON, large, nouns.revision()))
        for _ in range(WAITING_MAX)
    ]
    await asyncio.sleep(0)
    return tasks, gate


async def test_too_many_large_bodies_at_once_are_turned_away(checker: ColdCheck) -> None:
    """The thread's queue is bounded; when it is through with it, the next may come."""
    large, revision = rows(IN_LOOP_MAX // 10), nouns.revision()
    tasks, gate = await crowd(checker)

    with pytest.raises(QueueFull, match=f"{WAITING_MAX} large requests are being checked"):
        await checked(checker, JSON, large, revision)
    await checked(checker, JSON, GOOD, revision)  # a small one needs no thread
    gate.set()
    await asyncio.wait(tasks)
    await checked(checker, JSON, large, revision)


async def test_a_client_that_leaves_frees_its_place(checker: ColdCheck) -> None:
    """A check that is no longer wanted counts no more."""
    tasks, gate = await crowd(checker)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])

    last = asyncio.create_task(checked(checker, JSON, rows(IN_LOOP_MAX // 10), nouns.revision()))
    await asyncio.sleep(0)
    gate.set()

    await asyncio.wait(tasks)
    await last
