"""fnctl host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from admin.cli.completion import host_names
from admin.cli.options import Session, connected
from admin.text import NONE, ago, fields, get, number, size, table

GIB_MIB: Final = 1024
FILES_MAX_GIB: Final = 2**20
KEY_BEGIN: Final = "AAAA"
"""Begin of every public key in base64: the length of the name of its type."""
AWAY: Final = ("unreachable", "gone", "joining")
"""States in which the server cannot command the replicas of a host."""
DRAINS_LATER: Final = "it drains when it is up"
POLL_S: Final = 1.0
"""Seconds between two looks at a host that drains."""

app = typer.Typer(
    help="Add, list, drain and remove machines that run replicas.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Address = Annotated[
    str,
    typer.Argument(metavar="[USER@]HOST[:PORT]", help="How the server's machine logs in by SSH."),
]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The host's name.", autocompletion=host_names)
]
Given = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Its name (default: the machine's first word)."),
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Label of the host; may be repeated."),
]
IdentityFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Private key on the server's machine (default: the keys of the server's user).",
    ),
]
Socket = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Docker's socket there (default /var/run/docker.sock)."),
]
Slots = Annotated[
    int | None,
    typer.Option(min=0, max=256, metavar="N", help="CPU slots; 0, the default, is one per core."),
]
Gpus = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="GPUs: all (default), none, or numbers and UUIDs."),
]
Files = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=FILES_MAX_GIB,
        metavar="N",
        help="Size of its cache of model files in GiB (default 50).",
    ),
]
HostKey = Annotated[
    str | None,
    typer.Option(
        metavar="'TYPE KEY'",
        help="Public key that it must have (default: that of known_hosts).",
    ),
]
Accept = Annotated[
    bool,
    typer.Option("--accept-host-key", help="Pin the key that it shows now, if none is known."),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for its replicas.")]
Unchecked = Annotated[bool, typer.Option("--unchecked", help="Do not log in first.")]


@app.command("add")
@connected
def add(  # noqa: PLR0913 - typer takes one parameter per option
    session: Session,
    address: Address,
    name: Given = None,
    label: Labels = None,
    identity_file: IdentityFile = None,
    docker_socket: Socket = None,
    cpu_slots: Slots = None,
    gpus: Gpus = None,
    files_gib: Files = None,
    host_key: HostKey = None,
    accept_host_key: Accept = False,
    unchecked: Unchecked = False,
) -> None:
    """Add a machine as a host of replicas. It needs Docker and an SSH server, nothing else.

    The server logs in and checks all that a host needs before it is added.

    \b
    Examples:
      fnctl host add nn@gpu2 --label zone=a
      fnctl host add 10.0.0.7 --name gpu3 --accept-host-key
    """
    from admin.client.client import ApiError

    if host_key == "":  # of an empty variable: not the wish that any known key will do
        raise typer.BadParameter("expected --host-key 'TYPE KEY', got ''")
    if host_key and accept_host_key:
        raise typer.BadParameter("expected --host-key or --accept-host-key, got both")
    wanted = {
        "address": address,
        **settings(identity_file, docker_socket, cpu_slots, gpus, files_gib, host_key),
        **({"name": name} if name else {}),
        "labels": given_labels(label or ()),
        "accept_host_key": accept_host_key,
    }
    try:
        answer = session.client.add_host(wanted, unchecked=unchecked)
    except ApiError as error:
        explain(session, error, may_accept=True)
        raise
    session.answer(answer, lambda: render_added(answer))
    session.next(f"fnctl host show {get(answer, 'name')}", "fnctl top")


@app.command("ls")
@connected
def ls(session: Session) -> None:
    """List the hosts; the server's own machine is `local`.

    \b
    Example:
      fnctl host ls
    """
    items = session.client.hosts()
    session.answer({"items": items}, lambda: render(items))
    if len(items) < 2:
        session.next("fnctl host add USER@MACHINE")
    elif ailing := next((get(one, "name") for one in items if _has_problem(one)), ""):
        session.next(f"fnctl doctor --host {ailing}")


@app.command("show")
@connected
def show(session: Session, name: Name) -> None:
    """Show a host: its state, devices, cache and settings.

    \b
    Example:
      fnctl host show gpu2
    """
    answer = session.client.host(name)
    session.answer(answer, lambda: render_host(answer, time.time()))  # noqa: TID251 - shown ages
    if _has_problem(answer):
        session.next(f"fnctl doctor --host {name}")


@app.command("drain")
@connected
def drain(
    session: Session,
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Place replicas there again.")] = False,
) -> None:
    """Place no more replicas on a host; those that run there finish their calls and stop.

    \b
    Examples:
      fnctl host drain gpu2
      fnctl host drain gpu2 --undo
    """
    answer = session.client.change_host(name, {"draining": not undo})
    session.answer(answer, lambda: f"{name} {render_drain(answer, undo=undo)}")
    session.next(f"fnctl host show {name}")


@app.command("label")
@connected
def label(
    session: Session,
    name: Name,
    labels: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE|KEY-", help="A label, or one to remove.")
    ],
) -> None:
    """Change the labels of a host. Functions name those of their host in device.host.

    \b
    Examples:
      fnctl host label gpu2 zone=b disk=nvme
      fnctl host label gpu2 disk-
    """
    given, removed = parse_labels(labels, "KEY=VALUE or KEY-")
    changes = {**given, **dict.fromkeys(removed)}
    answer = session.client.change_host(name, {"labels": changes})
    session.answer(answer, lambda: f"{name}: {labels_of(answer) or 'no labels'}")


@app.command("set")
@connected
def change(  # noqa: PLR0913 - typer takes one parameter per option
    session: Session,
    name: Name,
    address: Annotated[
        str | None, typer.Option(metavar="[USER@]HOST[:PORT]", help="How to log in.")
    ] = None,
    identity_file: IdentityFile = None,
    docker_socket: Socket = None,
    cpu_slots: Slots = None,
    gpus: Gpus = None,
    files_gib: Files = None,
    host_key: HostKey = None,
    unchecked: Unchecked = False,
) -> None:
    """Change the login or the limits of a host.

    '' as --identity-file or --host-key is the default.

    \b
    Examples:
      fnctl host set gpu2 --files-gib 200
      fnctl host set gpu2 --host-key 'ssh-ed25519 AAAA...'
    """
    from admin.client.client import ApiError

    changes = settings(identity_file, docker_socket, cpu_slots, gpus, files_gib, host_key)
    if address:
        changes["address"] = address
    if not changes:
        raise typer.BadParameter("expected at least one option, such as --files-gib")
    try:
        answer = session.client.change_host(name, changes, unchecked=unchecked)
    except ApiError as error:
        explain(session, error, may_accept=False)
        raise
    session.answer(answer, lambda: f"{name} is changed")
    session.next(f"fnctl host show {name}")


@app.command("rm")
@connected
def rm(
    session: Session,
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Forget an unreachable host and its replicas now.")
    ] = False,
    no_wait: NoWait = False,
) -> None:
    """Remove a host. Its replicas finish their calls and stop first.

    \b
    Example:
      fnctl host rm gpu2
    """
    answer = session.client.remove_host(name, force=force)
    shown = -1
    while not answer.get("removed") and not no_wait:
        left = int(answer.get("replicas") or 0)
        if left != shown:
            session.remark(f"waiting for {replicas(left)} of {name}; Ctrl-C leaves it draining")
            shown = left
        time.sleep(POLL_S)
        answer = _removal_state(session, name)
    text = f"{name} is removed" if answer.get("removed") else f"{name} is draining"
    session.answer(answer, lambda: text)
    session.next("fnctl host ls")


def _removal_state(session: Session, name: str) -> dict[str, Any]:
    """Return the state of a removal, in the form of its answer."""
    from admin.client.client import ApiError

    try:
        return {"removed": None, "replicas": session.client.host(name).get("replicas")}
    except ApiError as error:
        if error.code != "unknown":
            raise
        return {"removed": name, "replicas": 0}


def settings(
    identity_file: str | None,
    docker_socket: str | None,
    cpu_slots: int | None,
    gpus: str | None,
    files_gib: int | None,
    host_key: str | None,
) -> dict[str, Any]:
    """Return the given options as settings of a host."""
    found = {
        "identity": identity_file,
        "engine": docker_socket,
        "cpu_slots": cpu_slots,
        "gpus": gpus,
        "files_mib": None if files_gib is None else files_gib * GIB_MIB,
        # A line of known_hosts or of ssh-keyscan, or of a .pub file with its comment.
        "host_key": None if host_key is None else _bare_key(host_key),
    }
    return {key: value for key, value in found.items() if value is not None}


def _bare_key(text: str) -> str:
    words = text.split()
    data = next((at for at, word in enumerate(words) if word.startswith(KEY_BEGIN)), 1)
    return " ".join(words[max(0, data - 1) : data + 1])


def given_labels(items: Sequence[str]) -> dict[str, str]:
    """Return the labels of a new host. Raises typer.BadParameter."""
    found, removed = parse_labels(items, "--label KEY=VALUE")
    if removed:
        raise typer.BadParameter(f"expected --label KEY=VALUE, got '{removed[0]}-'")
    return found


def parse_labels(items: Sequence[str], expected: str) -> tuple[dict[str, str], list[str]]:
    """Return the labels KEY=VALUE, and the keys of KEY-. Raises typer.BadParameter, with what was
    `expected`."""
    found: dict[str, str] = {}
    removed = []
    for item in items:
        key, equals, value = item.partition("=")
        if key.endswith("-") and not equals:
            removed.append(key[:-1])
        elif key and value:
            found[key] = value
        else:
            raise typer.BadParameter(f"expected {expected}, got {item!r}")
    return found, removed


def explain(session: Session, error: Any, *, may_accept: bool) -> None:
    """Print the checks of a refused login, and note the remedy on the error."""
    from admin.cli.doctor.machine import from_json, render

    checks = error.problem.get("checks")
    if isinstance(checks, list) and not session.as_json:
        session.remark(render(from_json(checks)))
    hint = str(error.problem.get("hint") or "")
    if error.problem.get("host_key") and may_accept:
        hint = f"if that is its key, add --accept-host-key to this command; or: {hint}"
    if hint:
        error.add_note(hint)


def _has_problem(host: dict[str, Any]) -> bool:
    """Return whether checks of the host may find its problem: it is another one, and has one."""
    is_away = get(host, "state") in AWAY
    return bool(get(host, "address")) and (is_away or bool(get(host, "reason") or agent_of(host)))


def replicas(count: int) -> str:
    """Return "1 replica", "2 replicas"."""
    return f"{count} replica{'' if count == 1 else 's'}"


def labels_of(host: dict[str, Any]) -> str:
    """Return the operator's labels of a host as text."""
    labels = host.get("labels")
    own = labels.items() if isinstance(labels, dict) else ()
    return " ".join(f"{key}={value}" for key, value in sorted(own) if key != "host")


