"""Table [health] of function.toml."""

from __future__ import annotations

import json
from typing import Any

import pytest

from registry.errors import BadManifest
from registry.manifest.document import overrides, parse_manifest
from registry.manifest.health import VLLM_COUNTER, health_table
from registry.model.servers import HealthSettings

VLLM = {"command": ["vllm", "serve", "m", "--port", "${PORT}"]}


def text(**tables: dict[str, Any] | None) -> str:
    """Return a file with these tables; None leaves one out."""
    lines = ["schema = 1"]
    for name, table in tables.items():
        if table is not None:
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines)


def health(table: dict[str, Any] | None, server: dict[str, Any] | None = None) -> HealthSettings:
    """Return the settings of a server with this table."""
    server = server or {"command": ["x", "${PORT}"]}
    manifest = parse_manifest(text(server=server, health=table), [])
    assert manifest.server is not None
    return manifest.server.health


def test_the_keys_of_the_table() -> None:
    """Each has a default; the table is the inverse of the settings."""
    table = {"hang": "report", "counter": "a:b_total", "metrics": "/m", "step_s": 5.0}

    assert health(None) == health({}) == HealthSettings()
    assert health(table) == HealthSettings("report", "a:b_total", "/m", 5.0)
    assert health_table(health(table)) == table


@pytest.mark.parametrize(
    ("server", "step_s"),
    [
        (VLLM, 120.0),
        ({"command": ["/opt/v/bin/vllm", "serve", "${PORT}"]}, 120.0),
        ({"command": "python3 -m vllm.entrypoints.openai.api_server --port ${PORT}"}, 120.0),
        ({"image": "vllm/vllm-openai:v0.32.0", "port": 8000}, 120.0),
        ({"command": ["vllm", "serve", "${PORT}", "--no-enable-chunked-prefill"]}, 900.0),
    ],
)
def test_vllm_has_a_counter_by_itself(server: dict[str, Any], step_s: float) -> None:
    """By its command or image. Where prefills are whole, a step may take minutes."""
    found = health(None, server)

    assert (found.counter, found.step_s) == (VLLM_COUNTER, step_s)


def test_what_is_given_replaces_the_preset() -> None:
    """An empty counter is none."""
    assert health({"counter": "", "step_s": 7}, VLLM) == HealthSettings(counter="", step_s=7.0)


def test_an_override_of_the_server_keeps_the_table() -> None:
    """`fnctl deploy --port` changes no other table."""
    manifest = parse_manifest(text(server=VLLM, health={"hang": "off"}), [])

    changed = overrides(manifest, ready="/x")

    assert changed.server is not None
    assert (changed.server.health.hang, changed.server.health.counter) == ("off", VLLM_COUNTER)


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
    with pytest.raises(BadManifest, match="health: expected the table"):
        parse_manifest(text(health={}), ["a.onnx"])
