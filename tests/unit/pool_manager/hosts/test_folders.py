"""Folders on another host, made by a real shell in a folder of the test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pytest

from hosts.commands import Completed
from hosts.errors import ConnectionLost
from pool_manager.hosts.folders import HostFolders
from pool_manager.hosts.probing import read_facts
from registry.errors import DriverError, HostDown
from registry.model.servers import Mount
from runtime_image.contract.control import RECORD_FILE

ID = "aaaa0001"


async def shell(command: str, *, timeout_s: float, input: bytes = b"") -> Completed:
    """Run a command as sshd does: by the login's shell."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", command, stdin=pipe, stdout=pipe, stderr=pipe
    )
    out, errors = await asyncio.wait_for(process.communicate(input), timeout_s)
    return Completed(process.returncode or 0, out, errors)


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder with a short path, whose name is anything but a word of the shell."""
    with TemporaryDirectory(prefix="a b'c$(touch x);\"") as name:
        yield Path(name) / "base"


@pytest.fixture
async def folders(base: Path) -> HostFolders:
    """The folders, which are there."""
    made = HostFolders("gpu2", shell, PurePosixPath(base))
    await made.prepare()
    return made


async def folders_of(path: Path) -> set[str]:
    return set(await asyncio.to_thread(os.listdir, path))


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o777)


async def test_each_folder_has_its_mode(folders: HostFolders, base: Path) -> None:
    """Only the login sees BASE. A replica may write in its data folder until that is sealed."""
    await folders.create(ID, b"{}")

    assert mode(base) == "0o700"
    assert [mode(base / name) for name in ("control", "run", "data", "models")] == ["0o711"] * 4
    assert mode(base / "files") == "0o700"
    assert mode(base / "data" / ID) == "0o777"
    assert mode(base / "run" / ID) == "0o755"
    assert (base / "run" / ID / RECORD_FILE).read_bytes() == b"{}"
    await folders.seal(ID)
    assert mode(base / "data" / ID) == "0o711"
    assert folders.control_socket == f"{base}/control/ctl.sock"
    assert folders.data_socket(ID) == f"{base}/data/{ID}/data.sock"


async def test_a_model_folder_is_emptied_and_kept(folders: HostFolders, base: Path) -> None:
    """Its folders are made anew, whatever their names are; it stays the same for the container that
    mounts it, and the data folder of such a container is sealed."""
    await folders.create(ID, b"{}")
    models = base / "models" / ID
    before = models.stat().st_ino
    (models / "old").mkdir()
    (models / "old/file").touch()

    await folders.empty_models(ID, [PurePosixPath("a/b c"), PurePosixPath("-rf $HOME")])

    assert sorted(path.name for path in models.iterdir()) == ["-rf $HOME", "a"]
    assert (models / "a/b c").is_dir()
    assert models.stat().st_ino == before
    assert mode(base / "data" / ID) == "0o711"


async def test_folders_of_replicas_are_found_and_removed(folders: HostFolders, base: Path) -> None:
    """Ids are those of any of the folders; links in them are not followed."""
    await folders.create(ID, b"{}")
    await folders.empty_models("bbbb0002")
    kept = base.parent / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (base / "data" / ID / "link").symlink_to(kept)
    (base / "data" / ID / "data.sock").symlink_to(kept / "file")
    os.mkfifo(base / "data" / ID / "-pipe\nx")

    assert await folders.ids() == {ID, "bbbb0002"}
    await folders.remove(ID)
    assert await folders.ids() == {"bbbb0002"}
    assert (kept / "file").exists()
    await folders.remove(ID)
    await folders.remove_all()
    assert await folders_of(base.parent) == {"kept"}


async def test_a_mount_is_a_folder_of_the_host_apart_from_ours(
    folders: HostFolders, base: Path, tmp_path: Path
) -> None:
    """Links, files, and folders that hold ours or lie in them are refused."""
    data = tmp_path / "data set"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)

    await folders.check_mount(Mount("data", str(data), "/data"))
    for source, reason in (
        (tmp_path / "link", "got a link"),
        (tmp_path / "none", "cannot mount"),
        (base / "files", "apart from"),
        (base.parent, "apart from"),
    ):
        with pytest.raises(DriverError, match=reason):
            await folders.check_mount(Mount("data", str(source), "/data"))


async def test_a_home_folder_may_be_too_deep(tmp_path: Path) -> None:
    """A socket's path has a limit, which is checked before anything is made."""
    folders = HostFolders("gpu2", shell, PurePosixPath(tmp_path / ("x" * 90)))

    with pytest.raises(DriverError, match="too long for sockets"):
        await folders.prepare()
    assert await folders_of(tmp_path) == set()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), HostDown),
        (ConnectionLost("broke"), HostDown),
        (ConnectionRefusedError("no session"), DriverError),
    ],
)
async def test_only_a_silent_host_is_down(error: Exception, kind: type[Exception]) -> None:
    """A host that refuses a command can be reached."""

    async def run(command: str, *, timeout_s: float, input: bytes = b"") -> Completed:
        raise error

    with pytest.raises(DriverError) as raised:
        await HostFolders("gpu2", run, PurePosixPath("/b")).ids()
    assert type(raised.value) is kind
    with pytest.raises(kind, match="gpu2"):
        await read_facts("gpu2", run)


async def test_a_full_disk_has_a_remedy() -> None:
    """The text names host and reason, and does not grow with what the host says."""

    async def run(command: str, *, timeout_s: float, input: bytes = b"") -> Completed:
        return Completed(1, b"", b"No space left on device" + b"x" * 10_000)

    with pytest.raises(DriverError, match="host gpu2: No space left") as raised:
        await HostFolders("gpu2", run, PurePosixPath("/b")).create(ID, b"{}")
    assert raised.value.message.endswith("; free disk space there")
    assert len(raised.value.message) < 500


async def test_facts_of_a_host() -> None:
    """Home, processors and file systems come from a shell; a login without one is refused."""
    facts = await read_facts("gpu2", shell)
    assert facts.home == str(Path.home())
    assert facts.machine.processors == os.uname().machine
    assert " / " in facts.machine.mountinfo

    async def run(command: str, *, timeout_s: float, input: bytes = b"") -> Completed:
        return Completed(1, b"This account is currently not available.\n", b"")

    with pytest.raises(DriverError, match=r"a login with a shell.*not available"):
        await read_facts("gpu2", run)


async def test_the_model_folder_of_a_replica_is_extended(folders: HostFolders, base: Path) -> None:
    """Nothing is removed, and the folder of a replica that is gone is not made again."""
    await folders.create(ID, b"{}")
    (base / "models" / ID / "m.onnx").touch()

    await folders.extend_models(ID, [PurePosixPath(".compiled"), PurePosixPath("x y")])
    await folders.extend_models(ID, [])

    assert await folders_of(base / "models" / ID) == {"m.onnx", ".compiled", "x y"}
    assert mode(base / "models" / ID / ".compiled") == "0o755"
    await folders.remove(ID)
    with pytest.raises(DriverError, match="extend the model folder"):
        await folders.extend_models(ID, [PurePosixPath(".compiled")])
    assert await folders_of(base / "models") == set()
