"""The pages of the documentation and their blocks, for tests that run them."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def page_text(page: str) -> str:
    """Return the text of a page of docs/, or of README.md."""
    return (ROOT / page if page == "README.md" else DOCS / page).read_text()


def python_blocks(page: str) -> list[str]:
    """Return the blocks of Python of a page; the test that calls this runs all of them.

    `test_docs.py` looks at the calls: each page has one, and what is unpacked is used.
    """
    return blocks(page, "python")


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page that are in a language, such as ``text``."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page_text(page), re.DOTALL | re.MULTILINE)


def script(name: str) -> ModuleType:
    """Return a module of docs/, which is no package."""
    spec = spec_from_file_location(name, DOCS / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_module(name: str, text: str, folder: Path, **names: object) -> ModuleType:
    """Run a text as a module that lies in a folder, and that workers find by its name.

    The caller removes it from ``sys.modules``.
    """
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = sys.modules[name] = module_from_spec(spec)
    vars(module).update(names)
    spec.loader.exec_module(module)
    return module
