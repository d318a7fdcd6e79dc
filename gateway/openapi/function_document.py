"""The OpenAPI 3.1 document of one function: its calls, with the schemas of their bodies. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.openapi.call_routes import (
    CALLING,
    FORWARDED,
    LENGTH,
    NOT_STARTED,
    READ,
    RUN,
    SENT,
    UNKNOWN,
)
from gateway.openapi.descriptions import example_inputs
from gateway.openapi.document import make_document
from gateway.openapi.python_bodies import python_bodies
from gateway.openapi.routes import JSON, WORDS, Answer, Content, Errors, Parameter, Route
from gateway.openapi.tensor_bodies import tensor_answers, tensor_requests
from gateway.statuses import OK

if TYPE_CHECKING:
    from registry.catalog import Deployed


def function_document(deployed: Deployed) -> dict[str, Any]:
    """Return the document of a function that is no server, or is a Python function."""
    revision = deployed.revision
    if revision.is_python:
        return _python_document(deployed)
    signature = revision.signature
    parameters = (LENGTH, *CALLING) if signature.kind == "tensors" else CALLING
    document = _document(deployed, parameters, (*READ, *NOT_STARTED, *RUN))
    requests = tensor_requests(signature, revision.inputs)
    inputs = example_inputs(deployed)
    if signature.kind != "bytes" and inputs.keys() >= {one.name for one in signature.inputs}:
        requests[JSON]["example"] = {"inputs": inputs}
    return _with_bodies(document, requests, tensor_answers(signature, revision.output))


def _python_document(deployed: Deployed) -> dict[str, Any]:
    document = _document(deployed, CALLING, (*READ, *RUN, *FORWARDED))
    components = document["components"]["schemas"]
    requests, answers, schemas = python_bodies(deployed.revision, components)
    components |= schemas
    return _with_bodies(document, requests, answers)


def _document(
    deployed: Deployed, parameters: tuple[Parameter, ...], errors: Errors
) -> dict[str, Any]:
    function, revision = deployed.function, deployed.revision
    call = Route(
        "POST",
        f"/fn/{function.name}",
        function.name,
        f"Call {function.name}.",
        "invoke",
        (Answer(OK, WORDS[OK], (), (*SENT, *(one.name for one in parameters if one is LENGTH))),),
        (Content(JSON),),
        parameters,
        tuple(dict.fromkeys((*UNKNOWN, *errors))),
        is_open=True,
    )
    about = f"Revision {revision.ref}. {_limits(deployed)}"
    info = {"title": function.name, "version": revision.ref, "description": about}
    return make_document(info, [call])


def _with_bodies(
    document: dict[str, Any], requests: dict[str, Any], answers: dict[str, Any]
) -> dict[str, Any]:
    """Return the document, whose only operation has these bodies by media type."""
    ((path, operations),) = document["paths"].items()
    operation = operations["post"]
    operation["requestBody"]["content"] = requests
    operation["responses"][str(OK)]["content"] = answers
    return {**document, "paths": {path: operations}}


def _limits(deployed: Deployed) -> str:
    limits = deployed.function.limits
    return (
        f"A body has at most {limits.body_mib} MiB, a run takes at most {limits.timeout_s:g} s, and"
        f" a call waits at most {limits.wait_s:g} s for a replica unless `Prefer: wait` says else."
    )
