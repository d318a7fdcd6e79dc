"""Entry point of fnctl, and the list of its verbs."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Final

import typer

from admin.cli.errors import EXIT_CODES
from admin.cli.kubernetes import verb as kubernetes
from admin.cli.options import root_options
from admin.cli.root import Root
from admin.cli.verbs import (
    advise,
    alias,
    backup,
    bench,
    deploy,
    dev,
    doctor,
    env,
    host,
    image,
    init,
    invoke,
    key,
    logs,
    ls,
    open_page,
    operate,
    operation,
    secret,
    serve,
    show,
    top,
    ui,
    usage,
)
from admin.cli.words import WithWords

COMMANDS: Final[dict[str, dict[str, Callable[..., None] | typer.Typer]]] = {
    "Basic commands": {
        "serve": serve.serve,
        "deploy": deploy.deploy,
        "ls": ls.ls,
        "show": show.show,
        "invoke": invoke.invoke,
        "open": open_page.open_page,
        "rm": operate.rm,
    },
    "Write a function": {
        "init": init.init,
        "dev": dev.dev,
    },
    "Traffic and scale": {
        "warm": operate.warm,
        "sleep": operate.sleep,
        "park": operate.park,
        "unpark": operate.unpark,
        "scale": operate.scale,
        "rollback": operate.rollback,
        "operation": operation.app,
        "prepare": operate.prepare,
        "alias": alias.app,
    },
    "Diagnosis and measurement": {
        "why": show.why,
        "logs": logs.logs,
        "top": top.top,
        "ui": ui.ui,
        "bench": bench.bench,
        "advise": advise.advise,
        "usage": usage.usage,
        "cost": usage.cost,
    },
    "Operation of the server": {
        "doctor": doctor.doctor,
        "host": host.app,
        "image": image.app,
        "env": env.app,
        "kubernetes": kubernetes.app,
        "backup": backup.backup,
        "restore": backup.restore,
    },
    "Access": {
        "access": key.access_app,
        "key": key.app,
        "secret": secret.app,
    },
}
"""Every command, below the heading that `fnctl --help` shows it under."""

app = typer.Typer(
    name="fnctl",
    cls=Root,
    help="Deploy models as functions, call them, and see why they are warm or cold.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    # Rich's help and tracebacks cost more start-up time than all other imports together.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(root_options)
for _panel, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            kind = WithWords if _command is deploy.deploy else None
            app.command(_name, cls=kind, rich_help_panel=_panel)(_command)


def main() -> None:
    """Run `fnctl`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Bars and dots on a terminal without them must not raise an encoding error.
            stream.reconfigure(errors="replace")
    app(prog_name="fnctl")
