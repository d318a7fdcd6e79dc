"""One build: base, wheels, context, layers, a trial start, and only then the name.

Ctrl-C while the engine builds: a step that has begun is ended first.

What the engine says while it builds, read as it comes. Pure.
"""

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

from admin.image import containers as base
from admin.image.containers import remove_containers, remove_unused, run_python, sweep
from admin.image.context import (
    DISK_FULL,
    DOCKERFILE,
    TAIL_LINES,
    ImageError,
    Release,
    disk_full,
    explained,
    image_error,
    pack,
    read_release,
    wheels_in,
)
from admin.image.wheels import Platform, download, download_command
from admin.text import one_line, size
from registry.errors import BadRequest

if TYPE_CHECKING:
    from docker import APIClient


class Interrupt:
    """Within its block the first Ctrl-C is only noted, and `hurry` called; the second one raises.

    The engine finishes a copy whoever hung up meanwhile, and then keeps an image that nobody
    knows of. So the line is kept until a step is over. Only for the main thread.
    """

    def __init__(self, hurry: Callable[[], None]) -> None:
        """`hurry` ends what can be ended: a step that runs in a container."""
        self._hurry = hurry
        self._before: Any = None
        self.is_wanted = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._noted)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raises KeyboardInterrupt where one was wanted, whatever the block ended with."""
        signal.signal(signal.SIGINT, self._before)
        if self.is_wanted:
            raise KeyboardInterrupt from error

    def _noted(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
        self._hurry()


STEP_WIDTH: Final = 64
SHOWN: Final = ("FROM", "RUN", "COPY")
"""Instructions that take time; the others are done in a moment."""
_STEP: Final = re.compile(r"Step (\d+)/(\d+) : (.*)", re.DOTALL)
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_NOISE: Final = re.compile(r" ---> |Removing intermediate container |Successfully (built|tagged) ")

MISSING: Final = ("no matching distribution", "have conflicting dependencies")
"""How pip says that it found no file, or none of the version that is pinned."""


class Progress:
    """Fed with the engine's messages, says which lines are worth showing.

    `image` is the id of what was built, "" until then.
    """

    def __init__(self) -> None:
        self.image = ""
        self.step = ""
        """The instruction that runs, or ran last."""
        self.may_break_off = False
        """Whether what runs can be ended from outside: a copy goes on to its end."""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def feed(self, message: dict[str, Any]) -> str:
        """The line to show for one message, "" for none. Raises ImageError where it is the end."""
        if "error" in message or "errorDetail" in message:
            detail = message.get("errorDetail") or {}
            raise self.failure(str(detail.get("message") or message.get("error") or "no reason"))
        aux = message.get("aux")
        if isinstance(aux, dict) and "ID" in aux:
            self.image = str(aux["ID"])
        return self._said(str(message.get("stream") or ""))

    def failure(self, reason: str) -> ImageError:
        """The error for a build that ended with `reason`, by what was said last."""
        tail = list(self._tail)
        said = "\n".join([reason, *tail]).lower()
        if DISK_FULL in said:
            return disk_full(one_line(reason)[-300:], "docker system prune")
        if any(text in said for text in MISSING):
            todo = "leave --wheelhouse away, so that this machine's pip downloads what is needed"
            return image_error("the wheelhouse is not complete:", tail=tail, todo=todo)
        what = f"{self.step or 'the build'} failed: {_code(reason)}"
        return image_error(f"{what}; its last lines:" if tail else what, tail=tail)

    def _said(self, text: str) -> str:
        if found := _STEP.match(text):
            self._tail.clear()
            number, total, instruction = found.groups()
            self.step = f"step {number}/{total} {_short(instruction)}"
            self.may_break_off = not instruction.startswith("COPY")
            return self.step if instruction.startswith(SHOWN) else ""
        if not _NOISE.match(text):
            lines = _COLOUR.sub("", text).splitlines()
            self._tail.extend(line.rstrip()[:500] for line in lines if line.strip())
        return ""


def _short(instruction: str) -> str:
    text = one_line(instruction)
    return text if len(text) <= STEP_WIDTH else f"{text[: STEP_WIDTH - 1]}…"


def _code(reason: str) -> str:
    """The end of "The command '/bin/sh -c ...' returned a non-zero code: 1"."""
    return one_line(reason.rpartition("' returned a ")[2])[-300:]


CALL_S: Final = 60
"""Seconds that one answer of the engine may take; PROBE_S and STEP_S are for those that last."""
STEP_S: Final = 3600
"""Seconds that a step may go on without a word."""
CHECK: Final = """\
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
"""What a standby on a CPU does, and who it is then: a build needs no GPU. Each system call that the
filter refuses is tried."""

