"""fnctl host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from admin import documents as d
from admin.cli.completion import host_names
from admin.cli.kubernetes import options as k
from admin.cli.options import Session, connected
from admin.client import routes
from admin.text import NONE, ago, fields, mib, number, table

if TYPE_CHECKING:
    from admin.client.client import ApiError

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
    typer.Argument(
        metavar="[USER@]HOST[:PORT]|NAME",
        help="How the server's machine logs in by SSH; for a cluster, its name.",
    ),
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
    typer.Option(
        min=0,
        max=256,
        metavar="N",
        help="CPU slots; 0, the default, is one per core. Of each node of a cluster: 0 is none.",
    ),
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
Kubernetes = Annotated[
    bool, typer.Option("--kubernetes", help="Add the cluster that the server runs in, by a name.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for its replicas.")]
Unchecked = Annotated[bool, typer.Option("--unchecked", help="Skip the login and its checks.")]


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
    kubernetes: Kubernetes = False,
    image: k.Image = None,
    cuda_image: k.CudaImage = None,
    node_selector: k.NodeSelector = None,
    cpu_mib: k.CpuMib = None,
    devices: k.DeviceOption = None,
    tolerate: k.Tolerate = None,
    pull_secret: k.PullSecret = None,
    runtime_class: k.RuntimeClass = None,
    resource: k.Resource = None,
    device_class: k.DeviceClass = None,
    unchecked: Unchecked = False,
) -> None:
    """Add a machine as a host of replicas. It needs Docker and an SSH server, nothing else.

    The server logs in and checks all that a host needs before it is added. With --kubernetes, it
    adds the cluster that it runs in: each node is a host NAME/NODE then.

    \b
    Examples:
      fnctl host add nn@gpu2 --label zone=a
      fnctl host add 10.0.0.7 --name gpu3 --accept-host-key
      fnctl host add cluster --kubernetes --image registry.example/fngate-runtime:cpu --cpu-slots 4
    """
    from admin.client.client import ApiError

    if host_key == "":  # an empty variable must not accept any known key
        raise typer.BadParameter("expected --host-key 'TYPE KEY', got ''")
    if host_key and accept_host_key:
        raise typer.BadParameter("expected --host-key or --accept-host-key, got both")
    login = settings(identity_file, docker_socket, cpu_slots, gpus, files_gib, host_key)
    cluster = k.ClusterOptions(
        *(image, cuda_image, node_selector, cpu_mib, devices, tolerate),
        *(pull_secret, runtime_class, resource, device_class),
    ).settings()
    labels = given_labels(label or ())
    try:
        if kubernetes:
            strange = login.keys() - {"cpu_slots"} or name or accept_host_key
            body = _cluster(address, labels, {**login, **cluster}, is_by_ssh=bool(strange))
            found = session.client.submit(routes.ADD_CLUSTER, body=body, unchecked=unchecked)
        else:
            if cluster:
                raise typer.BadParameter("expected --kubernetes with the options of a cluster")
            wanted = d.requests.SshHostRequest(
                address, name or "", labels, accept_host_key=accept_host_key, **login
            )
            found = session.client.submit(routes.ADD_HOST, body=wanted, unchecked=unchecked)
    except ApiError as error:
        explain(session, error, may_accept=True)
        raise
    session.show(found, render_added, lambda host: (f"fnctl host show {host.name}", "fnctl top"))


def _cluster(
    name: str, labels: dict[str, str], given: dict[str, Any], *, is_by_ssh: bool
) -> d.requests.KubernetesHostRequest:
    """Return the request for a cluster. Raises typer.BadParameter."""
    if is_by_ssh:
        raise typer.BadParameter("expected no options of a login with --kubernetes")
    if "image" not in given:
        raise typer.BadParameter("expected --image, the runtime as nodes pull it")
    return d.requests.KubernetesHostRequest(name=name, labels=labels, **given)


@app.command("ls")
@connected
def ls(session: Session) -> None:
    """List the hosts; the server's own machine is `local`.

    \b
    Example:
      fnctl host ls
    """
    session.show(session.client.items(routes.HOSTS), render, _after_list)


def _after_list(items: Sequence[d.hosts.HostRow]) -> list[str]:
    if len(items) < 2:
        return ["fnctl host add USER@MACHINE"]
    return [f"fnctl doctor --host {one.name}" for one in items if _has_problem(one)][:1]


@app.command("show")
@connected
def show(session: Session, name: Name) -> None:
    """Show a host: its state, devices, cache and settings.

    \b
    Example:
      fnctl host show gpu2
    """
    session.show(
        session.client.call(routes.HOST, name),
        lambda host: render_host(host, time.time()),  # noqa: TID251 - shown ages
        lambda host: [f"fnctl doctor --host {name}"] if _has_problem(host) else [],
    )


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
    found = session.client.submit(
        routes.CHANGE_HOST, name, body=d.requests.HostChanges(draining=not undo)
    )
    session.show(found, lambda host: f"{name} {render_drain(host, undo=undo)}")
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
    changes = d.requests.HostChanges(labels={**given, **dict.fromkeys(removed)})
    found = session.client.submit(routes.CHANGE_HOST, name, body=changes)
    session.show(found, lambda host: f"{name}: {labels_of(host) or 'no labels'}")


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
    image: k.Image = None,
    cuda_image: k.CudaImage = None,
    node_selector: k.NodeSelector = None,
    cpu_mib: k.CpuMib = None,
    devices: k.DeviceOption = None,
    tolerate: k.Tolerate = None,
    pull_secret: k.PullSecret = None,
    runtime_class: k.RuntimeClass = None,
    resource: k.Resource = None,
    device_class: k.DeviceClass = None,
    unchecked: Unchecked = False,
) -> None:
    """Change the login or the limits of a host, or how a cluster is used.

    An empty --identity-file or --host-key ('') restores the default, and so does an empty option of
    a cluster that may be repeated.

    \b
    Examples:
      fnctl host set gpu2 --files-gib 200
      fnctl host set gpu2 --host-key 'ssh-ed25519 AAAA...'
      fnctl host set cluster --image registry.example/fngate-runtime:2
    """
    from admin.client.client import ApiError

    changes = settings(identity_file, docker_socket, cpu_slots, gpus, files_gib, host_key)
    changes |= k.ClusterOptions(
        *(image, cuda_image, node_selector, cpu_mib, devices, tolerate),
        *(pull_secret, runtime_class, resource, device_class),
    ).settings()
    if address:
        changes["address"] = address
    if not changes:
        raise typer.BadParameter("expected at least one option, such as --files-gib")
    wanted = d.requests.HostChanges(**changes)
    try:
        found = session.client.submit(routes.CHANGE_HOST, name, body=wanted, unchecked=unchecked)
    except ApiError as error:
        explain(session, error, may_accept=False)
        raise
    session.show(found, lambda _: f"{name} is changed")
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
    from admin.cli.render import replicas
    from admin.client.client import ApiError

    found = session.client.call(routes.REMOVE_HOST, name, force=force)
    sent = found.sent
    if not sent.get("removed") and not no_wait:
        left, shown = found.value.replicas, -1
        while sent.get("removed") is None:
            if left != shown:
                session.remark(f"waiting for {replicas(left)} of {name}; Ctrl-C leaves it draining")
                shown = left
            time.sleep(POLL_S)
            try:
                left = session.client.call(routes.HOST, name).value.replicas
            except ApiError as error:
                if error.code != "unknown":
                    raise
                sent = {"removed": name, "replicas": 0}
    session.answer(sent, lambda: f"{name} is {'removed' if sent.get('removed') else 'draining'}")
    session.next("fnctl host ls")


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
        if key in found:
            raise typer.BadParameter(f"expected each label once, got {key} twice")
        if key.endswith("-") and not equals:
            removed.append(key[:-1])
        elif key and value:
            found[key] = value
        else:
            raise typer.BadParameter(f"expected {expected}, got {item!r}")
    return found, removed


def explain(session: Session, error: ApiError, *, may_accept: bool) -> None:
    """Print the checks of a refused login, and note the remedy on the error."""
    from admin.cli.doctor.machine import render

    if error.problem.checks:
        session.remark(render(error.problem.checks))
    hint = error.problem.hint or ""
    if error.problem.host_key and may_accept:
        hint = f"if that is its key, add --accept-host-key to this command; or: {hint}"
    if hint:
        error.add_note(hint)


def _has_problem(host: d.hosts.HostRow) -> bool:
    """Return whether checks of the host may find its problem: it is another one, and has one."""
    return bool(host.address and (host.state in AWAY or host.reason or agent_of(host)))


def labels_of(host: d.hosts.HostRow) -> str:
    """Return the operator's labels of a host as text."""
    return " ".join(f"{key}={value}" for key, value in sorted(host.labels.items()) if key != "host")


