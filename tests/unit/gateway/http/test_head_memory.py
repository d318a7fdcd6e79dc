"""Tests of the memory of heads: what shares an entry, what ends it, and its bound."""

from __future__ import annotations

import pytest

from gateway.admission.callers import Callers
from gateway.admission.calls import NOT_CORRELATED, Correlation
from gateway.http.head_memory import MEMORY_MAX, HeadMemory
from gateway.http.plain_heads import HEAD_MAX, PlainHead
from registry.catalog import Catalog
from registry.store.keys import KeyRing
from tests.support import nouns
from tests.unit.gateway.http.test_plain_heads import PLAIN, without


def memory(catalog: Catalog | None = None) -> HeadMemory:
    """Return a memory of a server with the model digits."""
    return HeadMemory(catalog or Catalog([nouns.deployed()]), Callers(KeyRing()))


def read(heads: HeadMemory, raw: bytes) -> PlainHead | None:
    """Return the plain head that a memory finds."""
    found = heads.find(b"", raw)
    assert found is None or isinstance(found, PlainHead)
    return found


PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def correlated(*lines: bytes) -> bytes:
    """Return the plain head with these lines in the middle."""
    return without(b"Content-Type", b"".join(line + b"\r\n" for line in lines) + b"Content-Type")


def test_correlation_lines_are_no_part_of_the_cache_key() -> None:
    """Heads that differ only in correlation lines share one entry, wherever these lines are."""
    heads = memory()
    plain = read(heads, PLAIN)
    assert plain is not None
    for number in range(3 * MEMORY_MAX):
        id = b"X-REQUEST-ID:id-%d" % number
        hot = read(heads, correlated(b"tracestate: a=1", id, b"TraceParent: " + PARENT))
        assert hot is not None
        assert hot.key is plain.key
        assert hot.head is plain.head
        assert hot.correlation == Correlation(f"id-{number}", PARENT.decode())
    assert read(heads, PLAIN) is plain
    assert plain.correlation is NOT_CORRELATED


def test_unused_correlation_lines_are_dropped() -> None:
    """Invalid correlation and headers that only other systems read are dropped."""
    heads = memory()
    plain = read(heads, PLAIN)
    assert read(heads, correlated(b"baggage: a=b", b"tracestate: c=d")) == plain
    hot = read(heads, correlated(b"traceparent: nonsense", b"X-Request-Id: not sane"))
    assert hot is not None
    assert (hot.key, hot.correlation) == (plain.key if plain else 0, Correlation())


@pytest.mark.parametrize(
    "lines",
    [
        (b"X-Request-Id: a", b"x-request-id: b"),
        (b"traceparent: " + PARENT, b"traceparent: " + PARENT),
        (b"X-Request-Id:",),
        (b"X-Request-Id:  a",),
        (b"X-Request-Id: a ",),
        (b"X-Request-Id:\ta",),
        (b"X-Request-Id: \xe4",),
        (b"X-Request-Id: a\r\n b",),
        (b"X-Request-Id: a\nb: c",),
        (b"X-Request-Id : a",),
        (b"X-Request-Id: a", b"X: \xe4"),
        (b"X-Request-Id: " + b"a" * HEAD_MAX,),
    ],
)
def test_correlation_lines_must_be_plain(lines: tuple[bytes, ...]) -> None:
    """Correlation lines must match the same pattern as all others, and occur once."""
    assert read(memory(), correlated(*lines)) is None


def test_removing_correlation_makes_no_head_plain() -> None:
    """A head that is not plain stays so without its correlation lines."""
    assert read(memory(), correlated(b"X-Request-Id: a").replace(b"POST", b"GET")) is None


def test_a_change_of_the_catalog_ends_all_heads() -> None:
    """A name may be a model's now and a server's then, which reads its requests by itself."""
    catalog = Catalog([nouns.deployed()])
    heads = memory(catalog)
    raw = without(b"digits@3", b"web")
    first = read(heads, raw)
    assert first is not None
    assert read(heads, raw) is first

    catalog.put(nouns.server_deployed())
    assert read(heads, raw) is None
    assert len(heads) == 0
    catalog.remove("web")
    assert read(heads, raw) is not None


def test_the_memory_is_bounded() -> None:
    """Clients that send a different head each time do not fill it."""
    heads = memory()
    for number in range(3 * MEMORY_MAX):
        assert read(heads, without(b"Bearer k", b"Bearer %d" % number)) is not None
        assert len(heads) <= MEMORY_MAX
