"""A ready-made function run as in its replica, without the replica process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from registry.manifest import Manifest, parse_manifest
from runtime_image.codecs.answer import encode, served_model
from runtime_image.codecs.arrays import to_arrays
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract.control import Report
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.verification.trial import analyse, examine


class ReadyMade:
    """The function in `folder`: manifest, model and the product's own codecs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: Manifest = parse_manifest(
            (folder / "function.toml").read_text(),
            [str(path.relative_to(folder)) for path in folder.rglob("*")],
        )
        self.engine = OnnxEngine(folder / self.manifest.model, device_kind="cpu", threads=1)

    def tensors(self, body: bytes, content_type: str) -> dict[str, Any]:
        """Return a body's decoded input tensors."""
        parsed = parse(RequestHead(content_type), body, self.engine.signature, self.manifest.inputs)
        return to_arrays(parsed, self.engine.signature, self.manifest.inputs)

    def call(self, body: bytes, content_type: str) -> dict[str, Any]:
        """Return the short JSON answer to a body."""
        parsed = parse(RequestHead(content_type), body, self.engine.signature, self.manifest.inputs)
        inputs = to_arrays(parsed, self.engine.signature, self.manifest.inputs)
        outputs = self.engine.run(inputs, self.engine.ticket())
        rule, signature = self.manifest.output, self.engine.signature
        answer = encode(
            outputs, parsed.answer, signature, rule, served_model("ready-made@1"), parsed.id
        )
        shown: dict[str, Any] = json.loads(answer.body)
        return shown

    def best(self, body: bytes, content_type: str) -> str:
        """Return the top label of the answer to a body."""
        return str(self.call(body, content_type)["top"][0][0]["label"])

    def report(self) -> Report:
        """Return the report of a deploy's trial."""
        spec = ModelSpec(
            f"{self.manifest.name}@1",
            model=self.manifest.model,
            inputs=self.manifest.inputs,
            output=self.manifest.output,
            sample=self.manifest.sample,
        )
        return examine(self.engine, spec, self.folder, 1.0, analyse(spec, self.folder))
