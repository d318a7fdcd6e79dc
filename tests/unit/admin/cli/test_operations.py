from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

from admin.cli.bundle_files import collect
from admin.cli.errors import INTERRUPTED
from admin.cli.operations import RETRIES_MAX, bar, finish, follow, steps, upload
from admin.cli.options import Session
from admin.client.client import ApiError, Client, Progress, Unreachable
from admin.client.document import Document
from admin.documents.deploys import OperationRow
from tests.support import models
from tests.support.admin_api import AdminApi, Canned
from tests.support.admin_documents import filled, made

PATH = "/admin/v1/operations/o1"
START = {"id": "o1", "state": "running", "phase": "upload"}


def operation(members: dict[str, Any]) -> Document[OperationRow]:
    sent = filled(OperationRow, members)
    return Document(sent, lambda: made(OperationRow, members), "GET", lambda: "")


def never(seconds: float) -> None:
    raise AssertionError(f"paused for {seconds} s")


def test_only_missing_files_go_up(api: AdminApi, tmp_path: Path) -> None:
    """A blob that the server has is not uploaded; progress counts the bytes of the others."""
    collected = collect(models.external(tmp_path, 1))
    model, data = sorted(collected.bundle.files, key=lambda file: file.size)
    api.on("HEAD", f"/admin/v1/blobs/{model.sha256}", Canned())
    api.on("PUT", f"/admin/v1/blobs/{data.sha256}", Canned({}, 201))
    totals: list[int] = []
    sent: list[int] = []

    @contextmanager
    def counted(total: int) -> Iterator[Progress]:
        totals.append(total)
        yield sent.append

    assert upload(Client(api.url), collected, counted) == (1, data.size)

    assert (totals, sum(sent)) == ([data.size], data.size)
    assert [len(request.body) for request in api.sent("PUT")] == [data.size]


def test_every_phase_is_reported_with_its_time(api: AdminApi) -> None:
    """The operation is polled until it ends; each phase is reported when it is over."""
    api.on(
        "GET",
        PATH,
        Canned({**START, "phase": "verify"}),
        Canned({**START, "phase": "verify"}),
        Canned({**START, "phase": "switch"}),
        Canned({**START, "phase": "switch", "state": "done"}),
    )
    passed: list[tuple[str, float]] = []
    noted: list[tuple[str, bool]] = []
    times = iter([0.0, 1.0, 3.0, 3.5])

    ended = follow(
        Client(api.url),
        operation(START),
        lambda phase, ms: passed.append((phase, ms)),
        note=lambda *one: noted.append(one),
        clock=lambda: next(times),
        pause=never,
    )

    assert ended.value.state == "done"
    assert noted == [("verify", False), ("verify", True), ("switch", False)]
    assert [request.query["wait"] for request in api.requests] == ["10", "10", "20", "10"]
    assert passed == [("upload", 1000.0), ("verify", 2000.0), ("switch", 500.0)]
    assert [request.query["phase"] for request in api.requests] == [
        "upload",
        "verify",
        "verify",
        "switch",
    ]


def test_a_server_that_restarts_is_waited_for(api: AdminApi) -> None:
    """Polling survives a server restart, as the operation does."""
    cut = Canned(is_cut=True)
    api.on("GET", PATH, cut, cut, Canned({**START, "state": "failed"}))
    pauses: list[float] = []

    ended = follow(Client(api.url), operation(START), lambda phase, ms: None, pause=pauses.append)

    assert ended.value.state == "failed"
    assert len(pauses) == 2


def test_a_server_that_stays_away_is_given_up(api: AdminApi) -> None:
    """Polling gives up after a number of failed tries."""
    api.close()
    pauses: list[float] = []

    with pytest.raises(Unreachable):
        follow(Client(api.url), operation(START), lambda phase, ms: None, pause=pauses.append)

    assert len(pauses) == RETRIES_MAX


def test_steps_are_lines() -> None:
    """A finished phase is one line with its time."""
    lines: list[str] = []

    steps(lines.append)("verify", 1234.0)

    assert lines == ["  verify   1.2 s"]


