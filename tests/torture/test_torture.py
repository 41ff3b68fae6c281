"""Simulated studies under faults: nothing is violated, and what is broken on purpose is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.torture.fleet import Fleet, Machine
from tests.torture.scenario import FAULTS, TUNERS, Scenario
from tests.torture.seeds import Finding, many, shortest, torture

from .bugs import BUGS
from .parts import Parts

pytestmark = pytest.mark.slow

SEEDS = 500
"""Within so many seeds a bug must be found."""

SAMPLE = 100
"""Seeds that run with the tests; `.ci/run` runs those that follow, and `make torture` more."""


def first_violation(parts: Parts, least_faults: int = 0) -> Finding | None:
    findings = (torture(Scenario.of(seed, parts)) for seed in range(SEEDS))
    return next(
        (each for each in findings if each.problem and len(each.faults) >= least_faults), None
    )


def test_torture_of_right_code_finds_no_violation() -> None:
    findings = [one for some in many(0, SAMPLE) for one in some]
    assert len(findings) == SAMPLE
    assert [(one.command, one.problem) for one in findings if one.problem is not None] == []
    # All that can go wrong did, with every tuner.
    happened = Counter(name for one in findings for name in one.faults)
    assert {*happened} == {*FAULTS} - {"raise", "poison"}
    assert min(happened.values()) > 5
    assert {one.scenario.plan.tuner for one in findings} == {*TUNERS}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert first_violation(BUGS[bug]) is not None


def test_a_seed_decides_everything() -> None:
    for seed in range(8):
        once, again = (torture(Scenario.of(seed)) for _ in range(2))
        assert once == replace(again, scenario=once.scenario)


def test_a_finding_says_how_to_get_it_again() -> None:
    finding = first_violation(BUGS["requests-forgotten"], least_faults=2)
    assert finding is not None
    short = shortest(finding)
    command = f"python -m tests.torture --seed {finding.scenario.seed}"
    assert finding.command == f"{command} --bug requests-forgotten"
    assert short.command.startswith(command)
    assert short.command.endswith("--bug requests-forgotten")
    assert short.problem is not None
    assert len(short.faults) < len(finding.faults)
    assert short.faults[-1] in ("kill", "drain")
    assert any("FAULT" in line for line in short.story)


def test_what_needs_no_fault_is_found_without_any() -> None:
    finding = first_violation(BUGS["report-told-twice"])
    assert finding is not None
    short = shortest(finding)
    assert short.faults == ()
    assert short.command.startswith(f"python -m tests.torture --seed {finding.scenario.seed}")


@pytest.mark.slow
def test_several_processes_find_the_same() -> None:
    alone, together = (
        [(one.scenario.seed, one.events, one.faults) for some in many(7, 30, n) for one in some]
        for n in (1, 2)
    )
    assert alone == together


def test_broken_workers_fail_no_trial_while_one_is_well() -> None:
    for seed in range(40):
        scenario = Scenario.of(seed)
        plan = replace(scenario.plan, fleet=Fleet(machines=(Machine(),) * 3))
        scenario = replace(scenario, plan=plan, faults=("break",), most_faults=12)
        finding = torture(scenario)
        assert finding.problem is None, f"seed {seed}: {finding.problem}"
