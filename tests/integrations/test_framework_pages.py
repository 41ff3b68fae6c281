"""The examples on the pages about frameworks: each trains less than its trials ask for."""

from __future__ import annotations

import sys
from inspect import isfunction
from pathlib import Path
from types import ModuleType

import pytest

from tests.integrations.exact import assert_merges
from tests.pages import python_blocks

PAGES = {
    "accelerate": python_blocks("integrations-accelerate.md"),
    "keras": python_blocks("integrations-keras.md"),
    "lightning": python_blocks("integrations-lightning.md"),
    "transformers": python_blocks("integrations-transformers.md"),
}


@pytest.mark.parametrize(
    ("page", "steps"),
    [
        pytest.param("accelerate", (12, 8), marks=pytest.mark.framework("accelerate")),
        pytest.param("keras", (24, 16), marks=pytest.mark.framework("keras")),
        pytest.param("lightning", (24, 16), marks=pytest.mark.framework("lightning")),
        pytest.param(
            "transformers", (24, 16), marks=pytest.mark.framework("transformers", "accelerate")
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_example_of_a_page_trains_shared_epochs_once(
    page: str, steps: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = ModuleType(f"page_{page}")
    path = tmp_path / f"page_{page}.py"
    (code,) = PAGES[page]
    path.write_text(code)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(path), "exec"), vars(module))
    made = [each() if isfunction(each) else each for each in (module.study, module.tuner)]
    assert_merges(*made, steps)
