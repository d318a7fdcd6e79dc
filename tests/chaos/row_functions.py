"""Functions whose right answers are known per row: ONNX Runtime's outputs for that row alone."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx

from runtime_image.contract.errors import BAD_INPUT, FUNCTION_FAILED
from runtime_image.verification.proof import agree
from tests.support.row_models import evidence, honest
from tests.support.row_models.case import Case
from tests.support.row_models.evidence import DTYPES, FAILURES, Feed
from tests.support.row_models.honest import EXTREMES, WORDS, Honest

TEXTS: Final = (*WORDS, *evidence.STRINGS)
WIDE: Final = (-3e38, -1e5, -200.0, -3.0, 0.0, 1.0, 50.0, 500.0, 1e5, 3e38)
"""Magnitudes mixed within one row."""
BELOW: Final = 7
"""Exclusive upper bound of drawn integers where a model names none."""
STRANGE_INTEGERS: Final = (0, -1, 1000)
"""Hostile integers for a whole row: 0, the index before an axis, and one behind it."""
NAMES: Final = {
    "tensor(float)": "FP32",
    "tensor(float16)": "FP16",
    "tensor(double)": "FP64",
    "tensor(int64)": "INT64",
    "tensor(int32)": "INT32",
    "tensor(uint8)": "UINT8",
    "tensor(int8)": "INT8",
    "tensor(bool)": "BOOL",
    "tensor(string)": "BYTES",
}
"""ONNX Runtime's types by their Open Inference Protocol names."""
VECTOR: Final = 64
"""Width of the widest SIMD registers in bytes."""
NPY: Final = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Call:
    """One caller's request: row number `row` of a function, encoded as json, npy or binary."""

    row: int
    form: str
    path: str
    body: bytes
    headers: dict[str, str]


