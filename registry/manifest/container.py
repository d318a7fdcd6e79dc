"""Keys of [server] that concern its container, and the origins of pages: checks and conversion."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from pydantic import Field

from registry.errors import BadManifest
from registry.manifest.checks import Section, Word, refused
from registry.model.servers import Mount, ServerImage, ServerSettings
from runtime_image.contract.proposals import did_you_mean, nearest
from runtime_image.contract.server import BUNDLE_FOLDER

CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""Capabilities that a server may have: those with which the images of common servers prepare their
folders and change to their own user. None of them reaches beyond the container."""
MOUNTS_MAX: Final = 20
WRITABLE_MAX: Final = 20
ORIGINS_MAX: Final = 20
WRITABLE_MIB_MAX: Final = 1_048_576
SHM_MIB: Final = 64
"""Default size of /dev/shm, in MiB."""
SHM_GPU_MIB: Final = 512
SHM_SEVERAL_MIB: Final = 1024
"""MiB for each GPU of a server that has several, and the least that such a server has."""
ID_MAX: Final = 2**31 - 1
"""Largest user or group id."""
FOLDER_FORM: Final = (
    "an absolute path without :, //, . or .., not / and not below /proc, /sys or /dev"
)
TARGET_FORM: Final = f"{FOLDER_FORM}, and not {BUNDLE_FOLDER}, where the function's files are"

