"""Tests of the checks on the files of a run: each kind of damage is detected."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dasktune._study.create import create_study
from dasktune._study.study import Study
from dasktune.algos import SHA
from dasktune.sequences import Constant, MultiStep
from dasktune.space import Space
from dasktune.storage.codec import encode
from tests.chaos.builtin import Descent
from tests.chaos.faults import UNHEARD, Done, Fault
from tests.chaos.lone import Alone
from tests.chaos.verify import Findings, verify
from tests.chaos.witness import Trained

SPACE = Space(
    lr=[Constant(0.1), Constant(0.3), MultiStep(0.1, [3], gamma=0.1)], momentum=[0.0, 0.5]
)
TUNER = SHA(SPACE, trials=4, max_steps=8, min_steps=4, eta=2, seed=0)
CALM = {"pace": 0}

Trail = list[Trained]


def open_study(folder: Path, **more: Any) -> Study:
    return create_study(
        Descent,
        name="chaos",
        storage=folder,
        metric="loss",
        config=CALM,
        load_if_exists=True,
        **more,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, two_threads: Client) -> Path:
    """Return the folder of a study that has ended."""
    folder = tmp_path_factory.mktemp("ran")
    study = open_study(folder)
    study.optimize(TUNER, client=two_threads, progress=False, last_line=False)
    study.close()
    return folder


@pytest.fixture
def study(ran: Path, tmp_path: Path) -> Iterator[Study]:
    """Return a copy of the study, to be damaged."""
    shutil.copytree(ran, tmp_path / "copy")
    opened = open_study(tmp_path / "copy")
    yield opened
    opened.close()


def trail(study: Study, *, merge: bool = True) -> Trail:
    """Return the trail of one worker that trains every trial now, merged steps once."""
    alone, now = Alone(Descent, config=CALM, seed=0, report_every=1), time.time()
    states = [
        (digest, step)
        for record in study.records.values()
        for step, digest in enumerate(alone.run(record.sequences, record.steps).digests, 1)
    ]
    return [
        Trained(process="worker-0.0", attempt="0-a", began=now, at=now, step=step, digest=digest)
        for digest, step in (dict(states).items() if merge else states)
    ]


def check(study: Study, trained: Trail | None = None, done: tuple[Done, ...] = ()) -> Findings:
    """Open the study anew, as a command does, and look."""
    opened = open_study(Path(study.store.url))
    alone = Alone(Descent, config=CALM, seed=0, report_every=1)
    try:
        return verify(opened, TUNER, alone, trail(opened) if trained is None else trained, done)
    finally:
        opened.close()


def test_a_study_that_nothing_happened_to_is_in_order(study: Study) -> None:
    found = check(study)
    assert found.problems == []
    assert found.reports == 6
    assert found.states >= 4
    assert found.metrics == found.steps == found.unique == study.summary()["steps_unique"]
    assert (found.repeated, found.per_loss) == (0, [])


@pytest.mark.parametrize("more", [{"report_every": 3}, {"merge": False}], ids=str)
def test_verify_accepts_fewer_metrics_and_unmerged_trials(
    tmp_path: Path, two_threads: Client, more: dict[str, Any]
) -> None:
    study = open_study(tmp_path, **more)
    study.optimize(TUNER, client=two_threads, progress=False, last_line=False)
    alone = Alone(Descent, config=CALM, seed=0, report_every=study.report_every)
    trained = trail(study, merge=more.get("merge", True))
    found = verify(study, TUNER, alone, trained, ())
    assert found.problems == []
    assert found.repeated == 0
    assert found.unique == study.summary()["steps_executed"]
    study.close()


def edit(study: Study, statement: str, *values: object) -> None:
    database = sqlite3.connect(Path(study.store.url) / "dasktune.db")
    with database:
        assert database.execute(statement, values).rowcount > 0
    database.close()


def last_key(study: Study) -> str:
    """Return the key of the last state of a trial that is complete."""
    number = study.best_trial.number
    return study.plan.node_at(number, 8).key_at(8)


def another_metric(study: Study) -> None:
    row = next(iter(study.database.metrics(study.plan.root_key_of(study.plan.node_at(0, 1)))))
    wrong = json.dumps({"loss": row.values["loss"] + 1e-16 + row.values["loss"] * 1e-15})
    edit(study, 'update dasktune_metrics set "values" = ? where key = ?', wrong, row.key)


def another_state(study: Study) -> None:
    key = last_key(study)
    state, commit = study.store.load(key)
    study.store.discard(key)
    state["weight"] = state["weight"].copy()
    state["weight"][0] += 1e-12
    study.store.save(encode(state), key=key, attempt="9-f", step=8, reports=commit.reports)


def another_metric_in_a_commit(study: Study) -> None:
    key = last_key(study)
    state, _ = study.store.load(key)
    study.store.discard(key)
    reports = [(8, {"loss": 0.5})]
    study.store.save(encode(state), key=key, attempt="9-f", step=8, reports=reports)


def a_state_is_gone(study: Study) -> None:
    study.store.discard(last_key(study))


def a_state_cannot_be_read(study: Study) -> None:
    key = last_key(study)
    path = Path(study.store.url) / "checkpoints" / key[:2] / key / "commit"
    document = json.loads(path.read_bytes())
    document["c.0"] = ""  # the bytes of a small state
    path.write_text(json.dumps(document))


def a_state_of_nobody(study: Study) -> None:
    state, _ = study.store.load(last_key(study))
    study.store.save(encode(state), key="abcd1234", attempt="9-f", step=8)


def payloads(study: Study, kind: str) -> list[tuple[int, dict[str, object]]]:
    return [
        (one.number, one.payload) for one in study.database.events(1) if one.payload["kind"] == kind
    ]


def another_report(study: Study) -> None:
    number, payload = payloads(study, "tell")[0]
    payload["metrics"] = {"loss": 0.25}
    edit(
        study,
        "update dasktune_events set payload = ? where number = ?",
        json.dumps(payload),
        number,
    )


def another_decision(study: Study) -> None:
    number, payload = payloads(study, "tell")[-1]
    payload["decisions"] = []
    edit(
        study,
        "update dasktune_events set payload = ? where number = ?",
        json.dumps(payload),
        number,
    )


def a_report_is_gone(study: Study) -> None:
    number, _ = payloads(study, "tell")[0]
    edit(study, "delete from dasktune_events where number = ?", number)


def a_failure(study: Study) -> None:
    edit(study, "update dasktune_trials set state = 'FAIL' where number = 0")


def steps_that_nobody_trained(study: Study) -> None:
    edit(study, "update dasktune_stages set steps = steps + 100")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (another_metric, "a lone run {'loss'"),
        (another_state, "at step 8 is not that of a lone run"),
        (another_metric_in_a_commit, "comes with other metrics of step 8"),
        (a_state_is_gone, "the store has not"),
        (a_state_cannot_be_read, "cannot be read"),
        (a_state_of_nobody, "that is no trial's"),
        (another_report, "reported {'loss': 0.25}"),
        (another_decision, "replay is different"),
        (a_report_is_gone, "undisturbed (4,"),
        (a_report_is_gone, "there is no replay"),
        (a_failure, "trial 0 failed"),
        (steps_that_nobody_trained, "steps are counted as executed"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_damage_is_found(study: Study, damage: Callable[[Study], None], problem: str) -> None:
    damage(study)
    found = check(study)
    assert any(problem in one for one in found.problems), found.problems


def kill(at: float, name: str = "kill-worker", process: str = "worker-0.0") -> Done:
    fault = Fault(at=1.0, name=name, seconds=0.0, which=0.0)
    return Done(fault=fault, process=process, at=at)


def again(one: Trained, seconds: float) -> Trained:
    later = one.at + seconds
    return replace(one, process="worker-1.0", attempt="1-a", began=later, at=later)


def lost(study: Study) -> tuple[Trail, list[Trained]]:
    """Return a trail in the past, and the part of it that is not durable."""
    trained = [replace(one, at=one.at - 60, began=one.began - 60) for one in trail(study)]
    durable = {study.store.load(key)[1].digest for key in list(study.store.keys())}
    return trained, [one for one in trained if one.digest not in durable]


def test_what_was_lost_may_be_trained_again(study: Study) -> None:
    trained, gone = lost(study)
    done = (kill(gone[0].at + 1),)
    found = check(study, [*trained, *(again(one, 2) for one in gone[:2])], done)
    assert found.problems == []
    assert (found.repeated, found.late, found.per_loss) == (2, 0, [2])
    assert found.steps == found.unique + 2


@pytest.mark.parametrize("name", ["kill-scheduler", "kill-driver"])
def test_what_is_lost_with_all_workers_may_be_trained_again(study: Study, name: str) -> None:
    trained, gone = lost(study)
    done = (kill(gone[0].at + 1, name, "other.0"),)
    assert check(study, [*trained, again(gone[0], 2)], done).problems == []


@pytest.mark.parametrize(
    "done", [(), (kill(0.0, process="worker-1.0"),)], ids=["nothing", "another's end"]
)
def test_nothing_is_trained_again_for_no_reason(study: Study, done: tuple[Done, ...]) -> None:
    trained, gone = lost(study)
    found = check(study, [*trained, again(gone[0], 2)], done)
    assert [one.endswith("for no reason") for one in found.problems] == [True]


def test_what_is_durable_is_not_trained_again(study: Study) -> None:
    trained, gone = lost(study)
    kept = next(one for one in trained if one not in gone)
    done = (kill(kept.at + 1),)
    found = check(study, [*trained, again(kept, 120)], done)
    assert len(found.problems) == 1
    assert "had saved it" in found.problems[0]


@pytest.mark.parametrize("name", ["kill-worker", "cut-worker", "hide-worker", "freeze-worker"])
def test_what_a_worker_saves_unheard_is_let_pass_and_counted(study: Study, name: str) -> None:
    trained, _ = lost(study)
    commit = next(iter(study.store.commits(list(study.store.keys())).values()))
    trained = [replace(one, attempt=commit.attempt) for one in trained]
    kept = next(one for one in trained if one.digest == commit.digest)
    done = (kill(kept.at - 1, name),)
    found = check(study, [*trained, again(kept, 120)], done)
    is_unheard = name in UNHEARD
    assert (found.late, len(found.problems)) == ((1, 0) if is_unheard else (0, 1))


def test_a_fault_costs_no_more_than_a_stage(study: Study) -> None:
    trained, gone = lost(study)
    done = (kill(gone[0].at + 1),)
    more = [again(one, 2 + number) for number in range(20) for one in gone[:1]]
    back = [replace(one, process="worker-0.0", attempt=f"2-{n:x}") for n, one in enumerate(more)]
    found = check(study, [*trained, *back], done)
    assert any("a stage has at most" in one for one in found.problems)


def test_verify_finds_a_differing_state_without_a_checkpoint(study: Study) -> None:
    trained, _ = lost(study)
    found = check(study, [*trained, replace(trained[0], digest="0" * 32)])
    assert "that no lone run has" in found.problems[0]
