"""Replica records and bind requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.core.commands import Assign, Launch
from pool_manager.ports import Binding, ServerContainer
from pool_manager.replicas import records
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from registry.model.bundles import Bundle, BundleFile
from runtime_image.contract import model as models
from runtime_image.contract import server as servers
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.link import VERSION
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.precision import Optimisation
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.server import ServerSpec

SPEC = ModelSpec("digits@1", "onnx", "digits.onnx", "")
BINDING = Binding(SPEC, Bundle("d", ()), "default", "digits", 1, 0)
LAUNCH = Launch("0a", "", (), "standby", {})
ASSIGN = Assign("0a", "default/digits@1", ("cpu:0",), "serve", {"place": 1.5})


def standby(tmp_path: Path) -> ReplicaRecord:
    return records.unbound(LAUNCH, "cpu", pool_settings(tmp_path), 100.0)


def pool_settings(tmp_path: Path, **changes: Any) -> PoolSettings:
    folders = tmp_path / "run", tmp_path / "models", tmp_path / "logs"
    return PoolSettings(*folders, orphan_s=7.0, **changes)


def test_a_standby_is_bound_to_nothing(tmp_path: Path) -> None:
    """A standby's record has a token, no pool, no device and no cap."""
    record = standby(tmp_path)

    assert (record.role, record.bound, record.devices, record.memory_mib) == ("standby", "", (), 0)
    assert (record.orphan_s, record.launched_s, record.engine) == (7.0, 100.0, "onnx")
    assert record.model_dir == ""
    assert record.link == VERSION
    assert len(record.token) == 64
    assert record.token != standby(tmp_path).token


def test_a_bound_record_names_its_pool_and_device(tmp_path: Path) -> None:
    """A bound record keeps the identity of the process and adds its pool and device."""
    record = records.bound(standby(tmp_path), ASSIGN, BINDING, "cpu", 512)

    assert (record.id, record.role, record.bound, record.devices) == (
        "0a",
        "serve",
        "default/digits@1",
        ("cpu:0",),
    )
    assert (record.memory_mib, record.phases) == (512, {"place": 1.5})


def test_a_replica_is_told_all_of_it(tmp_path: Path) -> None:
    """The bind request contains model, device, limits and the phases so far."""
    record = records.bound(standby(tmp_path), ASSIGN, BINDING, "cpu", 512)

    told = records.bind_request(record, SPEC, 101.5)

    assert models.from_json(told["spec"]) == SPEC
    assert told["bound"] == "default/digits@1"
    assert (told["devices"], told["memory_mib"], told["assigned_s"]) == (["cpu:0"], 512, 101.5)
    assert "files" not in told


def test_a_replica_that_fetches_is_told_its_files(tmp_path: Path) -> None:
    """One whose files are placed in its model folder is told none."""
    record = records.bound(standby(tmp_path), ASSIGN, BINDING, "cpu", 512)
    file: FetchedFile = {"path": "model.onnx", "size": 3, "sha256": "ab" * 32}

    assert records.bind_request(record, SPEC, 101.5, files=[file])["files"] == [file]


@pytest.mark.parametrize(("devices", "device"), [(("g1",), "g1"), ((), "")])
def test_a_replica_of_link_9_is_told_one_device(
    tmp_path: Path, devices: tuple[str, ...], device: str
) -> None:
    """Such a replica, which an earlier server started, reads `device`; others get none."""
    record = replace(records.bound(standby(tmp_path), ASSIGN, BINDING, "cpu", 512), devices=devices)

    assert "device" not in records.bind_request(record, SPEC, 0.0)
    assert records.bind_request(replace(record, link=9), SPEC, 0.0)["device"] == device


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"load": 300.0}, {"bind": 1700.0, "load": 300.0}),
        ({"fetch": 1500.0, "load": 300.0}, {"bind": 200.0, "fetch": 1500.0, "load": 300.0}),
        ({"fetch": 9e9, "load": 300.0}, {"bind": 0.0, "fetch": 1700.0, "load": 300.0}),
        ({"fetch": 9e9, "load": 9e9}, {"bind": 0.0, "fetch": 0.0, "load": 2000.0}),
        ({}, {"bind": 2000.0, "load": 0.0}),
    ],
)
def test_phases_of_a_load_elsewhere_are_what_passed_here(
    tmp_path: Path, stated: dict[str, float], expected: dict[str, float]
) -> None:
    """Whatever the replica says: its durations count as far as there was time for them."""
    record = replace(standby(tmp_path), phases={"place": 1.5})
    assert records.load_phases(record, stated, 100.0, 102.0) == {"place": 1.5, **expected}


def test_nobody_is_told_of_no_model(tmp_path: Path) -> None:
    """A standby without a binding has no bind request."""
    with pytest.raises(AssertionError):
        records.bind_request(standby(tmp_path), SPEC, 0.0)


