"""What all commands keep to: the arguments that many take, exit codes, JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dasktune.algos.base import Tuner
    from dasktune.study.study import Study

DONE, FAILED, MISUSED, STOPPED = 0, 1, 2, 130
"""Exit codes."""

StudyPath = Annotated[
    Path, typer.Argument(metavar="FILE", help="Python file that defines study and tuner.")
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="KEY=VALUE",
        help="Argument for the file's study() and tuner(), as JSON or text. May be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(document: object) -> None:
    """Print a document."""
    typer.echo(json.dumps(document, indent=2))


def picture_problems(path: Path | None) -> list[str]:
    """Return why a picture cannot be written to what ``--plot`` names; None asks for none."""
    if path is None or (path.suffix == ".svg" and path.parent.is_dir() and not path.is_dir()):
        return []
    return [f"--plot must be an .svg in a folder that exists, got {str(path)!r}"]


def open_study(file: Path, config: Sequence[str] | None) -> tuple[Study, Tuner]:
    """Return a file's study and tuner; the tuner first, since it makes nothing."""
    from dasktune.cli.study_file import load

    loaded = load(file, config or ())
    tuner = loaded.tuner()
    return loaded.study(), tuner
