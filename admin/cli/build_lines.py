"""Rendering of the build of a compiled model. Pure."""

from __future__ import annotations

from typing import Any, Final

from admin.text import NONE, duration, get, number

ATTEMPTS: Final = 3
FORMS: Final = {
    "context": "the whole graph is compiled",
    "cache": "parts of the graph are compiled",
}


def build_line(build: dict[str, Any]) -> str:
    """Render the state of a build; "" for a function that is not compiled."""
    state, reason = get(build, "state"), get(build, "reason")
    if not state:
        return ""
    if state == "building":
        return f"building: {_elapsed(build)}, attempt {get(build, 'attempts')} of {ATTEMPTS}"
    if state == "done":
        return _done(build)
    if state == "given_up":
        return f"given up {ATTEMPTS} times: {reason}; fnctl prepare NAME --now tries again"
    text = {
        "unavailable": "no",
        "failed": "failed",
        "waiting": "waiting",
    }.get(state, state)
    attempts = int(build.get("attempts") or 0) if state == "waiting" else 0
    tried = f" ({attempts} of {ATTEMPTS} attempts)" if attempts else ""
    return f"{text}{tried}: {reason or 'a build begins when a device is free'}"


def compiled_facts(builds: list[dict[str, Any]], name: str) -> list[tuple[str, str]]:
    """Return the facts about the builds of a function, one for each type of device."""
    facts = []
    for build in builds:
        place = f"{device_name(build)}: " if len(builds) > 1 else ""
        for label, text in (
            ("compiled", build_line(build).replace("NAME", name)),
            ("parity", parity(build)),
        ):
            facts.append((label, place + text if text else ""))
    if builds:
        facts.insert(1, ("shapes", shapes(builds[0])))
    return facts


def device_name(build: dict[str, Any]) -> str:
    """Return the type of device of a build: its host and model."""
    return f"{get(build, 'host')} {get(build, 'device_model') or get(build, 'device_type')}".strip()


def build_cell(build: dict[str, Any] | None, now_s: float) -> str:
    """Render the state of a build in a list; `now_s` in Unix seconds, 0.0 if unknown."""
    if not build:
        return NONE
    state = get(build, "state")
    if state == "building" and now_s:
        elapsed_s = max(0.0, now_s - float(build.get("began_s") or now_s))
        return f"building {_seconds(elapsed_s)}"
    return {"done": "yes", "given_up": "given up", "unavailable": "no"}.get(state, state)


def shapes(build: dict[str, Any]) -> str:
    """Render the shapes that a model is compiled for, and what happens to others."""
    found = [
        f"{get(one, 'input')} {_sizes(one['smallest'])} to {_sizes(one['largest'])}"
        for one in build.get("ranges") or []
    ]
    if not found:
        return ""
    outside = {
        "ordinary": "others run uncompiled",
        "refuse": "others are refused",
    }.get(get(build, "outside"), "")
    return "; ".join([", ".join(found), outside])


def parity(build: dict[str, Any]) -> str:
    """Render the worst agreement of the compiled with the ordinary model; "" if unknown, or if it
    is the reason of a failure."""
    found = build.get("parity") or []
    if not found or get(build, "state") == "failed":
        return ""
    worst = max(found, key=lambda one: float(one["relative_difference"]))
    return (
        f"largest relative difference {worst['relative_difference']:.2g} (output"
        f" {get(worst, 'output')}), cosine {worst['cosine']:.6f}, over"
        f" {get(build, 'samples')} samples"
    )


def _done(build: dict[str, Any]) -> str:
    parts = [
        f"by {get(build, 'compiler')} for {get(build, 'device_type')}",
        FORMS.get(get(build, "form"), ""),
        f"built in {_seconds(build.get('elapsed_s'))}",
        _faster(build),
    ]
    text = ", ".join(part for part in parts if part)
    reason = get(build, "reason")
    return f"{text}; {reason}" if reason else text


def _faster(build: dict[str, Any]) -> str:
    """Return the times of a run of as many rows as both were measured with."""
    before, after = build.get("ordinary_ms") or {}, build.get("compiled_ms") or {}
    rows = max((int(one) for one in before if one in after), default=0)
    if not rows:
        return ""
    was, now = float(before[str(rows)]), float(after[str(rows)])
    of = f" for {rows} rows" if rows > 1 else ""
    return f"{duration(now)} instead of {duration(was)}{of}"


def _elapsed(build: dict[str, Any]) -> str:
    elapsed_s, estimate_s = build.get("elapsed_s"), build.get("estimate_s")
    elapsed = _seconds(elapsed_s)
    if not estimate_s:
        return elapsed
    is_late = elapsed_s is not None and elapsed_s > estimate_s
    return f"{elapsed}{', estimated' if is_late else ' of about'} {_seconds(estimate_s)}"


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{number(value)} s" if value < 120 else duration(value * 1e3)


def _sizes(sizes: list[int]) -> str:
    return "x".join(map(str, sizes))
