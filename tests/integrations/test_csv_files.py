"""CSV files: each trial of a study as a folder (docs/loggers.md)."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from dasktune.errors import ConfigurationError
from dasktune.integrations.csv_files import CSVFiles
from tests.integrations.logged import CURVES, make, run
from tests.pages import python_blocks

pytestmark = pytest.mark.filterwarnings("ignore")  # the port of a cluster beside it is taken


def curves(folder: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the columns of each trial's metrics by name, as `CURVES` has them."""
    read: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for path in sorted(folder.glob("*/trial-*/metrics.csv")):
        with path.open(newline="") as opened:
            rows = list(csv.DictReader(opened))
        read[path.parent.name] = {
            name: [(int(row["step"]), float(row[name])) for row in rows]
            for name in rows[0]
            if name != "step"
        }
    return read


def test_trials_have_each_shared_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {
        trial: {name: points for name, points in metrics.items() if name[:6] != "final/"}
        for trial, metrics in CURVES.items()
    }
    logs, exported = CSVFiles(tmp_path / "during"), tmp_path / "logs"
    run(make(tmp_path, loggers=[logs]))
    assert curves(tmp_path / "during") == expected
    about = json.loads((tmp_path / "during" / "net" / "trial-0001" / "trial.json").read_text())
    assert (about["state"], about["shared_until"], about["values"]) == (
        *("COMPLETE", "4"),
        {"loss": 6.0},
    )
    study = make(tmp_path)
    _, _, export, *_ = python_blocks("loggers.md")
    monkeypatch.chdir(tmp_path)
    exec(compile(export, "loggers.md", "exec"), {"study": lambda: study})
    path = exported / "net" / "trial-0000" / "metrics.csv"
    whole = path.read_bytes()
    for lost in (1, 4, len(whole) - 3, len(whole)):
        path.write_bytes(whole[: len(whole) - lost])
        CSVFiles(exported).export(study)
        assert curves(exported) == expected
    study.close()
    other = make(tmp_path / "other", loggers=[logs])
    with pytest.raises(ConfigurationError, match="must have trials of this study 'net' only"):
        run(other)
    other.close()


@pytest.mark.parametrize("folder", ["s3://bucket/logs", "", 3])
def test_a_folder_that_is_not_local_is_refused(folder: object) -> None:
    with pytest.raises(ConfigurationError, match="the folder of CSVFiles must be a local folder"):
        CSVFiles(folder)  # type: ignore[arg-type]
