"""Tests of the checks before a deploy begins."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from admin.deploy.plan import (
    FILES_MAX,
    Plan,
    check_code,
    check_device,
    check_host,
    check_trial,
    parse_request,
    plan,
    profile_from_report,
    read_request,
    signature_from_report,
    verified_before,
)
from admin.documents.requests import BundleEntry, DeployRequest
from pool_manager.core.hosts import HostState
from pool_manager.core.state import Device
from pool_manager.host import HostView
from registry.catalog import Catalog, Deployed
from registry.errors import (
    BadBundle,
    BadManifest,
    BadRequest,
    Conflict,
    FnError,
    Refused,
    WrongScope,
)
from registry.model.parks import EngineCall, ParkProfile, ParkSettings
from registry.model.profiles import Profile
from registry.model.revisions import Batching, DeviceNeed
from registry.model.servers import ModelApi, Mount, ServerImage
from registry.spec import golden_plan
from runtime_image.contract import signature as signatures
from runtime_image.contract.precision import RULES, Optimisation
from runtime_image.contract.samples import golden_to_json
from tests.support.fake_driver.opening import hosts_with
from tests.support.golden import golden
from tests.support.nouns import (
    EMPTY,
    SIGNATURE,
    deployed,
    function,
    optimised,
    prepared,
    profile,
    server_profile,
    server_revision,
)

NOW_S = 1000.0
IDLE_S = 120.0
REPORT: dict[str, Any] = {
    "device_kind": "cpu",
    "signature": signatures.to_json(SIGNATURE),
    "load_ms": 5.0,
    "memory_mib": 40,
    "latency_ms": {"1": 1.0, "8": 2.0},
    "batchable": True,
    "why_not": "",
    "batch_max": 8,
    "profiled": True,
    "note": "",
}


def files(*paths: str) -> list[BundleEntry]:
    """Return files of one byte each."""
    return [BundleEntry(path, 1, "0" * 64) for path in paths]


def request(*paths: str, **fields: Any) -> DeployRequest:
    """Return a deploy request for these files, by default one model."""
    named = paths or ("model.onnx",)
    return DeployRequest(files=files(*named), **{"model": named[0], **fields})


def planned(wanted: DeployRequest, name: str = "digits", catalog: Catalog | None = None) -> Plan:
    """Return the plan for a request."""
    return plan(name, wanted, read_request(name, wanted), catalog or Catalog(), NOW_S, IDLE_S)


def test_a_bare_model_gets_the_defaults() -> None:
    """One model file without a manifest makes a function; number and signature are still open."""
    draft = planned(request())

    assert (draft.revision.model, draft.revision.number) == ("model.onnx", 0)
    assert (draft.function.name, draft.function.created_s) == ("digits", NOW_S)
    assert draft.function.scaling.idle_s == IDLE_S
    assert draft.bundle.digest == draft.revision.bundle


@pytest.mark.parametrize(
    ("manifest", "overrides", "idle_s"),
    [
        (None, {}, IDLE_S),
        ("schema = 1\n# idle_s is for others\n", {}, IDLE_S),
        ("schema = 1\n[scaling]\nidle_s = 300.0\n", {}, 300),
        ("schema = 1\n[scaling]\nidle_s = 5.0\n", {"idle_s": 300}, 300),
        (None, {"idle_s": None}, IDLE_S),
    ],
)
def test_the_servers_idle_time_is_for_functions_that_name_none(
    manifest: str | None, overrides: dict[str, Any], idle_s: float
) -> None:
    """The server's idle time applies only if neither manifest nor command line names one, even the
    default."""
    draft = planned(request(manifest=manifest, overrides=overrides))

    assert draft.function.scaling.idle_s == idle_s


def test_the_manifest_is_no_part_of_the_bundle() -> None:
    """The manifest is not part of the bundle: a changed setting does not change the bundle."""
    text = "schema = 1\n"
    with_it = planned(request("model.onnx", "function.toml", manifest=text))

    assert with_it.bundle == planned(request()).bundle


def test_the_name_in_the_route_wins() -> None:
    """The name in the route takes precedence over the manifest's."""
    draft = planned(request(manifest='schema = 1\nname = "other"\n'), "mine")

    assert (draft.function.name, draft.revision.name) == ("mine", "mine")


