"""All sections as one text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.surface import (
    bodies,
    code,
    command,
    configuration,
    http,
    pages,
    storage,
    story,
    values,
    wire,
)

FILE: Final = Path(__file__).parent.parent / "data" / "surface.txt"
WRITE: Final = "make surface"
HEAD: Final = f"""\
# Whatever clients, scripts, data folders and dashboards rely on, out of the code.
# `{WRITE}` writes it anew; a test compares. ? may be null, ~ may be left out, * is any key,
# [] is each item, and a number after a dot is a place in an array.
"""


def document() -> str:
    """The text: sections in order, the lines of each sorted, each once."""
    told = asyncio.run(story.tell())
    sections: dict[str, Iterable[str]] = {
        "problems": http.problems(),
        "request errors of replicas": http.request_errors(),
        "routes": http.routes(),
        "headers": [*code.headers(), *told.scene.headers],
        "server timing": http.timings(),
        "bodies of functions": bodies.bodies(),
        "requests of the admin API": wire.requests(),
        "answers": told.answers(),
        "events": told.events(),
        "values": [*values.values(), *told.values()],
        "fnctl": command.verbs(),
        "fnctl --json": told.speech.lines(),
        "variables": code.variables(),
        "settings": configuration.settings(),
        "function.toml": configuration.manifest(),
        "log": http.log(),
        "traces": http.traces(),
        "metrics": pages.metrics(),
        "containers": storage.containers(),
        "data folder": told.scene.files,
        "file names": storage.file_names(),
        "database": told.tables,
        "migrations": storage.migrations(),
        "records": storage.records(),
        "replicas": wire.replicas(),
        "gateways": wire.gateways(),
    }
    code.forget()
    for name, lines in sections.items():
        assert lines, f"the section {name} is empty"
    shown = ("\n".join([f"[{name}]", *sorted(set(lines))]) for name, lines in sections.items())
    return "\n\n".join([HEAD.rstrip(), *shown]) + "\n"
