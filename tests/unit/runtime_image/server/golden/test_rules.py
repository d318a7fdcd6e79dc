"""What makes a golden sample, and which later answers are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from registry.errors import StoreUnavailable
from registry.store.records import decode_record, encode_record
from runtime_image.contract.samples import (
    Answer,
    GoldenRule,
    GoldenSample,
    SampleRequest,
    golden_from_json,
    golden_to_json,
)
from runtime_image.server.golden.answers import read_answer
from runtime_image.server.golden.rules import NotLearnt, differs, learn
from tests.support.golden import png

ASK = SampleRequest("/v1/completions", "POST")
HEAD = Answer(200, "application/json")
NUMBERS = replace(
    HEAD,
    prompt=(-1.0, -2.0, -3.0, -4.0),
    tokens=("a", "b", "c", "d"),
    token_logprobs=(-0.1, -0.2, -0.3, -0.4),
)


def learnt(*answers: Answer, rules: Sequence[GoldenRule] = ()) -> GoldenSample:
    """Learn from three answers; one stands for three."""
    return learn(ASK, answers * 3 if len(answers) == 1 else answers, (5.0, 900.0, 7.0), rules)


def shifted(answer: Answer, by: float) -> Answer:
    """Return an answer whose prompt's numbers are all off."""
    return replace(answer, prompt=tuple(one - by for one in answer.prompt))


def said(answer: Answer, *tokens: str, logprob: float = -0.1, tops: dict[str, float]) -> Answer:
    """Return an answer with other tokens."""
    logprobs = tuple(logprob for _ in tokens)
    return replace(
        answer, tokens=tokens, token_logprobs=logprobs, alternatives=(tops,) * len(tokens)
    )


def picture(*samples: int) -> Answer:
    """Return an answer that is a picture of two pixels."""
    return read_answer(200, "image/png", png(2, len(samples) // 6, bytes(samples)))


def test_the_usual_time_is_the_median() -> None:
    """One slow ask of three says nothing."""
    assert learnt(NUMBERS).usual_ms == 7.0


def test_only_what_is_compared_is_kept() -> None:
    """It is stored, and sent with each start."""
    kept = learnt(replace(NUMBERS, digest="d", text="abcd", vector=(1.0,))).answer

    assert kept == NUMBERS


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ((replace(HEAD, status=500),), "answered with status 500"),
        ((HEAD, replace(HEAD, status=500), HEAD), "200 application/json, 500 application/json"),
        ((HEAD, HEAD, replace(HEAD, content_type="")), "200, 200 application/json"),
        ((NUMBERS, shifted(NUMBERS, 0.03), NUMBERS), "differ by 0.030"),
        ((NUMBERS, NUMBERS, replace(NUMBERS, prompt=(-1.0,))), "differ by 10.000"),
        (
            (NUMBERS, NUMBERS, said(NUMBERS, "x", "y", "z", "w", tops={"a": -2.1})),
            "differ by 0.500",
        ),
        (tuple(replace(HEAD, text=one) for one in "aab"), "expected 'a', got 'b'"),
        (tuple(replace(HEAD, vector=(1.0, one)) for one in (0.0, 0.0, 0.1)), "cosine"),
        ((picture(*[0] * 6), picture(*[0] * 6), picture(*[9] * 6)), "9.0 off"),
    ],
)
def test_asks_that_differ_make_no_golden_sample(answers: tuple[Answer, ...], told: str) -> None:
    """The reason is shown by the deploy."""
    with pytest.raises(NotLearnt, match=told):
        learnt(*answers)


def test_a_rule_may_be_wanted() -> None:
    """A chat whose numbers are missing is asked anew, with more tokens."""
    text = replace(HEAD, text="a")

    assert learnt(text, rules=[GoldenRule.TEXT]).rule is GoldenRule.TEXT
    with pytest.raises(NotLearnt, match="by logprobs, got one by text"):
        learnt(text, rules=[GoldenRule.LOGPROBS])


@pytest.mark.parametrize(
    ("off", "is_right"), [(0.0, True), (0.019, True), (-0.019, True), (0.021, False)]
)
def test_numbers_have_a_least_tolerance(off: float, *, is_right: bool) -> None:
    """Rounding of other kernels differs by less than 0.02 in the mean."""
    assert (differs(learnt(NUMBERS), shifted(NUMBERS, off)) == "") is is_right


def test_a_noisy_engine_has_more_tolerance() -> None:
    """Four times what its three asks differed by."""
    noisy = learnt(NUMBERS, shifted(NUMBERS, 0.01), NUMBERS)

    assert noisy.prompt_tolerance == pytest.approx(0.04)
    assert noisy.token_tolerance == 0.02
    assert differs(noisy, shifted(NUMBERS, 0.039)) == ""
    assert "within 0.040 in the mean, got 0.041" in differs(noisy, shifted(NUMBERS, 0.041))


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        (said(NUMBERS, "x", "y", "z", "w", tops={"x": -0.1, "a": -0.11}), True),
        (said(NUMBERS, "x", "y", "z", "w", tops={"x": -0.1, "a": -1.1}), False),
        (said(NUMBERS, "x", "y", "z", "w", tops={"x": -0.1, "q": -4.0}), False),
        (said(NUMBERS, "x", "y", "z", "w", tops={}), False),
        (said(NUMBERS, tops={}), False),
        (replace(NUMBERS, tokens=("a", "b"), token_logprobs=(-0.1, -0.2)), False),
        (replace(NUMBERS, token_logprobs=(-0.1, -0.2, -0.35, -0.4)), True),
        (replace(NUMBERS, token_logprobs=(-0.1, -0.2, -0.39, -0.4)), False),
        (HEAD, False),
    ],
)
def test_another_token_is_judged_by_how_likely_the_right_one_was(
    answer: Answer, *, is_right: bool
) -> None:
    """Two tokens that were as good may change places; the text behind them then differs."""
    assert (differs(learnt(NUMBERS), answer) == "") is is_right


