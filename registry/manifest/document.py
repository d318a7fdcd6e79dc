"""Parses function.toml into a `Manifest`, with defaults filled in."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, TypedDict, Unpack

from registry.bounded_text import read_toml
from registry.builds import Compilation
from registry.bundles.foreign_formats import by_suffix, is_onnx
from registry.errors import BadManifest, BadRequest
from registry.manifest.checks import NOTHING, refused, validate
from registry.manifest.device import device_need
from registry.manifest.health import health_settings
from registry.manifest.oip import oip_identity
from registry.manifest.openai import model_api
from registry.manifest.optimise import optimisation
from registry.manifest.output import model_output, python_output
from registry.manifest.park import park_settings, with_park
from registry.manifest.python import (
    MODEL_KEYS,
    PythonTable,
    beside_command,
    check_needs,
    python_samples,
    python_settings,
    python_table,
)
from registry.manifest.runtime import check_device, compilation
from registry.manifest.schema import (
    BatchingTable,
    DeviceTable,
    Document,
    LimitsTable,
    ScalingTable,
    check_document,
    check_json_alone,
    check_manifest_name,
    declared,
    input_rule,
)
from registry.manifest.server import (
    REFUSED_KEYS,
    ServerTable,
    limits,
    sample_files,
    sample_requests,
    server_settings,
    server_table,
)
from registry.model.functions import ExchangeLimits, Health, Limits, Scaling
from registry.model.revisions import Batching, DeviceNeed, Engine
from registry.model.servers import ServerSettings
from runtime_image.contract.model import InputRule, OutputRule
from runtime_image.contract.precision import Optimisation

MANIFEST_FILE: Final = "function.toml"
HANDLER_FILE: Final = "handler.py"
_SAMPLE_DEPTH_MAX: Final = 16
_OPENAI: Final = "openai"
_PARK: Final = "park"
"""Tables that set something by being there."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A validated manifest.

    `name` is "" if the file has none. `model` and `handler` are bundle paths, "" for none. `sample`
    maps inputs to "@file" or JSON values. `server` and `exchange` are set for server functions,
    whose samples are in `server`. `named` are the settings that the file or an override gives, like
    "limits.wait_s".
    """

    name: str = ""
    model: str = ""
    handler: str = ""
    engine: Engine = "onnx"
    labels: dict[str, str] = field(default_factory=dict)
    scaling: Scaling = field(default_factory=Scaling)
    limits: Limits = field(default_factory=Limits)
    device: DeviceNeed = field(default_factory=DeviceNeed)
    batching: Batching = field(default_factory=Batching)
    inputs: dict[str, InputRule] = field(default_factory=dict)
    output: OutputRule = field(default_factory=OutputRule)
    sample: dict[str, Any] = field(default_factory=dict)
    server: ServerSettings | None = None
    exchange: ExchangeLimits | None = None
    health: Health = field(default_factory=Health)
    oip_name: str = ""
    oip_version: str = ""
    compilation: Compilation | None = None
    optimise: Optimisation | None = None
    named: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def is_python(self) -> bool:
        """Whether it is a function in Python whose server is ours."""
        return self.server is not None and self.server.python is not None and self.handler != ""

    @property
    def files(self) -> tuple[str, ...]:
        """Bundle paths that it names: model, handler, sample files. Sorted, without repeats."""
        samples = [value[1:] for value in self.sample.values() if _is_file(value)]
        samples += sample_files(self.server.samples) if self.server else ()
        samples += [self.optimise.samples] if self.optimise else []
        samples += [self.server.python.needs] if self.server and self.server.python else []
        return tuple(sorted({path for path in (self.model, self.handler, *samples) if path}))


class Overrides(TypedDict, total=False):
    """Settings that the command line may override; None keeps the manifest's value."""

    name: str | None
    min: int | None
    max: int | None
    idle_s: float | None
    spread: bool | None
    file_hosts: int | None
    preemptible: bool | None
    host_labels: dict[str, str] | None
    memory_mib: int | None
    device: str | None
    gpus: int | None
    batch_max: int | None
    batching: str | None
    timeout_s: float | None
    concurrency: int | None
    command: list[str] | str | None
    env: dict[str, str] | None
    port: int | None
    ready: str | None
    network: str | None
    image: str | None
    mounts: dict[str, str] | None
    secrets: dict[str, str] | None


