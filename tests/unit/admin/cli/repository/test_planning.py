"""Plans of a repository's deploys: layout, tensors, names, function.toml."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from admin.cli.repository.layout import VERSIONS_MAX, models_of, shape_of
from admin.cli.repository.planning import ModelPlan, plan_model, with_collisions, with_deployed
from registry.errors import BadBundle
from registry.manifest import Manifest, parse_manifest
from registry.model.revisions import Batching
from tests.support import models
from tests.support.repositories import put_version

X = 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }\n'
Y = 'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }\n'


def manifest(plan: ModelPlan, at: int = 0) -> Manifest:
    """Return the function.toml of one of the plan's versions, read as the server does."""
    collected = plan.versions[at].collected
    return parse_manifest(collected.manifest, [file.path for file in collected.bundle.files])


def said(plan: ModelPlan) -> str:
    """Return everything that is said about a model."""
    return "\n".join(plan.lines())


def test_a_model_without_a_configuration_has_all_defaults(tmp_path: Path) -> None:
    """Its folder gives both names, its version's folder the version."""
    plan = plan_model(put_version(tmp_path, "Add_One.v2", 7))
    assert (plan.model, plan.name, plan.is_derived, plan.lines()) == (
        "Add_One.v2",
        "add-one-v2",
        True,
        [],
    )
    found = manifest(plan)
    assert (found.oip_name, found.oip_version, found.model) == ("Add_One.v2", "7", "model.onnx")
    assert (found.batching, found.scaling.max, found.device.kind) == (Batching(), 1, "any")


def test_a_configuration_becomes_a_function_toml(tmp_path: Path) -> None:
    """Batching, replicas, device, labels and sample have their keys there."""
    config = (
        f"max_batch_size: 8\n{X}"
        'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "l.txt" }\n'
        "dynamic_batching { max_queue_delay_microseconds: 1500 }\n"
        "instance_group { kind: KIND_CPU count: 3 }\n"
        'model_warmup { inputs { key: "x"'
        " value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }"
    )
    folder = put_version(tmp_path, "m", config=config)
    (folder / "l.txt").write_text('a\n"b"\nc\x7f😀\nd\n', "utf-8")
    plan = plan_model(folder)
    assert plan.lines() == []
    found = manifest(plan)
    assert found.batching == Batching(max_size=8, wait_ms=1.5)
    assert (found.scaling.max, found.device.kind) == (3, "cpu")
    assert (found.output.tensor, found.output.labels) == ("y", ("a", '"b"', "c\x7f😀", "d"))
    assert found.sample == {"x": [[0.0, 0.0, 0.0, 0.0]]}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("max_batch_size: 0", Batching(mode="off")),
        ("max_batch_size: 1", Batching(max_size=1)),
        ("dynamic_batching { max_queue_delay_microseconds: 2000 }", Batching(wait_ms=2.0)),
        ("dynamic_batching { }", Batching()),
    ],
)
def test_batching_is_that_of_the_configuration(
    tmp_path: Path, config: str, expected: Batching
) -> None:
    """Rows of 0 turn it off; without them the measured size holds."""
    plan = plan_model(put_version(tmp_path, "m", config=config))
    assert manifest(plan).batching == expected


@pytest.mark.parametrize(
    ("config", "make", "line"),
    [
        (
            'input { name: "z" data_type: TYPE_FP32 dims: [ 4 ] }',
            models.add_one,
            "m/config.pbtxt:1: input.z: refused: the model has the inputs 'x'",
        ),
        (
            'output { name: "z" data_type: TYPE_FP32 dims: [ 4 ] }',
            models.add_one,
            "output.z: refused: the model has the outputs 'y'",
        ),
        (
            'max_batch_size: 2 input { name: "a" data_type: TYPE_FP32 dims: [ 4 ] }',
            models.two_inputs,
            "input: refused: the model also takes 'b'",
        ),
        (
            'max_batch_size: 2 input { name: "x" data_type: TYPE_INT64 dims: [ 4 ] }',
            models.add_one,
            "input.x: refused: data_type is INT64, the model has FP32",
        ),
        (
            'max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: [ 5 ] }',
            models.add_one,
            "input.x: refused: dims are [-1, 5], with the axis of rows, the model has [-1, 4]",
        ),
        (
            'max_batch_size: 0\ninput { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }',
            models.add_one,
            "m/config.pbtxt:2: input.x: refused: dims are [4], the model has [-1, 4]",
        ),
        (
            "max_batch_size: 4",
            models.fixed_batch,
            "max_batch_size: refused: 4 needs a first axis of any length, and the model's 'x' has"
            " the shape [1, 4]; 0 deploys it as it is",
        ),
        ("name {", models.add_one, "m/config.pbtxt:1: refused: expected a field's name or '}'"),
        (
            'output { name: "y" data_type: TYPE_FP32 dims: -1 dims: 4 label_filename: "../l" }',
            models.add_one,
            "output.y.label_filename: refused: '../l' has the part '..'",
        ),
        (
            'output { name: "y" data_type: TYPE_FP32 dims: -1 dims: 4 label_filename: "/etc/a" }',
            models.add_one,
            "output.y.label_filename: refused: '/etc/a'",
        ),
        ('default_model_filename: "net.onnx"', models.add_one, "expected net.onnx in 1, got model"),
        ("version_policy { specific { versions: 3 } }", models.add_one, "there is no folder 3"),
    ],
)
def test_a_model_that_differs_is_refused_before_its_upload(
    tmp_path: Path, config: str, make: object, line: str
) -> None:
    """Both sides are named, as Triton would refuse to load the model."""
    plan = plan_model(put_version(tmp_path, "m", 1, make, config))  # type: ignore[arg-type]
    assert plan.is_refused
    assert plan.versions == ()
    assert line in said(plan)


