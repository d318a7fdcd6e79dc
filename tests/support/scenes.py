"""The same scenes for every driver: scripted for the fake one, with models for the real ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pool_manager.driver import Driver
from pool_manager.drivers.docker.driver import DockerDriver, DockerSettings
from pool_manager.drivers.docker.engine import Times
from pool_manager.drivers.docker.spec import Owner
from pool_manager.drivers.process import ProcessDriver
from pool_manager.settings import PoolSettings
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION
from runtime_image.contract.model import InputRule, ModelSpec
from tests.support import models
from tests.support.fake_driver.driver import BEHAVES, FakeDriver, Script
from tests.support.replicas import Stage, binding

ENDLESS = 100_000_000
"""Iterations of the slow model: about twenty minutes. Only a stop ends it."""
JSON_RULES = {"x": InputRule("json")}
HANDLERS = {
    "eats.py": """
def predict(inputs, ctx):
    ctx.eaten = [bytearray(b"x") * 2**20 for _ in range(4096)]
    return {}
""",
    "dies.py": """
import os

def predict(inputs, ctx):
    os._exit(3)
""",
    "fails.py": """
def load(ctx):
    print("looking for the weights", flush=True)
    raise RuntimeError("weights are missing")

def predict(inputs, ctx):
    return {}
""",
    "forks.py": """
import subprocess

def load(ctx):
    print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)

def predict(inputs, ctx):
    return {}
""",
    "talks.py": """
def load(ctx):
    for line in range(20_000):
        print(line, "-" * 40, flush=True)

def predict(inputs, ctx):
    print("the last word", flush=True)
    return {}
""",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """Engine and image for the docker driver."""

    url: str = ""
    image: str = ""


class Scenes:
    """Stages over drivers of one kind, closed together."""

    def __init__(
        self,
        kind: str,
        settings: PoolSettings,
        bundle: Path,
        engine: Engine,
        **times: float,
    ) -> None:
        """`times`: intervals of the Docker driver that differ from its defaults."""
        self.kind = kind
        self._times = times
        self.settings = settings
        self._bundle = bundle
        self._engine = engine
        self._stages: list[Stage] = []

    async def driver(
        self, script: Script = BEHAVES, settings: PoolSettings | None = None
    ) -> Driver:
        """Open a further driver, over the same folders unless `settings` names others."""
        settings = settings or self.settings
        if self.kind == "fake":
            return FakeDriver(script)
        if self.kind == "process":
            return ProcessDriver(settings.run_dir)
        assert self.kind == "docker", f"no stage for drivers of the kind {self.kind}"
        return await DockerDriver.open(docker_settings(self._engine, settings, **self._times))

    async def stage(self, script: Script = BEHAVES) -> Stage:
        """Return a launcher over its own driver."""
        driver = await self.driver(script)
        # The driver watches for exits only after list(), which a manager calls first.
        await driver.list()
        stage = Stage(self.settings, driver, self._bundle)
        self._stages.append(stage)
        return stage

    async def ready(self, id: str, script: Script = BEHAVES, **spec: Any) -> Stage:
        """Return a stage with one loaded replica: add_one.onnx unless `spec` says otherwise."""
        stage = await self.stage(script)
        await stage.ready(id, binding(ModelSpec("digits@1", **(spec or {"model": "add_one.onnx"}))))
        return stage

    async def close(self) -> None:
        """Close all stages."""
        for stage in self._stages:
            await stage.close()


def bundle_folder(folder: Path) -> Path:
    """Write every model and handler that the scenes load."""
    models.add_one(folder)
    models.slow(folder, ENDLESS)
    models.big(folder, 100)
    for name, text in HANDLERS.items():
        (folder / name).write_text(text)
    return folder


def docker_settings(engine: Engine, settings: PoolSettings, **times: float) -> DockerSettings:
    """Return a Docker driver's settings for the folders of `settings`."""
    return DockerSettings(
        times=Times(**times),
        url=engine.url,
        images={"cpu": engine.image},
        owner=Owner.of(settings.run_dir.parent.resolve()),
        pool=settings,
    )


def a_record() -> ReplicaRecord:
    """Return the record of a replica that never runs."""
    return ReplicaRecord(
        "aaaa0009",
        "t",
        "serve",
        "default",
        "default/digits@1",
        "",
        ("cpu:0",),
        "cpu",
        "onnx",
        threads=1,
        orphan_s=1.0,
        memory_mib=0,
        launched_s=0.0,
        link=VERSION,
    )
