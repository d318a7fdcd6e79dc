"""Statistics of a revision, and the protocol's document of them.

Source: the statistics extension of the Open Inference Protocol, version 2. Its numbers only grow
while the server runs; clients read differences. Pure.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Duration(Struct, frozen=True):
    """A count and a sum in nanoseconds."""

    count: int
    """Number of requests or runs."""
    ns: int
    """Nanoseconds that all of them together took."""


NOTHING: Final = Duration(0, 0)


class BatchStatistics(Struct, frozen=True):
    """Runs with one number of rows."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class InferStatistics(Struct, frozen=True):
    """Durations of the phases of requests."""

    success: Duration
    """From the head of a request to its answer, as `fail`."""
    fail: Duration
    queue: Duration
    """The wait of successful requests in the gateway and in the replica. A run of several requests
    counts with its whole time for each of them, here and below."""
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    """There is no cache of answers."""
    cache_miss: Duration


UNCALLED: Final = InferStatistics(*([NOTHING] * 8))


class RevisionStatistics(Struct, frozen=True):
    """Statistics of one revision since the server's start, over all gateway processes and replicas;
    the fields but `pool` are those of `ModelStatistics`."""

    pool: str
    """The revision's key."""
    last_inference: int = 0
    inference_count: int = 0
    execution_count: int = 0
    inference_stats: InferStatistics = UNCALLED
    batch_stats: tuple[BatchStatistics, ...] = ()


class ModelStatistics(Struct):
    """Statistics of one version. `last_inference`: Unix milliseconds. `inference_count`: rows,
    `execution_count`: runs."""

    name: str
    version: str
    last_inference: int
    """End of the last successful request, 0 for none."""
    inference_count: int
    """Rows of all successful requests."""
    execution_count: int
    """Successful runs, as far as replicas have reported them."""
    inference_stats: InferStatistics
    batch_stats: list[BatchStatistics]


class Statistics(Struct):
    """Statistics of models, summed over all gateway processes."""

    model_stats: list[ModelStatistics]


def model_statistics(name: str, version: str, found: RevisionStatistics) -> ModelStatistics:
    """Return the statistics of a revision, whose model has this name and version in the
    protocol."""
    return ModelStatistics(
        name,
        version,
        found.last_inference,
        found.inference_count,
        found.execution_count,
        found.inference_stats,
        list(found.batch_stats),
    )
