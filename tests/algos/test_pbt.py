"""Population based training: who is replaced, by whom, and what a child is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune.algos.fixed import SingleTrial
from dasktune.algos.pbt import PBT
from dasktune.algos.samplers import RandomSource
from dasktune.errors import ConfigurationError
from dasktune.graph.cost import cost_of
from dasktune.sequences import Constant, Exponential, Joined, Linear, Sequence
from dasktune.space import Branch, Choice, Family, Float, Int, Space
from dasktune.space.define_by_run import Suggesting
from dasktune.types import Decision, Extend, Finish, Register, Step, Stop, Value
from tests.algos.reports import arrived
from tests.effort import examples

SPACE = Space(
    lr=Family(Exponential, init=Float(0.01, 1.0, log=True), gamma=[0.9, 0.95, 0.99]),
    batch_size=[16, 32, 64, 128],
    layers=Int(1, 9),
    optimizer=[Branch("sgd", Space(momentum=Float(0.0, 0.9))), "adam"],
)


def make(**changes: object) -> PBT:
    arguments: dict[str, object] = {"population": 5, "max_steps": 6, "every": 2, **changes}
    return PBT(SPACE, **arguments)  # type: ignore[arg-type]


class Driver:
    """Keeps what a tuner decided, and reports in any order."""

    def __init__(self, tuner: PBT) -> None:
        self.tuner = tuner
        self.registered: dict[int, Register] = {}
        self.wanted: dict[int, Step] = {}
        self.reached: dict[int, Step] = {}
        self.living: set[int] = set()
        self.finished = False
        self.log: list[object] = []

    def ask(self, capacity: int = 1) -> list[Decision]:
        return self.take(self.tuner.ask(capacity))

    def tell(self, trial: int, loss: float) -> list[Decision]:
        step = self.wanted.pop(trial)
        self.reached[trial] = step
        if step == self.tuner.max_steps:
            self.living.remove(trial)
        return self.take(self.tuner.tell(arrived(trial, step, loss)))

    def fail(self, trial: int) -> list[Decision]:
        del self.wanted[trial]
        self.living.remove(trial)
        return self.take(self.tuner.tell_failure(trial))

    def take(self, decisions: list[Decision]) -> list[Decision]:
        for one in decisions:
            assert not self.finished
            match one:
                case Register():
                    assert one.trial == len(self.registered)
                    self.registered[one.trial] = one
                    self.living.add(one.trial)
                case Extend():
                    assert one.trial in self.living
                    assert one.trial not in self.wanted
                    assert one.until > self.reached.get(one.trial, 0)
                    self.wanted[one.trial] = one.until
                case Stop():
                    self.wanted.pop(one.trial, None)
                    self.living.remove(one.trial)
                case Finish():
                    assert not self.wanted
                    assert not self.living
                    self.finished = True
        self.log.append([one if not isinstance(one, Register) else repr(one) for one in decisions])
        return decisions


def sequences(driver: Driver, trial: int) -> dict[str, Sequence]:
    return dict(driver.registered[trial].sequences)  # type: ignore[arg-type]


def test_an_example_worked_by_hand() -> None:
    driver = Driver(make())
    begun = driver.ask()
    assert [type(one) for one in begun] == [Register] * 5 + [Extend] * 5
    assert begun[5:] == [Extend(trial=trial, until=2) for trial in range(5)]
    assert driver.ask(4) == []

    # At step 2, four are too few for a bottom of a fifth. The fifth is the worst: a child.
    assert driver.tell(0, 5.0) == [Extend(trial=0, until=4)]
    assert driver.tell(1, 4.0) == [Extend(trial=1, until=4)]
    assert driver.tell(2, 3.0) == [Extend(trial=2, until=4)]
    assert driver.tell(3, 2.0) == [Extend(trial=3, until=4)]
    stop, child, extend = driver.tell(4, 9.0)
    assert stop == Stop(trial=4)
    assert isinstance(child, Register)
    assert (child.trial, child.max_steps) == (5, 6)
    assert extend == Extend(trial=5, until=4)
    donor, rest = driver.registered[3], SPACE.at(child.point)
    assert all(
        child.sequences[name](step) == donor.sequences[name](step)
        for name in donor.sequences
        for step in range(2)
    )
    assert all(
        child.sequences[name](step) == rest.sequences[name](step)
        for name in donor.sequences
        for step in range(2, 6)
    )
    assert child.params == rest.params

    # At step 4 the child comes fifth, and shows that trial 1, under way to step 6, is worst.
    for trial, loss in ((3, 2.0), (0, 1.0), (2, 4.0), (1, 8.0)):
        assert driver.tell(trial, loss) == [Extend(trial=trial, until=6)]
    stop, child, *extends = driver.tell(5, 7.0)
    assert stop == Stop(trial=1)
    assert isinstance(child, Register)
    assert child.sequences["lr"](3) == driver.registered[0].sequences["lr"](3)
    assert extends == [Extend(trial=5, until=6), Extend(trial=6, until=6)]

    # Step 6 is the end: nobody is replaced any more.
    for trial in (6, 0, 2, 5):
        assert driver.tell(trial, 1.0) == []
    assert driver.tell(3, math.inf) == [Finish()]
    assert driver.ask(9) == []


def test_the_donor_is_of_the_top_and_any_of_it() -> None:
    donors = set()
    for seed in range(40):
        driver = Driver(make(population=10, seed=seed))
        driver.ask()
        for trial in range(9):
            driver.tell(trial, 9.0 - trial)
        stop, child, *_ = driver.tell(9, 99.0)
        assert stop == Stop(trial=9)
        assert isinstance(child, Register)
        first = child.sequences["lr"](0)
        donors |= {trial for trial in range(10) if sequences(driver, trial)["lr"](0) == first}
    assert donors == {7, 8}


def test_an_infinite_loss_is_the_worst_and_never_a_donors() -> None:
    driver = Driver(make())
    driver.ask()
    for trial in range(4):
        assert driver.tell(trial, math.inf) == [Extend(trial=trial, until=4)]
    # The best of five is the donor; of those at infinity the youngest ranks last.
    stop, child, *extends = driver.tell(4, 1.0)
    assert stop == Stop(trial=3)
    assert isinstance(child, Register)
    assert child.sequences["lr"](1) == driver.registered[4].sequences["lr"](1)
    assert extends == [Extend(trial=4, until=4), Extend(trial=5, until=4)]
    driver = Driver(make())
    driver.ask()
    for trial in range(5):
        assert driver.tell(trial, math.inf) == [Extend(trial=trial, until=4)]


def test_a_failed_member_is_replaced_once_it_has_reported() -> None:
    driver = Driver(make(population=6))
    driver.ask()
    assert driver.fail(5) == []
    for trial, loss in enumerate([1.0, 2.0, 3.0, 4.0]):
        driver.tell(trial, loss)
    assert [type(one) for one in driver.tell(4, 5.0)] == [Stop, Register, Extend]
    # Trial 1 fails on its way to step 4: a child of the best at step 2 takes its place.
    child, extend = driver.fail(1)
    assert isinstance(child, Register)
    assert extend == Extend(trial=7, until=4)
    assert child.sequences["lr"](1) == sequences(driver, 0)["lr"](1)
    # A child that fails before it reports is not; nor is there a donor once the best failed.
    assert driver.fail(7) == []
    assert [type(one) for one in driver.fail(0)] == []
    assert driver.tuner.tell_failure(0) == []
    assert driver.fail(2) == []
    assert driver.living == {3, 6}


def test_child_has_the_rank_of_the_model_of_its_donor() -> None:
    driver = Driver(make(population=10, max_steps=20, sampler=dt.Forest(priority=False)))
    run(driver, np.random.default_rng(3))
    assert len(driver.registered) > 10
    rank_of = {"sgd": set[float | None](), "adam": set[float | None]()}
    for each in driver.registered.values():
        rank_of[str(each.point["optimizer"])].add(each.model_rank)
    assert rank_of == {"sgd": {1.0}, "adam": {0.0}}


def test_child_keeps_fixed_coordinates_and_branch_of_the_donor() -> None:
    driver = Driver(make(population=10, max_steps=20, fixed=["layers", "lr.gamma"], resample=1.0))
    run(driver, np.random.default_rng(3))
    children = [trial for trial in driver.registered if trial >= 10]
    assert len(children) >= 5
    members = driver.tuner.snapshot()["state"]["members"]  # type: ignore[index]
    changed = 0
    for trial in children:
        _, point, parent, *_ = members[trial]
        inherited = members[parent][1]
        assert point["optimizer"] == inherited["optimizer"]
        assert {name: point[name] for name in ("layers", "lr.gamma")} == {
            name: inherited[name] for name in ("layers", "lr.gamma")
        }
        assert sequences(driver, trial)["layers"] == sequences(driver, parent)["layers"]
        changed += point["lr.init"] != inherited["lr.init"]
    assert changed == len(children)


def run(
    driver: Driver,
    rng: np.random.Generator,
    *,
    failing: float = 0.0,
    idle: bool = False,
    each: Callable[[], None] = lambda: None,
) -> None:
    """Report in a random order until the end."""
    driver.ask()
    while not driver.finished:
        each()
        if not driver.wanted or (idle and rng.random() < 0.2):
            before = driver.tuner.snapshot()
            if not driver.ask(2):
                assert driver.wanted
                assert driver.tuner.snapshot() == before
            continue
        trial = sorted(driver.wanted)[int(rng.integers(len(driver.wanted)))]
        if rng.random() < failing:
            driver.fail(trial)
        else:
            driver.tell(trial, math.inf if rng.random() < 0.1 else float(rng.random()))


ORDERS = st.integers(0, 10**6)


@settings(deadline=None, max_examples=examples(40))
@given(ORDERS)
def test_child_equals_its_donor_up_to_its_birth(seed: int) -> None:
    driver = Driver(make(max_steps=13, population=6, resample=0.5))
    run(driver, np.random.default_rng(seed))
    members = driver.tuner.snapshot()["state"]["members"]  # type: ignore[index]
    for trial, (_, point, parent, born, *_) in enumerate(members):
        mine, own = sequences(driver, trial), SPACE.at(point).sequences
        assert driver.registered[trial].point == point
        for name, sequence in mine.items():
            assert sequence.values(born, 13) == own[name].values(born, 13)
            if parent is not None:
                assert sequence.values(0, born) == sequences(driver, parent)[name].values(0, born)
            assert not any(isinstance(piece, Joined) for piece in sequence.leaves())
    cost = cost_of([(one.sequences, 13) for one in driver.registered.values()], workers=1)
    assert cost.steps_unique <= sum(13 - born for _, _, _, born, *_ in members)


@settings(deadline=None, max_examples=examples(40))
@given(ORDERS, st.sampled_from([2, 3, 4, 5]), st.booleans(), st.sampled_from([0.0, 0.1]))
def test_no_member_is_further_than_the_window_from_the_slowest(
    seed: int, window: int, idle: bool, failing: float
) -> None:
    driver = Driver(make(max_steps=9, window=window, populations=3, population=6))

    def check() -> None:
        members = driver.tuner.snapshot()["state"]["members"]  # type: ignore[index]
        for population in range(3):
            mine = [t for t in driver.living if members[t][0] == population]
            steps = [max(members[t][3], driver.reached.get(t, 0)) for t in mine]
            furthest = [
                max(driver.wanted.get(t, 0), step) for t, step in zip(mine, steps, strict=True)
            ]
            assert max(furthest, default=0) - min(steps, default=0) <= window

    run(driver, np.random.default_rng(seed), idle=idle, failing=failing, each=check)
    members = driver.tuner.snapshot()["state"]["members"]  # type: ignore[index]
    assert {one[0] for one in members} == {0, 1, 2}
    assert len(members) <= driver.tuner.trials


def test_window_holds_fast_members_and_begins_a_population() -> None:
    driver = Driver(make(window=2, populations=2))
    assert len(driver.ask()) == 10
    assert driver.tell(0, 1.0) == []
    assert driver.tell(1, 1.0) == []
    begun = driver.ask(1)
    assert begun[5:] == [Extend(trial=trial, until=2, priority=-1.0) for trial in range(5, 10)]
    assert driver.ask(1) == []
    assert driver.tell(2, 1.0) == []
    assert driver.tell(3, 1.0) == []
    # The last of five, and equal: the one with the largest number ranks last.
    stop, child, *extends = driver.tell(4, 1.0)
    assert (stop, type(child)) == (Stop(trial=4), Register)
    assert extends == [Extend(trial=trial, until=4) for trial in (0, 1, 2, 3, 10)]


def test_member_without_a_window_waits_for_no_other() -> None:
    driver = Driver(make())
    driver.ask()
    assert driver.tell(0, 1.0) == [Extend(trial=0, until=4)]
    assert driver.tell(0, 1.0) == [Extend(trial=0, until=6)]
    assert driver.tell(0, 1.0) == []


def test_trials_limit_the_registered_members() -> None:
    for seed in range(5):
        driver = Driver(make(trials=7, max_steps=40, populations=2))
        run(driver, np.random.default_rng(seed))
        assert len(driver.registered) == 7
    driver = Driver(make(max_steps=12))
    assert driver.tuner.trials == 30
    assert make(max_steps=13, populations=4).trials == 140


class Listening(RandomSource):
    """Draws at random, and keeps what it hears of."""

    def __init__(self) -> None:
        super().__init__(SPACE, 0)
        self.heard: list[int] = []

    def observe(self, trial: int, step: Step, losses: tuple[float, ...]) -> None:
        self.heard.append(trial)

    def fail(self, trial: int) -> None:
        self.heard.append(trial)


@pytest.mark.parametrize(
    ("changes", "left"),
    [({}, [5, 0]), ({"populations": 2}, [10, 5, 0]), ({"populations": 2, "trials": 9}, [5, 0])],
)
def test_free_workers_begin_populations_but_no_children(
    changes: dict[str, object], left: list[int]
) -> None:
    driver, found = Driver(make(**changes)), []
    for _ in left:
        found.append(driver.tuner.to_begin)
        driver.ask()
    assert found == left


def test_sampler_observes_only_sampled_members() -> None:
    source = Listening()
    driver = Driver(make(sampler=source, population=10, max_steps=12))
    run(driver, np.random.default_rng(0), failing=0.05)
    assert len(driver.registered) > 10
    assert set(source.heard) == set(range(10))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"population": 4}, "population must be >= 5 with truncation 0.2, got 4"),
        ({"truncation": 0.6}, "truncation must be > 0 and <= 0.5, got 0.6"),
        ({"perturb": ()}, r"perturb must be factors > 0 other than 1, got \[\]"),
        ({"perturb": (1.2, -1)}, r"got \[1.2, -1.0\]"),
        ({"resample": 2}, "resample must be >= 0 and <= 1, got 2.0"),
        ({"window": 1}, "window must be >= every, which is 2, got 1"),
        ({"trials": 4}, "trials must be >= population, which is 5, got 4"),
        ({"every": 0}, "every must be >= 1, got 0"),
        ({"max_steps": 0}, "max_steps must be >= 1, got 0"),
        ({"fixed": ["depth"]}, "unknown hyper-parameter or coordinate 'depth'; known: batch_size"),
    ],
)
def test_bad_arguments_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**changes)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(population=0, every=0, max_steps=0, seed=-1)
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigurationError, match="ends at step 3, max_steps is 6"):
        PBT(Space(lr=[Linear(0.1, 0.2, period=3), Constant(0.1)]), max_steps=6)


def defined(trial: Suggesting) -> dict[str, object]:
    width = trial.suggest_int("width", 1, 9)
    lr = trial.suggest_float("lr", 0.0, 1.0 / width)
    if trial.suggest_categorical("decay", [True, False]):
        return {"lr": Exponential(lr, trial.suggest_float("gamma", 0.5, 1.0)), "width": width}
    return {"lr": lr, "width": width, "momentum": trial.suggest_float("momentum", 0.0, 1.0)}


def test_a_space_may_be_defined_by_running_a_function() -> None:
    tuner = PBT(defined, population=20, max_steps=20, every=2, fixed=["width"])
    driver = Driver(tuner)
    run(driver, np.random.default_rng(0))
    members = tuner.snapshot()["state"]["members"]  # type: ignore[index]
    assert len(members) > 30
    kept = 0
    for trial in range(20, len(members)):
        _, point, parent, *_ = members[trial]
        assert sequences(driver, trial).keys() == sequences(driver, parent).keys()
        assert point["width"] == members[parent][1]["width"]
        kept += point == members[parent][1]
    # A child that would have other hyper-parameters is one in two.
    assert 0 < kept < len(members) - 20


# ------------------------------------------------------------------------------ to the end


def curve(values: Mapping[str, Value], step: Step) -> float:
    lr, layers = values["lr"], values["layers"]
    assert isinstance(lr, float)
    assert isinstance(layers, int)
    return (lr - 0.1) ** 2 + abs(layers - 4) + 1 / step


@pytest.mark.parametrize("workers", [1, 7])
def test_a_simulated_study_runs_to_its_end_and_gets_better(workers: int) -> None:
    tuner = PBT(SPACE, population=10, max_steps=40, every=4, window=8, populations=2)
    found = dt.simulate(tuner, curve, workers=workers)
    assert len(found.trials) > 20
    ended = [trial for trial in found.trials if trial.state.value == "COMPLETE"]
    assert len(ended) == 20
    assert {trial.state.value for trial in found.trials} == {"COMPLETE", "PRUNED"}
    best = found.best_trial
    assert best is not None
    assert best.number >= 10
    assert best.value < min(curve_of(trial, 40) for trial in found.trials[:10])  # type: ignore[operator]
    # A child trains no step that it inherits: each of the 20 places costs 40 steps at most,
    # and what its members were trained beyond the step that they were stopped for.
    stopped = sum(trial.state.value == "PRUNED" for trial in found.trials)
    assert found.steps_executed <= 20 * 40 + 3 * stopped
    assert found.steps_repeated == 0


def test_members_that_always_come_first_are_replaced_too() -> None:
    space = Space(x=Float(0.0, 1.0))
    tuner = PBT(space, population=10, max_steps=20, every=2)

    def far(values: Mapping[str, Value], step: Step) -> float:
        assert isinstance(values["x"], float)
        return values["x"]

    found = dt.simulate(tuner, far, workers=10)
    born = [member[3] for member in tuner.snapshot()["state"]["members"]]  # type: ignore[index]
    # All come to a step at once, in the same order each time: a fifth of them is replaced.
    assert all(born.count(step) >= 2 for step in range(2, 20, 2))
    assert {trial.number for trial in found.trials if trial.steps == 20} > {len(born) - 1}


def curve_of(trial: dt.Trial, step: Step) -> float:
    return curve({name: one(step - 1) for name, one in trial.sequences.items()}, step)


def test_the_winners_schedule_run_alone_shares_every_step() -> None:
    found = dt.simulate(PBT(SPACE, population=10, max_steps=40, every=4), curve, workers=3)
    best = found.best_trial
    assert best is not None
    trained = [(trial.sequences, trial.steps) for trial in found.trials]
    before = cost_of(trained, workers=1)
    again = cost_of([*trained, (best.sequences, 40)], workers=1)
    assert again.steps_unique == before.steps_unique
    alone = dt.simulate(SingleTrial(best.sequences, 40), curve)
    assert alone.trials[0].value == best.value


def test_a_choice_of_schedules_goes_on_in_absolute_steps() -> None:
    space = Space(lr=Choice([Exponential(1.0, 0.5), Linear(1.0, 0.0, period=8)]))
    tuner = PBT(space, population=5, max_steps=8, every=2, resample=0.0)
    driver = Driver(tuner)
    driver.ask()
    for trial in range(4):
        driver.tell(trial, 1.0 + trial)
    driver.tell(4, 9.0)
    child, parent = sequences(driver, 5)["lr"], sequences(driver, 0)["lr"]
    options = [Exponential(1.0, 0.5), Linear(1.0, 0.0, period=8)]
    other = options[1 - options.index(parent)]  # type: ignore[arg-type]
    assert child == parent[:2] >> other[2:]