def test_a_function_keeps_the_time_it_was_made() -> None:
    """A new revision keeps the function's creation time."""
    before = deployed()

    draft = planned(request(), catalog=Catalog([before]))

    assert draft.function.created_s == function().created_s


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (DeployRequest(files=[]), BadBundle, f"expected 1 to {FILES_MAX} files, got 0"),
        (
            DeployRequest(files=files("a") * (FILES_MAX + 1)),
            BadBundle,
            f"expected 1 to {FILES_MAX} files, got {FILES_MAX + 1}",
        ),
        (request("../model.onnx"), BadBundle, "has the part '..'"),
        (
            request(model="none.onnx"),
            BadManifest,
            "expected one of ['model.onnx'], got 'none.onnx'",
        ),
        (request(model=None), BadManifest, "got None"),
        (request(manifest="schema = 2\n"), BadManifest, "schema: expected 1, got 2"),
        (request(overrides={"min": -1}), BadManifest, "scaling.min: expected at least 0, got -1"),
        (request(overrides={"mni": 1}), BadRequest, "unknown overrides: mni"),
        (request(overrides={"manifest": 1}), BadRequest, "multiple values"),
        (
            request("model.onnx", "handler.py", manifest="schema = 1\n"),
            Refused,
            "pass --trust to allow it",
        ),
    ],
)
def test_a_refusal_names_what_is_wrong(
    wanted: DeployRequest, error: type[FnError], message: str
) -> None:
    """Each refusal says what was expected, what was received, or what to do."""
    with pytest.raises(error) as refused:
        planned(wanted)

    assert message in refused.value.message


def test_a_bad_name_is_refused() -> None:
    """A name that breaks the naming rules is refused."""
    with pytest.raises(BadRequest, match="expected a name"):
        planned(request(), "Digits")


def test_a_handler_is_deployed_with_trust() -> None:
    """A handler needs --trust, since it runs with the server's rights."""
    wanted = request("model.onnx", "handler.py", manifest="schema = 1\n", trust=True)

    assert planned(wanted).revision.handler == "handler.py"


@pytest.mark.parametrize(
    ("driver", "scopes", "is_allowed"),
    [
        ("process", ("deploy",), False),
        ("process", ("read", "deploy"), False),
        ("process", ("admin",), True),
        ("docker", ("deploy",), True),
        ("another", ("deploy",), False),
    ],
)
def test_a_handler_beside_the_server_needs_admin(
    driver: str, scopes: tuple[str, ...], *, is_allowed: bool
) -> None:
    """A handler in a process beside the server needs the scope admin, since it could read the admin
    token. One in a container, and a plain model, do not."""
    wanted = request("model.onnx", "handler.py", manifest="schema = 1\n", trust=True)
    check_code(planned(request()), hosts_with(driver), scopes)

    if is_allowed:
        check_code(planned(wanted), hosts_with(driver), scopes)
        return
    with pytest.raises(WrongScope) as refused:
        check_code(planned(wanted), hosts_with(driver), scopes)
    assert refused.value.message == (
        f"handler.py would run as the server's own user under the driver {driver}: this needs the"
        f" scope admin, the key has {', '.join(scopes)}; under the driver docker the scope deploy"
        " suffices"
    )


def test_a_python_function_needs_trust_admin_and_processes() -> None:
    """It runs with the rights of the server's user, and its packages are this machine's."""
    wanted = request("handler.py", manifest="schema = 1\n[python]\n", trust=True)
    draft = planned(wanted)
    assert draft.revision.server is not None
    assert not draft.names_concurrency
    check_code(draft, hosts_with("process"), ("admin",))

    with pytest.raises(Refused, match=r"handler\.py and its packages would run .* pass --trust"):
        planned(request("handler.py", manifest="schema = 1\n[python]\n"))
    with pytest.raises(WrongScope, match=r"handler\.py would run as the server's own user"):
        check_code(draft, hosts_with("process"), ("deploy",))
    with pytest.raises(Refused, match=r"python: expected the driver process, got docker"):
        check_code(draft, hosts_with("docker"), ("admin",))