def agent_of(host: d.hosts.HostRow) -> str:
    """Return why a host that is up does not report its GPUs and disk; "" if it does, or is away."""
    return host.agent if host.state in ("up", "draining") else ""


def devices_of(host: d.hosts.HostRow, wanted: str) -> str:
    """Return the number of devices; if the settings leave out GPUs, how: `wanted` as FN_GPUS."""
    text = f"{host.cpu_slots} CPU slots, {host.gpus} GPUs"
    return text if wanted in ("", "all") else f"{text} (chosen: {wanted})"


def render_added(host: d.hosts.NewHost) -> str:
    """Render a new host with its checks, and the remedies of those that passed nevertheless."""
    count = len(host.checks)
    checked = f", {count} checks passed" if count else ", unchecked"
    lines = [f"{host.name} is added ({host.address}{checked})"]
    if isinstance(host.settings, d.hosts.SshHostSettings) and host.settings.host_key:
        lines.append(f"  its key is pinned: {host.settings.host_key}")
    for one in host.checks:
        if one.todo:
            lines += [f"  {one.name}: {one.found}", f"    -> {one.todo}"]
    return "\n".join(lines)


def render_drain(host: d.hosts.HostRow, *, undo: bool) -> str:
    """Render the effect of beginning or ending the drain of a host."""
    from admin.cli.render import replicas

    if host.state in AWAY:
        return f"is {host.state}; {'it takes replicas when it is up' if undo else DRAINS_LATER}"
    if undo:
        return "takes replicas again"
    return f"is draining, {replicas(host.replicas)} left" if host.replicas else "is draining"