_OVERRIDDEN: Final[dict[str, tuple[str, str]]] = {
    "min": ("scaling", "min"),
    "max": ("scaling", "max"),
    "idle_s": ("scaling", "idle_s"),
    "spread": ("scaling", "spread"),
    "file_hosts": ("scaling", "file_hosts"),
    "preemptible": ("scaling", "preemptible"),
    "host_labels": ("device", "host"),
    "memory_mib": ("device", "memory_mib"),
    "device": ("device", "kind"),
    "gpus": ("device", "count"),
    "batch_max": ("batching", "max_size"),
    "batching": ("batching", "mode"),
    "timeout_s": ("limits", "timeout_s"),
    "concurrency": ("limits", "concurrency"),
    "command": ("server", "command"),
    "env": ("server", "env"),
    "port": ("server", "port"),
    "ready": ("server", "ready"),
    "network": ("server", "network"),
    "image": ("server", "image"),
    "mounts": ("server", "mounts"),
    "secrets": ("server", "secrets"),
}


def parse_manifest(text: str, files: Sequence[str]) -> Manifest:
    """Parse the text of function.toml; `files` are the paths of the bundle it belongs to.

    Raises BadManifest, naming the key, the expected and the actual value.
    """
    data = read_toml(text, MANIFEST_FILE)
    if "python" in data and "server" not in data:
        return _python_manifest(data, files)
    if "server" in data:
        return _server_manifest(data, files)
    document = check_document(data)
    if _OPENAI in document.model_fields_set:
        raise refused("openai", "the table [server] beside it", "none", "is for servers only")
    if document.runtime.engine == "python":
        check_needs(files)
    manifest = _manifest(document, files)
    _check_sample(manifest, files)
    return manifest


def default_manifest(model_file: str) -> Manifest:
    """Return the manifest of a model file without function.toml: all defaults."""
    return Manifest(model=model_file)


def overrides(manifest: Manifest, **changes: Unpack[Overrides]) -> Manifest:
    """Return `manifest` with the given changes, validated like the file itself.

    Raises BadManifest, naming the manifest's key, like scaling.min.
    """
    given: dict[str, object] = {key: value for key, value in changes.items() if value is not None}
    if unknown := sorted(given.keys() - _OVERRIDDEN.keys() - {"name"}):
        raise TypeError(f"unknown overrides: {', '.join(unknown)}")
    name = str(given.pop("name", manifest.name))
    check_manifest_name(name)
    tables: dict[str, dict[str, Any]] = {
        "scaling": asdict(manifest.scaling),
        "device": asdict(manifest.device),
        "batching": asdict(manifest.batching),
        "limits": _limits_given(manifest),
        "server": server_table(manifest.server, manifest.device.count) if manifest.server else {},
        "python": python_table(manifest.server, manifest.handler) if manifest.server else {},
    }
    named = set(manifest.named)
    for key, value in given.items():
        section, inner = _place(manifest, key, value)
        before = tables[section].get(inner)
        tables[section][inner] = {**(before or {}), **value} if isinstance(value, dict) else value
        named.add(f"{section}.{inner}")
    device = device_need(validate(DeviceTable, tables["device"], "device"), manifest.engine)
    check_device(manifest.compilation, device)
    limits_table = validate(LimitsTable, tables["limits"], "limits")
    batching = Batching(**validate(BatchingTable, tables["batching"], "batching").model_dump())
    own_limits, exchange = _limits(
        limits_table, is_server=manifest.server is not None, is_python=manifest.is_python
    )
    return replace(
        manifest,
        name=name,
        scaling=Scaling(**validate(ScalingTable, tables["scaling"], "scaling").model_dump()),
        device=device,
        batching=batching,
        limits=own_limits,
        exchange=exchange,
        server=_changed_server(manifest, tables, batching, device),
        named=frozenset(named),
    )


def _place(manifest: Manifest, key: str, value: object) -> tuple[str, str]:
    """Return table and key of an override. Raises BadManifest if the function has no such table."""
    section, inner = _OVERRIDDEN[key]
    if manifest.is_python:
        if section != "server":
            return section, inner
        if inner not in PythonTable.model_fields:
            raise refused(f"{section}.{inner}", "a function without [python]", value)
        return "python", inner
    if section == ("batching" if manifest.server else "server"):
        whose = "without" if section == "batching" else "with"
        raise refused(f"{section}.{inner}", f"a function {whose} [server]", value)
    return section, inner


