"""Inputs of an image build (sources with release and digest, wheels, the context as a tar), and the
errors of a build with their remedies."""

from __future__ import annotations

import hashlib
import re
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, ClassVar, Final

import runtime_image
from registry.errors import EngineDown, FnError
from runtime_image.lock import FILE as LOCK

TAIL_LINES: Final = 12
DISK_FULL: Final = "no space left on device"
PACKAGE: Final = "runtime_image"
DOCKERFILE: Final = "Dockerfile.runtime"
"""That of the kinds for replicas."""
SERVER: Final = "server"
"""The kind of the server's image."""
SERVER_DOCKERFILE: Final = "Dockerfile.server"
SERVER_DATA: Final = (
    "admin/grafana/*",
    "admin/cli/templates/*/*.in",
    "admin/ui/static/**/*",
    "gateway/grpc/inference.*",
    "registry/store/migrations/*.sql",
)
"""Files of the server's packages that are not Python, as in pyproject.toml."""
SERVER_PACKAGES: Final = (
    *("admin", "environments", "gateway", "hosts", "pool_manager", "python_runner", "registry"),
    PACKAGE,
)
PROJECT: Final = "pyproject.toml"
FILES_MAX: Final = 1000
SERVER_FILES_MAX: Final = 3000
BYTES_MAX: Final = 16 * 2**20
"""Limits of the sources of replicas, and of the server: a larger folder is not a checkout of
fngate."""
_LINK: Final = re.compile(r"^VERSION: Final = (\d+)$", re.MULTILINE)
WHEELHOUSE: Final = "wheelhouse"
WHEELS_MAX: Final = 500
WHEEL_BYTES_MAX: Final = 24 * 2**30
MODE: Final = 0o644


class ImageError(FnError):
    """No image was built, and nothing changed. A note on it is a command that may help."""

    code: ClassVar[str] = "image_failed"
    title: ClassVar[str] = "The image was not built"


def image_error(reason: str, *, todo: str = "", tail: list[str] | None = None) -> ImageError:
    """Return an ImageError: the reason, the last lines of output, and `todo` as its note."""
    lines = [reason, *(f"    {line}" for line in (tail or [])[-TAIL_LINES:])]
    error = ImageError("\n".join(lines), detail={"next": todo} if todo else {})
    if todo:
        error.add_note(todo)
    return error


def disk_full(where: str, todo: str) -> ImageError:
    """Return the error for a full disk: wheels, layers or the context."""
    return image_error(f"the disk is full: {where}", todo=todo)


@contextmanager
def engine_errors(url: str) -> Iterator[None]:
    """Translate errors of docker-py at the engine `url` into EngineDown or ImageError."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except APIError as error:
        raise _refused(str(error.explanation or error)) from error
    except (DockerException, RequestException) as error:
        raise unreachable(url, error) from error


def unreachable(url: str, error: BaseException) -> FnError:
    """Return the EngineDown for docker-py's error at `url`, by its causes."""
    causes = list(_causes(error))
    if any(isinstance(cause, PermissionError) for cause in causes):
        return _down(
            f"permission denied at {url}: this user has no access to the engine",
            "sudo usermod -aG docker $USER  and log in again",
        )
    if any(isinstance(cause, FileNotFoundError) for cause in causes):
        reason = f"there is no Docker engine at {url}"
    elif any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        reason = f"nothing listens at {url}: the Docker engine is not running"
    elif any("timed out" in str(cause).lower() for cause in causes):
        reason = f"the Docker engine at {url} does not answer in time"
    else:
        reason = f"the Docker engine at {url}: {error}"
    return _down(
        reason, "sudo systemctl start docker  or name the engine with --engine or FN_DOCKER_HOST"
    )


def _refused(reason: str) -> ImageError:
    if DISK_FULL in reason:
        return disk_full(reason, "docker system prune")
    return image_error(f"the engine refused: {reason}")


def _down(reason: str, todo: str) -> EngineDown:
    error = EngineDown(reason, detail={"next": todo})
    error.add_note(todo)
    return error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes; urllib3 keeps some in its arguments."""
    for _ in range(8):
        if error is None:
            return
        yield error
        yield from (each for each in error.args if isinstance(each, BaseException))
        error = error.__cause__ or error.__context__


@dataclass(frozen=True, slots=True)
class Release:
    """Release of the sources, as in the image's labels."""

    link: int
    version: str
    source: str
    """`digest` of the sources."""


def own_checkout() -> Path:
    """Return the checkout that this program runs from."""
    return Path(runtime_image.__file__).resolve().parent.parent


def own_digest() -> str:
    """Return the digest of this program's own sources."""
    return digest(own_checkout())


def digest(checkout: Path) -> str:
    """Return the sha256 over the sorted paths and contents of the Python files of runtime_image.

    Two images with the same digest run the same code. Raises ImageError for too many files.
    """
    hashed = hashlib.sha256()
    for path in python_files(checkout):
        content = path.read_bytes()
        name = path.relative_to(checkout).as_posix()
        hashed.update(f"{name}\0{len(content)}\0".encode())
        hashed.update(content)
    return f"sha256:{hashed.hexdigest()}"


