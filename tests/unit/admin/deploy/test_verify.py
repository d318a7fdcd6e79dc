"""Tests of the verification of deploys, and of the samples of functions."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

from admin.deploy import verify
from admin.deploy.plan import Plan, plan, read_request
from admin.deploy.verify import Verification, values
from admin.documents.requests import DeployRequest
from pool_manager.core.state import PoolSpec
from pool_manager.ports import Binding
from pool_manager.replicas.trial_parks import PARK_TRIAL_S
from registry.catalog import Deployed
from registry.errors import BadBundle, ModelRefused, TrialKilled, Unknown
from registry.model.parks import ParkProfile
from registry.model.revisions import DeviceNeed
from runtime_image.contract import signature as signatures
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.precision import Optimisation
from runtime_image.contract.rows import PROOF
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support import models
from tests.support.fake_driver.driver import FakeDriver
from tests.support.nouns import SIGNATURE, deployed, optimised, prepared, sha256
from tests.support.operator import MODEL, Operator, operating
from tests.support.server import serving


def drafted(operator: Operator, request: DeployRequest) -> Plan:
    """Return the plan of a deploy of digits."""
    return plan(
        "digits", request, read_request("digits", request), operator.store.catalog, 0.0, 300.0
    )


async def test_files_must_be_here(tmp_path: Path) -> None:
    """A file that was not uploaded is refused by its hash."""
    async with operating(tmp_path) as operator:
        request = await operator.request()
        request.files[0].sha256 = "0" * 64

        with pytest.raises(BadBundle, match="1 files were not uploaded, first 0000"):
            Verification(operator.store, operator.manager, wall=time.time).check_files(
                drafted(operator, request)
            )


async def test_a_file_that_is_not_onnx_needs_no_replica(tmp_path: Path) -> None:
    """A file that is not ONNX is refused with the parser's reason, without a replica."""
    async with operating(tmp_path) as operator:
        request = await operator.request({"m.onnx": b"not a model"})

        with pytest.raises(ModelRefused, match=r"m\.onnx is not an ONNX model"):
            Verification(operator.store, operator.manager, wall=time.time).check_files(
                drafted(operator, request)
            )
        assert operator.manager.replicas() == []


async def test_data_outside_the_bundle_is_refused(tmp_path: Path) -> None:
    """A model whose external data is outside the bundle is refused by that file's name."""
    async with operating(tmp_path) as operator:
        model = models.external(tmp_path, 1)
        request = await operator.request({"m.onnx": model.read_bytes()})

        with pytest.raises(BadBundle, match=r"external\.bin"):
            Verification(operator.store, operator.manager, wall=time.time).check_files(
                drafted(operator, request)
            )


HANDLER = b"def predict(inputs, ctx): return inputs\n"
PYTHON = 'schema = 1\n[runtime]\nengine = "python"\n[input.x]\nkind = "json"\n'


@pytest.mark.parametrize(
    ("path", "others", "fields"),
    [
        ("m.onnx", {}, {}),
        ("m.bin", {}, {"manifest": 'schema = 1\nmodel = "m.bin"\n', "model": None}),
        ("b/extra.onnx", {"m.onnx": MODEL}, {"model": "m.onnx"}),
        ("weights", {"m.onnx": MODEL}, {"model": "m.onnx"}),
        ("b/own.ONNX", {"handler.py": HANDLER}, {"manifest": PYTHON, "trust": True, "model": None}),
    ],
)
async def test_a_compiled_part_is_refused_in_every_file(
    tmp_path: Path, path: str, others: dict[str, bytes], fields: dict[str, Any]
) -> None:
    """An ONNX file with a stranger's compiled part is refused by name and node, whether it is the
    model, a further file or one of a handler, and whatever it is called."""
    async with operating(tmp_path) as operator:
        part = models.with_compiled_part(tmp_path).read_bytes()
        request = await operator.request({path: part, **others}, **fields)

        with pytest.raises(ModelRefused, match=rf"^{path}: expected .* the node 'engine'") as found:
            Verification(operator.store, operator.manager, wall=time.time).check_files(
                drafted(operator, request)
            )
        assert found.value.detail == {"path": path, "node": "engine"}


