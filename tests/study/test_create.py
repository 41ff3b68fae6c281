"""Commands that load a study file: they get its configuration, or open its study elsewhere."""

from __future__ import annotations

import threading
from pathlib import Path

import dasktune as dt
from dasktune.study.create import config_of, open_in, opening_with
from dasktune.study.study import Study, UnopenedStudy


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
