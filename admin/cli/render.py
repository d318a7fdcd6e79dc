"""Rendering of functions, operations and deploys as text. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, to_builtins

from admin import documents as d
from admin.cli.answers import first_line
from admin.cli.precision import summary as precision_summary
from admin.text import (
    ago,
    bar,
    command,
    duration,
    fields,
    mib,
    number,
    one_line,
    place_of,
    size,
)
from gateway.openapi.input_fields import call_line, example_inputs
from runtime_image.contract.control import PHASES, WAKE_PHASES
from runtime_image.contract.model import JSON, content_type

if TYPE_CHECKING:
    from admin.cli.bundle_files import Collected
    from registry.model.history import ColdStart
    from registry.model.profiles import Profile, SessionTimes

DECISIONS_MAX: Final = 10
ERRORS_MAX: Final = 5
COLD_STARTS_MAX: Final = 3
CONNECTED_MAX: Final = 10
WATERFALL_WIDTH: Final = 40
"""Width in columns."""
BOUND: Final = frozenset({"limits.concurrency", "limits.max_s"})
"""Settings of a server function that each replica gets at its start."""
EGRESS: Final = (
    "egress: it reaches whatever this host reaches: its services, the local network, cloud metadata"
)
LOOPBACK_HOST: Final = "it refuses other names than its own, so it sees its address as Host"
HIDDEN: Final = ": volumes of the image, empty folders in memory hide what it has there"
_CLOSED: Final = {
    "no data passed, and the function went to sleep": False,
    "the replica was stopped while they were in use": True,
}
"""Why WebSockets were closed, and whether they kept their function awake until then."""
_KINDS: Final = {"websocket": "a WebSocket", "events": "an event stream", "request": "a request"}
VALUE_MAX: Final = 60
"""Max characters of a sample's value in an example command."""
LINE_MAX: Final = 400
"""Max characters of a command that calls a Python function."""


def render_why(why: d.functions.Why, errors: Sequence[d.functions.FailureRow], now_s: float) -> str:
    """Render a function's state and reason, who is connected, and its latest decisions, errors and
    cold starts, each list in order of time.

    `now_s` in Unix seconds.
    """
    head = (
        f"{why.state.replace('_', ' ')}: {why.reason}{_left(why)}",
        f"blocked: {why.blocked}" if why.blocked not in ("", why.reason) else "",
        kept_text(why.kept_by),
        _render_operation(why.operation, now_s),
        f"batching: {why.batching}" if why.batching else "",
        park_text(why.park, now_s),
        _render_last(why, now_s),
    )
    parts = ["\n".join(line for line in head if line)]
    if connected := render_connected(why, now_s):
        parts.append(connected)
    decisions = sorted(why.decisions, key=attrgetter("at_s"))[-DECISIONS_MAX:]
    if decisions:
        lines = [f"  {ago(one.at_s, now_s):<12}  {one.text}" for one in decisions]
        parts.append("\n".join(["decisions", *lines]))
    if shown := render_errors(errors, now_s, ERRORS_MAX):
        parts.append(shown)
    cold_starts = sorted(why.cold_starts, key=attrgetter("at_s"))[-COLD_STARTS_MAX:]
    if cold_starts:
        lines = [waterfall(one, now_s) for one in cold_starts]
        parts.append("\n".join(["cold starts", *lines]))
    return "\n\n".join(parts)


def _left(why: d.functions.Why) -> str:
    """Return the phase of a wake and what is left of it: ", verify, about 0.4 s left"; of a fetch,
    which is the reason, what is left; "" for anything else."""
    left = f", about {duration(why.ready_in_ms)} left" if why.ready_in_ms else ""
    if why.phase in WAKE_PHASES:
        return f", {why.phase}{left}"
    return left if why.phase == "fetch" else ""


def _render_operation(operation: d.deploys.OperationRow | None, now_s: float) -> str:
    """Render the operation of a function: "operation 5f3c9a1b: deploy, verify, started 2 min ago";
    "" for none."""
    if operation is None:
        return ""
    state = operation.state
    # What the phase waits for stands in the function's reason.
    phase = operation.phase.partition(" ")[0] if state == "running" else state
    started = ago(operation.created_s, now_s)
    return f"operation {operation.id}: {operation.kind}, {phase}, started {started}"


