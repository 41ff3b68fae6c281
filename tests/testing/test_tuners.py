"""The conformance suite passes right tuners, and names what is wrong with others."""

from __future__ import annotations

import doctest
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

import pytest

from dasktune.algos import Grid, Random, Tuner
from dasktune.algos.base import Inputs, Proposal
from dasktune.algos.curves import Curve, Persistence, Prediction, Question
from dasktune.algos.fixed import SingleTrial
from dasktune.algos.samplers import RandomSource
from dasktune.sequences import Constant, Exponential, Warmup
from dasktune.space import Configuration, Float, Int, Space
from dasktune.testing import ConformanceError, TunerConformance
from dasktune.types import (
    Decision,
    Extend,
    Finish,
    Predict,
    Rank,
    Register,
    Report,
    Stop,
)

SPACE = Space(lr=Float(0.01, 1.0, log=True), batch_size=Int(16, 64))


class LoggedSource(RandomSource):
    """A sampler as far as the log is concerned."""

    logged = True

    def identity(self) -> object:
        return "logged"


class LearningSource(LoggedSource):
    learns = True


class Conformance(TunerConformance):
    seeds = range(4)  # all capacities; with and without inputs, restored tuners prepared and not


class TestGrid(TunerConformance):
    def make(self, seed: int) -> Tuner:
        return Grid(Space(lr=[0.1, Exponential(0.1, gamma=0.9), 0.2], momentum=[0.0, 0.9]), 12)


