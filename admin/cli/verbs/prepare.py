"""fnctl prepare."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from admin.cli.errors import REFUSED
from admin.cli.options import Session, connected
from admin.cli.verbs.show import Name
from admin.text import get

POLL_S: Final = 0.5
REMARK_S: Final = 10.0
"""Seconds between two remarks of a build whose state does not change."""
GOING: Final = ("waiting", "building")

NowOption = Annotated[
    bool,
    typer.Option("--now", help="Compile this model next, and wait for a device if none is free."),
]
Wait = Annotated[
    int,
    typer.Option("--wait", min=0, max=86_400, metavar="SECONDS", help="Max time to follow it."),
]


@connected
def prepare(session: Session, name: Name, now: NowOption = False, wait: Wait = 7200) -> None:
    """Compile a function's model, and follow the build until it ends.

    The function answers calls meanwhile. A build runs on a device that nobody needs, and is given
    up when a call needs the device; after three times it waits for this command. It also repeats a
    build that failed. --wait 0 returns at once. The exit code is 1 if there is no compiled model in
    the end.

    \b
    Examples:
      fnctl prepare resnet
      fnctl prepare resnet --now
    """
    from admin.cli.build_lines import build_line

    answer = session.client.prepare(name, now=now)

    def look() -> dict[str, Any]:
        return session.client.function(name).get("build") or {}

    build = follow(answer.get("build") or {}, look, session.remark, wait)
    session.answer({**answer, "build": build}, lambda: f"{name}: {build_line(build)}")
    session.next(f"fnctl show {name}")
    if wait and build.get("state") != "done":
        raise typer.Exit(REFUSED)


def follow(
    build: dict[str, Any],
    look: Callable[[], dict[str, Any]],
    remark: Callable[[str], None],
    wait_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Return the build once it has ended, or after `wait_s`; `remark` gets its progress. `look`
    returns its present state."""
    from admin.cli.build_lines import build_line

    end_s, shown, shown_s = clock() + wait_s, "", 0.0
    while get(build, "state") in GOING and clock() < end_s:
        state = f"{get(build, 'state')} {get(build, 'reason')} {get(build, 'attempts')}"
        if state != shown or clock() - shown_s >= REMARK_S:
            remark(f"  {build_line(build)}")
            shown, shown_s = state, clock()
        pause(POLL_S)
        build = look()
    return build
