"""Rendering of the build of a compiled model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from admin import documents as d
from admin.text import NONE, duration, number

ATTEMPTS: Final = 3
FORMS: Final = {
    "context": "the whole graph is compiled",
    "cache": "parts of the graph are compiled",
}


def build_line(build: d.functions.BuildDetail) -> str:
    """Render the state of a build."""
    state, reason = build.state, build.reason
    if state == "building":
        return f"building: {_elapsed(build)}, attempt {build.attempts} of {ATTEMPTS}"
    if state == "done":
        return _done(build)
    if state == "given_up":
        return f"given up {ATTEMPTS} times: {reason}; fnctl prepare NAME --now tries again"
    text = {
        "unavailable": "no",
        "failed": "failed",
        "waiting": "waiting",
    }.get(state, state)
    attempts = build.attempts if state == "waiting" else 0
    tried = f" ({attempts} of {ATTEMPTS} attempts)" if attempts else ""
    return f"{text}{tried}: {reason or 'a build begins when a device is free'}"


def compiled_facts(builds: Sequence[d.functions.BuildDetail], name: str) -> list[tuple[str, str]]:
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


def device_name(build: d.functions.BuildDetail) -> str:
    """Return the type of device of a build: its host and model."""
    return f"{build.host} {build.device_model or build.device_type}".strip()


def build_cell(build: d.functions.BuildRow | None, now_s: float) -> str:
    """Render the state of a build in a list; `now_s` in Unix seconds, 0.0 if unknown."""
    if build is None:
        return NONE
    if build.state == "building" and now_s:
        return f"building {_seconds(max(0.0, now_s - (build.began_s or now_s)))}"
    return {"done": "yes", "given_up": "given up", "unavailable": "no"}.get(
        build.state, build.state
    )


def shapes(build: d.functions.BuildDetail) -> str:
    """Render the shapes that a model is compiled for, and what happens to others."""
    found = [f"{one.input} {_sizes(one.smallest)} to {_sizes(one.largest)}" for one in build.ranges]
    if not found:
        return ""
    outside = {
        "ordinary": "others run uncompiled",
        "refuse": "others are refused",
    }.get(build.outside or "", "")
    return "; ".join([", ".join(found), outside])


def parity(build: d.functions.BuildDetail) -> str:
    """Render the worst agreement of the compiled with the ordinary model; "" if unknown, or if it
    is the reason of a failure."""
    if not build.parity or build.state == "failed":
        return ""
    worst = max(build.parity, key=lambda one: one["relative_difference"])
    return (
        f"largest relative difference {worst['relative_difference']:.2g} (output"
        f" {worst['output']}), cosine {worst['cosine']:.6f}, over {build.samples} samples"
    )


def _done(build: d.functions.BuildDetail) -> str:
    parts = [
        f"by {build.compiler} for {build.device_type}",
        FORMS.get(build.form or "", ""),
        f"built in {_seconds(build.elapsed_s)}",
        _faster(build),
    ]
    text = ", ".join(part for part in parts if part)
    return f"{text}; {build.reason}" if build.reason else text


def _faster(build: d.functions.BuildDetail) -> str:
    """Return the times of a run of as many rows as both were measured with."""
    before, after = build.ordinary_ms, build.compiled_ms
    rows = max((int(one) for one in before if one in after), default=0)
    if not rows:
        return ""
    of = f" for {rows} rows" if rows > 1 else ""
    return f"{duration(after[str(rows)])} instead of {duration(before[str(rows)])}{of}"


def _elapsed(build: d.functions.BuildDetail) -> str:
    elapsed = _seconds(build.elapsed_s)
    if not build.estimate_s:
        return elapsed
    is_late = build.elapsed_s is not None and build.elapsed_s > build.estimate_s
    return f"{elapsed}{', estimated' if is_late else ' of about'} {_seconds(build.estimate_s)}"


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{number(value)} s" if value < 120 else duration(value * 1e3)


def _sizes(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
