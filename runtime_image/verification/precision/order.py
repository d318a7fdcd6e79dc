"""Messages between a trial and the child processes that make and judge its candidates."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict

from runtime_image.contract import model
from runtime_image.contract import signature as signatures
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.precision import CandidateName
from runtime_image.contract.rows import RowVerdict
from runtime_image.contract.signature import Signature
from runtime_image.verification.precision.samples import Source

NOT_ANALYSED: Final = RowVerdict(analysed=False, proven=False, reason="it was not analysed")
Task = Literal["make", "explore", "judge", "time"]
"""make: write a candidate. explore: find the original's samples, outputs and best batch. judge:
measure a file's memory, and compare a candidate with the original. time: measure the latency of the
original and all candidates, in turn."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A model file to time, and whether its runs may be joined."""

    name: CandidateName
    model: str
    batchable: bool


@dataclass(frozen=True, slots=True)
class Order:
    """Work of one child process. Paths are absolute.

    `model` is the file to read, `target` the candidate to write (make). `folder` is the function's
    model folder, `scratch` a folder for files of this child alone. `cap_mib` limits the child's
    private memory, `bytes_max` any file it writes, `limit_s` its time; 0 is no limit. `verdict` is
    that on the rows of `model`. Exploring writes the original's outputs to `outputs` and finds the
    last four: `signature` is the original's, `rows` are the batch sizes to measure, `judged` the
    samples that the model accepts; `batchable` is whether its runs may be joined, None for a
    candidate, which is judged anew. `timed` are the files to time, `together` whether all their
    sessions may be open at once.
    """

    task: Task
    name: CandidateName
    spec: ModelSpec
    folder: str
    scratch: str
    model: str
    target: str = ""
    device_kind: str = "cpu"
    threads: int = 1
    cap_mib: int = 0
    bytes_max: int = 0
    limit_s: float = 0.0
    verdict: RowVerdict = NOT_ANALYSED
    outputs: str = ""
    signature: Signature | None = None
    rows: tuple[int, ...] = ()
    judged: tuple[int, ...] = ()
    batchable: bool | None = None
    timed: tuple[Timed, ...] = ()
    together: bool = False


class Figures(TypedDict):
    """Result of a child as JSON. `why_not` is the reason against the candidate, `refused` one to
    refuse the whole deploy; without either, the fields of the task are there."""

    why_not: str
    refused: NotRequired[str]
    # explore
    signature: NotRequired[dict[str, Any]]
    rows: NotRequired[list[int]]
    source: NotRequired[Source]
    calibrated: NotRequired[int]
    judged: NotRequired[list[int]]
    # explore and judge
    batchable: NotRequired[bool]
    # judge
    memory_mib: NotRequired[float]
    agreement: NotRequired[dict[str, Any]]
    """`Agreement` as JSON; absent for the original."""
    # time
    rounds_ms: NotRequired[dict[CandidateName, dict[str, list[float]]]]
    """Milliseconds per run by rows, one for each round."""


class NotConverted(Exception):
    """The model cannot become this candidate; the text is the reason."""


def limit(order: Order) -> str:
    """Return the memory limit of a child, as the end of a reason; "" without one."""
    return f"; its memory is limited to {order.cap_mib} MiB" if order.cap_mib else ""


def to_json(order: Order) -> dict[str, Any]:
    """Return the order as plain JSON data; `from_json` is its inverse."""
    signature = signatures.to_json(order.signature) if order.signature else None
    return {**asdict(order), "spec": model.to_json(order.spec), "signature": signature}


def from_json(data: dict[str, Any]) -> Order:
    """Rebuild an order from `to_json`."""
    verdict = dict(data["verdict"])
    verdict["equal_axes"] = model.equal_axes_from_json(verdict["equal_axes"])
    signature = data["signature"]
    plain = {
        **data,
        "spec": model.from_json(data["spec"]),
        "verdict": RowVerdict(**verdict),
        "signature": signatures.from_json(signature) if signature else None,
        "rows": tuple(data["rows"]),
        "judged": tuple(data["judged"]),
        "timed": tuple(Timed(**one) for one in data["timed"]),
    }
    return Order(**plain)
