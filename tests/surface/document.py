"""The sections of the surface as one text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.surface import (
    admin_api,
    bodies,
    cli,
    configuration,
    metrics,
    protocol,
    scenario,
    source,
    states,
    storage,
    wire,
)

FILE: Final = Path(__file__).parent.parent / "data" / "surface.txt"
WRITE: Final = "make surface"
HEAD: Final = f"""\
# What clients, scripts, data folders and dashboards rely on, generated from the code by `{WRITE}`.
# ?: may be null; ~: may be left out; *: any key; []: each item; a number: a place in an array.
"""


def document() -> str:
    """Return the text: sections in order, the lines of each sorted and unique."""
    recorded = asyncio.run(scenario.run())
    sections: dict[str, Iterable[str]] = {
        "problems": protocol.problems(),
        "request errors of replicas": protocol.request_errors(),
        "routes": protocol.routes(),
        "headers": [*source.headers(), *recorded.server.headers],
        "server timing": protocol.timings(),
        "bodies of functions": bodies.bodies(),
        "admin API": admin_api.admin_api(),
        "answers": recorded.answers(),
        "events": recorded.server.events,
        "values": [*states.states(), *recorded.operation_states()],
        "fnctl": cli.verbs(),
        "fnctl --json": recorded.cli.lines(),
        "variables": source.variables(),
        "settings": configuration.settings(),
        "function.toml": configuration.manifest(),
        "log": protocol.log(),
        "traces": protocol.traces(),
        "metrics": metrics.metrics(),
        "containers": storage.containers(),
        "data folder": recorded.server.files,
        "file names": storage.file_names(),
        "database": recorded.tables,
        "migrations": storage.migrations(),
        "records": storage.records(),
        "replicas": wire.replicas(),
        "gateways": wire.gateways(),
    }
    source.clear_cache()
    for name, lines in sections.items():
        assert lines, f"the section {name} is empty"
    shown = ("\n".join([f"[{name}]", *sorted(set(lines))]) for name, lines in sections.items())
    return "\n\n".join([HEAD.rstrip(), *shown]) + "\n"
