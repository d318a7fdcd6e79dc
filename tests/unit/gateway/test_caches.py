"""What clients send does not stay: caches by their texts hold short ones only."""

from __future__ import annotations

from functools import partial

import pytest

from gateway.admission.access import Access
from registry.errors import ForeignHost
from registry.store.keys import KeyRing
from runtime_image.codecs.accept import SHORT, choose, media_type
from runtime_image.contract.signature import Signature
from tests.fuzz.oracles import held_after

COUNT = 400
KEPT_MAX = 1024 * 1024
SIGNATURE = Signature("json", (), ())


def text(number: int) -> str:
    """Return a field of 8 KiB with many parameters, unlike all others."""
    return f"application/json;n={number}" + "".join(f";a{item}=b" for item in range(1000))


def test_long_types_are_not_kept() -> None:
    """Neither what a client accepts nor the type of its body."""
    accepts = (partial(choose, text(number), SHORT, SIGNATURE) for number in range(COUNT))
    assert held_after(accepts) < KEPT_MAX

    types = (partial(media_type, text(number)) for number in range(COUNT, 2 * COUNT))
    assert held_after(types) < KEPT_MAX


def test_long_hosts_are_not_kept() -> None:
    """Which anybody may send, without a key."""
    access = Access("127.0.0.1", (), KeyRing())

    def ask(number: int) -> None:
        with pytest.raises(ForeignHost):
            access.hosts.check(f"{number}." + "a" * 8192)

    assert held_after(partial(ask, number) for number in range(COUNT)) < KEPT_MAX
