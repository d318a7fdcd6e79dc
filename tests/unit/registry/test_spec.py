"""Tests of the model spec that a replica gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.catalog import Deployed
from registry.model.functions import ExchangeLimits, Health, Limits
from registry.model.parks import EngineCall, ParkProfile, ParkSettings
from registry.model.profiles import Profile
from registry.model.revisions import Batching, DeviceNeed, Revision
from registry.model.servers import ModelApi, PathRules, ServerImage, ServerSettings
from registry.spec import (
    STEP_S,
    VLLM_COUNTER,
    VLLM_STEP_S,
    candidate_of,
    counter_of,
    golden_of,
    golden_plan,
    is_outdated,
    model_spec,
    park_hint,
    profile_engine,
    replica_spec,
    server_spec,
    settings_equal,
    step_s_of,
)
from runtime_image.contract.model import ImageForm, InputRule, ModelSpec
from runtime_image.contract.parks import ParkHooks
from runtime_image.contract.precision import RULES, Optimisation
from runtime_image.contract.samples import GoldenPlan, SampleRequest
from runtime_image.contract.server import ServerSpec
from runtime_image.contract.signature import Signature
from tests.support.golden import golden
from tests.support.nouns import (
    deployed,
    function,
    optimised,
    prepared,
    profile,
    revision,
    server_deployed,
    server_profile,
    server_revision,
)


def spec_of(one: Revision, measured: Profile | None) -> ModelSpec:
    return model_spec(Deployed(function(), one, measured))


def test_the_revision_is_passed_on() -> None:
    """Files, rules, sample and engine come from the revision, the timeout from the function."""
    one = revision(handler="handler.py", sample={"x": [1]}, inputs={"x": InputRule(finite=True)})

    spec = model_spec(Deployed(function(limits=Limits(timeout_s=5)), one, profile()))

    assert (
        spec.revision,
        spec.engine,
        spec.model,
        spec.handler,
        spec.timeout_s,
    ) == ("digits@1", "onnx", "model.onnx", "handler.py", 5)
    assert (one.inputs, one.output, one.sample) == (spec.inputs, spec.output, spec.sample)


@pytest.mark.parametrize(
    ("batching", "measured", "rows"),
    [
        (Batching(), profile(), 32),
        (Batching(max_size=8), profile(), 8),
        (Batching(max_size=64), profile(), 32),
        (Batching(mode="off"), profile(), 1),
        (Batching(), profile(batchable=False), 1),
        (Batching(), profile(batch_max=0), 1),
        (Batching(), None, 1),
    ],
)
def test_rows_are_batched_only_where_proved(
    batching: Batching, measured: Profile | None, rows: int
) -> None:
    """Only a batchable profile allows more than one row, up to the smaller limit."""
    spec = spec_of(revision(batching=replace(batching, wait_ms=2.0)), measured)

    assert (rows, rows > 1, 2.0 if rows > 1 else 0.0) == (
        spec.batch_max,
        spec.batching,
        spec.batch_wait_ms,
    )


@pytest.mark.parametrize(
    ("one", "measured", "inline"),
    [
        (revision(), profile(latency_ms={1: 0.05}), True),
        (revision(), profile(latency_ms={1: 0.1}), False),
        (revision(), profile(latency_ms={2: 0.05}), False),
        (revision(), profile(latency_ms={1: 0.05}, profiled=False), False),
        (revision(handler="handler.py"), profile(latency_ms={1: 0.05}), False),
        (
            revision(inputs={"x": InputRule("image", image=ImageForm((8, 8)))}),
            profile(latency_ms={1: 0.05}),
            True,
        ),
        (revision(), None, False),
    ],
)
def test_only_short_runs_are_inline(one: Revision, measured: Profile | None, inline: bool) -> None:
    """A model runs in the replica's event loop only if its run was measured as short; the size of a
    request is checked when it arrives."""
    assert inline == spec_of(one, measured).inline


def test_numbers_and_times_make_no_difference() -> None:
    """Number, creation time and measured signature do not count as a change of settings."""
    again = replace(revision(), number=7, created_s=9.0, signature=Signature("tensors", (), ()))

    assert settings_equal(revision(), again)


@pytest.mark.parametrize(
    "change",
    [
        {"bundle": "0" * 64},
        {"engine": "python"},
        {"model": "other.onnx"},
        {"handler": "handler.py"},
        {"inputs": {"x": InputRule(finite=True)}},
        {"batching": Batching(mode="off")},
        {"sample": {"x": 1}},
        {"optimise": Optimisation("fp16", 0.01)},
    ],
)
def test_a_change_of_what_runs_is_a_change(change: dict[str, object]) -> None:
    """Each setting that affects the run makes a new revision."""
    assert not settings_equal(revision(), revision(**change))


AUTO = Optimisation("auto", 0.01)
OLD_RULES = {"rules": RULES - 1}


@pytest.mark.parametrize(
    ("changes", "made", "is_old"),
    [
        ({"optimise": AUTO}, optimised(), False),
        ({"optimise": AUTO}, optimised(**OLD_RULES), True),
        ({"optimise": AUTO}, optimised(original=True, **OLD_RULES), False),
        ({"optimise": AUTO}, None, False),
        ({}, optimised(**OLD_RULES), False),
    ],
)
def test_a_candidate_of_weaker_rules_is_outdated(changes: Any, made: Any, is_old: bool) -> None:
    """Only one that serves is: no rule makes the original wrong. Tables from before there were
    versions have none."""
    assert is_outdated(Deployed(function(), revision(**changes), profile(optimised=made))) is is_old
    if is_old:
        del made.table["rules"]
        assert is_outdated(Deployed(function(), revision(**changes), profile(optimised=made)))


@pytest.mark.parametrize(
    ("changes", "made", "served"),
    [
        ({"optimise": AUTO}, optimised(), ".optimised/model.onnx"),
        ({"optimise": AUTO}, optimised(original=True), ""),
        ({"optimise": AUTO}, None, ""),
        ({"optimise": AUTO, "model": "other.onnx"}, optimised(), ""),
        ({"optimise": replace(AUTO, precision="fp32")}, optimised(), ""),
        ({}, optimised(), ""),
    ],
)
def test_the_chosen_candidate_is_served(changes: Any, made: Any, served: str) -> None:
    """A revision that wants another precision is served by the file that its trial chose, and no
    other revision is. A replica that serves makes no candidates."""
    one = revision(**changes)
    found = Deployed(function(), one, profile(optimised=made))
    spec, file = model_spec(found), candidate_of(found)

    assert (spec.optimised, spec.optimise) == (served, None)
    assert (file.path if file else "") == served


def test_each_precision_has_a_profile_of_its_own() -> None:
    """Measurements of one precision are no other's; the default's are found as before."""
    settings = [
        None,
        AUTO,
        replace(AUTO, precision="int8", samples="a.npz"),
        replace(AUTO, tolerance=0.02),
        replace(AUTO, samples="a.npz"),
        replace(AUTO, labels="y"),
    ]
    engines = [profile_engine(revision(optimise=one)) for one in settings]

    assert len(set(engines)) == len(settings)
    plain = revision(optimise=replace(AUTO, precision="fp32"))
    assert engines[0] == profile_engine(plain) == "onnx"
    assert all(engine.startswith("onnx:") for engine in engines[1:])


def test_prepared_files_are_passed_to_their_model_only() -> None:
    """Only replicas of the model that the files were prepared from get them."""
    measured = profile(prepared=prepared("model.onnx"))

    assert spec_of(revision(), measured).preparation == measured.prepared.preparation
    assert spec_of(revision(model="other.onnx"), measured).preparation is None
    assert spec_of(revision(), profile()).preparation is None
    assert spec_of(revision(), None).preparation is None


def test_a_server_is_passed_on() -> None:
    """Command and probe come from the revision, the limits of exchanges from the function."""
    one = server_deployed(
        command=("app", "${PORT}"),
        env={"A": "1"},
        port=81,
        ready="/up",
        network="egress",
        start_s=5.0,
        stop_grace_s=3.0,
        samples=(SampleRequest("/x"),),
        exchange=ExchangeLimits(concurrency=4, max_s=9.0),
    )

    assert replica_spec(one) == ServerSpec(
        "web@1",
        ("app", "${PORT}"),
        {"A": "1"},
        81,
        "/up",
        "egress",
        5.0,
        3.0,
        9.0,
        4,
        (SampleRequest("/x"),),
    )


def test_only_replicas_whose_park_works_can_be_parked() -> None:
    """Their memory caps have room for a sleep; the trial is to find out."""
    one = server_deployed(park=PARK)
    shown = ParkProfile(True)
    for park, works in ((shown, True), (replace(shown, works=False), False), (None, False)):
        known = replace(one, profile=server_profile(one.revision, park=park))
        spec = replica_spec(known)
        assert isinstance(spec, ServerSpec)
        assert (spec.park is not None) is works
        assert server_spec(known).park is not None


def test_the_server_of_an_image_is_apart() -> None:
    """Its sidecar gets neither command nor variables: its container has them."""
    one = server_deployed(command=("-v",), env={"A": "1"}, image=ServerImage("web:1"))

    spec = server_spec(one)

    assert (spec.is_apart, spec.command, spec.env) == (True, (), {})


@pytest.mark.parametrize(
    ("host", "sent"), [("client", ""), ("loopback", ""), ("a.example:81", "a.example:81")]
)
def test_the_host_of_a_sidecars_own_requests(host: str, sent: str) -> None:
    """No client sends these: without a fixed host it is the server's address."""
    assert server_spec(server_deployed(host=host)).host == sent