@pytest.mark.parametrize(
    "config",
    [
        f"max_batch_size: 2 {X}{Y}",
        'max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }',
        'max_batch_size: 0 input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }',
        "max_batch_size: 4",
        'platform: "onnxruntime_onnx" backend: "onnxruntime" name: "m"',
        'input { name: "x" data_type: TYPE_FP32 dims: -1 dims: 4 reshape { shape: [ -1, 4 ] } }',
    ],
)
def test_a_model_that_fits_is_deployed_without_a_word(tmp_path: Path, config: str) -> None:
    """Dims may leave open what the model fixes."""
    plan = plan_model(put_version(tmp_path, "m", config=config))
    assert (plan.lines(), len(plan.versions)) == ([], 1)


def test_what_is_not_enforced_is_said(tmp_path: Path) -> None:
    """Outputs beyond the file's, and dims narrower than the model's."""
    config = 'max_batch_size: 2\noutput { name: "sum" data_type: TYPE_FP32 dims: 4 }'
    plan = plan_model(put_version(tmp_path, "m", 1, models.two_inputs, config))
    assert plan.lines() == [
        "m/config.pbtxt:2: output: ignored: answers also have 'difference', unless a request names"
        " some"
    ]
    narrow = 'input { name: "x" data_type: TYPE_STRING dims: 3 }'
    plan = plan_model(put_version(tmp_path, "s", 1, models.strings, narrow))
    assert plan.lines() == [
        "s/config.pbtxt:1: input.x: ignored: dims [3] are not enforced, the model takes [-1]"
    ]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", [12]),
        ("version_policy { latest { num_versions: 2 } }", [12, 2]),
        ("version_policy { all { } }", [12, 2, 1]),
        ("version_policy { specific { versions: [ 1, 2 ] } }", [2, 1]),
    ],
)
def test_the_policy_chooses_versions_and_the_highest_comes_first(
    tmp_path: Path, policy: str, expected: list[int]
) -> None:
    """Names that are no numbers are no versions, and leading zeros are said."""
    for version in (1, 2, 12, "012", "new", "2.0"):
        folder = put_version(tmp_path, "m", version, config=policy)
    plan = plan_model(folder)
    assert [one.version for one in plan.versions] == expected
    assert "the folder '012' is no version" in said(plan)
    assert ("not deployed by" in said(plan)) == (len(expected) < 3)


def test_what_holds_for_one_version_names_it(tmp_path: Path) -> None:
    """One damaged version refuses the model: Triton would serve the others, under the same name."""
    folder = put_version(tmp_path, "m", 1, config=f"version_policy {{ all {{ }} }}\n{X}")
    put_version(tmp_path, "m", 2, models.two_inputs)
    plan = plan_model(folder)
    assert plan.is_refused
    assert "input.x: refused: version 2: the model has the inputs 'a', 'b'" in said(plan)
    assert "version 1: dims are [4], the model has [-1, 4]" in said(plan)


def test_the_versions_of_a_model_are_bounded(tmp_path: Path) -> None:
    """A server keeps as many revisions, so that one more would push out another."""
    for version in range(1, VERSIONS_MAX + 2):
        folder = put_version(tmp_path, "m", version, config="version_policy { all { } }")
    assert f"expected at most {VERSIONS_MAX} versions, got 11" in said(plan_model(folder))


