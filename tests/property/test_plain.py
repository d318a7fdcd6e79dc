"""Property tests of plain JSON batches: same answers and errors as single requests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_image.codecs.arrays import DTYPES
from runtime_image.codecs.tensors import FLOAT_MAX
from runtime_image.contract import dtypes
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import InputRule, ModelSpec, OutputRule
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.link.meta import RequestMeta
from runtime_image.replica.intake import Job
from runtime_image.replica.runner import Runner
from runtime_image.replica.stages import Answer, Outcome
from tests.support.doses import amount

PLAIN = settings(max_examples=amount(100, 400), deadline=None)
DTYPE_NAMES = [*sorted(set(DTYPES) - {dtypes.BYTES}), "BF16", dtypes.BYTES]
NAMES = ["x", "a b", "é", "100%", "y", "input0", 'say "x"', "back\\slash"]
SHAPES: list[tuple[int, ...]] = [(-1,), (-1, 2), (-1, 2, 1), (-1, 1, 2, 1)]
ODD_SHAPES: list[tuple[int, ...]] = [(), (2,), (1, 2), (-1, -1), (-1, 0)]


class Echo:
    """Session that returns its inputs, and scores made of the first one, some of them NaN."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature

    def ticket(self) -> Any:
        return None

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        first = next(iter(inputs.values()))
        outputs = {f"{name}%": value for name, value in inputs.items()}
        if first.dtype.kind in "fiub" and first.ndim:
            with np.errstate(over="ignore"):
                scores = first.reshape(len(first), -1).astype(np.float32)
            outputs["scores"] = np.where(scores == 1, np.nan, scores)
            outputs["flat"] = scores[:, 0] > 0
        return outputs

    def stop(self, ticket: Any) -> None:
        pass


class NoWriter:
    """Writer that leaves all answers to the codec for single requests."""

    def write(self, *what: Any) -> None:
        return None


def outcomes(signature: Signature, spec: ModelSpec, jobs: list[Job], alone: bool) -> list[Any]:
    """Return the outcome of each job; with `alone`, each uses the codecs for single requests."""
    runner: Any = Runner(Echo(signature), spec, lambda: 0.0)
    if alone:
        runner._decoder._plain = None
        runner._answerer._writer = NoWriter()
    found: dict[int, Outcome] = {}
    for batch in [[job] for job in jobs] if alone else [jobs]:
        runner.run(batch, lambda job, outcome: found.update({job.id: outcome}), lambda run: None)
    return [plain(found[job.id]) for job in jobs]


def plain(outcome: Outcome) -> Any:
    if isinstance(outcome, RequestError):
        return outcome.to_json()
    assert isinstance(outcome, Answer)
    return outcome.meta.content_type, outcome.json_length, outcome.body


def elements(dtype: str) -> st.SearchStrategy[Any]:
    """Values that fit the dtype, including its limits."""
    if dtype == "BOOL":
        return st.booleans()
    if dtype == dtypes.BYTES:
        return st.text(max_size=3)
    if dtype in dtypes.FLOATS:
        most = FLOAT_MAX.get(dtype, 1.0)
        limits = st.sampled_from([most, -most, -0.0, 1, None])
        return st.floats(-most, most) | st.integers(-9, 9) | limits
    low, high = dtypes.INTEGER_RANGE[dtype]
    return st.integers(low, high) | st.sampled_from([low, high, 0, 1])


WRONG = st.sampled_from(
    [None, True, 1.5, 2**63, 2**64, -(2**63) - 1, 10**400, 3.5e38, 1e300, 65505.0, "1", [], [1], {}]
)


@st.composite
def values(draw: st.DrawFn, spec: TensorSpec, rows: int) -> Any:
    """Nested lists that fit `spec`, with rare mistakes."""

    def nested(shape: tuple[int, ...]) -> Any:
        if draw(st.integers(0, 150)) == 0:
            return draw(WRONG)
        if not shape:
            return draw(elements(spec.dtype))
        size = shape[0] if shape[0] >= 0 else draw(st.integers(0, 2))
        return [nested(shape[1:]) for _ in range(max(0, size + draw(ODD)))]

    return nested((rows, *spec.shape[1:]) if spec.shape else ())


