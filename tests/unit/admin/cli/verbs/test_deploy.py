from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import Result

from admin.cli.bundle_files import BIG
from admin.cli.verbs.deploy import batch_max
from registry.bundles.paths import FILES_MAX
from registry.manifest import parse_manifest
from registry.model.functions import ExchangeLimits
from registry.model.servers import Mount, ServerImage, ServerSettings
from tests.support import models
from tests.support.admin_api import AdminApi, Canned

REVISIONS = "/admin/v1/functions/adder/revisions"
OPERATION = "/admin/v1/operations/o1"
RUNNING = {"id": "o1", "state": "running", "phase": "upload"}
DONE: dict[str, Any] = {
    "id": "o1",
    "state": "done",
    "phase": "switch",
    "result": {
        "revision": "adder@1",
        "created": True,
        "files": 1,
        "size": 160,
        "switch": "calls go to adder@1",
    },
}


@pytest.fixture
def model(api: AdminApi, tmp_path: Path) -> Path:
    """Serve a deploy of a model that the server does not have yet."""
    path = models.add_one(tmp_path)
    api.on("POST", REVISIONS, Canned(RUNNING, 202))
    api.on("GET", OPERATION, Canned(DONE))
    api.takes_blobs = True
    return path


def ctrl_c() -> None:
    """Send SIGINT while the answer is awaited, as a terminal does at Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def test_a_deploy_goes_from_files_to_summary(
    api: AdminApi, fnctl: Callable[..., Result], model: Path
) -> None:
    """A deploy uploads the missing blobs, starts the operation and prints its end with the next
    command."""
    result = fnctl("deploy", str(model), "--name", "adder")

    assert result.exit_code == 0
    assert result.stdout.startswith("adder@1 deployed (1 file, ")
    assert "1 of 1 files uploaded" in result.stderr
    assert result.stderr.endswith("next: fnctl show adder\n")
    assert [request.method for request in api.requests] == ["HEAD", "PUT", "POST", "GET"]
    assert api.sent("PUT")[0].body == model.read_bytes()


SHOWN = {"example": 'curl http://here/fn/adder -d \'{"inputs": {"x": [[0.0]]}}\''}


@pytest.mark.parametrize(
    ("functions", "line"),
    [
        (Canned(SHOWN), SHOWN["example"]),
        (Canned({"example": "curl http://here/fn/adder --data-binary @picture.png"}), None),
        (Canned({"example": 'curl http://here/fn/adder -d \'{"x": "<FP32 [1, 999]>"}\''}), None),
        (Canned({"title": "A key is needed"}, 401), None),
    ],
)
def test_a_deploy_ends_with_a_curl_line_that_works(
    api: AdminApi, fnctl: Callable[..., Result], model: Path, functions: Canned, line: str | None
) -> None:
    """The curl line calls with the trial's zeros and has no placeholders; it names the key if
    callers need one."""
    profile = {"profiled": True, "load_ms": 1, "memory_mib": 1}
    api.on("GET", OPERATION, Canned({**DONE, "result": {**DONE["result"], "profile": profile}}))
    api.on("GET", "/admin/v1/functions/adder", functions)
    api.on("GET", "/fn/adder", Canned({}), Canned({"title": "A key is needed"}, 401))

    first = fnctl("deploy", str(model), "--name", "adder").stderr.splitlines()[-1]
    second = fnctl("deploy", str(model), "--name", "adder").stderr.splitlines()[-1]

    next_line = "next: fnctl show adder"
    assert first == (f"  or: {line}" if line else next_line)
    assert second == (f'{first} -H "Authorization: Bearer $FN_KEY"' if line else next_line)
    assert all("Authorization" not in one.headers for one in api.sent("GET", "/fn/adder"))


def test_options_are_overrides(api: AdminApi, fnctl: Callable[..., Result], model: Path) -> None:
    """Only the given options are sent, under the API's names."""
    words = (
        "--min 1 --max 2 --idle 5 --memory 64 --device cpu --gpus 2 --batch off --timeout 3 --trust"
    )
    words += " --breaking"

    fnctl("deploy", str(model), "--name", "adder", *words.split())
    fnctl("deploy", str(model), "--name", "adder")

    first, second = (request.json for request in api.sent("POST"))
    assert first["overrides"] == {
        "min": 1,
        "max": 2,
        "idle_s": 5.0,
        "memory_mib": 64,
        "device": "cpu",
        "gpus": 2,
        "batch_max": 1,
        "timeout_s": 3.0,
    }
    assert (first["trust"], first["breaking"], first["model"]) == (True, True, "add_one.onnx")
    assert second.keys() == {"files", "model"}


