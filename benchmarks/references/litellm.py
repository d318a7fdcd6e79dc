"""LiteLLM's proxy: the usual way to put one base URL in front of several models.

It gets a virtual environment of its own, because it pins versions of packages that fngate uses.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ENVIRONMENT = Path(tempfile.gettempdir()) / f"fngate-benchmark-litellm-{os.getuid()}"
PACKAGE = "litellm[proxy]"
KEY = "sk-benchmark"
INSTALL_S = 900
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
    path = ENVIRONMENT / "bin" / "litellm"
    if path.exists():
        return path
    pip = [str(ENVIRONMENT / "bin" / "pip"), "install", "--quiet", PACKAGE]
    for words in ([sys.executable, "-m", "venv", str(ENVIRONMENT)], pip):
        try:
            subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=True)
        except (subprocess.SubprocessError, OSError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
            raise RuntimeError(f"it cannot be installed: {' '.join(said)[:200]}") from None
    return path


def command(folder: Path, port: int, upstream: int, model: str) -> list[str]:
    """Write the configuration; return the command. Raises RuntimeError without LiteLLM."""
    path = program()
    file = folder / "litellm.yaml"
    file.write_text(CONFIGURATION.format(model=model, upstream=upstream, key=KEY))
    words = ["--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    return [str(path), *words, "--num_workers", "1"]
