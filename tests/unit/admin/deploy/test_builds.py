"""Tests of background builds over a real store, with builds from a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from admin.deploy import due_builds
from admin.deploy.builds import STORE_S, Builds
from admin.views import build_detail
from pool_manager.core.state import Device
from pool_manager.manager import Manager
from registry.builds import Build, DeviceType, Target
from registry.compilation import Compiled, TargetState
from registry.errors import BuildFailed, BuildGivenUp, Refused, StoreUnavailable
from registry.model.bundles import BundleFile
from registry.store.builds import Decide
from runtime_image.contract.compiled import OTHER_KEY, TIMING_CACHE, CompiledFile
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.precision import Optimisation
from tests.support.builds import ScriptedBuilds, built
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.nouns import SIGNATURE, sha256
from tests.support.operator import MODEL, Operator, operating, until

KEY = "default/digits@1"
LOOKS = 5
AUTO = 'schema = 1\n[runtime]\nengine = "auto"'
ENGINE = b"a compiled model"
CPU = Device("cpu:0", "cpu")
OTHER = MODEL + b"\x32\x01a"
"""Another model: with a comment of one letter."""
FILE = BundleFile(".compiled/model.onnx", len(ENGINE), sha256(ENGINE))


class Clock:
    """Unix seconds that a test moves on."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now_s


class Side:
    """A server with builds."""

    def __init__(self, operator: Operator, script: ScriptedBuilds, builds: Builds, clock: Clock):
        self.operator, self.script, self.builds, self.clock = operator, script, builds, clock

    def states(self, name: str = "digits") -> list[TargetState] | str:
        return self.builds.states(self.operator.store.catalog.resolve(name))

    def state(self, name: str = "digits", number: int = 0) -> tuple[Target, Build, Compiled | None]:
        one = self.states(name)[number]
        assert isinstance(one, TargetState)
        return one.target, one.build, one.compiled

    async def deploy(
        self, name: str = "digits", manifest: str = AUTO, **fields: Any
    ) -> dict[str, Any]:
        ended = await self.operator.deploy(name, manifest=manifest, **fields)
        assert ended.state == "done", ended
        return ended.result

    async def begun(self, count: int = 1, number: int = 0) -> None:
        """Wait until the build with this count runs on a device, of the type with this number."""
        await until(lambda: len(self.script.asked) == count)
        self.script.place()
        await until(lambda: self.state(number=number)[1].state == "building")

    async def stored(self, content: bytes = ENGINE) -> None:
        """Store the file of a compiled model, as the pool manager does."""
        async with self.operator.store.blobs.take(len(content)) as upload:
            await upload.write(content)

    async def compiled(self) -> dict[str, Any]:
        """Deploy, and end the first build with a compiled model; return the deploy's result."""
        result = await self.deploy()
        await self.begun()
        await self.stored()
        self.script.end(built(self.script.asked[0][1], "k1", FILE))
        return result

    def keys(self) -> dict[DeviceType, str]:
        """Keys of the compiled models that new replicas get, by the type of device."""
        found = self.operator.manager._bindings[KEY].variants
        return {type: one.model.key for type, one in found.items()}

    def bound(self, device: Device = CPU) -> tuple[str, ...]:
        """Paths of the compiled files that new replicas on a device get."""
        binding = self.operator.manager._bindings[KEY].on(device)
        assert isinstance(binding.spec, ModelSpec)
        assert bool(binding.compiled) == (binding.spec.compiled is not None)
        return tuple(file.path for file in binding.compiled)

    def decisions(self) -> str:
        return "\n".join(one.text for one in self.operator.manager.decisions(KEY))


@asynccontextmanager
async def server(folder: Path, clock: Callable[[], float] | None = None) -> AsyncIterator[Side]:
    async with operating(folder, FakeDriver(Script(batch=8, signature=SIGNATURE))) as operator:
        script, wall = ScriptedBuilds(operator.manager), clock or Clock()
        builds = Builds(
            operator.store,
            cast(Manager, script),
            operator.pool_sync,
            operator.models,
            wall,
            look_s=0.01,
        )
        await builds.start()
        try:
            yield Side(operator, script, builds, cast(Clock, wall))
        finally:
            await builds.close()


