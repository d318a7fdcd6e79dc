"""Table [park] of function.toml."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from registry.errors import BadManifest
from registry.manifest.document import overrides, parse_manifest
from registry.model.parks import ENGINES, EngineCall, ParkSettings
from registry.model.servers import ServerSettings

VLLM = {"command": "vllm serve m --port ${PORT} --enable-sleep-mode"}
SGLANG = {
    "command": "python3 -m sglang.launch_server --port ${PORT} --enable-memory-saver"
    " --enable-weights-cpu-backup"
}
OWN = {"command": "x ${PORT}"}
HOOKS = {"sleep": "POST /s?level=1", "wake": 'PUT /w/up {"tags": ["a b"]}', "check": "GET /c"}
GPU: dict[str, Any] = {"kind": "cuda"}
IMAGE = {"image": "vllm/vllm-openai:v0.32.0", "command": ["m", "--enable_sleep_mode"]}


def text(
    server: dict[str, Any],
    park: dict[str, Any],
    proof: str = "[openai]",
    device: dict[str, Any] = GPU,
) -> str:
    """Return a file with these tables; `proof` is what the golden sample comes from."""
    lines = ["schema = 1"]
    for name, table in (("server", server), ("park", park), ("device", device)):
        lines.append(f"[{name}]")
        lines += [f"{key} = {inline(value)}" for key, value in table.items()]
    return "\n".join([*lines, proof])


def inline(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


def served(server: dict[str, Any], park: dict[str, Any]) -> ServerSettings:
    """Return the settings of a server with these tables."""
    found = parse_manifest(text(server, park), []).server
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("server", "engine"), [(VLLM, "vllm"), (IMAGE, "vllm"), (SGLANG, "sglang")]
)
def test_a_preset_knows_its_engines_calls(server: dict[str, Any], engine: str) -> None:
    """Flags are found in the command, also with `_`, as vLLM takes them."""
    known = ENGINES[engine]
    park = served(server, {"engine": engine}).park
    assert park == ParkSettings(engine, known.sleep, known.wake, known.check)  # type: ignore[arg-type]
    assert park.park_s == 86_400


def test_flags_may_be_in_a_line_of_a_shell() -> None:
    """A command that `sh -c` runs is one word."""
    line = "exec vllm serve m --port ${PORT} --enable-sleep-mode"
    assert served({"command": ["sh", "-c", line]}, {"engine": "vllm"}).park is not None


def test_vllm_gets_the_variable_that_opens_its_control_calls() -> None:
    """Unless the owner gives it; without the table the server has none."""
    given = {**VLLM, "env": {"VLLM_SERVER_DEV_MODE": "1", "A": "b"}}
    assert served(VLLM, {"engine": "vllm"}).env == {"VLLM_SERVER_DEV_MODE": "1"}
    assert served(given, {"engine": "vllm"}).env == given["env"]
    assert served(SGLANG, {"engine": "sglang"}).env == {}
    assert served(VLLM, HOOKS).env == {}


def test_calls_of_ones_own() -> None:
    """With a query and a body. Nobody else knows how private the engine's port must be."""
    for network in ("none", "egress"):
        server = {**OWN, "network": network}
        sample = '[[sample]]\npath = "/up"\ngolden = true'
        found = parse_manifest(text(server, {**HOOKS, "park_s": 60}, sample), []).server
        assert found is not None
        assert found.park == ParkSettings(
            "",
            EngineCall("/s?level=1"),
            EngineCall("/w/up", "PUT", '{"tags": ["a b"]}'),
            EngineCall("/c", "GET"),
            60,
        )
        assert found.park.control == ("*/s", "*/w/up", "*/c")
    without = {key: HOOKS[key] for key in ("sleep", "wake")}
    park = served(OWN, without).park
    assert park is not None
    assert park.check is None


def test_a_server_on_a_unix_socket_may_have_a_network() -> None:
    """Nobody else reaches the socket, which is in the replica's own folder."""
    server = {
        "command": "vllm serve m --uds ${SOCKET} --enable-sleep-mode",
        "network": "egress",
    }
    sample = '[[sample]]\npath = "/up"\ngolden = true'
    found = parse_manifest(text(server, {"engine": "vllm"}, sample), []).server
    assert found is not None
    assert found.park is not None


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (OWN, {}, "park: expected engine, or sleep and wake, got nothing"),
    (OWN, {"sleep": "POST /s"}, "park: expected engine, or sleep and wake, got 'POST /s'"),
    (VLLM, {"engine": "llama"}, "park.engine: expected 'vllm' or 'sglang', got 'llama'"),
    (VLLM, {"engine": "vllm", "wake": "POST /w"}, "park.wake: expected no such key beside"),
    (VLLM, {"engine": "vllm", "park_s": 1}, "park.park_s: expected at least 60, got 1"),
    (VLLM, {"engine": "vllm", "level": 2}, "park.level: unknown key"),
    (OWN, {"engine": "vllm"}, "server.command: expected --enable-sleep-mode (without it /sleep"),
    (
        {"command": "sglang serve ${PORT} --enable-memory-saver"},
        {"engine": "sglang"},
        "server.command: expected --enable-weights-cpu-backup (without it the weights do not come",
    ),
    (
        {**VLLM, "env": {"VLLM_SERVER_DEV_MODE": "0"}},
        {"engine": "vllm"},
        "server.env.VLLM_SERVER_DEV_MODE: expected '1' with park.engine = vllm, got '0'",
    ),
    (
        {**VLLM, "secrets": {"VLLM_SERVER_DEV_MODE": "mode"}},
        {"engine": "vllm"},
        "server.secrets.VLLM_SERVER_DEV_MODE: expected '1' with park.engine = vllm, in server.env",
    ),
    (OWN, {**HOOKS, "sleep": "post /s"}, 'park.sleep: expected "METHOD /PATH"'),
    (OWN, {**HOOKS, "sleep": "POST s"}, 'park.sleep: expected "METHOD /PATH"'),
    (OWN, {**HOOKS, "sleep": "POST /s\r\nA: b"}, 'park.sleep: expected "METHOD /PATH"'),
    (OWN, {**HOOKS, "sleep": "POST /s\n{}"}, 'park.sleep: expected "METHOD /PATH"'),
    (OWN, {**HOOKS, "sleep": "POST /s#a"}, 'park.sleep: expected "METHOD /PATH"'),
    (OWN, {**HOOKS, "wake": "POST /w {"}, "park.wake: expected a JSON body, got '{'"),
    (OWN, {**HOOKS, "wake": "POST /w " + 2000 * "["}, "park.wake: expected a JSON body"),
    (OWN, {**HOOKS, "wake": "POST /w " + 5000 * " "}, "park.wake: expected"),
    (OWN, {**HOOKS, "wake": "POST //w"}, "park.wake: expected a path without //"),
    (OWN, {**HOOKS, "wake": "POST /a/../w"}, "park.wake: expected a path without //"),
    (OWN, {**HOOKS, "wake": "POST /%77"}, "park.wake: expected a path without //"),
    (OWN, {**HOOKS, "wake": "POST /w;a"}, "park.wake: expected a path without //"),
    (OWN, {**HOOKS, "check": "POST /c"}, 'park.check: expected "GET /PATH"'),
    (OWN, {**HOOKS, "check": "GET /c {}"}, 'park.check: expected "GET /PATH"'),
]


