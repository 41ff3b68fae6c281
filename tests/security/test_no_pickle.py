"""Nothing that comes from a store or a database is ever unpickled, evaluated or imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dasktune

PACKAGE = Path(dasktune.__file__).parent

LOADERS = {
    *("pickle", "cloudpickle", "_pickle", "dill", "joblib", "shelve", "marshal"),
    *("yaml", "torch.load", "numpy.load", "np.load", "np.lib.npyio.NpzFile"),
    *("eval", "exec", "runpy"),
}
"""What runs, or may run, what it is given."""

ALLOWED = {
    "trainer/code.py": {"pickle", "cloudpickle"},  # trainers, over Dask's own connection
    "integrations/search.py": {"joblib"},  # joblib.hash, which reads nothing
    "trainer/data.py": {"cloudpickle"},  # data sets, to processes that this one starts
    # The function that a process calls which this one has forked.
    "_cluster/forked_process.py": {"pickle"},
    # A job, to a process that this one starts, which reads its standard input.
    "trainer/check_resume/new_process.py": {"pickle"},
    "algos/curves/network/prior_fitted.py": {"np.load"},  # with allow_pickle=False
    "traces/files.py": {"np.lib.npyio.NpzFile"},  # with allow_pickle=False
    # Expressions that it makes from the types of its own classes, never from what it reads.
    "algos/state.py": {"eval"},
    # Names the functions that run other code, as gaps of a fingerprint; calls none of them.
    "trainer/fingerprint/dynamic.py": {"runpy"},
    "_driver/predictions.py": {"pickle"},  # questions of predictors, over Dask's own connection
    "_worker/plugin.py": {"pickle"},  # opens them
    "_worker/job.py": {"pickle"},  # orders of stages, over Dask's own connection
    "_worker/rank.py": {"pickle"},  # orders, to processes that a worker starts, through a pipe
    "doctor/collect.py": {"cloudpickle"},  # its own code, over Dask's own connection
    "trainer/proof/texts.py": {"marshal"},  # marshal.dumps, for digests; it reads nothing
    "trainer/carried/kinds.py": {"marshal"},  # the same
    "testing/predictors.py": {"pickle"},  # copies what it has made
}
"""By file of the package, with what it is needed for."""

PLACES = ("storage", "_driver", "_results")
"""What reads stores and databases."""


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ast.Module]]:
    """Return the syntax trees of the package, which are large: they go after the last test."""
    trees = {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    yield trees
    trees.clear()


def called(node: ast.expr) -> str:
    """Return the dotted name of what is called; the inner names are empty if they are none."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{called(value)}.{name}"
    return ""


def loaders_in(tree: ast.Module) -> Iterator[str]:
    """Yield the loaders that a module imports or calls by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Call):
            yield called(node.func)


def test_loaders_that_run_code_are_used_in_known_files_only(modules: dict[str, ast.Module]) -> None:
    found = {name: LOADERS & set(loaders_in(tree)) for name, tree in modules.items()}
    assert {name: used for name, used in found.items() if used} == ALLOWED


def test_numpy_loads_and_saves_no_objects(modules: dict[str, ast.Module]) -> None:
    names = {
        "np.load",
        "np.lib.npyio.NpzFile",
        "np.save",
        "np.lib.format.write_array",
        "np.lib.format.read_array",
    }
    calls = [
        (name, {one.arg: ast.unparse(one.value) for one in node.keywords})
        for name, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node.func) in names
    ]
    assert len(calls) >= 2
    assert [name for name, given in calls if given.get("allow_pickle") != "False"] == []


def test_readers_of_stores_import_only_modules_named_in_code(
    modules: dict[str, ast.Module],
) -> None:
    """A name from a document must never be looked up among modules."""
    readers = {name: tree for name, tree in modules.items() if name.split("/")[0] in PLACES}
    assert {name.split("/")[0] for name in readers} == {*PLACES}
    for name, tree in readers.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node.func).endswith("import_module"):
                argument = node.args[0]
                known = isinstance(argument, ast.Constant) or "_HOMES[" in ast.unparse(argument)
                assert known, name
            if isinstance(node, ast.Call) and called(node.func) == "getattr":
                assert ast.unparse(node.args[0]) not in ("sys.modules", "builtins"), name


@pytest.mark.process
def test_opening_a_store_loads_no_cloudpickle() -> None:
    """Python and NumPy import pickle themselves; cloudpickle none of what reads stores does."""
    code = (
        "import sys, dasktune.storage.checkpoints, dasktune.storage.database.database; "
        "sys.exit('cloudpickle' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
