"""The folder of relative paths: which file counts as the study file."""

from __future__ import annotations

from pathlib import Path

from dasktune._study.folder import running_file, study_folder


def folder_within(file: Path, text: str) -> Path | None:
    """Return the folder that a file finds while it is run."""
    file.write_text(text)
    names = {"study_folder": study_folder}
    exec(compile(text, str(file), "exec"), names)
    return names["folder"]  # type: ignore[return-value]


def test_file_that_has_yet_to_define_its_tuner_counts(tmp_path: Path) -> None:
    text = "folder = study_folder()\ndef study(): ...\ndef tuner(): ...\n"
    assert folder_within(tmp_path / "net.py", text) == tmp_path


def test_file_with_a_study_and_no_tuner_does_not_count(tmp_path: Path) -> None:
    text = "def study():\n    return study_folder()\nfolder = study()\n"
    assert folder_within(tmp_path / "helpers.py", text) != tmp_path


def test_study_file_of_a_command_goes_first(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    text = "folder = study_folder()\ndef study(): ...\ndef tuner(): ...\n"
    with running_file(tmp_path / "net.py"):
        assert folder_within(tmp_path / "other" / "library.py", text) == tmp_path
