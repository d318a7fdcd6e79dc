"""What a folder says about its function, to `fnctl dev`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from admin.cli.dev.folder import read_folder
from registry.errors import BadBundle, FnError


def write(root: Path, manifest: str = "", **files: str) -> Path:
    """Write a folder; `handler` is handler.py."""
    if manifest:
        (root / "function.toml").write_text(f"schema = 1\n{manifest}")
    for name, text in {"handler": "", **files}.items():
        (root / f"{name}.py").write_text(text)
    return root


def settings(root: Path) -> dict[str, Any]:
    """Return the runner's settings that differ from the usual ones."""
    usual = {
        "revision",
        "body_mib",
        "concurrency",
        "batch_max",
        "inputs",
        "output",
        "ready",
        "log_calls",
        "page",
        "local_only",
    }
    return {key: value for key, value in read_folder(root).settings.items() if key not in usual}


def test_a_handler_alone_is_a_function(tmp_path: Path) -> None:
    """It needs no manifest."""
    found = read_folder(write(tmp_path))

    assert settings(tmp_path) == {"handler": str(tmp_path / "handler.py"), "timeout_s": 60.0}
    assert (found.needs.source, found.server, found.version) == ("", None, "")


def test_the_manifest_is_read(tmp_path: Path) -> None:
    """What a deploy would read of it, too."""
    manifest = """
[python]
version = "3.12"
needs = "more.txt"
handler = "other.py"
page = "page.html"
env = { A = "1" }
secrets = { TOKEN = "my-token" }
network = "egress"
[limits]
timeout_s = 5
concurrency = 4
[batching]
mode = "always"
[input.x]
dtype = "FP32"
shape = [-1, 2]
[output]
kind = "json"
[sample]
x = [[1, 2]]
"""
    (tmp_path / "more.txt").write_text("tiny>=1\n")
    (tmp_path / "page.html").touch()
    found = read_folder(write(tmp_path, manifest, other=""))

    assert found.needs.lines == ("msgspec>=0.19", "tiny>=1")
    assert (found.version, found.env, found.secrets) == ("3.12", {"A": "1"}, ("TOKEN",))
    assert found.settings["handler"] == str(tmp_path / "other.py")
    assert found.settings["page"] == str(tmp_path / "page.html")
    assert found.settings["inputs"]["x"]["shape"] == (-1, 2)
    chosen = {key: found.settings[key] for key in ("timeout_s", "concurrency", "batch_max")}
    assert chosen == {"timeout_s": 5.0, "concurrency": 1, "batch_max": 32}
    assert found.settings["output"]["kind"] == "json"
    assert found.sample == {"x": [[1, 2]]}


def test_a_command_is_read(tmp_path: Path) -> None:
    """`[server]` beside `[python]`."""
    manifest = '[python]\n[server]\ncommand = "serve ${PORT}"\nenv = {B = "${PORT}"}\n'
    found = read_folder(write(tmp_path, manifest))

    assert found.server is not None
    assert found.server.command == ("serve", "${PORT}")
    assert (found.env, found.settings) == ({"B": "${PORT}"}, {})


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("[limits]\n", "python: expected this table, which makes a Python function, got 'none'"),
        ("python = 1\n", "python: expected a table, got 1"),
        ("[python]\nversio = '3.12'\n", "python.versio: unknown key; did you mean 'version'?"),
        (
            "[python]\nhandler = 'no.py'\n",
            "python.handler: expected one of the folder's files, got 'no.py'",
        ),
        ("[python]\npage = 'no.html'\n", "page: expected one of the folder's files, got 'no.html'"),
        ("[python]\nhandler = '../x.py'\n", "'../x.py'"),
        ("[python]\nneeds = 'no.txt'\n", "needs: expected one of the folder's files, got 'no.txt'"),
        ("[python]\n[limits]\ntimeout_s = 'x'\n", "limits.timeout_s: expected a number, got 'x'"),
        ("[python]\n[input]\nx = 1\n", "input.x: expected a table, got 1"),
        ("[python]\n[what]\n", "what: unknown key"),
        ("[python]\n[server]\ncommand = 'a ${SOCKET}'\n", "server.command: expected ${PORT} in it"),
        ("[python\n", "function.toml"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path: Path, manifest: str, said: str) -> None:
    """With the key, what was expected and what came."""
    with pytest.raises(FnError) as caught:
        read_folder(write(tmp_path, manifest))

    assert said in caught.value.message


def test_other_folders_are_refused(tmp_path: Path) -> None:
    """With what is missing."""
    with pytest.raises(BadBundle, match=r"expected handler\.py or function\.toml in"):
        read_folder(tmp_path)
    with pytest.raises(BadBundle, match="cannot be read"):
        read_folder(tmp_path / "none")
    (tmp_path / "handler.py").symlink_to("/dev/zero")
    with pytest.raises(BadBundle, match=r"handler\.py"):
        read_folder(tmp_path)
