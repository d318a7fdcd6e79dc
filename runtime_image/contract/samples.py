"""Sample requests of server functions, and golden samples: those whose right answer is known.

A golden sample is learnt by the trial of a deploy, which asks it three times. Later the sidecar
asks it again, and the verdict says whether the server still answers right. Plain data.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import ceil, gcd, hypot, isfinite
from typing import Any, Final, TypedDict

GOLDEN_TRIAL_S: Final = 60.0
"""Max seconds that a trial spends on a golden sample."""
BUDGET_MS: Final = 250.0
BUDGET_SHARE: Final = 0.05
"""A golden sample may take BUDGET_MS or this share of the cold start, whichever is larger."""
LIMIT_S: Final = 10.0
LIMIT_FACTOR: Final = 10.0
"""Seconds after which a golden sample counts as not answered, and how many times its usual time, if
that is longer."""
PROMPT_MAX: Final = 1024
"""Max log probabilities of a prompt that are compared, the first ones."""
TOKENS_MAX: Final = 64
"""Max generated tokens that are compared, the first ones."""
TOKEN_MAX: Final = 100
"""Max characters of a token."""
TEXT_MAX: Final = 4096
"""Max characters of a text that are compared, the first ones."""
VECTOR_MAX: Final = 8192
"""Max numbers of an embedding; a longer one is no embedding."""
SIDE_MAX: Final = 2**13
"""Max pixels of a picture's row, and max rows."""
PIXELS_MAX: Final = 2**14
"""Max pixels of a picture that are compared, at even distances."""
STATUS_MAX: Final = 400
"""Without a status of its own, a sample expects one below."""
CONTENT_TYPE_MAX: Final = 100
REASON_MAX: Final = 500
"""Max characters of what differs in an answer."""
TOLERANCE_MAX: Final = 10.0
"""Largest tolerance of a mean difference, and the difference that a missing number counts as."""
FLOAT_MAX: Final = sys.float_info.max
DIGEST_SIZE: Final = 64
"""Characters of a sha256 in hex."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request that a trial sends to the server, and the status that it expects.

    `body` is text, or "@" and a path in the bundle. `status` 0 accepts every status below 400.
    """

    path: str = "/"
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    status: int = 0
    golden: bool = False
    """Whether its answer is learnt, to be compared with later ones."""

    def accepts(self, status: int) -> bool:
        """Whether an answer may have this status."""
        return status == self.status if self.status else status < STATUS_MAX


class SampleVerdict(StrEnum):
    """What an ask of a golden sample showed."""

    NONE = "none"
    """Nothing: there is no golden sample, it waited behind a busy slot, or the server refused it
    for now."""
    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    """No answer in time, or no connection."""


class GoldenRule(StrEnum):
    """How the answers of a golden sample are compared."""

    LOGPROBS = "logprobs"
    """By the log probabilities of the prompt's and of the generated tokens."""
    TEXT = "text"
    """By the generated text, where the server gives no log probabilities."""
    EMBEDDING = "embedding"
    """By the direction and the norm of the vector."""
    PICTURE = "picture"
    """By the mean difference of the pixels."""
    BYTES = "bytes"
    """By all bytes."""
    STATUS = "status"
    """By status and content type alone: three asks gave different bytes."""


