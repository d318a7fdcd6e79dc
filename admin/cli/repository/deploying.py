"""`fnctl deploy` of a model repository: every model in order, also after one that fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from admin import documents as d
from admin.cli.errors import REFUSED, refusal_text, report_error
from admin.cli.operations import bar, finish, upload
from admin.cli.options import Session
from admin.cli.repository.layout import models_of, shape_of
from admin.cli.repository.planning import (
    ModelPlan,
    VersionPlan,
    plan_model,
    with_collisions,
    with_deployed,
)
from admin.client import routes
from admin.client.client import ApiError
from admin.text import command, size, table

if TYPE_CHECKING:
    from admin.client.document import Document

NEXT_MAX: Final = 1
DEPLOYED, CHANGED, UNCHANGED = "deployed", "changed", "unchanged"
RUNNING, FAILED, NOT_TRIED = "running", "failed", "refused"
_WORST_FIRST: Final = (FAILED, DEPLOYED, CHANGED, RUNNING)


@dataclass(slots=True)
class VersionResult:
    """Outcome of one version: `state`, the revision that has it, and the reason of a failure."""

    version: int
    state: str
    revision: str = ""
    detail: str = ""
    operation: Mapping[str, object] = field(default_factory=dict)
    """As the server sent it."""


@dataclass(slots=True)
class ModelResult:
    """Outcome of one model. `lines` are what was said about its config.pbtxt."""

    plan: ModelPlan
    lines: list[str]
    versions: list[VersionResult] = field(default_factory=list)

    @property
    def state(self) -> str:
        """State of the model: the worst of its versions, or "refused"."""
        if self.plan.is_refused:
            return NOT_TRIED
        states = {one.state for one in self.versions}
        return next((one for one in _WORST_FIRST if one in states), UNCHANGED)

    @property
    def is_bad(self) -> bool:
        """Whether the command fails because of it."""
        return self.state in (FAILED, NOT_TRIED)

    def as_json(self) -> dict[str, Any]:
        """Return the model's part of the answer to --json."""
        return {
            "model": self.plan.model,
            "function": self.plan.name,
            "state": self.state,
            "config": self.lines,
            "versions": [
                {
                    "version": str(one.version),
                    "state": one.state,
                    "revision": one.revision,
                    "detail": one.detail,
                    "operation": one.operation,
                }
                for one in self.versions
            ],
        }


def deploy_repository(
    session: Session,
    path: Path,
    name: str | None,
    wanted: d.requests.DeployRequest,
    *,
    no_wait: bool,
) -> None:
    """Deploy a repository, or the folder of one model; `breaking` and `overrides` of what is
    `wanted` hold for every model. Raises typer.BadParameter for a name for
    several models, typer.Exit if a model was refused or failed, Unreachable without a server."""
    plans = _plans(session, path, name)
    results = [ModelResult(plan, plan.lines()) for plan in plans]
    for result in results:
        for line in result.lines:
            session.remark(line)
    sound = [one for one in results if not one.plan.is_refused]
    for at, result in enumerate(sound, 1):
        of = f" ({at} of {len(sound)})" if len(sound) > 1 else ""
        session.remark(f"{result.plan.model} as {result.plan.name}{of}")
        _deploy_model(session, result, wanted, no_wait)
    answer = {"models": [one.as_json() for one in results]}
    session.answer(answer, lambda: summary(results))
    done = [one.plan.name for one in results if not one.is_bad]
    if done:
        session.next(*(command("fnctl", "show", one) for one in done[:NEXT_MAX]))
    if bad := [one.plan.model for one in results if one.is_bad]:
        text = f"{len(bad)} of {len(results)} models are not deployed as they are: {', '.join(bad)}"
        problem = {"code": "refused", "title": "Not all models are deployed", "detail": text}
        report_error(text, "", problem, session.as_json)
        raise typer.Exit(REFUSED)


def _plans(session: Session, path: Path, name: str | None) -> list[ModelPlan]:
    """Plan every model before anything is sent."""
    folders, others = ([path], []) if shape_of(path) == "model" else models_of(path)
    if name is not None and len(folders) > 1:
        raise typer.BadParameter(
            f"expected the folder of one model, got a repository of {len(folders)}",
            param_hint="--name",
        )
    for other in others:
        session.remark(f"{other}: no model: it has neither config.pbtxt nor a version's folder")
    functions = _functions(session)
    plans = (with_deployed(plan_model(one, name), functions) for one in folders)
    return with_collisions(list(plans))


def _functions(session: Session) -> dict[str, str]:
    """Return the names in the protocol by function; nothing where the key may not read them, as the
    server checks each deploy by itself."""
    try:
        return {one.name: one.oip_name for one in session.client.items(routes.FUNCTIONS).value}
    except ApiError:
        return {}


def _deploy_model(
    session: Session, result: ModelResult, wanted: d.requests.DeployRequest, no_wait: bool
) -> None:
    """Deploy the versions: the one with the traffic first, so that calls never go to another."""
    for at, version in enumerate(result.plan.versions):
        try:
            own = {"trust": False, "now": False, "pull": False, "traffic": at == 0}
            one = msgspec.structs.replace(wanted, **own)
            operation = _deploy_version(session, version, one)
            ended = operation if no_wait else finish(session, operation)
        except ApiError as error:
            text = refusal_text(error)
            session.remark(f"error: {result.plan.model} version {version.version}: {text}")
            result.versions.append(VersionResult(version.version, FAILED, "", str(error)))
            continue
        result.versions.append(_result(version.version, ended))


def _result(version: int, operation: Document[d.deploys.OperationRow]) -> VersionResult:
    row = operation.value
    state, how = DEPLOYED, row.result.switch or ""
    if row.state == RUNNING:
        state, how = RUNNING, f"operation {row.id}"
    elif row.result.created is False:
        changed = ", ".join(row.result.changed or ())
        state, how = (CHANGED, changed) if changed else (UNCHANGED, how)
    return VersionResult(version, state, row.result.revision or "", how, operation.sent)


def _deploy_version(
    session: Session, version: VersionPlan, wanted: d.requests.DeployRequest
) -> Document[d.deploys.OperationRow]:
    collected = version.collected
    count, sent = upload(session.client, collected, partial(bar, quiet=session.as_json))
    files = len(collected.bundle.files)
    session.remark(f"  version {version.version}: {count} of {files} files uploaded, {size(sent)}")
    request = collected.request(wanted)
    return session.client.submit(routes.DEPLOY, collected.name, body=request)


def summary(results: Iterable[ModelResult]) -> str:
    """Return a table with a row for each version; a refused model has one row."""
    rows = []
    for result in results:
        model, function = result.plan.model, result.plan.name or "-"
        if not result.versions:
            refusals = sum(one.is_refusal for one in result.plan.findings)
            why = f"{refusals} reason{'' if refusals == 1 else 's'} above"
            rows.append((model, function, "-", "-", result.state, why))
        for one in result.versions:
            detail = one.detail.partition("\n")[0]
            row = (model, function, str(one.version), one.revision or "-", one.state, detail)
            rows.append(row)
            model = function = ""
    return table(("MODEL", "FUNCTION", "VERSION", "REVISION", "RESULT", "DETAIL"), rows)
