"""What the server of a Python function says of its calls, for tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from registry.catalog import Deployed
from registry.interface import read_interface
from registry.model.functions import ExchangeLimits
from registry.model.revisions import Interface, Revision
from registry.model.servers import PythonSettings
from tests.support import nouns

FILE = {"type": "string", "contentEncoding": "base64"}
PICTURE = {**FILE, "contentMediaType": "image/*"}
TYPES = ["application/json", "multipart/form-data", "application/x-www-form-urlencoded"]


def named(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of named parameters."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def description(inputs: Any, output: Any = None, **more: Any) -> dict[str, Any]:
    """Return a description as the server gives it; `more` are members of its signature, or
    `defs`."""
    defs = more.pop("defs", None)
    own = {"predict": "predict(...)", "form": "def", "content_types": TYPES, "tensors": None}
    schema = {"inputs": inputs, "output": output, **({"$defs": defs} if defs else {})}
    return {"signature": {**own, **more}, "schema": schema, "imports": []}


def interface(inputs: Any, output: Any = None, **more: Any) -> Interface:
    """Return the interface that a description is read as; it has a schema."""
    found = read_interface(json.dumps(description(inputs, output, **more)))
    assert found.schema, found.why_not
    return found


def python_revision(
    said: Interface | None, kind: str = "", content_type: str = "", **changes: Any
) -> Revision:
    """Return the revision of a Python function."""
    python = PythonSettings(kind=kind, content_type=content_type)
    one = nouns.server_revision(python=python)
    return replace(one, **{"handler": "handler.py", "interface": said, **changes})


def python_deployed(said: Interface | None, **changes: Any) -> Deployed:
    """Return a Python function of one revision; `changes` as for `python_revision`."""
    owner = nouns.function("web", exchange=ExchangeLimits())
    return Deployed(owner, python_revision(said, **changes))


def as_python(one: Deployed, said: Interface | None) -> Deployed:
    """Return a server function as one in Python."""
    assert one.revision.server is not None
    server = replace(one.revision.server, python=PythonSettings())
    revision = replace(one.revision, server=server, handler="handler.py", interface=said)
    return Deployed(one.function, revision)
