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
    calm = {one.name: chaos(one, FIRST_SEED, Terms(kills=0), open_left) for one in used}
    found = []
    for number in range(runs):
        found.append(chaos(cases[number % len(cases)], FIRST_SEED + number, terms, open_left))
        _say(found[-1])
    Console().print(_table(found, calm))
    return _figures(found, calm, kills)


def _say(one: Result) -> None:
    """Tell of a run at once: all together take long."""
    seconds, kills = one.course.seconds, one.course.kills
    sys.stderr.write(f"seed {one.seed}, {one.case.name}: {kills} kills in {seconds:.0f} s\n")
    for problem in one.problems:
        sys.stderr.write(f"seed {one.seed}, {one.case.name}, {one.folder}: {problem}\n")


def _figures(found: list[Result], calm: dict[str, Result], kills: int) -> list[Figure]:
    results = [*found, *calm.values()]
    good = sum(not one.problems for one in found)
    total = Counter[str]()
    for one in found:
        total.update(one.kills)
    parts = ", ".join(f"{total[kind]} of {kind}s" for kind in KINDS)
    fewest = min(one.course.kills for one in found)
    compared = [one.findings for one in results if one.findings is not None]
    per_kill = [_repeated(one) / max(1, one.course.kills) for one in found]
    after = [steps for one in compared for steps in one.per_loss]
    late = sum(one.late for one in compared)
    longest = max((one.longest for one in compared), default=0)
    slower = [one.course.seconds / calm[one.case.name].course.seconds for one in found]
    states = sum(one.states for one in compared)
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
            note=f"of {sum(one.steps for one in compared):,} that were trained; {late:,} had been "
            "saved, by workers that were given up",
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
    for one in found:
        looked = one.findings
        steps = ("", "", "")
        if looked is not None:
            most = max(looked.per_loss, default=0)
            steps = (f"{looked.steps:,}", str(looked.repeated), str(most))
        made.add_row(
            *(str(one.seed), one.case.name),
            " + ".join(str(one.kills[kind]) for kind in KINDS),
            str(len(one.course.done) - one.course.kills),
            *steps,
            f"{one.course.seconds:.0f}",
            f"{calm[one.case.name].course.seconds:.0f}",
            "NO" if one.problems else "yes",
        )
    return made


if __name__ == "__main__":
    sys.exit(main("chaos", measure))
