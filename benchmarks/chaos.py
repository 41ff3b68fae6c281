"""Real studies on real processes that are killed, paused and cut off: how many end undisturbed."""

from __future__ import annotations

import sys
from collections import Counter
from statistics import fmean

from figures import Figure, main
from rich.console import Console
from rich.table import Table

from tests.chaos.__main__ import open_left
from tests.chaos.builtin import TUNERS
from tests.chaos.faults import KINDS
from tests.chaos.session import Case, Result, Terms, chaos

RUNS, SHORT_RUNS = 20, 1
KILLS, SHORT_KILLS = 10, 1
SHORT = ("pace=0.1",)
FIRST_SEED = 0


def measure(short: bool) -> list[Figure]:
    """Run each tuner undisturbed once, then all of them in turn under faults."""
    runs, kills = (SHORT_RUNS, SHORT_KILLS) if short else (RUNS, KILLS)
    cases = [Case.builtin(name, *(SHORT if short else ())) for name in TUNERS]
    terms = Terms(kills=kills, gap=0.5) if short else Terms(kills=kills)
    used = cases[:runs]
    calm = {each.name: chaos(each, FIRST_SEED, Terms(kills=0), open_left) for each in used}
    results = []
    for number in range(runs):
        results.append(chaos(cases[number % len(cases)], FIRST_SEED + number, terms, open_left))
        _say(results[-1])
    Console().print(_table(results, calm))
    return _figures(results, calm, kills)


def _say(one: Result) -> None:
    """Tell of a run at once: all together take long."""
    seconds, kills = one.course.seconds, one.course.kills
    sys.stderr.write(f"seed {one.seed}, {one.case.name}: {kills} kills in {seconds:.0f} s\n")
    for problem in one.problems:
        sys.stderr.write(f"seed {one.seed}, {one.case.name}, {one.folder}: {problem}\n")


def _figures(found: list[Result], calm: dict[str, Result], kills: int) -> list[Figure]:
    results = [*found, *calm.values()]
    good = sum(not each.problems for each in found)
    total = Counter[str]()
    for result in found:
        total.update(result.kills)
    parts = ", ".join(f"{total[kind]} of {kind}s" for kind in KINDS)
    fewest = min(each.course.kills for each in found)
    compared = [each.findings for each in results if each.findings is not None]
    per_kill = [_repeated(each) / max(1, each.course.kills) for each in found]
    after = [steps for each in compared for steps in each.per_loss]
    late = sum(each.late for each in compared)
    longest = max((each.longest for each in compared), default=0)
    slower = [each.course.seconds / calm[each.case.name].course.seconds for each in found]
    states = sum(each.states for each in compared)
    return [
        Figure(
            name="runs that did not end as undisturbed ones",
            value=len(found) - good,
            equals=0,
            note=f"of {len(found)}; {states:,} states compared bit for bit with lone runs",
        ),
        Figure(
            name="kills missing in the run that had fewest",
            value=max(0, kills - fewest),
            equals=0,
            note=f"kills in all: {parts}",
        ),
        Figure(
            name="steps repeated per kill, mean",
            value=fmean(per_kill),
            unit="steps",
            at_most=longest,
            note=f"of {sum(each.steps for each in compared):,} that were trained; {late:,} had "
            "been saved, by workers that were given up",
        ),
        Figure(
            name="steps repeated of one worker after one fault, most",
            value=max(after, default=0),
            unit="steps",
            at_most=longest,
            note=f"the longest stage had {longest}",
        ),
        Figure(
            name="wall time over that of an undisturbed run, mean",
            value=fmean(slower),
            unit="x",
            note=f"most {max(slower):.1f}",
        ),
    ]


def _repeated(one: Result) -> int:
    return 0 if one.findings is None else one.findings.repeated


def _table(found: list[Result], calm: dict[str, Result]) -> Table:
    """Return the runs, a line each; kills are of workers, scheduler and driver."""
    made = Table(title="runs", title_justify="left")
    for column in ("seed", "tuner", "kills", "other", "steps", "again", "most", "s", "calm", "so"):
        made.add_column(column, justify="right")
    for result in found:
        looked = result.findings
        steps = ("", "", "")
        if looked is not None:
            most = max(looked.per_loss, default=0)
            steps = (f"{looked.steps:,}", str(looked.repeated), str(most))
        made.add_row(
            *(str(result.seed), result.case.name),
            " + ".join(str(result.kills[kind]) for kind in KINDS),
            str(len(result.course.done) - result.course.kills),
            *steps,
            f"{result.course.seconds:.0f}",
            f"{calm[result.case.name].course.seconds:.0f}",
            "NO" if result.problems else "yes",
        )
    return made


if __name__ == "__main__":
    sys.exit(main("chaos", measure))
