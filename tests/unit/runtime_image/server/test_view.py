"""The view of the files of a server: in a child of the test, which may become another user."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest

from runtime_image.server import libc, view
from runtime_image.server.namespaces import (
    OWN,
    enter_with_mounts,
    in_child,
    isolate,
)

REFUSED = in_child(partial(enter_with_mounts, OWN, 8000))
ISOLATED = pytest.mark.skipif(bool(REFUSED), reason=f"namespaces are refused: {REFUSED}")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes sockets below /run")
UID = 12345
UIDS = pytest.mark.parametrize("uid", [0, UID])
NETWORKS = pytest.mark.parametrize("network", ["none", "egress"])
Network = Literal["none", "egress"]


@ISOLATED
@NETWORKS
@pytest.mark.parametrize("is_inside", [False, True])
def test_the_view_is_limited_for_good(tmp_path: Path, network: Network, is_inside: bool) -> None:
    """The bundle is read-only, run folders are hidden but one, and mounts cannot be undone."""
    run_dir = tmp_path / "r" / "a1"
    model_dir = (tmp_path / "r" if is_inside else tmp_path) / "m"
    kept = run_dir / "server"
    for folder in (kept, model_dir, tmp_path / "r" / "b2"):
        folder.mkdir(parents=True)
    (run_dir / "replica.json").write_text("token")
    (model_dir / "app.py").write_text("x")
    (kept / "before").write_text("x")

    def act() -> None:
        found = isolate(network, 8000)
        assert found.files == ""
        view.limit_view(model_dir, run_dir, kept, (), is_alone=not found.network)
        assert (model_dir / "app.py").read_text() == "x"
        with pytest.raises(OSError, match="Read-only"):
            (model_dir / "app.py").write_text("y")
        assert os.listdir(run_dir) == ["server"]
        assert not (tmp_path / "r" / "b2").exists()
        (kept / "after").write_text("x")
        with pytest.raises(OSError, match="Read-only"):
            (run_dir / "x").write_text("x")
        # Capabilities go with the exec.
        script = f"umount {run_dir.parent} {run_dir} {model_dir}; cat {run_dir}/replica.json"
        assert os.spawnlp(os.P_WAIT, "sh", "sh", "-c", f"({script}) 2>/dev/null") != 0

    assert in_child(act) == ""
    assert (kept / "after").read_text() == "x"
    assert (run_dir / "replica.json").read_text() == "token"


@ISOLATED
@NETWORKS
@pytest.mark.parametrize("is_inside", [False, True])
def test_folders_that_others_share_cannot_be_changed(
    tmp_path: Path, network: Network, is_inside: bool
) -> None:
    """Packages of other functions: also what is hard-linked, and below a hidden folder. An absent
    folder is no error."""
    run_dir = tmp_path / "r" / "a1"
    shared = (tmp_path / "r" if is_inside else tmp_path) / "environments"
    for folder in (run_dir / "server", shared, tmp_path / "m"):
        folder.mkdir(parents=True)
    (shared / "one.py").write_text("x")

    def act() -> None:
        found = isolate(network, 8000)
        assert found.files == ""
        view.limit_view(
            *(tmp_path / "m", run_dir, run_dir / "server", ()),
            is_alone=not found.network,
            read_only=(shared, tmp_path / "absent"),
        )
        assert (shared / "one.py").read_text() == "x"
        for change in (
            lambda: (shared / "one.py").write_text("y"),
            lambda: (shared / "one.py").chmod(0o777),
            lambda: (shared / "two.py").write_text("y"),
            lambda: (shared / "one.py").unlink(),
            lambda: (shared / "one.py").rename(shared / "two.py"),
        ):
            with pytest.raises(OSError, match="Read-only"):
                change()
        script = f"umount {shared} || mount -o remount,bind,rw {shared} || echo > {shared}/one.py"
        assert os.spawnlp(os.P_WAIT, "sh", "sh", "-c", f"({script}) 2>/dev/null") != 0

    assert in_child(act) == ""
    assert (shared / "one.py").read_text() == "x"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that everybody may enter. Every session of pytest closes the common folder of the
    sessions to all but its owner when it begins, also in the middle of a test of another one."""
    with TemporaryDirectory(prefix="view-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def below_run() -> Iterator[Path]:
    """A folder below /run that everybody may enter, with `service.sock`, whose server listens."""
    folder = Path(f"/run/fn-test-{os.getpid()}")
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "service.sock"))
        (folder / "service.sock").chmod(0o777)
        listener.listen(1)
        try:
            yield folder
        finally:
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            folder.rmdir()


def become(uid: int) -> None:
    """Become a user who may still write to /proc/self."""
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        libc.prctl(libc.PR_SET_DUMPABLE, 1)  # lost by setuid; a process that starts so has it


def reaches(path: Path | str) -> bool:
    """Return whether a Unix socket takes a connection; a path that is a text is abstract."""
    with socket.socket(socket.AF_UNIX) as sock:
        address = str(path) if isinstance(path, Path) else f"\0{path}"
        return sock.connect_ex(address) == 0


