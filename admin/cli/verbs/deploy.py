"""fnctl deploy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admin import documents as d
from admin.cli.confirming import Yes, check_may_ask, confirm
from admin.cli.options import Session, connected
from admin.client import routes

if TYPE_CHECKING:
    from admin.cli.bundle_files import Collected
    from admin.cli.server_options import ServerOptions

OFF = "off"
ALWAYS = "always"
ROWS_MAX = 65_536


class Device(StrEnum):
    """Devices that a replica can require."""

    CPU = "cpu"
    CUDA = "cuda"
    ANY = "any"


class Network(StrEnum):
    """Networks of a server function."""

    NONE = "none"
    EGRESS = "egress"


PathGiven = Annotated[
    Path | None,
    typer.Argument(
        metavar="[PATH]",
        help="A model.onnx, a folder with function.toml, or Triton's model repository. With"
        " --command any folder, or none.",
    ),
]
Command = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="Command of an HTTP server that listens on ${PORT}; it runs in the folder.",
    ),
]
ImageGiven = Annotated[
    str | None,
    typer.Option("--image", metavar="REF", help="Image of an HTTP server, for the driver docker."),
]
Pull = Annotated[
    bool, typer.Option("--pull", help="Pull the image even if the server's engine has it.")
]
Port = Annotated[
    int | None,
    typer.Option(min=1, max=65_535, metavar="N", help="Port that the server listens on."),
]
Ready = Annotated[
    str | None, typer.Option(metavar="PATH", help="Path that answers once the server is ready.")
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="Variable of the server; may be repeated."),
]
SecretGiven = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="VARIABLE=NAME",
        help="Variable of the server whose value is the secret NAME (fnctl secret set); may be"
        " repeated.",
    ),
]
MountGiven = Annotated[
    list[str] | None,
    typer.Option(
        "--mount",
        metavar="NAME=SOURCE:TARGET[:rw]",
        help="Folder of the server's machine that an image's server sees; may be repeated.",
    ),
]
NetworkGiven = Annotated[
    Network | None, typer.Option("--network", help="What the server can reach.")
]
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, metavar="N", help="Max exchanges of a server at once."),
]
Now = Annotated[
    bool,
    typer.Option(
        "--now", help="Do not wait for open exchanges of a server that must make room first."
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The function's name (default: from function.toml or the file name)."
    ),
]


def finite(value: float | None) -> float | None:
    """Return the value of an option. Raises typer.BadParameter for infinity and NaN, which JSON has
    not: they would be sent as null."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"expected a finite number, got {value}")
    return value


Min = Annotated[int | None, typer.Option(min=0, metavar="N", help="Minimum number of replicas.")]
Max = Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of replicas.")]
Idle = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="SECONDS", callback=finite, help="Idle time before a replica is stopped."
    ),
]
Memory = Annotated[
    int | None, typer.Option(min=0, metavar="MIB", help="Memory cap of a replica; 0 for none.")
]
HostLabel = Annotated[
    list[str] | None,
    typer.Option("--host-label", metavar="KEY=VALUE", help="Label of its hosts; may be repeated."),
]
FileHosts = Annotated[
    int | None,
    typer.Option(min=0, max=100, metavar="N", help="Hosts that get the files ahead of need."),
]
DeviceGiven = Annotated[Device | None, typer.Option(help="Device that replicas run on.")]
GpusGiven = Annotated[
    int | None,
    typer.Option("--gpus", min=1, max=64, metavar="N", help="GPUs of one replica, on one host."),
]
Batch = Annotated[
    str | None,
    typer.Option(
        metavar="N|off|always", help="Max rows of one batch; always: batch without a proof."
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="SECONDS", callback=finite, help="Time limit of one request's run."
    ),
]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure", help="Run the trial and measure, although an earlier deploy measured it."
    ),
]
Evict = Annotated[
    bool,
    typer.Option(
        "--evict",
        help="Take the device of a function that is being called if no other one gets free.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Allow handler.py or a command. It runs with fngate's rights; handler.py does not"
        " under the driver docker.",
    ),
]
Breaking = Annotated[
    bool, typer.Option("--breaking", help="Allow changes that break the current callers.")
]
ListOnly = Annotated[
    bool, typer.Option("--list", help="Print the files that would be sent, and send nothing.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return once the files are uploaded.")]


