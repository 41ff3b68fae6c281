"""POP: slots go to the trials whose predicted curves are likely to reach a target in time."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from dasktune.algos.base import Inputs
from dasktune.algos.curves.curve import Prediction, Predictor, Question, future_steps
from dasktune.algos.curves.named import checked_predictor
from dasktune.algos.curves.observed import ObservedCurves, checked_rate
from dasktune.algos.pop.active import BEHIND, Active, Label
from dasktune.algos.pop.allocation import Expectation, divide
from dasktune.algos.pop.goal import (
    Range,
    ends_of,
    goal_of,
    overlap,
    ranges_in,
    seconds_in,
    within_ranges,
)
from dasktune.algos.sampled import (
    IF_SET,
    Budget,
    Options,
    SampledTuner,
)
from dasktune.algos.state import Readers
from dasktune.algos.stopping import HELD, beyond_bounds, held
from dasktune.errors import ConfigurationError, InternalError, refuse, unknown
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Decision, Direction, Extend, Finish, Predict, Rank, Report, Step, Stop

BOUNDARIES = 20
"""Evaluation boundaries of a trial unless `every` is given [section 5.3: 5 to 10% of it]."""

RERANKED = 0.05
"""By how much a confidence must change before a promising trial's priority is changed."""

REVALUED = 0.1
"""By how much the value of a poor trial must change before its place is changed."""

NO_CHANCE = 1e-9
"""A trial with a lower confidence is poor, even if all others are."""

RELATIVE = "relative"
"""A trial is poor by its confidence over the largest one of all trials."""

