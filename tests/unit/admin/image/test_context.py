from __future__ import annotations

import ast
import re
import shutil
import socket
import sys
import tarfile
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from docker import APIClient
from docker.errors import APIError

from admin.cli.kubernetes.server_pod import USER
from admin.image import context
from admin.image.context import ImageError, engine_errors, image_error, own_checkout, unreachable
from registry.errors import EngineDown
from runtime_image.contract.link import VERSION

ROOT = own_checkout()


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    """Create two files with names of wheels."""
    for name in ("b-1-py3-none-any.whl", "a-1-py3-none-any.whl", "notes.txt"):
        (tmp_path / name).write_text(name)
    return context.wheels_in(tmp_path)


def test_wheels_are_found_by_their_names(wheels: list[Path]) -> None:
    """Wheels are found by their names, sorted; other files are ignored."""
    assert [path.name for path in wheels] == ["a-1-py3-none-any.whl", "b-1-py3-none-any.whl"]


def test_the_tar_has_what_is_needed(wheels: list[Path]) -> None:
    """The tar has Dockerfile, lock, requirements, the Python files of runtime_image, and the
    wheels."""
    with context.pack(ROOT, wheels, "cpu") as file, tarfile.open(fileobj=file) as tar:
        members = tar.getmembers()
        wheel = tar.extractfile("wheelhouse/a-1-py3-none-any.whl")
        content = wheel.read() if wheel else b""

    names = [member.name for member in members]
    rest = [name for name in names if not name.startswith("runtime_image/")]
    assert rest[:2] == ["Dockerfile.runtime", "requirements.lock"]
    assert rest[2:] == ["wheelhouse/a-1-py3-none-any.whl", "wheelhouse/b-1-py3-none-any.whl"]
    assert content == b"a-1-py3-none-any.whl"
    assert {"runtime_image/__main__.py", "runtime_image/requirements/cpu.txt"} <= {*names}
    assert {Path(name).suffix for name in names} == {".runtime", ".lock", ".txt", ".py", ".whl"}


def test_nothing_of_this_machine_is_in_the_tar(wheels: list[Path]) -> None:
    """The tar has no owner, time or mode of this machine."""
    with context.pack(ROOT, wheels, "cpu") as file, tarfile.open(fileobj=file) as tar:
        seen = {(m.uid, m.gid, m.uname, m.gname, m.mtime, m.mode) for m in tar.getmembers()}

    assert seen == {(0, 0, "", "", 0, 0o644)}


def test_a_folder_without_wheels_is_refused(tmp_path: Path) -> None:
    """An empty and a missing folder of wheels are refused."""
    with pytest.raises(ImageError, match="there are no wheels"):
        context.wheels_in(tmp_path)
    with pytest.raises(ImageError, match=r"expected a folder .*nowhere: No such file"):
        context.wheels_in(tmp_path / "nowhere")


def test_too_much_is_refused(tmp_path: Path) -> None:
    """Too many or too large wheels are refused with count or size."""
    for number in range(context.WHEELS_MAX + 1):
        (tmp_path / f"{number}.whl").touch()
    with pytest.raises(ImageError, match="at most 500 wheels of 24 GiB together, got 501"):
        context.wheels_in(tmp_path)

    other = tmp_path / "other"
    other.mkdir()
    with (other / "huge.whl").open("wb") as file:
        file.truncate(context.WHEEL_BYTES_MAX + 1)
    with pytest.raises(ImageError, match="got 1 of 24 GiB"):
        context.wheels_in(other)


