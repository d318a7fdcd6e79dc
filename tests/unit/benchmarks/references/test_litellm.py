"""Tests of LiteLLM's proxy as a reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.references import litellm


def test_what_is_installed_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of an environment that exists is run in front of the upstream, with a key."""
    monkeypatch.setattr(litellm, "ENVIRONMENT", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "litellm").touch()

    words = litellm.command(tmp_path, 8001, 8002, "chat")

    assert words[0] == str(tmp_path / "bin" / "litellm")
    assert words[words.index("--port") + 1] == "8001"
    configuration = (tmp_path / "litellm.yaml").read_text()
    assert "api_base: http://127.0.0.1:8002/v1" in configuration
    assert f"master_key: {litellm.KEY}" in configuration


def test_an_installation_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the package there is one clear error, which leaves its row out."""
    monkeypatch.setattr(litellm, "ENVIRONMENT", tmp_path / "there")
    monkeypatch.setattr(litellm.sys, "executable", str(tmp_path / "no-python"))

    with pytest.raises(RuntimeError, match=r"it cannot be installed: .*no-python"):
        litellm.program()