GAIN = 0.01
"""The least improvement without a target, as a part of the range of scores so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class POPOptions(Options):
    """The arguments of `POP`; `within` is in seconds, infinite for ever."""

    target: float | None
    within: float
    every: Step
    bounds: Range
    kill: float | None
    least: float
    dynamic: float | None
    window: int
    ends_when: Mapping[str, Range]
    barrier: bool
    ends_poor: bool
    predictor: Predictor
    rate: str | None = field(default=None, metadata=IF_SET)
    crash: float | None = field(default=None, metadata=IF_SET)
    beyond: str | None = field(default=None, metadata=IF_SET)
    poor: str | None = field(default=None, metadata=IF_SET)

    def check(self, check: Arguments, max_steps: Step) -> None:
        """Add to `check` the problems of the options that are out of their range."""
        for name, value in (("every", self.every), ("window", self.window)):
            if value > max_steps:
                check.add(f"{name} must be <= max_steps, {max_steps}, got {value}")
        if not 0 <= self.least < 1:
            check.add(f"least must be >= 0 and < 1, got {self.least}")
        if self.dynamic is not None and self.dynamic <= 0:
            check.add(f"dynamic must be > 0, got {self.dynamic}")


class POP(SampledTuner):
    """Reaches a target soon: trains the most probable trials, and tries the others in turn.

    At each boundary a trial's learning curve is extrapolated: how probably, and when, will it
    reach the target in the time that is left? The higher this confidence is for some trials,
    the more slots they hold: they are *promising*. The others are *opportunistic*: they are
    suspended at each boundary, so that they share the other slots in turn. *Poor* trials,
    which will hardly get there, stand behind all others, or are ended.

    Predictions are computed on the cluster beside the training, which never waits for them:
    a late one is used when it comes.

    Parameters
    ----------
    space, trials, max_steps
        As for `dasktune.algos.sampled.SampledTuner`.
    target
        Value that the metric must reach, in its own unit, in the study's direction.
        None looks for the best value `within` the time: the target is then always a bit
        better than the best so far.
    within
        T_max: seconds, or "90s", "30min", "8h", "2d". The tuner ends then. None is for ever.
    every
        Steps between boundaries; None for a twentieth of `max_steps`, rounded up.
    bounds
        ``(low, high)``: the range of the metric, as far as it is known; None where there is no
        bound, such as ``(0, None)`` for a loss. Predictions stay within it. A later value
        beyond a bound counts as the bound.
    kill
        A trial whose metric, or its mean over the `window`, is worse than this at a boundary is
        ended: the value of a trial that learns nothing, in the metric's own unit.
    crash
        The same value, for a trial that learned and lost it, as happens in reinforcement
        learning. A trial whose mean over the `window` has been better is ended if all that it
        measured since its last boundary, that one included, is not. One that has learned
        nothing yet goes on, unlike with `kill`.
    least
        A trial whose confidence is lower than this is poor; with `ends_poor`, lower than this
        part of the best confidence.
    dynamic
        By how much the target is raised each time it has been reached, in the metric's own
        unit; None ends the study then.
    window
        The target is reached by the mean over this number of a trial's last measurements: a
        task of reinforcement learning is solved only when it stays solved. Predictions are of
        the curve as it was measured: a mean would lag behind it.
    ends_when
        Ranges of metrics ``{"reward": (200, None), "crashes": (None, 0.1)}``: the study ends
        when one report lies in all of them. For more than that, override `is_done`.
    barrier
        Suspend all trials at each boundary, and decide which go on when all are there and
        predicted.
    ends_poor
        Whether a poor trial is ended for good, as in the paper. A trial is poor then if its
        confidence over the largest one of all is lower than `least`: where few trials reach the
        target, a right prediction of a trial that nothing sets apart yet is low. If not, it
        stands behind all others: only if no other trial is left, the poor trial goes on whose
        predicted median comes nearest to the target. A trial that was judged wrongly is not
        lost then, and no training is spent on it as long as there is a better one.
    predictor
        Predicts curves: one of `dasktune.algos.curves`, also by its name, or one of your own;
        None for `Mixture`.
    rate
        Name of the learning rate, for the predictor, if it is neither ``lr`` nor
        ``learning_rate``.
    seed
        Decides the draws of the sampler and of the predictor.
    sampler
        As for `SampledTuner`; a sampler that learns is asked for one trial at each boundary.

    Attributes
    ----------
    curves
        The learning curves that it has observed.

    Raises
    ------
    ConfigurationError
        If a number is out of its range, a target or threshold outside the bounds, or a
        sequence ends before `max_steps`: all at once. When the study begins, if `kill` would
        end a trial that has reached the target; so for `crash`. At the first finite value of
        all trials, if it is outside the bounds or one of `ends_when` is missing.

    References
    ----------
    Rasley et al., "HyperDrive: Exploring Hyperparameters with POP Scheduling", sections 3 and
    5.3.
    """

    timed = True
    state = (
        *("curves", "_active", "_turns", "_workers", "_seconds", "_target"),
        *("_best", "_worst", "_round", "_over", "_direction"),
    )
    options: POPOptions
    curves: ObservedCurves
    _active: dict[int, Active]
    _turns: int
    _workers: int
    _seconds: float
    _target: float | None
    _best: float | None
    _worst: float | None
    _round: set[int]
    """With barriers, the trials that are trained to the next one."""
    _over: bool
    _direction: Direction

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        target: float | None = None,
        within: float | str | None = None,
        trials: int = 100,
        max_steps: Step = 100,
        every: Step | None = None,
        bounds: tuple[float | None, float | None] | None = None,
        kill: float | None = None,
        least: float = 0.05,
        dynamic: float | None = None,
        window: int = 1,
        ends_when: Mapping[str, tuple[float | None, float | None]] | None = None,
        barrier: bool = False,
        ends_poor: bool = False,
        predictor: Predictor | str | None = None,
        rate: str | None = None,
        crash: float | None = None,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments("POP")
        budget = Budget.checked(check, trials, max_steps, seed)
        every = math.ceil(budget.max_steps / BOUNDARIES) if every is None else every
        self._given = goal_of(check, target, bounds, kill, crash)
        options = POPOptions(
            target=self._given.target,
            within=seconds_in(check, "within", within),
            every=check.whole("every", every),
            bounds=(self._given.low, self._given.high),
            kill=self._given.kill,
            least=check.real("least", least),
            dynamic=None if dynamic is None else check.real("dynamic", dynamic),
            window=check.whole("window", window),
            ends_when=ranges_in(check, "ends_when", ends_when),
            barrier=bool(barrier),
            ends_poor=bool(ends_poor),
            predictor=checked_predictor(check, predictor),
            rate=checked_rate(check, rate, space),
            crash=self._given.crash,
            beyond=HELD if (self._given.low, self._given.high) != (None, None) else None,
            poor=RELATIVE if ends_poor else None,
        )
        options.check(check, budget.max_steps)
        self.goal = self._given
        super().__init__(space, budget, options, sampler=sampler, check=check)

    # ------------------------------------------------------------------- what users may read

    @property
    def standing(self) -> dict[int, tuple[Label, Expectation | None]]:
        """By trial that may go on: its label, and what POP expects of it after a prediction."""
        return {trial: (each.label, each.expected) for trial, each in sorted(self._active.items())}

    @property
    def target(self) -> float | None:
        """The score to reach now, larger is better; None before there is one to compare with."""
        if self._target is not None:
            return self._target
        return None if self._best is None else self._better(self._best)

    def is_done(self, report: Report) -> bool:
        """Return whether a report ends the study, by `ends_when`.

        It may be overridden.
        """
        ranges = self.options.ends_when
        return bool(ranges) and within_ranges(report.metrics, ranges)

    # --------------------------------------------------------------- the protocol of tuners

    @property
    def metrics_needed(self) -> frozenset[str]:
        """The metrics of `ends_when`."""
        return frozenset(self.options.ends_when)

    @property
    def value_bounds(self) -> tuple[float | None, float | None]:
        """The bounds of the metric."""
        return self.options.bounds

    def contradictions(self, metric: str) -> Iterator[str]:
        """Yield a range of `ends_when` in which the metric never is, by its bounds."""
        given = self.options.ends_when.get(metric)
        if given is not None and not overlap(given, self.options.bounds):
            low, high = ends_of(self.options.bounds)
            bounds = f"{low:g} to {high:g}"
            yield f"ends_when: {metric} must reach into the bounds, {bounds}, got {given}"

    def begin(self) -> None:
        """Begin without a trial."""
        self.curves = ObservedCurves(self.options.rate)
        self._direction = Direction.MAXIMIZE
        self._active = {}
        self._turns = 0
        self._workers = 1
        self._seconds = 0.0
        self._target = self.goal.target
        self._best = self._worst = None
        self._round = set()
        self._over = False

    @property
    def readers(self) -> Readers:
        """The reader of curves, which knows the learning rate."""
        return {ObservedCurves: partial(ObservedCurves.from_json, rate=self.options.rate)}

    def derive(self) -> None:
        """Set the goal, and the expectation of each trial."""
        self.goal = self._given.turned(self._direction)
        for active in self._active.values():
            self._look_at(active)

    def prepare(self, inputs: Inputs) -> None:
        """Receive the inputs; the direction of the metric turns the goal."""
        super().prepare(inputs)
        match inputs.get("directions"):
            case [str(first), *_]:
                self._direction = Direction.parse(first)
            case _:
                raise InternalError(f"POP must be told the direction of its metric, got {inputs!r}")
        self.goal = self._given.turned(self._direction)
        self._target = self.goal.target
        refuse(
            f"{name} must be worse than the target, {self._given.target}, got "
            f"{getattr(self._given, name)}"
            for name in self.goal.ending_the_best
        )

    def ask(self, capacity: int) -> list[Decision]:
        """Return all trials the first time, or one for each free worker if a sampler learns."""
        if self._over:
            return []
        if not self.registered:
            self._workers = max(1, capacity)
        if self.options.barrier and self.registered:
            return self._next_round()
        count = min(self.left, capacity) if self.source.learns else self.left
        drawn = self._draw_some(count)
        return [*drawn, *self._next_round()] if self.options.barrier else drawn

    def _draw_some(self, count: int) -> list[Decision]:
        drawn = [self.draw() for _ in range(count)]
        for trial in drawn:
            self.curves.register(trial)
            self._active[trial.trial] = Active(trial=trial.trial, turn=self._next_turn())
        if self.options.barrier:
            return [*drawn]
        return [*drawn, *(self._wait_in_turn(trial.trial) for trial in drawn)]

    def grow(self, trials: int) -> list[Decision]:
        """Continue with all trials that may still be trained, and with the added ones.

        Raises
        ------
        ConfigurationError
            If its time is over.
        """
        within = self.options.within
        if self._seconds >= within:
            raise ConfigurationError(
                f"a POP whose time is over cannot be given more trials; within was {within:g} s"
            )
        self._over = False
        self._round.clear()
        for active in self._active.values():
            active.asked = False
            active.label = Label.OPPORTUNISTIC
        barrier = self.options.barrier
        again = [] if barrier else [self._wait_in_turn(trial) for trial in self._active]
        drawn = self._draw_some(0 if self.source.learns else self.left)
        return [*again, *drawn, *(self._next_round() if barrier else [])]

    def on_report(self, report: Report) -> list[Decision]:
        """Return the decisions after a report at a boundary."""
        active = self._active.get(report.trial)
        if active is None or report.now is None:
            return []
        if self.curves.best == -math.inf:
            refuse(self._first_problems(report))
        self._round.discard(report.trial)
        self._seconds, self._workers = report.now.seconds, report.now.workers
        active.step, active.step_seconds = report.step, report.now.step_seconds
        scores = [(step, -losses[0]) for step, losses in report.now.between]
        reached = self._observe(report.trial, [*scores, (report.step, -report.loss)])
        if self.is_done(report):
            return self._finish("a report met its condition to end")
        if reached and not self._raise_target():
            return self._finish(f"the target was reached after {self._seconds:,.1f} s")
        if report.step >= self.max_steps:
            del self._active[report.trial]
            return self._go_on([])
        score = self._mean(report.trial)
        is_killed = self.goal.kill is not None and score < self.goal.kill
        if not math.isfinite(score) or is_killed or self._has_crashed(active):
            del self._active[report.trial]
            return self._go_on([Stop(trial=report.trial)])
        return self._go_on(self._at_boundary(active))

    def _at_boundary(self, active: Active) -> list[Decision]:
        """Return the decisions for a trial that goes on after a boundary."""
        decisions: list[Decision] = []
        barrier = self.options.barrier
        if self.source.learns and active.label is not Label.PROMISING and not barrier:
            decisions += self._draw_some(min(1, self.left))
        if not active.asked:
            active.asked = True
            decisions.append(Predict(trial=active.trial))
        if active.until <= active.step and not barrier:
            active.turn = self._next_turn()
            decisions.append(self._wait_in_turn(active.trial))
        return decisions

    def on_failure(self, trial: int) -> list[Decision]:
        """Return the decisions after a failure."""
        self._round.discard(trial)
        return self._go_on([]) if self._active.pop(trial, None) is not None else []

    def question(self, trial: int) -> Question:
        """Return the question how the trial's curve goes on."""
        low, high = self.goal.low, self.goal.high
        curve = self.curves.curve(trial, max_steps=self.max_steps, low=low, high=high)
        steps = future_steps(curve.last_step, self.max_steps, self.options.every)
        predictor = self.options.predictor
        return Question(predictor=predictor, curve=curve, steps=steps, seed=self.seed + trial)

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        """Return the decisions after a prediction, however late."""
        active = self._active.get(trial)
        if active is None:
            return []
        active.asked = False
        again: list[Decision] = []
        if prediction is not None:
            active.learn(prediction)
            if prediction.after < active.step and not self.options.barrier:
                active.asked = True
                again.append(Predict(trial=trial))
        return self._go_on(again)

    @property
    def due_seconds(self) -> float | None:
        """The end of its time."""
        return None if self._over or self.options.within == math.inf else self.options.within

    def tell_time(self, seconds: float) -> list[Decision]:
        """Finish: the time is over."""
        self._seconds = seconds
        return self._finish(f"its {self.options.within:,.10g} s are over")

    # ------------------------------------------------------------------------- the goal

    def _mean(self, trial: int) -> float:
        """Return the mean over the window of a trial's last scores."""
        last = self.curves.scores(trial)[-self.options.window :]
        return sum(last) / len(last)

    def _observe(self, trial: int, scores: Iterable[tuple[Step, float]]) -> bool:
        """Observe scores; return whether one of them reaches the target."""
        reached = False
        is_held = self.options.beyond is not None
        low, high = (self.goal.low, self.goal.high) if is_held else (None, None)
        for step, score in scores:
            self.curves.observe(trial, step, held(score, low, high))
            mean = self._mean(trial)
            if len(self.curves.scores(trial)) < self.options.window or not math.isfinite(mean):
                continue
            self._best = mean if self._best is None else max(self._best, mean)
            self._worst = mean if self._worst is None else min(self._worst, mean)
            reached = reached or (self._target is not None and mean >= self._target)
        return reached

    def _has_crashed(self, active: Active) -> bool:
        """Return whether a trial had learned, and has lost it since the boundary before this.

        The learning crash of Rasley et al., section 6.3: "the reward falls and remains at or
        below a non-learning value".
        """
        crash, window = self.goal.crash, self.options.window
        if crash is None:
            return False
        scores = self.curves.scores(active.trial)
        since = bisect_left(self.curves.steps(active.trial), active.step - self.options.every)
        if any(score > crash for score in scores[since:]):
            return False
        means = (sum(scores[at : at + window]) / window for at in range(since - window + 1))
        return any(mean > crash for mean in means)

    def _raise_target(self) -> bool:
        """Raise the target if it is dynamic; return whether the study goes on for it."""
        dynamic = self.options.dynamic
        if dynamic is None or self._best is None or self._target is None:
            return False
        rises = math.floor((self._best - self._target) / dynamic) + 1
        raised = self._target + rises * dynamic
        if raised <= self._best:
            return False  # rounding swallows so small a rise
        self._target = raised
        return self.goal.high is None or raised <= self.goal.high

    def _better(self, best: float) -> float:
        """Return the least score that counts as better than the best so far, within the bounds."""
        worst = best if self._worst is None else self._worst
        dynamic, high = self.options.dynamic, self.goal.high
        gain = GAIN * (best - worst) if dynamic is None else dynamic
        return best + gain if high is None else min(best + gain, (best + max(best, high)) / 2)

    def _first_problems(self, report: Report) -> Iterator[str]:
        """Yield the arguments that the first report contradicts."""
        value = (-report.loss if self._direction is Direction.MAXIMIZE else report.loss) + 0.0
        where = f" at step {report.step} of trial {report.trial}"
        yield from beyond_bounds(value, *self.options.bounds, metric="the metric", where=where)
        for name in self.options.ends_when.keys() - report.metrics.keys():
            yield f"ends_when: {unknown('metric', name, report.metrics)}"

    def _finish(self, why: str) -> list[Decision]:
        self._over = True
        values = ", ".join(
            f"{name} {score if self._direction is Direction.MAXIMIZE else 0.0 - score:.6g}"
            for name, score in (("target", self._target), ("best", self._best))
            if score is not None
        )
        return [Finish(reason=f"{why} ({values or 'nothing was reported'})")]

    # --------------------------------------------------------------------- the division

    def _go_on(self, decisions: list[Decision]) -> list[Decision]:
        """Return the decisions, and those after a new division of the slots."""
        decisions = [*decisions, *self._divide()]
        if not self._active and not self.left:
            return [*decisions, *self._finish("no trial is left to go on")]
        return [*decisions, *self._next_round()] if self.options.barrier else decisions

    def _divide(self) -> list[Decision]:
        """Label every trial anew, and return the decisions that change with it."""
        for active in self._active.values():
            self._look_at(active)
        known = {
            trial: each.expected
            for trial, each in self._active.items()
            if each.expected is not None
        }
        least = self.options.least
        if self.options.poor is not None and least > 0:
            best = max((each.confidence for each in known.values()), default=1.0)
            least = max(least * best, NO_CHANCE)
        hopeful = {trial: each for trial, each in known.items() if each.confidence >= least}
        division = divide((each.confidence for each in hopeful.values()), self._workers)
        slots = math.floor(division.slots + 0.5)
        order = sorted(
            (trial for trial, each in hopeful.items() if each.confidence >= division.threshold),
            key=lambda trial: (-known[trial].confidence, known[trial].remaining_seconds, trial),
        )
        promising = set(order[:slots])
        decisions: list[Decision] = []
        for trial in list(self._active):
            if trial in promising:
                decisions += self._promote(trial, known[trial].confidence)
            elif trial in known and trial not in hopeful:
                decisions += self._give_up(trial)
            else:
                decisions += self._demote(trial)
        return decisions

    def _look_at(self, active: Active) -> None:
        active.look(self.target, self.max_steps, self.options.within - self._seconds)

    def _promote(self, trial: int, confidence: float) -> list[Decision]:
        """Give a promising trial a slot: with priority p, and on through its boundaries."""
        active = self._active[trial]
        before, active.label = active.label, Label.PROMISING
        if self.options.barrier:
            return []
        if before is not Label.PROMISING:
            active.ranked, active.until = confidence, self.max_steps
            every = self.options.every
            reports = tuple(range(active.boundary(every), self.max_steps, every))
            priority = 1 + confidence
            return [Extend(trial=trial, until=active.until, priority=priority, reports=reports)]
        if abs(confidence - active.ranked) < RERANKED:
            return []
        active.ranked = confidence
        return [Rank(trial=trial, priority=1 + confidence)]

    def _demote(self, trial: int) -> list[Decision]:
        """Make a trial opportunistic: it waits for its turn, if it did not already."""
        active = self._active[trial]
        before, active.label = active.label, Label.OPPORTUNISTIC
        if self.options.barrier or before is Label.OPPORTUNISTIC:
            return []
        active.turn = self._next_turn()
        return [self._wait_in_turn(trial)]

    def _give_up(self, trial: int) -> list[Decision]:
        """End a poor trial, or put it behind all others."""
        active = self._active[trial]
        if self.options.ends_poor:
            del self._active[trial]
            self._round.discard(trial)
            return [Stop(trial=trial)]
        before, active.label = active.label, Label.POOR
        if self.options.barrier:
            return []
        if before is not Label.POOR:
            return [self._wait_in_turn(trial)]
        if abs(active.worth - active.ranked) <= REVALUED:
            return []
        active.ranked = active.worth
        return [Rank(trial=trial, priority=active.ranked - BEHIND)]

    def _wait_in_turn(self, trial: int) -> Extend:
        """Return the request for a trial's next part, to be trained in its turn."""
        active = self._active[trial]
        active.until = min(active.boundary(self.options.every), self.max_steps)
        priority = -float(active.turn)
        if active.label is Label.POOR:
            active.ranked = active.worth
            priority = active.ranked - BEHIND
        return Extend(trial=trial, until=active.until, priority=priority)

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns

    def _next_round(self) -> list[Decision]:
        """Return the trials that go on after a barrier, once all are there and predicted."""
        if self._round or any(active.asked for active in self._active.values()):
            return []
        decisions: list[Decision] = []
        if self.source.learns and any(active.step for active in self._active.values()):
            decisions += self._draw_some(min(self.left, self._workers))
        order = sorted(self._active.values(), key=_urgency)
        for active in order[: self._workers]:
            active.turn = self._next_turn()
            self._round.add(active.trial)
            decisions.append(self._wait_in_turn(active.trial))
        return decisions


def _urgency(active: Active) -> tuple[int, float, int]:
    confidence = active.confidence if active.label is Label.PROMISING else 0.0
    return list(Label).index(active.label), -confidence, active.turn
