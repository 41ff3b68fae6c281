"""The pages about concepts print what they show; their pictures are made from the real thing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from distributed import Client

from tests.pages import DOCS, as_module, blocks, page_text, python_blocks, script

CONCEPTS = {
    "concept-sequence.md": python_blocks("concept-sequence.md"),
    "concept-state-key.md": python_blocks("concept-state-key.md"),
    "concept-stage-tree.md": python_blocks("concept-stage-tree.md"),
    "concept-tuner.md": python_blocks("concept-tuner.md"),
    "concept-store.md": python_blocks("concept-store.md"),
    "concept-driver.md": python_blocks("concept-driver.md"),
}
PICTURES = script("pictures").PICTURES


@pytest.mark.parametrize("page", sorted(CONCEPTS.keys() - {"concept-store.md"}))
def test_concept_example_prints_what_its_page_shows(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile("".join(CONCEPTS[page]), page, "exec"), {})
    assert capsys.readouterr().out == "".join(blocks(page, "text"))


def test_second_study_of_the_page_trains_what_it_shows(
    one_worker: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "".join(CONCEPTS["concept-store.md"]).replace('"__main__"', '"week"')
    text = re.sub(r"(\.optimize\(.*)\)$", r"\1, client=client)", text, flags=re.MULTILINE)
    as_module("week", text, tmp_path, client=one_worker)
    sys.modules.pop("week")
    assert capsys.readouterr().out == "".join(blocks("concept-store.md", "text"))


@pytest.mark.parametrize("name", PICTURES)
def test_concept_picture_is_that_of_the_code(name: str) -> None:
    written = (DOCS / f"{name}.svg").read_text()
    assert written == str(PICTURES[name]()), "write it again: python docs/pictures.py"
    assert f"({name}.svg)" in page_text(f"{name}.md")


def test_picture_of_the_readme_is_that_of_the_code() -> None:
    written = (DOCS / "stage-tree.svg").read_text()
    assert written == script("stage_tree").draw(), "python docs/stage_tree.py > docs/stage-tree.svg"


def test_concept_pages_are_short_and_in_the_glossary() -> None:
    for page in CONCEPTS:
        assert len(page_text(page).splitlines()) <= 100, page
        assert f"({page})" in page_text("concepts.md"), page
