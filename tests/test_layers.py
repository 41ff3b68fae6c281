"""The architecture: layers, imports, a pure core, and forbidden words.

Everything is read from the syntax tree, so that an import inside a function or under
``TYPE_CHECKING`` counts like any other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dasktune"

LAYERS: tuple[tuple[tuple[str, str], ...], ...] = (
    (
        ("_garbage", "the garbage collector, off where it would find nothing"),
        ("_lazy", "packages whose names are imported on first use"),
        ("errors", "one error class for each reaction of the caller"),
        ("_words", "words of messages: amounts with their nouns, and lists"),
        ("_numbers", "the numbers that users give, of Python, NumPy and torch"),
        ("needs", "what a stage asks of its worker, and what workers have"),
        ("types", "the nouns that all parts share: steps, reports, decisions, objectives"),
    ),
    (
        ("sequences", "hyper-parameter values as functions of the step"),
        ("space", "search spaces, and how configurations are drawn from them"),
    ),
    (("graph", "state keys, search plan, stage tree, cost, and the dispatcher"),),
    (
        ("algos", "tuners: reports in, decisions out; samplers and learning curves"),
        ("samplers", "the public names of samplers"),
    ),
    (("_engine", "a tuner and a dispatcher together: events in, orders out"),),
    (
        ("logs", "configuration of log records; secrets are removed"),
        ("_config_file", "the file dasktune.toml"),
        ("storage", "checkpoints, leases, and the database"),
    ),
    (("trainer", "the class that users subclass, fingerprints, exact resume"),),
    (("_worker", "the worker side of a run: trains stages and saves checkpoints"),),
    (
        ("_cluster", "Dask workers as slots; local and existing clusters"),
        ("slurm", "workers, and the driver, as SLURM jobs"),
    ),
    (("_driver", "the driver side of a run: the engine on Dask, leases, eviction"),),
    (("traces", "recorded learning curves"),),
    (("mirror", "a study in other programs: Optuna, loggers"),),
    (("_results", "read-only results of a study: summary, predictions, inventory"),),
    (("simulate", "the engine on a virtual clock"),),
    (("report", "pictures, texts about a study, and what it has cost"),),
    (("_study", "the study that users create, run and query"),),
    (
        ("integrations", "ready trainers for frameworks, one module each"),
        ("_dashboard", "the page of a study: live from a web server, or in a file as the report"),
        ("doctor", "checks of cluster, store and database before a study runs"),
        ("testing", "conformance tests for users' own tuners and predictors"),
        ("abc", "all interfaces on one page"),
    ),
    (("cli", "the command line, one file for each command"),),
    (("__main__", "`python -m dasktune`"),),
)
"""Layers from the lowest up: the folders and modules below dasktune with one line each.

A module imports only from its own layer and from the layers before it.
"""

LEVEL = {name: level for level, layer in enumerate(LAYERS) for name, _ in layer}
PURE = (
    "errors",
    "_words",
    "needs",
    "types",
    "sequences",
    "space",
    "graph",
    "algos",
    "samplers",
    "_engine",
)
"""The folders and modules that use no Dask, file, network, clock or global random state."""

PAGE = ROOT / "docs" / "architecture.md"
HARMLESS = """
    __future__ abc array bisect collections contextlib copy dataclasses datetime decimal difflib dis
    enum fractions functools hashlib heapq inspect itertools json math numbers numpy operator re
    statistics string struct textwrap types typing
"""
"""All that a pure module may import from outside; none of it reads the world."""

BRIDGES = {
    "dasktune.algos.curves.mcmc.extra": {"emcee", "importlib", "scipy"},
    "dasktune.algos.curves.network.prior_fitted": {"importlib"},
    "dasktune.algos.forest.extra": {"importlib", "sklearn", "warnings"},
    "dasktune.algos.optuna_sampler": {"optuna", "warnings"},
}
"""What else single modules may import: to read a file of the package, to ask Optuna,
to sample curves, to fit Gaussian processes."""

SEEDED = frozenset(
    {"BitGenerator", "Generator", "PCG64", "Philox", "RandomState", "SeedSequence", "default_rng"}
)
"""Names of numpy.random that do not touch its global generator."""

UNSEEDED = frozenset({"RandomState", "default_rng"})
"""What takes a seed from the system if it is given none."""

CLOCKS = frozenset({"now", "today", "utcnow"})
"""Functions of datetime that read the clock."""

POSIX = frozenset({"fcntl", "grp", "pwd", "resource", "termios"})
FOLDERS = {"benchmarks", "dasktune", "docs", "examples", "tests"}
LEFT_BY_TOOLS = re.compile(r"\..*|__pycache__|.*\.egg-info|build|dist|runs|dask-.*-space")


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read(root: Path) -> dict[str, ast.Module]:
    """Return the syntax tree of each module of a package by its dotted name."""
    return {
        module_name(path, root): ast.parse(path.read_text(), str(path))
        for path in sorted(root.rglob("*.py"))
    }


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ast.Module]]:
    """Return the syntax trees of the package, which are large: they go after the last test."""
    trees = read(PACKAGE)
    yield trees
    trees.clear()


def part_of(name: str) -> str:
    """Return the module or package right below dasktune; empty for dasktune itself."""
    return name.partition(".")[2].partition(".")[0]


def imported(tree: ast.Module, known: frozenset[str]) -> Iterator[str]:
    """Yield the modules that a module names, however deep the import is.

    ``from package import name`` is an import of ``package.name`` where that is a module, and
    of ``package`` otherwise. So is ``import_module("package")`` with a literal.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in known else base
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            yield from (
                str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)
            )