def act_in(
    tmp_path: Path, uid: int, network: Network, needs: list[Path], act: partial[None]
) -> None:
    """Run `act` as the process of a server sees the files; raise AssertionError if it fails."""
    model_dir, run_dir = tmp_path / "m", tmp_path / "r" / "a1"
    for folder in (model_dir, run_dir / "server"):
        folder.mkdir(parents=True)
    for folder in (tmp_path, *tmp_path.parents[:-2], run_dir, run_dir / "server"):
        folder.chmod(0o755)
    os.chown(run_dir / "server", uid, uid)
    before = Path("/proc/self/mounts").read_text()

    def enter_and_act() -> None:
        become(uid)
        found = isolate(network, 8000)
        assert found.files == "", found

        def start() -> None:
            kept = run_dir / "server"
            view.limit_view(model_dir, run_dir, kept, needs, is_alone=not found.network)
            act()

        assert in_child(start) == ""

    assert in_child(enter_and_act) == ""
    assert Path("/proc/self/mounts").read_text() == before


@ISOLATED
@ROOT
@UIDS
@NETWORKS
def test_sockets_below_run_are_out_of_reach(
    tmp_path: Path, below_run: Path, uid: int, network: Network
) -> None:
    """In either network, as root and as anybody else; /run of the host stays as it is."""
    service = below_run / "service.sock"
    assert reaches(service)

    def act() -> None:
        assert not reaches(service)
        assert not reaches(Path("/var/run", *service.parts[2:]))
        assert os.listdir("/run") == []
        Path("/run/own.pid").write_text("1")
        (tmp_path / "r/a1/server/x").write_text("x")

    act_in(tmp_path, uid, network, [], partial(act))

    assert reaches(service)
    assert not Path("/run/own.pid").exists()
    assert (tmp_path / "r/a1/server/x").exists()


@ISOLATED
@ROOT
@UIDS
def test_what_is_needed_below_run_stays(tmp_path: Path, below_run: Path, uid: int) -> None:
    """A folder, a file, a link to somewhere else, and what is not there; nothing beside them."""
    venv, names = below_run / "venv", below_run / "resolve" / "stub.conf"
    for folder in (venv / "bin", venv / "lib", names.parent, tmp_path / "store"):
        folder.mkdir(parents=True)
    names.write_text("nameserver 127.0.0.53")
    link = tmp_path / "resolv.conf"
    link.symlink_to(names)
    (below_run / "driver").symlink_to(tmp_path / "store")
    (tmp_path / "store" / "lib.so").write_text("x")
    needs = view.needed([str(venv / "bin" / "app")], {}, has_network=False)

    def act() -> None:
        assert sorted(os.listdir(below_run)) == ["driver", "resolve", "venv"]
        assert sorted(os.listdir(venv)) == ["bin", "lib"]
        assert link.read_text() == "nameserver 127.0.0.53"
        assert os.listdir(below_run / "driver") == ["lib.so"]
        assert not reaches(below_run / "service.sock")

    needs += [link, below_run / "driver", below_run / "absent"]
    act_in(tmp_path, uid, "egress", needs, partial(act))


@ISOLATED
@ROOT
@UIDS
def test_folders_of_the_server_may_lie_below_run(below_run: Path, uid: int) -> None:
    """Its bundle and its own folder are found there, and no others."""
    (below_run / "f" / "other").mkdir(parents=True)

    def act() -> None:
        assert os.listdir(below_run) == ["f"]
        assert sorted(os.listdir(below_run / "f")) == ["m", "r"]
        with pytest.raises(OSError, match=r"Read-only|Permission"):
            (below_run / "f" / "m" / "x").write_text("x")
        (below_run / "f/r/a1/server/x").write_text("x")

    act_in(below_run / "f", uid, "none", [], partial(act))


@ISOLATED
@ROOT
@UIDS
def test_abstract_sockets_belong_to_the_network(tmp_path: Path, uid: int) -> None:
    """A server in a network of its own does not reach those of the host."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{tmp_path}")
        listener.listen(4)
        assert reaches(str(tmp_path))

        def act() -> None:
            assert not reaches(str(tmp_path))

        act_in(tmp_path, uid, "none", [], partial(act))


def test_what_a_program_needs(tmp_path: Path) -> None:
    """Its folder and its PATH, with the libraries beside a `bin`; names only with a network."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "lib").mkdir()
    given = {"PATH": f"{tmp_path}/venv/bin:relative::{tmp_path}/bin", view.MPS: "/run/mps"}

    found = view.needed(["/run/app/bin/serve"], given, has_network=True)

    expected = [Path("/run/mps"), view.RESOLVER, Path("/run/app/bin")]
    assert found == [*view.DRIVERS, *expected, tmp_path / "venv", tmp_path / "bin"]
    assert view.needed(["serve"], {}, has_network=False) == [*view.DRIVERS]
