"""fnctl serve."""

from __future__ import annotations

import gc
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from admin.cli.errors import errors_reported


class Driver(StrEnum):
    """Drivers that start replicas."""

    PROCESS = "process"
    DOCKER = "docker"


class LogFormat(StrEnum):
    """Formats of the server's own log."""

    HUMAN = "human"
    JSON = "json"


DriverGiven = Annotated[
    Driver | None, typer.Option(help="Driver that starts replicas (default process).")
]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, metavar="PORT", help="TCP port; 0 for any (default 8080)."),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="TCP port of the Open Inference Protocol over gRPC; 0 for none (default 0).",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, max=32, metavar="N", help="Gateway processes that share the port (default 1)."
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Address to listen on (default 127.0.0.1: this machine only)."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder for everything that is kept (default ~/.fngate)."),
]
PublicHost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Host names by which clients reach this server; repeatable."),
]
CpuSlots = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Replicas that the CPU runs at once (default: its cores)."
    ),
]
Idle = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Idle seconds before a replica stops; functions may override it (default 300).",
    ),
]
LogFormatGiven = Annotated[
    LogFormat | None, typer.Option(help="Format of the server's own log (default human).")
]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML file with settings; FN_ variables override it."),
]
StartEmpty = Annotated[
    bool,
    typer.Option(
        "--start-empty",
        help="If the data folder has lost its database: move the old files aside and start without"
        " functions and keys. Every call then needs a key.",
    ),
]


def serve(  # noqa: PLR0913 - typer takes one parameter per option
    driver: DriverGiven = None,
    port: Port = None,
    grpc_port: GrpcPort = None,
    listen: Listen = None,
    workers: Workers = None,
    data: Data = None,
    public_host: PublicHost = None,
    cpu_slots: CpuSlots = None,
    idle: Idle = None,
    log_format: LogFormatGiven = None,
    config: Config = None,
    start_empty: StartEmpty = False,
) -> None:
    """Run the gateway until Ctrl-C.

    Every setting can also be given as an environment variable FN_..., like FN_PORT.

    \b
    Example:
      fnctl serve --port 8080 --data ./state
    """
    given: dict[str, Any] = {
        "driver": driver and driver.value,
        "port": port,
        "grpc_port": grpc_port,
        "listen": listen,
        "workers": workers,
        "data": data,
        "public_hosts": tuple(public_host) if public_host else None,
        "cpu_slots": cpu_slots,
        "idle_s": idle,
        "log_format": log_format and log_format.value,
    }
    with errors_reported(as_json=False):
        overrides = {name: value for name, value in given.items() if value is not None}
        sys.exit(run(overrides, config, may_start_empty=start_empty))


def run(overrides: dict[str, Any], config: Path | None, *, may_start_empty: bool) -> int:
    """Serve with the settings of `overrides` (by name) and `config` until stopped.

    `may_start_empty`: a data folder that has lost its database starts anew. Raises BadRequest for
    an invalid setting.
    """
    from admin.settings import load_settings

    settings = load_settings(overrides, config)
    # Imports create long-lived objects: a collection in between frees nothing and takes a fifth of
    # a start. The server enables the collector once it serves.
    gc.disable()
    # Lazy, after the settings are validated: it imports the whole server.
    from admin.serve import serve as serve_until_stopped

    return serve_until_stopped(settings, may_start_empty=may_start_empty)