async def test_a_deploy_reports_the_state_of_the_compiled_model(tmp_path: Path) -> None:
    """A build will begin, an earlier one has made the compiled model, or a reason why there is
    none; nothing if none is requested."""
    async with server(tmp_path) as side:
        first = await side.compiled()
        await until(lambda: side.state()[1].state == "done")
        again = await side.deploy("letters")
        plain = await side.deploy("plain", manifest="schema = 1")

    assert first["compiled"].startswith("not yet: a build begins when a device is free; fnctl prep")
    assert again["compiled"] == "yes, by an earlier build"
    assert "compiled" not in plain


async def test_a_model_is_compiled_after_its_deploy(tmp_path: Path) -> None:
    """The build gets the ranges; its result is stored, given to replicas, and found after a
    restart."""
    async with server(tmp_path) as side:
        heard: list[str] = []
        side.builds.subscribe(heard.append)
        await side.deploy()
        await side.begun()
        spec, binding = side.script.asked[0]
        assert (spec.key, spec.device_kind) == (KEY, "cpu")
        assert isinstance(binding.spec, ModelSpec)
        assert binding.spec.build is not None
        assert side.builds.is_running
        await side.stored()
        side.script.end(built(binding, "k1", FILE))
        await until(lambda: side.script.upgraded == [(KEY, "k1")])
        assert side.state()[1].state == "done"
        assert side.bound() == (FILE.path,)
        assert side.builds.outcomes == {"done": 1}
        assert "digits" in heard
        await until(lambda: "compiled with onnxruntime in 2 s on cpu0" in side.decisions())
        await side.operator.deploys.sweep()
        assert side.operator.store.blobs.has(FILE.sha256)

    async with server(tmp_path) as side:
        assert side.bound() == (FILE.path,)
        assert not side.script.asked
        await side.operator.deploys.remove("digits")
        assert side.operator.store.builds.referenced_blobs() == set()


async def test_functions_without_a_compiler_have_no_builds(tmp_path: Path) -> None:
    """Without engine = "auto" there is no build, and `prepare` says why."""
    async with server(tmp_path) as side:
        await side.deploy(manifest="schema = 1")
        assert side.states() == ""

        with pytest.raises(Refused, match="is not compiled: its function"):
            await side.builds.prepare("digits", now=True)

        assert not side.script.asked


async def test_given_up_three_times(tmp_path: Path) -> None:
    """A build that was given up is tried again after a pause, and waits for `prepare` after the
    third time."""
    async with server(tmp_path) as side:
        await side.deploy()
        for number in (1, 2, 3):
            await side.begun(number)
            assert side.state()[1].attempts == number
            side.script.end(BuildGivenUp("letters waits for the device"))
            await until(lambda: side.state()[1].state != "building")
            side.clock.now_s += 600.0
        assert side.state()[1].state == "given_up"
        assert side.builds.outcomes == {"given_up": 3}

        await side.builds.prepare("digits", now=True)
        await side.begun(4)
        assert side.state()[1].attempts == 1


