"""Entry point of fnctl, and the list of its verbs."""

from __future__ import annotations

import io
import sys

import typer

from admin.cli.errors import EXIT_CODES
from admin.cli.options import root_options
from admin.cli.synonyms import WithSynonyms
from admin.cli.verbs import (
    advise,
    alias,
    backup,
    bench,
    deploy,
    doctor,
    host,
    image,
    invoke,
    key,
    logs,
    ls,
    open_page,
    operate,
    secret,
    serve,
    show,
    top,
    ui,
    usage,
)
from admin.cli.words import WithWords

app = typer.Typer(
    name="fnctl",
    cls=WithSynonyms,
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
for verb in (
    serve.serve,
    deploy.deploy,
    ls.ls,
    top.top,
    show.show,
    invoke.invoke,
    show.why,
    advise.advise,
    bench.bench,
    usage.usage,
    usage.cost,
    ui.ui,
    logs.logs,
    operate.warm,
    operate.prepare,
    operate.sleep,
    operate.scale,
    operate.rollback,
    operate.rm,
    backup.backup,
    backup.restore,
):
    app.command(verb.__name__, cls=WithWords if verb is deploy.deploy else None)(verb)
app.command("open")(open_page.open_page)
app.add_typer(key.app, name="key")
app.add_typer(key.access_app, name="access")
app.add_typer(secret.app, name="secret")
app.add_typer(alias.app, name="alias")
app.add_typer(host.app, name="host")
app.add_typer(image.app, name="image")
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Run `fnctl`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Bars and dots on a terminal without them must not raise an encoding error.
            stream.reconfigure(errors="replace")
    app(prog_name="fnctl")
