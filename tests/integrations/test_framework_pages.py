"""The examples on the pages about frameworks: each trains less than its trials ask for."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.integrations.exact import assert_merges

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "steps"),
    [
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
    text = (DOCS / f"integrations-{page}.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    module = ModuleType(f"page_{page}")
    path = tmp_path / f"page_{page}.py"
    path.write_text(code)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(path), "exec"), vars(module))
    assert_merges(module.study(), module.tuner(), steps)
