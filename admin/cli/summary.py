"""What a deploy came to, as text. Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from admin.cli.answer import first_line
from admin.cli.text import command, duration, fields, get, number, size
from runtime_image.contract.sample import JSON, content_type

if TYPE_CHECKING:
    from admin.cli.collect import Collected

VALUE_MAX: Final = 60
"""Characters of a sample's value that are worth repeating in a command."""


def render(result: dict[str, Any], collected: Collected) -> str:
    """The summary of an operation's `result`."""
    revision = get(result, "revision")
    if not result.get("created", True):
        changed = ", ".join(result.get("changed") or [])
        if changed:
            return f"same bundle as {revision}, which stays; changed: {changed}"
        return f"same bundle and settings as {revision}: nothing changed"
    profile = result.get("profile") or {}
    sample = result.get("sample") or {}
    count = len(collected.bundle.files)
    files = f"{count} file{'s' if count != 1 else ''}, {size(collected.bundle.size)}"
    pairs = [
        ("sample", first_line(sample) if sample else ""),
        ("load", duration(float(profile["load_ms"])) if "load_ms" in profile else ""),
        ("memory", f"{number(float(profile['memory_mib']))} MiB" if profile else ""),
        ("batching", get(result, "batching")),
        ("prepared", prepared(profile)),
        ("note", get(profile, "note")),
        ("switch", get(result, "switch")),
    ]
    return f"{revision} deployed ({files})\n{fields(pairs)}"


def prepared(profile: dict[str, Any]) -> str:
    """What cold starts gain by what deploy made of the model, or why nothing was made; "" where
    nobody tried."""
    found = profile.get("prepared")
    if not found:
        why = get(profile, "why_not_prepared")
        return f"no: {why}" if why else ""
    quick, original, fast = found["quick"], found["original"], found.get("fast")
    text = f"first answer after {_start(quick)} instead of {_start(original)}"
    if not fast:
        return text
    shares = [fast["cpu_ms"][rows] / ms for rows, ms in quick["cpu_ms"].items() if ms]
    saved = 1 - sum(shares) / len(shares) if shares else 0.0
    return f"{text}; then a session built beside it takes {saved:.0%} less CPU time"


def _start(times: dict[str, Any]) -> str:
    return duration(float(times["load_ms"]) + float(times["first_ms"]))


def example(collected: Collected) -> str:
    """The command that calls the function with its own sample, or shows how to call it."""
    words = ["fnctl", "invoke", collected.name]
    for name, value in collected.sample.items():
        if isinstance(value, str) and value.startswith("@"):
            shown = f"@{Path(collected.root, value[1:])}"
        else:
            shown = json.dumps(value)
        if len(shown) > VALUE_MAX and not shown.startswith("@"):
            return command("fnctl", "show", collected.name)
        words += ["-i", f"{name}={shown}"]
    if not collected.sample:
        return command("fnctl", "show", collected.name)
    return command(*words)


def curl(collected: Collected, url: str) -> str:
    """The same with curl, for the server at `url`; "" without a sample that fits a line."""
    sample = collected.sample
    files = [value for value in sample.values() if isinstance(value, str) and value[:1] == "@"]
    if files:
        path = Path(collected.root, files[0][1:])
        kind, option, body = content_type(path.name), "--data-binary", f"@{path}"
    else:
        kind, option, body = JSON, "-d", json.dumps({"inputs": sample})
    if not sample or (len(body) > VALUE_MAX and not files):
        return ""
    words = ["curl", f"{url.rstrip('/')}/fn/{collected.name}", "-H", f"Content-Type: {kind}"]
    return command(*words, option, body)
