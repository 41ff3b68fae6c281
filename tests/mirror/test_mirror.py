"""Snapshots of studies: translation, contents of the storage, and refusals."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial

from dasktune._engine.trials import TrialRecord
from dasktune.algos import Grid
from dasktune.algos.optuna_sampler import distribution_of
from dasktune.errors import ConfigurationError, StorageError
from dasktune.graph.plan import SearchPlan
from dasktune.mirror import Seen, optuna_study, spans_of
from dasktune.mirror.storages import write_snapshot
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.space import Choice, Family, Float, Int, Space
from dasktune.storage.database.rows import StageRow
from dasktune.types import Direction, Objective, Register, TrialState

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
    """An Optuna storage: opened anew each time, as another process would."""

    storage: Callable[[], str | Path | BaseStorage]
    read: Callable[[], BaseStorage]

    def trials(self) -> list[FrozenTrial]:
        with self.study() as study:
            return study.get_trials(deepcopy=True)

    @contextmanager
    def study(self) -> Iterator[optuna.Study]:
        storage = self.read()
        yield optuna.load_study(study_name="study", storage=storage)
        if isinstance(storage, RDBStorage):
            storage.engine.dispose()

    def write(
        self, trials: Sequence[Seen] = (), objective: Objective = LOSS, owner: str = "mine"
    ) -> None:
        write_snapshot(optuna_study("study", objective, trials), self.storage(), owner)


def in_sqlite(folder: Path) -> Place:
    file = folder / "deep" / "optuna.db"
    return Place(storage=lambda: file, read=lambda: RDBStorage(f"sqlite:///{file}"))


def in_journal(folder: Path) -> Place:
    def journal() -> BaseStorage:
        return JournalStorage(JournalFileBackend(str(folder / "optuna.log")))

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
        optuna.delete_study(study_name=study.study_name, storage=storage)
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
    place.write(trials)
    assert content(place.trials()) == in_memory(trials)


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


# ------------------------------------------------------------------------ storages


def test_snapshot_in_a_storage_has_every_kind_of_trial(place: Place) -> None:
    seen = of_every_kind()
    place.write(seen)
    assert content(place.trials()) == in_memory(seen)
    with place.study() as study:
        assert [one.name for one in study.directions] == ["MINIMIZE"]
        assert study.metric_names == ["loss"]
        assert study.best_trial.number == 0


def test_snapshot_in_a_storage_has_several_objectives(place: Place) -> None:
    done: dict[str, Any] = {"state": TrialState.COMPLETE, "steps": 4}
    seen = [(sampled(n, values=(0.5 + n, 3.0 - n), **done), reports(4)) for n in range(3)]
    place.write(seen, BOTH)
    assert content(place.trials()) == in_memory(seen, BOTH)
    with place.study() as study:
        assert [trial.number for trial in study.best_trials] == [0]


def test_snapshot_takes_the_place_of_the_one_before(place: Place) -> None:
    """Trials may go on after their end, which Optuna forbids, and the objective may be another."""
    record = sampled(0, state=TrialState.PRUNED, steps=2, values=(0.5,))
    place.write([(record, reports(2))])
    record.state, record.until = TrialState.RUNNING, STEPS
    place.write([(record, reports(3))])
    record.state, record.steps, record.values = TrialState.COMPLETE, STEPS, (0.25, 1.0)
    seen = [(record, reports(STEPS)), (sampled(1, state=TrialState.RUNNING), reports(1))]
    place.write(seen, BOTH)
    assert content(place.trials()) == in_memory(seen, BOTH)


def test_snapshot_of_another_study_is_kept(place: Place) -> None:
    place.write(of_every_kind(), owner="yours")
    with pytest.raises(ConfigurationError, match="but it is no snapshot of this study"):
        place.write()
    assert content(place.trials()) == in_memory(of_every_kind())


def test_snapshot_with_trials_of_other_programs_is_kept(place: Place) -> None:
    place.write(of_every_kind())
    with place.study() as study:
        study.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(ConfigurationError, match="but trial 8 was added to it"):
        place.write(of_every_kind())
    assert len(place.trials()) == 9


def test_study_of_another_program_is_kept(place: Place) -> None:
    place.write()
    storage = place.read()
    optuna.delete_study(study_name="study", storage=storage)
    other = optuna.create_study(study_name="study", storage=storage)
    other.add_trial(optuna.trial.create_trial(value=1.0))
    if isinstance(storage, RDBStorage):
        storage.engine.dispose()
    with pytest.raises(ConfigurationError, match="but it is no snapshot of this study"):
        place.write(of_every_kind())
    assert len(place.trials()) == 1


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a file or a database server"):
        write_snapshot(optuna_study("study", LOSS, ()), url, "mine")


@pytest.mark.parametrize("url", ["nonsense://x", "postgresql+psycopg://u@127.0.0.1:1/x"])
def test_unreachable_storage_is_an_error(url: str) -> None:
    with pytest.raises(StorageError, match="cannot write study 'study' to Optuna"):
        write_snapshot(optuna_study("study", LOSS, ()), url, "mine")


def test_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a database" * 100)
    with pytest.raises(StorageError, match="not a database"):
        write_snapshot(optuna_study("study", LOSS, ()), tmp_path / "file", "mine")


def test_optuna_shares_a_database_with_the_study(place: Place, tmp_path: Path) -> None:
    from dasktune.storage.database.database import Database

    storage = place.storage()
    if isinstance(storage, BaseStorage):
        return
    place.write(of_every_kind())
    database = Database(str(storage))
    ours = database.create_study("ours", root="a", spec={}, created=0.0)
    assert ours is not None
    assert ours in list(database.studies())
    database.delete_study(ours.id, roots=["a"])  # other tests use the server, too
    database.close()
    place.write(of_every_kind())
    assert len(place.trials()) == 8


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