def _changed_server(
    manifest: Manifest, tables: dict[str, dict[str, Any]], batching: Batching, device: DeviceNeed
) -> ServerSettings | None:
    before = manifest.server
    if before is None:
        return None
    if before.python is not None and manifest.is_python:
        python = validate(PythonTable, tables["python"], "python")
        output = before.python.kind, before.python.content_type
        return python_settings(python, before.samples, batching, output)
    table = validate(ServerTable, tables["server"], "server")
    changed = server_settings(table, before.samples, (), device.count)
    changed = replace(changed, api=before.api, python=before.python)
    return with_park(changed, before.park, device) if before.park else changed


def rescaled(scaling: Scaling, changes: Mapping[str, Any]) -> Scaling:
    """Return `scaling` with changes of its fields, within the limits of function.toml.

    Raises BadRequest, naming the key.
    """
    if not changes:
        keys = ", ".join(ScalingTable.model_fields)
        raise BadRequest(f"expected at least one of {keys}; got none")
    try:
        table = validate(ScalingTable, {**asdict(scaling), **changes}, "scaling")
    except BadManifest as error:
        text = error.message.removeprefix(f"{MANIFEST_FILE}: ")
        raise BadRequest(text, detail=error.detail) from error
    return Scaling(**table.model_dump())


def _manifest(document: Document, files: Collection[str]) -> Manifest:
    engine: Literal["onnx", "python"] = "python" if document.runtime.engine == "python" else "onnx"
    handler = HANDLER_FILE if HANDLER_FILE in files else ""
    device = device_need(document.device, engine)
    if engine == "python" and not handler:
        raise refused("runtime.engine", f"{HANDLER_FILE} beside the manifest", "no such file")
    if "health" in document.model_fields_set:
        raise refused("health", "no such key without [server]", "one")
    _check_no_park(document)
    inputs = {
        name: input_rule(name, table, engine, handler) for name, table in document.input.items()
    }
    check_json_alone(inputs)
    output = model_output(document.output)
    oip_name, oip_version = oip_identity(document.oip)
    return Manifest(
        name=document.name,
        model=_model(document, files),
        handler=handler,
        engine=engine,
        labels=document.labels,
        scaling=Scaling(**document.scaling.model_dump()),
        limits=_limits(document.limits, is_server=False)[0],
        device=device,
        batching=Batching(**document.batching.model_dump()),
        inputs=declared(inputs) if engine == "python" else inputs,
        output=output,
        sample=document.sample,
        oip_name=oip_name,
        oip_version=oip_version,
        compilation=compilation(document.runtime, handler, device),
        optimise=optimisation(document.optimise, engine, output, files),
        named=_named(document),
    )


def _server_manifest(data: Mapping[str, Any], files: Collection[str]) -> Manifest:
    for key in REFUSED_KEYS:
        if key in data:
            raise refused(key, "no such key with [server]", data[key])
    if HANDLER_FILE in files and "python" not in data:
        raise refused(
            "server",
            f"no {HANDLER_FILE} beside it",
            HANDLER_FILE,
            "is a function by itself: [python] in place of [server] makes it one with packages,"
            " [python] beside [server] gives packages to the command",
        )
    document = check_document({key: value for key, value in data.items() if key != "sample"})
    samples = sample_requests(data.get("sample", []), files)
    python = None
    if "python" in data:
        python = beside_command(document.python, document.server.image)
        _check_there("python.needs", python.needs, files)
    api = model_api(document.openai) if _OPENAI in document.model_fields_set else None
    if api and api.upstream_key and any(one.golden for one in samples):
        note = "needs the key, which only requests at /v1 have"
        raise refused("sample.golden", "no golden sample with openai.upstream_key", True, note)
    own_limits, exchange = _limits(document.limits, is_server=True)
    device = device_need(document.device, "server")
    server = server_settings(document.server, samples, files, device.count)
    server = replace(server, api=api, python=python)
    if _PARK in document.model_fields_set:
        server = park_settings(document.park, server, device)
    return Manifest(
        name=document.name,
        engine="server",
        labels=document.labels,
        scaling=Scaling(**document.scaling.model_dump()),
        limits=own_limits,
        device=device,
        server=server,
        exchange=exchange,
        health=health_settings(document.health, server),
        named=_named(document),
    )