def render(items: Sequence[d.hosts.HostRow]) -> str:
    """Render the hosts as a table, with their problems below it."""
    rows = [
        (
            item.name,
            item.address or NONE,
            item.state,
            _ms(item.rtt_ms),
            item.cpu_slots,
            item.gpus,
            item.replicas,
            NONE if item.disk_free_mib is None else mib(item.disk_free_mib),
            labels_of(item) or NONE,
        )
        for item in items
    ]
    notes = [
        f"{item.name}: {text}"
        for item in items
        for text in (item.reason, agent_of(item), item.transfer)
        if text
    ]
    head = ("NAME", "ADDRESS", "STATE", "RTT", "CPU", "GPUS", "REPLICAS", "FREE", "LABELS")
    return "\n".join([table(head, rows), *notes])


def render_host(host: d.hosts.HostDetail, now_s: float) -> str:
    """Render one host; `now_s` in Unix seconds."""
    settings = host.settings
    age = ago(host.since_s, now_s) if host.since_s else ""
    lasts = age.removesuffix(" ago") if age.endswith(" ago") else ""
    later = f", {DRAINS_LATER}" if settings and settings.is_draining and host.state in AWAY else ""
    pairs = [
        ("name", host.name),
        ("address", host.address),
        ("state", (f"{host.state} for {lasts}" if lasts else host.state) + later),
        ("reason", host.reason),
        ("labels", labels_of(host)),
        ("driver", " ".join(filter(None, (host.driver, host.engine_version)))),
        ("round trip", _ms(host.rtt_ms) if host.rtt_ms is not None else ""),
        ("devices", devices_of(host, getattr(settings, "gpus", ""))),
        ("replicas", str(host.replicas)),
        ("agent", agent_of(host)),
        ("disk", f"{mib(host.disk_free_mib)} free" if host.disk_free_mib is not None else ""),
        *(_settings_of(host, settings) if settings else ()),
    ]
    return fields(pairs)


def _settings_of(host: d.hosts.HostDetail, settings: d.hosts.HostSettings) -> list[tuple[str, str]]:
    """Return what is known of a host that has a definition."""
    if isinstance(settings, d.hosts.KubernetesHostSettings):
        return k.cluster_settings(settings)
    offset_s = host.clock_offset_s
    cache = f"{host.cached_files} files, {mib(host.cached_mib)}"
    return [
        ("files", f"{cache} of {mib(settings.files_mib)}"),
        ("images", str(host.images)),
        ("sending", host.transfer),
        ("clock", f"{offset_s:+.3f} s" if offset_s is not None else ""),
        ("host key", settings.host_key),
        ("identity", settings.identity),
        ("engine", settings.engine),
    ]


def _ms(value: float | None) -> str:
    return NONE if value is None else f"{number(value)} ms"
