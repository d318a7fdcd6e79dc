"""Rendering of functions, operations and deploys as text. Pure."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from admin.cli.answers import first_line
from admin.cli.precision import summary as precision_summary
from admin.text import (
    ago,
    bar,
    command,
    duration,
    fields,
    get,
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


def render_why(answer: dict[str, Any], now_s: float) -> str:
    """Render a function's state and reason, who is connected, and its latest decisions, errors and
    cold starts, each list in order of time.

    `now_s` in Unix seconds.
    """
    blocked, batching = get(answer, "blocked"), get(answer, "batching")
    head = (
        f"{get(answer, 'state').replace('_', ' ')}: {get(answer, 'reason')}{_left(answer)}",
        f"blocked: {blocked}" if blocked != get(answer, "reason") and blocked else "",
        kept_text(answer),
        _render_operation(answer.get("operation") or {}, now_s),
        f"batching: {batching}" if batching else "",
        park_text(answer.get("park"), now_s),
        _render_last(answer, now_s),
    )
    parts = ["\n".join(line for line in head if line)]
    if connected := render_connected(answer, now_s):
        parts.append(connected)
    decisions = sorted(answer.get("decisions") or [], key=_at_s)[-DECISIONS_MAX:]
    if decisions:
        lines = [f"  {ago(_at_s(each), now_s):<12}  {get(each, 'text')}" for each in decisions]
        parts.append("\n".join(["decisions", *lines]))
    if errors := render_errors(answer.get("errors") or [], now_s, ERRORS_MAX):
        parts.append(errors)
    cold_starts = sorted(answer.get("cold_starts") or [], key=_at_s)[-COLD_STARTS_MAX:]
    if cold_starts:
        shown = [waterfall(each, now_s) for each in cold_starts]
        parts.append("\n".join(["cold starts", *shown]))
    return "\n\n".join(parts)


def _left(answer: dict[str, Any]) -> str:
    """Return the phase of a wake and what is left of it: ", verify, about 0.4 s left"; "" for
    anything else."""
    phase, left_ms = get(answer, "phase"), answer.get("ready_in_ms")
    if phase not in WAKE_PHASES:
        return ""
    return f", {phase}" + (f", about {duration(float(left_ms))} left" if left_ms else "")


def _render_operation(operation: dict[str, Any], now_s: float) -> str:
    """Render the operation of a function: "operation 5f3c9a1b: deploy, verify, started 2 min ago";
    "" for none."""
    if not operation:
        return ""
    state = get(operation, "state")
    # What the phase waits for stands in the function's reason.
    phase = get(operation, "phase").partition(" ")[0] if state == "running" else state
    started = ago(float(operation.get("created_s") or 0), now_s)
    return f"operation {get(operation, 'id')}: {get(operation, 'kind')}, {phase}, started {started}"


def waterfall(cold_start: dict[str, Any], now_s: float) -> str:
    """Render one cold start: a line, then one bar per phase, which starts where the last ended."""
    phases = {
        name: float(ms) for name, ms in (cold_start.get("phases") or {}).items() if float(ms) > 0
    }
    whole_ms = sum(phases.values()) or 1.0
    head = [
        ago(_at_s(cold_start), now_s),
        duration(float(cold_start.get("total_ms") or 0)),
        f"on {place_of(cold_start)}",
        f"revision {get(cold_start, 'number')}",
        get(cold_start, "outcome"),
        *(["compiled"] if get(cold_start, "session") == "compiled" else []),
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


def render_connected(answer: dict[str, Any], now_s: float) -> str:
    """Render who is connected to a server function, and whose WebSockets were closed when it went
    to sleep or a replica stopped; "" for nobody. `now_s` in Unix seconds."""
    items, numbers = answer.get("connected") or [], answer.get("connections") or {}
    closed, parts = answer.get("closed") or [], []
    for reason, was_used in _CLOSED.items():
        ended = [one for one in closed if bool(one.get("counts")) is was_used]
        parts += ["\n".join([f"closed: {reason}", *_client_lines(ended, now_s)])] if ended else []
    if items:
        lines = _client_lines(items, now_s)
        count = sum(int(numbers.get(one) or 0) for one in ("counting", "free"))
        more = [f"  and {count - len(lines)} more"] if count > len(lines) else []
        parts.insert(0, "\n".join([f"connected: {one_line(get(answer, 'awake'))}", *lines, *more]))
    return "\n".join(parts)


def _render_last(answer: dict[str, Any], now_s: float) -> str:
    """Render until when a server function counts as used, and by which exchange; "" if one is open
    or none is known. `now_s` in Unix seconds."""
    last, sleeps_at_s = answer.get("last"), answer.get("sleeps_at_s")
    if not last or sleeps_at_s is None:
        return ""
    until = datetime.fromtimestamp(float(sleeps_at_s)).astimezone().strftime("%H:%M:%S")
    what = _KINDS.get(get(last, "kind"), "an exchange")
    path = one_line(get(last, "path"))[:VALUE_MAX]
    ended = ago(float(last.get("since_s") or 0), now_s)
    return f"in use until {until}: {what} ({path}) ended {ended}"


def _client_lines(items: list[dict[str, Any]], now_s: float) -> list[str]:
    rows = [
        (
            ago(float(item.get("since_s") or 0), now_s),
            get(item, "kind") if item.get("counts") else f"{get(item, 'kind')}, free",
            one_line(get(item, "note") or get(item, "key") or "no key")[:VALUE_MAX],
            one_line(get(item, "path"))[:VALUE_MAX],
        )
        for item in items[:CONNECTED_MAX]
    ]
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(3)]
    return [
        "  " + "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]


def render_errors(items: list[dict[str, Any]], now_s: float, most: int) -> str:
    """Render the `most` newest errors, oldest first; "" without any. `now_s` in Unix seconds."""
    lines = []
    for item in reversed(items[:most]):
        count = int(item.get("count") or 1)
        times = f" ({count} times)" if count > 1 else ""
        when = ago(float(item.get("at_s") or 0), now_s)
        detail = one_line(get(item, "detail"))
        lines.append(f"  {when:<12}  {get(item, 'code')}{times}: {detail}")
    return "\n".join(["errors", *lines]) if lines else ""


def render_warm(answer: dict[str, Any]) -> str:
    """Render the result of a warm request."""
    revision = get(answer, "revision")
    if answer.get("was_warm"):
        return f"{revision} is warm already"
    return f"{revision} is warm after {duration(float(answer.get('took_ms') or 0))}"


def render_sleep(answer: dict[str, Any]) -> str:
    """Render the result of a sleep request."""
    name, asked, stay = get(answer, "name"), int(answer["asked"]), int(answer["stay"])
    why = ", ".join(answer.get("reasons") or [])
    if not asked and not stay:
        return f"{name} has no replica to stop" + (f": {why}" if why else "")
    lines = [f"{name}: {_replicas(asked)} asked to stop"]
    if asked and answer.get("open"):
        lines.append("  what they have accepted is answered first")
    if stay:
        verb = "stays" if stay == 1 else "stay"
        lines.append(f"  {_replicas(stay)} {verb}{f': {why}' if why else ''}")
    elif why:
        lines.append(f"  {why}")
    return "\n".join(lines)


def render_park(answer: dict[str, Any]) -> str:
    """Render the result of a park request."""
    name, asked, parked = get(answer, "name"), int(answer["asked"]), int(answer["parked"])
    reasons = [str(reason) for reason in answer.get("reasons") or []]
    took = duration(float(answer.get("took_ms") or 0))
    if not parked:
        head = f"{name}: no replica is parked"
        reasons = reasons or ["there is none that could be"]
    elif asked:
        head = f"{name}: {_replicas(parked)} parked after {took}"
    else:
        head = f"{name}: {_replicas(parked)} parked already"
    if parked and answer.get("wake_ms"):
        head += f"; a call wakes one in about {duration(float(answer['wake_ms']))}"
    if stay := int(answer.get("stay") or 0):
        reasons.insert(0, f"{_replicas(stay)} {'stays' if stay == 1 else 'stay'} awake")
    return "\n".join([head, *(f"  {reason}" for reason in reasons)])


def park_text(park: dict[str, Any] | None, now_s: float) -> str:
    """Render the parks of a function: what sleeps, until when, what it keeps, or why nothing is
    parked; "" for a function without the table [park]. `now_s` in Unix seconds."""
    if not park:
        return ""
    lines = [f"not parked: {off}"] if (off := one_line(get(park, "off"))) else []
    wake_ms = park.get("wake_ms")
    for one in park.get("parked") or []:
        age = ago(float(one.get("since_s") or 0), now_s).removesuffix(" ago")
        wakes = f", wakes in about {duration(float(wake_ms))}" if wake_ms else ""
        lines.append(f"parked: {get(one, 'id')} sleeps for {age}{wakes}")
        if why := one_line(get(one, "why")):
            lines.append(f"  because: {why}")
        lines.append(f"  keeps {_kept(one)}{_until(one.get('ends_s'), now_s)}")
    return "\n".join(lines)


def _kept(parked: dict[str, Any]) -> str:
    """Return what a parked replica keeps: "320.0 MiB of GPU-1f and 20.0 GiB of host memory"."""
    residue, host = (
        size(round(float(parked.get(f"{what}_mib") or 0) * 2**20)) for what in ("residue", "host")
    )
    devices = [str(device) for device in parked.get("devices") or []]
    where = devices[0] if len(devices) == 1 else f"each of {', '.join(devices)}"
    return f"{residue} of {where} and {host} of host memory"


def _until(at_s: float | None, now_s: float) -> str:
    """Return when a replica is stopped: ", stopped in 23 h"; "" if that is not known."""
    if at_s is None:
        return ""
    left_s = max(0.0, at_s - now_s)
    return f", stopped in {f'{left_s / 3600:.0f} h' if left_s >= 7200 else duration(left_s * 1e3)}"


def kept_text(answer: dict[str, Any]) -> str:
    """Return which functions keep the devices that another one waits for, and what frees one; ""
    for none."""
    names = [str(name) for name in answer.get("kept_by") or []]
    if not names:
        return ""
    remedy = f"fnctl scale {names[0]} --min 0, or more memory or devices"
    return f"kept by {', '.join(names)}: {remedy}"


def render_scale(answer: dict[str, Any]) -> str:
    """Render the scaling of a function."""
    idle = number(float(answer.get("idle_s") or 0))
    least, most = get(answer, "min"), get(answer, "max")
    text = f"{get(answer, 'name')}: min {least}, max {most}, idle {idle} s"
    if not answer.get("spread", True):
        text += ", not spread over hosts"
    if (count := answer.get("file_hosts", 1)) != 1:
        text += f", files on {count} hosts"
    return text


def render_rollback(result: dict[str, Any]) -> str:
    """Render the result of a rollback."""
    head = f"calls go to {get(result, 'revision')}, which takes over from {get(result, 'from')}"
    return f"{head}\n{fields([('switch', get(result, 'switch'))])}"


def render_ended(operation: dict[str, Any]) -> str:
    """Render the end of an operation that is done, as the command that started it does."""
    result = operation.get("result") or {}
    return (
        render_rollback(result) if get(operation, "kind") == "rollback" else render_summary(result)
    )


def render_summary(result: dict[str, Any]) -> str:
    """Render the summary of a deploy's `result`."""
    revision = get(result, "revision")
    if not result.get("created", True):
        changed = ", ".join(result.get("changed") or [])
        if changed:
            text = f"same bundle as {revision}, which stays; changed: {changed}"
            is_bound = not BOUND.isdisjoint(result.get("changed") or [])
            return (
                f"{text}\n  running replicas keep their limits until they stop"
                if is_bound
                else text
            )
        if batching := get(result, "batching"):
            text = f"same bundle and settings as {revision}, measured again: {batching}"
            park = measured_park(result.get("profile") or {})
            return f"{text}\n{fields([('park', park)])}" if park else text
        return f"same bundle and settings as {revision}: nothing changed"
    profile = result.get("profile") or {}
    sample = result.get("sample") or {}
    head = f"{revision} deployed"
    if files := _files(result):
        head += f" ({files})"
    if result.get("server"):
        return f"{head}\n{fields(_server_pairs(result, profile, sample))}"
    pairs = [
        ("sample", first_line(sample) if sample else ""),
        ("load", duration(float(profile["load_ms"])) if "load_ms" in profile else ""),
        ("memory", f"{number(float(profile['memory_mib']))} MiB" if profile else ""),
        ("batching", get(result, "batching")),
        ("media", get(result, "media")),
        ("precision", precision_summary((profile.get("optimised") or {}).get("table"))),
        ("prepared", prepared(profile)),
        ("compiled", get(result, "compiled")),
        ("note", get(profile, "note")),
        ("neighbours", get(result, "neighbours")),
        ("room", get(result, "made_room")),
        ("switch", get(result, "switch")),
    ]
    return f"{head}\n{fields(pairs)}"


