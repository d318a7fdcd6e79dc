"""A Ray Serve application that loads digits.onnx and scales to zero; run by the interpreter of Ray.

    RAY_PYTHON benchmarks/references/ray_app.py MODEL PORT

Prints "ready" once it serves. Answers each line of its standard input with "cold", as soon as it
has no replica. Ends with its standard input.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import ray
from ray import serve

POLL_S = 0.1


@serve.deployment(
    ray_actor_options={"num_cpus": 1},
    autoscaling_config={
        "min_replicas": 0,
        "initial_replicas": 0,
        "max_replicas": 1,
        "target_ongoing_requests": 1,
        "upscale_delay_s": 0,
        "downscale_delay_s": 0.5,
        "downscale_to_zero_delay_s": 0.5,
        "metrics_interval_s": 0.1,
        "look_back_period_s": 0.2,
    },
)
class Digits:
    """The model behind HTTP: the fastest settings for a cold call that Ray Serve 2.60 takes."""

    def __init__(self, path: str) -> None:
        import numpy as np
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._array = np.array
        self._float = np.float32
        self._session = ort.InferenceSession(path, options)

    async def __call__(self, request: Any) -> dict[str, int]:
        """Return the label of the picture in the body."""
        image = self._array((await request.json())["inputs"]["image"], dtype=self._float)
        return {"label": int(self._session.run(["label"], {"image": image})[0][0])}


def replicas() -> int:
    """Return the number of replicas in any state."""
    applications = serve.status().applications.values()
    return sum(sum(d.replica_states.values()) for a in applications for d in a.deployments.values())


def main(model: str, port: int) -> None:
    """Serve until standard input ends."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Digits.bind(model), name="digits", route_prefix="/")
    print("ready", flush=True)
    for _ in sys.stdin:
        while replicas():
            time.sleep(POLL_S)
        print("cold", flush=True)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