IMAGE = 'schema = 1\n[server]\nimage = "nginx:1.27"\n'


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('mounts = { m = "/srv:/data" }', "server.mounts"),
        ('secrets = { TOKEN = "hf" }', "server.secrets"),
        ('network = "egress"', 'server.network = "egress"'),
        ('capabilities = ["CHOWN"]', "server.capabilities"),
        ('fields = ["x_y"]', "server.fields"),
        ('[openai]\nupstream_key = "vllm"', "openai.upstream_key"),
    ],
)
def test_what_reaches_beyond_a_container_needs_the_scope_admin(line: str, key: str) -> None:
    """The scope deploy may use images without any of these; the refusal names key and scope."""
    draft = planned(request(manifest=IMAGE + line + "\n"))
    check_code(draft, hosts_with("docker"), ("read", "admin"))

    with pytest.raises(WrongScope) as refused:
        check_code(draft, hosts_with("docker"), ("read", "deploy"))
    assert refused.value.message == (
        f"{key} gives the server more than its container has: this needs the scope admin, the key"
        " has read, deploy"
    )


def test_a_driver_runs_images_or_commands() -> None:
    """The scope deploy may use an image, without --trust. The other driver is named."""
    image = planned(request(manifest=IMAGE))
    command = planned(
        request(manifest='schema = 1\n[server]\ncommand = "serve ${PORT}"\n', trust=True)
    )
    check_code(image, hosts_with("docker"), ("deploy",))
    check_code(command, hosts_with("process"), ("admin",))

    with pytest.raises(Refused, match=r"server\.image: expected the driver docker, got process"):
        check_code(image, hosts_with("process"), ("admin",))
    with pytest.raises(Refused, match=r"server\.command: expected the driver process, got docker"):
        check_code(command, hosts_with("docker"), ("admin",))


def test_the_dashboards_body_is_a_plan() -> None:
    """The body that its form makes of an image (tested there as this text), with everything that an
    image may have."""
    body = b"""{"files": [], "model": null, "derived_name": false, "breaking": true, "pull": true,
      "manifest": "schema = 1\\n[server]\\nimage = \\"vllm/vllm-openai:v0.33.0\\"\\n",
      "overrides": {
        "command": ["--model", "/models/my qwen"], "port": 8000, "ready": "/health",
        "env": {"A": "1"}, "secrets": {"HF_TOKEN": "hf"},
        "mounts": {"models": "/srv/models:/models"}, "network": "egress",
        "concurrency": 8, "idle_s": 60, "max": 2, "device": "cpu"}}"""
    draft = planned(parse_request(body), "vllm-openai")
    server = draft.revision.server
    assert server is not None
    assert server.image == ServerImage("vllm/vllm-openai:v0.33.0")
    assert server.command == ("--model", "/models/my qwen")
    assert (server.port, server.ready, server.network) == (8000, "/health", "egress")
    assert (server.env, server.secrets) == ({"A": "1"}, {"HF_TOKEN": "hf"})
    assert server.mounts == (Mount("models", "/srv/models", "/models"),)
    assert (draft.function.scaling.idle_s, draft.function.scaling.max) == (60, 2)
    assert draft.function.exchange is not None
    assert draft.function.exchange.concurrency == 8
    assert draft.revision.device.kind == "cpu"


def test_a_derived_name_must_be_new() -> None:
    """A derived name must be new; an explicit name may replace a function."""
    catalog = Catalog([deployed()])

    with pytest.raises(Conflict, match="pass --name to deploy to it"):
        planned(request(derived_name=True), catalog=catalog)
    planned(request(derived_name=True), "others", catalog)
    planned(request(), catalog=catalog)


def test_a_device_must_be_here() -> None:
    """A device kind that this host lacks is refused: its trial would wait for ever."""
    draft = planned(request(overrides={"device": "cuda"}))

    with pytest.raises(Refused, match=r"device\.kind: expected any or cpu, got cuda"):
        check_device(draft, [Device("cpu:0", "cpu")])
    check_device(draft, [Device("cpu:0", "cpu"), Device("GPU-1", "cuda")])
    check_device(planned(request()), [])


def test_several_gpus_must_be_on_one_host() -> None:
    """More whole GPUs than any host has are refused, with what there is; slices do not count."""
    draft = planned(request())
    draft = replace(draft, revision=replace(draft.revision, device=DeviceNeed("cuda", count=3)))
    slices = [Device(one, "cuda", is_slice=True) for one in ("MIG-1", "MIG-2", "MIG-3")]
    here = [Device("GPU-1", "cuda"), Device("GPU-2", "cuda"), *slices]
    far = [Device(f"far/GPU-{one}", "cuda", host="far") for one in range(2)]
    slots = [Device(f"cpu:{one}", "cpu") for one in range(4)]

    with pytest.raises(Refused, match=r"expected at most 2, got 3: .* there are: far 2, local 2"):
        check_device(draft, [*here, *far, *slots])
    check_device(draft, [*here, *far, Device("far/GPU-2", "cuda", host="far")])
    with pytest.raises(Refused, match=r"device\.count: expected at most 0, got 3: .*: none"):
        check_device(draft, slices)