def _files(result: dict[str, Any]) -> str:
    """Return what was deployed: the image, or the number of files and their bytes; "" in results of
    earlier releases."""
    if image := (result.get("server") or {}).get("image"):
        return get(image, "reference")
    if "files" not in result:
        return ""
    count = int(result["files"])
    return f"{count} file{'s' if count != 1 else ''}, {size(int(result.get('size') or 0))}"


def _server_pairs(
    result: dict[str, Any], profile: dict[str, Any], sample: dict[str, Any]
) -> list[tuple[str, str]]:
    server = result.get("server") or {}
    ready = get(server, "ready") or "/, any status below 500"
    is_egress = server.get("network") == "egress"
    is_guarded = get(server, "host") == "auto" and get(server, "found_host") == "loopback"
    calls = result.get("interface") or {}
    return [
        ("takes", one_line(get(calls, "predict"))),
        ("schema", f"no: {one_line(why)}" if (why := get(calls, "no_schema")) else ""),
        *(("sample", exchanged(one)) for one in sample.get("requests") or []),
        ("golden", golden(profile)),
        ("park", measured_park(profile)),
        ("start", f"ready after {duration(float(profile.get('load_ms') or 0))} ({ready})"),
        ("memory", f"{number(float(profile.get('memory_mib') or 0))} MiB"),
        ("image", get(server.get("image") or {}, "digest") or get(server.get("image") or {}, "id")),
        ("hidden", ", ".join(server.get("hidden") or []) + HIDDEN if server.get("hidden") else ""),
        ("network", EGRESS if is_egress else ""),
        ("host", LOOPBACK_HOST if is_guarded else ""),
        ("held", f"calls wait up to {number(float(server.get('wait_s') or 0))} s for a start"),
        ("note", get(profile, "note")),
        ("neighbours", get(result, "neighbours")),
        ("room", get(result, "made_room")),
        ("switch", get(result, "switch")),
    ]


