"""Cost of a function without batching: the same model with batching on and off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.gateway import gateway
from benchmarks.loaded import RATE, REPLICA_US, SERVER_US
from benchmarks.loading.call import Load
from benchmarks.measuring.record import Case, interleaved
from benchmarks.measuring.report import Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject
from benchmarks.suite.plain import CONNECTIONS, warmed

CORPUS = Path(__file__).parents[2] / "tests" / "data" / "row_models"
TOKENS = 32
BELOW = 40
"""Vocabulary size of the corpus's transformer."""
ON, OFF = "requests share runs", "one run per request"


def measure(setting: Setting) -> list[Part]:
    """Deploy each model twice and call the two functions in turn."""
    parts: list[Part] = []
    for subject in (subjects.tiny(setting.models), transformer(), subjects.digits()):
        with ExitStack() as stack:
            record = interleaved(dict(_cases(stack, subject, setting)), setting.rounds)
        title = f"c={CONNECTIONS}, {subject.name}"
        parts += compare(record.only(RATE, REPLICA_US, SERVER_US), ON, title=title)
    return parts


def _cases(stack: ExitStack, subject: Subject, setting: Setting) -> Iterator[tuple[str, Case]]:
    """Return the cases. Each has its own server, so that no replica waits for another's slot."""
    for name, options in ((ON, ()), (OFF, ("--batch", "off"))):
        server = stack.enter_context(gateway(environment={"FN_STANDBYS": "0"}))
        on = warmed(server, subject, setting, *options)
        yield name, partial(on, Load(server.call(subject), CONNECTIONS, setting.load_s))


def transformer() -> Subject:
    """Return an encoder with two heads from the corpus of exports; 32 tokens as JSON."""
    model = CORPUS / "encoder_dynamo.onnx"
    words = [[at % BELOW for at in range(TOKENS)]]
    body = json.dumps({"inputs": {"words": words}}).encode()
    return Subject("encoder", model, model, "int64", (1, TOKENS), body)