def test_each_kind_of_function_has_its_own_spec() -> None:
    """A model function has no server spec."""
    assert isinstance(replica_spec(deployed()), ModelSpec)
    with pytest.raises(ValueError, match="digits@1 is no server function"):
        server_spec(deployed())


def test_any_change_of_a_server_is_a_new_revision() -> None:
    """Equal tables make no revision; each key of [server] does, also the rules of its paths."""
    one = server_revision()

    assert settings_equal(one, replace(one, number=7))
    assert not settings_equal(one, server_revision(command=("serve", "${PORT}", "-v")))
    assert not settings_equal(one, server_revision(paths=PathRules(deny=("/x",))))


def test_profiles_of_servers_are_kept_by_what_runs() -> None:
    """Two commands over the same files have separate profiles; rules of paths run nothing."""
    one = server_revision()

    assert profile_engine(revision()) == "onnx"
    assert profile_engine(one).startswith("server:")
    assert profile_engine(one) != profile_engine(server_revision(env={"A": "1"}))
    assert profile_engine(one) == profile_engine(server_revision(paths=PathRules(deny=("/x",))))
    assert profile_engine(one) != profile_engine(server_revision(host="loopback"))
    assert profile_engine(one) == "server:32dd109452f6c657"


def test_each_number_of_gpus_has_a_profile() -> None:
    """What four GPUs were measured with says nothing of two; one GPU is named as ever."""
    counts = [DeviceNeed("cuda", count=count) for count in (1, 2, 4)]
    servers = [profile_engine(server_revision(device=one)) for one in counts]
    handlers = [profile_engine(revision(engine="python", device=one)) for one in counts]

    assert len(set(servers)) == len(set(handlers)) == 3
    assert (servers[0], handlers[0]) == (profile_engine(server_revision()), "python")
    assert all(engine.startswith("python:") for engine in handlers[1:])


