"""TensorBoard: runs are read back with its own reader (docs/loggers.md)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.integrations.tensorboard import TensorBoard
from tests.integrations.exact import single_thread
from tests.integrations.logged import CURVES, make, run
from tests.pages import python_blocks

pytestmark = [
    pytest.mark.framework("tensorboard"),
    pytest.mark.filterwarnings("ignore"),  # the port of a cluster beside it is taken
]

PAGE = Path(__file__).parents[2] / "docs" / "loggers.md"


def curves(folder: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the scalars of each run of a folder by name, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for path in sorted(folder.glob("*/trial-*")):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        read[path.name] = {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }
    return read


def texts(path: Path) -> list[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path)).Reload()
    return [event.tensor_proto.string_val[0].decode() for event in events.Tensors("trial")]


def test_runs_have_each_shared_step_once(tmp_path: Path) -> None:
    board = tmp_path / "board"
    run(make(tmp_path, loggers=[TensorBoard(board)]))
    assert curves(board) == CURVES
    (text,) = texts(board / "net" / "trial-0001")
    assert "- shared_until: 4\n- shared_with: 0\n" in text
    exported = tmp_path / "exported"
    study = make(tmp_path)
    for _ in range(2):
        TensorBoard(exported).export(study)
        assert curves(exported) == CURVES
    study.close()


def test_hyper_parameters_are_in_hparams(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    run(make(tmp_path, loggers=[TensorBoard(tmp_path / "board")]))
    events = EventAccumulator(str(tmp_path / "board" / "net" / "trial-0000")).Reload()
    tags = metadata.SESSION_START_INFO_TAG, metadata.SESSION_END_INFO_TAG
    start, end = (events.SummaryMetadata(tag).plugin_data.content for tag in tags)
    info = metadata.parse_session_start_info_plugin_data(start)
    assert info.hparams["lr"].number_value == 1.0
    assert metadata.parse_session_end_info_plugin_data(end).status == 1


@pytest.mark.parametrize("lost", [1, 30, 200, 400, 10_000])
def test_a_file_cut_short_is_completed(lost: int, tmp_path: Path) -> None:
    study, board = make(tmp_path), TensorBoard(tmp_path / "board")
    run(study)
    study = make(tmp_path)
    board.export(study)
    for path in (tmp_path / "board").glob("net/*/events*"):
        os.truncate(path, max(0, path.stat().st_size - lost))
    board.export(study)
    assert curves(tmp_path / "board") == CURVES
    study.close()


def test_a_study_goes_on_in_the_same_files(tmp_path: Path) -> None:
    board = tmp_path / "board"
    run(make(tmp_path, loggers=[TensorBoard(board)]), steps=6)
    before = curves(board)
    run(make(tmp_path, loggers=[TensorBoard(board)]), steps=6)
    assert curves(board) == before
    assert len([*board.glob("net/*/*")]) == 2


def test_runs_of_another_study_are_refused(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "board")
    run(make(tmp_path / "a", loggers=[board]))
    study = make(tmp_path / "b")
    with pytest.raises(ConfigurationError, match="must have runs of this study 'net' only"):
        board.export(study)
    study.close()


@pytest.mark.parametrize("folder", ["s3://bucket/runs", "", 3])
def test_a_folder_that_is_not_local_is_refused(folder: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a local folder, got"):
        TensorBoard(folder)


def test_the_examples_of_the_page_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    study_file, export, *_ = python_blocks("loggers.md")
    module, path = ModuleType("page_loggers"), tmp_path / "page_loggers.py"
    path.write_text(study_file)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    exec(compile(study_file, str(path), "exec"), vars(module))
    monkeypatch.setattr(dt.Trainer, "requires_process", False)
    study = vars(module)["study"]()
    with single_thread(study.trainer) as client:
        study.optimize(vars(module)["tuner"](), client=client, check=False, progress=False)
    study.close()
    board = tmp_path / "runs" / "tensorboard"
    whole = curves(board)
    assert [[*map(len, each.values())] for each in whole.values()] == [[8, 1], [4, 4, 1]]
    assert "- shared: steps 1-4: trial 0" in texts(board / "line" / "trial-0001")[-1]
    exec(compile(export, "export", "exec"), vars(module))
    assert curves(board) == whole
