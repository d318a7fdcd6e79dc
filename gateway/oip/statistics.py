"""Statistics of a revision, and the protocol's document of them.

Source: the statistics extension of the Open Inference Protocol, version 2. Its numbers only grow
while the server runs; clients read differences. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple


@dataclass(frozen=True, slots=True)
class Took:
    """Number of requests or runs, and the nanoseconds that all of them together took."""

    count: int = 0
    ns: int = 0

    def __add__(self, other: Took) -> Took:
        """Return the sum."""
        return Took(self.count + other.count, self.ns + other.ns)


NOTHING: Final = Took()


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Successful runs with `batch_size` rows; each run is counted once."""

    batch_size: int
    compute_input: Took
    compute_infer: Took
    compute_output: Took


@dataclass(frozen=True, slots=True)
class RevisionStatistics:
    """Statistics of one revision since the server's start, over all gateway processes and replicas.

    `pool` is the revision's key. `last_inference_ms`: end of the last successful request in Unix
    milliseconds, 0 for none. `inference_count`: rows of all successful requests. `execution_count`:
    successful runs, as far as replicas have reported them.

    `success` and `fail` last from a request's head to its answer. The other times are those of
    successful requests: `queue` is the wait in the gateway and in the replica. A run of several
    requests counts with its whole time for each of them.
    """

    pool: str
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Took = NOTHING
    fail: Took = NOTHING
    queue: Took = NOTHING
    compute_input: Took = NOTHING
    compute_infer: Took = NOTHING
    compute_output: Took = NOTHING
    batches: tuple[BatchStatistics, ...] = ()


class Served(NamedTuple):
    """Statistics of a revision with its model's name and version at the protocol."""

    name: str
    version: str
    statistics: RevisionStatistics


def document(models: Iterable[Served]) -> dict[str, Any]:
    """Return the answer to a request for statistics; its numbers are JSON numbers."""
    return {"model_stats": [_model(*one) for one in models]}


def _model(name: str, version: str, found: RevisionStatistics) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "last_inference": found.last_inference_ms,
        "inference_count": found.inference_count,
        "execution_count": found.execution_count,
        "inference_stats": {
            "success": _took(found.success),
            "fail": _took(found.fail),
            "queue": _took(found.queue),
            "compute_input": _took(found.compute_input),
            "compute_infer": _took(found.compute_infer),
            "compute_output": _took(found.compute_output),
            "cache_hit": _took(NOTHING),
            "cache_miss": _took(NOTHING),
        },
        "batch_stats": [_batch(one) for one in found.batches],
    }


def _batch(batch: BatchStatistics) -> dict[str, Any]:
    return {
        "batch_size": batch.batch_size,
        "compute_input": _took(batch.compute_input),
        "compute_infer": _took(batch.compute_infer),
        "compute_output": _took(batch.compute_output),
    }


def _took(took: Took) -> dict[str, int]:
    return {"count": took.count, "ns": took.ns}