ODD = st.sampled_from([0] * 150 + [1, -1])


@st.composite
def bodies(draw: st.DrawFn, specs: tuple[TensorSpec, ...]) -> bytes:
    """A short JSON body as clients write them, sometimes with a mistake."""
    rows = draw(st.sampled_from([1] * 8 + [2] * 8 + [3] * 4 + [0]))
    items = [
        (
            json.dumps(spec.name, ensure_ascii=draw(st.booleans())),
            json.dumps(draw(values(spec, rows))),
        )
        for spec in specs
    ]
    if draw(st.integers(0, 40)) == 0:
        items.append(draw(st.sampled_from([*items, ('"other"', "[1]")])))
    if draw(st.integers(0, 40)) == 0:
        items = items[1:]
    items = draw(st.permutations(items))
    text = "{" + ", ".join(f"{name}: {value}" for name, value in items) + "}"
    outer = draw(
        st.sampled_from(
            ['{"inputs": %s}'] * 150
            + [
                ' \n{"inputs":\t%s } ',
                '{"\\u0069nputs": %s}',
                '{"inputs": %s, "more": 1}',
                '{"inputs": {}, "inputs": %s}',
                '{"inputs": %s}}',
                '{"inputs": [%s]}',
                '{"input": %s}',
                "[%s]",
                "%s",
                '{"inputs": %s',
            ]
        )
    )
    body: bytes = outer.replace("%s", text).encode()
    if draw(st.integers(0, 20)) == 0:
        cut = draw(st.integers(0, len(body)))
        body = (
            body[:cut]
            + draw(
                st.sampled_from(
                    [b"", b"NaN", b"null", b"-Infinity", b"\xef\xbb\xbf", b"\xff", b"0", b'"', b"]"]
                )
            )
            + body[cut:]
        )
    return body


METAS = st.sampled_from(
    [RequestMeta("application/json", "", -1, "")] * 25
    + [
        RequestMeta("Application/JSON; charset=utf-8", "*/*", -1, ""),
        RequestMeta("application/json", "application/json", -1, "00-1-2-01"),
        RequestMeta("application/json", "application/x-npy", -1, ""),
        RequestMeta("application/json", "text/plain", -1, ""),
        RequestMeta("application/json", "text/plain, */*;q=0.1", -1, ""),
        RequestMeta("application/json", "", 20, ""),
        RequestMeta("", "", -1, ""),
        RequestMeta("text/plain", "", -1, ""),
    ]
)
RULES = st.builds(
    OutputRule,
    st.sampled_from(["", "scores", "flat", "none"]),
    st.sampled_from([(), ("no", 'a "b" %d')]),
    st.integers(0, 3),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Signature, ModelSpec, list[Job]]:
    """A function and some requests that arrived together."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
    shapes = st.sampled_from(SHAPES * 12 + ODD_SHAPES)
    specs = tuple(
        TensorSpec(name, draw(st.sampled_from(DTYPE_NAMES)), draw(shapes)) for name in names
    )
    is_batched = all(spec.shape and spec.shape[0] == -1 for spec in specs)
    spec = ModelSpec(
        'f"%@1',
        inputs={name: InputRule(finite=draw(st.booleans())) for name in names},
        output=draw(RULES),
        batch_max=draw(st.sampled_from([1, 3, 64])) if is_batched else 1,
    )
    jobs = [
        Job(1, id, draw(METAS), draw(bodies(specs)), 60.0, 0.0)
        for id in range(draw(st.integers(1, 5)))
    ]
    return Signature("tensors", specs, ()), spec, jobs


@given(cases())
@PLAIN
def test_both_codecs_agree(case: tuple[Signature, ModelSpec, list[Job]]) -> None:
    """Answers are equal byte for byte and errors field for field, whatever the batch."""
    together = outcomes(*case, alone=False)

    assert together == outcomes(*case, alone=True)
