"""Description of a server function: the answer to `GET /fn/NAME`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from registry.model import ExchangeLimits
from runtime_image.contract.server import SampleRequest

if TYPE_CHECKING:
    from registry.catalog import Deployed
    from registry.exchange import PoolEndpoints

RANGES_MAX: Final = 32
"""Max media ranges of a header Accept that are read."""


def prefers_page(accept: str) -> bool:
    """Return whether a header Accept asks for a page, as browsers do, and not for JSON."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")[:RANGES_MAX]]
    return "text/html" in kinds and "application/json" not in kinds


def describe_server(deployed: Deployed, endpoints: PoolEndpoints, origin: str) -> dict[str, Any]:
    """Return the function as JSON data. `origin` is the scheme and host that the client used."""
    function, revision = deployed.function, deployed.revision
    limits = function.exchange or ExchangeLimits()
    return {
        "name": function.name,
        "revision": revision.ref,
        "kind": "http",
        "state": endpoints.state,
        "reason": endpoints.reason,
        "url": f"{origin}/fn/{function.name}/",
        "limits": {
            "wait_s": function.limits.wait_s,
            "concurrency": limits.concurrency,
            "first_byte_s": limits.first_byte_s,
            "stall_s": limits.stall_s,
            "max_s": limits.max_s,
        },
        "labels": function.labels,
        "example": server_example(deployed, origin),
    }


def server_example(deployed: Deployed, origin: str) -> str:
    """Return a curl command that calls the function: its first sample, or its root."""
    server = deployed.revision.server
    sample = server.samples[0] if server and server.samples else SampleRequest()
    words = ["curl"]
    if sample.method != ("POST" if sample.body else "GET"):
        words += ["-X", sample.method]
    for name, value in sample.headers.items():
        words += ["-H", f"{name}: {value}"]
    if sample.body:
        words += ["--data-binary", sample.body]
    return shlex.join([*words, f"{origin}/fn/{deployed.function.name}{sample.path}"])