@dataclass(frozen=True, slots=True)
class GoldenPlan:
    """What a trial is to learn a golden sample from: one of the function's samples, or the API of
    its model."""

    request: SampleRequest | None = None
    """The sample that the manifest marks; None for a short request to one of the model's endpoints,
    the first that it has: completions, chat, embeddings."""
    base: str = ""
    """Path below which the server has these endpoints."""
    model: str = ""
    """Name of the model at the server."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture's pixels that are compared. Raises ValueError for a size above the bounds of this
    module, and if `samples` are more or less than a picture of that size has."""

    width: int
    height: int
    channels: int
    """1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha."""
    samples: str
    """A byte for each channel of each of these pixels, by channels, in base64."""

    def __post_init__(self) -> None:
        # The store decodes by types alone, and has no bounds of its own.
        _whole(self.width, SIDE_MAX)
        _whole(self.height, SIDE_MAX)
        _whole(self.channels, 4)
        got = len(b64decode(self.samples, validate=True))
        pixels = -(-self.width * self.height // pixel_distance(self.width, self.height))
        if got != pixels * self.channels:
            raise ValueError(
                f"a picture of {self.width} x {self.height} with {self.channels} channels: expected"
                f" {pixels * self.channels} samples, got {got}"
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer says that a rule may compare. A stranger wrote it; `golden.answers` reads it.
    Members that it does not have are empty."""

    status: int
    content_type: str
    digest: str = ""
    """sha256 of the body in hex."""
    prompt: tuple[float, ...] = ()
    """Natural logarithm of the probability of each token of the prompt but the first."""
    tokens: tuple[str, ...] = ()
    """Generated tokens."""
    token_logprobs: tuple[float, ...] = ()
    """Log probability of each generated token."""
    text: str = ""
    """Generated text."""
    vector: tuple[float, ...] = ()
    """Embedding of the first input."""
    pixels: Picture | None = None
    """The first picture."""
    alternatives: tuple[Mapping[str, float], ...] = ()
    """The likeliest tokens at the place of each generated one. They are not kept."""


@dataclass(frozen=True, slots=True)
class GoldenSample:
    """A request and its right answer, of which only what its rule compares is kept."""

    request: SampleRequest
    rule: GoldenRule
    answer: Answer
    usual_ms: float
    """Median time of the trial's three asks."""
    prompt_tolerance: float = 0.0
    """Max mean difference of the prompt's log probabilities."""
    token_tolerance: float = 0.0
    """Max mean difference of the generated tokens' log probabilities."""

    @property
    def limit_s(self) -> float:
        """Seconds after which it counts as not answered."""
        return max(LIMIT_S, LIMIT_FACTOR * self.usual_ms / 1e3)


class Sampled(TypedDict):
    """The body of SAMPLED: the outcome of one ask."""

    verdict: str
    """A SampleVerdict."""
    ms: float
    """Milliseconds from the connection to the end of the answer, or until it was given up."""
    reason: str
    """What was expected and what came, "" for RIGHT."""


def pixel_distance(width: int, height: int) -> int:
    """Return the distance, in the order of rows, of a picture's pixels that are compared: so many
    that they are at most PIXELS_MAX, and that they do not lie in some columns only."""
    distance = -(-width * height // PIXELS_MAX)
    while gcd(distance, width) > 1:
        distance += 1
    return distance


def budget_ms(start_ms: float) -> float:
    """Return the most milliseconds that a golden sample may usually take, by the cold start."""
    return max(BUDGET_MS, BUDGET_SHARE * start_ms)


def golden_to_json(sample: GoldenSample) -> dict[str, Any]:
    """Return a golden sample as plain JSON data; `golden_from_json` is its inverse."""
    data = asdict(sample)
    del data["answer"]["alternatives"]
    return data


def golden_from_json(data: Mapping[str, Any]) -> GoldenSample:
    """Rebuild a golden sample from `golden_to_json`. Raises KeyError, TypeError or ValueError on
    anything else, and for whatever is above the bounds of this module: a trial's report has it from
    a stranger."""
    answer, rule = data["answer"], GoldenRule(data["rule"])
    request = SampleRequest(**data["request"])
    for name, value in asdict(request).items():
        if type(value) is not type(getattr(SampleRequest(), name)):
            raise TypeError(f"request.{name}: got {type(value).__name__}")
    if not all(isinstance(value, str) for value in request.headers.values()):
        raise TypeError("request.headers: expected texts")
    right = Answer(
        status=_whole(answer["status"], 999),
        content_type=_text(answer["content_type"], CONTENT_TYPE_MAX),
        digest=_text(answer["digest"], DIGEST_SIZE),
        prompt=_numbers(answer["prompt"], PROMPT_MAX),
        tokens=tuple(_text(one, TOKEN_MAX) for one in _bounded(answer["tokens"], TOKENS_MAX)),
        token_logprobs=_numbers(answer["token_logprobs"], TOKENS_MAX),
        text=_text(answer["text"], TEXT_MAX),
        vector=_numbers(answer["vector"], VECTOR_MAX),
        pixels=_picture(answer["pixels"]),
    )
    if len(right.tokens) != len(right.token_logprobs) or not _has_compared(rule, right):
        raise ValueError(f"answer: expected what is compared by {rule}")
    return GoldenSample(
        request=request,
        rule=rule,
        answer=right,
        usual_ms=_number(data["usual_ms"], 1e3 * GOLDEN_TRIAL_S),
        prompt_tolerance=_number(data["prompt_tolerance"], TOLERANCE_MAX),
        token_tolerance=_number(data["token_tolerance"], TOLERANCE_MAX),
    )


def _has_compared(rule: GoldenRule, answer: Answer) -> bool:
    """Whether an answer has what its rule compares: without, every later one would be wrong."""
    match rule:
        case GoldenRule.LOGPROBS:
            return bool(answer.prompt or answer.token_logprobs)
        case GoldenRule.TEXT:
            return bool(answer.text)
        case GoldenRule.EMBEDDING:
            return bool(answer.vector) and isfinite(hypot(*answer.vector))
        case GoldenRule.PICTURE:
            return answer.pixels is not None
        case GoldenRule.BYTES:
            return bool(answer.digest)
        case GoldenRule.STATUS:
            return True


def _picture(data: Mapping[str, Any] | None) -> Picture | None:
    if data is None:
        return None
    samples = _text(data["samples"], 4 * ceil(4 * PIXELS_MAX / 3))
    return Picture(data["width"], data["height"], data["channels"], samples)


def _bounded(values: Any, most: int) -> list[Any] | tuple[Any, ...]:
    if not isinstance(values, list | tuple) or len(values) > most:
        raise ValueError(f"expected a list of at most {most} items")
    return values


def _numbers(values: Any, most: int) -> tuple[float, ...]:
    return tuple(finite(one) for one in _bounded(values, most))


def finite(value: Any) -> float:
    """Return a finite number. Raises ValueError for anything else."""
    if type(value) not in (int, float) or not abs(value) <= FLOAT_MAX:
        raise ValueError(f"expected a finite number, got {str(value)[:40]!r}")
    return float(value)


def _number(value: Any, most: float) -> float:
    if not 0 <= (found := finite(value)) <= most:
        raise ValueError(f"expected a number from 0 to {most:g}, got {found:g}")
    return found


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not 0 < value <= most:
        raise ValueError(f"expected a whole number from 1 to {most}, got {str(value)[:40]!r}")
    return value


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"expected text of at most {most} characters")
    return value