async def test_a_store_without_room_pauses_the_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build whose beginning cannot be stored is withdrawn, and begins again half a minute
    later instead of at the next look."""
    async with server(tmp_path) as side:

        async def change(_target: str, _decide: Decide) -> None:
            raise StoreUnavailable("disk full")

        with monkeypatch.context() as full:
            full.setattr(side.operator.store.builds, "change", change)
            await side.deploy()
            await until(lambda: len(side.script.asked) == 1)
            side.script.place()
            await until(lambda: side.script.cancelled == 1)
        looks = side.clock.asked
        await until(lambda: side.clock.asked > looks + LOOKS)
        assert len(side.script.asked) == 1

        side.clock.now_s += STORE_S
        await side.begun(2)


async def test_a_failure_is_not_repeated(tmp_path: Path) -> None:
    """A build that failed waits until it is asked for, or until there is another target."""
    async with server(tmp_path) as side:
        await side.deploy()
        await side.begun()
        side.script.end(BuildFailed("output y differs by 0.4, more than 0.01"))
        await until(lambda: side.state()[1].state == "failed")
        assert "not compiled: output y differs" in side.decisions()

        await side.deploy(manifest=f"{AUTO}\n[batching]\nmax_size = 2")
        await until(lambda: len(side.script.asked) == 2)
        bound = side.script.asked[1][1]
        side.script.end(built(bound, differs=0.5))
        await until(lambda: side.state()[1].state == "failed")
        build = side.state()[1]
        assert build.reason == "output y differs by 0.5, more than 0.01"
        assert [(one["output"], one["relative_difference"]) for one in build.parity] == [("y", 0.5)]
        assert build_detail(side.states()[0], None, 0.0).parity == list(build.parity)

        await side.builds.prepare("digits", now=False)
        await side.begun(3)
        assert side.state()[1].parity == ()


async def test_a_killed_server_builds_again(tmp_path: Path) -> None:
    """The attempt of a server that died counts; that of one that was stopped does not."""
    async with server(tmp_path) as side:
        await side.deploy()
        await side.begun()
        target = side.state()[0]
    async with server(tmp_path) as side:
        assert side.state()[1].attempts == 0
        await side.begun()
        crashed = side.state()[1]
    async with operating(tmp_path) as operator:  # what a server leaves that died while it built
        await operator.store.builds.change(target.digest, lambda _: crashed)
    async with server(tmp_path, clock := Clock()) as side:
        assert (side.state()[1].state, side.state()[1].attempts) == ("waiting", 1)
        clock.now_s += 600.0
        await side.begun()
        assert side.state()[1].attempts == 2


async def test_another_key_is_built_again(tmp_path: Path) -> None:
    """Replicas of another version refuse the compiled model: it is withdrawn at once and built
    anew. A key that was refused before is not used again."""
    async with server(tmp_path) as side:
        await side.compiled()
        await until(lambda: side.bound() != ())

        side.script.refuse(KEY, f"{OTHER_KEY}: onnxruntime 9 instead of 8")
        await until(lambda: side.bound() == ())
        await side.begun(2)
        side.script.end(built(side.script.asked[1][1], "k2", FILE))
        await until(lambda: side.bound() != ())

        side.script.refuse(KEY, f"{OTHER_KEY}: onnxruntime 8 instead of 9")
        await side.begun(3)
        side.script.end(built(side.script.asked[2][1], "k1", FILE))
        await until(lambda: side.state()[1].state == "failed")
        assert "another key each" in side.state()[1].reason


FAR = Device("far/cpu:0", "cpu", host="far")
OLD_CPU = Device("cpu:1", "cpu", model="an old processor")
FAR_TYPE = DeviceType("far", "")


async def test_each_type_of_device_has_its_compiled_model(tmp_path: Path) -> None:
    """Each is built on a device of its type, once: the result of one type replaces no other, and a
    replica gets the one of its device."""
    other = b"for an old processor"
    file = replace(FILE, size=len(other), sha256=sha256(other))
    async with server(tmp_path) as side:
        side.script.devices = [CPU, OLD_CPU]
        await side.compiled()
        await side.begun(2, number=1)
        await side.stored(other)
        side.script.end(built(side.script.asked[1][1], "k2", file))
        await until(lambda: len(side.script.upgraded) == 2)

        assert [one[0].device_type for one in side.script.asked] == [CPU.type, OLD_CPU.type]
        assert side.keys() == {CPU.type: "k1", OLD_CPU.type: "k2"}
        assert side.builds.outcomes == {"done": 2}
        await side.operator.deploys.sweep()
        assert side.operator.store.blobs.has(FILE.sha256)
        assert side.operator.store.blobs.has(file.sha256)
        side.script.refuse(KEY, f"{OTHER_KEY}: a new version", OLD_CPU.type)
        await side.begun(3, number=1)
        assert side.keys() == {CPU.type: "k1"}

    async with server(tmp_path) as side:
        assert side.keys() == {CPU.type: "k1"}
        side.script.devices = [CPU]
        assert len(side.states()) == 1


async def test_compiled_functions_cost_nothing(tmp_path: Path) -> None:
    """Where all types of device have a compiled model, the devices of no function are looked at,
    and no digest is made; a new type of device is noticed all the same."""
    async with server(tmp_path) as side:
        side.script.devices = [CPU]
        await side.compiled()
        await until(lambda: side.script.upgraded == [(KEY, "k1")])
        looks, side.script.looks = side.clock.asked, 0

        await until(lambda: side.clock.asked > looks + 2 * LOOKS)
        assert side.builds.waiting() == 0
        assert side.script.looks == 0

        side.script.devices = [CPU, OLD_CPU]
        await side.begun(2, number=1)


async def test_a_host_gets_what_another_one_has_built(tmp_path: Path) -> None:
    """Devices of the same model share a compiled model without a build. If a replica there needs
    another key, it is built there, once, and the first host keeps its own."""
    async with server(tmp_path) as side:
        side.script.devices = [CPU]
        await side.compiled()
        await until(lambda: side.keys() == {CPU.type: "k1"})
        side.script.devices = [CPU, FAR]
        await until(lambda: side.keys() == {CPU.type: "k1", FAR_TYPE: "k1"})
        assert len(side.script.asked) == 1

        side.script.refuse(KEY, f"{OTHER_KEY}: another processor", FAR_TYPE)
        await side.begun(2, number=1)
        assert side.script.asked[1][0].device_type == FAR_TYPE
        side.script.end(built(side.script.asked[1][1], "k2", FILE))
        await until(lambda: side.keys() == {CPU.type: "k1", FAR_TYPE: "k2"})
        assert side.bound(FAR) == side.bound(CPU) == (FILE.path,)

        path = side.operator.store.blobs.path(FILE.sha256)
        path.chmod(0o600)
        path.write_bytes(b"another content!")
        side.script.refuse(KEY, "model.onnx has another content", FAR_TYPE)
        await until(lambda: side.keys() == {})


async def test_a_type_without_devices(tmp_path: Path) -> None:
    """Where no device could run a function, its build waits with that reason."""
    async with server(tmp_path) as side:
        await side.deploy()
        target = side.state()[0]
        side.script.devices = [FAR]
        side.script.devices[0] = Device("gpu", "cuda", model="NVIDIA")

        assert side.states() == [
            TargetState(replace(target, device=DeviceType()), Build(reason=due_builds.NO_TYPE))
        ]
        assert side.builds.waiting() == 0


async def test_damaged_files_are_built_again(tmp_path: Path) -> None:
    """A replica that refuses a file is right or wrong: a damaged one is removed and built again,
    another reason is shown and the compiled model stays."""
    async with server(tmp_path) as side:
        await side.compiled()
        await until(lambda: side.bound() != ())

        side.script.refuse(KEY, "it did not fit into the memory")
        await until(lambda: side.state()[1].reason == "it did not fit into the memory")
        assert side.bound()
        path = side.operator.store.blobs.path(FILE.sha256)
        path.chmod(0o600)
        path.write_bytes(b"another content!")
        side.script.refuse(KEY, "model.onnx has another content")
        await until(lambda: side.bound() == ())
        assert not side.operator.store.blobs.has(FILE.sha256)
        await side.begun(2)


async def test_a_file_that_is_gone_is_built_again(tmp_path: Path) -> None:
    """Not only after a restart: a replica that does not find it says so."""
    async with server(tmp_path) as side:
        await side.compiled()
        await until(lambda: side.bound() != ())

        side.operator.store.blobs.path(FILE.sha256).unlink()
        side.script.refuse(KEY, "model.onnx: No such file or directory")
        await until(lambda: side.bound() == ())
        await side.begun(2)


async def test_a_build_ends_with_its_function(tmp_path: Path) -> None:
    """A build of a function that was removed is withdrawn."""
    async with server(tmp_path) as side:
        await side.deploy()
        await side.begun()
        await side.operator.deploys.remove("digits")
        await until(lambda: side.script.cancelled == 1)


async def test_a_build_that_is_withdrawn_does_not_count(tmp_path: Path) -> None:
    """A revision that loses the traffic while it is compiled is not building any more; when it has
    the traffic again, its first attempt begins."""
    async with server(tmp_path) as side:
        await side.deploy()
        await side.begun()
        first = side.state()[0].digest
        await side.deploy(manifest="schema = 1")
        await until(lambda: side.script.cancelled == 1)
        builds = side.operator.store.builds
        await until(lambda: builds.build(first) == Build())

        await side.deploy()
        await side.begun(2)
        assert side.state()[1].attempts == 1


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_request_at_the_end_of_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """An operator who asks while the end of a build is being stored changes nothing of it: a
    compiled model is never shown as building."""
    async with server(tmp_path) as side:
        await side.deploy()
        await side.begun()
        await side.stored()
        builds = side.operator.store.builds
        put, asked = builds.put, []

        async def put_beside_a_request(compiled: Compiled, decide: Decide) -> None:
            storing = asyncio.ensure_future(put(compiled, decide))
            if moment == "after":
                await asyncio.sleep(0)  # the transaction begins
            asked.append(asyncio.ensure_future(side.builds.prepare("digits", now=True)))
            await storing

        monkeypatch.setattr(builds, "put", put_beside_a_request)
        side.script.end(built(side.script.asked[0][1], "k1", FILE))
        await until(lambda: bool(asked) and asked[0].done() and side.bound() != ())

        assert side.state()[1].state == "done"


async def test_an_operator_goes_before_a_build_without_device(tmp_path: Path) -> None:
    """A build that was not placed yet makes way for one that was asked for; one waits at a time."""
    async with server(tmp_path) as side:
        await side.deploy()
        await until(lambda: len(side.script.asked) == 1)
        await side.deploy("letters", files={"n.onnx": OTHER})
        await side.builds.prepare("letters", now=True)
        await until(lambda: len(side.script.asked) == 2)

        assert side.script.asked[1][0].key == "default/letters@1"
        assert side.script.cancelled == 1
        assert side.state()[1].attempts == 0
        assert side.builds.waiting() == 2


async def test_later_builds_get_the_measurements(tmp_path: Path) -> None:
    """The file with a compiler's measurements is given to the next build with that compiler."""
    timing = BundleFile(".compiled/timing.cache", len(ENGINE), sha256(ENGINE))
    async with server(tmp_path) as side:
        await side.deploy()
        await side.begun()
        await side.stored()
        side.script.end(built(side.script.asked[0][1], "k1", timing))
        await until(lambda: side.state()[1].state == "done")
        assert side.state()[2] is not None

        await side.deploy("letters", files={"n.onnx": OTHER})
        await until(lambda: len(side.script.asked) == 2)
        binding = side.script.asked[1][1]
        assert binding.compiled == (timing,)
        assert isinstance(binding.spec, ModelSpec)
        assert binding.spec.build is not None
        described = CompiledFile(TIMING_CACHE, timing.size, timing.sha256)
        assert (binding.spec.build.timing_cache, binding.spec.build.timing_key) == (described, "t1")
        target = side.state("letters")[0]
        assert side.builds.estimate_s(target) == 2.5 * len(OTHER) / len(MODEL)


async def test_a_build_compares_with_the_owners_samples(tmp_path: Path) -> None:
    """The samples of [optimise] also judge a compiled model, in whichever precision it is."""
    manifest = f'{AUTO}\n[optimise]\nsamples = "s.npz"\n'
    async with server(tmp_path) as side:
        await side.deploy(manifest=manifest, files={"m.onnx": MODEL, "s.npz": b"samples"})
        await side.begun()
        spec = side.script.asked[0][1].spec

        assert isinstance(spec, ModelSpec)
        assert spec.optimise == Optimisation("fp32", 0.01, "s.npz")