def waterfall(cold_start: ColdStart, now_s: float) -> str:
    """Render one cold start: a line, then one bar per phase, which starts where the last ended."""
    phases = {name: ms for name, ms in cold_start.phases.items() if ms > 0}
    whole_ms = sum(phases.values()) or 1.0
    head = [
        ago(cold_start.at_s, now_s),
        duration(cold_start.total_ms),
        f"on {place_of(cold_start)}",
        f"revision {cold_start.number}",
        cold_start.outcome,
        *(["compiled"] if cold_start.session == "compiled" else []),
    ]
    lines = ["  " + "  ".join(head)]
    width = max(map(len, phases), default=0)
    before_ms = 0.0
    for name in [*(n for n in PHASES if n in phases), *(n for n in phases if n not in PHASES)]:
        offset = " " * int(before_ms / whole_ms * WATERFALL_WIDTH)
        drawn = (offset + (bar(phases[name] / whole_ms, WATERFALL_WIDTH) or "▏")).ljust(
            WATERFALL_WIDTH + 1
        )
        lines.append(f"    {name.ljust(width)}  {drawn}  {number(phases[name])} ms")
        before_ms += phases[name]
    return "\n".join(lines)


def render_connected(why: d.functions.Why, now_s: float) -> str:
    """Render who is connected to a server function, and whose WebSockets were closed when it went
    to sleep or a replica stopped; "" for nobody. `now_s` in Unix seconds."""
    parts = []
    for reason, was_used in _CLOSED.items():
        ended = [one for one in why.closed or () if one.counts is was_used]
        parts += ["\n".join([f"closed: {reason}", *_client_lines(ended, now_s)])] if ended else []
    if why.connected:
        lines = _client_lines(why.connected, now_s)
        count = why.connections.counting + why.connections.free if why.connections else 0
        more = [f"  and {count - len(lines)} more"] if count > len(lines) else []
        parts.insert(0, "\n".join([f"connected: {one_line(why.awake or '')}", *lines, *more]))
    return "\n".join(parts)


def _render_last(why: d.functions.Why, now_s: float) -> str:
    """Render until when a server function counts as used, and by which exchange; "" if one is open
    or none is known. `now_s` in Unix seconds."""
    if not why.last or why.sleeps_at_s is None:
        return ""
    until = datetime.fromtimestamp(why.sleeps_at_s).astimezone().strftime("%H:%M:%S")
    path = one_line(why.last.path)[:VALUE_MAX]
    ended = ago(why.last.since_s, now_s)
    return f"in use until {until}: {_KINDS[why.last.kind]} ({path}) ended {ended}"


