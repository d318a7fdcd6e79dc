"""Learns a golden sample from three answers, and compares a later answer with it. Pure.

Tolerances were measured with a small transformer under rounding like that of bfloat16, and with
damage to its weights and its cache: the text of four tokens missed 35 of 84 damages and reported
one of 12 sound runs; the mean difference of a prompt's log probabilities missed 4, and reported no
sound run.
"""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import Final

from runtime_image.contract.samples import (
    TOLERANCE_MAX,
    Answer,
    GoldenRule,
    GoldenSample,
    Picture,
    SampleRequest,
)

ASKS: Final = 3
"""Times that a trial asks, alone."""
LOGPROB_LEAST: Final = 0.02
"""Least tolerance of a mean difference of log probabilities, and the most that a trial's asks may
differ."""
SPREAD_FACTOR: Final = 4.0
"""The tolerance is this many times the spread of the trial's asks, if that is more."""
COSINE_LEAST: Final = 0.999
NORM_SHARE: Final = 0.01
PIXELS_MOST: Final = 2.0
"""Max mean difference of a picture's numbers, of 255."""
_Rules = Collection[GoldenRule]


class NotLearnt(Exception):
    """Three answers make no golden sample; the text says why."""


def learn(
    request: SampleRequest, answers: Sequence[Answer], times_ms: Sequence[float], rules: _Rules = ()
) -> GoldenSample:
    """Return the golden sample of a request by its answers and the milliseconds that they took.
    `rules` are those that may be chosen, empty for any. Raises NotLearnt."""
    first, usual_ms = answers[0], median(times_ms)
    heads = {(one.status, one.content_type) for one in answers}
    if len(heads) > 1:
        told = ", ".join(f"{status} {kind}".strip() for status, kind in sorted(heads))
        raise NotLearnt(f"{len(answers)} asks had different answers: {told}")
    if not request.accepts(first.status):
        raise NotLearnt(f"{len(answers)} asks were answered with status {first.status}")
    rule = rule_of(answers)
    if rules and rule not in rules:
        wanted = " or ".join(sorted(rules))
        raise NotLearnt(f"expected an answer to compare by {wanted}, got one by {rule}")
    sample = GoldenSample(request, rule, first, usual_ms)
    if rule is GoldenRule.LOGPROBS:
        prompt, tokens = _spread(answers)
        if max(prompt, tokens) > LOGPROB_LEAST:
            raise NotLearnt(
                f"{len(answers)} asks differ by {max(prompt, tokens):.3f} in the mean of their log"
                f" probabilities, more than {LOGPROB_LEAST:g}"
            )
        sample = replace(
            sample,
            prompt_tolerance=max(LOGPROB_LEAST, SPREAD_FACTOR * prompt),
            token_tolerance=max(LOGPROB_LEAST, SPREAD_FACTOR * tokens),
        )
    for one, two in combinations(answers, 2):
        if what := differs(replace(sample, answer=one), two):
            raise NotLearnt(f"{len(answers)} asks had different answers: {what}")
    return replace(sample, answer=kept(rule, first))


def rule_of(answers: Sequence[Answer]) -> GoldenRule:
    """Return the rule that answers of one status and content type are compared by."""
    if all(one.prompt or one.token_logprobs for one in answers):
        return GoldenRule.LOGPROBS
    if all(one.vector for one in answers):
        return GoldenRule.EMBEDDING
    if all(one.text for one in answers):
        return GoldenRule.TEXT
    if all(one.pixels for one in answers):
        return GoldenRule.PICTURE
    same = len({one.digest for one in answers}) == 1
    return GoldenRule.BYTES if same else GoldenRule.STATUS


def kept(rule: GoldenRule, answer: Answer) -> Answer:
    """Return an answer with only what its rule compares."""
    head = Answer(answer.status, answer.content_type)
    match rule:
        case GoldenRule.LOGPROBS:
            return replace(
                head,
                prompt=_short(answer.prompt),
                tokens=answer.tokens,
                token_logprobs=_short(answer.token_logprobs),
            )
        case GoldenRule.TEXT:
            return replace(head, text=answer.text)
        case GoldenRule.EMBEDDING:
            return replace(head, vector=_short(answer.vector))
        case GoldenRule.PICTURE:
            return replace(head, pixels=answer.pixels)
        case GoldenRule.BYTES:
            return replace(head, digest=answer.digest)
        case GoldenRule.STATUS:
            return head


def _short(values: Sequence[float]) -> tuple[float, ...]:
    """Return numbers with the seven digits that those of 32 bits have."""
    return tuple(float(f"{one:.7g}") for one in values)


