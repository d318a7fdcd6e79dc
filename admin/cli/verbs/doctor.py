"""fnctl doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.completion import host_names
from admin.cli.errors import REFUSED
from admin.cli.options import (
    DEFAULT_DATA,
    DEFAULT_ENGINE,
    DEFAULT_URL,
    Data,
    Identity,
    Json,
    Key,
    KnownHosts,
    ServerAddress,
    Ssh,
    Url,
    client_at,
    parse_login,
)
from admin.cli.verbs.serve import Driver
from admin.text import plain

if TYPE_CHECKING:
    from admin.cli.doctor import engine_checks
    from admin.cli.doctor.machine import Check
    from admin.client.client import Client
    from admin.settings import Settings
    from hosts.login import Login


DriverGiven = Annotated[
    Driver,
    typer.Option(
        "--driver", envvar="FN_DRIVER", help="Driver of replicas; docker requires all its checks."
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        envvar="FN_DOCKER_HOST",
        metavar="URL",
        help="The Docker engine; checked if it exists.",
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        "--host", metavar="NAME", help="Check this host instead.", autocompletion=host_names
    ),
]


def doctor(  # noqa: PLR0913 - typer takes one parameter per option
    context: typer.Context,
    driver: DriverGiven = Driver.PROCESS,
    engine: Engine = DEFAULT_ENGINE,
    url: Url = DEFAULT_URL,
    key: Key = None,
    data: Data = DEFAULT_DATA,
    ssh: Ssh = None,
    identity: Identity = None,
    known_hosts: KnownHosts = None,
    host: Host = None,
    as_json: Json = False,
) -> None:
    """Check what fngate needs on this machine.

    Prints a remedy for each failed check, and then exits with code 1. With --ssh it checks the
    login, and the server there. With --host the server checks one of its hosts.

    \b
    Examples:
      fnctl doctor
      fnctl doctor --driver docker
      fnctl doctor --host gpu2
    """
    login = parse_login(context, ssh, identity=identity, known_hosts=known_hosts)
    address = ServerAddress(url, key, data)
    if host is not None:
        found = host_checks(address, login, host)
    elif login is not None:
        found = remote_checks(address, login)
    else:
        from admin.cli.doctor.engine_checks import find_driver

        gpus = find_driver()
        found = [
            *local_checks(Path(data)),
            *nvidia_driver(gpus, driver),
            *engine_packages(driver, gpus),
            *docker(engine, driver, gpus),
            *_server(address),
        ]
    print_checks(found, as_json)


def local_checks(data: Path) -> list[Check]:
    """Return the checks of this machine, with the data folder `data`."""
    from admin.cli.doctor import isolation, machine
    from admin.settings import run_dir

    folder = data.expanduser().resolve()
    return [
        machine.python(),
        machine.folder(folder),
        machine.disk(folder),
        machine.token(folder),
        *machine.secret_key(key_file(folder)),
        machine.sockets(run_dir(folder)),
        *machine.grpc(),
        isolation.namespaces(),
        *machine.system_calls(machine.replica_pids(run_dir(folder))),
    ]


def nvidia_driver(found: engine_checks.Driver, driver: Driver) -> list[Check]:
    """Return the checks of GPUs, which need none unless Docker's replicas shall have them."""
    from admin.cli.doctor import engine_checks, machine, several_gpus

    several = several_gpus.checks(found, several_gpus.find_host())
    checks = [engine_checks.driver(found, settings().gpus), *several]
    return checks if driver is Driver.DOCKER else machine.softened(checks)


def engine_packages(driver: Driver, found: engine_checks.Driver) -> list[Check]:
    """Return the checks of ONNX Runtime in this Python, which only the process driver needs; what
    it loads for GPUs is checked if there are some."""
    from admin.cli.doctor import gpu_libraries, machine

    checks = [machine.engine(), *gpu_libraries.installed()]
    if driver is not Driver.PROCESS:
        return machine.softened(checks)
    if found.gpus:
        checks += gpu_libraries.process_checks()
    return checks


def docker(engine: str, driver: Driver, found: engine_checks.Driver) -> list[Check]:
    """Return the checks of the Docker engine, if it exists or is the driver."""
    from admin.cli.doctor.docker import docker_checks

    return docker_checks(engine, driver is Driver.DOCKER, images(), found)


def key_file(data: Path) -> Path:
    """Return the key of the secrets of a server started here; the default if settings are
    invalid."""
    from admin.settings import load_settings
    from registry.errors import BadRequest
    from registry.settings import StoreSettings

    try:
        return load_settings({"data": data}).store().secret_key
    except BadRequest:  # the server reports it when it starts
        return StoreSettings(data).secret_key


def settings() -> Settings:
    """Return the settings of a server started here; defaults if they are invalid."""
    from admin.settings import Settings, load_settings
    from registry.errors import BadRequest

    try:
        return load_settings({})
    except BadRequest:  # the server reports it when it starts
        return Settings.model_construct()


def images() -> dict[str, str]:
    """Return the runtime images of a server started here."""
    chosen = settings()
    return {"cpu": chosen.image_cpu, "gpu": chosen.image_gpu}


def remote_checks(address: ServerAddress, login: Login) -> list[Check]:
    """Return the checks of a server on another machine."""
    from admin.cli.doctor.machine import Check
    from admin.client.client import Unreachable

    try:
        with client_at(address, login) as client:
            return [Check("ok", "ssh", f"logged in to {login.target}"), *_api_checks(client)]
    except Unreachable as error:
        return [Check("fail", "ssh", str(error), *getattr(error, "__notes__", ())[:1])]


def host_checks(address: ServerAddress, login: Login | None, name: str) -> list[Check]:
    """Return the checks of a host of the server, which logs in there."""
    from admin.cli.doctor import machine
    from admin.client.client import Unreachable

    try:
        with client_at(address, login) as client:
            return machine.host(client, name)
    except Unreachable as error:  # of --ssh
        return [machine.Check("fail", "ssh", str(error), *getattr(error, "__notes__", ())[:1])]


def print_checks(found: list[Check], as_json: bool) -> None:
    """Print the checks; exit with code 1 if one failed."""
    from admin.cli.doctor.machine import render, to_json

    shown = json.dumps({"items": to_json(found)}, indent=2) if as_json else plain(render(found))
    typer.echo(shown)
    if any(check.level == "fail" for check in found):
        raise typer.Exit(REFUSED)


def _server(address: ServerAddress) -> list[Check]:
    with client_at(address, None) as client:
        return _api_checks(client)


def _api_checks(client: Client) -> list[Check]:
    from admin.cli.doctor import machine

    return [
        machine.server(client),
        machine.access(client),
        *machine.openness(client),
        *machine.devices(client),
        *machine.reserved_users(client),
    ]