def golden(profile: dict[str, Any]) -> str:
    """Render the golden sample that a trial has learnt, or why it has learnt none; "" where none
    was wanted."""
    sample = (profile.get("golden") or {}).get("sample")
    if not sample:
        why = get(profile, "why_not_golden")
        return f"no golden sample: {one_line(why)}" if why else ""
    request = sample["request"]
    took = duration(float(sample["usual_ms"]))
    return f"{request['method']} {request['path']} in {took}, compared by {sample['rule']}"


def measured_park(profile: dict[str, Any]) -> str:
    """Render what a trial's park has shown, or why replicas are not parked; "" where no park was
    wanted."""
    found = profile.get("park")
    if not found:
        return ""
    if not found["works"]:
        return f"not parked: {one_line(get(found, 'reason'))}"
    sleep, wake = (duration(1e3 * float(found[f"{call}_s"])) for call in ("sleep", "wake"))
    kept, host = (size(round(float(found[f"{what}_mib"]) * 2**20)) for what in ("residue", "host"))
    return (
        f"asleep in {sleep}, wakes in {wake}, keeps {kept} of each GPU, takes {host} of host memory"
    )


def exchanged(request: dict[str, Any]) -> str:
    """Render a sample request of a server with its answer: "GET /up 200 in 3 ms: ok"."""
    head = f"{get(request, 'method')} {get(request, 'path')} {get(request, 'status')}"
    took = duration(float(request.get("ms") or 0))
    body = one_line(get(request, "body"))
    shown = body if len(body) <= VALUE_MAX else body[: VALUE_MAX - 1] + "…"
    return f"{head} in {took}: {shown}" if shown else f"{head} in {took}"


