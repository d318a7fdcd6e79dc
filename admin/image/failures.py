"""What a build can fail with, in words that say what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from registry.errors import EngineDown, FnError

TAIL_LINES: Final = 12
DISK_FULL: Final = "no space left on device"


class ImageError(FnError):
    """No image was built, and nothing was changed. A note is the command that may mend it."""

    code: ClassVar[str] = "image_failed"
    title: ClassVar[str] = "The image was not built"


def image_error(reason: str, *, todo: str = "", tail: list[str] | None = None) -> ImageError:
    """The error with its note, and below the reason the last lines that were written."""
    lines = [reason, *(f"    {line}" for line in (tail or [])[-TAIL_LINES:])]
    error = ImageError("\n".join(lines), detail={"next": todo} if todo else {})
    if todo:
        error.add_note(todo)
    return error


def disk_full(where: str, todo: str) -> ImageError:
    """No room for wheels, layers or the context."""
    return image_error(f"the disk is full: {where}", todo=todo)


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turns what docker-py raises at the engine `url` into EngineDown or ImageError."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except APIError as error:
        raise _refused(str(error.explanation or error)) from error
    except (DockerException, RequestException) as error:
        raise unreachable(url, error) from error


def unreachable(url: str, error: BaseException) -> FnError:
    """Why the engine at `url` could not be talked to, by the cause below docker-py's error."""
    causes = list(_causes(error))
    if any(isinstance(cause, PermissionError) for cause in causes):
        return _down(
            f"permission denied at {url}: this user may not use the engine",
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
    """The error and what is below it; urllib3 keeps a cause in its arguments, too."""
    for _ in range(8):
        if error is None:
            return
        yield error
        yield from (each for each in error.args if isinstance(each, BaseException))
        error = error.__cause__ or error.__context__