def test_other_files_are_told_by_what_they_are(tmp_path: Path) -> None:
    """A model of another framework has advice, an empty version its expected file."""
    (tmp_path / "pt" / "1").mkdir(parents=True)
    (tmp_path / "pt" / "1" / "model.pt").touch()
    (tmp_path / "none" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.onnx").write_bytes(b"\x80\x05pickle")
    assert "got model.pt; PyTorch keeps weights there" in said(plan_model(tmp_path / "pt"))
    assert "expected model.onnx in 1, got nothing" in said(plan_model(tmp_path / "none"))
    assert "is not an ONNX model: a pickle holds" in said(plan_model(tmp_path / "bad"))


def test_a_folder_holds_a_model_with_its_weights(tmp_path: Path) -> None:
    """As in Triton, model.onnx may be a folder; what lies beside the model goes with it."""
    inner = tmp_path / "m" / "1" / "model.onnx"
    inner.mkdir(parents=True)
    models.external(inner, 1).rename(inner / "model.onnx")
    plan = plan_model(tmp_path / "m")
    assert plan.lines() == []
    paths = [file.path for file in plan.versions[0].collected.bundle.files]
    assert paths == ["external.bin", "model.onnx"]


def test_a_link_in_a_version_is_followed(tmp_path: Path) -> None:
    """A model's file may lie elsewhere, as in caches of downloads."""
    folder = put_version(tmp_path, "m")
    (folder / "2").mkdir()
    (folder / "2" / "model.onnx").symlink_to(folder / "1" / "model.onnx")
    [version] = plan_model(folder).versions
    assert [file.path for file in version.collected.bundle.files] == ["model.onnx"]


def test_a_configuration_that_cannot_be_read_is_none_to_leave_out(tmp_path: Path) -> None:
    """A link to nothing, a folder, or bytes that are no text: all defaults would be wrong."""
    folder = put_version(tmp_path, "m")
    file = folder / "config.pbtxt"
    file.symlink_to(tmp_path / "gone")
    assert "m: refused: expected a file config.pbtxt, got something else" in said(
        plan_model(folder)
    )
    file.unlink()
    file.mkdir()
    assert "expected a file config.pbtxt" in said(plan_model(folder))
    file.rmdir()
    file.write_bytes(b"name: \xff")
    assert "m: refused: expected UTF-8 text, got other bytes at 6" in said(plan_model(folder))


def test_a_name_that_gives_no_functions_name_is_told(tmp_path: Path) -> None:
    """--name helps for the folder alone."""
    folder = put_version(tmp_path, "3d net")
    assert "cannot derive a name from '3d net.onnx'" in said(plan_model(folder))
    assert "expected a folder's name of 1 to 255 characters" in said(plan_model(folder, "net"))
    plan = plan_model(put_version(tmp_path, "2d"), "net")
    assert (plan.name, plan.is_derived, plan.is_refused) == ("net", False, False)


def test_models_with_one_functions_name_are_all_refused(tmp_path: Path) -> None:
    """None has a better right to it; the others are deployed."""
    names = ("a.b", "a_b", "c")
    plans = with_collisions([plan_model(put_version(tmp_path, name)) for name in names])
    assert [one.is_refused for one in plans] == [True, True, False]
    assert "its function would be a-b, as that of a_b: deploy its folder alone" in said(plans[0])


def test_a_deployed_model_keeps_its_function(tmp_path: Path) -> None:
    """Also one that was first deployed with --name; another function is not touched."""
    plan = plan_model(put_version(tmp_path, "a_b"))
    assert with_deployed(plan, {}) == plan
    assert with_deployed(plan, {"a-b": "a_b", "c": ""}) == plan
    moved = with_deployed(plan, {"own": "a_b"})
    assert (moved.name, moved.versions[0].collected.name) == ("own", "own")
    assert "would be a-b, which is another's" in said(with_deployed(plan, {"a-b": ""}))
    named = plan_model(tmp_path / "a_b", "mine")
    assert "belongs to the function own: --name own" in said(with_deployed(named, {"own": "a_b"}))
    assert not with_deployed(named, {"mine": "a_b"}).is_refused


def test_a_folder_is_a_repository_by_what_is_in_it(tmp_path: Path) -> None:
    """A function's folder is none, and neither is one without models."""
    put_version(tmp_path / "repository", "m")
    (tmp_path / "repository" / "docs").mkdir()
    (tmp_path / "repository" / ".git" / "1").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    put_version(tmp_path, "function")
    (tmp_path / "function" / "function.toml").touch()
    expected = {"repository": "repository", "repository/m": "model", "empty": "", "function": ""}
    assert {name: shape_of(tmp_path / name) for name in expected} == expected
    found, others = models_of(tmp_path / "repository")
    assert ([one.name for one in found], others) == (["m"], ["docs"])
    with pytest.raises(BadBundle, match="cannot be read"):
        models_of(tmp_path / "nothing")


def test_a_plan_is_the_same_each_time(tmp_path: Path) -> None:
    """A second run finds the same files and the same function.toml."""
    config = (
        f"max_batch_size: 8\n{X}{Y}"
        'model_warmup { inputs { key: "x"'
        " value { data_type: TYPE_FP32 dims: 4 random_data: true } } }"
    )
    folder = put_version(tmp_path, "m", config=config)
    assert plan_model(folder) == plan_model(folder)


def test_a_default_of_an_input_is_no_input(tmp_path: Path) -> None:
    """Older exporters list weights among the inputs."""
    folder = put_version(tmp_path, "m", config=f"max_batch_size: 2\n{X}{Y}")
    path = folder / "1" / "model.onnx"
    model = onnx.load(path)
    weight = onnx.numpy_helper.from_array(onnx.numpy_helper.np.ones((4,), "float32"), "w")
    model.graph.initializer.append(weight)
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [4]))
    onnx.save(model, path)
    assert plan_model(folder).lines() == []
