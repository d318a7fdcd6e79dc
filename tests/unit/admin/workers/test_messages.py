"""Tests of the messages between a server and its gateways."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from admin.workers import messages as m
from tests.support.gateway_messages import ANSWERS, BOTH, DOWN, UP


@pytest.mark.parametrize("message", DOWN, ids=lambda one: type(one).__name__)
def test_a_servers_message_decodes_to_itself(message: Any) -> None:
    """Every message of the server decodes to the same message, registry objects included."""
    assert m.decode_down(m.encode(message)) == message


@pytest.mark.parametrize("message", UP, ids=lambda one: type(one).__name__)
def test_a_gateways_message_decodes_to_itself(message: Any) -> None:
    """Every message of a gateway decodes to the same message."""
    assert m.decode_up(m.encode(message)) == message


@pytest.mark.parametrize("data", [b"", b"\xc1", m.encode({"type": "Nonsense"}), b"\x91\x01"])
def test_an_unknown_message_is_refused(data: bytes) -> None:
    """Unknown bytes and unknown messages are refused on both sides."""
    for decode in (m.decode_down, m.decode_up):
        with pytest.raises(msgspec.DecodeError):
            decode(data)


def test_messages_have_one_direction() -> None:
    """A message of a gateway is refused by a gateway, and an unknown field is an error."""
    with pytest.raises(msgspec.DecodeError):
        m.decode_down(m.encode(m.Ready(80)))
    with pytest.raises(msgspec.DecodeError):
        m.decode_up(m.encode({"type": "Finished", "surplus": 1}))


def test_hello_is_read_whatever_else_it_has() -> None:
    """Fields that a later version adds to Hello are ignored: its version must be readable."""
    data = m.encode({"type": "Hello", "version": 9, "release": "9.9", "more": [1]})

    assert m.decode_up(data) == m.decode_down(data) == m.Hello(9, "9.9")


def test_versions_that_differ_part_in_words() -> None:
    """The refusal names both versions and the other's release, cut, and what mends it."""
    assert m.check_version(m.Hello(m.VERSION, "1"), own="server", other="gateway") == ""
    text = m.check_version(m.Hello(m.VERSION + 1, "2.0" * 100), own="server", other="gateway")

    assert text == (
        f"this server speaks version {m.VERSION} of the gateway protocol, the gateway (release"
        f" {('2.0' * 100)[:80]}) version {m.VERSION + 1}: stop the server and start it again"
    )


@pytest.mark.parametrize(
    ("question", "answer"), ANSWERS, ids=lambda one: getattr(one, "__name__", "")
)
def test_an_answer_decodes_to_itself(question: type[m.Question[Any]], answer: Any) -> None:
    """The answer to each kind of question decodes to itself; another type is refused."""
    assert m.decode_answer(question, msgspec.Raw(m.encode(answer))) == answer
    with pytest.raises(msgspec.DecodeError):
        m.decode_answer(question, msgspec.Raw(m.encode("x")))


def test_every_question_is_tested() -> None:
    """Each kind of question has an answer here, a decoder, and limits."""
    kinds = set(get_args(m.AnyQuestion))

    assert kinds == {kind for kind, _ in ANSWERS} == m.ANSWERS.keys()
    assert kinds == {type(one.question) for one in BOTH if isinstance(one, m.Ask)}
    assert all(kind.at_once > 0 and kind.answer_s > 0 for kind in kinds)


def test_every_message_is_tested() -> None:
    """Each message of the protocol is in the lists above."""
    assert {type(one) for one in DOWN} == set(get_args(m.Down))
    assert {type(one) for one in UP} == set(get_args(m.Up))