MARKED = SampleRequest("/up", golden=True)
API = ModelApi(served_model="tiny", base="/api/v1")


@pytest.mark.parametrize(
    ("changes", "plan"),
    [
        ({}, None),
        ({"samples": (SampleRequest("/up"),)}, None),
        ({"samples": (SampleRequest(), MARKED)}, GoldenPlan(MARKED)),
        ({"api": API}, GoldenPlan(base="/api/v1", model="tiny")),
        ({"api": ModelApi()}, GoldenPlan(base="/v1", model="web")),
        ({"api": API, "samples": (MARKED,)}, GoldenPlan(MARKED)),
        ({"api": API, "network": "egress"}, None),
        ({"samples": (MARKED,), "network": "egress"}, GoldenPlan(MARKED)),
        ({"api": replace(API, upstream_key="key")}, None),
    ],
)
def test_who_has_a_golden_sample(changes: dict[str, Any], plan: GoldenPlan | None) -> None:
    """Models by themselves, unless their answers may come from somebody who counts them."""
    one = server_deployed(**changes)

    assert golden_plan(one.revision) == plan
    assert server_spec(one).golden_plan == plan
    assert golden_plan(revision()) is None


def test_a_golden_sample_belongs_to_how_it_was_learnt() -> None:
    """Revisions that run the same share a profile, whatever their API; each has its own sample."""
    one, other = server_deployed(api=API), server_deployed(api=ModelApi())
    learnt = golden(golden_plan(one.revision))

    assert profile_engine(one.revision) == profile_engine(other.revision)
    assert golden_of(replace(one, profile=server_profile(one.revision, golden=learnt))) == learnt
    assert golden_of(replace(other, profile=server_profile(one.revision, golden=learnt))) is None
    assert golden_of(one) is None


def test_a_marked_sample_keeps_the_profile() -> None:
    """What is learnt of a sample changes nothing of what runs, nor of earlier profiles' keys."""
    plain = server_revision(samples=(SampleRequest("/up"),))

    assert profile_engine(plain) == profile_engine(server_revision(samples=(MARKED,)))


