"""Table [output]: how answers are written."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from registry.manifest.checks import Section, Text, refused
from runtime_image.contract.model import OutputRule

Kind = Literal["", "json", "text", "bytes", "image", "npy"]
_TYPED: Final = ("text", "bytes")
"""Kinds that have a content type of the function's choice."""


class OutputTable(Section):
    """Table [output]."""

    tensor: Text = ""
    """Output whose values are the scores of `labels`."""
    labels: list[Text] = Field(default=[], max_length=100_000)
    """Names of the classes, in the order of the scores."""
    top_k: int = Field(default=0, ge=0, le=1000)
    """Number of best labels in an answer; 0 for one if there are `labels`, else for none."""
    kind: Kind = ""
    """Kind of the results of a Python function: `json`, `text`, `bytes`, `image` (PNG) or `npy`;
    empty for what the type of a result says. Only with `[python]`."""
    content_type: Annotated[str, StringConstraints(max_length=200, pattern=r"^[\x20-\x7e]*$")] = ""
    """`Content-Type` of results of kind `text` or `bytes`, such as `text/html`. Only with
    `[python]`."""


def model_output(table: OutputTable) -> OutputRule:
    """Convert the table of a model function. Raises BadManifest for keys of Python functions."""
    for key in ("kind", "content_type"):
        if value := getattr(table, key):
            raise refused(f"output.{key}", "no such key without [python]", value)
    return _rule(table)


def python_output(table: OutputTable) -> OutputRule:
    """Convert the table of a Python function. Raises BadManifest if its keys contradict."""
    if table.content_type and table.kind not in _TYPED:
        raise refused("output.kind", "text or bytes beside content_type", table.kind)
    return _rule(table)


def _rule(table: OutputTable) -> OutputRule:
    return OutputRule(table.tensor, tuple(table.labels), table.top_k)
