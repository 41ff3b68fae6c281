"""Mirrored studies: translation, contents of the storage, and refusals."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial

from dasktune.algos import Grid
from dasktune.algos.optuna_sampler import distribution_of
from dasktune.engine.trials import TrialRecord
from dasktune.errors import ConfigurationError, StorageError
from dasktune.graph.plan import SearchPlan
from dasktune.mirror import Mirror, Seen, optuna_study, spans_of
from dasktune.mirror.frozen import NUMBER
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.space import Choice, Family, Float, Int, Space
from dasktune.storage.database.schema import StageRow
from dasktune.types import Direction, Objective, Register, TrialState
from tests.effort import examples

STEPS = 4
LOSS = Objective.single("loss", "minimize")
BOTH = Objective(metrics=("loss", "size"), directions=(Direction.MINIMIZE, Direction.MAXIMIZE))
SPACE = Space(
    {
        "lr": Float(1e-3, 1.0, log=True),
        "momentum": Float(0.0, 0.95, step=0.1),  # no step arrives at the upper bound
        "batch": Int(16, 127, step=16),
        "layers": Int(1, 64, log=True),
        "kind": ["plain", True, 1, None, 0.5],
        "schedule": Choice(
            [
                Constant(1.0),
                Family(MultiStep, init=Float(0.1, 1.0), milestones=[2], gamma=[0.1, 0.5]),
            ]
        ),
    }
)
NEVER = 1e6
"""Seconds between two times of writing: only closing writes."""


def sampled(number: int, **more: Any) -> TrialRecord:
    """Return a trial drawn from the space."""
    found = SPACE.sample(np.random.default_rng(number))
    return TrialRecord(
        number=number,
        tuner=0,
        local=number,
        params=found.params,
        sequences=found.sequences,
        max_steps=STEPS,
        point=found.point,
        domains=found.domains,
        **more,
    )


def gridded(number: int, tuner: int = 0, **params: Any) -> TrialRecord:
    """Return a trial of which only the values are known."""
    return TrialRecord(
        number=number,
        tuner=tuner,
        local=number,
        params=params,
        sequences={name: Constant(str(value)) for name, value in params.items()},
        max_steps=STEPS,
        state=TrialState.RUNNING,
    )


def reports(steps: int, loss: float = 1.0) -> dict[int, dict[str, float]]:
    return {step: {"loss": loss / step, "size": step} for step in range(1, steps + 1)}


def of_every_kind() -> list[Seen]:
    """Return trials in every state, with values of every kind."""
    end: dict[str, Any] = {"steps": STEPS, "state": TrialState.COMPLETE}
    return [
        (sampled(0, values=(0.25,), user_attrs={"mood": ["good", 1]}, **end), reports(STEPS)),
        (sampled(1, state=TrialState.PRUNED, steps=2, values=(0.5,)), reports(2)),
        (sampled(2, state=TrialState.FAIL, message="no", traceback="E: no"), reports(1)),
        (sampled(3, state=TrialState.RUNNING, until=STEPS), reports(3)),
        (sampled(4, state=TrialState.PAUSED, steps=1, values=(1.0,)), reports(1)),
        (sampled(5, state=TrialState.PRUNED), {}),
        (sampled(6, values=(math.nan,), **end), {1: {"loss": math.nan}, 2: {"loss": math.inf}}),
        (sampled(7, values=(-math.inf,), **end), {1: {"loss": -math.inf}, 2: {"other": 1.0}}),
    ]


@dataclass(frozen=True)
class Place:
    """Somewhere to mirror to: opened anew each time, as another process would."""

    storage: Callable[[], str | Path | BaseStorage]
    read: Callable[[], BaseStorage]

    def trials(self, name: str = "study") -> list[FrozenTrial]:
        with self.study(name) as study:
            return study.get_trials(deepcopy=True)

    @contextmanager
    def study(self, name: str = "study") -> Iterator[optuna.Study]:
        storage = self.read()
        yield optuna.load_study(study_name=name, storage=storage)
        if isinstance(storage, RDBStorage):
            storage.engine.dispose()

    def mirror(
        self, trials: Sequence[Seen] = (), objective: Objective = LOSS, name: str = "study"
    ) -> None:
        with Mirror(self.storage(), name, objective, interval=NEVER) as mirror:
            mirror.update(trials)
        assert not mirror.is_broken


def in_sqlite(folder: Path) -> Place:
    file = folder / "deep" / "mirror.db"
    return Place(storage=lambda: file, read=lambda: RDBStorage(f"sqlite:///{file}"))


def in_journal(folder: Path) -> Place:
    def journal() -> BaseStorage:
        return JournalStorage(JournalFileBackend(str(folder / "mirror.log")))

    return Place(storage=journal, read=journal)


@pytest.fixture
def sqlite(tmp_path: Path) -> Place:
    return in_sqlite(tmp_path)


@pytest.fixture
def journal(tmp_path: Path) -> Place:
    return in_journal(tmp_path)


@pytest.fixture(
    params=["sqlite", "journal", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param != "postgresql":
        yield {"sqlite": in_sqlite, "journal": in_journal}[request.param](tmp_path)
        return
    url: str = request.getfixturevalue("postgresql")
    yield Place(storage=lambda: url, read=lambda: RDBStorage(url))
    storage = RDBStorage(url)
    for study in storage.get_all_studies():
        storage.delete_study(study._study_id)
    storage.engine.dispose()


def content(trials: Sequence[FrozenTrial]) -> list[dict[str, Any]]:
    """Return the comparable part of trials: without times, NaN as text, -0.0 as 0.0."""
    return [
        {
            "number": trial.number,
            "state": trial.state,
            "values": trial.values,
            "params": {name: (type(one), one) for name, one in trial.params.items()},
            "distributions": trial.distributions,
            "user_attrs": trial.user_attrs,
            "system_attrs": trial.system_attrs,
            "reports": {step: str(one + 0.0) for step, one in trial.intermediate_values.items()},
        }
        for trial in trials
    ]


def in_memory(trials: Sequence[Seen], objective: Objective = LOSS) -> list[dict[str, Any]]:
    return content(optuna_study("study", objective, trials).trials)


# --------------------------------------------------------------------- translation


def test_translate_fills_the_fields_of_an_optuna_trial() -> None:
    seen = of_every_kind()
    study = optuna_study("study", LOSS, reversed(seen))
    first, pruned, failed, running, paused = study.trials[:5]
    assert study.study_name == "study"
    assert [trial.state.name for trial in study.trials] == [
        *("COMPLETE", "PRUNED", "FAIL", "RUNNING", "RUNNING", "PRUNED", "COMPLETE", "COMPLETE")
    ]
    assert first.params == dict(seen[0][0].point)
    assert (first.values, pruned.values, failed.values) == ([0.25], [0.5], None)
    assert (running.values, paused.values) == (None, None)
    assert first.intermediate_values == {1: 1.0, 2: 0.5, 3: 1 / 3, 4: 0.25}
    assert first.user_attrs["steps"] == STEPS
    assert first.user_attrs["mood"] == ["good", 1]
    assert first.user_attrs["sequences"]["lr"] == f"Constant({first.params['lr']!r})"
    assert failed.user_attrs["error"] == "no"


def test_translate_nan_becomes_the_worst_value() -> None:
    seen = of_every_kind()
    nan, below = optuna_study("study", LOSS, seen).trials[6:]
    assert (nan.values, below.values) == ([math.inf], [math.inf])
    assert nan.user_attrs["not finite"] == {"loss": "nan"}
    assert math.isnan(nan.intermediate_values[1])
    assert below.intermediate_values == {1: -math.inf}
    largest = Objective.single("loss", "maximize")
    assert optuna_study("study", largest, seen).trials[6].values == [-math.inf]


def test_optuna_study_has_the_same_best_trial() -> None:
    assert optuna_study("study", LOSS, of_every_kind()).best_trial.number == 0


def test_translate_several_objectives_have_no_reports() -> None:
    done: dict[str, Any] = {"state": TrialState.COMPLETE, "steps": 4}
    seen = [(sampled(0, values=(0.5, math.nan), **done), reports(4))]
    study = optuna_study("study", BOTH, seen)
    assert [one.name for one in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert study.metric_names == ["loss", "size"]
    assert study.trials[0].values == [0.5, -math.inf]
    assert study.trials[0].intermediate_values == {}


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_translate_points_lie_in_their_distributions(seed: int) -> None:
    (trial,) = in_memory([(renumbered(sampled(seed, state=TrialState.RUNNING)), {})])
    assert trial["params"].keys() == trial["distributions"].keys()


def renumbered(record: TrialRecord) -> TrialRecord:
    record.number = 0
    return record


@given(low=st.integers(-50, 50), width=st.integers(1, 100), step=st.integers(1, 30))
def test_distributions_have_exactly_the_points_of_their_domains(
    low: int, width: int, step: int
) -> None:
    if width < step:
        return
    whole = distribution_of(Int(low, low + width, step=step).to_json())
    assert isinstance(whole, IntDistribution)
    assert (whole.low, whole.high) == (low, list(Int(low, low + width, step=step).points())[-1])
    domain = Float(low / 10, (low + width) / 10, step=step / 10)
    real = distribution_of(domain.to_json())
    assert isinstance(real, FloatDistribution)
    assert real.high == list(domain.points())[-1]


def test_grid_values_become_categorical_distributions() -> None:
    grid = Grid(Space(lr=[0.1, Piecewise([0.1, 0.2], boundaries=[2])], on=[1, True]), max_steps=4)
    registered = [one for one in grid.ask(1) if isinstance(one, Register)]
    seen = [(gridded(one.trial, **one.params), {}) for one in registered]
    trials = optuna_study("study", LOSS, seen).trials
    rates = CategoricalDistribution([0.1, "Piecewise([0.1, 0.2], boundaries=[2])"])
    # To Optuna, 1 and True would be the same option.
    assert trials[0].distributions == {"lr": rates, "on": CategoricalDistribution([1, "true"])}
    assert [trial.params["on"] for trial in trials] == [1, "true", 1, "true"]
    assert {trial.params["lr"] for trial in trials} == {*rates.choices}


def test_grid_with_many_numbers_becomes_a_range() -> None:
    seen = [(gridded(n, width=n, rate=n / 4, name=f"n{n}"), {}) for n in range(101)]
    found = optuna_study("study", LOSS, seen).trials[0].distributions
    assert found["width"] == IntDistribution(0, 100)
    assert found["rate"] == FloatDistribution(0, 25)
    assert isinstance(found["name"], CategoricalDistribution)


def test_parameter_of_another_space_gets_a_numbered_name(place: Place) -> None:
    sample = sampled(0, state=TrialState.RUNNING)
    inside = gridded(3, 2, lr=sample.point["lr"], kind="plain")
    trials: list[Seen] = [
        (sample, {}),
        (gridded(1, 1, lr="high", kind=None), {}),
        (gridded(2, 1, lr="low", kind="new"), {}),
        (inside, {}),
    ]
    names = [{"lr (2)", "kind"}, {"lr (2)", "kind (2)"}, {"lr", "kind"}]
    assert [{*one["params"]} for one in in_memory(trials)[1:]] == names
    place.mirror(trials)
    assert content(place.trials()) == in_memory(trials)
    # Options that are there are not changed by those that come later.
    place.mirror([(gridded(4, 3, lr="low"), {}), (gridded(5, 3, lr="other"), {})])
    assert [{*trial.params} for trial in place.trials()[4:]] == [{"lr (2)"}, {"lr (3)"}]


def test_spans_cover_the_stages_of_each_trial() -> None:
    plan = SearchPlan("0" * 32)
    rates = [Constant(0.1), Piecewise([0.1, 0.2], boundaries=[2])]
    for number, rate in enumerate(rates):
        plan.register(number, {"lr": rate}, STEPS)
    plan.register(2, {"lr": Constant(0.5)}, STEPS)
    trunk, alone = plan.nodes_of(0)
    _, branch = plan.nodes_of(1)
    ran = [(trunk, 100.0, 110.0), (branch, 115.0, 120.0), (alone, 110.0, 0.0)]
    stages = [
        StageRow(
            study_id=1,
            attempt=str(number),
            key=node.key_at(node.stop),
            start=node.start,
            stop=node.stop,
            worker="w",
            status="trained",
            started=began,
            ended=ended or None,
            steps=1,
            repeated=0,
        )
        for number, (node, began, ended) in enumerate(ran)
    ]
    records = {n: sampled(n, steps=STEPS) for n in range(3)}
    spans = spans_of(plan, stages, records)
    assert spans == {0: (100.0, 110.0), 1: (100.0, 120.0)}
    seen = [(sampled(n, state=TrialState.PRUNED), {}) for n in range(2)]
    durations = [trial.duration for trial in optuna_study("study", LOSS, seen, spans).trials]
    assert [one.total_seconds() for one in durations if one] == [10.0, 20.0]


def test_span_ends_with_the_trial_inside_of_a_node() -> None:
    plan = SearchPlan("0" * 32)
    plan.register(0, {"lr": Constant(0.1)}, STEPS)
    plan.register(1, {"lr": Constant(0.1)}, STEPS)
    (node,) = plan.nodes_of(0)
    stages = [
        StageRow(
            study_id=1,
            attempt=str(stop),
            key=node.key_at(stop),
            start=start,
            stop=stop,
            worker="w",
            status="trained",
            started=100.0 + start,
            ended=100.0 + stop,
            steps=stop - start,
            repeated=0,
        )
        for start, stop in [(0, 2), (2, STEPS)]
    ]
    records = {0: sampled(0, steps=2), 1: sampled(1, steps=STEPS)}
    assert spans_of(plan, stages, records) == {0: (100.0, 102.0), 1: (100.0, 100.0 + STEPS)}


# ----------------------------------------------------------------------- mirroring


def test_mirror_stores_every_kind_of_trial(place: Place) -> None:
    seen = of_every_kind()
    place.mirror(seen)
    assert content(place.trials()) == in_memory(seen)
    with place.study() as study:
        assert [one.name for one in study.directions] == ["MINIMIZE"]
        assert study.metric_names == ["loss"]
        assert study.best_trial.number == 0


def test_mirror_stores_several_objectives(place: Place) -> None:
    done: dict[str, Any] = {"state": TrialState.COMPLETE, "steps": 4}
    seen = [(sampled(n, values=(0.5 + n, 3.0 - n), **done), reports(4)) for n in range(3)]
    place.mirror(seen, BOTH)
    assert content(place.trials()) == in_memory(seen, BOTH)
    with place.study() as study:
        assert [trial.number for trial in study.best_trials] == [0]


def test_mirror_shows_a_running_trial_with_its_reports(place: Place) -> None:
    record = sampled(0, state=TrialState.RUNNING, until=STEPS)
    place.mirror([(record, reports(1))])
    place.mirror([(record, reports(3))])
    (trial,) = place.trials()
    assert trial.state.name == "RUNNING"
    assert trial.intermediate_values == {1: 1.0, 2: 0.5, 3: 1 / 3}
    record.state, record.steps, record.values = TrialState.COMPLETE, STEPS, (0.25,)
    place.mirror([(record, {4: {"loss": 0.25}})])
    (done,) = place.trials()
    assert content([done]) == in_memory([(record, reports(STEPS))])
    assert done.datetime_start == trial.datetime_start
    assert done.datetime_complete is not None
    assert trial.datetime_start is not None
    assert done.datetime_complete >= trial.datetime_start


def test_mirror_repeated_update_changes_nothing(place: Place) -> None:
    seen = of_every_kind()
    place.mirror(seen)
    before = place.trials()
    place.mirror(seen)
    assert content(place.trials()) == content(before)
    assert [trial.datetime_complete for trial in place.trials()] == [
        trial.datetime_complete for trial in before
    ]


def test_mirror_writes_the_last_of_concurrent_updates(sqlite: Place) -> None:
    """The thread writes all the time, while the test changes the records."""
    records = [sampled(number) for number in range(5)]
    with Mirror(sqlite.storage(), "study", LOSS, interval=0) as mirror:
        mirror.update((record, {}) for record in records)
        for step in range(1, 41):
            for record in records:
                record.state, record.steps, record.values = TrialState.RUNNING, step, (1 / step,)
                if step == 40:
                    record.state = TrialState.COMPLETE
                mirror.update([(record, {step: {"loss": 1 / step}})])
    assert not mirror.is_broken
    assert content(sqlite.trials()) == in_memory([(record, reports(40)) for record in records])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RDBStorage]:
    storage = RDBStorage(f"sqlite:///{tmp_path_factory.mktemp('shared') / 'mirror.db'}")
    yield storage
    storage.engine.dispose()


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_table_writer_and_call_writer_give_equal_studies(
    shared: RDBStorage, data: st.DataObject
) -> None:
    """One mirror writes rows, one calls Optuna; both are opened anew now and then."""
    records = [sampled(number) for number in range(4)]
    made = 0
    name = f"study {len(shared.get_all_studies())}"
    storages = (shared, InMemoryStorage())
    for _ in range(data.draw(st.integers(1, 4))):
        made = data.draw(st.integers(made, len(records)))
        changes: list[Seen] = [(record, {}) for record in records[:made]]
        for record in records[:made]:
            if not record.state.is_finished and data.draw(st.booleans()):
                record.state = data.draw(st.sampled_from(TrialState))
                record.steps += 1
                record.values = (data.draw(st.floats()),)
                changes.append((record, {record.steps: {"loss": data.draw(st.floats())}}))
        for storage in storages:
            with Mirror(storage, name, LOSS, interval=NEVER) as mirror:
                mirror.update(changes)
            assert not mirror.is_broken
    rows, calls = (
        content(optuna.load_study(study_name=name, storage=storage).trials) for storage in storages
    )
    assert rows == calls


# ---------------------------------------------------------- trials that go on after all


def test_table_writer_changes_a_trial_that_goes_on(sqlite: Place) -> None:
    record = sampled(0, state=TrialState.PRUNED, steps=2, values=(0.5,))
    sqlite.mirror([(record, reports(2))])
    record.state, record.until = TrialState.RUNNING, STEPS
    sqlite.mirror([(record, reports(3))])
    (running,) = sqlite.trials()
    assert (running.state.name, running.values) == ("RUNNING", None)
    assert running.datetime_complete is None
    assert len(running.intermediate_values) == 3
    record.state, record.steps, record.values = TrialState.COMPLETE, STEPS, (0.25,)
    sqlite.mirror([(record, reports(STEPS))])
    assert content(sqlite.trials()) == in_memory([(record, reports(STEPS))])


def test_call_writer_warns_about_a_trial_that_goes_on(
    journal: Place, caplog: pytest.LogCaptureFixture
) -> None:
    seen = [(sampled(n, state=TrialState.PRUNED, steps=2, values=(0.5,)), {}) for n in range(2)]
    journal.mirror(seen)
    before = content(journal.trials())
    for record, _ in seen:
        record.state = TrialState.RUNNING
    journal.mirror(seen)
    assert content(journal.trials()) == before
    assert [one.message.split(";")[0] for one in caplog.records if one.name.startswith("dask")] == [
        "trial 0 has gone on after its end"
    ]


# -------------------------------------------------------------------------- failures


def test_mirror_after_a_failure_catches_up_in_the_next_run(
    sqlite: Place, caplog: pytest.LogCaptureFixture
) -> None:
    seen = of_every_kind()
    sqlite.mirror(seen[:2])
    file = str(sqlite.storage())
    with Mirror(file, "study", LOSS, interval=NEVER) as mirror:
        mirror.update(seen)
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("ALTER TABLE trial_values RENAME TO hidden")
        mirror.close()
        mirror.update(seen)
    assert mirror.is_broken
    assert [one.message.split(":")[0] for one in caplog.records if one.levelname == "WARNING"] == [
        "study study is not mirrored to Optuna any more"
    ]
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("ALTER TABLE hidden RENAME TO trial_values")
    assert len(sqlite.trials()) == 2, "what failed left nothing behind"
    sqlite.mirror(seen)
    assert content(sqlite.trials()) == in_memory(seen)


def test_mirror_of_a_deleted_study_stops(sqlite: Place, caplog: pytest.LogCaptureFixture) -> None:
    with Mirror(sqlite.storage(), "study", LOSS, interval=NEVER) as mirror:
        with sqlite.study() as study:
            optuna.delete_study(study_name="study", storage=study._storage)
        mirror.update(of_every_kind())
    assert mirror.is_broken
    assert "the study does not exist any more" in caplog.text


def test_mirror_keeps_trials_of_other_programs(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with Mirror(place.storage(), "study", LOSS, interval=NEVER) as mirror:
        with place.study() as study:
            study.add_trial(optuna.trial.create_trial(value=1.0))
        mirror.update(of_every_kind())
    assert mirror.is_broken
    assert "trial 0 would be number 1 in Optuna: another program has added" in caplog.text
    assert place.trials()[0].values == [1.0]
    with pytest.raises(ConfigurationError, match="got trial 0, which was not mirrored"):
        Mirror(place.storage(), "study", LOSS)


def test_mirror_leaves_a_refused_study_unchanged(place: Place) -> None:
    place.mirror(name="other")
    with place.study("other") as other:
        study = optuna.create_study(study_name="study", storage=other._storage)
        study.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(ConfigurationError):
        Mirror(place.storage(), "study", LOSS)
    with place.study() as study:
        assert (study.metric_names, study.user_attrs) == (None, {})
        assert len(study.trials) == 1


# -------------------------------------------------------------------------- refusals


def test_mirror_refuses_other_directions_trials_and_owners(
    place: Place,
) -> None:
    with Mirror(place.storage(), "study", LOSS, owner="mine"):
        pass
    with place.study() as study:
        study.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(ConfigurationError) as caught:
        Mirror(place.storage(), "study", BOTH, owner="yours")
    where = "study 'study' in Optuna's storage must"
    assert caught.value.problems == (
        f"{where} have directions minimize, maximize, got minimize",
        f"{where} hold mirrored trials only, got trial 0, which was not mirrored: use another name",
        f"{where} mirror 'yours', got the mirror of 'mine'",
    )


def test_mirror_adopts_an_empty_optuna_study(sqlite: Place) -> None:
    sqlite.mirror()
    with sqlite.study() as study:
        optuna.create_study(study_name="empty", storage=study._storage)
    sqlite.mirror(of_every_kind(), name="empty")
    assert len(sqlite.trials("empty")) == 8


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_mirror_refuses_a_database_in_memory(url: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a file or a database server"):
        Mirror(url, "study", LOSS)


@pytest.mark.parametrize("url", ["nonsense://x", "postgresql+psycopg://u@127.0.0.1:1/x"])
def test_mirror_unreachable_storage_is_an_error_at_once(url: str) -> None:
    with pytest.raises(StorageError, match="cannot mirror study 'study' to Optuna"):
        Mirror(url, "study", LOSS)


def test_mirror_refuses_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a database" * 100)
    with pytest.raises(StorageError, match="not a database"):
        Mirror(tmp_path / "file", "study", LOSS)


def test_mirror_shares_a_database_with_the_study(place: Place, tmp_path: Path) -> None:
    from dasktune.storage.database.database import Database

    storage = place.storage()
    if isinstance(storage, BaseStorage):
        return
    place.mirror(of_every_kind())
    database = Database(str(storage))
    ours = database.create_study("ours", root="a", spec={}, created=0.0)
    assert ours is not None
    assert ours in list(database.studies())
    database.delete_study(ours.id, roots=["a"])  # other tests use the server, too
    database.close()
    place.mirror(of_every_kind())
    assert len(place.trials()) == 8


def test_mirror_marks_each_trial(sqlite: Place) -> None:
    sqlite.mirror(of_every_kind())
    assert [trial.system_attrs[NUMBER] for trial in sqlite.trials()] == [*range(8)]


@pytest.mark.process
def test_import_of_mirror_does_not_load_optuna() -> None:
    code = "import sys, dasktune.mirror; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --------------------------------------------------------------------- visualization


@pytest.fixture(scope="module")
def varied() -> optuna.Study:
    done: dict[str, Any] = {"state": TrialState.COMPLETE, "steps": STEPS}
    seen = [
        (sampled(n, values=(1 / (n + 1),), **done), reports(STEPS, 1 / (n + 1))) for n in range(20)
    ]
    return optuna_study("study", LOSS, [*seen, (sampled(20, state=TrialState.RUNNING), reports(2))])


@pytest.mark.parametrize(
    ("plot", "shown"),
    [
        ("plot_optimization_history", ["Objective Value", "Best Value"]),
        ("plot_intermediate_values", [f"Trial{number}" for number in range(21)]),
        ("plot_parallel_coordinate", [*SPACE.names]),
        ("plot_slice", [*SPACE.names, "schedule.MultiStep.init"]),
        ("plot_param_importances", [*SPACE.names]),
        ("plot_timeline", ["COMPLETE", "RUNNING"]),
    ],
)
def test_optuna_draws_the_study(varied: optuna.Study, plot: str, shown: list[str]) -> None:
    figure = getattr(optuna.visualization, plot)(varied)
    assert figure.data
    assert [name for name in shown if f'"{name}"' not in figure.to_json()] == []


def test_optuna_draws_every_report(varied: optuna.Study) -> None:
    curves = optuna.visualization.plot_intermediate_values(varied).data
    assert [(list(one.x), list(one.y)) for one in (curves[1], curves[20])] == [
        ([1, 2, 3, 4], [0.5, 0.25, 1 / 6, 0.125]),
        ([1, 2], [1.0, 0.5]),
    ]


def test_optuna_draws_the_pareto_front() -> None:
    done: dict[str, Any] = {"state": TrialState.COMPLETE, "steps": STEPS}
    values = [(0.1, 1.0), (0.2, 3.0), (0.3, 2.0)]
    seen = [(sampled(n, values=one, **done), {}) for n, one in enumerate(values)]
    study = optuna_study("study", BOTH, seen)
    figure = optuna.visualization.plot_pareto_front(study)
    assert [trial.number for trial in study.best_trials] == [0, 1]
    assert figure.layout.xaxis.title.text == "loss"
    assert sorted(len(one.x) for one in figure.data) == [1, 2]
