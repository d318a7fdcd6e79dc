"""fnctl show, why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin import documents as d
from admin.cli.completion import function_names
from admin.cli.function_table import ready_in
from admin.cli.options import Session, connected
from admin.cli.verbs.operation import OF_RUNNING
from admin.client import routes
from admin.text import NONE, command, duration, fields, number, one_line, size, table

if TYPE_CHECKING:
    from registry.model.parks import ParkSettings
    from registry.model.profiles import Profile
    from runtime_image.contract.signature import Signature

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
    found, errors = (
        session.client.call(routes.FUNCTION, name),
        session.client.items(routes.ERRORS, name),
    )
    session.answer(
        {**found.sent, "errors": errors.sent["items"]},
        lambda: render(found.value, errors.value, datetime.now(UTC).timestamp()),
    )
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

    found = session.client.call(routes.WHY, name)
    is_deployed = found.sent.get("state") != NOT_DEPLOYED
    errors = session.client.items(routes.ERRORS, name) if is_deployed else None
    session.answer(
        {**found.sent, "errors": errors.sent["items"] if errors else []},
        lambda: render_why(
            found.value, errors.value if errors else [], datetime.now(UTC).timestamp()
        ),
    )
    if session.as_json:
        return
    operation = found.value.operation
    if operation is not None and operation.state == "running":
        session.next(*(f"fnctl operation {verb} {operation.id}" for verb in OF_RUNNING))
    elif found.value.state == "failing" or not is_deployed:
        session.next(f"fnctl logs {name}")


def render(
    function: d.functions.FunctionDetail, errors: Sequence[d.functions.FailureRow], now_s: float
) -> str:
    """Render the function with its latest errors; `now_s` in Unix seconds."""
    from admin.cli.precision import render_precision
    from admin.cli.render import render_errors

    parts = [
        f"{function.revision}  {function.state}: {function.reason}",
        fields([*_facts(function), *_server(function)]),
        _calls(function) or _tensors(function.signature),
        render_precision(function.precision),
        _cold_starts(function.cold_starts),
        _revisions(function.revisions, function.previous),
        render_errors(errors, now_s, ERRORS_MAX),
    ]
    if function.example:
        parts.append(f"example\n  {function.example}")
    return "\n\n".join(part for part in parts if part)


def _facts(function: d.functions.FunctionDetail) -> list[tuple[str, str]]:
    from dataclasses import asdict

    from admin.cli.build_lines import compiled_facts

    limits = asdict(function.limits)
    if function.exchange:
        limits |= asdict(function.exchange)
        if not isinstance(function.predict, str):
            limits = {key: value for key, value in limits.items() if key not in _OF_MODELS}
    return [
        ("replicas", f"{function.ready} ready of {function.wanted} wanted"),
        ("scaling", f"{function.min} to {function.max} replicas"),
        # Which of both is not stored. A server that starts with another FN_IDLE_S changes nothing.
        ("idle", f"{function.idle_s} s, as of its deploy or fnctl scale"),
        ("GPUs", _gpus(function)),
        ("neighbours", function.neighbours),
        ("hosts", _hosts(function)),
        ("ready in", ready_in(function.ready_in_ms)),
        ("requests", f"{function.held} held, {function.in_flight} {_open(function)}"),
        ("answers", _answers(function)),
        ("at /v2", function.oip_name),
        ("aliases", ", ".join(function.aliases)),
        ("labels", ", ".join(f"{key}={value}" for key, value in function.labels.items())),
        ("limits", ", ".join(f"{key} {value}" for key, value in limits.items())),
        ("prepared", _prepared(function)),
        *compiled_facts(function.builds, function.name),
    ]


def _hosts(function: d.functions.FunctionDetail) -> str:
    """Return the requirements that a function has of its hosts; "" for the defaults."""
    found = [f"{key}={value}" for key, value in sorted(function.device.host.items())]
    found += [] if function.spread else ["not spread"]
    found += [] if function.file_hosts == 1 else [f"files on {function.file_hosts}"]
    if function.preemptible == (function.min > 0):
        found.append("preemptible" if function.preemptible else "not preemptible")
    return ", ".join(found)


def _gpus(function: d.functions.FunctionDetail) -> str:
    """Return the number of GPUs of a replica; "" for one device."""
    count = function.device.count
    return f"{count} for each replica" if count > 1 else ""


def _answers(function: d.functions.FunctionDetail) -> str:
    """Return the times of a server function's answers in the last minute; "" without any."""
    if not function.server:
        return ""
    times = (
        ("first byte", function.first_byte_p50_ms, function.first_byte_p95_ms),
        ("whole exchange", function.p50_ms, function.p95_ms),
    )
    found = [
        f"{what} P50 {duration(p50_ms)}, P95 {duration(p95_ms)}"
        for what, p50_ms, p95_ms in times
        if p50_ms is not None and p95_ms is not None
    ]
    return f"{'; '.join(found)} (last minute)" if found else ""


