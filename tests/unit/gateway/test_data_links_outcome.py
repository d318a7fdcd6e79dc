"""Tests of what becomes of a call."""

from __future__ import annotations

import pytest

from gateway.data_links import Delivered, HeldCall, Outcome
from gateway.dispatch.call import Call
from registry.errors import QueueFull
from runtime_image.link.meta import AnswerMeta, RequestMeta

META = RequestMeta("application/json", "", -1, "")


def call(outcomes: list[Outcome]) -> HeldCall:
    """A call whose outcomes are kept."""
    return HeldCall("default/f@1", META, b"", 0.0, 1.0, 1.0, done=outcomes.append)


def test_a_held_call_is_a_call_with_whoever_waits() -> None:
    """The dispatcher takes it like any call; its outcome goes to the one who waits."""
    outcomes: list[Outcome] = []
    error = QueueFull("full")
    held = call(outcomes)

    held.done(error)

    assert isinstance(held, Call)
    assert outcomes == [error]


def test_calls_are_told_apart_though_they_ask_the_same() -> None:
    """Two calls with equal contents are two calls."""
    assert call([]) != call([])


def test_an_answer_does_not_change_on_its_way() -> None:
    """What a replica delivered is what the client gets."""
    meta = AnswerMeta("application/json", 0, 0, 0, 0, 1)
    answer = Delivered(meta, 0, b"{}", False, "r", "cpu:0", 0.0, {})

    with pytest.raises(AttributeError):
        answer.body = b""  # type: ignore[misc]  # that this is refused is the test