class TestRandom(Conformance):
    def make(self, seed: int) -> Tuner:
        return Random(SPACE, trials=9, max_steps=12, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return Random(SPACE, trials=14, max_steps=12, seed=seed)


class TestRandomWithASampler(Conformance):
    source: ClassVar[type[RandomSource]] = LoggedSource

    def make(self, seed: int) -> Tuner:
        return Random(SPACE, trials=9, max_steps=12, sampler=self.source(SPACE, seed))

    def make_wider(self, seed: int) -> Tuner:
        return Random(SPACE, trials=14, max_steps=12, sampler=self.source(SPACE, seed))


class TestRandomWithALearningSampler(TestRandomWithASampler):
    source = LearningSource


class TestSingleTrial(TunerConformance):
    def make(self, seed: int) -> Tuner:
        return SingleTrial({"lr": Warmup(5, 0.1) >> Constant(0.1)}, 12)


def documented() -> type[Tuner]:
    """Return the tuner in the docstring of `Tuner`."""
    names: dict[str, type[Tuner]] = {"Tuner": Tuner}
    for test in doctest.DocTestFinder(recurse=False).find(Tuner, "Tuner"):
        for example in test.examples:
            exec(example.source, names)
    return names["BestOfThree"]


class TestDocumentedTuner(Conformance):
    def make(self, seed: int) -> Tuner:
        return documented()()


class BestTwo(Tuner):
    """Trains six values to step 2, and the best two of them to step 10."""

    max_steps = 10
    state: ClassVar[tuple[str, ...]] = ("asked", "open", "arrived")

    def __init__(self, seed: int = 0) -> None:
        self.asked = False
        self.open: list[int] = []
        self.arrived: list[list[float]] = []

    def ask(self, capacity: int) -> list[Decision]:
        if self.asked:
            return []
        self.asked = True
        self.open = list(range(6))
        registered = [self.register(trial) for trial in range(6)]
        return [*registered, *(Extend(trial=trial, until=2) for trial in range(6))]

    def register(self, trial: int) -> Register:
        return Register(trial=trial, sequences={"lr": Constant(trial)}, max_steps=10)

    def tell(self, report: Report) -> list[Decision]:
        if report.step == 2:
            self.arrived.append([report.loss, report.trial])
        return self.close(report.trial)

    def tell_failure(self, trial: int) -> list[Decision]:
        return self.close(trial)

    def close(self, trial: int) -> list[Decision]:
        self.open.remove(trial)
        if self.open:
            return []
        self.open, self.arrived = self.best(self.arrived), []
        return [Extend(trial=trial, until=10) for trial in self.open] or self.end()

    def best(self, arrived: list[list[float]]) -> list[int]:
        return [int(trial) for loss, trial in sorted(arrived)[:2] if loss < math.inf]

    def end(self) -> list[Decision]:
        return [Finish()]

    def identity(self) -> dict[str, object]:
        return {"tuner": type(self).__name__}


class TestBestTwo(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return BestTwo(seed)


class ReportingOnTheWay(BestTwo):
    """Stops by what is reported while the training goes on."""

    def ask(self, capacity: int) -> list[Decision]:
        found = super().ask(capacity)
        return [
            replace(one, until=10, reports=(2, 5)) if isinstance(one, Extend) else one
            for one in found
        ]

    def tell(self, report: Report) -> list[Decision]:
        if report.step == 10:
            self.open.remove(report.trial)
        elif report.step == 2 and self.is_bad(report):
            self.open.remove(report.trial)
            return [Stop(trial=report.trial), *([] if self.open else [Finish()])]
        return [] if self.open else [Finish()]

    def tell_failure(self, trial: int) -> list[Decision]:
        self.open.remove(trial)
        return [] if self.open else [Finish()]

    def is_bad(self, report: Report) -> bool:
        self.arrived.append([report.loss, report.trial])
        return len(self.arrived) > 2 and report.loss >= sorted(self.arrived)[1][0]


class TestReportingOnTheWay(Conformance):
    def make(self, seed: int) -> Tuner:
        return ReportingOnTheWay(seed)


class Predicting(ReportingOnTheWay):
    """Asks at step 2 what will be at step 10, and stops who will have more than is there."""

    state = (*BestTwo.state, "seen")

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.seen: list[list[float]] = []

    def tell(self, report: Report) -> list[Decision]:
        if math.isfinite(report.loss):
            self.seen.append([report.trial, report.step, -report.loss])
        if report.step == 10:
            return self.leave(report.trial)
        return self.ask_about(report.trial, report.step) if math.isfinite(report.loss) else []

    def ask_about(self, trial: int, step: int) -> list[Decision]:
        return [Predict(trial=trial)] if step == 2 else []

    def question(self, trial: int) -> Question:
        seen = [(int(step), score) for one, step, score in self.seen if one == trial]
        steps, scores = zip(*seen, strict=True)
        curve = Curve(steps=steps, scores=scores, max_steps=10)
        return Question(predictor=Persistence(), curve=curve, steps=self.future(steps[-1]))

    def future(self, after: int) -> tuple[int, ...]:
        return (10,)

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        if prediction is None or trial not in self.open:
            return []
        bad = prediction.medians[-1] < max(score for _, _, score in self.seen)
        return [Stop(trial=trial), *self.leave(trial)] if bad else []

    def leave(self, trial: int) -> list[Decision]:
        self.open.remove(trial)
        return [] if self.open else [Finish()]


class TestPredicting(Conformance):
    ranks = False

    def make(self, seed: int) -> Tuner:
        return Predicting(seed)


class Hurried(BestTwo):
    """Ends after three seconds, whatever has come by then."""

    timed = True
    state = (*BestTwo.state, "over")
    over = False

    @property
    def due_seconds(self) -> float | None:
        return None if self.over else 3.0

    def tell_time(self, seconds: float) -> list[Decision]:
        self.over = True
        return [Finish()]

    def end(self) -> list[Decision]:
        self.over = True
        return super().end()


class TestHurried(Conformance):
    ranks = False

    def make(self, seed: int) -> Tuner:
        return Hurried(seed)


# --------------------------------------------------------------------------- wrong tuners


class ExtendsTheFailed(BestTwo):
    def tell_failure(self, trial: int) -> list[Decision]:
        self.arrived.append([0.0, trial])
        return self.close(trial)


class ForgetsFinish(BestTwo):
    def end(self) -> list[Decision]:
        return []


class ForgetsFailures(BestTwo):
    def tell_failure(self, trial: int) -> list[Decision]:
        return []


class UsesTheGlobalGenerator(BestTwo):
    def register(self, trial: int) -> Register:
        return replace(super().register(trial), sequences={"lr": Constant(random.random())})


class SharesStateBetweenTuners(BestTwo):
    seen: ClassVar[list[int]] = []

    def best(self, arrived: list[list[float]]) -> list[int]:
        self.seen.append(1)
        return super().best(arrived)[: 1 + len(self.seen) % 3]


class HidesState(BestTwo):
    state = ("asked", "open")


class RestoresLess(BestTwo):
    def restore(self, snapshot: Mapping[str, object]) -> None:
        super().restore({**snapshot, "arrived": []})


class HoldsMoreThanJson(BestTwo):
    def snapshot(self) -> dict[str, object]:
        return {"asked": self.asked, "open": set(self.open), "arrived": self.arrived}


class HandsOutItsState(BestTwo):
    def snapshot(self) -> dict[str, object]:
        return {"asked": self.asked, "open": self.open, "arrived": self.arrived}


def later_first(arrival: list[float]) -> tuple[float, float]:
    return arrival[0], -arrival[1]


class PrefersTheLater(BestTwo):
    def best(self, arrived: list[list[float]]) -> list[int]:
        return super().best(arrived) and [int(t) for _, t in sorted(arrived, key=later_first)[:2]]


class WaitsForAFiniteLoss(BestTwo):
    def close(self, trial: int) -> list[Decision]:
        losses = [loss for loss, _ in self.arrived]
        found = super().close(trial)
        return [] if losses and min(losses) == math.inf else found


class LikesInfinity(BestTwo):
    def best(self, arrived: list[list[float]]) -> list[int]:
        finite = [[loss if loss < math.inf else -math.inf, trial] for loss, trial in arrived]
        return super().best(finite)


class PromotesAFixedNumber(BestTwo):
    """Ranks the infinite last, and yet promotes them where the finite are too few."""

    def best(self, arrived: list[list[float]]) -> list[int]:
        return [int(trial) for _, trial in sorted(arrived)[:2]]


class DecidesByTheMetric(BestTwo):
    def tell(self, report: Report) -> list[Decision]:
        return super().tell(replace(report, losses=(report.metrics["loss"],)))


class CountsEmptyAsks(BestTwo):
    state = (*BestTwo.state, "asks")
    asks = 0

    def ask(self, capacity: int) -> list[Decision]:
        self.asks += 1
        return super().ask(capacity)


class CountsFromOne(BestTwo):
    def register(self, trial: int) -> Register:
        return replace(super().register(trial), trial=trial + 1)


class RegistersTooLate(BestTwo):
    def ask(self, capacity: int) -> list[Decision]:
        return list(reversed(super().ask(capacity)))


class AsksForTheSameAgain(BestTwo):
    def end(self) -> list[Decision]:
        return [Extend(trial=0, until=2)]


class GoesTooFar(BestTwo):
    def register(self, trial: int) -> Register:
        return replace(super().register(trial), max_steps=9)


class GoesOnAfterFinish(BestTwo):
    def end(self) -> list[Decision]:
        return [Finish(), Rank(trial=0, priority=1.0)]


class ExtendsTheStopped(ReportingOnTheWay):
    def tell(self, report: Report) -> list[Decision]:
        found = super().tell(report)
        return [*found, Extend(trial=report.trial, until=9)] if len(found) == 1 else found


class ReportsInDisorder(ReportingOnTheWay):
    def ask(self, capacity: int) -> list[Decision]:
        return [
            replace(one, reports=(5, 2)) if isinstance(one, Extend) else one
            for one in super().ask(capacity)
        ]


class RanksByInfinity(BestTwo):
    def end(self) -> list[Decision]:
        return [Rank(trial=0, priority=math.inf), Finish()]


class RunsOutOfValues(BestTwo):
    def register(self, trial: int) -> Register:
        return replace(super().register(trial), sequences={"lr": Warmup(5, 0.1)})


class HidesItsParams(BestTwo):
    def register(self, trial: int) -> Register:
        return replace(super().register(trial), params={"lr": Constant(0.1)})


class ReturnsText(BestTwo):
    def end(self) -> list[Decision]:
        return ["finish"]  # type: ignore[list-item]


class NeverEnds(BestTwo):
    def ask(self, capacity: int) -> list[Decision]:
        return super().ask(capacity) or [Rank(trial=0, priority=1.0)]

    def end(self) -> list[Decision]:
        return []


class ChangesItsIdentity(BestTwo):
    def identity(self) -> dict[str, object]:
        return {"tuner": "ChangesItsIdentity", "asked": self.asked}


class HasNoJsonIdentity(BestTwo):
    def identity(self) -> dict[str, object]:
        return {"tuner": HasNoJsonIdentity}


class AnnouncesOthers(BestTwo):
    @property
    def configurations(self) -> tuple[Configuration, ...]:
        return (Configuration(params={"lr": 7}, sequences={"lr": Constant(7)}),)


class PredictsAgain(Predicting):
    def ask_about(self, trial: int, step: int) -> list[Decision]:
        return [Predict(trial=trial)]


class PredictsTheStopped(Predicting):
    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        found = super().tell_prediction(trial, prediction)
        return [found[0], Predict(trial=trial)] if found else []


class PredictsTheUnknown(Predicting):
    def ask_about(self, trial: int, step: int) -> list[Decision]:
        return [Predict(trial=trial + 6)]


class HasNoQuestion(Predicting):
    def question(self, trial: int) -> Question:
        return Tuner.question(self, trial)


class AsksForThePast(Predicting):
    def future(self, after: int) -> tuple[int, ...]:
        return (after,)


class CountsQuestions(Predicting):
    def future(self, after: int) -> tuple[int, ...]:
        self.arrived.append([0.0, 0])
        return (10,)


class HidesItsCurves(Predicting):
    state = BestTwo.state


class TrustsInItsPredictions(Predicting):
    """Waits at step 2 for the prediction."""

    def ask(self, capacity: int) -> list[Decision]:
        return [
            replace(one, until=2, reports=()) if isinstance(one, Extend) else one
            for one in super().ask(capacity)
        ]

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        return [] if prediction is None else [Extend(trial=trial, until=10)]


class ThinksThatTimeStoodStill(Predicting):
    """Takes it that no trial has gone on while it was predicted."""

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        return [Extend(trial=trial, until=5)]


class IsAlwaysDue(Hurried):
    def tell_time(self, seconds: float) -> list[Decision]:
        return []


class IsNeverDue(Hurried):
    @property
    def due_seconds(self) -> float | None:
        return math.inf


class WaitsForTheClock(Hurried):
    """Finishes only when some time has passed."""

    state = (*BestTwo.state, "late")
    due_seconds = None
    late = False

    def tell(self, report: Report) -> list[Decision]:
        self.late = report.now is not None and report.now.seconds > 0
        return super().tell(report)

    def end(self) -> list[Decision]:
        return [Finish()] if self.late else []


class Sampling(Random):
    """A right tuner with a sampler, for wrong ones to inherit from."""

    def __init__(self, seed: int = 0, trials: int = 6) -> None:
        super().__init__(SPACE, trials=trials, max_steps=8, sampler=LoggedSource(SPACE, seed))


class ReplaysBackwards(Sampling):
    def feed_proposals(self, proposals: Iterable[Proposal]) -> None:
        super().feed_proposals(reversed(list(proposals)))


class SamplesAgainInAReplay(Sampling):
    def feed_proposals(self, proposals: Iterable[Proposal]) -> None:
        pass


class ForgetsTheQueue(Sampling):
    def prepare(self, inputs: Inputs) -> None:
        super().prepare({})


class ForgetsTheQueueInItsSnapshot(Sampling):
    def snapshot(self) -> dict[str, object]:
        return {**super().snapshot(), "queue": []}


class GrowsByNothing(Sampling):
    def widen(self, trials: int) -> list[Decision]:
        self.trials = trials
        return [Finish()]


class GrowsIntoAnother(Sampling):
    def widen(self, trials: int) -> list[Decision]:
        self.seed += 1
        return super().widen(trials)


class DoesNotKnowItself(Sampling):
    growing = False


WRONG = [
    (ExtendsTheFailed, "it_goes_on_when_trials_fail", "trial . failed and must not be extended"),
    (ForgetsFinish, "it_ends_in_any_order_of_reports", "waits for nothing must finish"),
    (ForgetsFailures, "it_ends_when_every_trial_fails", "waits for nothing must finish"),
    (WaitsForAFiniteLoss, "it_ends_when_every_loss_is_infinite", "waits for nothing must finish"),
    (LikesInfinity, "an_infinite_loss_is_ranked_last", "infinite losses and must not go on beyond"),
    (PromotesAFixedNumber, "an_infinite_loss_is_never_promoted", "must not be promoted"),
    (
        PrefersTheLater,
        "ties_go_to_the_elder",
        "trial 4 must not go on .* the elder 0 has",
    ),
    (DecidesByTheMetric, "maximizing_mirrors_minimizing", "negated metric is maximised"),
    (UsesTheGlobalGenerator, "the_same_calls_give_the_same_decisions", "for the same seed and cal"),
    (SharesStateBetweenTuners, "the_same_calls_give_the_same_decisions", "call .*, before it was"),
    (HidesState, "a_snapshot_holds_all_of_the_state", "after restoring snapshots"),
    (RestoresLess, "a_snapshot_holds_all_of_the_state", "was restored as"),
    (
        HandsOutItsState,
        "a_snapshot_holds_all_of_the_state",
        "stay as it was when the tuner goes on",
    ),
    (HoldsMoreThanJson, "a_snapshot_holds_all_of_the_state", "snapshot must be JSON"),
    (ForgetsTheQueueInItsSnapshot, "a_snapshot_holds_all_of_the_state", "after restoring snapshot"),
    (CountsEmptyAsks, "an_empty_ask_changes_nothing", "returns nothing must change nothing"),
    (CountsFromOne, "it_ends_in_any_order_of_reports", "numbered 0, 1, 2.*expected 0, got 1"),
    (RegistersTooLate, "it_ends_in_any_order_of_reports", "must be registered before"),
    (AsksForTheSameAgain, "it_ends_in_any_order_of_reports", "until must lie between"),
    (GoesTooFar, "it_ends_in_any_order_of_reports", "max_steps is 9: until must lie between"),
    (GoesOnAfterFinish, "it_ends_in_any_order_of_reports", "decided after Finish, got rank 0 at 1"),
    (ExtendsTheStopped, "it_ends_in_any_order_of_reports", "was stopped and must not be extended"),
    (ReportsInDisorder, "it_ends_in_any_order_of_reports", "reports must ascend"),
    (RanksByInfinity, "it_ends_in_any_order_of_reports", "priority must be finite"),
    (RunsOutOfValues, "it_ends_in_any_order_of_reports", "lr must be defined for 10 steps"),
    (HidesItsParams, "it_ends_in_any_order_of_reports", "must be JSON"),
    (ReturnsText, "it_ends_in_any_order_of_reports", "must return decisions, got 'finish'"),
    (NeverEnds, "it_ends_in_any_order_of_reports", "must finish within 500 calls"),
    (ChangesItsIdentity, "the_identity_is_stable_json", "identity must stay the same.*at the end"),
    (HasNoJsonIdentity, "the_identity_is_stable_json", "identity must be JSON"),
    (AnnouncesOthers, "it_tries_what_it_announced", "trial 0 must be as announced"),
    (PredictsAgain, "it_ends_in_any_order_of_reports", "not be predicted again before its"),
    (
        PredictsTheStopped,
        "it_ends_in_any_order_of_reports",
        "was stopped and must not be predicted",
    ),
    (PredictsTheUnknown, "it_ends_in_any_order_of_reports", "must be registered before"),
    (HasNoQuestion, "it_ends_in_any_order_of_reports", "must return a Question"),
    (AsksForThePast, "it_ends_in_any_order_of_reports", "must have an answer"),
    (CountsQuestions, "it_ends_in_any_order_of_reports", "must leave the state"),
    (HidesItsCurves, "a_snapshot_holds_all_of_the_state", "questions must be the same"),
    (TrustsInItsPredictions, "it_ends_however_predictions_come", "waits for nothing must finish"),
    (ThinksThatTimeStoodStill, "it_ends_in_any_order_of_reports", "until must lie between"),
    (IsAlwaysDue, "it_ends_at_any_pace_of_the_clock", "due_seconds must move on"),
    (IsNeverDue, "it_ends_at_any_pace_of_the_clock", "must be None or finite, got inf"),
    (WaitsForTheClock, "it_ends_at_any_pace_of_the_clock", "waits for nothing must finish"),
    (ReplaysBackwards, "a_replay_of_its_log_gives_the_same_decisions", "fed from the log"),
    (
        SamplesAgainInAReplay,
        "a_replay_of_its_log_gives_the_same_decisions",
        "must have the recorded proposals",
    ),
    (ForgetsTheQueue, "queued_points_are_tried_first", "must be as queued"),
    (GrowsByNothing, "it_goes_on_with_more_trials", "must register more trials"),
    (GrowsIntoAnother, "it_goes_on_with_more_trials", "wider identity"),
    (DoesNotKnowItself, "it_goes_on_with_more_trials", "must be widened from"),
]


class Suite(TunerConformance):
    most_calls = 500

    def __init__(self, kind: type[BestTwo] | type[Sampling]) -> None:
        self.kind = kind
        self.ranks = not issubclass(kind, Predicting)  # type: ignore[misc]
        self.promotes = kind in (BestTwo, PromotesAFixedNumber)  # type: ignore[misc]

    def make(self, seed: int) -> Tuner:
        return self.kind(seed)

    def make_wider(self, seed: int) -> Tuner | None:
        return self.kind(seed, 9) if issubclass(self.kind, Sampling) else None


@pytest.mark.parametrize(("kind", "test", "message"), WRONG)
def test_conformance_of_a_wrong_tuner_names_the_broken_rule(
    kind: type[BestTwo], test: str, message: str
) -> None:
    run: Callable[[], None] = getattr(Suite(kind), f"test_{test}")
    with pytest.raises(ConformanceError, match=f"(?s){message}"):
        run()


@pytest.mark.parametrize("kind", [BestTwo, Sampling, ReportingOnTheWay, Predicting, Hurried])
def test_conformance_of_the_base_tuners_passes(kind: type[BestTwo]) -> None:
    suite = Suite(kind)
    suite.seeds = Conformance.seeds
    tests = [name for name in dir(suite) if name.startswith("test_")]
    assert {f"test_{test}" for _, test, _ in WRONG} == set(tests)
    for name in tests:
        getattr(suite, name)()