def _open(function: d.functions.FunctionDetail) -> str:
    return "open" if function.server else "in flight"


def _current(function: d.functions.FunctionDetail) -> d.functions.RevisionRow | None:
    """Return the revision that has the traffic."""
    return next((one for one in function.revisions if one.traffic), None)


def _server(function: d.functions.FunctionDetail) -> list[tuple[str, str]]:
    """Return the facts about the server of a server function; [] for a model function."""
    server, current = function.server, _current(function)
    if not server:
        return []
    start_ms = current.profile.load_ms if current and current.profile else 0.0
    measured = f", {duration(start_ms)} in the trial" if start_ms else ""
    rules = (("wake", server.paths.wake), ("free", server.paths.free), ("deny", server.paths.deny))
    hint = (current.park_hint or "") if current else ""
    return [
        *_container(server),
        ("command", _command(server.command)),
        ("variables", ", ".join(server.env)),
        ("secrets", ", ".join(f"{a} = {b}" for a, b in server.secrets.items())),
        ("ready", server.ready or "/, any status below 500"),
        ("network", server.network),
        ("golden", _golden(function, current)),
        ("park", _park(server.park, function.park) or hint),
        ("start", f"at most {server.start_s} s{measured}"),
        *((kind, ", ".join(paths)) for kind, paths in rules),
        ("fields", ", ".join(server.fields)),
    ]


def _golden(function: d.functions.FunctionDetail, revision: d.functions.RevisionRow | None) -> str:
    """Return which golden sample a server's revision has, with what its last ask has shown, or why
    it has none; "" for a Python function without one."""
    from admin.cli.render import golden

    if revision is None:
        return ""
    if revision.profile is None or revision.profile.golden is None:
        why = one_line(revision.why_not_golden or "")
        return f"none: {why}" if why and not isinstance(function.predict, str) else ""
    return f"{golden(revision.profile)}{_SHOWN_BY_SAMPLE.get(function.golden, '')}"


def _park(park: ParkSettings | None, row: d.functions.ParkRow | None) -> str:
    """Return how a server sleeps and how long a wake takes, or why it is not parked; "" if it has
    no table for that."""
    if park is None:
        return ""
    calls = f"{park.sleep.method} {park.sleep.path}"
    found = f"{park.engine or calls}, at most {park.park_s:g} s"
    if row is None:
        return found
    if off := one_line(row.off):
        return f"{found}; not parked: {off}"
    if row.wake_ms:
        found += f"; wakes in about {duration(row.wake_ms)}"
    return f"{found}; {len(row.parked)} parked" if row.parked else found


def _container(server: d.functions.Server) -> list[tuple[str, str]]:
    """Return the facts about an image's container; empty ones for a command."""
    image = server.image
    mounts = (
        f"{one.source} at {one.target}{'' if one.is_read_only else ' (rw)'}"
        for one in server.mounts
    )
    return [
        ("image", " ".join(filter(None, (image.reference, image.id[7:19]))) if image else ""),
        ("port", str(server.port) if image else ""),
        ("user", server.user or (image.user or "" if image else "")),
        ("capabilities", ", ".join(server.capabilities)),
        ("mounts", ", ".join(mounts)),
    ]


