from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from admin.cli.main import app


def complaint(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", *words], env={"COLUMNS": "200"})
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--driver", "podman"), "podman"),
        (("--port", "70000"), "--port"),
        (("--cpu-slots", "0"), "--cpu-slots"),
        (("--log-format", "xml"), "xml"),
    ],
)
def test_an_impossible_option_is_wrong_usage(words: tuple[str, ...], text: str) -> None:
    """An invalid option is wrong usage before anything starts."""
    code, shown = complaint(*words)

    assert code == 2
    assert text in shown


def test_an_impossible_setting_is_wrong_usage(tmp_path: Path) -> None:
    """An invalid setting is wrong usage and named by its key."""
    (tmp_path / "c.toml").write_text("driver = 7")

    code, shown = complaint("--config", str(tmp_path / "c.toml"))

    assert code == 2
    assert "setting driver" in shown


def test_options_reach_the_settings_by_their_names(tmp_path: Path) -> None:
    """Every option is a setting: an impossible idle time is refused under its key."""
    words = ("--public-host", "a", "--listen", "127.0.0.1", "--data", str(tmp_path))

    code, shown = complaint(*words, "--log-format", "json", "--idle", "-1")

    assert code == 2
    assert "setting idle_s" in shown


def test_a_missing_config_is_wrong_usage(tmp_path: Path) -> None:
    """A missing configuration file is wrong usage and named by its path."""
    code, shown = complaint("--config", str(tmp_path / "none.toml"))

    assert code == 2
    assert "none.toml" in shown
