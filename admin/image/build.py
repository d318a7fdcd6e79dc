"""Build of a runtime image: base, wheels, context, layers, a trial start, and the tag last.
Ctrl-C ends the build after the current step."""

from __future__ import annotations

import json
import re
import secrets
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from admin.image.containers import (
    dotted,
    probe_base,
    pull_base,
    remove_containers,
    remove_unused,
    run_python,
    sweep,
)
from admin.image.context import (
    DISK_FULL,
    SERVER,
    TAIL_LINES,
    ImageError,
    Release,
    disk_full,
    dockerfile_of,
    engine_errors,
    image_error,
    pack,
    read_release,
    wheels_in,
)
from admin.image.tensorrt import check_loads, find_wheel, probe
from admin.image.wheels import Platform, Report, download, download_commands, requirements
from admin.text import one_line, size
from registry.errors import BadRequest
from runtime_image.lock import FILE as LOCK

if TYPE_CHECKING:
    from docker import APIClient

STEP_WIDTH: Final = 64
SHOWN_INSTRUCTIONS: Final = ("FROM", "RUN", "COPY")
"""Instructions that take time; all others end at once."""
_STEP: Final = re.compile(r"Step (\d+)/(\d+) : (.*)", re.DOTALL)
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_NOISE: Final = re.compile(r" ---> |Removing intermediate container |Successfully (built|tagged) ")
OTHER_WHEELS: Final = "do not match the hashes"
"""pip's text for a file whose hash the lock does not have."""
MISSING_WHEELS: Final = ("no matching distribution", "have conflicting dependencies")
"""pip's texts for a missing file, or for a missing version that is pinned."""
CALL_S: Final = 60
"""Max seconds per answer of the engine, where neither PROBE_S nor STEP_S applies."""
STEP_S: Final = 3600
"""Max seconds of a step without output."""
TRIAL_CODE: Final = """\
import json, platform
from runtime_image.seccomp.install import install
install()
from runtime_image.seccomp.probe import let_through, withheld
from runtime_image.engines.loading import preload
preload("cpu")
import onnxruntime
from runtime_image.contract.link import VERSION
said = {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__}
print(json.dumps({**said, "link": VERSION, "through": let_through(), "withheld": withheld()}))
"""
"""Starts a standby on a CPU (a build needs no GPU), tries every system call that the filter
refuses, and prints the versions."""
SERVER_TRIAL: Final = """\
import json, platform, shutil, subprocess
from runtime_image.contract.link import VERSION
import admin.serve, admin.host_cluster, hosts.kubernetes.client, hosts.tls.door, hosts.login
said = subprocess.run([shutil.which("fnctl"), "--version"], check=True, capture_output=True)
print(json.dumps({"python": platform.python_version(), "link": VERSION}))
"""
"""Loads what a server in a cluster does, runs fnctl, and prints the versions."""

Kind = Literal["cpu", "gpu", "server"]


class Interrupt:
    """Defers the first Ctrl-C of its block, which calls `end_step`; the second one raises.

    An engine whose client disconnected still finishes a copy and keeps an untagged image, so the
    connection stays open until the step is over. Only for the main thread.
    """

    def __init__(self, end_step: Callable[[], None]) -> None:
        """`end_step` ends a step that runs in a container; a copy cannot be ended."""
        self._end_step = end_step
        self._before: Any = None
        self.is_wanted = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raise KeyboardInterrupt after a Ctrl-C, whatever the block ended with."""
        signal.signal(signal.SIGINT, self._before)
        if self.is_wanted:
            raise KeyboardInterrupt from error

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
        self._end_step()


class Progress:
    """Parser of the engine's messages: lines to show, and the id of the built image ("" before it
    is known). Pure."""

    def __init__(self) -> None:
        self.image = ""
        self.step = ""
        """Current instruction, or the last one."""
        self.may_break_off = False
        """True if the current step can be ended from outside: a copy cannot."""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def feed(self, message: dict[str, Any]) -> str:
        """Return the line to show for one message, or "". Raises ImageError for a failed build."""
        if "error" in message or "errorDetail" in message:
            detail = message.get("errorDetail") or {}
            raise self.failure(str(detail.get("message") or message.get("error") or "no reason"))
        aux = message.get("aux")
        if isinstance(aux, dict) and "ID" in aux:
            self.image = str(aux["ID"])
        return self._on_output(str(message.get("stream") or ""))

    def failure(self, reason: str) -> ImageError:
        """Return the error for a build that failed with `reason`, from the last output lines."""
        tail = list(self._tail)
        output = "\n".join([reason, *tail]).lower()
        if DISK_FULL in output:
            return disk_full(one_line(reason)[-300:], "docker system prune")
        todo = "omit --wheelhouse, so that this machine's pip downloads the wheels"
        if OTHER_WHEELS in output:
            return image_error(
                f"a wheel is not the one of {LOCK}, by its hash:", tail=tail, todo=todo
            )
        if any(text in output for text in MISSING_WHEELS):
            return image_error("the wheelhouse is incomplete:", tail=tail, todo=todo)
        what = f"{self.step or 'the build'} failed: {_code(reason)}"
        return image_error(f"{what}; its last lines:" if tail else what, tail=tail)

    def _on_output(self, text: str) -> str:
        if found := _STEP.match(text):
            self._tail.clear()
            number, total, instruction = found.groups()
            self.step = f"step {number}/{total} {_short(instruction)}"
            self.may_break_off = not instruction.startswith("COPY")
            return self.step if instruction.startswith(SHOWN_INSTRUCTIONS) else ""
        if not _NOISE.match(text):
            lines = _COLOUR.sub("", text).splitlines()
            self._tail.extend(line.rstrip()[:500] for line in lines if line.strip())
        return ""


def _short(instruction: str) -> str:
    text = one_line(instruction)
    return text if len(text) <= STEP_WIDTH else f"{text[: STEP_WIDTH - 1]}…"


def _code(reason: str) -> str:
    """Return the end of "The command '/bin/sh -c ...' returned a non-zero code: 1"."""
    return one_line(reason.rpartition("' returned a ")[2])[-300:]


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Parameters of a build. `wheelhouse` None: download; `tensorrt`: a major version or "".

    `tensorrt_wheels`: folder with the wheel of TensorRT's libraries. Without one, the base image
    may have them, else the wheelhouse or pip's index must. `id` labels every image and container of
    the build.
    """

    kind: Kind
    base: str
    tag: str
    engine: str
    checkout: Path
    wheelhouse: Path | None = None
    tensorrt: str = ""
    tensorrt_wheels: Path | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """Image on the engine.

    `replaced` is the id of the image that had the tag, or ""; it is removed unless it is in use.
    """

    tag: str
    id: str
    kind: Kind
    size_bytes: int
    python: str
    onnxruntime: str
    link: int
    version: str
    source: str
    replaced: str
    elapsed_s: float
    tensorrt: str = ""
    """Version of TensorRT in the image, or ""."""