def test_no_room_for_the_context_is_told(
    wheels: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is reported with the folder and how to choose another; /dev/full simulates it."""
    full = Path("/dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: full.open("r+b", buffering=0))

    with pytest.raises(ImageError, match="the disk is full: the build context cannot") as caught:
        context.pack(ROOT, wheels, "cpu")

    assert "TMPDIR=" in caught.value.__notes__[0]


SERVERS = {"stream.py"}
"""Files of runtime_image that only gateway and manager import: the asyncio side of the link."""


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_requirements_are_what_the_code_imports(kind: str) -> None:
    """Every package that runtime_image imports is in the image's requirements."""
    # soundfile is the extra `audio`, which no image has; _typeshed exists for type checkers alone.
    own = {"runtime_image", "__future__", "_typeshed", "soundfile"} | set(sys.stdlib_module_names)
    imported = set()
    for path in (ROOT / "runtime_image").rglob("*.py"):
        if path.name in SERVERS:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
    engine = {"cpu": "onnxruntime", "gpu": "onnxruntime-gpu[cuda,cudnn]"}[kind]
    names = {"PIL": "pillow", "onnxruntime": engine, "pynvml": "nvidia-ml-py"}

    required = (ROOT / "runtime_image" / "requirements" / f"{kind}.txt").read_text().split()

    assert sorted(required) == sorted(names.get(name, name) for name in imported - own)


SERVER_DOCKERFILE = (ROOT / "Dockerfile.server").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Create a checkout with the files that a build needs."""
    for name in ("Dockerfile.runtime", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "runtime_image", tmp_path / "runtime_image")
    return tmp_path


def test_a_release_is_read_off_the_checkout(checkout: Path) -> None:
    """Link version, version and digest are read from the folder, wherever it lies."""
    release = context.read_release(checkout)

    assert (release.link, release.version) == (VERSION, PROJECT["version"])
    assert release.source == context.own_digest()
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", release.source)


def test_an_installed_fngate_builds_the_same_image(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package, which has Dockerfile and lock in runtime_image and no
    pyproject.toml, has the release, context and lock of the checkout."""
    before = {name: path.read_bytes() for name, path in context.entries(checkout, [], "cpu")}
    for name in ("Dockerfile.runtime", "requirements.lock"):
        (checkout / name).rename(checkout / "runtime_image" / name)
    (checkout / "pyproject.toml").unlink()
    monkeypatch.setattr(context, "own_checkout", lambda: checkout)

    release = context.read_release(checkout)

    assert release == context.Release(VERSION, version("fngate"), context.digest(checkout))
    after = {name: path.read_bytes() for name, path in context.entries(checkout, [], "cpu")}
    assert after == before
    lock = context.source_file(checkout, "requirements.lock")
    assert lock.read_bytes() == before["requirements.lock"]


def test_the_digest_follows_the_sources(checkout: Path) -> None:
    """A changed, added or renamed Python file changes the digest; compiled files do not."""
    seen = {context.digest(checkout)}
    (checkout / "runtime_image" / "new.py").write_text("x = 1\n")
    seen.add(context.digest(checkout))
    (checkout / "runtime_image" / "new.py").write_text("x = 2\n")
    seen.add(context.digest(checkout))
    (checkout / "runtime_image" / "new.py").rename(checkout / "runtime_image" / "old.py")
    seen.add(context.digest(checkout))
    (checkout / "runtime_image" / "old.py").unlink()
    (checkout / "runtime_image" / "new.pyc").touch()

    assert len(seen) == 4
    assert context.digest(checkout) in seen


def test_where_a_file_ends_counts(checkout: Path) -> None:
    """A file that contains the next one's name and content has another digest than the two
    files."""
    first, second = (checkout / "runtime_image" / name for name in ("y.py", "z.py"))
    first.write_text("a")
    second.write_text("c")
    before = context.digest(checkout)
    first.write_text("aruntime_image/z.pyc")
    second.unlink()

    assert context.digest(checkout) != before


@pytest.mark.parametrize("name", ["Dockerfile.runtime", "pyproject.toml"])
def test_another_folder_is_no_checkout(checkout: Path, name: str) -> None:
    """A folder that is no checkout is refused with the missing file and the option for another
    folder."""
    (checkout / name).unlink()

    with pytest.raises(ImageError, match=f"not a checkout of fngate: it has no {name}") as caught:
        context.read_release(checkout)

    assert "--context DIR" in caught.value.__notes__[0]


def test_a_link_module_must_name_its_version(checkout: Path) -> None:
    """A link module without its version is refused."""
    (checkout / "runtime_image" / "contract" / "link.py").write_text("V = 1\n")

    with pytest.raises(ImageError, match="names no VERSION"):
        context.read_release(checkout)


def test_too_many_files_are_refused(checkout: Path) -> None:
    """A folder with too many files is refused before it is read whole."""
    for number in range(context.FILES_MAX):
        (checkout / "runtime_image" / f"x{number}.py").touch()

    with pytest.raises(ImageError, match="more than 1000 files"):
        context.digest(checkout)


@pytest.mark.parametrize("name", ["Dockerfile.runtime", "Dockerfile.server"])
def test_a_build_by_hand_has_the_right_labels(name: str) -> None:
    """The Dockerfile's defaults for link version and version are those of this checkout."""
    text = (ROOT / name).read_text("utf-8")
    defaults = dict(re.findall(r"^ARG (LINK|VERSION)=(.*)$", text, re.MULTILINE))

    assert defaults == {"LINK": str(VERSION), "VERSION": PROJECT["version"]}


def test_the_context_of_a_server_has_all_packages(wheels: list[Path]) -> None:
    """The tar has the server's Dockerfile, and what a wheel would have; the Dockerfile copies each
    package."""
    with context.pack(ROOT, wheels, "server") as file, tarfile.open(fileobj=file) as tar:
        names = {member.name for member in tar.getmembers()}
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]

    packages = {one.removesuffix("*") for one in setuptools["packages"]["find"]["include"]}
    assert set(context.SERVER_PACKAGES) == packages
    copied = re.findall(r"^COPY (\w+) /opt/fngate/\1$", SERVER_DOCKERFILE, re.MULTILINE)
    assert set(copied) == packages
    python = {path for name in packages for path in (ROOT / name).rglob("*.py")}
    data = {
        path
        for name, patterns in setuptools["package-data"].items()
        for pattern in patterns
        for path in (ROOT / name.replace(".", "/")).glob(pattern)
    }
    wanted = {path.relative_to(ROOT).as_posix() for path in python | data}
    assert {"Dockerfile.server", "requirements.lock", *wanted} <= names
    assert "Dockerfile.runtime" not in names
    assert not any("dashboard/src" in name or "node_modules" in name for name in names)