@dataclass(slots=True)
class RowFunction:
    """A model under load and the rows that its callers send.

    `wanted` holds ONNX Runtime's outputs for each row alone, None where the run fails. `joins` is
    the server's verdict after the deploy: requests may share runs.
    """

    name: str
    model: onnx.ModelProto
    mixes: bool
    session: Any
    rows: list[Feed]
    wanted: list[list[Any] | None]
    joins: bool = False
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def made(cls, source: Case | Honest, count: int, seed: int) -> RowFunction:
        """Build a function with `count` rows; every third row is hostile."""
        model = source.model()
        session = evidence.session(model)
        chance = np.random.default_rng(seed)
        rows = [_row(source, session.get_inputs(), chance, at) for at in range(count)]
        name = source.name.replace("_", "-")
        wanted = [_alone(session, row) for row in rows]
        mixes = isinstance(source, Case) or not source.independent
        made = cls(name, model, mixes, session, rows, wanted)
        made.calls = [call for at in range(count) for call in made._forms(at)]
        return made

    def unfit(self) -> str:
        """Return why this model's answers cannot be judged; "" if they can.

        Such a model needs several rows, or answers the same row differently later. The latter
        happens in training mode, and where a kernel of ONNX Runtime 1.31 leaves part of its result
        uninitialised.
        """
        if sum(outputs is not None for outputs in self.wanted) * 2 < len(self.wanted):
            return "most rows fail alone"
        for row, wanted in zip(reversed(self.rows), reversed(self.wanted), strict=True):
            again = _alone(self.session, row)
            if (again is None) != (wanted is None):
                return "a row alone does not always fail"
            if not self._all(_same_bits, again or [], wanted or []):
                return "a row alone is not always answered alike"
        return ""

    def drawn(self, chance: random.Random, count: int) -> list[Call]:
        """Draw `count` random requests."""
        return chance.choices(self.calls, k=count)

    def complaint(self, call: Call, status: int, body: bytes, json_length: str, rows: int) -> str:
        """Return what is wrong with an answer; "" if it is right. `rows`: size of its run."""
        wanted = self.wanted[call.row]
        if wanted is None:
            code = json.loads(body).get("code", "") if body.startswith(b"{") else ""
            is_failure = code in (BAD_INPUT, FUNCTION_FAILED)
            return "" if is_failure else f"expected {BAD_INPUT} or {FUNCTION_FAILED}, got {status}"
        if status != 200:
            return f"{status} {body[:300].decode('utf-8', 'replace')}"
        try:
            got = self._outputs(call, body, json_length)
        except (ValueError, KeyError, TypeError) as error:
            return f"no answer: {error!r}"
        same = _same_values if call.form == "json" else _same_bits
        if self._all(same, got, _in_form(call, wanted)):
            return ""
        if self._as_placed(same, got, call):
            return ""
        if rows > 1 and not self.mixes and self._as_joined(got, call, rows):
            return ""
        return f"row {call.row} as {call.form} of {rows}: expected {wanted}, got {got}"[:600]

    def _as_placed(self, same: Any, got: list[Any], call: Call) -> bool:
        """Return whether the answer equals that of the row alone at another memory address.
        Vectorised sums start at the next whole vector, so the last bit depends on the buffer's
        alignment."""
        for offset in range(1, VECTOR):
            row = {name: _placed(value, offset) for name, value in self.rows[call.row].items()}
            if self._all(same, got, _in_form(call, _alone(self.session, row) or [])):
                return True
        return False

    def _as_joined(self, got: list[Any], call: Call, rows: int) -> bool:
        """Return whether the answer is the row's own except for the order of additions: close to
        the row's answer alone, or to its answer among copies of itself."""
        if self._all(_near, got, _in_form(call, self.wanted[call.row] or [])):
            return True
        feed = {name: np.repeat(value, rows, axis=0) for name, value in self.rows[call.row].items()}
        copies = [np.asarray(output)[:1] for output in self.session.run(None, feed)]
        return self._all(_near, got, _in_form(call, copies))

    @staticmethod
    def _all(same: Any, got: Sequence[Any], wanted: Sequence[Any]) -> bool:
        return len(got) == len(wanted) and all(map(same, got, wanted))

    def _forms(self, at: int) -> list[Call]:
        row = self.rows[at]
        calls = [self._binary(at)]
        values = list(row.values())
        is_plain = all(value.dtype != np.float16 for value in values)
        if is_plain and all(
            value.dtype.kind != "f" or np.isfinite(value).all() for value in values
        ):
            body = {"inputs": {name: value.tolist() for name, value in row.items()}}
            calls.append(Call(at, "json", f"/fn/{self.name}", json.dumps(body).encode(), JSON))
        outputs = self.session.get_outputs()
        numeric = values[0].dtype.kind != "O" and outputs[0].type != "tensor(string)"
        if len(values) == len(outputs) == 1 and numeric:
            file = io.BytesIO()
            np.save(file, values[0])
            calls.append(Call(at, "npy", f"/fn/{self.name}", file.getvalue(), NPY))
        return calls

    def _binary(self, at: int) -> Call:
        listed, raw = [], []
        for wanted in self.session.get_inputs():
            value = self.rows[at][wanted.name]
            raw.append(_raw(value))
            listed.append(
                {
                    "name": wanted.name,
                    "shape": list(value.shape),
                    "datatype": NAMES[wanted.type],
                    "parameters": {"binary_data_size": len(raw[-1])},
                }
            )
        head = json.dumps({"inputs": listed, "parameters": {"binary_data_output": True}}).encode()
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(head)),
        }
        body = head + b"".join(raw)
        return Call(at, "binary", f"/fn/{self.name}", body, headers)

    def _outputs(self, call: Call, body: bytes, json_length: str) -> list[Any]:
        """Decode an answer into arrays, in the order of the model's outputs."""
        wanted = self.wanted[call.row]
        assert wanted is not None
        if call.form == "npy":
            return [np.load(io.BytesIO(body))]
        names = [output.name for output in self.session.get_outputs()]
        if call.form == "json":
            outputs = json.loads(body)["outputs"]
            pairs = zip((outputs[name] for name in names), wanted, strict=True)
            return [_from_json(value, like) for value, like in pairs]
        head = int(json_length) if json_length else len(body)
        found, at = {}, head
        for output in json.loads(body[:head])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            found[output["name"]] = (output["shape"], body[at : at + size])
            at += size
        pairs = zip((found[name] for name in names), wanted, strict=True)
        return [_from_raw(data, shape, like) for (shape, data), like in pairs]


