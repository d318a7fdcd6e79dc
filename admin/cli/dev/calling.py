"""The line that calls a function on this machine, from what its runner says of it."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any, Final

from gateway.openapi.input_fields import call_line, example_inputs
from registry.bounded_text import read_json
from registry.errors import BadRequest
from runtime_image.contract.server import DESCRIPTION, DESCRIPTION_MAX

ASK_S: Final = 5.0
_OK: Final = 200


def describe(host: str, port: int) -> Mapping[str, Any]:
    """Return what a runner says of its handler; {} if it does not."""
    connection = http.client.HTTPConnection(host, port, timeout=ASK_S)
    try:
        connection.request("GET", DESCRIPTION)
        answer = connection.getresponse()
        data = answer.read(DESCRIPTION_MAX + 1)
        found = read_json(data, dict[str, Any], "description") if answer.status == _OK else {}
    except (OSError, http.client.HTTPException, BadRequest):
        return {}
    finally:
        connection.close()
    return found


def curl(url: str, description: Mapping[str, Any], sample: Mapping[str, Any]) -> str:
    """Return a command that calls the function; `sample` are inputs of its `[sample]`."""
    said = description.get("signature")
    signature = said if isinstance(said, Mapping) else {}
    is_stream = str(signature.get("form")).endswith("generator")
    known = {"signature": signature.get("tensors") or {}, "schema": description.get("schema")}
    return call_line(url, sample or example_inputs(known), is_stream=is_stream)
