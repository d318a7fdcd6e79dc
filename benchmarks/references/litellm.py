"""LiteLLM's proxy: the usual way to put one base URL in front of several models.

It gets a virtual environment of its own, because it pins versions of packages that fngate uses.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.references import environments

ENVIRONMENT = environments.environment("litellm")
PACKAGE = "litellm[proxy]"
KEY = "sk-benchmark"
CONFIGURATION = """
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: http://127.0.0.1:{upstream}/v1
      api_key: none
litellm_settings:
  telemetry: false
  request_timeout: 600
general_settings:
  master_key: {key}
"""


def program() -> Path:
    """Return the path of LiteLLM's proxy, installed if it is missing.

    Raises RuntimeError if it cannot be installed.
    """
    return environments.program(ENVIRONMENT, "litellm", [PACKAGE], sys.executable)


def command(folder: Path, port: int, upstream: int, model: str) -> list[str]:
    """Write the configuration; return the command. Raises RuntimeError without LiteLLM."""
    path = program()
    file = folder / "litellm.yaml"
    file.write_text(CONFIGURATION.format(model=model, upstream=upstream, key=KEY))
    words = ["--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    return [str(path), *words, "--num_workers", "1"]
