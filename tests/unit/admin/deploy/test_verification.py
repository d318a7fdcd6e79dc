"""What is verified of a draft before anything is switched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from admin.deploy.plan import Plan, WireDeploy, plan
from admin.deploy.verification import Verification
from registry.errors import BadBundle, ModelRefused
from tests.support import models
from tests.support.operator import Operator, operating


def drafted(operator: Operator, request: WireDeploy) -> Plan:
    """The draft of a deploy."""
    return plan("digits", request, operator.store.catalog, 0.0, 300.0)


async def test_files_must_be_here(tmp_path: Path) -> None:
    """A file that nobody uploaded is named by its hash."""
    async with operating(tmp_path) as operator:
        request = await operator.request()
        request.files[0].sha256 = "0" * 64

        with pytest.raises(BadBundle, match="1 files were not uploaded, first 0000"):
            Verification(operator.store, operator.manager).check_files(drafted(operator, request))


async def test_what_is_no_onnx_file_needs_no_replica(tmp_path: Path) -> None:
    """The parser's reason comes at once."""
    async with operating(tmp_path) as operator:
        request = await operator.request({"m.onnx": b"not a model"})

        with pytest.raises(ModelRefused, match=r"m\.onnx is not an ONNX model"):
            Verification(operator.store, operator.manager).check_files(drafted(operator, request))
        assert operator.manager.replicas() == []


async def test_data_outside_the_bundle_is_refused(tmp_path: Path) -> None:
    """A model whose weights lie in a file that was not deployed is refused by that file's name."""
    async with operating(tmp_path) as operator:
        model = models.external(tmp_path, 1)
        request = await operator.request({"m.onnx": model.read_bytes()})

        with pytest.raises(BadBundle, match=r"external\.bin"):
            Verification(operator.store, operator.manager).check_files(drafted(operator, request))


async def test_the_same_is_not_verified_twice(tmp_path: Path) -> None:
    """A known bundle is not loaded again for a setting that no trial looks at."""
    async with operating(tmp_path) as operator:
        done = await operator.deploy("digits")
        assert done.state == "done"
        draft = drafted(operator, await operator.request())
        off = replace(draft.revision.batching, mode="off")
        draft = replace(draft, revision=replace(draft.revision, batching=off))

        verified = await Verification(operator.store, operator.manager).verify(draft, "again")

        assert verified.profile == operator.store.catalog.resolve("digits").profile
        assert operator.manager.decisions("default/digits@trial-again") == []
