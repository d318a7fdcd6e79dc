"""Schemas of the bodies of a Python function, from what its own server said. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from gateway.openapi.descriptions import python_calls
from gateway.openapi.input_fields import DEPTH_MAX, InputField, Inputs, inputs_of
from gateway.openapi.routes import EVENTS, JSON, OCTETS, TEXT
from gateway.openapi.tensor_bodies import closed_object, tensor_answers, tensor_requests
from registry.interface import referring
from registry.model.revisions import Interface, Revision
from runtime_image.contract.signature import Signature

FORM: Final = "multipart/form-data"
URLENCODED: Final = "application/x-www-form-urlencoded"
LINES: Final = "application/x-ndjson"
PNG: Final = "image/png"
NPY: Final = "application/x-npy"
OUTPUT: Final = "output"
"""Name of a result that is no object."""
FILE_KINDS: Final = ("image", "audio", "bytes")
"""Kinds of inputs that are files."""
ANY_TYPE: Final = "any other type"
_MEDIA: Final = re.compile(r"[a-z]+/[A-Za-z0-9.+*-]+")
_PREFIX: Final = "#/components/schemas/"
_TEXT: Final = {"type": "string"}
_FILE: Final = {"type": "string", "format": "binary"}
_BY_KIND: Final = {"text": TEXT, "bytes": OCTETS, "image": PNG, "npy": NPY}
"""Media types of results of a declared kind."""


class _Said(NamedTuple):
    """What a server said. `inputs` and `output` refer to `components`; `fields` are its inputs."""

    fields: Inputs
    inputs: dict[str, Any]
    output: dict[str, Any] | None
    components: dict[str, Any]

    def resolved(self, schema: Any) -> dict[str, Any]:
        """Return a schema, or the component that it refers to."""
        for _ in range(DEPTH_MAX):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            schema = self.components[schema["$ref"].removeprefix(_PREFIX)]
        return schema if isinstance(schema, dict) else {}


def python_bodies(
    revision: Revision, taken: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the bodies that a Python function takes and answers, by media type, and the schemas
    that they refer to, by names of components that are not `taken`."""
    interface = revision.interface or Interface(content_types=(JSON,))
    said = _said(interface, taken)
    if interface.tensors is None:
        requests = _requests(interface, said)
    else:
        requests = tensor_requests(interface.tensors, revision.inputs)
        requests[FORM] = {"schema": _form(said, FORM)}
        files = (name for name, rule in revision.inputs.items() if rule.kind in FILE_KINDS)
        requests[FORM]["schema"]["properties"] |= dict.fromkeys(files, _FILE)
    return requests, _answers(revision, interface, said), said.components


def _said(interface: Interface, taken: Collection[str]) -> _Said:
    fields = inputs_of(python_calls(interface))
    if not interface.schema:
        return _Said(fields, {"type": "object"}, None, {})

    def name_of(name: str) -> str:
        while name in taken:
            name = f"{name}_"
        return name

    schema = referring(interface.schema, lambda name: f"{_PREFIX}{name_of(name)}")
    components = {name_of(name): one for name, one in schema.get("$defs", {}).items()}
    return _Said(fields, schema["inputs"], schema["output"], components)


def _requests(interface: Interface, said: _Said) -> dict[str, Any]:
    found: dict[str, Any] = {JSON: {"schema": closed_object({"inputs": said.inputs})}}
    needs_file = any(one.is_required and one.kind == "file" for one in said.fields.fields)
    for words in interface.content_types:
        if words == URLENCODED and needs_file:
            continue
        if words in (FORM, URLENCODED):
            found[words] = {"schema": _form(said, words)}
        elif words == ANY_TYPE:
            found["*/*"] = {}
        elif _MEDIA.fullmatch(words):
            found.setdefault(words, {})
    return found


def _form(said: _Said, media: str) -> dict[str, Any]:
    """Return the schema of a form, whose files are bytes; urlencoded ones have none."""
    own = said.resolved(said.inputs).get("properties", {})
    fields = [one for one in said.fields.fields if media == FORM or one.kind != "file"]
    return {
        "type": "object",
        "properties": {one.name: _part(one, own.get(one.name, {})) for one in fields},
        "required": [one.name for one in fields if one.is_required],
        "additionalProperties": said.fields.takes_others,
    }


def _part(field: InputField, schema: Any) -> Any:
    """Return the schema of a part of a form."""
    if field.kind != "file":
        return schema
    file = {**_FILE, "contentMediaType": field.media or OCTETS}
    return {"type": "array", "items": file} if field.is_many else file


def _answers(revision: Revision, interface: Interface, said: _Said) -> dict[str, Any]:
    python = revision.server.python if revision.server is not None else None
    kind = python.kind if python is not None else ""
    own = python.content_type if python is not None else ""
    if interface.is_stream:
        return _streams(said, own)
    output = said.resolved(said.output)
    if not kind and "contentEncoding" in output:
        kind = "image" if output.get("contentMediaType") == "image/*" else "bytes"
    if not kind and output.get("type") == "string" and "enum" not in output:
        kind = "text"
    if kind in _BY_KIND:
        found = {own or _BY_KIND[kind]: {"schema": _TEXT} if kind == "text" else {}}
        short = {"schema": _outputs(closed_object({OUTPUT: _TEXT}))}
        return {**found, JSON: short} if kind == "text" else found
    is_tensors = interface.tensors is not None or revision.output.labels or revision.output.top_k
    if is_tensors:
        return tensor_answers(Signature("tensors", (), ()), revision.output)
    if said.output is None:
        return {JSON: {"schema": _outputs({})}, "*/*": {}}
    is_object = output.get("type") == "object"
    outputs = said.output if is_object else closed_object({OUTPUT: said.output})
    return {JSON: {"schema": _outputs(outputs)}}


def _outputs(outputs: Any) -> dict[str, Any]:
    members = {"outputs": outputs, "revision": _TEXT}
    return closed_object(members, left_out=("revision",), is_closed=False)


def _streams(said: _Said, own: str) -> dict[str, Any]:
    """Return the forms of a stream, among which `Accept` chooses. `x-item-schema` is that of one
    value: the data of an event, a line."""
    output = said.resolved(said.output)
    if "contentEncoding" in output:
        return {own or OCTETS: {}}
    item = {"schema": _TEXT}
    if said.output is not None:
        item["x-item-schema"] = said.output
    found: dict[str, Any] = {EVENTS: item, LINES: item}
    if said.output is None or output.get("type") == "string":
        found[own or TEXT] = {"schema": _TEXT}
    return found if said.output is not None else {**found, OCTETS: {}}