def agent_of(host: dict[str, Any]) -> str:
    """Return why a host that is up does not report its GPUs and disk; "" if it does, or is away."""
    return get(host, "agent") if get(host, "state") in ("up", "draining") else ""


def devices_of(host: dict[str, Any], wanted: str) -> str:
    """Return the number of devices; if the settings leave out GPUs, how: `wanted` as FN_GPUS."""
    text = f"{get(host, 'cpu_slots')} CPU slots, {get(host, 'gpus')} GPUs"
    return text if wanted in ("", "all") else f"{text} (chosen: {wanted})"


def render_added(answer: dict[str, Any]) -> str:
    """Render a new host with its checks."""
    count = len(answer.get("checks") or ())
    checked = f", {count} checks passed" if count else ", unchecked"
    lines = [f"{get(answer, 'name')} is added ({get(answer, 'address')}{checked})"]
    if key := get(answer, "settings", "host_key"):
        lines.append(f"  its key is pinned: {key}")
    return "\n".join(lines)


def render_drain(host: dict[str, Any], *, undo: bool) -> str:
    """Render what a change of the drain means for a host."""
    if (state := get(host, "state")) in AWAY:
        return f"is {state}; {'it takes replicas when it is up' if undo else DRAINS_LATER}"
    if undo:
        return "takes replicas again"
    count = int(host.get("replicas") or 0)
    return f"is draining, {replicas(count)} left" if count else "is draining"