def test_json_is_the_operation(api: AdminApi, fnctl: Callable[..., Result], model: Path) -> None:
    """--json prints the ended operation and no remarks."""
    result = fnctl("deploy", str(model), "--name", "adder", "--json")

    assert json.loads(result.stdout) == api.body("GET", OPERATION)
    assert result.stderr == ""


def test_no_wait_returns_at_once(api: AdminApi, fnctl: Callable[..., Result], model: Path) -> None:
    """--no-wait returns when the server has accepted the deploy."""
    result = fnctl("deploy", str(model), "--name", "adder", "--no-wait")

    assert result.stdout == "operation o1 is running\n"
    assert api.sent("GET") == []


def test_a_failed_deploy_is_a_refusal(
    api: AdminApi, fnctl: Callable[..., Result], model: Path
) -> None:
    """A failed operation is reported with its reason and exit code 1."""
    problem = {"title": "The model was refused", "detail": "no opset", "status": 422}
    api.on("GET", OPERATION, Canned({**RUNNING, "state": "failed", "error": problem}))

    result = fnctl("deploy", str(model), "--name", "adder")

    assert result.exit_code == 1
    assert "error: The model was refused: no opset\n" in result.stderr


def test_a_taken_name_says_how_to_mean_it(
    api: AdminApi, fnctl: Callable[..., Result], model: Path
) -> None:
    """A derived name that exists already is refused with the command that replaces the function."""
    problem = {"title": "Conflict", "detail": "it exists", "code": "conflict"}
    api.on("POST", "/admin/v1/functions/add-one/revisions", Canned(problem, 409))

    result = fnctl("deploy", str(model))

    assert result.exit_code == 1
    assert result.stderr.endswith(f"next: fnctl deploy {model} --name add-one\n")


def test_ctrl_c_cancels(api: AdminApi, fnctl: Callable[..., Result], model: Path) -> None:
    """Ctrl-C cancels the operation and reports that nothing changed."""
    api.on("GET", OPERATION, Canned(RUNNING, before=ctrl_c))
    api.on("DELETE", OPERATION, Canned({**RUNNING, "state": "cancelled"}))

    result = fnctl("deploy", str(model), "--name", "adder")

    assert result.exit_code == 130
    assert result.stdout == "cancelled: nothing changed\n"
    assert len(api.sent("DELETE", OPERATION)) == 1


def test_ctrl_c_may_come_too_late(api: AdminApi, fnctl: Callable[..., Result], model: Path) -> None:
    """If the operation has ended before the cancellation, its result is printed."""
    api.on("GET", OPERATION, Canned(RUNNING, before=ctrl_c))
    api.on("DELETE", OPERATION, Canned(DONE))

    result = fnctl("deploy", str(model), "--name", "adder")

    assert result.exit_code == 0
    assert result.stdout.startswith("adder@1 deployed")


@pytest.mark.parametrize(("text", "rows"), [(None, None), ("off", 1), ("8", 8), ("always", None)])
def test_batch_is_a_number_or_off(text: str | None, rows: int | None) -> None:
    """--batch off means a batch of one row."""
    assert batch_max(text) == rows


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "9" * 5000])
def test_another_batch_is_wrong_usage(text: str) -> None:
    """A --batch that is neither a number nor off is wrong usage and quoted."""
    with pytest.raises(
        typer.BadParameter, match="expected a number from 1 to 65536, off or always"
    ):
        batch_max(text)