_IMAGE: Final = re.compile(
    r"(?:[a-z0-9.-]+(?::[0-9]{1,5})?/)?"  # registry
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
"""Reference of an image, as the distribution specification of the Open Container Initiative writes
it: registry, repository, tag, digest."""
_USER: Final = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")
_SIGNAL: Final = re.compile(r"SIG[A-Z0-9+-]{2,10}")
_ORIGIN: Final = re.compile(
    r"(?:https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])|(?!https?:)[a-z][a-z0-9+.-]*://[A-Za-z0-9._~-]+)"
    r"(?::[1-9][0-9]{0,4})?"
)
"""Serialised origin (RFC 6454, section 6.2): scheme, host in lower case, port unless default. Apps
and extensions have schemes of their own, whose hosts browsers do not change, such as `app://.`."""
_MOUNT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_OWN: Final = ("user", "capabilities", "writable", "shm_mib", "stop_signal", "mounts")
"""Keys that only images have."""
_FORBIDDEN: Final = tuple(PurePosixPath(path) for path in ("/proc", "/sys", "/dev"))
_BUNDLE_FOLDER: Final = PurePosixPath(BUNDLE_FOLDER)


class ContainerTable(Section):
    """Keys of [server] that concern its container."""

    image: str = Field(default="", max_length=512)
    """Container image of the server, such as `nginx:1.27`. Needs the driver docker, or hosts that
    pull images themselves, as those of a cluster: these need `port`, too."""
    mounts: dict[str, Word] = Field(default={}, max_length=MOUNTS_MAX)
    """Folders of the host that the server of an image sees: a name for each, and
    `"SOURCE:TARGET"`, read-only, or `"SOURCE:TARGET:rw"`. `FN_MOUNT_ROOTS` says which folders may
    be mounted. On hosts of a cluster the name is that of a PersistentVolumeClaim, and SOURCE is not
    used."""
    user: str = Field(default="", max_length=21)
    """User of an image's server as numbers, `UID` or `UID:GID`. Empty for the image's own."""
    capabilities: list[Word] = Field(default=[], max_length=len(CAPABILITIES))
    """Linux capabilities of an image's server: `CHOWN`, `DAC_OVERRIDE`, `FOWNER`,
    `NET_BIND_SERVICE`, `SETGID` or `SETUID`. Hosts of a cluster grant none."""
    writable: dict[str, int] = Field(default={}, max_length=WRITABLE_MAX)
    """Folders that an image's server may write to, with MiB of memory that their files may take."""
    shm_mib: int | None = Field(default=None, ge=1, le=1_048_576)
    """MiB of shared memory (`/dev/shm`) of an image's server: by default 64, and on several GPUs
    512 for each of them, at least 1024."""
    stop_signal: str = Field(default="", max_length=20)
    """Signal that stops an image's server, such as `SIGQUIT`. Empty for the image's own, or
    TERM."""


def default_shm_mib(gpus: int) -> int:
    """Return the MiB of shared memory of a server whose function says none. The processes of a
    server on several GPUs exchange data there: NCCL's buffers, and the queues of its workers."""
    return max(SHM_SEVERAL_MIB, SHM_GPU_MIB * gpus) if gpus > 1 else SHM_MIB


def container_settings(table: ContainerTable, gpus: int) -> dict[str, Any]:
    """Convert the keys to fields of ServerSettings; `gpus` is the number of GPUs of a replica.
    Raises BadManifest, also for a key that only images have, in a table without `image`."""
    if not table.image:
        for key in _OWN:
            if getattr(table, key) != _DEFAULTS[key]:
                raise _bad(key, "no such key without server.image", getattr(table, key))
        return {}
    if not _IMAGE.fullmatch(table.image):
        raise _bad("image", "an image such as nginx:1.27 or host:5000/team/name:tag", table.image)
    return {
        "image": ServerImage(table.image),
        "user": _user(table.user),
        "capabilities": _capabilities(table.capabilities),
        "writable": _writable(table.writable),
        "shm_mib": default_shm_mib(gpus) if table.shm_mib is None else table.shm_mib,
        "stop_signal": _stop_signal(table.stop_signal),
        "mounts": _mounts(table.mounts),
    }


def container_table(settings: ServerSettings, gpus: int) -> dict[str, Any]:
    """Return the keys that `container_settings` converts to these settings of replicas with this
    number of GPUs. A size of shared memory that is the default of that number counts as not given,
    so that it follows another number."""
    is_default = settings.image is None or settings.shm_mib == default_shm_mib(gpus)
    return {
        "image": settings.image.reference if settings.image else "",
        "user": settings.user,
        "capabilities": list(settings.capabilities),
        "writable": dict(settings.writable),
        "shm_mib": None if is_default else settings.shm_mib,
        "stop_signal": settings.stop_signal,
        "mounts": {
            one.name: f"{one.source}:{one.target}{'' if one.is_read_only else ':rw'}"
            for one in settings.mounts
        },
    }


_DEFAULTS: Final = container_table(ServerSettings(()), 1)


ORIGIN_MAX: Final = 300
"""Max characters of an origin: a host has 253."""


def origin_fault(text: str) -> str:
    """Return why a text is no origin as browsers write it; "" if it is one."""
    if text == "null":
        return "every sandboxed page sends null"
    if text.startswith("file:"):
        return "every page from a file has one origin"
    if text.partition(":")[0] in ("ws", "wss", "javascript", "data", "blob"):
        return "no page has an origin of this scheme"
    if len(text) > ORIGIN_MAX:
        return f"an origin has at most {ORIGIN_MAX} characters"
    if "*" in text:
        return "origins are compared exactly, without wildcards"
    if text.startswith("http://") and text.endswith(":80"):
        return "browsers leave out the port 80 of http"
    if text.startswith("https://") and text.endswith(":443"):
        return "browsers leave out the port 443 of https"
    if _ORIGIN.fullmatch(text):
        return ""
    if "/" in text.partition("://")[2]:
        return "an origin has no path, and no slash at its end"
    return "an origin is SCHEME://HOST or SCHEME://HOST:PORT"


def check_origin(origin: str) -> str:
    """Return the origin. Raises BadManifest if it is none, or not as browsers write it."""
    if fault := origin_fault(origin):
        expected = "origins as browsers send them, such as https://app.example or app://name"
        raise _bad("origins", expected, origin, f"is none: {fault}")
    return origin


def _bad(key: str, expected: str, got: object, note: str = "") -> BadManifest:
    return refused(f"server.{key}", expected, got, note)


def _user(user: str) -> str:
    """Return the user with a group: the engine gives a lone user id the group 0."""
    if not user:
        return ""
    found = _USER.fullmatch(user)
    if found is None or any(int(id) > ID_MAX for id in found.groups(user[:1]) if id):
        raise _bad("user", f"UID or UID:GID, numbers up to {ID_MAX}", user)
    return f"{int(found[1])}:{int(found[2] or found[1])}"


def _capabilities(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name not in CAPABILITIES:
            hint = did_you_mean(nearest(name.upper().removeprefix("CAP_"), CAPABILITIES, 1))
            raise _bad("capabilities", f"some of {', '.join(CAPABILITIES)}{hint}", name)
    return tuple(sorted(set(names)))


def _writable(folders: Mapping[str, int]) -> dict[str, int]:
    for folder, mib in folders.items():
        _check_target("writable", folder)
        if not 1 <= mib <= WRITABLE_MIB_MAX:
            raise _bad(f"writable.{folder}", f"1 to {WRITABLE_MIB_MAX} MiB", mib)
    return dict(folders)


def _stop_signal(name: str) -> str:
    if name and not _SIGNAL.fullmatch(name):
        raise _bad("stop_signal", "a signal such as SIGTERM or SIGQUIT", name)
    return name


def _mounts(mounts: Mapping[str, str]) -> tuple[Mount, ...]:
    found = tuple(_mount(name, text) for name, text in mounts.items())
    targets = [one.target.rstrip("/") for one in found]
    for one in found:
        if targets.count(one.target.rstrip("/")) > 1:
            raise _bad(f"mounts.{one.name}", "a target of its own", one.target)
    return found


def _mount(name: str, text: str) -> Mount:
    key = f"mounts.{name[:40]}"
    if not _MOUNT_NAME.fullmatch(name):
        raise _bad(key, "a name of lower-case letters, digits, - and _", name)
    parts = text.split(":")
    mode = parts.pop() if len(parts) == 3 else "ro"
    if len(parts) != 2 or mode not in ("ro", "rw"):
        raise _bad(key, '"SOURCE:TARGET", or "SOURCE:TARGET:rw"', text)
    _check_folder(key, parts[0])
    _check_target(key, parts[1])
    return Mount(name, parts[0], parts[1], is_read_only=mode == "ro")


def _check_folder(key: str, folder: str) -> None:
    path = PurePosixPath(folder)
    # Two slashes at the beginning would name another root for PurePosixPath.
    is_plain = path.root == "/" and str(path) == folder.rstrip("/") and ".." not in path.parts
    is_safe = not any(one in (path, *path.parents) for one in _FORBIDDEN)
    if not (is_plain and is_safe and folder.isprintable()) or ":" in folder or folder == "/":
        raise _bad(key, FOLDER_FORM, folder)


def _check_target(key: str, folder: str) -> None:
    """As `_check_folder`, for a folder in the container."""
    _check_folder(key, folder)
    if _BUNDLE_FOLDER in (PurePosixPath(folder), *PurePosixPath(folder).parents):
        raise _bad(key, TARGET_FORM, folder)
