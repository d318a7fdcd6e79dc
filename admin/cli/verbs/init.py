"""fnctl init."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from admin.cli.errors import errors_reported

TEMPLATES: Final = Path(__file__).parent.parent / "templates"
PLACEHOLDER: Final = "my-function"
"""The name of the function in a template."""
SUFFIX: Final = ".in"


class Template(StrEnum):
    """Folders that a function can begin as; each is one of TEMPLATES."""

    PLAIN = "plain"
    STREAM = "stream"
    ASYNC = "async"
    IMAGE = "image"
    TORCH = "torch"
    SKLEARN = "sklearn"
    FASTAPI = "fastapi"


NameGiven = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the function and of the new folder.")
]
TemplateGiven = Annotated[Template, typer.Option(help="What the function begins as.")]


def init(name: NameGiven, template: TemplateGiven = Template.PLAIN) -> None:
    """Write a folder with a Python function to begin with.

    plain: checked parameters. stream: values one after the other. async: calls to another service.
    image: a picture in, a picture out. torch, sklearn: a model. fastapi: an application of your
    own. An existing folder is left as it is.

    \b
    Examples:
      fnctl init greet
      fnctl init thumbs --template image
    """
    with errors_reported(as_json=False):
        folder = write_template(Path.cwd(), name, template)
    typer.echo("\n".join(f"{name}/{path.name}" for path in sorted(folder.iterdir())))
    typer.echo(f"next: fnctl dev {name}")


def write_template(where: Path, name: str, template: Template) -> Path:
    """Write a template as the new folder `name` in `where`; return it.

    Raises BadRequest for what is no name, Conflict if something of that name is there, and
    StoreUnavailable.
    """
    from registry.errors import Conflict
    from registry.files import unavailable
    from registry.names import check_name

    folder = where / check_name(name)
    try:
        folder.mkdir()
    except FileExistsError:
        raise Conflict(f"expected a new name, got {name}, which is there already") from None
    except OSError as error:
        raise unavailable(error) from error
    try:
        for path in sorted((TEMPLATES / template.value).iterdir()):
            text = path.read_text("utf-8").replace(PLACEHOLDER, name)
            (folder / path.name.removesuffix(SUFFIX)).write_text(text, "utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise unavailable(error) from error
    return folder
