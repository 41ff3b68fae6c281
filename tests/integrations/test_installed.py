"""The message about a missing framework, and the pins of all frameworks of the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.integrations.installed import framework, refuse_missing
from tests.test_packaging import missing_pins


def test_a_missing_framework_names_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    message = r"xgboost must be installed: pip install 'dasktune\[xgboost\]'"
    with pytest.raises(ConfigurationError, match=message):
        framework("xgboost", extra="xgboost")


def test_a_missing_logger_names_its_install_line() -> None:
    message = r"no_such_logger must be installed: pip install 'dasktune\[mlflow\]'"
    with pytest.raises(ConfigurationError, match=message):
        refuse_missing("no_such_logger", extra="mlflow")


def test_a_framework_that_lacks_a_part_itself_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_framework.py").write_text("import no_such_part")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_part"):
        framework("broken_framework", extra="xgboost")


def test_an_unknown_integration_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="has no 'xgbost'; it has "):
        _ = dt.integrations.xgbost


@pytest.mark.framework("xgboost", "lightgbm", "sklearn", "jax", "flax", "optax")
def test_all_that_the_frameworks_need_is_pinned() -> None:
    assert missing_pins("test-integrations") == set()