def python_files(checkout: Path) -> list[Path]:
    """Return the Python files of runtime_image, sorted by path."""
    return _sorted(checkout / PACKAGE, (checkout / PACKAGE).rglob("*.py"), FILES_MAX)


def server_files(checkout: Path) -> list[Path]:
    """Return the files of the server's packages, sorted by path. Those of the dashboard are there
    once it was built."""
    python = (path for name in SERVER_PACKAGES for path in (checkout / name).rglob("*.py"))
    others = (path for pattern in SERVER_DATA for path in checkout.glob(pattern))
    return _sorted(checkout, [*python, *others], SERVER_FILES_MAX)


def _sorted(folder: Path, paths: Iterable[Path], files_max: int) -> list[Path]:
    found = sorted(
        (path for path in paths if path.is_file()),
        key=lambda path: path.relative_to(folder).as_posix(),
    )
    if len(found) > files_max or sum(path.stat().st_size for path in found) > BYTES_MAX:
        raise image_error(f"{folder} has more than {files_max} files or {BYTES_MAX >> 20} MiB")
    return found


def source_file(checkout: Path, name: str) -> Path:
    """Return the file `name` at the root of a checkout (or in runtime_image, if installed)."""
    packaged = checkout / PACKAGE / name
    return packaged if packaged.is_file() else checkout / name


def dockerfile_of(kind: str) -> str:
    """Return the name of the Dockerfile of an image's kind."""
    return SERVER_DOCKERFILE if kind == SERVER else DOCKERFILE


def read_release(checkout: Path) -> Release:
    """Return link version, version and digest of a checkout, or of the installed fngate.

    Raises ImageError if `checkout` is neither.
    """
    needed = [DOCKERFILE, LOCK, f"{PACKAGE}/contract/link.py"]
    if checkout != own_checkout() or (checkout / DOCKERFILE).is_file():
        needed.append(PROJECT)
    for name in needed:
        if not source_file(checkout, name).is_file():
            raise image_error(
                f"{checkout} is not a checkout of fngate: it has no {name}",
                todo="fnctl image build --context DIR  with the folder of a checkout",
            )
    found = _LINK.search((checkout / PACKAGE / "contract" / "link.py").read_text("utf-8"))
    if found is None:
        raise image_error(f"{checkout / PACKAGE}/contract/link.py names no VERSION")
    return Release(int(found[1]), _version(checkout), digest(checkout))


def _version(checkout: Path) -> str:
    path = checkout / PROJECT
    if not path.is_file():
        return version("fngate")
    return str(tomllib.loads(path.read_text("utf-8"))["project"]["version"])


def wheels_in(folder: Path, option: str = "--wheelhouse") -> list[Path]:
    """Return the wheels of a folder, sorted. Raises ImageError for none, or for too many."""
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == ".whl")
    except OSError as error:
        text = f"{option}: expected a folder of wheels, got {folder}: {error.strerror}"
        raise image_error(text) from error
    total = sum(path.stat().st_size for path in found)
    if not found:
        raise image_error(f"{option}: there are no wheels (*.whl) in {folder}")
    if len(found) > WHEELS_MAX or total > WHEEL_BYTES_MAX:
        raise image_error(
            f"{option}: expected at most {WHEELS_MAX} wheels of {WHEEL_BYTES_MAX >> 30} GiB"
            f" together, got {len(found)} of {total >> 30} GiB in {folder}"
        )
    return found


def entries(checkout: Path, wheels: list[Path], kind: str) -> Iterator[tuple[str, Path]]:
    """Yield every file of the context: its name there and its path here."""
    for name in (dockerfile_of(kind), LOCK):
        yield name, source_file(checkout, name)
    for path in sorted((checkout / PACKAGE / "requirements").glob("*.txt")):
        yield path.relative_to(checkout).as_posix(), path
    for path in server_files(checkout) if kind == SERVER else python_files(checkout):
        yield path.relative_to(checkout).as_posix(), path
    for path in wheels:
        yield f"{WHEELHOUSE}/{path.name}", path


def pack(checkout: Path, wheels: list[Path], kind: str) -> IO[bytes]:
    """Return the context as an unnamed temporary file, rewound; closing it deletes it.

    Without owners, times and modes of this machine. Raises ImageError if the disk is full.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, path in entries(checkout, wheels, kind):
                with path.open("rb") as source:
                    info = tar.gettarinfo(arcname=name, fileobj=source)
                    tar.addfile(_anonymous(info), source)
        file.seek(0)
    except OSError as error:
        file.close()
        raise disk_full(
            f"the build context cannot be written to {tempfile.gettempdir()}: {error}",
            "TMPDIR=DIR fnctl image build  with free space in DIR",
        ) from error
    except BaseException:
        file.close()
        raise
    return file


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = MODE
    return info
