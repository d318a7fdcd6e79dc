"""fnctl show, why."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from admin.cli.completion import function_names
from admin.cli.options import Session, connected
from admin.cli.verbs.ls import ready_in
from admin.cli.verbs.operation import OF_RUNNING
from admin.text import NONE, command, duration, fields, get, number, one_line, size, table
from gateway.openapi.input_fields import inputs_of

ERRORS_MAX = 3
NOT_DEPLOYED: Final = "not_deployed"
"""State of a function without a revision, whose first deploy runs or has failed."""
_OF_MODELS = ("timeout_s", "body_mib")
"""Limits that server functions do not use, but for those in Python."""
_SHOWN_BY_SAMPLE: Final = {
    "right": "; last answered right",
    "wrong": "; last answered wrong",
    "no_answer": "; last not answered",
}
"""What the last ask of a golden sample has shown."""
_PLAIN: Final = re.compile(r"[\w@%+=:,./${}-]+", re.ASCII)
"""A word of a command that needs no quotes, as no shell replaces ${PORT}."""

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the function.", autocompletion=function_names),
]


@connected
def show(session: Session, name: Name) -> None:
    """Show one function.

    Prints its state, limits, inputs and outputs or its server, how to call it, and its revisions:
    the one with the traffic now, and the one before, which is the target of fnctl rollback.

    \b
    Example:
      fnctl show digits
    """
    function = {**session.client.function(name), "errors": session.client.errors(name)}
    session.answer(function, lambda: render(function, datetime.now(UTC).timestamp()))
    session.next(f"fnctl invoke {name}", f"fnctl why {name}")


@connected
def why(session: Session, name: Name) -> None:
    """Explain the state of a function.

    Prints its latest decisions with their reasons, its latest errors, and its latest cold starts by
    phase. Of a function whose first deploy runs or has failed, it prints what that waits for, or
    why it failed.

    \b
    Example:
      fnctl why digits
    """
    from admin.cli.render import render_why

    answer = session.client.why(name)
    is_deployed = answer.get("state") != NOT_DEPLOYED
    answer["errors"] = session.client.errors(name) if is_deployed else []
    session.answer(answer, lambda: render_why(answer, datetime.now(UTC).timestamp()))
    operation = answer.get("operation") or {}
    if operation.get("state") == "running":
        session.next(*(f"fnctl operation {verb} {operation['id']}" for verb in OF_RUNNING))
    elif answer.get("state") == "failing" or not is_deployed:
        session.next(f"fnctl logs {name}")


def render(function: dict[str, Any], now_s: float) -> str:
    """Render the function; `now_s` in Unix seconds."""
    from admin.cli.precision import render_precision
    from admin.cli.render import render_errors

    parts = [
        f"{get(function, 'revision')}  {get(function, 'state')}: {get(function, 'reason')}",
        fields([*_facts(function), *_server(function)]),
        _calls(function) or _tensors(function.get("signature") or {}),
        render_precision(function.get("precision")),
        _cold_starts(function.get("cold_starts") or []),
        _revisions(function.get("revisions") or [], function.get("previous")),
        render_errors(function.get("errors") or [], now_s, ERRORS_MAX),
    ]
    if example := get(function, "example"):
        parts.append(f"example\n  {example}")
    return "\n\n".join(part for part in parts if part)


def _facts(function: dict[str, Any]) -> list[tuple[str, str]]:
    from admin.cli.build_lines import compiled_facts

    limits = {**(function.get("limits") or {}), **(function.get("exchange") or {})}
    if function.get("exchange") and "predict" not in function:
        limits = {key: value for key, value in limits.items() if key not in _OF_MODELS}
    labels = function.get("labels") or {}
    return [
        ("replicas", f"{get(function, 'ready')} ready of {get(function, 'wanted')} wanted"),
        ("scaling", f"{get(function, 'min')} to {get(function, 'max')} replicas"),
        # Which of both is not stored. A server that starts with another FN_IDLE_S changes nothing.
        ("idle", f"{get(function, 'idle_s')} s, as of its deploy or fnctl scale"),
        ("GPUs", _gpus(function)),
        ("neighbours", get(function, "neighbours")),
        ("hosts", _hosts(function)),
        ("ready in", ready_in(function.get("ready_in_ms"))),
        (
            "requests",
            f"{get(function, 'held')} held, {get(function, 'in_flight')} {_open(function)}",
        ),
        ("answers", _answers(function)),
        ("at /v2", get(function, "oip_name")),
        ("aliases", ", ".join(function.get("aliases") or [])),
        ("labels", ", ".join(f"{key}={value}" for key, value in labels.items())),
        ("limits", ", ".join(f"{key} {value}" for key, value in limits.items())),
        ("prepared", _prepared(function.get("revisions") or [])),
        *compiled_facts(_builds(function), get(function, "name")),
    ]


def _builds(function: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the build for each type of device; an older server shows one."""
    return function.get("builds") or ([function["build"]] if function.get("build") else [])


