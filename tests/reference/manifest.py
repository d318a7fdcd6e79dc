"""docs/reference/manifest.md: the keys of `function.toml`."""

from __future__ import annotations

from itertools import chain
from typing import Any

from pydantic import BaseModel

from registry.manifest import (
    health,
    oip,
    openai,
    optimise,
    output,
    park,
    python,
    runtime,
    schema,
    server,
)
from registry.manifest.schema import RESERVED_ENGINES, Document
from tests.reference.markdown import code, described, either, items, page, wrapped
from tests.reference.values import default_of, type_of
from tests.surface.configuration import keys

TITLE = "function.toml"
INTRO = """
`function.toml` describes a function: the file is in the folder that `fnctl deploy` uploads. Only
`schema` is required. An unknown key, a value of another type or a value out of range refuses the
deploy; the error names the key, the expected and the actual value.

`fnctl deploy` overrides some keys: see [its options](command-line.md#fnctl-deploy). Changes of
`[scaling]`, `[limits]`, `[health]` and `[labels]` apply to the function without a new revision.
"""
TABLES: dict[str, tuple[str, type[BaseModel]]] = {
    "runtime": ("[runtime]", schema.RuntimeTable),
    "runtime.shapes.*": ("[runtime.shapes.NAME]", runtime.ShapeTable),
    "server": ("[server]", server.ServerTable),
    "python": ("[python]", python.PythonTable),
    "openai": ("[openai] with [server]", openai.OpenAITable),
    "oip": ("[oip]", oip.OipTable),
    "scaling": ("[scaling]", schema.ScalingTable),
    "device": ("[device]", schema.DeviceTable),
    "batching": ("[batching]", schema.BatchingTable),
    "optimise": ("[optimise]", optimise.OptimiseTable),
    "limits": ("[limits]", schema.LimitsTable),
    "health": ("[health] with [server] or [python]", health.HealthTable),
    "park": ("[park] with [server]", park.ParkTable),
    "input.*": ("[input.NAME]", schema.InputTable),
    "output": ("[output]", output.OutputTable),
    "sample": ("[sample] with [server]", server.SampleTable),
}
GREETING = {
    "runtime": (
        "The engines `auto` and `tensorrt` compile the model in the background: see [compiled"
        " models](../guides/tensorrt.md)."
    ),
    "runtime.shapes.*": (
        "Shapes that the model is compiled for. Each list has one size per axis, the first one"
        " included."
    ),
    "input.*": (
        "One table for each input that needs more than its tensor. Keys of another `kind` are"
        " refused."
    ),
    "output": "Labels make answers readable. The scores stay in the answer.",
    "server": (
        "The function is an HTTP server, which is started when a request comes. Exclusive with"
        " `model`, `[runtime]`, `[input]`, `[output]`, `[batching]`, `[optimise]` and `[oip]`, and"
        " with `handler.py` unless there is `[python]`."
    ),
    "python": (
        "The function is Python code with packages of its own: see [Python"
        " functions](../guides/python.md). Exclusive with `model`, `[runtime]`, `[optimise]` and"
        " `[oip]`. Beside `[server]` the table has `version` and `needs` alone."
    ),
    "openai": (
        "The function is a model at `/v1`, for clients of OpenAI's or Anthropic's API. An empty"
        " table is enough for a server that has the endpoints below `/v1`."
    ),
    "oip": (
        "Name and version of the model for clients of the Open Inference Protocol, as Triton's are."
        " [A deploy of a model repository](../guides/model-repository.md) sets both."
    ),
    "optimise": (
        "A deploy makes candidates of the model in other precisions and measures them beside the"
        " original: see [precision](../guides/precision.md)."
    ),
    "park": (
        "How the server's engine is put to sleep and woken, in place of being stopped and started:"
        " see [sleep instead of stop](../guides/park.md). `engine` names a preset, else `sleep` and"
        " `wake` are needed. Each wake is proved by a [golden"
        " sample](../guides/servers.md#golden-samples), without which the table is refused."
    ),
    "sample": (
        "A request that a deploy sends to the server once it is ready, and that `fnctl invoke`"
        " sends without `--path`. Several requests are tables `[[sample]]`."
    ),
}


def document() -> str:
    """The page. Raises KeyError for a table without a place in TABLES."""
    found: dict[str, list[str]] = {"": []}
    of_samples = ((f"sample.{path}", *rest) for path, *rest in keys(server.SampleTable))
    for path, one, whole in chain(keys(Document), of_samples):
        at, _, key = path.removesuffix(" (required)").rpartition(".")
        if key == "*":  # a table of free keys is a key itself
            at, _, key = at.rpartition(".")
        found.setdefault(at, []).extend(_key(at, key, path, one, whole))
    reserved = either([code(one) for one in RESERVED_ENGINES])
    blocks = ["## Top level", *found.pop("")]
    for at, lines in found.items():
        caption, _ = TABLES[at]
        blocks += [f"## `{caption}`", *([wrapped(GREETING[at])] if at in GREETING else []), *lines]
        if at == "runtime":
            blocks.append(f"The engines {reserved.replace(' or ', ' and ')} are reserved names.")
    return page(TITLE, INTRO, *blocks)


def _described(kind: type) -> dict[str, str]:
    """The fields of a table as `described`, with those that it inherits from another table."""
    tables = [one for one in reversed(kind.__mro__) if one.__module__.startswith("registry.")]
    return {name: text for one in tables for name, text in described(one).items()}


def _key(at: str, key: str, path: str, one: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    kind = TABLES[at][1] if at else Document
    name = next(field for field, info in kind.model_fields.items() if key in (field, info.alias))
    facts = [f"Type: {_type(kind, key, path, one, whole)}"]
    if path.endswith("(required)"):
        facts.append("Required")
    elif path == "server.command":
        facts.append("Required without `image`")
    elif one.get("default") is not None:
        facts.append(f"Default: {default_of(one['default'])}")
    if at == "input.*":
        owners = (owner for owner, names in schema._KEYS_OF.items() if key in names)
        facts += ["Only with " + code(f'kind = "{owner}"') for owner in owners]
    caption = at.replace("*", "NAME")
    title = f"{caption}.{key}" if at else key
    return [f"### `{title}`", wrapped(_described(kind)[name]), items(facts)]


def _type(
    kind: type[BaseModel], key: str, path: str, one: dict[str, Any], whole: dict[str, Any]
) -> str:
    if not path.endswith("*"):
        return type_of(one, whole)
    return type_of(kind.model_json_schema(by_alias=True)["properties"][key], whole)
