"""Table [health] of a server function, and its conversion to settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from registry.manifest.checks import Section, refused
from registry.model.servers import HealthSettings

_AT: Final = "health"
_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
"""A metric's name in Prometheus' data model."""
_METRICS: Final = re.compile(r"/[!-~]*")
VLLM_COUNTER: Final = "vllm:iteration_tokens_total_count"
"""Moves with each step of vLLM's engine, also within a prefill in parts."""
VLLM_STEP_S: Final = 120.0
_UNCHUNKED: Final = "--no-enable-chunked-prefill"
_DEFAULTS: Final = HealthSettings()


class HealthTable(Section):
    """Table [health]."""

    hang: Literal["replace", "report", "off"] = _DEFAULTS.hang
    """What fngate does with a server that is ready and does not answer any more: `replace` it,
    `report` it in `fnctl ls` and `fnctl why`, or nothing."""
    counter: Annotated[str, StringConstraints(max_length=200)] | None = None
    """Name of a metric of the server that rises as long as it works. It proves in a long silence
    that the server works, or does not. Empty for none. The default is that of vLLM if the command
    or the image is vLLM, else none."""
    metrics: Annotated[str, StringConstraints(max_length=512)] = _DEFAULTS.metrics
    """Path at which the server shows this metric, in Prometheus' text format."""
    step_s: float | None = Field(default=None, ge=1, le=86_400)
    """Longest time in seconds in which a server that works may not move its counter. 900 by
    default, 120 for vLLM with prefills in parts."""


def health_settings(table: HealthTable, command: Sequence[str], image: str = "") -> HealthSettings:
    """Convert the table to settings; `command` and `image` are the server's. Raises BadManifest."""
    is_vllm = _is_vllm(command, image)
    counter = (VLLM_COUNTER if is_vllm else "") if table.counter is None else table.counter
    if counter and not _METRIC.fullmatch(counter):
        raise refused(f"{_AT}.counter", "the name of a metric, such as requests_total", counter)
    if not _METRICS.fullmatch(table.metrics):
        raise refused(f"{_AT}.metrics", "a path such as /metrics", table.metrics)
    is_chunked = is_vllm and _UNCHUNKED not in command
    step_s = VLLM_STEP_S if is_chunked else _DEFAULTS.step_s
    return HealthSettings(
        table.hang, counter, table.metrics, step_s if table.step_s is None else table.step_s
    )


def health_table(settings: HealthSettings) -> dict[str, Any]:
    """Return the table that `health_settings` converts to these settings."""
    return asdict(settings)


def _is_vllm(command: Sequence[str], image: str) -> bool:
    """Whether the words of a command, or an image's name, are vLLM's."""
    words = {PurePosixPath(word).name.partition(":")[0] for word in (*command, image)}
    return not words.isdisjoint({"vllm", "vllm-openai"}) or "vllm.entrypoints" in " ".join(command)