def test_a_server_has_the_packages_of_the_project() -> None:
    """Its requirements are the dependencies of fngate."""
    listed = (ROOT / "runtime_image" / "requirements" / "server.txt").read_text().split()
    assert listed == PROJECT["dependencies"]


def test_a_server_runs_without_rights() -> None:
    """As a numeric user, which `runAsNonRoot` needs, with fnctl as its program."""
    assert f"\nUSER {USER}:{USER}\n" in SERVER_DOCKERFILE
    assert SERVER_DOCKERFILE.index("\nUSER 10001") < SERVER_DOCKERFILE.index("\nENTRYPOINT")
    assert re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", SERVER_DOCKERFILE, re.MULTILINE) == [
        '["fnctl"]',
        '["serve"]',
    ]


pytestmark = pytest.mark.filterwarnings(
    # docker-py leaves the socket of a failed connection to the garbage collector.
    "ignore:unclosed <socket:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def connect(url: str) -> EngineDown:
    """Return the error of a real attempt to connect to `url`."""
    with pytest.raises(EngineDown) as caught, engine_errors(url):
        APIClient(base_url=url, version="auto", timeout=0.2)
    return caught.value


def test_no_engine_is_told(tmp_path: Path) -> None:
    """A missing socket is reported with its path and how to start or name an engine."""
    error = connect(f"unix://{tmp_path}/none.sock")

    assert error.message == f"there is no Docker engine at unix://{tmp_path}/none.sock"
    assert "systemctl start docker" in error.__notes__[0]
    assert "FN_DOCKER_HOST" in error.detail["next"]


def test_an_engine_that_stopped_is_told(tmp_path: Path) -> None:
    """A stale socket without a listener is reported."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/left.sock")

        assert "the Docker engine is not running" in connect(f"unix://{tmp_path}/left.sock").message


def test_an_engine_that_hangs_is_told(tmp_path: Path) -> None:
    """An engine that accepts the connection and never answers is reported."""
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(f"{tmp_path}/mute.sock")
        mute.listen()

        assert "does not answer in time" in connect(f"unix://{tmp_path}/mute.sock").message


def test_a_bad_address_is_told() -> None:
    """A bad address is reported in docker-py's words."""
    assert "Invalid bind address" in connect("bad").message


def test_a_missing_right_is_told() -> None:
    """A missing permission for the socket is reported with what to do."""
    outer = OSError("connection aborted", PermissionError(13, "Permission denied"))

    error = unreachable("unix:///var/run/docker.sock", outer)

    assert error.message.startswith("permission denied at unix:///var/run/docker.sock")
    assert "usermod -aG docker" in error.__notes__[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("explanation", "reason"),
    [
        ("write /x: no space left on device", "the disk is full: write /x"),
        ("dockerfile parse error", "the engine refused: dockerfile parse error"),
    ],
)
def test_a_refusal_is_told(explanation: str, reason: str) -> None:
    """A refusal is reported with the engine's reason."""
    with pytest.raises(ImageError, match=reason), engine_errors("unix:///x"):
        raise APIError("500 Server Error", explanation=explanation)


def test_last_lines_are_few() -> None:
    """Only the last lines are shown, however long the output."""
    error = image_error("it failed:", tail=[str(number) for number in range(100)])

    assert error.message.split("\n")[1] == "    88"
    assert error.message.endswith("    99")
