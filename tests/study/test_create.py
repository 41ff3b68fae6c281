"""Commands that load a study file: they get its configuration, or open its study elsewhere."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune._study.create import config_of, open_in, opening_with
from dasktune._study.study import Study, UnopenedStudy
from dasktune.errors import ConfigurationError


def make(folder: Path, name: str = "file") -> Study:
    """Create a study as a study file does."""
    return dt.create_study(None, name=name, storage=folder, metric="loss")


def test_config_of_a_study_file_opens_nothing(tmp_path: Path) -> None:
    config = config_of(lambda: make(tmp_path / "store"))
    assert config is not None
    assert (config.name, list(tmp_path.iterdir())) == ("file", [])


def test_opened_elsewhere_keeps_out_of_its_own_folder(tmp_path: Path) -> None:
    with opening_with(open_in(tmp_path / "scratch")):
        make(tmp_path / "store").close()
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]
    make(tmp_path / "store").close()
    assert (tmp_path / "store").is_dir()


def test_studies_of_other_threads_are_opened_as_usual(tmp_path: Path) -> None:
    others: list[Study] = []

    def file() -> Study:
        other = threading.Thread(target=lambda: others.append(make(tmp_path, "other")))
        other.start()
        other.join()
        return make(tmp_path / "store")

    config = config_of(file)
    assert config is not None
    assert config.name == "file"
    assert not isinstance(others[0], UnopenedStudy)
    assert others[0].database.study("other") is not None
    others[0].close()


# ------------------------------------------------------------------------------ directions


def opened(folder: Path, metric: object, direction: object = None, **options: Any) -> str:
    """Return the directions of a study in words."""
    study: Any = dt.create_study(
        None, name="x", storage=folder, metric=metric, direction=direction, **options
    )
    study.close()
    return " ".join(each.value for each in study.objective.directions)


@pytest.mark.parametrize(
    "name", ["loss", "val_loss", "valLoss", "MSELoss", "val/loss", "mean_squared_error", "Error"]
)
def test_a_loss_or_an_error_is_minimized_and_said(tmp_path, caplog, name):
    with caplog.at_level("INFO", logger="dasktune"):
        assert opened(tmp_path, name) == "minimize"
    assert f"{name} is to be minimized, as its name says" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", logger="dasktune"):
        assert opened(tmp_path / "given", name, "maximize") == "maximize"
    assert "as its name says" not in caplog.text


@pytest.mark.parametrize(
    "name",
    ["accuracy", "lossless", "mirror", "neg_loss", "negMeanSquaredError", "-loss", "1-error"],
)
def test_other_metrics_need_a_direction(tmp_path, name):
    with pytest.raises(ConfigurationError) as error:
        opened(tmp_path / "store", name)
    assert str(error.value) == (
        f"direction must be 'maximize' or 'minimize' for the metric {name!r}, got none: it is "
        "known by itself only for a loss or an error"
    )
    assert list(tmp_path.iterdir()) == []


def test_several_metrics_need_a_direction_if_one_is_in_doubt(tmp_path):
    assert opened(tmp_path, ["loss", "error"]) == "minimize minimize"
    with pytest.raises(ConfigurationError, match=r"one for each metric of \['loss', 'accuracy'\]"):
        opened(tmp_path / "other", ["loss", "accuracy"])


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_an_existing_study_keeps_its_direction(tmp_path, metric):
    again = {"load_if_exists": True}
    assert opened(tmp_path, metric, "maximize") == "maximize"
    assert opened(tmp_path, metric, **again) == "maximize"
    with pytest.raises(ConfigurationError, match="was created with direction 'maximize', got"):
        opened(tmp_path, metric, "minimize", **again)


def test_a_new_study_that_might_exist_needs_a_direction(tmp_path):
    with pytest.raises(ConfigurationError, match="direction must be 'maximize' or 'minimize'"):
        opened(tmp_path, "accuracy", load_if_exists=True)
    with opening_with(open_in(tmp_path / "scratch")):
        assert opened(tmp_path, "accuracy", load_if_exists=True) == "minimize"
