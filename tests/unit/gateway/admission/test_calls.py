"""Tests of admission: heads, preferences, cached admissions, cold checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.admission.access import Access
from gateway.admission.calls import (
    NOT_CORRELATED,
    CallLimits,
    Correlation,
    Head,
    correlate,
    make_head,
    requested_priority,
    requested_wait_s,
)
from gateway.admission.control import KEPT_MAX, AdmissionControl
from gateway.admission.credentials import Credential
from gateway.dispatch.call import Priority
from registry.catalog import Catalog
from registry.errors import BadRequest, FnError, NoKey, Unknown, UnknownFunction, WrongScope
from registry.key_form import KeyPriority
from registry.model.functions import Limits
from registry.model.keys import Key
from registry.store.keys import KeyRing, fingerprint
from runtime_image.link.meta import RequestMeta
from tests.support import nouns


def head(ref: str = "digits", **headers: str) -> Head:
    """Return a request head with these headers; `_` in a name stands for `-`."""
    named = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    return make_head(ref, "localhost", lambda name: named.get(name.lower()), named)


def test_the_name_is_the_ref_without_its_revision() -> None:
    """The name of digits@3 is digits."""
    assert (head("digits@3").name, head("digits").name) == ("digits", "digits")


def test_three_headers_travel_to_the_replica() -> None:
    """Content type, accept and JSON length reach the replica; absent ones are empty or -1."""
    full = head(content_type="a/b", accept="c/d", inference_header_content_length="7")
    assert full.meta() == RequestMeta("a/b", "c/d", 7, "")
    assert head().meta() == RequestMeta("", "", -1, "")


@pytest.mark.parametrize("length", ["-1", "x", "9" * 12, "1 "])
def test_an_invalid_json_length_is_refused(length: str) -> None:
    """The error names the header."""
    with pytest.raises(BadRequest, match="Inference-Header-Content-Length: expected a number"):
        head(inference_header_content_length=length).meta()


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "kept"),
    [("a", "a"), ("A.b-3_c", "A.b-3_c"), ("x" * 128, "x" * 128), ("x" * 129, "")]
    + [(bad, "") for bad in ("", "a b", "a/b", "a\r\nb", "\u00e4", "a\n", '"a"')],
)
def test_a_safe_request_id_is_kept(given: str, kept: str) -> None:
    """An id is kept only if it is safe in headers, JSON and log lines."""
    named = {"X-Request-Id": given}
    assert correlate(named.get) == Correlation(kept, "")


def test_a_valid_traceparent_is_kept() -> None:
    """A valid traceparent is kept with or without a request id."""
    assert correlate({"traceparent": PARENT}.get) == Correlation("", PARENT)
    both = {"traceparent": "nonsense", "X-Request-Id": "a"}
    assert correlate(both.get) == Correlation("a", "")


def test_most_requests_are_not_correlated() -> None:
    """Requests without id and trace share one correlation object."""
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
def test_prefer_wait_is_applied_up_to_the_limit(
    header: str | None, seconds: float, applied: str
) -> None:
    """Prefer: wait is capped at the server's limit; the applied value is what counts."""
    assert requested_wait_s(header, 55.0, 600.0) == (seconds, applied)


@pytest.mark.parametrize("value", ["", "soon", "-1", "1.5", "9999999999", "0x10", "\u0663"])
def test_a_malformed_wait_is_ignored(value: str) -> None:
    """Only whole seconds are valid (RFC 7240, 4.3); an invalid value is ignored (RFC 7240, 2)."""
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
def test_urgency_maps_to_three_priorities(header: str | None, expected: Priority) -> None:
    """Urgency 3 is the default; an invalid value is ignored (RFC 9218, 4). High is normal for a
    caller that may not have it."""
    assert requested_priority(header, may_be_high=True) is expected
    lower = Priority.NORMAL if expected is Priority.HIGH else expected
    assert requested_priority(header, may_be_high=False) is lower


KEYED = head(authorization="Bearer fn_k")
KEY = Key("k", fingerprint("fn_k"), ("invoke",))


class World:
    """Catalog with digits, key ring with one key, and their admissions."""

    def __init__(self) -> None:
        self.catalog = Catalog([nouns.deployed()])
        self.ring = KeyRing([KEY], "fn_t")
        access = Access("127.0.0.1", (), self.ring)
        self.control = AdmissionControl(access, self.catalog, 600.0, 2**30)

    def admit(self, asked: Head = KEYED) -> None:
        """Admit a head that is not cached, as the HTTP front ends do. Raise FnError if refused."""
        self.control.admit(asked, asked, self.control.enter_call(asked))


