"""Every generated file with its text."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.reference import (
    admin_api,
    command_line,
    events,
    fields,
    log,
    manifest,
    metrics,
    problems,
    settings,
)
from tests.reference.diagrams import PICTURES
from tests.reference.markdown import page, table
from tests.reference.navigation import configuration
from tests.surface import source

ROOT: Final = Path(__file__).parent.parent.parent
DOCS: Final = ROOT / "docs"
CONFIGURATION: Final = ROOT / "mkdocs.yml"
NOTE: Final = (
    "<!-- Generated from the code by `make reference`: change the code, not this file. -->\n\n"
)
PAGES: Final = {
    "settings": (settings, "Every setting of `fnctl serve`: variable, option, type, default."),
    "manifest": (manifest, "Every key of a function's manifest."),
    "command-line": (command_line, "Every verb of `fnctl`: arguments, options, exit codes."),
    "metrics": (metrics, "Every family of `/metrics` with its labels."),
    "problems": (problems, "Every error that a caller can get."),
    "fields": (fields, "Header fields that do not pass to and from servers as they are."),
    "admin-api": (admin_api, "Every route of the admin API: scope, parameters, body, answer."),
    "events": (events, "The event streams: state and events of the server, logs of a function."),
    "log": (log, "The server's log: the access log and every event."),
}
INTRO: Final = """
These pages list what fngate offers to operators and clients. They are generated from the code, so
they always describe the version beside them.
"""


def pages() -> dict[Path, str]:
    """The text of each generated file."""
    found = {DOCS / "reference" / "index.md": _index()}
    for name, (module, _) in PAGES.items():
        found[DOCS / "reference" / f"{name}.md"] = module.document()
    source.clear_cache()
    site = configuration(CONFIGURATION.read_text("utf-8"), DOCS, found)
    return {
        **{path: NOTE + text for path, text in found.items()},
        **{DOCS / "images" / f"{name}.svg": draw() for name, draw in PICTURES.items()},
        CONFIGURATION: site,
    }


def outdated(wanted: dict[Path, str]) -> list[Path]:
    """The files that are missing or have another text."""
    return [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text("utf-8") != text
    ]


def _index() -> str:
    rows = ((f"[{module.TITLE}]({name}.md)", text) for name, (module, text) in PAGES.items())
    return page("Reference", INTRO, table(("page", "what it lists"), rows))