def _client_lines(items: Sequence[d.functions.ConnectedClient], now_s: float) -> list[str]:
    rows = [
        (
            ago(item.since_s, now_s),
            item.kind if item.counts else f"{item.kind}, free",
            one_line(item.note or item.key or "no key")[:VALUE_MAX],
            one_line(item.path)[:VALUE_MAX],
        )
        for item in items[:CONNECTED_MAX]
    ]
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(3)]
    return [
        "  " + "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]


def render_errors(items: Sequence[d.functions.FailureRow], now_s: float, most: int) -> str:
    """Render the `most` newest errors, oldest first; "" without any. `now_s` in Unix seconds."""
    lines = []
    for item in reversed(items[:most]):
        times = f" ({item.count} times)" if item.count > 1 else ""
        when = ago(item.at_s, now_s)
        lines.append(f"  {when:<12}  {item.code}{times}: {one_line(item.detail)}")
    return "\n".join(["errors", *lines]) if lines else ""


def render_warm(warmed: d.functions.Warmed) -> str:
    """Render the result of a warm request."""
    if warmed.was_warm:
        return f"{warmed.revision} is warm already"
    return f"{warmed.revision} is warm after {duration(warmed.took_ms)}"


def render_sleep(slept: d.functions.Slept) -> str:
    """Render the result of a sleep request."""
    why = ", ".join(slept.reasons)
    if not slept.asked and not slept.stay:
        return f"{slept.name} has no replica to stop" + (f": {why}" if why else "")
    lines = [f"{slept.name}: {replicas(slept.asked)} asked to stop"]
    if slept.asked and slept.open:
        lines.append("  what they have accepted is answered first")
    if slept.stay:
        verb = "stays" if slept.stay == 1 else "stay"
        lines.append(f"  {replicas(slept.stay)} {verb}{f': {why}' if why else ''}")
    elif why:
        lines.append(f"  {why}")
    return "\n".join(lines)


def render_park(parked: d.functions.Parked) -> str:
    """Render the result of a park request."""
    name, reasons = parked.name, list(parked.reasons)
    if not parked.parked:
        head = f"{name}: no replica is parked"
        reasons = reasons or ["there is none that could be"]
    elif parked.asked:
        head = f"{name}: {replicas(parked.parked)} parked after {duration(parked.took_ms)}"
    else:
        head = f"{name}: {replicas(parked.parked)} parked already"
    if parked.parked and parked.wake_ms:
        head += f"; a call wakes one in about {duration(parked.wake_ms)}"
    if stay := parked.stay:
        reasons.insert(0, f"{replicas(stay)} {'stays' if stay == 1 else 'stay'} awake")
    return "\n".join([head, *(f"  {reason}" for reason in reasons)])


def park_text(park: d.functions.ParkRow | None, now_s: float) -> str:
    """Render the parks of a function: what sleeps, until when, what it keeps, or why nothing is
    parked; "" for a function without the table [park]. `now_s` in Unix seconds."""
    if park is None:
        return ""
    lines = [f"not parked: {off}"] if (off := one_line(park.off)) else []
    for one in park.parked:
        age = ago(one.since_s, now_s).removesuffix(" ago")
        wakes = f", wakes in about {duration(park.wake_ms)}" if park.wake_ms else ""
        lines.append(f"parked: {one.id} sleeps for {age}{wakes}")
        if why := one_line(one.why):
            lines.append(f"  because: {why}")
        lines.append(f"  keeps {_kept(one)}{_until(one.ends_s, now_s)}")
    return "\n".join(lines)


def _kept(parked: d.functions.ParkedRow) -> str:
    """Return what a parked replica keeps: "320.0 MiB of GPU-1f and 20.0 GiB of host memory"."""
    residue, host = mib(parked.residue_mib), mib(parked.host_mib)
    is_one = len(parked.devices) == 1
    where = parked.devices[0] if is_one else f"each of {', '.join(parked.devices)}"
    return f"{residue} of {where} and {host} of host memory"


def _until(at_s: float | None, now_s: float) -> str:
    """Return when a replica is stopped: ", stopped in 23 h"; "" if that is not known."""
    if at_s is None:
        return ""
    left_s = max(0.0, at_s - now_s)
    return f", stopped in {f'{left_s / 3600:.0f} h' if left_s >= 7200 else duration(left_s * 1e3)}"


def kept_text(names: Sequence[str]) -> str:
    """Return which functions keep the devices that another one waits for, and what frees one; ""
    for none."""
    if not names:
        return ""
    remedy = f"fnctl scale {names[0]} --min 0, or more memory or devices"
    return f"kept by {', '.join(names)}: {remedy}"


def render_scale(scaled: d.functions.Scaled) -> str:
    """Render the scaling of a function."""
    text = f"{scaled.name}: min {scaled.min}, max {scaled.max}, idle {number(scaled.idle_s)} s"
    if not scaled.spread:
        text += ", not spread over hosts"
    if scaled.file_hosts != 1:
        text += f", files on {scaled.file_hosts} hosts"
    if scaled.preemptible == (scaled.min > 0):
        text += ", preemptible" if scaled.preemptible else ", not preemptible"
    return text


def render_ended(operation: d.deploys.OperationRow) -> str:
    """Render the end of an operation that is done, as the command that started it does."""
    result = operation.result
    if operation.kind != "rollback":
        return render_summary(result)
    head = f"calls go to {result.revision}, which takes over from {result.from_}"
    return f"{head}\n{fields([('switch', result.switch or '')])}"


def render_summary(result: d.deploys.OperationResult) -> str:
    """Render the summary of a deploy's `result`."""
    revision, profile = result.revision or "", result.profile or None
    if result.created is False:
        if result.changed:
            text = f"same bundle as {revision}, which stays; changed: {', '.join(result.changed)}"
            is_bound = not BOUND.isdisjoint(result.changed)
            return (
                f"{text}\n  running replicas keep their limits until they stop"
                if is_bound
                else text
            )
        if result.batching:
            text = f"same bundle and settings as {revision}, measured again: {result.batching}"
            park = measured_park(profile)
            return f"{text}\n{fields([('park', park)])}" if park else text
        return f"same bundle and settings as {revision}: nothing changed"
    head = f"{revision} deployed"
    if files := _files(result):
        head += f" ({files})"
    sample = result.sample or {}
    if result.server:
        return f"{head}\n{fields(_server_pairs(result, result.server, profile, sample))}"
    optimised = profile.optimised if profile else None
    pairs = [
        ("sample", first_line(sample) if sample else ""),
        ("load", duration(profile.load_ms) if profile else ""),
        ("memory", f"{number(profile.memory_mib)} MiB" if profile else ""),
        ("batching", result.batching or ""),
        ("media", result.media or ""),
        ("precision", precision_summary(optimised.table) if optimised else ""),
        ("prepared", prepared(profile)),
        ("compiled", result.compiled or ""),
        *_end_pairs(result, profile),
    ]
    return f"{head}\n{fields(pairs)}"


def _end_pairs(result: d.deploys.OperationResult, profile: Profile | None) -> list[tuple[str, str]]:
    return [
        ("note", profile.note if profile else ""),
        ("neighbours", result.neighbours or ""),
        ("room", result.made_room or ""),
        ("switch", result.switch or ""),
    ]


def _files(result: d.deploys.OperationResult) -> str:
    """Return what was deployed: the image, or the number of files and their bytes; "" in results of
    earlier releases."""
    if result.server and result.server.image:
        return result.server.image.reference
    if result.files is UNSET:
        return ""
    return f"{result.files} file{'s' if result.files != 1 else ''}, {size(result.size or 0)}"


def _server_pairs(
    result: d.deploys.OperationResult,
    server: d.deploys.DeployedServer,
    profile: Profile | None,
    sample: Mapping[str, Any],
) -> list[tuple[str, str]]:
    ready = server.ready or "/, any status below 500"
    is_guarded = (server.host, server.found_host) == ("auto", "loopback")
    calls, image = result.interface, server.image or None
    start = duration(profile.load_ms if profile else 0)
    return [
        ("takes", one_line(calls.predict) if calls else ""),
        ("schema", f"no: {one_line(calls.no_schema)}" if calls and calls.no_schema else ""),
        *(("sample", exchanged(one)) for one in sample.get("requests") or []),
        ("golden", golden(profile)),
        ("park", measured_park(profile)),
        ("start", f"ready after {start} ({ready})"),
        ("memory", f"{number(profile.memory_mib if profile else 0)} MiB"),
        ("image", (image.digest or image.id) if image else ""),
        ("hidden", ", ".join(server.hidden) + HIDDEN if server.hidden else ""),
        ("network", EGRESS if server.network == "egress" else ""),
        ("host", LOOPBACK_HOST if is_guarded else ""),
        ("held", f"calls wait up to {number(server.wait_s)} s for a start"),
        *_end_pairs(result, profile),
    ]


def golden(profile: Profile | None) -> str:
    """Render the golden sample that a trial has learnt, or why it has learnt none; "" where none
    was wanted."""
    if profile is None:
        return ""
    if profile.golden is None:
        why = profile.why_not_golden
        return f"no golden sample: {one_line(why)}" if why else ""
    sample = profile.golden.sample
    took = duration(sample.usual_ms)
    return f"{sample.request.method} {sample.request.path} in {took}, compared by {sample.rule}"


def measured_park(profile: Profile | None) -> str:
    """Render what a trial's park has shown, or why replicas are not parked; "" where no park was
    wanted."""
    found = profile.park if profile else None
    if found is None:
        return ""
    if not found.works:
        return f"not parked: {one_line(found.reason)}"
    sleep, wake = duration(1e3 * found.sleep_s), duration(1e3 * found.wake_s)
    kept, host = mib(found.residue_mib), mib(found.host_mib)
    return (
        f"asleep in {sleep}, wakes in {wake}, keeps {kept} of each GPU, takes {host} of host memory"
    )


def exchanged(request: Mapping[str, Any]) -> str:
    """Render a sample request of a server with its answer: "GET /up 200 in 3 ms: ok". It is what
    the replica of a trial has reported, which nobody has checked."""
    method, path, status, said = (
        str(request.get(key, "")) for key in ("method", "path", "status", "body")
    )
    head, body = f"{method} {path} {status}", one_line(said)
    took = duration(float(request.get("ms") or 0))
    shown = body if len(body) <= VALUE_MAX else body[: VALUE_MAX - 1] + "…"
    return f"{head} in {took}: {shown}" if shown else f"{head} in {took}"


def prepared(profile: Profile | None) -> str:
    """Render the speed-up by the prepared model, or the reason for having none; "" if the trial did
    not try to prepare one."""
    if profile is None:
        return ""
    if profile.prepared is None:
        return f"no: {profile.why_not_prepared}" if profile.why_not_prepared else ""
    quick, original, fast = (
        profile.prepared.quick,
        profile.prepared.original,
        profile.prepared.fast,
    )
    text = f"first answer after {_start(quick)} instead of {_start(original)}"
    if fast is None:
        return text
    shares = [fast.cpu_ms[rows] / ms for rows, ms in quick.cpu_ms.items() if ms]
    saved = 1 - sum(shares) / len(shares) if shares else 0.0
    return f"{text}; then a session built beside it takes {saved:.0%} less CPU time"


def _start(times: SessionTimes) -> str:
    return duration(times.load_ms + times.first_ms)


def example(collected: Collected, calls: d.deploys.PythonCalls | None = None) -> str:
    """Return the command that calls the function with its sample, or shows the function. `calls` is
    how a Python function is called."""
    if calls and not collected.sample:
        words = ["fnctl", "invoke", collected.name]
        for name, one in _inputs(calls).items():
            words += ["-i", f"{name}={one if isinstance(one, str) else json.dumps(one)}"]
        line = command(*words)
        return line if len(line) <= LINE_MAX else command("fnctl", "show", collected.name)
    if collected.is_server:
        return command("fnctl", "invoke", collected.name)
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


def python_curl(collected: Collected, url: str, calls: d.deploys.PythonCalls) -> str:
    """Return a curl command that calls a Python function, as `calls` says: with its sample, or with
    inputs that its schema allows; "" if it does not fit on a line."""
    sample = {
        name: f"@{Path(collected.root, one[1:])}" if is_file_name(one) else one
        for name, one in collected.sample.items()
    }
    is_stream, inputs = calls.form.endswith("generator"), sample or _inputs(calls)
    line = call_line(f"{url.rstrip('/')}/fn/{collected.name}", inputs, is_stream=is_stream)
    return line if len(line) <= LINE_MAX else ""


def _inputs(calls: d.deploys.PythonCalls) -> dict[str, Any]:
    """Return inputs that the schema, or the signature, of a Python function allows."""
    return example_inputs({"schema": calls.schema, "signature": to_builtins(calls.signature)})


def is_file_name(value: object) -> bool:
    """Return whether an input of a sample is a file of the bundle."""
    return isinstance(value, str) and value.startswith("@")


def curl(collected: Collected, url: str) -> str:
    """Return the same call with curl; "" without a sample that fits on a line."""
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


def replicas(count: int) -> str:
    """Return "1 replica", "2 replicas"."""
    return f"{count} replica{'' if count == 1 else 's'}"
