"""Option groups: their fields, and the flat signature of commands that take them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from dasktune import Limits
from dasktune.cli import app
from dasktune.cli.options import (
    AuditFlags,
    ClusterFlags,
    LimitFlags,
    LogFlags,
    SlurmFlags,
    TimeoutFlags,
    flat,
    given,
)
from dasktune.cli.submit import DriverFlags
from dasktune.cli.target import RunSettings
from dasktune.slurm import SlurmOptions
from dasktune.slurm.submit import DriverOptions


def names(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)}


@dataclass(frozen=True, kw_only=True)
class Size:
    width: Annotated[int, typer.Option(help="Columns.")] = 3
    tags: Annotated[list[str] | None, typer.Option("--tag")] = None


@flat
def draw(name: str, *, size: Size, loud: bool = False) -> None:
    typer.echo(f"{name} {size.width} {given(size)} {loud}")


def test_flat_command_takes_the_fields_of_its_groups() -> None:
    assert list(inspect.signature(draw).parameters) == ["name", "width", "tags", "loud"]
    app = typer.Typer()
    app.command()(draw)
    done = CliRunner().invoke(app, ["net", "--width", "5", "--tag", "a", "--loud"])
    assert done.output == "net 5 {'width': 5, 'tags': ['a']} True\n"


def test_given_leaves_out_options_without_a_value() -> None:
    assert given(Size(), LimitFlags(steps=3)) == {"width": 3, "steps": 3}


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        (ClusterFlags, RunSettings),
        (TimeoutFlags, RunSettings),
        (AuditFlags, RunSettings),
        (LogFlags, RunSettings),
        (SlurmFlags, SlurmOptions),
    ],
)
def test_fields_of_a_group_are_fields_of_its_value(group: Any, kind: Any) -> None:
    assert names(group) <= names(kind)


def test_groups_cover_all_fields_that_run_and_submit_can_set() -> None:
    groups = (ClusterFlags, TimeoutFlags, AuditFlags, LogFlags)
    assert set().union(*map(names, groups)) == names(RunSettings)
    assert names(LimitFlags) == names(Limits) - {"alike_failures"}, "--keep-going sets that"
    assert {f"driver_{name}" for name in names(DriverOptions)} - names(DriverFlags) == {
        "driver_prologue"
    }


def test_the_help_of_run_has_groups_and_plain_types() -> None:
    shown = CliRunner().invoke(app, ["run", "--help"]).stdout
    headings = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    groups = ["Cluster:", "Security:", "SLURM jobs (with --slurm):", "Limits:", "Check and audit:"]
    assert headings == ["Arguments:", "Options:", *groups, "Log:"]
    assert "<" not in shown
    assert "Usage: root run [OPTIONS] FILE\n" in shown
    commands = CliRunner().invoke(app, ["--help"]).stdout
    assert "..." not in commands.partition("Commands:")[2]