@pytest.mark.parametrize(
    ("own", "default", "caps_all", "expected"),
    [
        (512, 64, True, 512),
        (0, 64, True, 64),
        (0, 0, False, 0),
    ],
)
def test_a_cap_that_was_named_holds(
    tmp_path: Path, own: int, default: int, caps_all: bool, expected: int
) -> None:
    """The cap is the function's, else the server's default, else none unless every replica needs
    one."""
    settings = pool_settings(tmp_path, memory_mib=default, caps_all=caps_all)

    assert records.cap_mib(replace(BINDING, memory_mib=own), settings, "cpu") == expected


@pytest.mark.parametrize(
    ("kind", "bundle_mib", "measured_mib", "expected"),
    [("cpu", 100, 0, 1424), ("cpu", 1, 500, 2024), ("cuda", 1, 500, 9192)],
)
def test_a_cap_by_size(
    tmp_path: Path, kind: str, bundle_mib: int, measured_mib: float, expected: int
) -> None:
    """Without a configured cap, the cap is four times the bundle or twice the measurement,
    whichever is larger, plus 1 GiB, or 8 GiB for CUDA."""
    bundle = Bundle("d", (BundleFile("model.onnx", bundle_mib * 2**20, "0" * 64),))
    binding = replace(BINDING, bundle=bundle, measured_mib=measured_mib)

    settings = pool_settings(tmp_path, caps_all=True)
    assert records.cap_mib(binding, settings, kind) == expected


def test_a_cap_has_room_for_a_process_on_each_gpu(tmp_path: Path) -> None:
    """Each of several GPUs has a process with CUDA's libraries, and its part of the model."""
    binding, settings = replace(BINDING, measured_mib=500), pool_settings(tmp_path, caps_all=True)

    assert records.cap_mib(binding, settings, "cuda", 4) == 4 * (2 * 500 + 8192)
    named = replace(binding, memory_mib=700)
    assert records.cap_mib(named, settings, "cuda", 4) == 700


def test_a_cap_has_room_for_candidates(tmp_path: Path) -> None:
    """Candidates of other precision are files in the memory of a container."""
    bundle = Bundle("d", (BundleFile("model.onnx", 100 * 2**20, "0" * 64),))
    spec = ModelSpec("digits@1", model="model.onnx", optimise=Optimisation("auto", 0.01))
    settings = pool_settings(tmp_path, caps_all=True)

    assert records.cap_mib(replace(BINDING, bundle=bundle, spec=spec), settings, "cpu") == 1824


def test_a_cap_has_room_for_files_in_memory(tmp_path: Path) -> None:
    """Folders that a server may write to are kept in its memory."""
    container = ServerContainer("sha256:1", writable={"/a": 30, "/b": 20}, shm_mib=5)
    settings = pool_settings(tmp_path, caps_all=True)

    without = records.cap_mib(BINDING, settings, "cpu")
    assert records.cap_mib(replace(BINDING, container=container), settings, "cpu") == without + 55


def test_a_cap_has_room_for_a_sleep(tmp_path: Path) -> None:
    """What the trial has measured of it is added to every cap; where there is none, none is
    made."""
    parked, caps_all = replace(BINDING, park_mib=1000.2), pool_settings(tmp_path, caps_all=True)

    without = records.cap_mib(BINDING, caps_all, "cuda")
    assert records.cap_mib(parked, caps_all, "cuda") == without + 1001
    named = replace(parked, memory_mib=700)
    assert records.cap_mib(named, caps_all, "cuda") == 1701
    assert records.cap_mib(parked, pool_settings(tmp_path, memory_mib=500), "cuda") == 1501
    assert records.cap_mib(parked, pool_settings(tmp_path), "cuda") == 0


@pytest.mark.parametrize(
    ("cap", "caps_all", "believed"), [(64, True, 64.0), (64, False, 900.0), (0, True, 900.0)]
)
def test_a_replica_is_believed_no_more_than_its_cap(
    tmp_path: Path, cap: int, caps_all: bool, believed: float
) -> None:
    """A replica's reported memory is limited to its cap, since it is denied to all others."""
    settings = replace(pool_settings(tmp_path), caps_all=caps_all)
    record = replace(standby(tmp_path), memory_mib=cap)
    said = events.Loaded("0a", 2, True, 900.0, {}, {"memory_mib": 900.0})

    event = records.within_cap(said, record, settings)

    assert (event.memory_mib, event.report["memory_mib"]) == (believed, believed)
    assert records.within_cap(said, None, settings) is said


def test_standing_in_line_is_a_part_of_finding_a_place() -> None:
    """The time in the start queue is added to `place` if a caller waited; a standby's start has no
    phase."""
    assert records.waited(ASSIGN, 0.5).phases == {"place": 501.5}
    assert records.waited(LAUNCH, 0.5) == LAUNCH


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("exited with code 0", ""),
        ("exited", ""),
        ("exited with code 3", "exited with code 3"),
        ("was killed by SIGSEGV", "was killed by SIGSEGV"),
        (
            "ran out of memory and was killed by SIGKILL",
            "was killed because it ran out of memory (its memory cap is 64 MiB)",
        ),
    ],
)
def test_callers_are_told_how_a_replica_died(tmp_path: Path, how: str, cause: str) -> None:
    """Callers get the cause of a death, with the cap if that was the reason; a regular exit has
    none."""
    assert records.cause_of(how, replace(standby(tmp_path), memory_mib=64)) == cause