def _row(source: Case | Honest, inputs: Sequence[Any], chance: Any, at: int) -> Feed:
    """Return one row: ordinary, or (where `at` is divisible by 3) hostile of kind `at` / 3."""
    row, is_strange = {}, at % 3 == 0
    for wanted in inputs:
        dtype, shape = DTYPES[wanted.type], honest.shape_of(wanted, 1)
        given = source.rows.get(wanted.name, ()) if isinstance(source, Case) else ()
        below = BELOW if isinstance(source, Case) else source.below.get(wanted.name, BELOW)
        if given and at % 2:
            value = np.asarray(given[chance.integers(len(given))])[None]
        elif dtype is np.object_:
            letters = "".join(chance.choice(list("abc de"), size=6))
            value = chance.choice(np.array([*TEXTS, letters], np.object_), size=shape)
        elif np.issubdtype(dtype, np.floating):
            value = _floats(shape, chance, at // 3 if is_strange else None)
        elif is_strange:
            value = np.full(shape, (*STRANGE_INTEGERS, below - 1, below)[at // 3 % 5])
        else:
            value = chance.integers(0, below, shape)
        with np.errstate(all="ignore"):
            row[wanted.name] = np.asarray(value).astype(dtype)
    return row


def _floats(shape: Sequence[int], chance: Any, kind: int | None) -> Any:
    if kind is None:
        return chance.normal(size=shape) * chance.choice([1.0, 1.0, 10.0, 300.0])
    if kind % 3 == 0:
        return chance.choice(WIDE, size=shape)
    return np.full(shape, EXTREMES[kind % len(EXTREMES)])


def _alone(session: Any, row: Feed) -> list[Any] | None:
    try:
        return [np.asarray(output) for output in session.run(None, row)]
    except FAILURES:
        return None


def _placed(value: Any, offset: int) -> Any:
    """Return the same values at `offset` bytes past an address aligned for every vector."""
    if value.dtype == np.object_:
        return value
    place = np.zeros(value.nbytes + 2 * VECTOR, np.uint8)
    start = -place.ctypes.data % VECTOR + offset
    place[start : start + value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)
    return place[start : start + value.nbytes].view(value.dtype).reshape(value.shape)


def _raw(value: Any) -> bytes:
    """Encode as the protocol's binary extension does: strings are length-prefixed."""
    if value.dtype != np.object_:
        return bytes(value.tobytes())
    texts = [str(text).encode() for text in value.reshape(-1)]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _from_raw(data: bytes, shape: list[int], like: Any) -> Any:
    if like.dtype.kind not in "OU":
        return np.frombuffer(data, like.dtype).reshape(shape)
    texts, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return np.array(texts, np.object_).reshape(shape)


def _from_json(value: Any, like: Any) -> Any:
    if like.dtype.kind in "OU":
        return np.array(value, np.object_)
    with np.errstate(all="ignore"):
        return np.array(value, np.float64 if like.dtype.kind == "f" else None).astype(like.dtype)


def _same_bits(got: Any, wanted: Any) -> bool:
    if wanted.dtype.kind in "OU":
        return bool(got.shape == wanted.shape and (got == wanted).all())
    return bool(got.shape == wanted.shape and got.tobytes() == wanted.tobytes())


def _in_form(call: Call, wanted: Sequence[Any]) -> list[Any]:
    """Return `wanted` as the call's format can express it: JSON turns non-finite values into null,
    read back as NaN."""
    if call.form != "json":
        return list(wanted)
    return [
        np.where(np.isfinite(one), one, np.nan).astype(one.dtype) if one.dtype.kind == "f" else one
        for one in wanted
    ]


def _same_values(got: Any, wanted: Any) -> bool:
    if got.size == 0 and wanted.size == 0:
        # A JSON array with zero rows does not carry the number of columns.
        return len(got) == len(wanted)
    if wanted.dtype.kind != "f":
        return _same_bits(got, wanted)
    return bool(np.array_equal(got, wanted, equal_nan=True))


def _near(got: Any, wanted: Any) -> bool:
    """Compare floats within the trial's own tolerance, other types exactly."""
    if got.shape != wanted.shape or wanted.dtype.kind != "f":
        return _same_values(got, wanted)
    with np.errstate(all="ignore"):
        return agree(got, wanted)
