"""fnctl deploy."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admin.cli.options import Session, connected

if TYPE_CHECKING:
    from admin.cli.bundle_files import Collected

OFF = "off"
ALWAYS = "always"
ROWS_MAX = 65_536


class Device(StrEnum):
    """Devices that a replica can require."""

    CPU = "cpu"
    CUDA = "cuda"
    ANY = "any"


PathGiven = Annotated[
    Path, typer.Argument(metavar="PATH", help="A model.onnx, or a folder with function.toml.")
]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The function's name (default: from function.toml or the file name)."
    ),
]
Min = Annotated[int | None, typer.Option(min=0, metavar="N", help="Minimum number of replicas.")]
Max = Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of replicas.")]
Idle = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="Idle time before a replica is stopped."),
]
Memory = Annotated[
    int | None, typer.Option(min=0, metavar="MIB", help="Memory cap of a replica; 0 for none.")
]
DeviceGiven = Annotated[Device | None, typer.Option(help="Device that replicas run on.")]
Batch = Annotated[
    str | None,
    typer.Option(
        metavar="N|off|always", help="Max rows of one batch; always: batch without a proof."
    ),
]
Timeout = Annotated[
    float | None, typer.Option(min=0, metavar="SECONDS", help="Time limit of one request's run.")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Allow handler.py: it runs with the server's rights, unless the driver is docker.",
    ),
]
Breaking = Annotated[
    bool, typer.Option("--breaking", help="Allow changes that break the current callers.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return once the files are uploaded.")]


@connected
def deploy(  # noqa: PLR0913 - typer takes one parameter per option
    session: Session,
    path: PathGiven,
    name: Name = None,
    min: Min = None,
    max: Max = None,
    idle: Idle = None,
    memory: Memory = None,
    device: DeviceGiven = None,
    batch: Batch = None,
    timeout: Timeout = None,
    trust: Trust = False,
    breaking: Breaking = False,
    no_wait: NoWait = False,
) -> None:
    """Deploy a model as a function.

    The server loads it in a trial replica, runs its sample and measures it; then calls go to it. A
    warm function stays warm: the new revision is ready before calls go to it, if both fit on the
    device. A failed deploy changes nothing.

    \b
    Examples:
      fnctl deploy model.onnx --name digits
      fnctl deploy functions/digits --max 2 --idle 60
    """
    from admin.cli.bundle_files import collect

    overrides = given(
        min=min,
        max=max,
        idle_s=idle,
        memory_mib=memory,
        device=device and device.value,
        batch_max=batch_max(batch),
        batching=batch if batch == ALWAYS else None,
        timeout_s=timeout,
    )
    collected = collect(path, name)
    _deploy(session, collected, collected.request(trust, breaking, overrides), no_wait)


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def batch_max(text: str | None) -> int | None:
    """Parse --batch as rows: "off" is 1, "always" is None. Raises typer.BadParameter."""
    if text in (None, ALWAYS, OFF):
        return 1 if text == OFF else None
    assert text is not None
    if not text.isdecimal() or not 1 <= int(text[:9]) <= ROWS_MAX:
        raise typer.BadParameter(
            f"expected a number from 1 to {ROWS_MAX}, {OFF} or {ALWAYS}, got {text!r}",
            param_hint="--batch",
        )
    return int(text)


def _deploy(
    session: Session,
    collected: Collected,
    request: dict[str, Any],
    no_wait: bool,
) -> None:
    from admin.cli.operations import bar, finish, upload
    from admin.cli.render import example, render_summary
    from admin.client.client import ApiError
    from admin.text import size

    client = session.client
    count, sent = upload(client, collected, partial(bar, quiet=session.as_json))
    session.remark(f"{count} of {len(collected.bundle.files)} files uploaded, {size(sent)}")
    try:
        operation = client.create_revision(collected.name, request)
    except ApiError as error:
        if collected.is_derived and error.code == "conflict":
            error.add_note(f"fnctl deploy {collected.path} --name {collected.name}")
        raise
    if no_wait:
        session.answer(operation, lambda: f"operation {operation['id']} is running")
        session.next(f"fnctl show {collected.name}")
        return
    ended = finish(session, operation)
    session.answer(ended, lambda: render_summary(ended.get("result") or {}, collected))
    session.next(example(collected))
    if line := _curl(session, collected, ended.get("result") or {}):
        session.remark(f"  or: {line}")


def _curl(session: Session, collected: Collected, result: dict[str, Any]) -> str:
    """Return a curl command that works; "" if there is none or curl cannot reach the server."""
    from admin.cli.render import curl
    from admin.client.client import ApiError

    client, call = session.client, ""
    is_tried = bool((result.get("profile") or {}).get("profiled"))
    if session.as_json or not client.is_direct or not (collected.sample or is_tried):
        return ""
    try:
        call = curl(collected, client.url)
        if not collected.sample:
            shown = str(client.function(collected.name).get("example", ""))
            # Examples of other kinds have a placeholder.
            call = shown if " -d '" in shown and '"<' not in shown else ""
    except ApiError:
        return ""
    key = "" if client.is_open_to_all(collected.name) else ' -H "Authorization: Bearer $FN_KEY"'
    return f"{call}{key}" if call else ""
