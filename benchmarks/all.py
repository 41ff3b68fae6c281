"""Run every benchmark, one after the other; write one JSON document and a table for people.

``--table overhead`` runs those of dasktune's own cost, in about 15 minutes on 2 idle cores;
``--table papers`` those that have figures of the four papers, ours beside theirs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import Figure, row

NAMES = (
    "merging",
    "reuse",
    "structure",
    "ways",
    "driver_cost",
    "large",
    "overhead",
    "checkpoints",
    "database",
    "utilisation",
    "fair_share",
    "hippo",
    "asha",
    "shadho",
    "branching",
)
WITH_DATA = ("auto", "predictions", "time_to_target", "branching")
"""Those that need recorded curves, or have more tasks with them."""

TABLES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "overhead": {
        "overhead": (),
        "merging": (),
        "checkpoints": (),
        "large": ("--parts", "simulated"),
    },
    "papers": {
        "hippo": (),
        "asha": (),
        "shadho": (),
    },
}
"""The benchmarks of a table, in its order, and their options."""

HYPERDRIVE = (
    *("--sources", "algoperf", "lcbench", "own", "rl"),
    *("--policies", "POP", "Bandit", "EarlyTerm"),
    *("--orders", "10", "--slots", "4"),
)
"""Options of `time_to_target` in the table of the papers: as many orders and slots as there."""

HERE = Path(__file__).parent


def main() -> int:
    """Return 1 if a bound was missed or a benchmark failed, else 0."""
    parser = argparse.ArgumentParser(prog="all.py")
    parser.add_argument("--json", type=Path, default=Path("runs/benchmarks.json"))
    parser.add_argument("--markdown", type=Path, default=Path("runs/benchmarks.md"))
    parser.add_argument("--table", choices=TABLES, help="only the benchmarks of this table")
    parser.add_argument("--short", action="store_true", help="try them on something small")
    parser.add_argument("--data", type=Path, help="folder of recorded curves, for more of them")
    parser.add_argument("--hardware", type=Path, help="gavel_throughputs.csv.gz, for one of them")
    options = parser.parse_args()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    documents, failed = [], []
    for name, more in _chosen(options).items():
        document = run(name, [*more, *(["--short"] if options.short else ())])
        if document is None:
            failed.append(name)
        else:
            documents.append(document)
    options.json.write_text(
        json.dumps({"benchmarks": documents, "failed": failed}, indent=2) + "\n"
    )
    options.markdown.write_text(markdown(documents))
    for name in failed:
        sys.stderr.write(f"benchmark {name} failed\n")
    missed = [
        figure
        for document in documents
        for figure in document["figures"]
        if figure["reached"] is False
    ]
    return int(bool(missed or failed))


def _chosen(options: argparse.Namespace) -> Mapping[str, Sequence[str]]:
    """Return the benchmarks that are asked for, and the options of each."""
    data = ("--data", str(options.data))
    if options.table is not None:
        chosen = dict(TABLES[options.table])
        if options.table == "papers" and options.data is not None:
            chosen["time_to_target"] = (*data, *HYPERDRIVE)
        return chosen
    chosen = dict.fromkeys(NAMES, ())
    if options.data is not None:
        chosen |= dict.fromkeys(WITH_DATA, data)
    if options.hardware is not None:
        chosen["hardware"] = ("--data", str(options.hardware))
    return chosen


def run(name: str, options: Iterable[str]) -> dict[str, Any] | None:
    """Run one in a process of its own; return its document, or None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(path), *options]
        subprocess.run(command, check=False)
        return json.loads(path.read_text()) if path.exists() else None


def markdown(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return all figures as one table."""
    lines = ["| benchmark | figure | value | bound | reached | note |", "|---|---|--:|--:|---|---|"]
    for document in documents:
        for figure in document["figures"]:
            parts = {name: value for name, value in figure.items() if name != "reached"}
            cells = (document["benchmark"], *row(Figure(**parts)))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