@pytest.mark.parametrize(
    ("scopes", "near"), [(("invoke",), ["digits"]), (("invoke:digit", "invoke:b"), [])]
)
@pytest.mark.parametrize("version", [None, ""])
def test_a_wrong_name_proposes_only_what_the_caller_may_invoke(
    version: str | None, scopes: tuple[str, ...], near: list[str]
) -> None:
    """A key for one function that is gone learns of no other."""
    world = World()
    world.ring.put(replace(KEY, scopes=scopes))

    with pytest.raises(Unknown) as caught:
        world.admit(KEYED._replace(ref="digit", version=version))

    assert caught.value.detail == {"nearest": near}


def test_an_admission_has_the_limits_of_its_calls() -> None:
    """The function's limits and the head's preferences determine timeout, wait budget, queue and
    body size."""
    world = World()
    world.catalog.put_function(
        nouns.function(limits=Limits(timeout_s=2.0, wait_s=3.0, queue=4, body_mib=5))
    )
    plain, wishing = KEYED, KEYED._replace(ref="digits@1", prefer="wait=7", priority="u=0")
    for asked in (plain, wishing):
        world.admit(asked)

    found, other = world.control.find(plain), world.control.find(wishing)
    assert found is not None
    assert other is not None
    assert found.limits == CallLimits(3.0, 2.0, 5 * 2**20, 4, Priority.NORMAL)
    assert (found.route.pool, found.is_pinned, found.applied) == ("default/digits@1", False, "")
    assert (other.limits.wait_s, other.applied, other.is_pinned) == (7.0, "wait=7", True)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (KEY, Priority.NORMAL),
        (replace(KEY, scopes=("admin",)), Priority.NORMAL),
        (replace(KEY, priority=KeyPriority.HIGH), Priority.HIGH),
    ],
)
def test_the_priority_high_needs_a_key_that_has_it(key: Key, expected: Priority) -> None:
    """A change of the key changes what was admitted before; the admin token may have it."""
    world = World()
    asked = KEYED._replace(priority="u=0")
    world.admit(asked)
    world.ring.put(key)
    world.admit(asked)
    world.admit(other := asked._replace(credential=Credential("fn_t")))
    found, by_token = world.control.find(asked), world.control.find(other)
    assert found is not None
    assert by_token is not None
    is_high = expected is Priority.HIGH
    assert (found.limits.priority, found.caller.is_high) == (expected, is_high)
    assert by_token.limits.priority is Priority.HIGH


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (head(), NoKey),
        (head(authorization="Bearer fn_x"), NoKey),
        (KEYED._replace(ref="nobody"), UnknownFunction),
        (KEYED._replace(json_length="x"), BadRequest),
    ],
)
def test_a_refusal_is_not_cached(asked: Head, error: type[FnError]) -> None:
    """A refused head is checked again the next time."""
    world = World()
    with pytest.raises(error):
        world.admit(asked)
    assert world.control.find(asked) is None


def test_every_change_of_keys_counts_at_once() -> None:
    """Replacing or removing a key ends its cached admissions; another key ends none."""
    world = World()
    world.admit()
    world.ring.put(Key("o", "0" * 64, ("invoke",)))
    assert world.control.find(KEYED) is not None

    world.ring.put(Key("k", KEY.sha256, ("read",)))
    assert world.control.find(KEYED) is None
    with pytest.raises(WrongScope):
        world.admit()

    world.ring.put(KEY)
    world.admit()
    world.ring.remove(KEY)
    assert world.control.find(KEYED) is None


def test_every_change_of_the_catalog_counts_at_once() -> None:
    """New settings, a new revision and a removal invalidate cached admissions."""
    world = World()
    for change in (
        lambda: world.catalog.put_function(nouns.function(limits=Limits(queue=1))),
        lambda: world.catalog.put(nouns.deployed(number=2)),
        lambda: world.catalog.remove("digits"),
    ):
        world.admit()
        change()
        assert world.control.find(KEYED) is None


def test_the_admission_cache_is_bounded() -> None:
    """At the limit the cache is cleared."""
    world = World()
    for number in range(KEPT_MAX + 1):
        world.admit(KEYED._replace(accept=str(number)))
    kept = sum(
        world.control.find(KEYED._replace(accept=str(n))) is not None for n in range(KEPT_MAX)
    )
    assert kept == 0
    assert world.control.find(KEYED._replace(accept=str(KEPT_MAX))) is not None


def test_long_heads_are_not_cached() -> None:
    """A client cannot fill the memory with long headers."""
    world = World()
    asked = KEYED._replace(accept="x" * 2000)
    world.admit(asked)
    assert world.control.find(asked) is None
