"""fnctl doctor."""

from __future__ import annotations

import json
from datetime import UTC, datetime
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
    from admin.settings import Settings
    from hosts.checks import Check
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
    if host is not None or login is not None:
        found = server_checks(address, login, host)
    else:
        from admin.cli.doctor.docker import docker_checks
        from admin.cli.doctor.engine_checks import find_driver

        gpus, (chosen, refused) = find_driver(), settings(Path(data))
        images = {"cpu": chosen.image_cpu, "gpu": chosen.image_gpu}
        found = [
            *refused,
            *local_checks(chosen),
            *nvidia_driver(gpus, driver, chosen.gpus),
            *engine_packages(driver, gpus),
            *docker_checks(engine, driver is Driver.DOCKER, images, gpus),
            *server_checks(address),
        ]
    print_checks(found, as_json)


def settings(data: Path) -> tuple[Settings, list[Check]]:
    """Return the settings of a server started here with the data folder `data`; if they are
    invalid, defaults and what the server would say."""
    from admin.settings import Settings, load_settings
    from hosts.checks import Check
    from registry.errors import BadRequest

    folder = data.expanduser().resolve()
    try:
        return load_settings({"data": folder}), []
    except BadRequest as error:
        refused = Check(
            "fail", "settings", error.message, "correct them: fnctl serve does not start"
        )
        return Settings.model_construct(data=folder), [refused]


def local_checks(chosen: Settings) -> list[Check]:
    """Return the checks of this machine, for a server with these settings."""
    from admin.cli.doctor import isolation, link, machine
    from admin.settings import run_dir

    folder, now_s = chosen.data, datetime.now(UTC).timestamp()
    return [
        machine.python(),
        machine.folder(folder),
        machine.disk(folder),
        machine.token(folder),
        *machine.secret_key(chosen.store().secret_key),
        machine.sockets(run_dir(folder)),
        *machine.grpc(),
        *link.checks(chosen.link_listen, chosen.link_address, chosen.store().link, now_s),
        isolation.namespaces(),
        *machine.system_calls(machine.replica_pids(run_dir(folder))),
    ]


def nvidia_driver(found: engine_checks.Driver, driver: Driver, chosen: str) -> list[Check]:
    """Return the checks of GPUs, which need none unless Docker's replicas shall have them. `chosen`
    is the setting FN_GPUS."""
    from admin.cli.doctor import engine_checks, machine, several_gpus

    several = several_gpus.checks(found, several_gpus.find_host())
    checks = [engine_checks.driver(found, chosen), *several]
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


def server_checks(
    address: ServerAddress, login: Login | None = None, host: str | None = None
) -> list[Check]:
    """Return the checks of a server, after that of a `login` to its machine; those of one of its
    hosts if `host` names one, where the server logs in."""
    from admin.cli.doctor import machine
    from admin.client.client import Unreachable
    from hosts.checks import Check

    try:
        with client_at(address, login) as client:
            if host is not None:
                return machine.host(client, host)
            return [
                *([Check("ok", "ssh", f"logged in to {login.target}")] if login else []),
                machine.server(client),
                machine.access(client),
                *machine.openness(client),
                *machine.devices(client),
                *machine.reserved_users(client),
            ]
    except Unreachable as error:  # of --ssh
        return [Check("fail", "ssh", str(error), *getattr(error, "__notes__", ())[:1])]


def print_checks(found: list[Check], as_json: bool) -> None:
    """Print the checks; exit with code 1 if one failed."""
    from admin.cli.doctor.machine import render, to_json

    shown = json.dumps({"items": to_json(found)}, indent=2) if as_json else plain(render(found))
    typer.echo(shown)
    if any(check.level == "fail" for check in found):
        raise typer.Exit(REFUSED)
