"""What a trial asks for a golden sample."""

from __future__ import annotations

import json

from runtime_image.contract.samples import GoldenPlan, GoldenRule, SampleRequest
from runtime_image.server.golden.requests import PROMPT, candidates


def test_a_marked_sample_is_asked_alone() -> None:
    """Its answer decides by which rule it is compared."""
    marked = SampleRequest("/up", golden=True)
    (only,) = candidates(GoldenPlan(marked))

    assert (only.request, only.rules, only.needs_prompt) == (marked, frozenset(), False)


def test_numbers_come_before_text() -> None:
    """First those of a whole prompt, then of four tokens, a vector, and text of eight tokens."""
    asked = list(candidates(GoldenPlan(base="/api/v1", model="m")))

    rules = [rule for one in asked for rule in one.rules]
    assert rules == [*[GoldenRule.LOGPROBS] * 4, GoldenRule.EMBEDDING, *[GoldenRule.TEXT] * 2]
    assert [one.needs_prompt for one in asked] == [True, True, *[False] * 5]
    bodies = [json.loads(one.request.body) for one in asked]
    assert {body["model"] for body in bodies} == {"m"}
    assert [body.get("max_tokens") for body in bodies] == [4, 4, 4, 4, None, 8, 8]
    assert all(one.request.path.startswith("/api/v1/") for one in asked)
    assert len(PROMPT.split()) in range(40, 64)
