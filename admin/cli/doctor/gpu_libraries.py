"""Checks of the libraries for GPUs: CUDA, cuDNN and TensorRT as a replica really loads them.

A replica's own code reports them, in a short-lived process or in a container of the gpu image with
the GPUs. A library that ends that process with a signal is a finding.
"""

from __future__ import annotations

import importlib.metadata
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hosts.checks import Check

if TYPE_CHECKING:
    from docker import APIClient

PROBE: Final = "runtime_image.engines.probe"
PROBE_S: Final = 90.0
"""Max seconds of the probe: CUDA's first start on a GPU, and a build of the smallest model."""
OUTPUT_MAX: Final = 64 * 1024
OWN: Final = "onnxruntime"
FOR_GPUS: Final = "onnxruntime-gpu"
BUILD: Final = "fnctl image build gpu"
MEMORY: Final = "out of memory"

Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """Parts of a probe's report by name, and how it ended unless in good order."""

    parts: dict[str, Part] = field(default_factory=dict)
    ended: str = ""


def ask_process(
    command: Sequence[str] = (sys.executable, "-I", "-m", PROBE), seconds: float = PROBE_S
) -> Answer:
    """Run the probe in a process, as the process driver would start a replica."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Answer(read_parts(error.stdout or b""), f"no answer within {seconds:g} s")
    except OSError as error:
        return Answer(ended=str(error))
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return Answer(read_parts(done.stdout), ended(done.returncode, last))


def ask_container(url: str, image: str, seconds: float = PROBE_S) -> Answer:
    """Run the probe in a container of `image` with all GPUs, each way to request them tried in
    turn."""
    from docker import APIClient
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    from pool_manager.drivers.docker.spec import ALL_GPUS, ways

    reason = ""
    try:
        client = APIClient(base_url=url, version="auto", timeout=int(seconds))
        try:
            for way in ways(client.info()):
                answer = _run(client, way(_config(image), ALL_GPUS), seconds)
                if isinstance(answer, Answer):
                    return answer
                reason = answer
        finally:
            client.close()
    except (DockerException, RequestException, OSError) as error:
        reason = str(error)
    return Answer(ended=reason)


def _config(image: str) -> dict[str, Any]:
    """Return the configuration of a container with a replica's rights."""
    return {
        "Image": image,
        "Entrypoint": ["python3", "-I", "-m", PROBE],
        "User": "10001:10001",
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": "size=64m"},  # noqa: S108 - the container's own
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 256,
        },
    }


def _run(client: APIClient, config: dict[str, Any], seconds: float) -> Answer | str:
    """Run a container until its end; return the reason if it cannot start. It is removed."""
    from docker.errors import APIError
    from requests.exceptions import RequestException

    made = client.create_container_from_config(config)["Id"]
    try:
        try:
            client.start(made)
        except APIError as error:
            return str(error.explanation or error)
        try:
            text = ended(int(client.wait(made, timeout=seconds)["StatusCode"]), [])
        except RequestException:  # also the time limit
            text = f"no answer within {seconds:g} s"
        output: bytes = client.logs(made, stdout=True, stderr=False, tail=200)
        return Answer(read_parts(output[-OUTPUT_MAX:]), text)
    finally:
        with suppress(APIError):
            client.remove_container(made, force=True)


def read_parts(output: bytes) -> dict[str, Part]:
    """Return the parts in a probe's output; libraries may print lines between them."""
    found = {}
    for line in output.decode(errors="replace").splitlines():
        try:
            part = json.loads(line)
            found[str(part.pop("part"))] = part
        except (ValueError, KeyError, AttributeError, TypeError):
            continue
    return found


def ended(code: int, last: Sequence[str]) -> str:
    """Return how a process ended, "" for exit code 0. A container's code is 128 + the signal."""
    number = -code if code < 0 else code - 128
    if code and 0 < number <= signal.SIGRTMAX:
        with suppress(ValueError):
            return f"ended by {signal.Signals(number).name}"
    return "" if not code else f"exit code {code}" + (f": {last[0]}" if last else "")


def installed(
    version: Callable[[str], str] = importlib.metadata.version, interpreter: str = sys.executable
) -> list[Check]:
    """Check that not both distributions of ONNX Runtime are installed: they have the same files, so
    the one that pip unpacked last is used, and removing one breaks the other."""
    found = {}
    for name in (OWN, FOR_GPUS):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = version(name)
    if len(found) < 2:
        return []
    text = " and ".join(f"{name} {number}" for name, number in found.items())
    pip = f"{interpreter} -m pip"
    todo = (
        f"{pip} uninstall -y {OWN} {FOR_GPUS} && {pip} install '{FOR_GPUS}[cuda,cudnn]'"
        f"  (or {OWN}, without GPUs)"
    )
    return [Check("fail", "engine packages", f"{text} have the same files", todo)]


def checks(answer: Answer, place: str, extras: str) -> list[Check]:
    """Return the checks of a probe's answer. `place` begins their names; `extras` is the command
    that brings the libraries."""
    names = {part: f"{place} {part}".strip() for part in ("cuda", "cudnn", "tensorrt")}
    if answer.parts.get("driver", {}).get("devices") == 0 and "cuda" in answer.parts:
        found = answer.parts["cuda"].get("error", "")
        text = "a replica sees no GPU" + (f": {found}" if found else "")
        return [Check("fail", names["cuda"], text, extras)]
    cuda = _cuda(answer, names["cuda"], extras)
    if cuda.level != "ok":
        return [cuda]
    return [cuda, _cudnn(answer, names["cudnn"], extras), _tensorrt(answer, names["tensorrt"])]


def _cuda(answer: Answer, name: str, extras: str) -> Check:
    part = answer.parts.get("cuda")
    if part is None:
        return Check("fail", name, answer.ended or "the probe gave no answer", extras)
    if error := str(part.get("error") or ""):
        if MEMORY in error.lower():
            return Check("warn", name, error, "try again when the GPU has room")
        return Check("fail", name, error, extras)
    texts = [_text(part, "libcudart"), _text(part, "libcublas")]
    driver = answer.parts.get("driver", {})
    texts.append(f"driver {driver.get('libcuda', {}).get('version') or '?'}")
    return Check("ok", name, ", ".join(text for text in texts if text))


def _cudnn(answer: Answer, name: str, extras: str) -> Check:
    if text := _text(answer.parts["cuda"], "libcudnn"):
        return Check("ok", name, text)
    return Check("warn", name, "not loaded: models with convolutions cannot run", extras)


def _tensorrt(answer: Answer, name: str) -> Check:
    part = answer.parts.get("tensorrt")
    todo = f"{BUILD} --tensorrt 10 --wheels DIR, or install 'fngate[tensorrt]' for processes"
    if part is None:
        return Check("fail", name, answer.ended or "no answer", todo)
    if error := str(part.get("error") or ""):
        return Check("warn", name, f"not used: {error}", todo)
    return Check("ok", name, _text(part, "libnvinfer") or "used")


def _text(part: Part, library: str) -> str:
    """Return name, version and file of a loaded library, "" if it is not loaded."""
    found = part.get(library)
    if not isinstance(found, dict):
        return ""
    return f"{library} {found.get('version') or '?'} ({found.get('file') or '?'})"


def process_checks(ask: Callable[[], Answer] = ask_process) -> list[Check]:
    """Return the checks of this machine's Python, which replicas of the process driver use."""
    return checks(ask(), "", "make install ENGINE=gpu")


def container_checks(url: str, image: str) -> list[Check]:
    """Return the checks of the gpu image on an engine with GPUs."""
    return checks(ask_container(url, image), "image", BUILD)