def test_a_broken_bundle_is_refused_before_anything_is_sent(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """A folder without a manifest is exit code 1 without any request."""
    result = fnctl("deploy", str(tmp_path))

    assert result.exit_code == 1
    assert "expected function.toml" in result.stderr
    assert api.requests == []


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Create the folder of a handler with a large file that nothing names."""
    folder = tmp_path / "program"
    folder.mkdir()
    text = 'schema = 1\nname = "adder"\n[runtime]\nengine = "python"\n[input.x]\nkind = "json"\n'
    (folder / "function.toml").write_text(text)
    (folder / "handler.py").touch()
    with (folder / "dump.bin").open("wb") as file:
        file.truncate(BIG + 1)
    return folder


def test_list_prints_the_files_and_sends_nothing(
    api: AdminApi, fnctl: Callable[..., Result], program: Path
) -> None:
    """--list prints path and size of each file, without a request."""
    result = fnctl("deploy", str(program), "--list")

    assert result.exit_code == 0
    shown = [line.split() for line in result.stdout.splitlines()]
    assert shown[:3] == [
        ["PATH", "SIZE"],
        ["dump.bin", "100.0", "MiB"],
        ["function.toml", "78", "B"],
    ]
    assert [
        one["path"]
        for one in json.loads(fnctl("deploy", str(program), "--list", "--json").stdout)["files"]
    ] == ["dump.bin", "function.toml", "handler.py"]
    assert api.requests == []


def test_a_large_file_needs_a_yes(
    api: AdminApi, model: Path, fnctl: Callable[..., Result], program: Path
) -> None:
    """Without a terminal a folder with a large file is refused by its name, unless --yes."""
    result = fnctl("deploy", str(program), "--trust")

    assert result.exit_code == 2
    assert "dump.bin has 100.0 MiB" in result.stderr
    assert "expected --yes" in result.stderr
    said = " ".join(fnctl("deploy", str(program), "--json").stderr.replace("│", " ").split())
    assert "expected --yes with --json: dump.bin has 100.0 MiB" in said
    assert api.requests == []
    assert fnctl("deploy", str(program), "--trust", "--yes").exit_code == 0


HOOK = "/admin/v1/functions/web/revisions"
WEB: dict[str, Any] = {
    **DONE,
    "result": {
        "revision": "web@1",
        "created": True,
        "files": 0,
        "size": 0,
        "switch": "calls of web go to web@1, which is cold",
        "server": {
            "ready": "/up",
            "network": "egress",
            "wait_s": 90.0,
            "host": "auto",
            "found_host": "loopback",
        },
        "profile": {"profiled": True, "load_ms": 60_000, "memory_mib": 51.2},
        "sample": {
            "requests": [
                {"method": "GET", "path": "/up", "status": 200, "ms": 3.2, "body": "all\nfine"},
                {"method": "PUT", "path": "/x", "status": 204, "ms": 1.0, "body": ""},
            ]
        },
    },
}


@pytest.fixture
def web(api: AdminApi) -> AdminApi:
    """Serve a deploy of a server function."""
    api.on("POST", HOOK, Canned(RUNNING, 202))
    api.on("GET", OPERATION, Canned(WEB))
    api.on("GET", "/admin/v1/functions/web", Canned({"example": "curl http://here/fn/web/up"}))
    api.on("GET", "/fn/web", Canned({}))
    api.takes_blobs = True
    return api


def test_a_command_is_deployed_without_files(web: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--command stands for a function.toml with [server]; the last line is a working call."""
    options = ("--port", "81", "--ready", "/up", "--env", "A=b=c", "--network", "egress")
    command = ("--command", "serve '${PORT}' \"a b\"", "--concurrency", "4")
    result = fnctl("deploy", "--name", "web", *command, *options, "--trust", "--now")

    [sent] = web.sent("POST")
    assert result.exit_code == 0
    assert (sent.json["files"], sent.json["now"]) == ([], True)
    assert "overrides" not in sent.json
    manifest = parse_manifest(sent.json["manifest"], [])
    assert manifest.server == ServerSettings(
        ("serve", "${PORT}", "a b"), {"A": "b=c"}, 81, "/up", "egress"
    )
    assert manifest.exchange == ExchangeLimits(concurrency=4)
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines == [
        "web@1 deployed (0 files, 0 B)",
        "sample GET /up 200 in 3.2 ms: all fine",
        "sample PUT /x 204 in 1 ms",
        "start ready after 60.0 s (/up)",
        "memory 51 MiB",
        "network egress: it reaches whatever this host reaches: its services, the local network,"
        " cloud metadata",
        "host it refuses other names than its own, so it sees its address as Host",
        "held calls wait up to 90 s for a start",
        "switch calls of web go to web@1, which is cold",
    ]
    assert result.stderr.splitlines()[-2:] == [
        "next: fnctl invoke web",
        "  or: curl http://here/fn/web/up",
    ]


def test_what_a_deploy_warns_of_comes_behind_it(
    web: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """Before the next command."""
    web.on("GET", OPERATION, Canned({**WEB, "result": {**WEB["result"], "warnings": ["full"]}}))

    result = fnctl("deploy", "--name", "web", "--command", "serve ${PORT}", "--trust")

    assert result.stderr.splitlines()[-3:-1] == ["warning: full", "next: fnctl invoke web"]


def test_a_folder_is_deployed_beside_an_image(
    web: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """Its files are uploaded; the image's server sees them."""
    (tmp_path / "app.py").write_text("print('hello')")
    options = ("--name", "web", "--image", "python:3", "--port", "8000")

    result = fnctl("deploy", str(tmp_path), *options, "--", "python3", "/function/app.py")

    assert result.exit_code == 0, result.output
    [sent] = web.sent("POST")
    assert [file["path"] for file in sent.json["files"]] == ["app.py"]
    server = parse_manifest(sent.json["manifest"], ["app.py"]).server
    assert server is not None
    assert server.command == ("python3", "/function/app.py")


def test_an_image_is_deployed_with_words_as_its_arguments(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """--image needs no --trust. Words after -- are the command, whatever they look like; the
    progress of a pull is remarked, and the summary says image and hidden folders."""
    pulling = [{**RUNNING, "phase": phase} for phase in ("pull 5 % of 8.0 GiB", "pull 90 %")]
    result = {**WEB["result"]}
    result["server"] = {
        **result["server"],
        "image": {"reference": "vllm:1", "id": "sha256:a", "digest": "vllm@sha256:b"},
        "hidden": ["/data"],
    }
    api.on("POST", HOOK, Canned(RUNNING, 202))
    api.on("GET", OPERATION, *(Canned(one) for one in pulling), Canned({**WEB, "result": result}))
    api.on("GET", "/admin/v1/functions/web", Canned({}))
    api.on("GET", "/fn/web", Canned({}))
    options = ("--mount", "models=/srv:/models", "--secret", "HF_TOKEN=hf", "--pull")

    shown = fnctl(
        "deploy", "--name", "web", "--image", "vllm:1", *options, "--", "--model", "/models/q", "-x"
    )

    [sent] = api.sent("POST")
    assert sent.json["pull"]
    assert "trust" not in sent.json
    server = parse_manifest(sent.json["manifest"], []).server
    assert server is not None
    assert server.image == ServerImage("vllm:1")
    assert server.command == ("--model", "/models/q", "-x")
    assert server.mounts == (Mount("models", "/srv", "/models"),)
    assert server.secrets == {"HF_TOKEN": "hf"}
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0] == "web@1 deployed (vllm:1)"
    assert "image vllm@sha256:b" in lines
    assert any(line.startswith("hidden /data: volumes of the image") for line in lines)
    remarks = [" ".join(line.split()) for line in shown.stderr.splitlines()]
    assert "pull 5 % of 8.0 GiB" in remarks
    assert "pull 90 %" in remarks
    assert sum(line.startswith("pull ") and "%" not in line for line in remarks) == 1


def test_a_folder_becomes_a_server(
    web: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """With --command a folder needs no function.toml; all its files go up, except hidden ones."""
    folder = tmp_path / "web"
    (folder / "static").mkdir(parents=True)
    for name in ("app.py", "static/a.css", ".secret"):
        (folder / name).write_text(name)

    result = fnctl("deploy", str(folder), "--command", "python app.py ${PORT}", "--trust")

    [sent] = web.sent("POST", HOOK)
    assert result.exit_code == 0
    assert [file["path"] for file in sent.json["files"]] == ["app.py", "static/a.css"]
    assert (sent.json["derived_name"], sent.json["trust"]) == (True, True)
    assert "now" not in sent.json


def test_options_override_the_server_of_a_folder(
    web: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """Beside a function.toml with [server], the options are overrides of its keys."""
    text = 'schema = 1\nname = "web"\n[server]\ncommand = "app ${PORT}"\n'
    (tmp_path / "function.toml").write_text(text)
    command = ("--command", "app -v ${PORT}", "--port", "81", "--env", "A=b")

    assert fnctl("deploy", str(tmp_path), *command, "--trust").exit_code == 0

    [sent] = web.sent("POST", HOOK)
    assert sent.json["manifest"] == text
    assert sent.json["overrides"] == {
        "command": ["app", "-v", "${PORT}"],
        "env": {"A": "b"},
        "port": 81,
    }


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "expected a folder or a model file, or --command or --image for a server"),
        (("--image", "nginx"), "--name: expected a name for a server without a folder"),
        (("--command", "a", "--", "b"), "expected --command or words after --, got both"),
        (("--image", "a", "--secret", "A"), "--secret: expected VARIABLE=NAME, got 'A'"),
        (("--image", "a", "--mount", "/a:/b"), "--mount: expected NAME=SOURCE:TARGET[:rw]"),
        (("--command", "a '${PORT}"), "--command: expected words as a shell splits them"),
        (("--command", " "), "--command: expected a program, got nothing"),
        (("--command", "a ${PORT}"), "--name: expected a name for a server without a folder"),
        (("--command", "a", "--env", "A"), "--env: expected NAME=VALUE, got 'A'"),
    ],
)
def test_a_wrong_server_option_is_told(
    fnctl: Callable[..., Result], args: tuple[str, ...], said: str
) -> None:
    """Wrong usage of the server options is told before anything is sent."""
    result = fnctl("deploy", *args)

    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_bad_command_is_refused_before_anything_is_sent(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """The manifest that the options stand for is checked like a file; a model file is no folder."""
    for args, said in (
        (("--name", "web", "--command", "app"), "server.command: expected ${PORT} in it"),
        ((str(models.add_one(tmp_path)), "--command", "a ${PORT}"), "a server: expected a folder"),
    ):
        result = fnctl("deploy", *args)
        assert (result.exit_code, said in result.stderr) == (1, True)
    assert api.requests == []


def test_a_folder_with_too_many_files_is_not_read(
    fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """The number of files is checked before they are read, as in a virtual environment."""
    for number in range(FILES_MAX + 1):
        (tmp_path / f"{number}.py").touch()

    result = fnctl("deploy", str(tmp_path), "--name", "web", "--command", "a ${PORT}")

    assert result.exit_code == 1
    assert f"expected at most {FILES_MAX} files in {tmp_path}, got {FILES_MAX + 1}" in result.stderr


def test_a_changed_limit_of_a_server_tells_when_it_applies(
    web: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """Replicas get some limits at their start; a deploy that changes only these says so."""
    result = {"revision": "web@1", "created": False, "changed": ["limits.max_s"]}
    web.on("GET", OPERATION, Canned({**DONE, "result": result}))

    shown = fnctl("deploy", "--name", "web", "--command", "a ${PORT}", "--trust").stdout

    assert shown == (
        "same bundle as web@1, which stays; changed: limits.max_s\n"
        "  running replicas keep their limits until they stop\n"
    )
