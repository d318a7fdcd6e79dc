"""Metadata of calls."""

from __future__ import annotations

import pytest

from gateway.admission.credentials import DIRECT, Credential
from gateway.grpc.metadata import ANONYMOUS, read_metadata

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_key_and_ids_are_read() -> None:
    """The same names as in HTTP, in lower case; of a repeated one the first counts."""
    head = read_metadata(
        [
            ("user-agent", "x"),
            ("authorization", "Bearer a"),
            ("authorization", "Bearer b"),
            ("x-request-id", "mine"),
            ("traceparent", TRACEPARENT),
        ]
    )
    assert head.credential == Credential("a")
    assert head.correlation == ("mine", TRACEPARENT)
    assert not head.ends_stream


@pytest.mark.parametrize("pairs", [None, [], [("user-agent", "x")], [("authorization", b"\x00")]])
def test_without_them_a_call_is_anonymous(pairs: list[tuple[str, str | bytes]] | None) -> None:
    """Binary values are none of ours."""
    assert read_metadata(pairs) == ANONYMOUS


def test_ids_that_are_not_safe_are_dropped() -> None:
    """They are written into logs and sent back."""
    assert read_metadata([("x-request-id", "a b\\n")]).correlation.request_id == ""


@pytest.mark.parametrize(("value", "ends"), [("true", True), ("1", True), ("false", False)])
def test_a_client_may_want_its_streams_to_end(value: str, ends: bool) -> None:
    """Triton's metadata key."""
    assert read_metadata([("triton_grpc_error", value)]).ends_stream is ends


def test_a_proxys_field_stays_with_a_caller_without_a_key() -> None:
    """Metadata with which a proxy passes a call on tells it from one of this machine."""
    assert read_metadata([("user-agent", "x")]).credential == DIRECT
    assert read_metadata([("via", "1.1 edge")]).credential == Credential(passed_on="via")
    keyed = [("x-forwarded-for", "::1"), ("authorization", "Bearer fn_key")]
    assert read_metadata(keyed).credential.bearer == "fn_key"