def test_a_host_must_have_the_labels() -> None:
    """Labels that no host has are refused; one that is away may come back. The name is a label."""
    hosts = [
        HostView("local", labels={"zone": "a"}),
        HostView("gpu2", state=HostState.UNREACHABLE, labels={"zone": "b", "disk": "nvme"}),
    ]
    for labels in ({}, {"zone": "a"}, {"host": "gpu2"}, {"zone": "b", "host": "gpu2"}):
        check_host(planned(request(overrides={"host_labels": labels})), hosts)
    for labels in ({"zone": "a", "disk": "nvme"}, {"host": "gpu3"}):
        with pytest.raises(Refused, match=r"device\.host: expected the labels of a host"):
            check_host(planned(request(overrides={"host_labels": labels})), hosts)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "truncated"),
        (b'{"files": [{"path": "m"}]}', "missing required field `size`"),
        (b'{"files": [], "fiels": 1}', "unknown field `fiels`"),
        (b'{"files": "\xff"}', "the deploy request cannot be read"),
    ],
)
def test_a_request_that_cannot_be_read_is_told(body: bytes, message: str) -> None:
    """A malformed request is refused with the name of the field."""
    with pytest.raises(BadRequest, match=message):
        parse_request(body)


def test_a_trial_measures_the_model_whatever_the_settings() -> None:
    """A trial measures batching even if the settings switch it off, since profiles are kept per
    bundle."""
    off = planned(request(manifest='schema = 1\n[batching]\nmode = "off"\n'))

    assert planned(request()).trial_spec(prepare=True).batching
    assert off.trial_spec(prepare=True).batching


def test_a_trial_prepares_where_that_is_wanted() -> None:
    """The server's setting decides whether the trial prepares the model."""
    assert planned(request()).trial_spec(prepare=True).prepare
    assert not planned(request()).trial_spec(prepare=False).prepare


@pytest.mark.parametrize("rules", [RULES - 1, RULES])
def test_a_candidate_of_weaker_rules_is_tried_again(rules: int) -> None:
    """A deploy of the same files does not take over what they had chosen."""
    draft = planned(request(manifest=AUTO))
    before = replace(draft.revision, number=1)
    made = optimised(model=before.model, rules=rules)
    found = profile(bundle=before.bundle, model=before.model, optimised=made)
    known = Deployed(replace(draft.function, revision=1), before, found)

    expected = known if rules == RULES else None
    assert verified_before(draft, Catalog([known]), "cpu") == expected


@pytest.mark.parametrize(
    ("changes", "profile_changes", "is_known"),
    [
        ({}, {}, True),
        ({"batching": Batching("off")}, {}, True),
        ({"sample": {"x": [[1.0]]}}, {}, False),
        ({"device": DeviceNeed(memory_mib=100)}, {}, False),
        ({"device": DeviceNeed(count=2)}, {}, False),
        ({}, {"device_kind": "cuda"}, False),
        ({}, {"profiled": False}, False),
        ({"optimise": Optimisation("auto", 0.01)}, {}, False),
        ({"optimise": Optimisation("fp32", 0.02)}, {}, True),
    ],
)
def test_a_trial_with_the_same_outcome_is_not_repeated(
    changes: dict[str, Any], profile_changes: dict[str, Any], is_known: bool
) -> None:
    """A revision's trial is reused if only settings differ that no trial depends on."""
    draft = planned(request())
    before = replace(draft.revision, number=1, **changes)
    function = replace(draft.function, revision=1)
    found = profile(bundle=before.bundle, **profile_changes)
    known = Deployed(function, before, found)

    expected = known if is_known else None
    assert verified_before(draft, Catalog([known]), "cpu") == expected


AUTO = 'schema = 1\n[optimise]\nprecision = "auto"\n'