@dataclass(frozen=True, slots=True)
class Flags:
    """Options of `fnctl deploy` that no request has."""

    no_wait: bool
    list_only: bool
    yes: bool


@connected
def deploy(  # noqa: PLR0913  # longer because typer takes one parameter per option
    session: Session,
    path: PathGiven = None,
    name: Name = None,
    command: Command = None,
    image: ImageGiven = None,
    pull: Pull = False,
    port: Port = None,
    ready: Ready = None,
    env: Env = None,
    secret: SecretGiven = None,
    mount: MountGiven = None,
    network: NetworkGiven = None,
    concurrency: Concurrency = None,
    min: Min = None,
    max: Max = None,
    idle: Idle = None,
    memory: Memory = None,
    device: DeviceGiven = None,
    gpus: GpusGiven = None,
    host_label: HostLabel = None,
    file_hosts: FileHosts = None,
    batch: Batch = None,
    timeout: Timeout = None,
    trust: Trust = False,
    breaking: Breaking = False,
    now: Now = False,
    measure: Measure = False,
    evict: Evict = False,
    no_wait: NoWait = False,
    list_only: ListOnly = False,
    yes: Yes = False,
) -> None:
    """Deploy a model or an HTTP server as a function.

    A trial replica loads the model, runs its sample and measures it; then calls go to it. A
    server's trial starts the command, or the image, until it is ready. Words after -- are the
    command; for an image they replace its arguments. A warm function stays warm: the new revision
    is ready before calls go to it, if both fit on the device. A failed deploy changes nothing.
    With handler.py or a server the whole folder is sent, but what .fnignore leaves out.
    Of a model repository, or a model's folder in one, each ONNX model becomes a function.

    \b
    Examples:
      fnctl deploy model.onnx --name digits
      fnctl deploy functions/digits --max 2 --idle 60
      fnctl deploy model_repository/
      fnctl deploy app/ --name web --command 'uvicorn app:app --port ${PORT}' --trust
      fnctl deploy --name qwen --image vllm/vllm-openai:v0.20.0 -- /models/qwen
    """
    from admin.cli.server_options import ServerOptions, parse_command, parse_pairs

    overrides = given(
        min=min,
        max=max,
        idle_s=idle,
        memory_mib=memory,
        device=device and device.value,
        gpus=gpus,
        host_labels=parse_pairs(host_label, "--host-label", "KEY=VALUE"),
        file_hosts=file_hosts,
        batch_max=batch_max(batch),
        batching=batch if batch == ALWAYS else None,
        timeout_s=timeout,
    )
    server = ServerOptions(
        command=parse_command(command, session.words),
        image=image,
        env=parse_pairs(env, "--env", "NAME=VALUE"),
        secrets=parse_pairs(secret, "--secret", "VARIABLE=NAME"),
        mounts=parse_pairs(mount, "--mount", "NAME=SOURCE:TARGET[:rw]"),
        port=port,
        ready=ready,
        network=network and network.value,
        concurrency=concurrency,
    )
    wanted = d.requests.DeployRequest(
        [],
        trust=trust,
        breaking=breaking,
        now=now,
        pull=pull,
        measure=measure,
        evict=evict,
        overrides=overrides,
    )
    _deploy_path(session, path, name, server, wanted, Flags(no_wait, list_only, yes))


def _deploy_path(
    session: Session,
    path: Path | None,
    name: str | None,
    server: ServerOptions,
    wanted: d.requests.DeployRequest,
    flags: Flags,
) -> None:
    built = server.manifest()
    if path is not None and not built and is_repository(path):
        from admin.cli.repository.deploying import deploy_repository

        single = {
            "--list": flags.list_only,
            "--measure": wanted.measure,
            "--evict": wanted.evict,
        }
        if given_one := next((name for name, is_given in single.items() if is_given), ""):
            raise typer.BadParameter(
                "expected the folder of one function, got a model repository",
                param_hint=given_one,
            )
        deploy_repository(session, path, name, wanted, no_wait=flags.no_wait)
        return
    collected = collect_files(path, name, built)
    if flags.list_only:
        _list(session, collected)
        return
    if not flags.yes:
        _check_meant(session, collected)
    if collected.manifest != built or not built:
        wanted.overrides.update(server.overrides())
    _deploy(session, collected, collected.request(wanted), flags.no_wait)