async def test_a_servers_files_are_its_own(tmp_path: Path) -> None:
    """No engine of ours loads the files of a server function, which may bring its own engines."""
    async with operating(tmp_path) as operator:
        part = models.with_compiled_part(tmp_path).read_bytes()
        manifest = 'schema = 1\n[server]\ncommand = ["sh", "${PORT}"]\n'
        request = await operator.request(
            {"a.onnx": part}, manifest=manifest, trust=True, model=None
        )

        Verification(operator.store, operator.manager, wall=time.time).check_files(
            drafted(operator, request)
        )


async def test_the_model_is_checked_whatever_it_is_called(tmp_path: Path) -> None:
    """ONNX Runtime opens a model by content: one of another name has its data in the bundle, too.
    Its own format, which it opens by name, is refused."""
    async with operating(tmp_path) as operator:
        verification = Verification(operator.store, operator.manager, wall=time.time)
        content = models.external(tmp_path, 1).read_bytes()
        manifest = 'schema = 1\nmodel = "m.bin"\n'
        request = await operator.request({"m.bin": content}, manifest=manifest, model=None)
        with pytest.raises(BadBundle, match=r"external\.bin"):
            verification.check_files(drafted(operator, request))
        request = await operator.request({"m.ort": content})
        with pytest.raises(ModelRefused, match="ONNX Runtime's own format"):
            verification.check_files(drafted(operator, request))


async def test_the_same_is_not_verified_twice(tmp_path: Path) -> None:
    """A bundle with a profile gets no second trial for settings that no trial depends on."""
    async with operating(tmp_path) as operator:
        done = await operator.deploy("digits")
        assert done.state == "done"
        draft = drafted(operator, await operator.request())
        off = replace(draft.revision.batching, mode="off")
        draft = replace(draft, revision=replace(draft.revision, batching=off))

        verified = await Verification(operator.store, operator.manager, wall=time.time).verify(
            draft, "again"
        )

        assert verified.profile == operator.store.catalog.resolve("digits").profile
        assert operator.manager.decisions("default/digits@trial-again") == []


class Reporting:
    """Manager whose trials all return one report; records the specs it was given."""

    def __init__(self, operator: Operator, report: dict[str, Any]) -> None:
        self.report = report
        self.asked: list[ModelSpec] = []
        self.needs_mib: list[float] = []
        self.specs: list[PoolSpec] = []
        self.devices = operator.manager.devices

    async def trial(self, spec: PoolSpec, bound: Binding) -> dict[str, Any]:
        self.asked.append(bound.spec)
        self.needs_mib.append(spec.memory_mib)
        self.specs.append(spec)
        return self.report


REPORT: dict[str, Any] = {
    "device_kind": "cpu",
    "signature": signatures.to_json(SIGNATURE),
    "load_ms": 5.0,
    "memory_mib": 50.0,
    "latency_ms": {"1": 1.0},
    "batchable": False,
    "why_not": "",
    "batch_max": 1,
    "profiled": True,
    "note": "",
}


async def offered(operator: Operator, graph: bytes) -> dict[str, Any]:
    """Return the report of a trial that prepared this graph, and store the graph."""
    async with operator.store.blobs.take(len(graph)) as upload:
        await upload.write(graph)
    return {**REPORT, "prepared": prepared(graph__onnx=graph)}