def _python_manifest(data: Mapping[str, Any], files: Collection[str]) -> Manifest:
    for key in MODEL_KEYS:
        if key in data:
            raise refused(key, f"no such key with [python]{MODEL_KEYS[key]}", data[key])
    document = check_document(data)
    _check_no_park(document)
    handler = document.python.handler
    _check_there("python.handler", handler, files)
    _check_there("python.needs", document.python.needs, files)
    _check_there("python.page", document.python.page, files)
    rules = {name: input_rule(name, one, "python") for name, one in document.input.items()}
    rules = declared(rules) if rules else {}
    output = python_output(document.output)
    batching = Batching(**document.batching.model_dump())
    samples = python_samples(document.sample, files)
    for name, value in document.sample.items():
        _check_json(f"sample.{name}", value, _SAMPLE_DEPTH_MAX)
    own_limits, exchange = _limits(document.limits, is_server=True, is_python=True)
    kind = document.output.kind, document.output.content_type
    server = python_settings(document.python, samples, batching, kind)
    return Manifest(
        name=document.name,
        handler=handler,
        engine="server",
        labels=document.labels,
        scaling=Scaling(**document.scaling.model_dump()),
        limits=own_limits,
        device=device_need(document.device, "server"),
        batching=batching,
        inputs=rules,
        output=output,
        sample=document.sample,
        server=server,
        exchange=exchange,
        health=health_settings(document.health, server),
        named=_named(document),
    )


def _check_no_park(document: Document) -> None:
    if _PARK in document.model_fields_set:
        raise refused(_PARK, "no such table without [server]", "one")


def _check_there(key: str, path: str, files: Collection[str]) -> None:
    if path and path not in files:
        raise refused(key, "one of the folder's files", path)


def _named(document: Document) -> frozenset[str]:
    tables = {"scaling": document.scaling, "limits": document.limits}
    return frozenset(f"{name}.{key}" for name in tables for key in tables[name].model_fields_set)


def _limits(
    table: LimitsTable, *, is_server: bool, is_python: bool = False
) -> tuple[Limits, ExchangeLimits | None]:
    values, given = table.model_dump(), table.model_fields_set
    return limits(values, given, is_server=is_server, is_python=is_python)


def _limits_given(manifest: Manifest) -> dict[str, Any]:
    """Return the limits that the manifest's kind of function has, as a table."""
    own = asdict(manifest.limits)
    if manifest.exchange is None:
        return own
    alien = () if manifest.is_python else ("timeout_s", "body_mib")
    kept = {key: value for key, value in own.items() if key not in alien}
    return {**kept, **asdict(manifest.exchange)}


def _model(document: Document, files: Collection[str]) -> str:
    if document.model:
        if document.model not in files:
            raise refused("model", "one of the bundle's files", document.model)
        if advice := by_suffix(document.model):
            raise refused("model", "an ONNX file", document.model, f"is none; {advice}")
        return document.model
    if document.runtime.engine == "python":
        return ""
    found = sorted(filter(is_onnx, files))
    if len(found) != 1:
        raise refused("model", "the path of the model file", found or NOTHING)
    return found[0]


def _check_sample(manifest: Manifest, files: Collection[str]) -> None:
    for name, value in manifest.sample.items():
        key = f"sample.{name}"
        is_declared = manifest.engine == "python" or any(
            rule.kind == "json" for rule in manifest.inputs.values()
        )
        if is_declared and name not in manifest.inputs:
            raise refused(key, f"one of the inputs {sorted(manifest.inputs)}", name)
        if _is_file(value) and value[1:] not in files:
            raise refused(key, "@ and one of the bundle's files", value)
        _check_json(key, value, _SAMPLE_DEPTH_MAX)


def _check_json(key: str, value: object, depth: int) -> None:
    """Refuse what TOML has and JSON does not: dates, infinities and NaN."""
    if depth == 0:
        raise refused(key, f"at most {_SAMPLE_DEPTH_MAX} levels", "more")
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        raise refused(key, "a value that JSON has", value.isoformat())
    if isinstance(value, float) and not math.isfinite(value):
        raise refused(key, "a finite number", value)
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(inner, str) or not hasattr(inner, "__iter__"):
        return
    for item in inner:
        _check_json(key, item, depth - 1)


def _is_file(value: object) -> bool:
    return isinstance(value, str) and value.startswith("@")
