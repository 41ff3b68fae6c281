"""The ports: scripts of frameworks run alone and as studies, and the page counts their lines."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import sys
from collections import Counter
from difflib import ndiff
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_forked
from tests.integrations.exact import assert_merges
from tests.integrations.test_boosting_examples import imported

ROOT = Path(__file__).parents[2]
PORTS = ROOT / "examples" / "ports"

STEPS = {
    "accelerate": (12, 8),
    "jax": (12, 8),
    "keras": (12, 8),
    "lightgbm": (120, 80),
    "lightning": (12, 8),
    "lightning_tutorial": (24, 24),
    "optuna": (7, 7),
    "sklearn": (12, 8),
    "torch": (12, 8),
    "transformers": (12, 8),
    "xgboost": (120, 80),
}
"""Steps that the trials of each port ask for, and those that are trained."""

SCRIPTS = ("lightgbm_tutorial", "xgboost_tutorial")
"""Ports that are scripts with and without dasktune, and print and save the same."""

NEEDS = {
    "jax": ("jax", "optax"),
    "lightning_tutorial": ("lightning",),
    "transformers": ("transformers", "accelerate"),
}


def changed(name: str) -> tuple[int, int]:
    """Return the lines that go and that come; blank and only indented ones do not count."""
    before, after = (
        [
            line.strip()
            for line in path.read_text().partition('"""\n')[2].splitlines()
            if line.strip()
        ]
        for path in (PORTS / f"{name}_before.py", PORTS / f"{name}_after.py")
    )
    marks = Counter(line[0] for line in ndiff(before, after))
    return marks["-"], marks["+"]


def test_the_page_has_the_lines_of_each_port() -> None:
    page = (ROOT / "docs" / "lines-changed.md").read_text()
    rows = re.findall(r"^\| .*`(\w+)_after.py`.* \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert {name: (int(gone), int(new)) for name, gone, new in rows} == {
        name: changed(name) for name in (*STEPS, *SCRIPTS)
    }
    assert {path.name for path in PORTS.glob("*.py")} == {
        f"{name}_{side}.py" for name in (*STEPS, *SCRIPTS) for side in ("before", "after")
    }


def run_main(path: Path, names: dict[str, Any]) -> None:
    """Run what a study file does as a script, as far as it has a guard, for its study here."""
    guarded = [part for part in ast.parse(path.read_text()).body if isinstance(part, ast.If)]
    for part in guarded:
        exec(compile(ast.Module(part.body, []), str(path), "exec"), names)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.framework(*NEEDS.get(name, (name,)))) for name in STEPS],
)
@pytest.mark.filterwarnings("ignore")
def test_a_port_runs_before_and_after(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(PORTS / f"{name}_before.py"), run_name="__main__")
    module = imported(PORTS / f"{name}_after.py", monkeypatch)
    assert_merges(module.study, module.tuner, STEPS[name])
    run_main(PORTS / f"{name}_after.py", vars(module))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param("lightgbm_tutorial", "best.txt", marks=pytest.mark.framework("lightgbm")),
        pytest.param("xgboost_tutorial", "best.json", marks=pytest.mark.framework("xgboost")),
    ],
)
def test_a_script_and_its_port_end_with_the_same_best_model(
    name: str, model: str, tmp_path: Path
) -> None:
    ended = []
    for side in ("before", "after"):
        path = shutil.copy(PORTS / f"{name}_{side}.py", tmp_path)
        done = run_forked([sys.executable, path], cwd=tmp_path, text=True)
        assert done.returncode == 0, done.stderr
        (tmp_path / model).unlink()
        *_, best, accuracy = done.stdout.splitlines()
        score, iteration = best.rpartition("}")[2].split()
        # The script trains with threads, whose sums are rounded in another order.
        ended.append((round(float(score), 9), iteration, accuracy))
    assert ended[0] == ended[1]