def differs(sample: GoldenSample, answer: Answer) -> str:
    """Return what was expected of an answer and what came, "" if it is right."""
    right = sample.answer
    if answer.status != right.status:
        return f"expected status {right.status}, got {answer.status}"
    if answer.content_type != right.content_type:
        return f"expected {right.content_type or 'no content type'}, got {answer.content_type}"
    match sample.rule:
        case GoldenRule.LOGPROBS:
            return _logprobs_differ(sample, answer)
        case GoldenRule.TEXT:
            is_same = answer.text == right.text
            return "" if is_same else f"expected {right.text[:80]!r}, got {answer.text[:80]!r}"
        case GoldenRule.EMBEDDING:
            return _vectors_differ(right.vector, answer.vector)
        case GoldenRule.PICTURE:
            return _pictures_differ(right.pixels, answer.pixels)
        case GoldenRule.BYTES:
            return "" if answer.digest == right.digest else "expected the same bytes, got others"
        case GoldenRule.STATUS:
            return ""


# Log probabilities


def _logprobs_differ(sample: GoldenSample, answer: Answer) -> str:
    parts = (
        ("the prompt", prompt_difference(sample.answer, answer), sample.prompt_tolerance),
        ("the tokens", token_difference(sample.answer, answer), sample.token_tolerance),
    )
    for name, off, tolerance in parts:
        if off > tolerance:
            return (
                f"expected log probabilities of {name} within {tolerance:.3f} in the mean, got"
                f" {off:.3f} off"
            )
    return ""


def prompt_difference(right: Answer, answer: Answer) -> float:
    """Return the mean difference of the prompt's log probabilities."""
    if len(answer.prompt) != len(right.prompt):
        return TOLERANCE_MAX
    pairs = zip(right.prompt, answer.prompt, strict=True)
    return _mean([min(TOLERANCE_MAX, abs(a - b)) for a, b in pairs])


def token_difference(right: Answer, answer: Answer) -> float:
    """Return the mean difference of the generated tokens' log probabilities.

    What follows a token depends on it. So the first token that is another one is compared by the
    probability that the right one has in its place; those behind it count as no difference. Where
    two tokens were as good, that difference is small, and a wrong answer is not told from it alone.
    """
    if not right.token_logprobs:
        return 0.0
    offs = []
    for place, (token, logprob) in enumerate(zip(right.tokens, right.token_logprobs, strict=True)):
        if place >= len(answer.tokens):
            offs.append(TOLERANCE_MAX)
            break
        is_same = answer.tokens[place] == token
        got = answer.token_logprobs[place] if is_same else _likelihood(answer, place, token)
        offs.append(min(TOLERANCE_MAX, abs(got - logprob)))
        if not is_same:
            break
    return sum(offs) / len(right.token_logprobs)


def _likelihood(answer: Answer, place: int, token: str) -> float:
    """Return the log probability of a token in a place, at most that of the least of those known
    there."""
    tops = answer.alternatives[place] if place < len(answer.alternatives) else {}
    if token in tops:
        return tops[token]
    return min(tops.values(), default=-TOLERANCE_MAX)


def _spread(answers: Sequence[Answer]) -> tuple[float, float]:
    """Return the largest mean difference of any two answers: of the prompt, of the tokens."""
    pairs = list(combinations(answers, 2))
    prompt = max(prompt_difference(one, two) for one, two in pairs)
    return prompt, max(token_difference(one, two) for one, two in pairs)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


# Vectors and pictures


def _vectors_differ(right: Sequence[float], vector: Sequence[float]) -> str:
    if len(vector) != len(right):
        return f"expected {len(right)} numbers, got {len(vector)}"
    norm, got = math.hypot(*right), math.hypot(*vector)
    if abs(got - norm) > NORM_SHARE * norm:
        return f"expected a norm of {norm:.4g} within {NORM_SHARE:.0%}, got {got:.4g}"
    if not norm:
        return ""
    cosine = math.fsum(a / norm * (b / got) for a, b in zip(right, vector, strict=True))
    if cosine < COSINE_LEAST:
        return f"expected a cosine of at least {COSINE_LEAST}, got {cosine:.4f}"
    return ""


def _pictures_differ(right: Picture | None, picture: Picture | None) -> str:
    if right is None or picture is None or _size(right) != _size(picture):
        return f"expected a picture of {_size(right)}, got one of {_size(picture)}"
    pairs = zip(b64decode(right.samples), b64decode(picture.samples), strict=True)
    off = _mean([abs(a - b) for a, b in pairs])
    if off > PIXELS_MOST:
        return f"expected pixels within {PIXELS_MOST:g} of 255 in the mean, got {off:.1f} off"
    return ""


def _size(picture: Picture | None) -> str:
    if picture is None:
        return "a size that is not known"
    return f"{picture.width} x {picture.height} with {picture.channels} channels"
