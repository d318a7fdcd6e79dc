"""docs/reference/settings.md: the settings of `fnctl serve`."""

from __future__ import annotations

from typing import Any

import typer

from admin.cli.main import app
from admin.settings import Settings
from tests.reference.markdown import code, described, items, page, table, wrapped
from tests.reference.values import default_of, type_of

TITLE = "Settings"
INTRO = """
Every setting of `fnctl serve`. A value comes from the first of these sources that has one: the
command line, the environment (`FN_…`), the file of `--config`, the default.

The file is TOML with the names in lower case and without the prefix: `FN_CPU_SLOTS=4` is `cpu_slots
= 4`. An unknown name or a value out of range ends the start with an error that names the setting.
The options of the command line are in [Command line](command-line.md#fnctl-serve).
"""
GROUPS = {
    "Network": (
        "port",
        "grpc_port",
        "listen",
        "public_hosts",
        "cors_origins",
        "trusted_proxies",
        "workers",
        "connections",
        "fast_front",
        "link_listen",
        "link_address",
        "kubernetes_account",
    ),
    "Data": ("data", "ballast_mib", "secret_key_file", "usage_days"),
    "Replicas": (
        "driver",
        "docker_host",
        "image_cpu",
        "image_gpu",
        "images",
        "replica_uids",
        "trial_wait_s",
        "orphan_s",
        "host_lost_s",
        "host_labels",
        "server_path",
        "mount_roots",
        "ping_s",
        "shutdown_s",
    ),
    "Devices and memory": ("cpu_slots", "gpus", "memory_mib", "host_memory_mib"),
    "Scale to zero and cold starts": (
        "idle_s",
        "standbys",
        "gpu_standbys",
        "read_ahead_mib",
        "prepare",
    ),
    "Python functions": ("pythons", "uv_config", "environment_mib"),
    "Compiled models": ("compiler", "build_delay_s"),
    "Limits of requests": ("held_mib", "grpc_message_mib", "body_read_s", "head_read_s"),
    "Logs and traces": ("log_format", "access_log", "traces", "traces_sample"),
    "Metrics and costs": ("dcgm_metrics", "price_device_hour", "price_kwh", "currency"),
}
MADE = {"cpu_slots": "the number of cores"}
"""Defaults that depend on the machine."""
OPTIONS = {"public_hosts": "public_host", "idle_s": "idle"}
"""Settings whose option of `fnctl serve` has another name."""


def document() -> str:
    """The page. Raises ValueError where a setting is in no group or in two."""
    grouped = [name for names in GROUPS.values() for name in names]
    if sorted(grouped) != sorted(Settings.model_fields):
        wrong = {*grouped} ^ {*Settings.model_fields} or "one is in two groups"
        raise ValueError(f"GROUPS does not fit the settings: {wrong}")
    schema, said = Settings.model_json_schema(), described(Settings)
    blocks = ["## All settings", _index(schema)]
    for group, names in GROUPS.items():
        blocks.append(f"## {group}")
        for name in names:
            blocks += [f"### `FN_{name.upper()}`", wrapped(said[name]), _facts(name, schema)]
    return page(TITLE, INTRO, *blocks)


def options() -> dict[str, Any]:
    """The parameter of `fnctl serve` for each setting that has an option."""
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    found = {one.name: one for one in serve.params}
    named = {name: OPTIONS.get(name, name) for name in Settings.model_fields}
    return {name: found[option] for name, option in named.items() if option in found}


def _index(schema: dict[str, Any]) -> str:
    with_option = options()
    rows = (
        (
            f"[{code(f'FN_{name.upper()}')}](#fn_{name})",
            code(with_option[name].opts[0]) if name in with_option else "",
            _default(name, schema),
        )
        for names in GROUPS.values()
        for name in names
    )
    return table(("variable", "option", "default"), rows)


def _default(name: str, schema: dict[str, Any]) -> str:
    return MADE.get(name) or default_of(schema["properties"][name]["default"])


def _facts(name: str, schema: dict[str, Any]) -> str:
    one, option = schema["properties"][name], options().get(name)
    facts = [f"Type: {type_of(one, schema)}", f"Default: {_default(name, schema)}"]
    if option is not None:
        facts.append(f"Option: {code(option.opts[0])}")
    return items(facts)