@pytest.mark.parametrize(
    ("server", "counter", "step_s"),
    [
        (ServerSettings(("vllm", "serve", "m")), VLLM_COUNTER, VLLM_STEP_S),
        (ServerSettings(("/opt/v/bin/vllm", "serve", "m")), VLLM_COUNTER, VLLM_STEP_S),
        (
            ServerSettings(("python3", "-m", "vllm.entrypoints.openai.api_server")),
            VLLM_COUNTER,
            VLLM_STEP_S,
        ),
        (
            ServerSettings((), image=ServerImage("vllm/vllm-openai:v0.32.0")),
            VLLM_COUNTER,
            VLLM_STEP_S,
        ),
        (
            ServerSettings((), image=ServerImage("h:5000/vllm-openai@sha256:12")),
            VLLM_COUNTER,
            VLLM_STEP_S,
        ),
        (
            ServerSettings(("vllm", "serve", "--no-enable-chunked-prefill")),
            VLLM_COUNTER,
            STEP_S,
        ),
        (ServerSettings(("python3", "vllm-notes.py")), "", STEP_S),
    ],
)
def test_vllm_has_a_counter_by_itself(server: ServerSettings, counter: str, step_s: float) -> None:
    """By its command or image. Where prefills are whole, a step may take minutes."""
    assert (counter_of(Health(), server), step_s_of(Health(), server)) == (counter, step_s)


def test_what_the_manifest_gives_replaces_the_preset() -> None:
    """An empty counter is none."""
    server = ServerSettings(("vllm", "serve", "m"))
    given = Health(counter="", metrics="/m", step_s=7.0)

    assert (counter_of(given, server), step_s_of(given, server)) == ("", 7.0)
    one = server_deployed()
    spec = server_spec(replace(one, function=replace(one.function, health=given)))
    assert (spec.counter, spec.metrics) == ("", "/m")


PARK = ParkSettings(
    "vllm",
    EngineCall("/sleep?level=1"),
    EngineCall("/w", "PUT", "{}"),
    EngineCall("/is_sleeping", "GET"),
)


def test_a_sidecar_gets_the_calls_of_a_park() -> None:
    """Those of a preset are private. How long a park lasts is for the manager to know."""
    spec = server_spec(server_deployed(park=PARK))
    json_type = {"Content-Type": "application/json"}
    assert spec.park == ParkHooks(
        SampleRequest("/sleep?level=1", "POST"),
        SampleRequest("/w", "PUT", json_type, "{}"),
        SampleRequest("/is_sleeping"),
    )
    own = server_spec(server_deployed(park=replace(PARK, engine="", check=None)))
    assert own.park == replace(spec.park, check=None, is_private=False)
    assert server_spec(server_deployed()).park is None


def test_a_park_is_measured_anew_unless_only_its_length_differs() -> None:
    """The profile says whether it works."""
    engines = [
        profile_engine(server_revision(park=park))
        for park in (None, PARK, replace(PARK, check=None), replace(PARK, park_s=60.0))
    ]
    assert len(set(engines)) == 3
    assert engines[1] == engines[3]


GPU = '[device] kind = "cuda"'


@pytest.mark.parametrize(
    ("server", "hint"),
    [
        (
            ServerSettings(("vllm", "serve", "m"), api=ModelApi()),
            '[park] engine = "vllm", with --enable-sleep-mode in the command lets it sleep',
        ),
        (
            ServerSettings(("--enable-sleep-mode",), api=ModelApi(), image=ServerImage("vllm:1")),
            '[park] engine = "vllm" lets it sleep instead of being stopped',
        ),
        (
            ServerSettings(("python", "-m", "sglang.launch_server"), api=ModelApi()),
            '[park] engine = "sglang", with --enable-memory-saver --enable-weights-cpu-backup in',
        ),
        (ServerSettings(("vllm", "serve", "m"), api=ModelApi(), park=PARK), ""),
        (ServerSettings(("vllm", "serve", "m")), ""),
        (ServerSettings(("vllm",), samples=(MARKED,), network="egress"), ""),
        (ServerSettings(("llama-server",), api=ModelApi()), ""),
    ],
    ids=["flag", "image", "sglang", "has it", "no sample", "reached by others", "unknown"],
)
def test_a_park_is_proposed_where_a_preset_fits(server: ServerSettings, hint: str) -> None:
    """With what is missing in the command, and in [device]; not on CPU slots, where nothing proves
    a sleep."""
    found = park_hint(server, DeviceNeed("cuda"))
    assert found.startswith(hint)
    assert bool(found) is bool(hint)
    anywhere = park_hint(server, DeviceNeed())
    also = f"{' and' if ', with' in found else ', with'} {GPU} lets it"
    assert anywhere == found.replace(" lets it", also)
    assert park_hint(server, DeviceNeed("cpu")) == ""
