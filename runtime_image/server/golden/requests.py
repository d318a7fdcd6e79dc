"""The requests of which a trial takes the first that makes a golden sample."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from runtime_image.contract.samples import GoldenPlan, GoldenRule, SampleRequest

PROMPT: Final = (
    "A gate holds every call until its model wakes. Seven small boats left the harbour at dawn,"
    " each with one lamp, two nets and a list of names. By noon the wind had turned north, so the"
    " captain counted: one, two, three, four, five,"
)
"""About 64 tokens. Every token of it is compared: a part of a cache that belongs to another prompt
changes those behind it."""
LONG_PROMPT: Final = PROMPT + "".join(
    f" Boat {one} has {one + 2} lamps, {3 * one + 1} nets and a list of {7 * one} names."
    for one in range(1, 13)
)
"""About 350 tokens. Servers share caches of prefixes in blocks of 16 to 128 tokens, and of a prompt
only whole blocks."""
LOGPROB_TOKENS: Final = 4
TEXT_TOKENS: Final = 8
ALTERNATIVES: Final = 5
"""Likeliest tokens at each place, the most that the completions of OpenAI's API give."""
_OF_PROMPT: Final = frozenset({"echo", "prompt_logprobs"})
"""Members of a request for log probabilities of its prompt."""
NO_ENDPOINT: Final = frozenset({404, 405, 501})
"""Statuses of a path that the server does not have."""


class Candidate(NamedTuple):
    """A request, and the rules of which one makes its answer a golden sample; none for any rule."""

    request: SampleRequest
    rules: frozenset[GoldenRule] = frozenset()
    needs_prompt: bool = False
    """Whether log probabilities of the prompt must be among what is compared."""


def candidates(plan: GoldenPlan) -> Iterator[Candidate]:
    """Yield what a trial asks, the best first.

    Numbers of a whole prompt show what four tokens do not. vLLM and SGLang give them with `echo`
    for completions, vLLM also with `prompt_logprobs` for chats. Other servers ignore a member that
    they do not know, or refuse it; hence the same chat without it. Text is the last resort.
    """
    if plan.request is not None:
        yield Candidate(plan.request)
        return
    numbers = frozenset({GoldenRule.LOGPROBS})
    common = {"model": plan.model, "temperature": 0, "seed": 0}
    chat = {**common, "messages": _as_chat(PROMPT)}
    completion = {**common, "prompt": PROMPT}
    tokens = {"max_tokens": LOGPROB_TOKENS}
    echo = {**completion, **tokens, "logprobs": ALTERNATIVES, "echo": True}
    chosen = {**chat, **tokens, "logprobs": True, "top_logprobs": ALTERNATIVES}
    vllm_chat = {**chosen, "prompt_logprobs": 1}
    yield Candidate(_post(plan, "/completions", echo), numbers, needs_prompt=True)
    yield Candidate(_post(plan, "/chat/completions", vllm_chat), numbers, needs_prompt=True)
    yield Candidate(_post(plan, "/chat/completions", chosen), numbers)
    plain = {**completion, **tokens, "logprobs": ALTERNATIVES}
    yield Candidate(_post(plan, "/completions", plain), numbers)
    vector = {"model": plan.model, "input": PROMPT, "encoding_format": "float"}
    yield Candidate(_post(plan, "/embeddings", vector), frozenset({GoldenRule.EMBEDDING}))
    text, more = frozenset({GoldenRule.TEXT}), {"max_tokens": TEXT_TOKENS}
    yield Candidate(_post(plan, "/chat/completions", {**chat, **more}), text)
    yield Candidate(_post(plan, "/completions", {**completion, **more}), text)


def prefix_request(request: SampleRequest) -> SampleRequest | None:
    """Return the request that shows a stale cache of prefixes, by that of a golden sample: without
    log probabilities of the prompt, for which vLLM leaves the cache out, and with a prompt of
    several blocks in place of ours. None if that is the request itself, or it has no prompt."""
    try:
        body = json.loads(request.body)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    changed = {name: one for name, one in body.items() if name not in _OF_PROMPT}
    if body.get("prompt") == PROMPT:
        changed["prompt"] = LONG_PROMPT
    elif body.get("messages") == _as_chat(PROMPT):
        changed["messages"] = _as_chat(LONG_PROMPT)
    return replace(request, body=json.dumps(changed)) if changed != body else None


def _as_chat(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _post(plan: GoldenPlan, path: str, body: dict[str, Any]) -> SampleRequest:
    headers = {"Content-Type": "application/json"}
    return SampleRequest(plan.base + path, "POST", headers, json.dumps(body), 200)