def build(
    request: BuildRequest, report: Report, clock: Callable[[], float] = time.monotonic
) -> BuiltImage:
    """Build, try and tag an image. `report` receives one line per step.

    Raises ImageError or EngineDown with the reason, BadRequest for an invalid tag. A failed or
    interrupted build leaves the tag as it was and removes its images and containers.
    """
    _check_tag(request.tag)
    began_s = clock()

    def log(text: str) -> None:
        report(f"[{clock() - began_s:6.1f} s] {text}")

    release = read_release(request.checkout)
    for folder, option in _folders(request):
        wheels_in(folder, option)
    with _engine(request.engine) as client, _cleaned_up(client, request.id):
        with engine_errors(request.engine):
            pull_base(client, request.base, log)
            platform = probe_base(client, request.base, request.id)
        log(f"base {request.base}: Python {dotted(platform.python)} on {platform.machine}")
        installs, chosen = _choose_tensorrt(client, request, platform, log)
        with _wheels(request, platform, installs and not chosen, log) as found:
            wheels = [*found, *(path for path in chosen if path not in found)]
            total = sum(path.stat().st_size for path in wheels)
            log(f"sending {len(wheels)} wheels, {size(total)}")
            image = _layers(client, request, _arguments(request, release, installs), wheels, log)
        log("trying the image")
        python, onnxruntime = _trial(client, request, image, release)
        with engine_errors(request.engine):
            tensorrt = check_loads(client, image, request.id) if request.tensorrt else ""
            bytes_ = int(client.inspect_image(image)["Size"])
        # Last: servers may start containers of a tagged image at once.
        replaced = _assign_tag(client, request, image)
    return BuiltImage(
        *(request.tag, image, request.kind, bytes_, python, onnxruntime),
        *(release.link, release.version, release.source, replaced),
        elapsed_s=round(clock() - began_s, 1),
        tensorrt=tensorrt,
    )


def split_tag(name: str) -> tuple[str, str]:
    """Return repository and tag of an image's name; a registry's port is not a tag."""
    repository, _, tag = name.rpartition(":")
    return (repository, tag) if repository and "/" not in tag else (name, "latest")


def _check_tag(tag: str) -> None:
    """Raise BadRequest for an invalid tag now: the engine would refuse it only at the end."""
    from docker.utils import match_tag

    if not match_tag(tag):
        raise BadRequest(f"--tag: expected a name like fngate-runtime:cpu, got {tag!r}")


@contextmanager
def _engine(url: str) -> Iterator[APIClient]:
    from docker import APIClient

    with engine_errors(url):
        client = APIClient(base_url=url, version="auto", timeout=CALL_S)
    with closing(client):
        yield client