@pytest.mark.parametrize("quiet", [True, False])
def test_a_bar_without_a_terminal_is_silent(
    capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    """Without a terminal there is no progress bar."""
    with bar(10, quiet) as progress:
        progress(10)

    assert capsys.readouterr().err == ""


def test_an_operation_that_is_done_is_returned(api: AdminApi) -> None:
    """A completed operation is returned with its result."""
    api.on("GET", PATH, Canned({**START, "state": "done", "result": {"a": 1}}))

    ended = finish(Session(Client(api.url), as_json=True), operation(START))

    assert ended.sent["result"] == {"a": 1}


@pytest.mark.parametrize(
    ("error", "text"),
    [({"title": "No", "detail": "room"}, "No: room"), ({}, "The rollback failed")],
)
def test_an_operation_that_failed_is_a_refusal(
    api: AdminApi, error: dict[str, str], text: str
) -> None:
    """A failed operation raises a refusal with the server's reason, or with the kind of
    operation."""
    failed = {**START, "kind": "rollback", "state": "failed", "error": error}

    with pytest.raises(ApiError, match=text):
        finish(Session(Client(api.url), as_json=True), operation(failed))


@pytest.mark.parametrize("is_watched", [True, False])
def test_an_operation_that_another_command_cancels_is_a_refusal(
    api: AdminApi, is_watched: bool
) -> None:
    """For the command that started it, and for one that watches it."""
    api.on("GET", PATH, Canned({**START, "state": "cancelled"}))

    with pytest.raises(ApiError, match="another command or a page has cancelled it") as refused:
        finish(Session(Client(api.url), as_json=False), operation(START), is_watched=is_watched)

    assert refused.value.code == "cancelled"


@pytest.mark.parametrize(
    ("is_watched", "state", "told"),
    [
        (True, "cancelled", ["the deploy goes on; to cancel it: fnctl operation cancel o1"]),
        (False, "cancelled", ["cancelling …"]),
        (False, "failed", ["cancelling …"]),
        (False, "done", ["cancelling …"]),
    ],
)
def test_ctrl_c_cancels_what_the_command_has_started(
    api: AdminApi,
    capsys: pytest.CaptureFixture[str],
    is_watched: bool,
    state: str,
    told: list[str],
) -> None:
    """What it only watches goes on. One that ends before it is cancelled is told as it ended."""
    interrupt = Canned(START, before=lambda: os.kill(os.getpid(), signal.SIGINT))
    api.on("GET", PATH, interrupt, Canned(START))
    api.on("DELETE", PATH, Canned({**START, "state": state}))
    started = operation({**START, "kind": "deploy"})

    end: object = None
    try:
        end = finish(Session(Client(api.url), as_json=False), started, is_watched=is_watched)
    except (typer.Exit, ApiError) as error:
        end = error

    assert len(api.sent("DELETE")) == (not is_watched)
    assert capsys.readouterr().err.splitlines() == told
    if state == "cancelled":
        assert isinstance(end, typer.Exit)
        assert end.exit_code == INTERRUPTED
    else:
        assert isinstance(end, Document if state == "done" else ApiError)


def test_a_lost_server_is_told_with_the_way_back(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operation goes on without the command."""
    monkeypatch.setattr("admin.cli.operations.RETRIES_MAX", 0)
    api.close()

    with pytest.raises(Unreachable) as lost:
        finish(Session(Client(api.url), as_json=False), operation({**START, "kind": "rollback"}))

    assert lost.value.__notes__ == [
        "the rollback goes on with the server: fnctl operation watch o1"
    ]


def test_the_first_phase_of_a_watched_operation_has_no_whole_time(
    api: AdminApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had begun before. What the phase waits for is told at once."""
    waiting = operation({**START, "phase": "verify waiting for GET /: 404 for 10 s"})
    switch = {**START, "phase": "switch"}
    api.on("GET", PATH, Canned(switch), Canned({**switch, "state": "done"}))

    finish(Session(Client(api.url), as_json=False), waiting, is_watched=True)

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "  verify waiting for GET /: 404 for 10 s"
    assert [line.endswith("  after this command began") for line in lines] == [False, True, False]
    assert [line.split()[0] for line in lines[1:]] == ["verify", "switch"]


def test_a_phase_that_may_be_long_is_announced(
    api: AdminApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wait for open exchanges is told when it begins, with the option that ends it."""
    drain = Canned({**START, "phase": "drain"})
    api.on("GET", PATH, drain, Canned({**START, "phase": "drain", "state": "done"}))

    finish(Session(Client(api.url), as_json=False), operation(START))

    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["upload", "open", "drain"]
    assert "--now" in lines[1]