def _list(session: Session, collected: Collected) -> None:
    """Print the files of a deploy."""
    from admin.text import size, table

    files = collected.bundle.files
    rows = [[file.path, size(file.size)] for file in files]
    answer = {
        "name": collected.name,
        "files": [{"path": file.path, "size": file.size} for file in files],
    }
    session.answer(answer, lambda: table(["PATH", "SIZE"], rows))
    session.remark(f"{len(files)} files, {size(sum(file.size for file in files))}; none was sent")


def _check_meant(session: Session, collected: Collected) -> None:
    """Ask if the folder has large files, or very many, that function.toml does not name."""
    lines = collected.surprises()
    if not lines:
        return
    for line in lines:
        session.remark(line)
    check_may_ask(session, "; ".join(lines))
    session.remark("a line in .fnignore leaves a file out; --list prints what is sent")
    confirm(f"Send {collected.path} with them?")


def is_repository(path: Path) -> bool:
    """Return whether `path` is a model repository, or a model's folder in one. Raises BadBundle."""
    if not path.is_dir():
        return False
    from admin.cli.repository.layout import shape_of

    return shape_of(path) != ""


def collect_files(path: Path | None, name: str | None, built: str) -> Collected:
    """Collect the files of a deploy; `built` is the manifest that the options stand for. Raises
    typer.BadParameter without files and options, and what `collect` raises."""
    from admin.cli.bundle_files import collect
    from registry.errors import BadManifest
    from registry.model.servers import PORT

    if path is None and not built:
        raise typer.BadParameter(
            "expected a folder or a model file, or --command or --image for a server"
        )
    try:
        return collect(path, name, built)
    except BadManifest as error:
        if built and PORT in str(error.detail.get("expected")):
            error.add_note(f"add {PORT} to --command, in single quotes, or give --port or --env")
        raise


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
    request: d.requests.DeployRequest,
    no_wait: bool,
) -> None:
    from admin.cli.operations import bar, finish, upload
    from admin.cli.render import example, render_ended
    from admin.client.client import ApiError
    from admin.text import command, size

    client = session.client
    if along := collected.along():
        session.remark(f"beside handler.py also sent: {along}; --list prints all files")
    count, sent = upload(client, collected, partial(bar, quiet=session.as_json))
    if files := len(collected.bundle.files):
        session.remark(f"{count} of {files} files uploaded, {size(sent)}")
    try:
        operation = client.submit(routes.DEPLOY, collected.name, body=request)
    except ApiError as error:
        if collected.is_derived and error.code == "conflict":
            error.add_note(
                command(
                    *("fnctl", "deploy", str(collected.path), "--name", collected.name),
                    *(["--trust"] if request.trust else []),
                )
            )
        raise
    if no_wait:
        session.show(
            operation,
            lambda row: f"operation {row.id} is running",
            lambda row: [f"fnctl operation watch {row.id}"],
        )
        return
    ended = finish(session, operation)
    session.show(ended, render_ended)
    result = ended.value.result
    session.warn(result.warnings)
    session.next(example(collected, result.interface or None))
    if line := _curl(session, collected, result):
        session.remark(f"  or: {line}")


def _curl(session: Session, collected: Collected, result: d.deploys.OperationResult) -> str:
    """Return a curl command that works; "" if there is none or curl cannot reach the server."""
    from admin.cli.render import curl, python_curl
    from admin.client.client import ApiError

    client, call = session.client, ""
    is_tried = bool(result.profile and result.profile.profiled)
    calls = result.interface
    if session.as_json or not client.is_direct or not (collected.sample or is_tried):
        return ""
    try:
        call = python_curl(collected, client.url, calls) if calls else curl(collected, client.url)
        if not collected.sample and not calls:
            shown = client.call(routes.FUNCTION, collected.name).value.example
            # Examples of other kinds have a placeholder.
            is_whole = " -d '" in shown and '"<' not in shown
            call = shown if is_whole or collected.is_server else ""
    except ApiError:
        return ""
    key = "" if client.is_open_to_all(collected.name) else ' -H "Authorization: Bearer $FN_KEY"'
    return f"{call}{key}" if call else ""
