"""The function.toml that a version of a model stands for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from admin.cli.bundle_files import open_file
from admin.cli.repository.config import ModelConfig
from admin.cli.repository.fields import Findings
from registry.bundles.paths import check_path
from registry.errors import BadBundle

LABELS_BYTES_MAX: Final = 4 * 1024 * 1024


def manifest_text(
    config: ModelConfig, model: str, identity: tuple[str, int], labels: list[str], sample: Any
) -> str:
    """Return the text of function.toml for the file `model`. `identity` is the name and version in
    the protocol; `labels` belong to the output that `labelled` returns."""
    name, version = identity
    lines = ["schema = 1", f"model = {toml(model)}"]
    lines += ["[oip]", f"name = {toml(name)}", f"version = {version}"]
    if config.replicas:
        lines += ["[scaling]", f"max = {config.replicas}"]
    if config.device:
        lines += ["[device]", f"kind = {toml(config.device)}"]
    lines += _batching(config)
    if labels:
        lines += ["[output]", f"tensor = {toml(labelled(config))}", f"labels = {toml(labels)}"]
    if sample:
        lines += ["[sample]", *(f"{toml(key)} = {toml(value)}" for key, value in sample.items())]
    return "\n".join([*lines, ""])


def _batching(config: ModelConfig) -> Iterable[str]:
    if config.max_batch_size is None:
        found = []
    elif config.max_batch_size == 0:
        return ["[batching]", 'mode = "off"']
    else:
        found = [f"max_size = {config.max_batch_size}"]
    if config.wait_ms:
        found.append(f"wait_ms = {config.wait_ms:g}")
    return ["[batching]", *found] if found else []


def labelled(config: ModelConfig) -> str:
    """Return the name of the first output with labels, "" without one."""
    return next((one.name for one in config.outputs if one.label_file), "")


def read_labels(folder: Path, config: ModelConfig, findings: Findings) -> list[str]:
    """Return the lines of the first output's `label_filename` in a model's folder."""
    outputs = [one for one in config.outputs if one.label_file]
    for other in outputs[1:]:
        text = f"one output has labels: {outputs[0].name!r}"
        findings.ignore(other.line, f"output.{other.name}.label_filename", text)
    if not outputs:
        return []
    path = f"output.{outputs[0].name}.label_filename"
    try:
        with open_file(folder, check_path(outputs[0].label_file)) as file:
            data = file.read(LABELS_BYTES_MAX + 1)
        if len(data) > LABELS_BYTES_MAX:
            raise BadBundle(f"expected at most {LABELS_BYTES_MAX} bytes of labels, got more")
        return data.decode().splitlines()
    except BadBundle as error:
        findings.refuse(outputs[0].line, path, error.message)
    except UnicodeDecodeError as error:
        findings.refuse(outputs[0].line, path, f"expected UTF-8, got other bytes at {error.start}")
    return []


def toml(value: Any) -> str:
    """Return strings, numbers, booleans and lists of them as TOML, whose strings have the escapes
    of JSON (TOML 1.0, "String"), and beside these one of DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