def called(node: ast.Call) -> str:
    """Return the last part of the name of what is called; empty without a name."""
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _of_datetime(node: ast.Attribute) -> bool:
    return ast.unparse(node.value).rpartition(".")[2] in {"date", "datetime"}


def graph(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return who imports whom inside the package; the import of a parent is implied, no edge."""
    known = frozenset(modules)
    return {
        name: {other for other in imported(tree, known) if other in known and other != name}
        for name, tree in modules.items()
    }


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Return some modules that import each other in a ring, an empty list if there are none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        rings = (visit(other, [*path, name]) for other in sorted(edges[name]))
        found = next((ring for ring in rings if ring), [])
        done.add(name)
        return found

    return next((ring for name in sorted(edges) if (ring := visit(name, []))), [])


def upward(modules: dict[str, ast.Module]) -> list[str]:
    """Return the imports from a later layer; the facade dasktune may import all."""
    return [
        f"{name} imports {other}"
        for name, others in graph(modules).items()
        for other in sorted(others)
        if part_of(name) and part_of(other) and LEVEL[part_of(other)] > LEVEL[part_of(name)]
    ]


def impurities(name: str, tree: ast.Module) -> list[str]:
    """Return the impure imports and calls of a module."""
    outside = {other.partition(".")[0] for other in imported(tree, frozenset())}
    allowed = {*HARMLESS.split(), "dasktune", *BRIDGES.get(name, ())}
    found = [f"{name} imports {other}" for other in sorted(outside - allowed)]
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=("open" | "input") as opener)):
                found.append(f"{name}:{node.lineno} calls {opener}")
        if isinstance(node, ast.Call) and called(node) in UNSEEDED and not node.args:
            found.append(f"{name}:{node.lineno} takes a seed from the system")
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS and _of_datetime(node):
            found.append(f"{name}:{node.lineno} reads the clock")
        if (
            isinstance(node, ast.Attribute)
            and node.attr not in SEEDED
            and re.fullmatch(r"(np|numpy)\.random", ast.unparse(node.value))
        ):
            found.append(f"{name}:{node.lineno} uses the global {ast.unparse(node)}")
        if isinstance(node, ast.ImportFrom) and node.module == "numpy.random":
            names = {alias.name for alias in node.names}
            found += [f"{name}:{node.lineno} uses numpy.random.{one}" for one in names - SEEDED]
    return found


def smells(name: str, tree: ast.Module) -> list[str]:
    """Return the uses of assert, print, global and bare except."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Assert():
                found.append(f"{name}:{node.lineno} assert")
            case ast.Global():
                found.append(f"{name}:{node.lineno} global")
            case ast.ExceptHandler(type=None):
                found.append(f"{name}:{node.lineno} bare except")
            case ast.Call(func=ast.Name(id="print")):
                found.append(f"{name}:{node.lineno} print")
    return found


def test_every_module_has_its_layer(modules: dict[str, ast.Module]) -> None:
    """A new module is entered into LAYERS first."""
    assert {part for part in map(part_of, modules) if part and part not in LEVEL} == set()


def layer_table() -> str:
    """Return the layers as the Markdown table of `docs/architecture.md`."""
    rows = [
        f"| {level} | `{name}` | {'yes' if name in PURE else ''} | {holds} |"
        for level, layer in enumerate(LAYERS, 1)
        for name, holds in layer
    ]
    return "\n".join(["| layer | folder | pure | holds |", "|--:|---|---|---|", *rows])


def test_the_page_has_the_table_of_layers() -> None:
    """After a change of LAYERS: `python tests/test_layers.py` writes the table."""
    assert layer_table() in PAGE.read_text()


def test_no_module_imports_from_a_later_layer(modules: dict[str, ast.Module]) -> None:
    assert upward(modules) == []


def test_there_is_no_import_cycle(modules: dict[str, ast.Module]) -> None:
    assert cycle(graph(modules)) == []


def test_the_core_is_pure(modules: dict[str, ast.Module]) -> None:
    core = {name: tree for name, tree in modules.items() if part_of(name) in PURE}
    assert {part_of(name) for name in core} == {*PURE}
    assert [each for name, tree in core.items() for each in impurities(name, tree)] == []


def test_no_assert_print_global_or_bare_except(modules: dict[str, ast.Module]) -> None:
    assert [each for name, tree in modules.items() for each in smells(name, tree)] == []


def test_every_module_can_be_imported_without_posix(modules: dict[str, ast.Module]) -> None:
    for name, tree in modules.items():
        for node in tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            of_module = [node.module] if isinstance(node, ast.ImportFrom) else []
            assert POSIX.isdisjoint([*names, *of_module]), name


def test_the_tree_of_folders_is_fixed() -> None:
    found = {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert {name for name in found if not LEFT_BY_TOOLS.fullmatch(name)} <= FOLDERS
    needed = (
        "dasktune",
        "dasktune/graph",
        "dasktune/algos",
        "dasktune/storage",
        "examples",
        "tests",
    )
    assert [folder for folder in needed if not (ROOT / folder).is_dir()] == []
    files = ("pyproject.toml", "environment.yml", "constraints.txt", "Makefile", ".ci/run")
    assert [file for file in files if not (ROOT / file).is_file()] == []


# The checks themselves, on packages that break the rules.


def package(**sources: str) -> dict[str, ast.Module]:
    """Return syntax trees by name; two underscores stand for a dot."""
    return {
        f"dasktune.{name.replace('__', '.')}": ast.parse(text) for name, text in sources.items()
    }


@pytest.mark.parametrize(
    "text",
    [
        "from dasktune.cli import main",
        "from dasktune import cli",
        "import dasktune.cli",
        "def f():\n    from dasktune.cli import main",
        "if TYPE_CHECKING:\n    from dasktune.cli import main",
        "importlib.import_module('dasktune.cli')",
    ],
)
def test_an_upward_import_is_found(text: str) -> None:
    modules = package(graph="", graph__plan=text, cli="def main(): ...")
    assert upward(modules) == ["dasktune.graph.plan imports dasktune.cli"]


def test_a_lazy_cycle_is_found() -> None:
    modules = package(
        graph="",
        graph__plan="from dasktune.graph.tree import Tree",
        graph__tree="from dasktune.graph.keys import key",
        graph__keys="def f():\n    from dasktune.graph import plan",
    )
    assert sorted(set(cycle(graph(modules)))) == [
        "dasktune.graph.keys",
        "dasktune.graph.plan",
        "dasktune.graph.tree",
    ]


def test_a_facade_that_reexports_is_no_cycle() -> None:
    modules = package(graph="from dasktune.graph.plan import Plan", graph__plan="class Plan: ...")
    assert cycle(graph(modules)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "def f():\n    import random",
        "from os import environ",
        "from dask import delayed",
        "open('file')",
        "import numpy as np\nnp.random.seed(0)",
        "import numpy as np\nf = np.random.rand",
        "from numpy.random import rand",
        "import numpy as np\nnp.random.default_rng()",
        "import numpy as np\nnp.random.RandomState()",
    ],
)
def test_an_impurity_is_found(text: str) -> None:
    assert len(impurities("dasktune.graph", ast.parse(text))) == 1


def test_a_seeded_generator_is_pure() -> None:
    text = "import numpy as np\ndef f(g: np.random.Generator): return np.random.default_rng(3)"
    assert impurities("dasktune.space", ast.parse(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "assert x",
        "print(x)",
        "def f():\n    global x",
        "try: f()\nexcept: pass",
    ],
)
def test_a_smell_is_found(text: str) -> None:
    assert len(smells("dasktune._study.study", ast.parse(text))) == 1


if __name__ == "__main__":
    BEFORE, REST = PAGE.read_text().split("<!-- layers -->\n")
    AFTER = REST[REST.index("<!-- end of layers -->") :]
    PAGE.write_text(f"{BEFORE}<!-- layers -->\n{layer_table()}\n{AFTER}")
