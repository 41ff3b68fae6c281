"""The command ``torture``: simulated studies in which everything goes wrong that can."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dasktune.errors import unknown

if TYPE_CHECKING:
    from tests.torture.parts import Parts
    from tests.torture.scenario import Scenario
    from tests.torture.seeds import Finding


def torture(
    seeds: Annotated[int, typer.Option(min=1, help="How many to run.")] = 2000,
    start: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="How many run at a time.")] = 1,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run this one alone, and tell its story.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=0, help="With --seed: let so many things go wrong.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="FAULT,...", help="With --seed: let only these go wrong, or none."),
    ] = None,
    bug: Annotated[
        str | None, typer.Option(metavar="NAME", help="Plant this bug: torture must find it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check dasktune itself: simulated studies under faults, decided by seeds.

    Workers crash, messages are lost, the driver is killed; after every event it is checked
    that nothing is lost, trained twice or decided otherwise. Exit code 1 if anything is; the
    command that does the same again is printed.
    """
    from tests.torture.seeds import many, shortest

    if seed is None and (most is not None or only is not None):
        raise typer.BadParameter("--most and --only need --seed")
    parts = _parts(bug)
    began, count, bad = time.perf_counter(), 0, []
    if seed is not None:
        bad, count = _one(_scenario(seed, most, only, parts)), 1
    else:
        for findings in many(start, seeds, processes, parts):
            count += len(findings)
            for finding in findings:
                if finding.problem is not None:
                    bad.append(shortest(finding))
                    if not as_json:
                        _tell(bad[-1])
    rate = count / (time.perf_counter() - began)
    if as_json:
        found = [{"command": one.command, "problem": one.problem} for one in bad]
        document = {"seeds": count, "seeds_per_second": rate, "violations": found}
        typer.echo(json.dumps(document, indent=2))
    else:
        typer.echo(f"{count:,} seeds, {rate:,.0f} a second: {len(bad) or 'no'} violations")
    if bad:
        raise typer.Exit(1)


def _parts(bug: str | None) -> Parts:
    from tests.torture.bugs import BUGS
    from tests.torture.parts import PARTS

    if bug is not None and bug not in BUGS:
        raise typer.BadParameter(unknown("bug", bug, BUGS))
    return PARTS if bug is None else BUGS[bug]


def _scenario(seed: int, most: int | None, only: str | None, parts: Parts) -> Scenario:
    from tests.torture.scenario import FAULTS, Scenario

    scenario = Scenario.of(seed, parts)
    if most is not None:
        scenario = replace(scenario, most_faults=most)
    if only is not None:
        names = () if only == "none" else tuple(only.split(","))
        for name in names:
            if name not in FAULTS:
                raise typer.BadParameter(unknown("fault", name, FAULTS))
        scenario = replace(scenario, faults=names)
    return scenario


def _one(scenario: Scenario) -> list[Finding]:
    from tests.torture.seeds import torture

    finding = torture(scenario)
    if finding.problem is None:
        return []
    _tell(finding)
    return [finding]


def _tell(finding: Finding) -> None:
    typer.echo(f"{finding.command}\n  {finding.problem}", err=True)
    for line in finding.story:
        typer.echo(f"    {line}", err=True)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(torture)

if __name__ == "__main__":
    app()