@pytest.mark.parametrize(("server", "park", "said"), REFUSED)
def test_what_does_not_fit_is_refused(
    server: dict[str, Any], park: dict[str, Any], said: str
) -> None:
    """With the key, what was expected, and why."""
    with pytest.raises(BadManifest) as refused:
        served(server, park)
    assert said in refused.value.message


def test_an_engine_that_others_reach_is_refused() -> None:
    """An image with a network too: other containers reach its port."""
    sample = '[[sample]]\npath = "/up"\ngolden = true'
    for server in (VLLM, IMAGE):
        with pytest.raises(BadManifest) as refused:
            parse_manifest(text({**server, "network": "egress"}, {"engine": "vllm"}, sample), [])
        said = "server.network: expected none, or ${SOCKET} in the command, with park.engine = vllm"
        assert said in refused.value.message
        assert "control calls need no key, and others reach its port" in refused.value.message


@pytest.mark.parametrize("park", [{"engine": "vllm"}, HOOKS])
def test_a_park_needs_a_golden_sample(park: dict[str, Any]) -> None:
    """Nothing else proves that what wakes is right."""
    with pytest.raises(BadManifest) as refused:
        parse_manifest(text(VLLM, park, ""), [])
    said = "park: expected a golden sample, which proves each wake ([openai], or [[sample]] with"
    assert said in refused.value.message
    assert "no sample has golden = true" in refused.value.message


@pytest.mark.parametrize("kind", ["[python]", ""])
def test_only_servers_have_the_table(kind: str) -> None:
    """Models and functions in Python have no engine that sleeps."""
    manifest = f'schema = 1\n{kind}\n[park]\nengine = "vllm"\n'
    with pytest.raises(BadManifest, match="park: expected no such table without"):
        parse_manifest(manifest, ["a.onnx"])


def test_an_override_keeps_the_table_and_is_checked_with_it() -> None:
    """`fnctl deploy --network egress` would open the engine to others."""
    manifest = parse_manifest(text(VLLM, {"engine": "vllm", "park_s": 90}), [])
    assert manifest.server is not None
    changed = overrides(manifest, ready="/health").server
    assert changed == replace(manifest.server, ready="/health")
    with pytest.raises(BadManifest, match="expected --enable-sleep-mode"):
        overrides(manifest, command="vllm serve ${PORT}")
    marked = parse_manifest(
        text(VLLM, {"engine": "vllm"}, '[[sample]]\npath = "/up"\ngolden = true'), []
    )
    with pytest.raises(BadManifest, match="others reach its port"):
        overrides(marked, network="egress")


@pytest.mark.parametrize("device", [{}, {"kind": "any"}, {"kind": "cpu"}])
@pytest.mark.parametrize("park", [{"engine": "vllm"}, HOOKS])
def test_a_park_needs_a_gpu(park: dict[str, Any], device: dict[str, Any]) -> None:
    """On a CPU slot nothing proves that memory was freed, so nothing would be gained."""
    with pytest.raises(BadManifest) as refused:
        parse_manifest(text(VLLM, park, device=device), [])
    kind = device.get("kind", "any")
    said = f'device.kind: expected "cuda" with [park], got {kind!r}'
    assert said in refused.value.message
    assert "only the driver of a GPU proves" in refused.value.message


def test_several_gpus_are_gpus() -> None:
    """Their kind need not be said."""
    found = parse_manifest(text(VLLM, {"engine": "vllm"}, device={"count": 2}), []).server
    assert found is not None
    assert found.park is not None


def test_an_override_of_the_device_is_checked_with_the_table() -> None:
    """`fnctl deploy --device cpu`."""
    manifest = parse_manifest(text(VLLM, {"engine": "vllm"}), [])
    with pytest.raises(BadManifest, match='expected "cuda" with'):
        overrides(manifest, device="cpu")