async def test_a_lost_candidate_is_made_again(tmp_path: Path) -> None:
    """A trial is reused only while the store has the file that it chose. Its candidates run on this
    machine alone, and have more time and memory."""
    async with operating(tmp_path) as operator:
        wanted = 'schema = 1\n[optimise]\nprecision = "auto"\n'
        draft = drafted(operator, await operator.request(manifest=wanted))
        candidate = models.add_one(tmp_path).read_bytes()
        async with operator.store.blobs.take(len(candidate)) as upload:
            await upload.write(candidate)
        made = optimised(candidate, draft.revision.model)
        manager = Reporting(operator, {**REPORT, "optimised": made, "proof": PROOF})
        verification = Verification(operator.store, manager, wall=time.time)  # type: ignore[arg-type]
        first = await verification.verify(draft, "a")
        known = Deployed(draft.function, replace(first.revision, number=1), first.profile)
        operator.store.bundles[draft.bundle.digest] = draft.bundle
        operator.store.catalog.put(known)

        assert (await verification.verify(draft, "b")).profile == first.profile
        assert len(manager.asked) == 1
        operator.store.blobs.path(sha256(candidate)).unlink()
        assert not verification.has_candidate(known)
        with pytest.raises(ModelRefused, match="cannot be read"):
            await verification.verify(draft, "c")

        assert [spec.optimise for spec in manager.asked] == [Optimisation("auto", 0.01)] * 2
        assert manager.specs[0].labels == (("host", "local"),)
        assert manager.specs[0].trial_s > 0
        manager.report = REPORT
        await verification.verify(drafted(operator, await operator.request()), "d")
        assert (manager.specs[2].labels, manager.specs[2].trial_s) == ((), 0.0)
        assert manager.specs[0].memory_mib > manager.specs[2].memory_mib


PARKED = """schema = 1
[server]
command = "serve ${PORT}"
[openai]
[park]
sleep = "POST /s"
wake = "POST /w"
[device]
kind = "cuda"
"""


async def test_a_trial_with_a_park_has_time_for_it(tmp_path: Path) -> None:
    """And what it has shown is a part of the profile."""
    async with operating(tmp_path) as operator:
        shown = ParkProfile(False, "it hangs")
        manager = Reporting(operator, {**REPORT, "device_kind": "cuda", "park": shown})
        verification = Verification(operator.store, manager, wall=time.time)  # type: ignore[arg-type]
        draft = drafted(operator, await operator.request(manifest=PARKED, trust=True))
        found = await verification.verify(draft, "a")

        assert found.profile.park == shown
        assert manager.specs[0].trial_s == PARK_TRIAL_S


async def test_each_number_of_gpus_has_its_trial(tmp_path: Path) -> None:
    """A trial has as many GPUs as a replica will have. What it measured holds for that number."""
    async with operating(tmp_path) as operator:
        manager = Reporting(operator, {**REPORT, "device_kind": "cuda", "proof": PROOF})
        verification = Verification(operator.store, manager, wall=time.time)  # type: ignore[arg-type]
        plain = drafted(operator, await operator.request())
        operator.store.bundles[plain.bundle.digest] = plain.bundle
        for trial, count in (("a", 2), ("b", 4), ("c", 2)):
            device = DeviceNeed("cuda", count=count)
            revision = replace(plain.revision, engine="python", device=device)
            found = await verification.verify(replace(plain, revision=revision), trial)
            tried = replace(found.revision, number=count)
            operator.store.catalog.put(Deployed(plain.function, tried, found.profile))

    assert [spec.count for spec in manager.specs] == [2, 4]


async def test_a_candidate_has_its_weights_in_itself(tmp_path: Path) -> None:
    """A candidate that names another file, or is no model, is refused: a replica made it."""
    async with operating(tmp_path) as operator:
        wanted = 'schema = 1\n[optimise]\nprecision = "auto"\n'
        draft = drafted(operator, await operator.request(manifest=wanted))
        for content, reason in (
            (models.external(tmp_path, 1).read_bytes(), "names another file, 'external.bin'"),
            (b"not a model", "cannot be read"),
            (models.with_compiled_part(tmp_path).read_bytes(), "got the node 'engine'"),
        ):
            async with operator.store.blobs.take(len(content)) as upload:
                await upload.write(content)
            manager = Reporting(operator, {**REPORT, "optimised": optimised(content)})
            verification = Verification(operator.store, manager, wall=time.time)  # type: ignore[arg-type]
            with pytest.raises(ModelRefused, match=reason):
                await verification.verify(draft, "a")