@contextmanager
def _cleaned_up(client: APIClient, build_id: str) -> Iterator[None]:
    """Remove the build's untagged images after the block; after a failure its containers, too."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    is_broken_off = True
    try:
        yield
        is_broken_off = False
    finally:
        # An unreachable engine must not hide the error of the block.
        with suppress(DockerException, RequestException):
            sweep(client, build_id, is_broken_off=is_broken_off)


def _folders(request: BuildRequest) -> list[tuple[Path, str]]:
    """Return the given folders of wheels, each with its option."""
    given = ((request.wheelhouse, "--wheelhouse"), (request.tensorrt_wheels, "--wheels"))
    return [(folder, option) for folder, option in given if folder is not None]


def _choose_tensorrt(
    client: APIClient, request: BuildRequest, platform: Platform, log: Report
) -> tuple[bool, list[Path]]:
    """Return whether the build installs TensorRT, and its wheel unless pip downloads it.

    Raises ImageError if no wheel in the given folder fits.
    """
    if not request.tensorrt:
        return False, []
    if request.tensorrt_wheels is None:
        with engine_errors(request.engine):
            version, errors = probe(client, request.base, request.id)
        if not errors:
            log(f"the base has TensorRT {version}")
            return False, []
    folder = request.tensorrt_wheels or request.wheelhouse
    if folder is None:
        return True, []
    return True, [find_wheel(folder, wheels_in(folder), platform)]


@contextmanager
def _wheels(
    request: BuildRequest, platform: Platform, has_tensorrt: bool, log: Report
) -> Iterator[list[Path]]:
    """Yield the paths of the wheels, downloaded ones (with TensorRT if `has_tensorrt`) exist until
    the block ends."""
    if request.wheelhouse is not None:
        yield wheels_in(request.wheelhouse)
        return
    with tempfile.TemporaryDirectory(prefix="fngate-wheels-") as folder:
        log("downloading wheels")
        listed = Path(folder) / "locked.txt"
        listed.write_text(requirements(request.kind, request.checkout), "utf-8")
        tensorrt = request.tensorrt if has_tensorrt else ""
        for command in download_commands(request.kind, platform, listed, Path(folder), tensorrt):
            download(command, log)
        yield wheels_in(Path(folder))


def _arguments(request: BuildRequest, release: Release, installs: bool) -> dict[str, str]:
    """Return the arguments of the Dockerfile; `installs`: TensorRT comes from a wheel."""
    return {
        "BASE": request.base,
        "BUILD": request.id,
        "KIND": request.kind,
        "TENSORRT": request.tensorrt if installs else "",
        "LINK": str(release.link),
        "VERSION": release.version,
        "SOURCE": release.source,
    }


def _layers(
    client: APIClient,
    request: BuildRequest,
    arguments: dict[str, str],
    wheels: list[Path],
    log: Report,
) -> str:
    """Build the layers; return the id of the image, which has no tag yet."""
    progress = Progress()

    def end_step() -> None:
        with suppress(RuntimeError):  # Ctrl-C arrived while a line was being written
            log("interrupted: waiting for the step to end")
        remove_containers(client, request.id)

    with pack(request.checkout, wheels, request.kind) as context, engine_errors(request.engine):
        messages: Generator[dict[str, Any]] = client.build(
            fileobj=context,
            custom_context=True,
            dockerfile=dockerfile_of(request.kind),
            target=request.kind,
            buildargs=arguments,
            network_mode="none",
            use_config_proxy=False,
            rm=True,
            forcerm=True,
            decode=True,
            timeout=STEP_S,
        )
        # Closing the messages cancels the build.
        with Interrupt(end_step) as interrupt, closing(messages):
            for message in messages:
                if line := progress.feed(message):
                    log(line)
                if interrupt.is_wanted and progress.may_break_off:
                    break
    if not progress.image:
        raise progress.failure("the engine ended the build without a result")
    return progress.image


def _trial(
    client: APIClient, request: BuildRequest, image: str, release: Release
) -> tuple[str, str]:
    """Start a standby in the image, or load a server; return its versions of Python and of ONNX
    Runtime, which a server does not have."""
    with engine_errors(request.engine):
        trial = SERVER_TRIAL if request.kind == SERVER else TRIAL_CODE
        code, output = run_python(client, image, trial, request.id)
    if code:
        raise image_error(
            f"the image does not start, exit code {code}; its last lines:", tail=output.splitlines()
        )
    found = json.loads(output.splitlines()[-1])
    if found["link"] != release.link:
        raise image_error(
            f"the image has version {found['link']} of the link protocol, expected {release.link}"
        )
    if request.kind == SERVER:
        return str(found["python"]), ""
    check_filter(found["through"], found["withheld"])
    return str(found["python"]), str(found["onnxruntime"])


def check_filter(through: list[str], withheld: list[str]) -> None:
    """Raise ImageError if the filter allows forbidden system calls or refuses needed ones; both
    lists are names."""
    if through:
        raise image_error(f"the image allows forbidden system calls: {', '.join(through)}")
    if withheld:
        raise image_error(f"the image refuses system calls of replicas: {', '.join(withheld)}")


def _assign_tag(client: APIClient, request: BuildRequest, image: str) -> str:
    """Move the tag to `image`; return the id of the image that had it, removed unless in use."""
    from docker.errors import ImageNotFound

    with engine_errors(request.engine):
        try:
            before = str(client.inspect_image(request.tag)["Id"])
        except ImageNotFound:
            before = ""
        client.tag(image, *split_tag(request.tag))
    if before in ("", image):
        return ""
    remove_unused(client, before)
    return before
