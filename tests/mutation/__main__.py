"""The command ``mutation``: small changes of the package's code, and which test notices each."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.operators import Mutant, draw, mutants_of
from tests.mutation.planted import PLANTED, Planted
from tests.mutation.trial import LIBRARIES, caught_by, copy_of_tree

if TYPE_CHECKING:
    from tests.mutation.lines import ExecutedLines

PARTS = ("graph", "_engine", "_driver", "storage", "trainer")
RECORDED = (*PARTS, "algos", "_worker")
"""Parts whose lines are recorded: those of mutants, and those of planted bugs."""

SHARE = 0.95
"""The smallest share that tests must catch."""

ROOT = Path(__file__).parents[2]
NICE = 15


def mutation(
    folder: Annotated[
        Path | None,
        typer.Option(help="Keep lines and results there, to continue with them."),
    ] = None,
    mutants: Annotated[int, typer.Option(min=1, help="How many in each part.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="It draws them.")] = 1,
    part: Annotated[
        list[str] | None, typer.Option(help="Try this part only. May be repeated.")
    ] = None,
    tests: Annotated[
        str, typer.Option(metavar="MARKERS", help="The tests whose lines are recorded.")
    ] = "fast or processes",
    first: Annotated[
        list[str] | None,
        typer.Option(metavar="TEST", help="Run this test first on each. May be repeated."),
    ] = None,
    again: Annotated[bool, typer.Option(help="Try again what has survived.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Change one expression at a time, in a copy, and run the tests that execute its line.

    A mutant is caught by a test that fails, or by a seed of torture. Exit code 1 if fewer than
    95 of 100 are caught; those that are listed as equivalent do not count.
    """
    from tests.mutation.lines import ExecutedLines, record

    folder = (folder or Path(tempfile.mkdtemp(prefix="mutation-"))).resolve()
    tree = folder / "tree"
    os.nice(NICE)
    if not tree.exists():
        copy_of_tree(ROOT, tree)
        record(tree, folder / "lines", RECORDED, ["-m", tests])
    for name in LIBRARIES:
        import_module(name)
    lines, results = ExecutedLines(folder, tree), Results(folder / "results.json")
    changes = list(drawn(tree, lines, part or [*PARTS, "planted"], mutants, seed))
    if again:
        results.forget_survivors()
    # The quickest and likeliest first, for all of them: what survives is known early.
    for group in ("first", "own", "torture", "others"):
        for change in changes:
            tests_of = groups_of(tree, lines, change) | {"first": first}
            chosen = tests_of[group]
            if chosen is None or change.name in EQUIVALENT or not results.lacks(change, group):
                continue
            results.add(change, group, caught_by(tree, change, chosen, lines.seconds))
            Console(stderr=True, soft_wrap=True).print(results.words(change), markup=False)
    rows = [results.row(change) for change in changes]
    share = share_of(rows)
    if as_json:
        document = {"seed": seed, "share": share, "mutants": rows}
        typer.echo(json.dumps(document, indent=2))
    else:
        Console().print(table(rows))
    if share < SHARE:
        raise typer.Exit(1)


def drawn(
    tree: Path, lines: ExecutedLines, parts: Iterable[str], mutants: int, seed: int
) -> Iterator[Mutant | Planted]:
    """Yield the mutants of each part, drawn by the seed, and the planted bugs."""
    for part in parts:
        if part == "planted":
            yield from PLANTED
            continue
        found: list[Mutant] = []
        for path in sorted((tree / "dasktune" / part).rglob("*.py")):
            name = str(path.relative_to(tree))
            found += mutants_of(name, path.read_text(), lines.of(name))
        yield from draw(found, mutants, seed)


def groups_of(
    tree: Path, lines: ExecutedLines, change: Mutant | Planted
) -> dict[str, list[str] | None]:
    """Return the tests of a change: those of its own part, none for torture, and all others."""
    tests = lines.tests_of(change.path, change.lines((tree / change.path).read_text()))
    folder = f"tests/{change.path.split('/')[1].removeprefix('_')}/"
    own = [test for test in tests if test.startswith(folder)]
    others = [test for test in tests if not test.startswith(folder)]
    return {"own": own or None, "torture": [], "others": others or None}


class Results:
    """The groups of tests that each mutant has passed, and what has caught it, in a file.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed: dict[str, list[str]] = {}
        self._caught_by: dict[str, str] = {}
        if path.exists():
            document = json.loads(path.read_text())
            self._passed, self._caught_by = document["passed"], document["caught_by"]

    def forget_survivors(self) -> None:
        """Forget what the mutants have passed that nothing has caught."""
        self._passed.clear()

    def lacks(self, change: Mutant | Planted, group: str) -> bool:
        """Return whether a group of tests is still to be run on a mutant."""
        name = change.name
        return name not in self._caught_by and group not in self._passed.get(name, ())

    def add(self, change: Mutant | Planted, group: str, caught_by: str) -> None:
        """Add the outcome of a group of tests: what has caught a mutant, or the empty string."""
        if caught_by:
            self._caught_by[change.name] = caught_by
        else:
            self._passed.setdefault(change.name, []).append(group)
        document = {"passed": self._passed, "caught_by": self._caught_by}
        self._path.write_text(json.dumps(document, indent=1))

    def words(self, change: Mutant | Planted) -> str:
        """Return a mutant and its outcome so far in words."""
        passed = ", ".join(self._passed.get(change.name, ()))
        return f"{change.name}: {self._caught_by.get(change.name) or f'passed {passed}'}"

    def row(self, change: Mutant | Planted) -> dict[str, object]:
        """Return a mutant and its outcome as a JSON document."""
        return {
            "part": change.part,
            "name": change.name,
            "path": change.path,
            "operator": change.operator,
            "equivalent": EQUIVALENT.get(change.name),
            "caught_by": self._caught_by.get(change.name),
        }


def share_of(rows: Sequence[Mapping[str, object]]) -> float:
    """Return the share of mutants that were caught, of those that are not equivalent."""
    count = sum(row["equivalent"] is None for row in rows)
    caught = sum(row["equivalent"] is None and row["caught_by"] is not None for row in rows)
    return caught / count if count else 1.0


def table(rows: Sequence[Mapping[str, object]]) -> Table:
    """Return the counts of each part, and the mutants that survived, for a terminal."""
    made = Table(title="mutants", title_justify="left")
    for column in ("part", "drawn", "equivalent", "caught", "survived", "share"):
        made.add_column(column, justify="left" if column == "part" else "right")
    parts = dict.fromkeys(str(row["part"]) for row in rows)
    for part in (*parts, "all"):
        chosen = [row for row in rows if part in (row["part"], "all")]
        equivalent = sum(row["equivalent"] is not None for row in chosen)
        left = [row for row in chosen if not row["equivalent"] and not row["caught_by"]]
        counts = (len(chosen), equivalent, len(chosen) - equivalent - len(left), len(left))
        made.add_row(part, *map(str, counts), f"{share_of(chosen):.1%}")
    survived = [row["name"] for row in rows if not row["equivalent"] and not row["caught_by"]]
    made.caption = "\n".join(f"survived: {name}" for name in survived)
    made.caption_justify = "left"
    return made


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(mutation)

if __name__ == "__main__":
    app()
