"""Creates the tracer of a gateway process, if traces are enabled."""

from __future__ import annotations

import importlib.util
import socket
import time
from importlib.metadata import version
from random import Random
from typing import Final

from gateway.observing.tracing import Tracer
from gateway.settings import GatewaySettings
from registry.errors import BadRequest

_EXPORTER: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def check_traces(settings: GatewaySettings) -> None:
    """Raise BadRequest if traces are enabled and the OpenTelemetry packages are not installed."""
    if settings.traces and not all(_is_there(name) for name in _EXPORTER):
        raise BadRequest("FN_TRACES needs OpenTelemetry: make install EXTRAS=traces")


def open_tracer(settings: GatewaySettings, name: str) -> Tracer | None:
    """Return the tracer of the gateway process `name` on this machine; None if traces are disabled.
    Raises BadRequest as `check_traces` does."""
    if not settings.traces:
        return None
    check_traces(settings)
    # An optional extra whose import takes a tenth of a second.
    from admin.telemetry.otlp import OtlpCollector, TraceExporter

    instance = f"{socket.gethostname()}/{name}"
    try:
        collector = OtlpCollector(settings.traces)
    except AttributeError as error:
        raise BadRequest(f"FN_TRACES: unsupported OpenTelemetry exporter: {error}") from error
    exporting = TraceExporter(collector, instance, version("fngate"), time.monotonic)
    random = Random()  # noqa: S311 - ids and chances, no secrets
    return Tracer(settings.traces_sample, exporting.write, random, exporting.close)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing too
        return False