def test_numbers_of_the_prompt_suffice() -> None:
    """An engine may give these alone."""
    prompt = learnt(replace(HEAD, prompt=(-1.0,)))

    assert differs(prompt, NUMBERS) != ""
    assert differs(prompt, replace(HEAD, prompt=(-1.01,))) == ""


@pytest.mark.parametrize(
    ("right", "answer", "told"),
    [
        (replace(HEAD, digest="1"), replace(HEAD, status=500), "expected status 200, got 500"),
        (replace(HEAD, digest="1"), replace(HEAD, content_type="text/html"), "got text/html"),
        (replace(HEAD, text="one"), replace(HEAD, text="one"), ""),
        (replace(HEAD, text="one"), replace(HEAD, text="!!!!"), "expected 'one', got '!!!!'"),
        (replace(HEAD, vector=(3.0, 4.0)), replace(HEAD, vector=(3.02, 4.02)), ""),
        (replace(HEAD, vector=(3.0, 4.0)), replace(HEAD, vector=(3.2, 3.85)), "cosine"),
        (replace(HEAD, vector=(3.0, 4.0)), replace(HEAD, vector=(3.06, 4.08)), "a norm of 5"),
        (replace(HEAD, vector=(3.0, 4.0)), HEAD, "expected 2 numbers, got 0"),
        (replace(HEAD, vector=(0.0,)), replace(HEAD, vector=(0.0,)), ""),
        (replace(HEAD, vector=(0.0,)), replace(HEAD, vector=(0.1,)), "a norm of 0"),
        (picture(*[10] * 6), picture(*[12] * 6), ""),
        (picture(*[10] * 6), picture(*[10] * 5, 24), "2.3 off"),
        (picture(*[10] * 6), picture(*[10] * 12), "got one of 2 x 2"),
        (picture(*[10] * 6), Answer(200, "image/png"), "is not known"),
        (replace(HEAD, digest="1"), replace(HEAD, digest="1"), ""),
        (replace(HEAD, digest="1"), replace(HEAD, digest="2"), "the same bytes"),
    ],
)
def test_each_rule_has_its_bound(right: Answer, answer: Answer, told: str) -> None:
    """A wrong answer says what was expected and what came."""
    sample = learnt(right)

    assert golden_from_json(golden_to_json(sample)) == sample
    assert told in differs(sample, answer)
    assert bool(told) == bool(differs(sample, answer))


def test_bytes_that_change_leave_the_status() -> None:
    """An answer with a time in it can be compared no further."""
    changing = learnt(*(replace(HEAD, digest=one) for one in "abc"))

    assert changing.rule is GoldenRule.STATUS
    assert differs(changing, replace(HEAD, digest="d")) == ""
    assert differs(changing, replace(HEAD, status=500)) != ""


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "guess"},
        {"usual_ms": float("nan")},
        {"usual_ms": True},
        {"request": {"path": 3}},
        {"request": {"strange": 3}},
        {"answer": {"text": "a" * 5000}},
        {"answer": {"prompt": [0.0] * 5000}},
        {"answer": {"prompt": "abc"}},
        {"answer": {"tokens": [7]}},
        {"answer": {"tokens": ["a"]}},
        {"answer": {"status": 2**70}},
        {"answer": {"prompt": [10**400]}},
        {"answer": {"prompt": [], "tokens": [], "token_logprobs": []}},
        {"answer": {"pixels": {"width": 0, "height": 1, "channels": 3, "samples": ""}}},
        {"answer": {"pixels": {"width": 1, "height": 1, "channels": 3, "samples": "AAAA%"}}},
        {"answer": {"pixels": {"width": 1, "height": 1, "channels": 2, "samples": "AAAA"}}},
        {"answer": {"pixels": {"width": 2**13, "height": 2**13, "channels": 1, "samples": "AAAA"}}},
        {"rule": "bytes"},
        {"rule": "embedding"},
        {"rule": "picture"},
        {"rule": "text"},
        {"usual_ms": 1e300},
        {"usual_ms": -1.0},
        {"token_tolerance": -0.1},
        {"request": {"headers": {"a": 3}}},
    ],
)
def test_a_stored_sample_is_checked(change: dict[str, object]) -> None:
    """It comes in the report of a trial, whose writer is not trusted."""
    data = golden_to_json(learnt(NUMBERS))
    for name, value in change.items():
        data[name] = {**data[name], **value} if isinstance(value, dict) else value

    with pytest.raises((TypeError, ValueError)):
        golden_from_json(data)


def test_a_stored_picture_has_the_samples_of_its_size() -> None:
    """A record of the store is decoded by its type alone; the error says what came."""
    sample = learnt(picture(*[10] * 6))
    stored = encode_record(sample)
    assert decode_record(stored, GoldenSample) == sample

    for height, told in ((3, "2 x 3 with 3 channels: expected 18 samples, got 6"), (0, "from 1")):
        with pytest.raises(StoreUnavailable, match=told):
            decode_record(stored.replace('"height":1', f'"height":{height}'), GoldenSample)
