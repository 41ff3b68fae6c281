"""Every block of Python of the documentation is given to a test that runs it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.pages import DOCS, ROOT, blocks, page_text, python_blocks

NOT_RUN = {
    "clusters.md": (
        "SLURM is not everywhere; tests/slurm/test_growing.py does the same",
        "dask-cuda needs GPUs",
    )
}
"""Pages with one block in the language ``py``, which no test runs, and the reason."""


def pages_with(language: str) -> list[str]:
    pages = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    return [page for page in (*pages, "README.md") if blocks(page, language)]


class Module:
    """A module of tests, and the blocks that it takes from each page.

    A block counts if its name is used. It does not count if it is unpacked into ``_``, if the
    blocks are indexed later, or if a comprehension leaves some out.
    """

    def __init__(self, text: str) -> None:
        nodes = list(ast.walk(ast.parse(text)))
        self.parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        names = {node for node in nodes if isinstance(node, ast.Name)}
        self.used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        self.indexed = {node.id for node in names if isinstance(self.parents[node], ast.Subscript)}
        self.calls = [node for node in nodes if isinstance(node, ast.Call)]

    def taken(self) -> Iterable[tuple[str, Iterable[int]]]:
        for call in self.calls:
            match call:
                case ast.Call(func=ast.Name("python_blocks"), args=[ast.Constant(str() as page)]):
                    yield page, self.taken_by(call, len(python_blocks(page)))

    def taken_by(self, call: ast.Call, count: int) -> Iterable[int]:
        match self.parents[call]:
            case ast.Subscript(slice=ast.Constant(int() as index)):
                return [index]
            case ast.Subscript() | ast.comprehension(ifs=[_, *_]):
                return []
            case ast.Assign(targets=[ast.Name(name)]):
                return range(count) if name in self.used - self.indexed else []
            case ast.Assign(targets=[ast.Tuple(elts=targets)]):
                names = [ast.unparse(target) for target in targets]
                for at, name in enumerate(names):
                    if name.startswith("*"):
                        names[at : at + 1] = [name[1:]] * (count - len(names) + 1)
                return [at for at, name in enumerate(names) if name in self.used]
            case _:
                return range(count)


def test_blocks_that_no_test_runs_have_a_reason() -> None:
    pages = [page for page in pages_with("py") for _ in blocks(page, "py")]
    assert pages == [page for page, reasons in NOT_RUN.items() for _ in reasons]


def test_each_block_of_python_is_taken_by_a_test() -> None:
    taken: dict[str, set[int]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        if "python_blocks" in (text := path.read_text()):
            for page, numbers in Module(text).taken():
                taken[page].update(numbers)
    left = {
        page: missing
        for page in pages_with("python")
        if (missing := set(range(len(python_blocks(page)))) - taken[page])
    }
    assert left == {}, "take them by tests.pages.python_blocks in a test that runs them"


COUNT = len(python_blocks("tuners.md"))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("for block in python_blocks('tuners.md'): exec(block)", range(COUNT)),
        ("first, *rest = python_blocks('tuners.md'); exec(first)", [0]),
        ("*rest, last = python_blocks('tuners.md'); exec(rest)", range(COUNT - 1)),
        ("first, *_ = python_blocks('tuners.md'); exec(first)", [0]),
        ("exec(python_blocks('tuners.md')[3])", [3]),
        ("some = python_blocks('tuners.md'); exec(some[0])", []),
        ("[exec(block) for block in python_blocks('tuners.md') if 'x' in block]", []),
    ],
)
def test_blocks_that_a_module_leaves_out_are_seen(text: str, numbers: Iterable[int]) -> None:
    assert [(page, list(some)) for page, some in Module(text).taken()] == [
        ("tuners.md", list(numbers))
    ]


@pytest.mark.parametrize("page", pages_with("python"))
def test_every_block_of_python_can_be_compiled(page: str) -> None:
    assert page_text(page).count("```python\n") == len(python_blocks(page)), "indented blocks"
    for block in python_blocks(page):
        compile(block, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def scripts() -> Iterable[tuple[str, ast.Module]]:
    """Yield the name and the code of each example, and of each block of Python of a page."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for path in (ROOT / "examples").rglob("*.py"):
        yield path.name, ast.parse(path.read_text())
    for page in pages_with("python"):
        for block in python_blocks(page):
            yield page, compile(block, page, "exec", flags=flags)


def created_by_python(code: ast.Module) -> Iterable[ast.Call]:
    """Yield the calls of `create_study` in a script that has a main guard."""
    if any(isinstance(part, ast.If) and "__main__" in ast.unparse(part.test) for part in code.body):
        for node in ast.walk(code):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "dt.create_study":
                yield node


def test_the_same_command_goes_on_with_each_script() -> None:
    calls = [(name, call) for name, code in scripts() for call in created_by_python(code)]
    assert len(calls) > 5
    refusing = [
        name for name, call in calls if "load_if_exists=True" not in map(ast.unparse, call.keywords)
    ]
    assert refusing == []
