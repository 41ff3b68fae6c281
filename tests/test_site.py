"""The documentation site: every page is in its navigation, and it describes every public name.

`make docs` builds the site, and fails for what only the build can show: a broken link, a name or a
command that is missing, a docstring that cannot be read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import dasktune.integrations
from tests.pages import script

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(DOCS).with_suffix(""))
    for path in DOCS.rglob("*.md")
    if "site" not in path.relative_to(DOCS).parts
}
NAMES = ROOT / "tests" / "compatibility" / "written_before" / "public_names.json"
REFERENCE = script("reference")


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
    missing = (documented | integrations | parts) - elsewhere - set(REFERENCE.modules())
    assert missing == set(), "add ```{public} MODULE to a page of docs/api"


def test_public_names_and_members_have_words_of_their_own() -> None:
    documented = REFERENCE.documented()
    bare = [path for path, has_words in documented.items() if not has_words]
    figure = f"{len(documented) - len(bare)} of {len(documented)}"
    print(f"documented: {figure} public names and members")
    assert bare == [], f"only {figure} public names and members have a docstring"


def test_pages_are_linked_relatively() -> None:
    """A code host and the site both find a page by its file name."""
    for page in sorted(PAGES):
        text = (DOCS / f"{page}.md").read_text()
        for target in re.findall(r"\]\(([^)#\s]+)\)", text):
            assert not target.startswith("/"), f"{page}: {target}"


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts and the site make them."""
    anchors: dict[str, int] = {}
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ +(.*)$", prose, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchors[anchor] = anchors.get(anchor, -1) + 1
    return {
        anchor if number == 0 else f"{anchor}-{number}"
        for anchor, last in anchors.items()
        for number in range(last + 1)
    }


def broken_anchors(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [
        f"{page.relative_to(ROOT)}: {file}#{anchor}"
        for file, anchor in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", text)
        if anchor not in headings(page.parent / file if file else page)
    ]


def test_links_with_an_anchor_lead_to_a_heading() -> None:
    """The build of the site sees those of docs/ only, and takes a while."""
    pages = [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("*/README.md")]
    assert [broken for page in pages for broken in broken_anchors(page)] == []


def test_anchors_are_those_that_code_hosts_make(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# 2. What is *one* `step`?\n## A\n## A\n```sh\n# no heading\n```\n## [B](c.md) d_e\n"
    )
    assert headings(page) == {"2-what-is-one-step", "a", "a-1", "b-d_e"}
