"""A model of MLServer that runs a session of ONNX Runtime; MLServer imports this file."""

from __future__ import annotations

import onnxruntime as ort
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Session(MLModel):
    """The session of the file in `parameters.uri`, with one thread."""

    async def load(self) -> bool:
        """MLServer's callback: make the session."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        uri, providers = self.settings.parameters.uri, ["CPUExecutionProvider"]
        self._session = ort.InferenceSession(uri, options, providers=providers)
        self._outputs = [node.name for node in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """MLServer's callback: run one request. Runs block the event loop, which is the cheapest
        way for small models."""
        inputs = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        arrays = self._session.run(self._outputs, inputs)
        outputs = [
            NumpyCodec.encode_output(name, array)
            for name, array in zip(self._outputs, arrays, strict=True)
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)