def test_a_trial_makes_candidates_where_they_are_wanted() -> None:
    """The settings go to the trial, not to what serves; fp32 makes no candidates."""
    draft = planned(request(manifest=AUTO))
    plain = planned(request(manifest="schema = 1\n[optimise]\ntolerance = 0.02\n"))

    specs = [one.trial_spec(prepare=True) for one in (draft, plain, planned(request()))]

    assert [one.optimise for one in specs] == [Optimisation("auto", 0.01), None, None]


@pytest.mark.parametrize(
    ("local", "manifest", "is_refused"),
    [
        ({"cpu_slots": 2}, "", False),
        ({"cpu_slots": 2}, '[device]\nkind = "cuda"\n', True),
        ({"cpu_slots": 2}, '[device]\nhost = {zone = "b"}\n', True),
        ({"cpu_slots": 2}, '[device]\nhost = {zone = "a"}\n', False),
        ({"gpus": 1}, "", False),
        ({}, "", True),
    ],
)
def test_candidates_are_made_on_the_servers_machine(
    local: Any, manifest: str, is_refused: bool
) -> None:
    """A trial with candidates that no device of this machine can run is refused, not left to wait;
    without candidates it runs anywhere."""
    hosts = [
        HostView("far", labels={"zone": "b"}, cpu_slots=4, gpus=4),
        HostView("local", labels={"zone": "a"}, **local),
    ]
    check_trial(planned(request(manifest=f"schema = 1\n{manifest}")), hosts)
    draft = planned(request(manifest=f"{AUTO}{manifest}"))
    if not is_refused:
        check_trial(draft, hosts)
        return
    with pytest.raises(Refused, match=r"optimise\.precision: expected fp32, got auto"):
        check_trial(draft, hosts)


def test_a_report_becomes_a_profile() -> None:
    """The report becomes a profile, with bundle, engine and device kind."""
    draft = planned(request())

    profile = profile_from_report(REPORT, draft)

    assert (profile.bundle, profile.engine, profile.device_kind) == (
        draft.bundle.digest,
        "onnx",
        "cpu",
    )
    assert (profile.latency_ms, profile.batch_max) == ({1: 1.0, 8: 2.0}, 8)
    assert signature_from_report(REPORT) == SIGNATURE


@pytest.mark.parametrize(
    "changes", [{"load_ms": "long"}, {"latency_ms": {"one": 1}}, {"batch_max": None}]
)
def test_a_senseless_report_is_refused(changes: dict[str, Any]) -> None:
    """A report with values of wrong types is refused, since a replica is not trusted."""
    with pytest.raises(BadRequest, match="report is invalid"):
        profile_from_report({**REPORT, **changes}, planned(request()))


@pytest.mark.parametrize("signature", [None, {"kind": "guess"}, {"kind": "tensors"}])
def test_a_senseless_signature_is_refused(signature: Any) -> None:
    """A report without a usable signature is refused."""
    with pytest.raises(BadRequest, match="signature is invalid"):
        signature_from_report({**REPORT, "signature": signature})


def test_a_batch_is_bounded_whatever_the_report_says() -> None:
    """The batch size of a report is limited to 1 to 4096 rows."""
    sizes = [
        profile_from_report({**REPORT, "batch_max": size}, planned(request())).batch_max
        for size in (-5, 10**9)
    ]

    assert sizes == [1, 4096]


def profile_of(**changes: Any) -> Profile:
    return profile_from_report({**REPORT, **changes}, planned(request()))


def test_two_sessions_count_with_their_weights() -> None:
    """If a second session is built beside the first, the memory of both counts."""
    both = prepared(weights__bin=b"x" * 2**20)
    alone = replace(both, fast=None)

    assert profile_of(prepared=both).memory_mib == profile_of().memory_mib + 1
    assert profile_of(prepared=alone).memory_mib == profile_of().memory_mib
    assert profile_of(prepared=both).prepared == both


def test_an_optimised_field_of_the_replica_is_ignored() -> None:
    """Only the table and the file that this server has checked and stored are kept."""
    made = optimised()

    assert profile_of(optimised=made).optimised == made
    for said in ({"table": made.table, "model": "model.onnx", "file": None}, [], None):
        assert profile_of(optimised=said).optimised is None


def test_a_prepared_field_of_the_replica_is_ignored() -> None:
    """A `prepared` field written by the replica is ignored."""
    assert profile_of(prepared={"files": []}).prepared is None
    assert profile_of(why_not_prepared="too small").why_not_prepared == "too small"