async def test_a_refutation_holds_in_every_precision(tmp_path: Path) -> None:
    """A joined run that lost rows refutes the graph, which all candidates have."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        found = operator.store.catalog.resolve("digits")
        assert found.profile is not None
        refuted = replace(found.profile, refuted_at_runtime="rows differ")
        operator.store.catalog.put(replace(found, profile=refuted))
        wanted = 'schema = 1\n[optimise]\nprecision = "auto"\n'
        draft = drafted(operator, await operator.request(manifest=wanted))
        manager = Reporting(operator, {**REPORT, "optimised": optimised(original=True)})

        verified = await Verification(operator.store, manager, wall=time.time).verify(draft, "a")  # type: ignore[arg-type]

        assert verified.profile.engine != found.profile.engine
        assert verified.profile.refuted_at_runtime == "rows differ"


async def test_a_prepared_graph_may_name_its_weights_only(tmp_path: Path) -> None:
    """A prepared graph that is not a model, names files other than its weights or has a compiled
    part is not kept, and the deploy goes on. It comes from an untrusted replica."""
    weights = models.external(tmp_path, 1)
    named = onnx.load(weights, load_external_data=False)
    graphs = [b"no graph", weights.read_bytes()]
    for tensor in named.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "weights.bin" if entry.key == "location" else entry.value
    graphs += [models.with_compiled_part(tmp_path).read_bytes(), named.SerializeToString()]
    async with operating(tmp_path) as operator:
        draft = drafted(operator, await operator.request())
        profiles = []
        for graph in graphs:
            manager: Any = Reporting(operator, await offered(operator, graph))
            verified = await Verification(operator.store, manager, wall=time.time).verify(
                draft, "one"
            )
            profiles.append(verified.profile)

    reasons = [profile.why_not_prepared for profile in profiles]
    assert reasons[0].startswith("the prepared graph cannot be read: ")
    assert reasons[1] == "the prepared graph names 'external.bin'"
    assert "without compiled parts" in reasons[2]
    assert [profile.prepared is None for profile in profiles] == [True, True, True, False]


async def test_a_server_may_be_told_not_to_prepare(tmp_path: Path) -> None:
    """With preparation off, the trial does not prepare and needs no memory for it."""
    async with operating(tmp_path) as operator:
        draft = drafted(operator, await operator.request())
        managers: list[Any] = [Reporting(operator, REPORT), Reporting(operator, REPORT)]
        for manager, prepare in zip(managers, (True, False), strict=True):
            verification = Verification(operator.store, manager, prepare=prepare, wall=time.time)
            await verification.verify(draft, "one")

    assert [manager.asked[0].prepare for manager in managers] == [True, False]
    more_mib = managers[0].needs_mib[0] - managers[1].needs_mib[0]
    assert more_mib == pytest.approx(draft.bundle.size / 2**20)


async def test_a_trial_that_was_killed_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed trial is repeated once and the second report counts; if both are killed, the error
    does not blame the model."""
    async with operating(tmp_path) as operator:
        verification = Verification(operator.store, operator.manager, wall=time.time)
        draft = drafted(operator, await operator.request())
        real, keys = operator.manager.trial, list[str]()

        async def killed(spec: PoolSpec, bound: Binding, *, times: int) -> dict[str, Any]:
            keys.append(spec.key)
            if len(keys) <= times:
                raise TrialKilled("was killed by SIGKILL", admin_detail={"log_tail": ["x"]})
            return await real(spec, bound)

        monkeypatch.setattr(operator.manager, "trial", partial(killed, times=1))
        assert (await verification.verify(draft, "t1")).profile.profiled
        assert keys == ["default/digits@trial-t1", "default/digits@trial-t1-again"]

        keys.clear()
        monkeypatch.setattr(operator.manager, "trial", partial(killed, times=9))
        with pytest.raises(TrialKilled, match=r"so was the second one \(was killed by") as end:
            await verification.verify(draft, "t2")
        assert (len(keys), end.value.admin_detail) == (2, {"log_tail": ["x"]})


