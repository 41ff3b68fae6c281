"""The ports: scripts of frameworks run alone and as studies, and the page counts their lines."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from difflib import ndiff
from pathlib import Path

import pytest

from tests.integrations.exact import assert_merges
from tests.integrations.test_boosting_examples import imported

ROOT = Path(__file__).parents[2]
PORTS = ROOT / "examples" / "ports"

STEPS = {
    "accelerate": (12, 8),
    "jax": (12, 8),
    "keras": (12, 8),
    "lightgbm": (12, 8),
    "lightning": (12, 8),
    "optuna": (7, 7),
    "sklearn": (12, 8),
    "torch": (12, 8),
    "transformers": (12, 8),
    "xgboost": (12, 8),
}
"""Steps that the trials of each port ask for, and those that are trained."""

NEEDS = {"jax": ("jax", "optax"), "transformers": ("transformers", "accelerate")}


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
        name: changed(name) for name in STEPS
    }
    assert {path.name for path in PORTS.glob("*.py")} == {
        f"{name}_{side}.py" for name in STEPS for side in ("before", "after")
    }


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