@pytest.mark.parametrize(
    ("how", "model", "server"),
    [
        ("exited with code 0", False, False),
        ("exited with code 1", True, False),
        ("lost its server, which exited with code 127: a program was not found", True, False),
        ("was killed by SIGSEGV", True, True),
        ("lost its server, which was killed by SIGKILL", True, True),
    ],
)
def test_a_cap_may_be_the_reason_of_an_end(
    tmp_path: Path, how: str, *, model: bool, server: bool
) -> None:
    """Not of one that the replica chose; a server that exits has chosen it."""
    one = replace(standby(tmp_path), memory_mib=64)
    hint = " (its memory cap is 64 MiB)"

    assert records.exit_hint(how, one) == hint * model
    assert records.exit_hint(how, replace(one, engine=servers.ENGINE)) == hint * server
    assert records.exit_hint(how, None) == ""


@pytest.mark.parametrize(
    ("reason", "stage", "line", "expected"),
    [
        ("GET /: got 500: getaddrinfo EAI_AGAIN example.com", "sample", "", True),
        ("the server exited with code 1", "start", "OSError: Network is unreachable", True),
        ("lost its server, which exited with code 1", "", "curl: Could not resolve host: a", True),
        ("not ready within 9 s", "start", "dial tcp: lookup a: no such host", True),
        ("the server exited with code 1", "start", "KeyError: 'a'", False),
        ("was killed by SIGKILL", "", "telemetry: Name or service not known", False),
        ("exited with code 0", "", "telemetry: Name or service not known", False),
        ("control link lost: it closed", "", "telemetry: ENETUNREACH", False),
    ],
)
def test_the_lack_of_a_network_is_found_where_it_is_the_reason(
    reason: str, stage: str, line: str, *, expected: bool
) -> None:
    """Not in what a program printed that was ended from outside, or ended in order."""
    lost = events.Lost("a", reason, stage=stage)
    assert records.lacks_network(lost, ("before", line, "after")) == expected


def test_the_advice_depends_on_who_has_a_network() -> None:
    """A server by its setting; a handler has none in a container, where it can get none."""
    cut = replace(BINDING, spec=ServerSpec("w@1", ("a",)))
    with_network = replace(BINDING, spec=ServerSpec("w@1", ("a",), network="egress"))

    assert records.network_advice(cut, is_contained=False) == records.EGRESS_ADVICE
    assert records.network_advice(cut, is_contained=True) == records.EGRESS_ADVICE
    assert records.network_advice(with_network, is_contained=True) == ""
    assert records.network_advice(BINDING, is_contained=True) == records.HANDLER_ADVICE
    assert records.network_advice(BINDING, is_contained=False) == ""


SERVER = ServerSpec("web@2", ("serve", "--port", "${PORT}"), {"A": "b"}, samples=(SampleRequest(),))


def test_a_server_is_bound_as_such(tmp_path: Path) -> None:
    """The record of a sidecar names the engine, and BIND has the whole spec of its server."""
    binding = replace(BINDING, spec=SERVER)
    record = records.bound(standby(tmp_path), ASSIGN, binding, "cpu", 512)

    request = records.bind_request(record, SERVER, 101.0)

    assert record.engine == servers.ENGINE
    assert (request["memory_mib"], request["bound"]) == (512, "default/digits@1")
    assert servers.from_json(request["spec"]) == SERVER


def test_a_server_has_the_cap_of_a_replica(tmp_path: Path) -> None:
    """A server's memory cap is the function's, else the default, else follows from its trial if
    every replica needs one."""
    binding = replace(BINDING, spec=SERVER, measured_mib=100.0)

    named = replace(binding, memory_mib=300)

    assert records.cap_mib(named, pool_settings(tmp_path, memory_mib=700), "cpu") == 300
    assert records.cap_mib(binding, pool_settings(tmp_path, memory_mib=700), "cpu") == 700
    assert records.cap_mib(binding, pool_settings(tmp_path), "cpu") == 0
    caps_all = pool_settings(tmp_path, caps_all=True)
    assert records.cap_mib(binding, caps_all, "cpu") == 200 + records.SPARE_MIB["cpu"]


def test_secrets_are_variables_of_a_bind(tmp_path: Path) -> None:
    """Values by secret become values by variable; without any, BIND has no such key. What does not
    fit into a frame is refused without being quoted."""
    binding = replace(BINDING, spec=SERVER, secrets={"A": "hf", "B": "hf"})
    record = records.bound(standby(tmp_path), ASSIGN, binding, "cpu", 512)

    found = records.variables(binding, {"hf": "s3cret"})

    assert found == {"A": "s3cret", "B": "s3cret"}
    assert records.bind_request(record, SERVER, 101.0, found)["secrets"] == found
    assert "secrets" not in records.bind_request(record, SERVER, 101.0)
    with pytest.raises(DriverError, match=r"server\.secrets: expected at most") as refused:
        records.variables(binding, {"hf": "s3cret" * 40_000})
    assert "s3cret" not in refused.value.message