PICTURE = b"\x89PNG not looked at"
MANIFEST = """
schema = 1
name = "digits"
model = "m.onnx"
[input.image]
kind = "image"
size = [2, 2]
[sample]
image = "@two.png"
"""


def takes(signature: Signature, **changes: object) -> Deployed:
    """Return a deployed revision with this signature."""
    known = deployed()
    return replace(known, revision=replace(known.revision, signature=signature, **changes))  # type: ignore[arg-type]


def test_zeros_fit_the_signature() -> None:
    """The sample of zeros has size 1 for dynamic dimensions, scalars for scalars, and empty
    texts."""
    inputs = (
        TensorSpec("x", "FP32", (-1, 2)),
        TensorSpec("n", "INT64", ()),
        TensorSpec("t", "BYTES", (1,)),
        TensorSpec("b", "BOOL", (-1,)),
    )

    kind, body = values(takes(Signature("tensors", inputs, ())))

    assert kind == "application/json"
    expected = {"inputs": {"x": [[0.0, 0.0]], "n": 0, "t": [""], "b": [False]}}
    assert json.loads(body) == expected


def test_the_manifests_values_come_as_they_are() -> None:
    """Values under [sample] are sent unchanged."""
    known = takes(deployed().revision.signature, sample={"x": [[1, 2, 3, 4]]})

    assert json.loads(values(known)[1]) == {"inputs": {"x": [[1, 2, 3, 4]]}}


def test_raw_bytes_begin_empty() -> None:
    """The sample of a function of raw bytes is empty."""
    assert values(takes(Signature("bytes", (TensorSpec("data", "BYTES", (1,)),), ()))) == (
        "application/octet-stream",
        b"",
    )


def test_zeros_are_bounded() -> None:
    """A signature with too many elements has no sample of zeros."""
    large = Signature("tensors", (TensorSpec("x", "FP32", (-1, 8000, 8000)),), ())

    with pytest.raises(Unknown, match="'x' FP32"):
        values(takes(large))


async def test_a_sample_can_be_sent_as_it_came(tmp_path: Path) -> None:
    """A sample's body and content type can be sent as a call."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")

        answer = await server.admin("GET", "/functions/digits/sample")

        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        assert (await server.call("digits", answer.json())).status == 200


async def test_a_sample_file_comes_from_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample file has the content type of its suffix; one over the limit is refused unread."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        await server.deploy({"m.onnx": MODEL, "two.png": PICTURE}, name="digits", manifest=MANIFEST)

        answer = await server.admin("GET", "/functions/digits/sample")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "image/png")
        assert answer.body == PICTURE

        monkeypatch.setattr(verify, "FILE_MAX", 3)
        refused = await server.admin("GET", "/functions/digits/sample")
        assert (refused.status, refused.problem["code"]) == (404, "unknown")


async def test_a_lost_blob_is_told(tmp_path: Path) -> None:
    """A sample whose blob is missing is 503."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        await server.deploy({"m.onnx": MODEL, "two.png": PICTURE}, name="digits", manifest=MANIFEST)
        known = server.server.store.catalog.resolve("digits")
        bundle = server.server.store.bundles[known.revision.bundle]
        (file,) = [one for one in bundle.files if one.path == "two.png"]
        server.server.store.blobs.path(file.sha256).unlink()

        answer = await server.admin("GET", "/functions/digits/sample")
        assert (answer.status, answer.problem["code"]) == (503, "store_unavailable")
