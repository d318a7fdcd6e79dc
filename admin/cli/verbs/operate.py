"""fnctl rollback, scale, sleep, warm, park, unpark, prepare, rm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from admin import documents as d
from admin.cli.confirming import Yes, check_may_ask, confirm
from admin.cli.errors import REFUSED
from admin.cli.options import Session, connected
from admin.cli.verbs.deploy import FileHosts, Idle, Max, Min, Now, given
from admin.cli.verbs.show import Name
from admin.client import routes

To = Annotated[
    int | None,
    typer.Option("--to", min=1, metavar="N", help="Target revision (default: the previous one)."),
]
Breaking = Annotated[
    bool, typer.Option("--breaking", help="Allow changes that break callers of the current one.")
]
Preemptible = Annotated[
    bool | None,
    typer.Option(
        "--preemptible/--not-preemptible",
        help="Let other users of a cluster take the place of its replicas.",
    ),
]
Spread = Annotated[
    bool | None,
    typer.Option("--spread/--no-spread", help="Whether replicas prefer different hosts."),
]
Wait = Annotated[
    int, typer.Option("--wait", min=1, max=3600, metavar="SECONDS", help="Max time to wait.")
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Stop replicas with calls, too, once these are answered."),
]

POLL_S: Final = 0.5
REMARK_S: Final = 10.0
"""Seconds between two remarks of a build whose state does not change."""
GOING: Final = ("waiting", "building")

NowOption = Annotated[
    bool,
    typer.Option("--now", help="Compile this model next, and wait for a device if none is free."),
]
BuildWait = Annotated[
    int,
    typer.Option(
        "--wait", min=0, max=86_400, metavar="SECONDS", help="Max seconds to follow the build."
    ),
]


@connected
def rollback(
    session: Session, name: Name, to: To = None, breaking: Breaking = False, now: Now = False
) -> None:
    """Move a function's traffic to an earlier revision.

    Without --to, that is the revision that had it before; a repeated rollback goes one further
    back. The revision is warm before calls go to it, if both fit on the device.

    \b
    Examples:
      fnctl rollback digits
      fnctl rollback digits --to 3
    """
    from admin.cli.operations import finish
    from admin.cli.render import render_ended

    wanted = d.requests.RollbackRequest(to, breaking, now)
    session.show(
        finish(session, session.client.submit(routes.ROLL_BACK, name, body=wanted)), render_ended
    )
    session.next(f"fnctl show {name}", f"fnctl invoke {name}")


@connected
def scale(  # noqa: PLR0913 - typer takes one parameter per option
    session: Session,
    name: Name,
    min: Min = None,
    max: Max = None,
    idle: Idle = None,
    spread: Spread = None,
    file_hosts: FileHosts = None,
    preemptible: Preemptible = None,
) -> None:
    """Change how many replicas a function has.

    --idle is the time without a call after which a replica is stopped. The change holds until the
    next one; a deploy sets the scaling of its function.toml.

    \b
    Examples:
      fnctl scale digits --min 1
      fnctl scale digits --max 4 --idle 60
    """
    from admin.cli.render import render_scale
    from admin.client.client import ApiError

    changes = given(
        min=min,
        max=max,
        idle_s=idle,
        spread=spread,
        file_hosts=file_hosts,
        preemptible=preemptible,
    )
    if not changes:
        raise typer.BadParameter(
            "expected at least one of --min, --max, --idle, --spread, --file-hosts, --preemptible"
        )
    try:
        found = session.client.rescale(name, d.requests.ScalingRequest(**changes))
    except ApiError as error:
        if error.code == "precondition_failed":
            error.add_note("another client changed it at the same time: repeat the command")
        raise
    session.show(found, render_scale)
    if not session.as_json:
        session.warn(found.value.warnings)
    session.next(f"fnctl show {name}")


@connected
def sleep(session: Session, name: Name, force: Force = False) -> None:
    """Stop a function's idle replicas now.

    Does not wait for their idle time. Replicas with a call stay, and so do those that min keeps. A
    start that no call waits for ends, too. The next call wakes the function.

    With --force, replicas with calls take no new ones and stop when these are answered. Nothing is
    killed at once: calls have their timeout_s, exchanges and WebSockets of servers drain_s. A call
    that comes meanwhile wakes the function again. Replicas of min stay. A start ends also if calls
    wait for it; they wait for the next one.

    \b
    Examples:
      fnctl sleep digits
      fnctl sleep jupyter --force
    """
    from admin.cli.render import render_sleep

    found = session.client.submit(routes.SLEEP, name, body=d.requests.SleepRequest(force))
    session.show(found, render_sleep, _after_sleep)


def _after_sleep(slept: d.functions.Slept) -> list[str]:
    if slept.stay and slept.min:
        return [f"fnctl scale {slept.name} --min 0"]
    if slept.stay and slept.open:
        return [f"fnctl why {slept.name}", f"fnctl sleep {slept.name} --force"]
    return ["fnctl ls"]


@connected
def warm(session: Session, name: Name, wait: Wait = 60) -> None:
    """Start a replica of a function and wait until it is ready.

    It is stopped after the function's idle time without a call; fnctl scale NAME --min 1 keeps one.
    If it does not become ready, the reason and the last lines of its log are printed.

    \b
    Example:
      fnctl warm digits
    """
    from admin.cli.render import render_warm

    with _explained(name):
        found = session.client.call(routes.WARM, name, wait_s=wait)
    session.show(found, render_warm)
    session.next(f"fnctl invoke {name}", f"fnctl scale {name} --min 1")


@connected
def park(session: Session, name: Name, wait: Wait = 60) -> None:
    """Have a function's idle replicas sleep now.

    Waits until they do. A replica that sleeps gives its GPU memory back and keeps its weights in
    host memory. The next call wakes it, which is faster than a start. Needs the table [park] in
    function.toml, and a deploy whose trial has shown that it works. Replicas with a call stay
    awake, and so do those that min keeps. The exit code is 1 if none sleeps in the end.

    \b
    Example:
      fnctl park qwen
    """
    from admin.cli.render import render_park

    with _explained(name):
        found = session.client.call(routes.PARK, name, wait_s=wait)
    session.show(found, render_park, _after_park)
    if not found.sent.get("parked"):
        raise typer.Exit(REFUSED)


def _after_park(parked: d.functions.Parked) -> list[str]:
    if parked.stay and parked.min:
        return [f"fnctl scale {parked.name} --min 0"]
    unpark = [f"fnctl unpark {parked.name}"] if parked.parked else []
    return [*unpark, f"fnctl why {parked.name}"]


@connected
def unpark(session: Session, name: Name, wait: Wait = 60) -> None:
    """Wake a parked replica of a function.

    Waits until it is ready: once it has answered its golden sample right. One that wakes wrong is
    ended, and another one starts. fnctl warm does the same, and starts a replica where none is
    parked.

    \b
    Example:
      fnctl unpark qwen
    """
    from admin.cli.render import render_warm

    with _explained(name):
        found = session.client.call(routes.UNPARK, name, wait_s=wait)
    session.show(found, render_warm)
    session.next(f"fnctl invoke {name}", f"fnctl park {name}")


@connected
def prepare(session: Session, name: Name, now: NowOption = False, wait: BuildWait = 7200) -> None:
    """Compile a function's model, or measure it again.

    A build is followed until it ends. A model whose function.toml does not ask for a compiled one
    is tried and measured again, with --now also while the machine is busy.

    The function answers calls meanwhile. A build runs on a spare device, and is given up when a
    call needs the device; after three attempts it waits for this command, which also repeats a
    build that failed. --wait 0 returns at once. The exit code is 1 if there is no compiled model in
    the end.

    \b
    Examples:
      fnctl prepare resnet
      fnctl prepare resnet --now
    """
    from admin.cli.build_lines import build_line

    found = session.client.submit(routes.PREPARE, name, body=d.requests.PrepareRequest(now))
    build, sent = found.value.build, found.sent
    if build is None:
        when = "once a device is free" if now else "when the machine is idle"
        session.show(found, lambda _: f"{name} is not compiled; it is measured again {when}")
        session.next(f"fnctl why {name}")
        return

    def get_build() -> d.functions.BuildDetail | None:
        function = session.client.call(routes.FUNCTION, name)
        sent["build"] = function.sent.get("build")
        return function.value.build

    build = follow_build(build, get_build, session.remark, wait)
    session.answer(sent, lambda: f"{name}: {build_line(build)}")
    session.next(f"fnctl show {name}")
    if wait and build.state != "done":
        raise typer.Exit(REFUSED)


@connected
def rm(
    session: Session,
    name: Name,
    yes: Yes = False,
) -> None:
    """Remove a function with all its revisions. Requests in flight finish.

    \b
    Example:
      fnctl rm digits --yes
    """
    if not yes:
        check_may_ask(session)
        session.client.call(routes.FUNCTION, name)  # report an unknown name before asking
        confirm(f"Remove {name} with all its revisions?")
    session.show(session.client.call(routes.REMOVE, name), lambda _: f"{name} is removed")
    session.next("fnctl ls")


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Add to the error of a function that does not become ready, or is not parked, the commands
    that tell why."""
    from admin.client.client import ApiError

    hints = {
        "no_room": f"fnctl why {name}  or  fnctl ls",
        "function_failing": f"fnctl why {name}  or  fnctl logs {name}",
        "conflict": f"fnctl show {name}  or  fnctl why {name}",
    }
    try:
        yield
    except ApiError as error:
        if error.code in hints:
            error.add_note(hints[error.code])
        raise


def follow_build(
    build: d.functions.BuildDetail,
    get_build: Callable[[], d.functions.BuildDetail | None],
    remark: Callable[[str], None],
    wait_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> d.functions.BuildDetail:
    """Return the build once it has ended, or after `wait_s`; `remark` gets its progress.
    `get_build` returns its present state, None once the function is not compiled any more."""
    from admin.cli.build_lines import build_line

    end_s, shown, shown_s = clock() + wait_s, "", 0.0
    while build.state in GOING and clock() < end_s:
        state = f"{build.state} {build.reason} {build.attempts}"
        if state != shown or clock() - shown_s >= REMARK_S:
            remark(f"  {build_line(build)}")
            shown, shown_s = state, clock()
        pause(POLL_S)
        if (latest := get_build()) is None:
            break
        build = latest
    return build