def render(items: Sequence[dict[str, Any]]) -> str:
    """Render the hosts as a table, with their problems below it."""
    rows = [
        (
            get(item, "name"),
            get(item, "address") or NONE,
            get(item, "state"),
            _ms(item.get("rtt_ms")),
            get(item, "cpu_slots"),
            get(item, "gpus"),
            get(item, "replicas"),
            _mib(item.get("disk_free_mib")),
            labels_of(item) or NONE,
        )
        for item in items
    ]
    notes = [
        f"{get(item, 'name')}: {text}"
        for item in items
        for text in (get(item, "reason"), agent_of(item), get(item, "transfer"))
        if text
    ]
    head = ("NAME", "ADDRESS", "STATE", "RTT", "CPU", "GPUS", "REPLICAS", "FREE", "LABELS")
    return "\n".join([table(head, rows), *notes])


def render_host(host: dict[str, Any], now_s: float) -> str:
    """Render one host; `now_s` in Unix seconds."""
    state, reason = get(host, "state"), get(host, "reason")
    age = ago(float(host["since_s"]), now_s) if host.get("since_s") else ""
    lasts = age.removesuffix(" ago") if age.endswith(" ago") else ""
    settings = host.get("settings") or {}
    cache = f"{get(host, 'cached_files')} files, {_mib(host.get('cached_mib'))}"
    if limit := settings.get("files_mib"):
        cache += f" of {_mib(limit)}"
    offset, free = host.get("clock_offset_s"), host.get("disk_free_mib")
    later = f", {DRAINS_LATER}" if settings.get("draining") and state in AWAY else ""
    pairs = [
        ("name", get(host, "name")),
        ("address", get(host, "address")),
        ("state", (f"{state} for {lasts}" if lasts else state) + later),
        ("reason", reason),
        ("labels", labels_of(host)),
        ("driver", " ".join(filter(None, (get(host, "driver"), get(host, "engine_version"))))),
        ("round trip", _ms(host.get("rtt_ms")) if host.get("rtt_ms") is not None else ""),
        ("devices", devices_of(host, str(settings.get("gpus") or ""))),
        ("replicas", get(host, "replicas")),
        ("agent", agent_of(host)),
        ("disk", f"{_mib(free)} free" if free is not None else ""),
        ("files", cache if settings else ""),
        ("images", get(host, "images") if settings else ""),
        ("sending", get(host, "transfer")),
        ("clock", f"{offset:+.3f} s" if offset is not None and settings else ""),
        ("host key", get(settings, "host_key")),
        ("identity", get(settings, "identity")),
        ("engine", get(settings, "engine")),
    ]
    return fields([pair for pair in pairs if pair[1]])


def _ms(value: Any) -> str:
    return NONE if value is None else f"{number(float(value))} ms"


def _mib(value: Any) -> str:
    return NONE if value is None else size(round(float(value) * 2**20))
