"""Table [park] of a server function, and its conversion to settings."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from registry.manifest.checks import NOTHING, Section, refused
from registry.model.parks import (
    ENGINES,
    PARK_S,
    EngineCall,
    ParkSettings,
    control_rule,
    lacking,
)
from registry.model.revisions import DeviceNeed
from registry.model.servers import SOCKET, ServerSettings
from registry.path_rules import parse_rule

_AT: Final = "park"
CALL_MAX: Final = 4096
"""Max characters of a call."""
CALL_FORM: Final = '"METHOD /PATH", with a JSON body behind it if there is one'
CHECK_FORM: Final = '"GET /PATH", answered with {"is_sleeping": true} or false'
_CALL: Final = re.compile(r"([A-Z]{1,20}) (/[!\"$-~]{0,512})(?: (.+))?", re.DOTALL)
_PRIVATE: Final = f"none, or {SOCKET} in the command,"
Call = Annotated[str, StringConstraints(max_length=CALL_MAX)]


class ParkTable(Section):
    """Table [park], with `kind = "cuda"` in [device]."""

    engine: Literal["vllm", "sglang"] | None = None
    """Engine whose calls fngate knows: `vllm` with `--enable-sleep-mode`, or `sglang` with
    `--enable-memory-saver` and `--enable-weights-cpu-backup`. Callers reach none of its control
    calls. With `vllm` the server gets `VLLM_SERVER_DEV_MODE=1`, which opens them."""
    sleep: Call = ""
    """Call that puts another engine to sleep, such as `"POST /sleep"`, with a JSON body behind the
    path if it has one. Its answer, with a status from 200 to 299, says that the engine sleeps.
    Callers do not reach these paths."""
    wake: Call = ""
    """Call that wakes it, in the same form."""
    check: Call = ""
    """Call that asks whether it sleeps, such as `"GET /is_sleeping"`, which is answered with the
    JSON object `{"is_sleeping": true}` or `false`. Empty for an engine that does not say it."""
    park_s: float = Field(default=PARK_S, ge=60, le=30 * 86_400)
    """Longest time in seconds that a replica sleeps; then it is stopped."""


def park_settings(table: ParkTable, server: ServerSettings, device: DeviceNeed) -> ServerSettings:
    """Return the settings of a server with those of the table. Raises BadManifest."""
    if table.engine:
        for key in ("sleep", "wake", "check"):
            if given := getattr(table, key):
                raise refused(f"{_AT}.{key}", "no such key beside park.engine", given)
        engine = ENGINES[table.engine]
        calls = engine.sleep, engine.wake, engine.check
    else:
        if not (table.sleep and table.wake):
            raise refused(_AT, "engine, or sleep and wake", table.sleep or table.wake or NOTHING)
        check = _check(table.check) if table.check else None
        calls = _call("sleep", table.sleep), _call("wake", table.wake), check
    park = ParkSettings(table.engine or "", *calls, park_s=table.park_s)
    return with_park(server, park, device)


def with_park(server: ServerSettings, park: ParkSettings, device: DeviceNeed) -> ServerSettings:
    """Return the settings of a server that can be parked. Raises BadManifest if it cannot."""
    if device.kind != "cuda":
        note = "is refused: only the driver of a GPU proves that a sleeping engine has freed memory"
        raise refused("device.kind", '"cuda" with [park]', device.kind, note)
    if why_not := server.why_not_golden:
        proof = "[openai], or [[sample]] with golden = true"
        raise refused(_AT, f"a golden sample, which proves each wake ({proof})", why_not)
    if park.engine:
        _check_engine(server, park.engine)
        server = replace(server, env=_variables(server, park.engine))
    return replace(server, park=park)


def _check_engine(server: ServerSettings, engine: str) -> None:
    """Raise BadManifest if others than fngate can reach the engine, whose control calls need no
    key, or if it would not sleep or come back."""
    at = f"with park.engine = {engine}"
    if not server.is_private:
        reason = "the engine's control calls need no key, and others reach its port"
        raise refused("server.network", f"{_PRIVATE} {at}", server.network, f"is refused: {reason}")
    if missing := lacking(engine, server.command):
        flags = " and ".join(f"{one.flag} ({one.reason})" for one in missing)
        got = " ".join(server.command) or NOTHING
        raise refused("server.command", f"{flags} {at}", got)


def _variables(server: ServerSettings, engine: str) -> dict[str, str]:
    """Return the variables of a server with those that its engine needs. Raises BadManifest."""
    found = dict(server.env)
    for name, value in ENGINES[engine].env.items():
        expected = f"{value!r} with park.engine = {engine}"
        if name in server.secrets:
            raise refused(f"server.secrets.{name}", f"{expected}, in server.env", "a secret")
        if found.setdefault(name, value) != value:
            raise refused(f"server.env.{name}", expected, found[name])
    return found


def _call(key: str, text: str) -> EngineCall:
    """Read a call. Raises BadManifest."""
    found = _CALL.fullmatch(text)
    if found is None:
        raise refused(f"{_AT}.{key}", CALL_FORM, text or NOTHING)
    method, path, body = found[1], found[2], found[3] or ""
    try:
        parse_rule(control_rule(path))
    except ValueError as error:
        form = "a path without //, dot segments, ; % or \\, since callers are denied it"
        raise refused(f"{_AT}.{key}", form, path) from error
    if body:
        try:
            json.loads(body)
        except (ValueError, RecursionError) as error:
            raise refused(f"{_AT}.{key}", "a JSON body", body) from error
    return EngineCall(path, method, body)


def _check(text: str) -> EngineCall:
    call = _call("check", text)
    if call.method != "GET" or call.body:
        raise refused(f"{_AT}.check", CHECK_FORM, text)
    return call
