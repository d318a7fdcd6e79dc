"""Plans of a repository's deploys, checked as far as that is possible before any upload."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from admin.cli.bundle_files import Collected, collect_model
from admin.cli.repository.config import ModelConfig, read_config
from admin.cli.repository.fields import Finding, Findings
from admin.cli.repository.layout import CONFIG_FILE, chosen_versions
from admin.cli.repository.manifest import manifest_text, read_labels
from admin.cli.repository.sample import sample
from admin.cli.repository.tensors import check_tensors
from admin.cli.repository.text_format import TEXT_MAX
from registry.bundles.foreign_formats import by_suffix, is_onnx, not_onnx
from registry.errors import BadBundle, BadManifest, BadRequest
from registry.names import OIP_NAME_RULE, check_name, is_oip_name, name_from_file
from runtime_image.contract.onnx_signature import graph_signature

SHOWN_FILES: Final = 5


@dataclass(frozen=True, slots=True)
class VersionPlan:
    """One version with its files and function.toml."""

    version: int
    collected: Collected


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model's deploys. `model` is the folder's name, `name` the function's, "" if none can be
    derived. The first version gets the calls that name no version."""

    model: str
    name: str
    is_derived: bool
    versions: tuple[VersionPlan, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether nothing of the model is deployed."""
        return any(one.is_refusal for one in self.findings)

    def lines(self) -> list[str]:
        """Return everything that is said about the model, a line each, refusals last."""
        ordered = sorted(self.findings, key=lambda one: (one.is_refusal, one.line))
        return list(dict.fromkeys(one.shown(self.model, CONFIG_FILE) for one in ordered))

    def refused(self, text: str) -> ModelPlan:
        """Return the plan with a further refusal, which belongs to no line."""
        return replace(self, findings=(*self.findings, Finding(0, "", True, text)))


@dataclass(slots=True)
class _Draft:
    findings: Findings = field(default_factory=Findings)
    versions: list[VersionPlan] = field(default_factory=list)


def plan_model(folder: Path, name: str | None = None) -> ModelPlan:
    """Return the plan of the model in a folder. `name` is the function's, None to derive it.

    Nothing is raised for what is wrong with the model: it is in the plan. Blocking.
    """
    model, draft = folder.resolve().name, _Draft()
    chosen = _name(model, name, draft.findings)
    try:
        _plan(folder, model, chosen, name is None, draft)
    except (BadBundle, BadManifest) as error:
        draft.findings.refuse(0, "", error.message)
    except OSError as error:
        draft.findings.refuse(0, "", f"it cannot be read: {error.strerror}")
    found = tuple(reversed(draft.versions))
    return ModelPlan(model, chosen, name is None, found, tuple(draft.findings.items))


def _name(model: str, name: str | None, findings: Findings) -> str:
    if not is_oip_name(model):
        findings.refuse(0, "", f"expected a folder's name of {OIP_NAME_RULE}, got {model[:80]!r}")
    try:
        return check_name(name) if name is not None else name_from_file(f"{model}.onnx")
    except BadRequest as error:
        findings.refuse(0, "", error.message)
        return ""


def _plan(folder: Path, model: str, name: str, is_derived: bool, draft: _Draft) -> None:
    findings = draft.findings
    text = _text(folder / CONFIG_FILE)
    config = ModelConfig() if text is None else read_config(text, model, findings)
    versions = chosen_versions(folder, config.policy, findings)
    labels = read_labels(folder, config, findings)
    if findings.is_refused:
        return
    read = [_read_version(folder, config, version) for version in versions]
    findings.items += _merged(versions, [one.findings.items for one in read])
    if findings.is_refused:
        return
    for version, one in zip(versions, read, strict=True):
        text = manifest_text(config, one.path, (model, version), labels, one.sample)
        collected = collect_model(one.root, text, name, is_derived=is_derived)
        draft.versions.append(VersionPlan(version, collected))


@dataclass(frozen=True, slots=True)
class _Read:
    """What a version's folder says: its model file as a path below `root`, and the sample."""

    findings: Findings
    root: Path = Path()
    path: str = ""
    sample: Any = None


def _read_version(folder: Path, config: ModelConfig, version: int) -> _Read:
    findings = Findings()
    try:
        root, path = _model_path(folder / str(version), config.model_file)
    except BadBundle as error:
        findings.refuse(0, "", error.message)
        return _Read(findings)
    try:
        graph = graph_signature(root / path)
    except ValueError as error:
        text = not_onnx(f"{version}/{config.model_file}", error, root / path)
        findings.refuse(0, "", text)
        return _Read(findings)
    check_tensors(config, graph, findings)
    values = sample(folder, config, [one.name for one in graph.inputs], findings)
    return _Read(findings, root, path, values)


def _merged(versions: Sequence[int], said: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Return what is said about the versions; what holds for some of them names each."""
    found = []
    for version, items in zip(versions, said, strict=True):
        for one in items:
            if all(one in others for others in said):
                found.append(one)
            else:
                found.append(replace(one, text=f"version {version}: {one.text}"))
    return list(dict.fromkeys(found))


def _text(file: Path) -> str | None:
    """Return the text of config.pbtxt, None if there is none. Raises BadBundle."""
    if not file.is_file():
        if os.path.lexists(file):  # a pipe, a folder, or a link to nothing
            raise BadBundle(f"expected a file {CONFIG_FILE}, got something else")
        return None
    with file.open("rb") as opened:
        data = opened.read(4 * TEXT_MAX + 1)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadBundle(f"expected UTF-8 text, got other bytes at {error.start}") from None


def _model_path(folder: Path, name: str) -> tuple[Path, str]:
    """Return a version's model file as a folder and a path in it. As in Triton a folder of that
    name holds the model and its weights. Raises BadBundle if there is neither."""
    if (folder / name).is_dir():
        folder, name = folder / name, "model.onnx"
    if (folder / name).is_file():
        if not is_onnx(name):
            advice = by_suffix(name)
            text = f"expected a file {name!r} that ends with .onnx"
            raise BadBundle(f"{text}; {advice}" if advice else text)
        return folder, name
    found = sorted(one.name for one in folder.iterdir())[:SHOWN_FILES]
    advice = next((text for one in found if (text := by_suffix(one))), "")
    text = f"expected {name} in {folder.name}, got {', '.join(found) or 'nothing'}"
    raise BadBundle(f"{text}; {advice}" if advice else text)


def with_collisions(plans: Sequence[ModelPlan]) -> list[ModelPlan]:
    """Return the plans; models whose functions would have the same name are refused, all of them:
    none has a better right to it."""
    by_name: dict[str, list[str]] = {}
    for plan in plans:
        by_name.setdefault(plan.name, []).append(plan.model)
    found = []
    for plan in plans:
        others = [one for one in by_name[plan.name] if one != plan.model]
        if plan.name and others:
            text = (
                f"its function would be {plan.name}, as that of {', '.join(others[:SHOWN_FILES])}:"
                " deploy its folder alone with --name"
            )
            found.append(plan.refused(text))
        else:
            found.append(plan)
    return found


def with_deployed(plan: ModelPlan, functions: Mapping[str, str]) -> ModelPlan:
    """Return the plan for a server that has `functions`: names in the protocol by function, "" for
    none. A model that is deployed keeps its function, whose name may not be derived from it."""
    owner = next((name for name, oip in functions.items() if oip == plan.model), None)
    if owner is not None and plan.is_derived:
        versions = tuple(
            replace(one, collected=replace(one.collected, name=owner)) for one in plan.versions
        )
        return replace(plan, name=owner, versions=versions)
    if owner is not None and owner != plan.name:
        return plan.refused(f"its name at /v2 belongs to the function {owner}: --name {owner}")
    if plan.is_derived and owner is None and plan.name in functions:
        return plan.refused(
            f"its function would be {plan.name}, which is another's: deploy its folder alone with"
            " --name"
        )
    return plan
