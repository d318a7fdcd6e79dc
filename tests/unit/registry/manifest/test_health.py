"""Table [health] of function.toml."""

from __future__ import annotations

import json
from typing import Any

import pytest

from registry.errors import BadManifest
from registry.manifest.document import overrides, parse_manifest
from registry.model.functions import Health

VLLM = {"command": ["vllm", "serve", "m", "--port", "${PORT}"]}


def text(**tables: dict[str, Any] | None) -> str:
    """Return a file with these tables; None leaves one out."""
    lines = ["schema = 1"]
    for name, table in tables.items():
        if table is not None:
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines)


def health(table: dict[str, Any] | None, server: dict[str, Any] | None = None) -> Health:
    """Return the settings of a server with this table."""
    server = server or {"command": ["x", "${PORT}"]}
    return parse_manifest(text(server=server, health=table), []).health


def test_the_keys_of_the_table() -> None:
    """Each has a default. What the table leaves out follows from the program, when it starts."""
    table = {"hang": "report", "counter": "a:b_total", "metrics": "/m", "step_s": 5.0}

    assert health(None) == health({}) == health(None, VLLM) == Health()
    assert health(table) == Health(**table)
    assert health({"counter": ""}, VLLM) == Health(counter="")


def test_an_override_of_the_server_keeps_the_table() -> None:
    """`fnctl deploy --port` changes no other table."""
    manifest = parse_manifest(text(server=VLLM, health={"hang": "off"}), [])

    assert overrides(manifest, ready="/x").health == Health(hang="off")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"hang": "kill"}, "health.hang: expected 'replace', 'report' or 'off'"),
        ({"counter": "a b"}, "health.counter: expected the name of a metric"),
        ({"metrics": "m"}, "health.metrics: expected a path such as /metrics"),
        ({"metrics": "/m x"}, "health.metrics: expected a path such as /metrics"),
        ({"step_s": 0}, "health.step_s: expected at least 1"),
        ({"sample": True}, "health.sample"),
    ],
)
def test_what_does_not_fit_is_refused(table: dict[str, Any], said: str) -> None:
    """With the key and what was expected."""
    with pytest.raises(BadManifest) as refused:
        health(table)

    assert said in refused.value.message


def test_a_model_has_no_such_table() -> None:
    """Its replicas tell their state themselves."""
    with pytest.raises(BadManifest, match="health: expected no such key"):
        parse_manifest(text(health={}), ["a.onnx"])
