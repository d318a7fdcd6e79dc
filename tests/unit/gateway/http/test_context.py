"""Tests of the collaborators of a gateway process, and of its request gate."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.admission.access import Access
from gateway.admission.calls import correlate
from gateway.http.context import RequestGate, assemble, request_ids
from gateway.metrics.counters import TEXT
from gateway.settings import GatewaySettings
from registry.catalog import Catalog
from registry.errors import ShuttingDown
from registry.store.keys import KeyRing
from tests.support import nouns
from tests.support.peers import KnownPast, ListeningManager, delivering


async def test_the_metrics_of_a_removed_function_are_removed() -> None:
    """The metrics follow the catalog's changes."""
    catalog = Catalog([nouns.deployed()])
    access = Access("127.0.0.1", (), KeyRing((), "fn_t"))
    past = KnownPast()
    async with delivering(ListeningManager(), past) as delivery:
        invoker = assemble(GatewaySettings(), access, catalog, delivery, past, time.time)
        invoker.metrics.count_reply("default", "digits", "ok", "", 0.1)
        assert b'function="digits"' in TEXT.encode(invoker.metrics)
        catalog.remove("digits")
        assert b'function="digits"' not in TEXT.encode(invoker.metrics)
        invoker.cold_check.close()


def test_request_ids_are_unique() -> None:
    """Ids start with the process's prefix, and are valid as ids sent by clients."""
    new_id = request_ids("ab12")
    found = [new_id() for _ in range(1000)]

    assert found[:2] == ["ab12-1", "ab12-2"]
    assert len(set(found)) == 1000
    assert correlate({"X-Request-Id": found[-1]}.get).request_id == found[-1]


async def test_a_closed_gate_lets_active_requests_finish() -> None:
    """`close` returns when no request is active; new requests are refused."""
    gate = RequestGate()
    gate.enter()
    closing = asyncio.create_task(gate.close())
    await asyncio.sleep(0)
    assert not closing.done()
    with pytest.raises(ShuttingDown):
        gate.enter()
    assert gate.active == 1
    gate.exit()
    await closing
    await gate.close()
