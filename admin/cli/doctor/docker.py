"""Every check of a Docker box, in the order in which one depends on the other."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from admin.cli.doctor import daemon, gpu, image, replicas
from admin.cli.doctor.check import Check, softened
from admin.cli.doctor.engine import NAME, ask, is_there

if TYPE_CHECKING:
    from admin.cli.doctor.engine import Facts


def docker_checks(url: str, is_chosen: bool, tags: Mapping[str, str]) -> list[Check]:
    """The checks of the engine at `url`, none where it is neither chosen nor there.

    `tags` are the runtime images by kind: cpu, gpu. One for GPUs is needed where there are GPUs.

    Where Docker is not what starts replicas here (`is_chosen`), nothing of it can fail.
    """
    if not is_chosen and not is_there(url):
        return []
    found = gpu.look_for_driver()
    needed = {kind: tag for kind, tag in tags.items() if kind != "gpu" or found.gpus}
    facts = ask(url, list(needed.values()))
    if isinstance(facts, Check):
        checks = [facts]
    else:
        checks = [*_engine(facts), *_gpu(facts, found), *_images(facts, needed)]
        checks += replicas.system_calls(facts.pids) if facts.is_local else []
    return checks if is_chosen else softened(checks)


def _engine(facts: Facts) -> list[Check]:
    from docker.constants import DEFAULT_DOCKER_API_VERSION

    major, _, minor = DEFAULT_DOCKER_API_VERSION.partition(".")
    return [
        Check("ok", NAME, f"{facts.url} answers"),
        daemon.api(facts.version, (int(major), int(minor))),
        daemon.live_restore(facts.info),
        daemon.init(facts.info),
        daemon.storage(facts.info, _free(facts)),
        daemon.uids(facts.info),
        daemon.seccomp(facts.info),
    ]


def _gpu(facts: Facts, found: gpu.Driver) -> list[Check]:
    """The driver is looked for here: of another machine's nothing is known."""
    toolkit = gpu.look_for_toolkit() if facts.is_local else gpu.Toolkit()
    checks = [gpu.driver(found)] if facts.is_local else []
    if found.gpus or not facts.is_local:
        ways = [gpu.containers(facts.info, toolkit), gpu.reload(facts.info, toolkit)]
        checks += ways if facts.is_local else softened(ways)
    return checks


def _images(facts: Facts, tags: Mapping[str, str]) -> list[Check]:
    source = image.expected_source()
    return [image.image(kind, tag, facts.images.get(tag), source) for kind, tag in tags.items()]


def _free(facts: Facts) -> int | None:
    root = facts.info.get("DockerRootDir")
    if not facts.is_local or not root:
        return None
    try:
        return shutil.disk_usage(Path(root)).free
    except OSError:
        return None