def _hosts(function: dict[str, Any]) -> str:
    """Return the requirements that a function has of its hosts; "" for the defaults."""
    labels = (function.get("device") or {}).get("host") or {}
    count = function.get("file_hosts", 1)
    found = [f"{key}={value}" for key, value in sorted(labels.items())]
    found += [] if function.get("spread", True) else ["not spread"]
    found += [] if count == 1 else [f"files on {count}"]
    return ", ".join(found)


def _gpus(function: dict[str, Any]) -> str:
    """Return the number of GPUs of a replica; "" for one device."""
    count = (function.get("device") or {}).get("count", 1)
    return f"{count} for each replica" if count > 1 else ""


def _answers(function: dict[str, Any]) -> str:
    """Return the times of a server function's answers in the last minute; "" without any."""
    if not function.get("server"):
        return ""
    found = [
        f"{what} P50 {duration(function[key + 'p50_ms'])}, P95 {duration(function[key + 'p95_ms'])}"
        for what, key in (("first byte", "first_byte_"), ("whole exchange", ""))
        if function.get(f"{key}p50_ms") is not None
    ]
    return f"{'; '.join(found)} (last minute)" if found else ""


def _open(function: dict[str, Any]) -> str:
    return "open" if function.get("server") else "in flight"


def _server(function: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts about the server of a server function; [] for a model function."""
    server = function.get("server")
    if not server:
        return []
    rules = server.get("paths") or {}
    revisions = function.get("revisions") or []
    current: dict[str, Any] = next((one for one in revisions if one.get("traffic")), {})
    profile = current.get("profile") or {}
    start_ms = float(profile.get("load_ms") or 0.0)
    measured = f", {duration(start_ms)} in the trial" if start_ms else ""
    return [
        *_container(server),
        ("command", _command(server.get("command") or [])),
        ("variables", ", ".join(server.get("env") or [])),
        ("secrets", ", ".join(f"{a} = {b}" for a, b in (server.get("secrets") or {}).items())),
        ("ready", get(server, "ready") or "/, any status below 500"),
        ("network", get(server, "network")),
        ("golden", _golden(function, current)),
        ("park", _park(server.get("park") or {}, function) or get(current, "park_hint")),
        ("start", f"at most {get(server, 'start_s')} s{measured}"),
        *((kind, ", ".join(rules.get(kind) or [])) for kind in ("wake", "free", "deny")),
        ("fields", ", ".join(server.get("fields") or [])),
    ]


def _golden(function: dict[str, Any], revision: dict[str, Any]) -> str:
    """Return which golden sample a server's revision has, with what its last ask has shown, or why
    it has none; "" for a Python function without one."""
    from admin.cli.render import golden

    profile = revision.get("profile") or {}
    if not profile.get("golden"):
        why = one_line(get(revision, "why_not_golden"))
        return f"none: {why}" if why and "predict" not in function else ""
    verdict = _SHOWN_BY_SAMPLE.get(get(function, "golden"), "")
    return f"{golden(profile)}{verdict}"


def _park(park: dict[str, Any], function: dict[str, Any]) -> str:
    """Return how a server sleeps and how long a wake takes, or why it is not parked; "" if it has
    no table for that."""
    if not park:
        return ""
    calls = f"{park['sleep']['method']} {park['sleep']['path']}"
    found = f"{park['engine'] or calls}, at most {float(park['park_s']):g} s"
    row = function.get("park") or {}
    if off := one_line(get(row, "off")):
        return f"{found}; not parked: {off}"
    if row.get("wake_ms"):
        found += f"; wakes in about {duration(float(row['wake_ms']))}"
    return f"{found}; {count} parked" if (count := len(row.get("parked") or [])) else found


def _container(server: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts about an image's container; empty ones for a command."""
    image = server.get("image") or {}
    mounts = (
        f"{one['source']} at {one['target']}{'' if one.get('is_read_only', True) else ' (rw)'}"
        for one in server.get("mounts") or []
    )
    return [
        ("image", " ".join(filter(None, (get(image, "reference"), get(image, "id")[7:19])))),
        ("port", get(server, "port") if image else ""),
        ("user", get(server, "user") or get(image, "user")),
        ("capabilities", ", ".join(server.get("capabilities") or [])),
        ("mounts", ", ".join(mounts)),
    ]


def _command(words: list[str]) -> str:
    """Return the words with the quotes that `--command` needs, without those of ${PORT}."""
    return " ".join(word if _PLAIN.fullmatch(word) else command(word) for word in words)


def _prepared(revisions: list[dict[str, Any]]) -> str:
    """Return the preparation of the revision that has the traffic."""
    from admin.cli.render import prepared

    profiles = (one.get("profile") or {} for one in revisions if one.get("traffic"))
    return next((prepared(profile) for profile in profiles), "")


def _calls(function: dict[str, Any]) -> str:
    """Return how a Python function is called, "" for others."""
    if "predict" not in function:
        return ""
    takes = f"takes {one_line(get(function, 'predict')) or 'inputs'}"
    if why := one_line(get(function, "no_schema")):
        return f"{takes}: no schema, {why}"
    tensors = _tensors(function.get("signature") or {})
    is_tensors = get(function.get("signature") or {}, "kind") == "tensors"
    fields_of = inputs_of(function).fields
    rows = [(one.name, one.noun, "yes" if one.is_required else "no") for one in fields_of]
    inputs = tensors if is_tensors else table(("INPUT", "TAKES", "NEEDED"), rows) if rows else ""
    return f"{takes}\n\n{inputs}".rstrip()


def _tensors(signature: dict[str, Any]) -> str:
    kind = get(signature, "kind")
    if kind == "http":
        return "takes HTTP requests"
    if kind and kind != "tensors":
        return f"takes {kind}"
    rows = [
        (side, get(spec, "name"), get(spec, "dtype"), _shape(spec.get("shape")))
        for side, key in (("in", "inputs"), ("out", "outputs"))
        for spec in signature.get(key) or []
    ]
    return table(("", "TENSOR", "DTYPE", "SHAPE"), rows) if rows else ""


def _shape(shape: list[int] | None) -> str:
    """Render a shape; None is one that the model does not declare."""
    if shape is None:
        return "any"
    return "[" + ", ".join("any" if length < 0 else str(length) for length in shape) + "]"


def _cold_starts(ways: list[dict[str, Any]]) -> str:
    """Render P50 and P90 of cold starts, in total and per phase."""
    rows = []
    for way in ways:
        how = f"{get(way, 'device_kind')}, {'standby' if way.get('standby') else 'new start'}"
        how += f" ({get(way, 'samples')})"
        for phase, pair in [("total", way["total"]), *way["phases"].items()]:
            rows.append((how, phase, duration(pair["p50_ms"]), duration(pair["p90_ms"])))
            how = ""
    return table(("COLD STARTS", "PHASE", "P50", "P90"), rows) if rows else ""


def _revisions(revisions: list[dict[str, Any]], previous: int | None) -> str:
    rows = []
    has_precision = any((one.get("profile") or {}).get("optimised") for one in revisions)
    has_versions = any(one.get("oip_version") for one in revisions)
    for revision in revisions:
        profile = revision.get("profile") or {}
        rows.append(
            (
                get(revision, "number"),
                *([get(revision, "oip_version") or NONE] if has_versions else ()),
                _traffic(revision, previous),
                get(revision.get("compilation") or {}, "engine") or get(revision, "engine"),
                *([_precision(profile)] if has_precision else ()),
                size(int(revision.get("size") or 0)),
                duration(float(profile["load_ms"])) if "load_ms" in profile else NONE,
                f"{number(float(profile['memory_mib']))} MiB" if profile else NONE,
                get(revision, "batching") or NONE,
            )
        )
    version = ("VERSION",) if has_versions else ()
    engine = ("ENGINE", "PRECISION") if has_precision else ("ENGINE",)
    head = ("REVISION", *version, "TRAFFIC", *engine, "SIZE", "LOAD", "MEMORY", "BATCHING")
    return table(head, rows) if rows else ""


def _precision(profile: dict[str, Any]) -> str:
    """Return the candidate that a revision is served by."""
    return get((profile.get("optimised") or {}).get("table") or {}, "chosen") or NONE


def _traffic(revision: dict[str, Any], previous: int | None) -> str:
    """Return "now" for the revision with the traffic, "before" for the target of a rollback."""
    if revision.get("traffic"):
        return "now"
    return "before" if revision.get("number") == previous else NONE
