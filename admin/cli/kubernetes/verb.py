"""fnctl kubernetes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.errors import errors_reported

if TYPE_CHECKING:
    from admin.cli.kubernetes.manifests import Choices

IMAGE: Final = "fngate-server:latest"
"""Name that `fnctl image build server` gives by default."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_SIZE: Final = re.compile(r"[1-9][0-9]{0,8}(Mi|Gi|Ti|M|G|T)")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")

app = typer.Typer(
    help="Run fngate in a Kubernetes cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class AccessMode(StrEnum):
    """Access modes of the volume. With ReadWriteOncePod no second server can mount it."""

    POD = "ReadWriteOncePod"
    NODE = "ReadWriteOnce"


Access = Annotated[
    AccessMode, typer.Option(help="Its access mode, if the class lacks ReadWriteOncePod.")
]


@app.callback()
def kubernetes() -> None:
    """Run fngate in a Kubernetes cluster."""


@app.command("manifests")
def manifests(  # noqa: PLR0913 - typer takes one parameter per option
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Namespace, which fngate has for itself.")
    ] = "fngate",
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="Image of the server, as nodes pull it.")
    ] = IMAGE,
    storage: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of the volume of the data folder.")
    ] = "50Gi",
    storage_class: Annotated[
        str, typer.Option(metavar="NAME", help="Its StorageClass (default: the cluster's).")
    ] = "",
    access_mode: Access = AccessMode.POD,
    cluster_cidr: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR",
            help="Network of Pods or nodes, which no function may reach; may be repeated"
            " (default: all private networks).",
        ),
    ] = None,
    service_cidr: Annotated[
        list[str] | None,
        typer.Option(metavar="CIDR", help="Network of Services, likewise; may be repeated."),
    ] = None,
    resolver: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Name server of the nodes, for functions with a network; may be repeated.",
        ),
    ] = None,
    public_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Host name that clients use; may be repeated."),
    ] = None,
    pull_secret: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Secret to pull the image with; may be repeated."),
    ] = None,
) -> None:
    """Print the manifests of a server, as YAML for kubectl or kustomize.

    Nothing is changed. The namespace admits only Pods of the level `restricted`. It is for fngate
    alone: an account that may create Pods in it can impersonate replicas.

    \b
    Examples:
      fnctl kubernetes manifests --image registry.example/fngate-server:1 | kubectl apply -f -
      fnctl kubernetes manifests --cluster-cidr 10.244.0.0/16 --service-cidr 10.96.0.0/12
    """
    _check("--namespace", [namespace], _LABEL, "a name such as fngate")
    _check("--image", [image], _IMAGE, "a reference of an image")
    _check("--storage", [storage], _SIZE, "a size such as 50Gi")
    _check("--storage-class", filter(None, [storage_class]), _NAME, "the name of a StorageClass")
    _check("--public-host", public_host or (), _NAME, "a host name")
    _check("--pull-secret", pull_secret or (), _NAME, "the name of a Secret")
    from admin.cli.kubernetes.manifests import Choices
    from admin.cli.kubernetes.server_pod import ServerPod

    pod = ServerPod(image, tuple(public_host or ()), tuple(pull_secret or ()))
    cidrs = [
        *(_network("--cluster-cidr", one) for one in cluster_cidr or ()),
        *(_network("--service-cidr", one) for one in service_cidr or ()),
    ]
    resolvers = [_address(one) for one in resolver or ()]
    _print(Choices(namespace, pod, storage, storage_class, access_mode, cidrs, resolvers))


def _print(choices: Choices) -> None:
    from admin.cli.kubernetes.manifests import manifests as objects
    from admin.cli.kubernetes.yaml import stream

    with errors_reported(False):
        typer.echo(stream(objects(choices)), nl=False)


def _check(
    option: str, values: Sequence[str] | filter[str], pattern: re.Pattern[str], expected: str
) -> None:
    for value in values:
        if pattern.fullmatch(value) is None:
            raise typer.BadParameter(f"expected {expected}, got {value!r}", param_hint=option)


def _network(option: str, value: str) -> str:
    try:
        return str(ip_network(value))
    except ValueError as error:
        text = f"expected a network such as 10.96.0.0/12, got {value!r}"
        raise typer.BadParameter(text, param_hint=option) from error


def _address(value: str) -> str:
    try:
        return str(ip_address(value))
    except ValueError as error:
        text = f"expected an address such as 10.0.0.2, got {value!r}"
        raise typer.BadParameter(text, param_hint="--resolver") from error