def _command(words: list[str]) -> str:
    """Return the words with the quotes that `--command` needs, without those of ${PORT}."""
    return " ".join(word if _PLAIN.fullmatch(word) else command(word) for word in words)


def _prepared(function: d.functions.FunctionDetail) -> str:
    """Return the preparation of the revision that has the traffic."""
    from admin.cli.render import prepared

    current = _current(function)
    return prepared(current.profile) if current else ""


def _calls(function: d.functions.FunctionDetail) -> str:
    """Return how a Python function is called, "" for others."""
    if not isinstance(function.predict, str):
        return ""
    takes = f"takes {one_line(function.predict) or 'inputs'}"
    if why := one_line(function.no_schema or ""):
        return f"{takes}: no schema, {why}"
    if function.signature.kind == "tensors":
        return f"{takes}\n\n{_tensors(function.signature)}".rstrip()
    from gateway.openapi.input_fields import inputs_of

    fields_of = inputs_of({"schema": function.schema}).fields
    rows = [(one.name, one.noun, "yes" if one.is_required else "no") for one in fields_of]
    return f"{takes}\n\n{table(('INPUT', 'TAKES', 'NEEDED'), rows)}" if rows else takes


def _tensors(signature: Signature) -> str:
    if signature.kind == "http":
        return "takes HTTP requests"
    if signature.kind != "tensors":
        return f"takes {signature.kind}"
    rows = [
        (side, spec.name, spec.dtype, _shape(spec.shape))
        for side, specs in (("in", signature.inputs), ("out", signature.outputs))
        for spec in specs
    ]
    return table(("", "TENSOR", "DTYPE", "SHAPE"), rows) if rows else ""


def _shape(shape: Sequence[int] | None) -> str:
    """Render a shape; None is one that the model does not declare."""
    if shape is None:
        return "any"
    return "[" + ", ".join("any" if length < 0 else str(length) for length in shape) + "]"


def _cold_starts(ways: Sequence[d.functions.ColdStartTimes]) -> str:
    """Render P50 and P90 of cold starts, in total and per phase."""
    rows = []
    for way in ways:
        how = f"{way.device_kind}, {'standby' if way.standby else 'new start'} ({way.samples})"
        for phase, pair in [("total", way.total), *way.phases.items()]:
            rows.append((how, phase, duration(pair.p50_ms), duration(pair.p90_ms)))
            how = ""
    return table(("COLD STARTS", "PHASE", "P50", "P90"), rows) if rows else ""


def _revisions(revisions: Sequence[d.functions.RevisionRow], previous: int | None) -> str:
    rows = []
    has_precision = any(one.profile is not None and one.profile.optimised for one in revisions)
    has_versions = any(one.oip_version for one in revisions)
    for revision in revisions:
        profile = revision.profile
        rows.append(
            (
                revision.number,
                *([revision.oip_version or NONE] if has_versions else ()),
                _traffic(revision, previous),
                revision.compilation.engine if revision.compilation else revision.engine,
                *([_precision(profile)] if has_precision else ()),
                size(revision.size),
                duration(profile.load_ms) if profile else NONE,
                f"{number(profile.memory_mib)} MiB" if profile else NONE,
                revision.batching or NONE,
            )
        )
    version = ("VERSION",) if has_versions else ()
    engine = ("ENGINE", "PRECISION") if has_precision else ("ENGINE",)
    head = ("REVISION", *version, "TRAFFIC", *engine, "SIZE", "LOAD", "MEMORY", "BATCHING")
    return table(head, rows) if rows else ""


def _precision(profile: Profile | None) -> str:
    """Return the candidate that a revision is served by."""
    return profile.optimised.table["chosen"] if profile and profile.optimised else NONE


def _traffic(revision: d.functions.RevisionRow, previous: int | None) -> str:
    """Return "now" for the revision with the traffic, "before" for the target of a rollback."""
    if revision.traffic:
        return "now"
    return "before" if revision.number == previous else NONE