SERVED = Plan(function("web"), server_revision(api=ModelApi()), EMPTY)
LEARNT = golden(golden_plan(SERVED.revision))


def test_a_golden_sample_is_kept_with_its_device() -> None:
    """The server says which type it was, not the replica."""
    said = {"golden": golden_to_json(LEARNT.sample), "device_type": LEARNT.device}

    assert profile_from_report({**REPORT, **said}, SERVED).golden == LEARNT


@pytest.mark.parametrize(
    ("said", "why_not"),
    [({"no_golden": "too slow"}, "too slow"), ({}, "the trial's report has none")],
)
def test_a_missing_golden_sample_has_a_reason(said: dict[str, Any], why_not: str) -> None:
    """Where one was wanted."""
    profile = profile_from_report({**REPORT, **said}, SERVED)

    assert (profile.golden, profile.why_not_golden) == (None, why_not)
    assert profile_from_report({**REPORT, **said}, planned(request())).why_not_golden == ""


@pytest.mark.parametrize(
    "said",
    [
        {"golden": []},
        {"golden": {}},
        {"golden": golden_to_json(LEARNT.sample) | {"rule": "guess"}},
        {"golden": golden_to_json(LEARNT.sample) | {"answer": {}}},
    ],
)
def test_a_senseless_golden_sample_is_refused(said: dict[str, Any]) -> None:
    """A replica is not trusted; nor is one that nobody wanted taken."""
    placed = {**REPORT, "device_type": LEARNT.device}
    with pytest.raises(BadRequest, match="report is invalid"):
        profile_from_report({**placed, **said}, SERVED)
    with pytest.raises(BadRequest, match="report is invalid"):
        profile_from_report({**placed, "golden": golden_to_json(LEARNT.sample)}, planned(request()))


@pytest.mark.parametrize(
    ("known", "is_known"),
    [({}, False), ({"golden": LEARNT}, True), ({"why_not_golden": "too slow"}, True)],
)
def test_a_trial_is_repeated_for_a_golden_sample(known: dict[str, Any], *, is_known: bool) -> None:
    """Once: earlier releases learnt none."""
    tried = Deployed(SERVED.function, SERVED.revision, server_profile(SERVED.revision, **known))
    catalog = Catalog()
    catalog.put(tried)

    assert (verified_before(SERVED, catalog, "cpu") is not None) is is_known


PARK = ParkSettings("", EngineCall("/s"), EngineCall("/w"))
PARKED = Plan(function("web"), server_revision(api=ModelApi(), park=PARK), EMPTY)
SHOWN = ParkProfile(True, "", 3.1, 2.2, 0.1, 16_000.0, 1100.0)


def test_what_a_park_has_shown_is_kept() -> None:
    """The manager says it; of a function without the table nothing is kept."""
    said = {**REPORT, "no_golden": "", "park": SHOWN}

    assert profile_from_report(said, PARKED).park == SHOWN
    assert profile_from_report(said, SERVED).park is None


@pytest.mark.parametrize("said", [{}, {"park": None}, {"park": asdict(SHOWN)}])
def test_a_park_that_a_replica_reports_is_refused(said: dict[str, Any]) -> None:
    """A replica's report is JSON, and is not trusted."""
    with pytest.raises(BadRequest, match="expected what the trial's park has shown"):
        profile_from_report({**REPORT, **said}, PARKED)


@pytest.mark.parametrize(
    ("known", "changes", "is_known"),
    [
        ({}, {}, False),
        ({"park": SHOWN}, {}, True),
        ({"park": ParkProfile(False, "it hangs")}, {}, True),
        ({"park": SHOWN}, {"park_s": 60.0}, True),
        ({"park": SHOWN}, {"wake": EngineCall("/other")}, False),
    ],
)
def test_a_trial_is_repeated_for_a_park(
    known: dict[str, Any], changes: dict[str, Any], *, is_known: bool
) -> None:
    """Once, and for other calls; not for another length of parks."""
    plan = replace(PARKED, revision=server_revision(api=ModelApi(), park=replace(PARK, **changes)))
    learnt = {"why_not_golden": "too slow", **known}
    catalog = Catalog()
    tried = Deployed(PARKED.function, PARKED.revision, server_profile(PARKED.revision, **learnt))
    catalog.put(tried)

    assert (verified_before(plan, catalog, "cpu") is not None) is is_known
