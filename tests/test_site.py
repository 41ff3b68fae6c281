"""The documentation site: every page is in its navigation, and it describes every public name.

`make docs` builds the site, and fails for what only the build can show: a broken link, a name or a
command that is missing, a docstring that cannot be read.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

import dasktune.integrations

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(DOCS).with_suffix(""))
    for path in DOCS.rglob("*.md")
    if "site" not in path.relative_to(DOCS).parts
}
NAMES = ROOT / "tests" / "compatibility" / "written_before" / "public_names.json"
DESCRIBED = {
    module
    for path in DOCS.glob("api/*.md")
    for module in re.findall(r"^```{public} (\S+)$", path.read_text(), re.MULTILINE)
}


def in_navigation() -> list[str]:
    trees = re.findall(r"```{toctree}\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    lines = [line for tree in trees for line in tree.splitlines()]
    return [line for line in lines if line and not line.startswith(":")]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = in_navigation()
    assert sorted(listed) == sorted(PAGES - {"index"}), "add a line with the page to docs/index.md"


def test_public_modules_are_in_the_reference() -> None:
    """`dasktune.cli` is the command line, and a store's class is described with the others."""
    documented = set(json.loads(NAMES.read_text())["imports"])
    integrations = {f"dasktune.integrations.{name}" for name in dasktune.integrations.__all__}
    parts = {f"dasktune.{name}" for name in ("algos", "errors", "sequences", "space", "types")}
    elsewhere = {"dasktune.cli", "dasktune.storage.checkpoints"}
    missing = (documented | integrations | parts) - elsewhere - DESCRIBED
    assert missing == set(), "add ```{public} MODULE to a page of docs/api"


@pytest.mark.parametrize("module", sorted(DESCRIBED))
def test_names_in_the_reference_have_docstrings(module: str) -> None:
    home = import_module(module)
    names = [name for name in getattr(home, "__all__", []) if not name.startswith("__")]
    values = {name: getattr(home, name) for name in names}
    bare = [name for name, value in values.items() if callable(value) and not value.__doc__]
    assert bare == []


def test_pages_are_linked_relatively() -> None:
    """A code host and the site both find a page by its file name."""
    for page in sorted(PAGES):
        text = (DOCS / f"{page}.md").read_text()
        for target in re.findall(r"\]\(([^)#\s]+)\)", text):
            assert not target.startswith("/"), f"{page}: {target}"
