"""docs/reference/command-line.md: the verbs of `fnctl` with their arguments and options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from admin.cli.errors import EXIT_CODES
from admin.cli.main import app
from admin.cli.options import _SHARED
from tests.reference.markdown import code, page, table, wrapped
from tests.reference.values import default_of
from tests.surface.cli import kind_of

TITLE = "Command line"
INTRO = """
`fnctl` runs the server and talks to it. Each verb has `--help`. The settings of `fnctl serve` are
in [Settings](settings.md).
"""
SHARED = {name for name, *_ in _SHARED}
"""Parameters of every verb that talks to a server; they have a section of their own."""
CONNECTION = """
Every verb below with the line "Takes the options of a connection" has these. `--ssh`, `--identity`
and `--known-hosts` may also stand before the verb.
"""
TAKES = "Takes the [options of a connection](#options-of-a-connection)."


def document() -> str:
    """The page."""
    root = typer.main.get_command(app)
    verbs = dict(_verbs("fnctl", root))
    codes = re.findall(r"^ +(\d+) +(.*)", EXIT_CODES, re.MULTILINE)
    before = {one.name: one for one in root.params}
    shared = [before.get(one.name, one) for one in verbs["fnctl show"].params if one.name in SHARED]
    own = [one for name, one in before.items() if name not in SHARED]
    blocks = [
        "## Verbs",
        *_index(root),
        "## Exit codes",
        table(("code", "meaning"), ((code(n), _sentence(text)) for n, text in codes)),
        "## Options of a connection",
        wrapped(CONNECTION),
        _options(shared),
        *(["## Options before the verb", _options(own)] if own else []),
    ]
    for name, verb in verbs.items():
        blocks += _section(name, verb)
    return page(TITLE, INTRO, *blocks)


def _verbs(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for verb, one in inner.items():
        yield from _verbs(f"{name} {verb}", one)


def _index(root: Any) -> Iterator[str]:
    """The verbs below the headings of `fnctl --help`."""
    panels: dict[str, dict[str, Any]] = {}
    for word, command in root.commands.items():
        panels.setdefault(command.rich_help_panel, {}).update(_verbs(f"fnctl {word}", command))
    for panel, verbs in panels.items():
        yield f"### {panel}"
        yield table(
            ("verb", "what it does"),
            ((f"[{code(name)}](#{_anchor(name)})", _summary(verb)) for name, verb in verbs.items()),
        )


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _summary(command: Any) -> str:
    return " ".join(command.help.split("\n\n")[0].split())


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _section(name: str, command: Any) -> Iterator[str]:
    """A verb: its usage, its help with the examples, its arguments and options."""
    is_connected = {"url", "key"} <= {one.name for one in command.params}
    own = [one for one in command.params if not (is_connected and one.name in SHARED)]
    arguments = [one for one in own if not one.opts[0].startswith("-")]
    options = [one for one in own if one.opts[0].startswith("-")]
    usage = " ".join([name, "[OPTIONS]", *(_argument(one) for one in arguments)])
    yield f"## {code(name)}"
    yield f"```text\n{usage}\n```"
    yield from _help(command.help)
    if arguments:
        rows = ((code(_argument(one)), _sentences(one)) for one in arguments)
        yield table(("argument", "meaning"), rows)
    if options:
        yield _options(options)
    if is_connected:
        yield TAKES


def _argument(one: Any) -> str:
    return str(one.metavar or one.name.upper()).strip("{}")


def _help(text: str) -> Iterator[str]:
    """The paragraphs of a help text; examples, which keep their lines, as a block."""
    for paragraph in text.split("\n\n"):
        lines = paragraph.replace("\f", "").strip("\b\n").splitlines()
        if lines and re.fullmatch(r"Examples?:", lines[0].strip("\b ")):
            shown = "\n".join(line.strip() for line in lines[1:])
            yield f"```sh\n{shown}\n```"
        elif lines:
            yield wrapped(paragraph)


def _options(options: list[Any]) -> str:
    rows = ((code(_option(one)), _sentences(one)) for one in options)
    return table(("option", "meaning"), rows)


def _option(one: Any) -> str:
    if getattr(one, "is_flag", False):
        return ", ".join(one.opts)
    value = one.metavar or one.name.upper()
    return f"{', '.join(one.opts)} {value}"


def _choices(one: Any) -> list[str]:
    kind = kind_of(one)
    return kind.split("|") if "|" in kind else []


def _sentences(one: Any) -> str:
    """The help of a parameter with its limits, default and variable."""
    found = [one.help or ""]
    least, most = (getattr(one, bound, None) for bound in ("min", "max"))
    if least is not None or most is not None:
        bounds = [f"at least {least}"] if least is not None else []
        found.append(_sentence(", ".join([*bounds, *([f"at most {most}"] if most else [])])))
    choices = _choices(one)
    if choices:
        found.append(f"One of {', '.join(map(code, choices))}.")
    if one.default not in (None, False, "") and not callable(one.default):
        default = default_of(getattr(one.default, "value", one.default), str)
        found.append(f"Default: {default}.")
    if one.envvar:
        found.append(f"Variable: {code(one.envvar)}.")
    if one.required and one.opts[0].startswith("-"):
        found.append("Required.")
    return " ".join(found)
