"""docs/learning-curves.md: its examples run, and its commands print its output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from typer.testing import CliRunner

from dasktune.algos import curves
from dasktune.cli import app
from dasktune.cli.results import as_text
from dasktune.cli.study_file import load
from tests.pages import python_blocks
from tests.study_folder import working_in

PAGE = (Path(__file__).parents[2] / "docs" / "learning-curves.md").read_text()
RUN, PREDICT = (
    block.splitlines() for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[:2]
)

NUMBER = re.compile(r"\d+\.\d+")


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, two_threads: Client
) -> Iterator[dict[str, Any]]:
    """Run the page from its beginning to its end, in its folder; return the names it defines."""
    folder = tmp_path_factory.mktemp("docs")
    file, *blocks = python_blocks("learning-curves.md")
    (folder / "net.py").write_text(file)
    names: dict[str, Any] = {}
    with working_in(folder):
        loaded = load(Path("net.py"))
        study = loaded.study()
        study.optimize(loaded.tuner(), client=two_threads, progress=False, last_line=False)
        names["table"] = as_text(study, study.trials)
        exec(compile("".join(blocks), "learning-curves.md", "exec"), names)
        yield names
    for study_or_results in (study, names["results"]):
        study_or_results.close()


def test_page_predicts_in_the_unit_of_the_metric(shown: dict[str, Any]) -> None:
    found = shown["prediction"]
    assert all(0 <= low <= high <= 1 for low, high in found.interval(0.8))
    assert found.chance(0.77) == max(found.chances(0.77))
    assert found.curve.rates == ((0, 0.04), (15, 0.004))
    assert found.curve.siblings, "all four begin alike"
    assert shown["beyond"].steps == (60, 80)
    assert shown["careful"].steps == found.steps
    assert shown["results"].summary()["suspensions"]["count"] > 0


def test_page_table_is_what_the_run_prints(shown: dict[str, Any]) -> None:
    assert "\n".join(RUN[2:]) in shown["table"]


def test_page_output_is_what_the_command_prints(shown: dict[str, Any]) -> None:
    command, first, header, *rows, last, checks = PREDICT
    done = CliRunner().invoke(app, command.removeprefix("$ dasktune ").split())
    assert done.exit_code == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == first
    assert printed[1].split() == header.split()
    for row in rows:
        if row != "...":
            alike = next(line for line in printed if line.split()[0] == row.split()[0])
            assert numbers(alike) == pytest.approx(numbers(row), abs=0.006)
    words, _, remaining = last.partition(" (ERT ")
    assert printed[-2].startswith(f"{words} (ERT ")
    assert printed[-1] == checks
    assert remaining == "1 ms)"
    assert Path("fan.svg").read_text().startswith("<svg")


def numbers(line: str) -> list[float]:
    return [float(one) for one in NUMBER.findall(line)]


def test_page_result_is_that_of_the_trial(shown: dict[str, Any]) -> None:
    accuracy = 0.1
    for step in range(40):
        rate = 0.04 if step < 15 else 0.004
        accuracy += 0.1 * (1 - 2 * rate**0.5 - accuracy)
    assert f"it has {accuracy:.3f}" in PAGE
    low, high = shown["prediction"].interval(0.95)[-1]
    assert low < accuracy < high


def test_page_lists_all_predictors() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert set(named) == set(curves.PREDICTORS)