def prepared(profile: dict[str, Any]) -> str:
    """Render the speed-up by the prepared model, or the reason for having none; "" if the trial did
    not try to prepare one."""
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


def example(collected: Collected, calls: dict[str, Any] | None = None) -> str:
    """Return the command that calls the function with its sample, or shows the function. `calls` is
    how a Python function is called."""
    if calls and not collected.sample:
        pairs = example_inputs(calls).items()
        words = ["fnctl", "invoke", collected.name]
        for name, one in pairs:
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


def python_curl(collected: Collected, url: str, calls: dict[str, Any]) -> str:
    """Return a curl command that calls a Python function, as `calls` says: with its sample, or with
    inputs that its schema allows; "" if it does not fit on a line."""
    sample = {
        name: f"@{Path(collected.root, one[1:])}" if is_file_name(one) else one
        for name, one in collected.sample.items()
    }
    is_stream = get(calls, "form").endswith("generator")
    inputs = sample or example_inputs(calls)
    line = call_line(f"{url.rstrip('/')}/fn/{collected.name}", inputs, is_stream=is_stream)
    return line if len(line) <= LINE_MAX else ""


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


def _replicas(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"


def _at_s(item: dict[str, Any]) -> float:
    return float(item.get("at_s") or 0)


def reserved_users(items: list[dict[str, Any]]) -> list[str]:
    """Return a line for each function whose server may have a reserved user id."""
    found = ((get(item, "name"), get(item, "reserved_user")) for item in items)
    return [f"{name} may run as {user}" for name, user in found if user]