Kind = Literal["cpu", "gpu"]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be built. `wheelhouse` is None to download; `tensorrt` a major version or "".

    `id` is the label on all that the build makes.
    """

    kind: Kind
    base: str
    tag: str
    engine: str
    checkout: Path
    wheelhouse: Path | None = None
    tensorrt: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass(frozen=True, slots=True)
class Built:
    """An image as it is on the engine. `replaced` is the id of the image that had the tag, "" for
    none; it is removed unless a container uses it."""

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


def build(order: Order, tell: Tell, clock: Callable[[], float] = time.monotonic) -> Built:
    """Build, try and name an image. `tell` hears what goes on.

    Raises ImageError or EngineDown with the reason; then, and when it is interrupted, the tag names
    what it named before, and nothing of the build is left. Raises BadRequest for an impossible tag.
    """
    _check_tag(order.tag)
    began_s = clock()

    def said(text: str) -> None:
        tell(f"[{clock() - began_s:6.1f} s] {text}")

    release = read_release(order.checkout)
    if order.wheelhouse is not None:
        wheels_in(order.wheelhouse)
    with _engine(order.engine) as client, _swept(client, order.id):
        with explained(order.engine):
            base.fetch(client, order.base, said)
            platform = base.examine(client, order.base, order.id)
        said(f"base {order.base}: Python {base.named(platform.python)} on {platform.machine}")
        with _wheels(order, platform, said) as wheels:
            total = sum(path.stat().st_size for path in wheels)
            said(f"sending {len(wheels)} wheels, {size(total)}")
            image = _layers(client, order, _arguments(order, release), wheels, said)
        said("trying it")
        python, onnxruntime = _tried(client, order, image, release)
        with explained(order.engine):
            bytes_ = int(client.inspect_image(image)["Size"])
        # Last: from then on others may start containers of it.
        replaced = _name(client, order, image)
    return Built(
        *(order.tag, image, order.kind, bytes_, python, onnxruntime),
        *(release.link, release.version, release.source, replaced),
        elapsed_s=round(clock() - began_s, 1),
    )


def split_tag(name: str) -> tuple[str, str]:
    """Repository and tag of an image's name; a registry's port is no tag."""
    repository, _, tag = name.rpartition(":")
    return (repository, tag) if repository and "/" not in tag else (name, "latest")


def _check_tag(tag: str) -> None:
    """Before anything is built: the engine would refuse it at the end."""
    from docker.utils import match_tag

    if not match_tag(tag):
        raise BadRequest(f"--tag: expected a name like fngate-runtime:cpu, got {tag!r}")


@contextmanager
def _engine(url: str) -> Iterator[APIClient]:
    from docker import APIClient

    with explained(url):
        client = APIClient(base_url=url, version="auto", timeout=CALL_S)
    with closing(client):
        yield client


@contextmanager
def _swept(client: APIClient, build_id: str) -> Iterator[None]:
    """Whatever happens in this block, nothing nameless is left of the build."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    is_broken_off = True
    try:
        yield
        is_broken_off = False
    finally:
        # An engine that went away meanwhile must not hide why.
        with suppress(DockerException, RequestException):
            sweep(client, build_id, is_broken_off=is_broken_off)


@contextmanager
def _wheels(order: Order, platform: Platform, said: Tell) -> Iterator[list[Path]]:
    """The wheels to build with, while the block lasts."""
    if order.wheelhouse is not None:
        yield wheels_in(order.wheelhouse)
        return
    with tempfile.TemporaryDirectory(prefix="fngate-wheels-") as folder:
        said("downloading wheels")
        command = download_command(
            order.kind, platform, order.checkout, Path(folder), order.tensorrt
        )
        download(command, said)
        yield wheels_in(Path(folder))


def _arguments(order: Order, release: Release) -> dict[str, str]:
    return {
        "BASE": order.base,
        "BUILD": order.id,
        "KIND": order.kind,
        "TENSORRT": order.tensorrt,
        "LINK": str(release.link),
        "VERSION": release.version,
        "SOURCE": release.source,
    }


def _layers(
    client: APIClient, order: Order, arguments: dict[str, str], wheels: list[Path], said: Tell
) -> str:
    """The id of the image, which has no name yet."""
    progress = Progress()

    def hurry() -> None:
        with suppress(RuntimeError):  # Ctrl-C came while a line was being written
            said("interrupted: waiting for the step to end")
        remove_containers(client, order.id)

    with pack(order.checkout, wheels) as context, explained(order.engine):
        messages: Generator[dict[str, Any]] = client.build(
            fileobj=context,
            custom_context=True,
            dockerfile=DOCKERFILE,
            target=order.kind,
            buildargs=arguments,
            network_mode="none",
            use_config_proxy=False,
            rm=True,
            forcerm=True,
            decode=True,
            timeout=STEP_S,
        )
        # Closed, the engine breaks the build off.
        with Interrupt(hurry) as interrupt, closing(messages):
            for message in messages:
                if line := progress.feed(message):
                    said(line)
                if interrupt.is_wanted and progress.may_break_off:
                    break
    if not progress.image:
        raise progress.failure("the engine ended the build without a result")
    return progress.image


def _tried(client: APIClient, order: Order, image: str, release: Release) -> tuple[str, str]:
    """The versions of Python and ONNX Runtime in the image, once it did what a standby does."""
    with explained(order.engine):
        code, output = run_python(client, image, CHECK, order.id)
    if code:
        raise image_error(
            f"the image does not start, exit code {code}; its last lines:", tail=output.splitlines()
        )
    said = json.loads(output.splitlines()[-1])
    if said["link"] != release.link:
        raise image_error(f"the image speaks link version {said['link']}, expected {release.link}")
    check_filter(said["through"], said["withheld"])
    return str(said["python"]), str(said["onnxruntime"])


def check_filter(through: list[str], withheld: list[str]) -> None:
    """Raises ImageError where replicas could make system calls that they are to be refused, or not
    those that they need; both by name."""
    if through:
        raise image_error(f"the image lets system calls through: {', '.join(through)}")
    if withheld:
        raise image_error(f"the image keeps back what replicas need: {', '.join(withheld)}")


def _name(client: APIClient, order: Order, image: str) -> str:
    """Give the tag to `image`; the id of what had it, which goes unless a container uses it."""
    from docker.errors import ImageNotFound

    with explained(order.engine):
        try:
            before = str(client.inspect_image(order.tag)["Id"])
        except ImageNotFound:
            before = ""
        client.tag(image, *split_tag(order.tag))
    if before in ("", image):
        return ""
    remove_unused(client, before)
    return before
