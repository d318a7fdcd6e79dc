"""fnctl image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.errors import INTERRUPTED, errors_reported
from admin.cli.options import DEFAULT_DATA, DEFAULT_ENGINE, Data, Json, Session, connected
from admin.client import routes
from admin.text import duration, fields, plain, size

if TYPE_CHECKING:
    from admin.image.build import BuiltImage
    from pool_manager.images import RemovedImage

DEFAULT_BASE: Final = "python:3.11-slim"
NAME: Final = "fngate-runtime"
SERVER_NAME: Final = "fngate-server"

app = typer.Typer(
    help="Build the image of replicas; remove images no longer needed.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Kind(StrEnum):
    """What runs in an image: replicas on these processors, or the server."""

    CPU = "cpu"
    GPU = "gpu"
    SERVER = "server"


KindGiven = Annotated[
    Kind,
    typer.Argument(
        help="cpu, or gpu (with CUDA and cuDNN, 3 GB); server is that of a server in a cluster."
    ),
]
Base = Annotated[
    str,
    typer.Option(
        "--base",
        envvar="FN_IMAGE_BASE",
        metavar="IMAGE",
        help="Base image with Python 3.11 or newer and glibc; pulled if missing.",
    ),
]
Wheelhouse = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of wheels to install from, without downloads."),
]
Tag = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:TAG",
        help=f"Name of the image (default {NAME}:cpu or :gpu, {SERVER_NAME}:latest).",
    ),
]
Engine = Annotated[
    str,
    typer.Option("--engine", envvar="FN_DOCKER_HOST", metavar="URL", help="The Docker engine."),
]
Tensorrt = Annotated[
    str,
    typer.Option(
        metavar="MAJOR",
        help="Add TensorRT to the gpu image; 10 is the version that ONNX Runtime loads. It comes"
        " from --wheels, from the base image if that has it, or else from NVIDIA's own index: pass"
        " that to pip with PIP_EXTRA_INDEX_URL. Not tried with a GPU yet.",
    ),
]
Wheels = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder with the wheel tensorrt_cu13_libs, for --tensorrt."),
]
Context = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Checkout of fngate to build (default: the running one)."),
]


@app.command("build")
def build(  # noqa: PLR0913 - typer takes one parameter per option
    kind: KindGiven = Kind.CPU,
    base: Base = DEFAULT_BASE,
    wheelhouse: Wheelhouse = None,
    tag: Tag = None,
    engine: Engine = DEFAULT_ENGINE,
    tensorrt: Tensorrt = "",
    wheels: Wheels = None,
    context: Context = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Build the image for replicas in containers, or that of a server in a cluster.

    First this machine's pip downloads the wheels into a temporary folder (TMPDIR), with its own
    index, proxy and CA settings. The build itself has no network. DOCKER_HOST is not read. A failed
    or interrupted build leaves an existing image of that name as it was. The image is recorded in
    the server's data folder, so that keys with the scope deploy may name it.

    \b
    Examples:
      fnctl image build
      fnctl image build gpu --base python:3.12-slim
      fnctl image build server --tag registry.example/fngate-server:1
      fnctl image build gpu --tensorrt 10 --wheels ~/tensorrt
    """
    _check_tensorrt(kind, tensorrt, wheels)
    with errors_reported(as_json):
        from admin.built_images import note_of
        from admin.image.build import BuildRequest
        from admin.image.build import build as build_image
        from admin.image.context import own_checkout

        request = BuildRequest(
            kind.value,
            base,
            tag or (f"{SERVER_NAME}:latest" if kind is Kind.SERVER else f"{NAME}:{kind.value}"),
            engine,
            (context or own_checkout()).expanduser().absolute(),
            wheelhouse and wheelhouse.expanduser().absolute(),
            tensorrt,
            wheels and wheels.expanduser().absolute(),
        )
        try:
            built = build_image(request, _quiet if as_json else _print)
        except KeyboardInterrupt:
            typer.echo("interrupted: nothing changed", err=True)
            raise typer.Exit(INTERRUPTED) from None
        if kind is not Kind.SERVER and (note := note_of(data, built.tag, built.id)):
            _print(f"warning: {note}")
    typer.echo(json.dumps(asdict(built), indent=2) if as_json else plain(render(built)))


def _check_tensorrt(kind: Kind, tensorrt: str, wheels: Path | None) -> None:
    """Raise BadParameter for a wrong use of `--tensorrt` and `--wheels`."""
    if tensorrt and kind is not Kind.GPU:
        raise typer.BadParameter(f"expected the kind gpu, got {kind}", param_hint="--tensorrt")
    if tensorrt not in ("", "10"):
        text = f"expected 10, got {tensorrt}: ONNX Runtime's provider loads libnvinfer.so.10"
        raise typer.BadParameter(text, param_hint="--tensorrt")
    if wheels is not None and not tensorrt:
        text = "it is the folder of TensorRT's wheels: expected --tensorrt 10 beside it"
        raise typer.BadParameter(text, param_hint="--wheels")


@app.command("prune")
@connected
def prune(session: Session) -> None:
    """Remove the images that deploys have pulled and no function needs any more.

    Images that a container uses stay, and so do images that deploys found on the machine.

    \b
    Example:
      fnctl image prune
    """
    session.show(
        session.client.call(routes.PRUNE_IMAGES), lambda found: render_pruned(found.removed)
    )


def render_pruned(removed: Sequence[RemovedImage]) -> str:
    """Render the images that were removed, with the sum of their sizes."""
    if not removed:
        return "no image to remove"
    lines = [f"{', '.join(one.names) or one.id}  {size(one.size_bytes)}" for one in removed]
    total = sum(one.size_bytes for one in removed)
    noun = "image" if len(removed) == 1 else "images"
    return "\n".join(
        [*lines, f"{len(removed)} {noun} removed, {size(total)} shared layers included"]
    )


def render(built: BuiltImage) -> str:
    """Render the built image."""
    pairs = (
        ("id", built.id),
        ("size", size(built.size_bytes)),
        ("python", built.python),
        ("onnxruntime", built.onnxruntime),
        ("tensorrt", built.tensorrt),
        ("link", str(built.link)),
        ("replaced", built.replaced),
    )
    return f"{built.tag} built in {duration(built.elapsed_s * 1e3)}\n{fields(pairs)}"


def _print(text: str) -> None:
    typer.echo(plain(text), err=True)


def _quiet(_: str) -> None:
    """Print nothing: with --json only the result is printed."""
