"""POP: slots go to the trials whose predicted curves are likely to reach a target in time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dasktune.algos.base import Inputs
from dasktune.algos.bounds import beyond_bounds
from dasktune.algos.curves.curve import Prediction, Predictor, Question, future_steps
from dasktune.algos.curves.named import checked_predictor
from dasktune.algos.curves.observed import ObservedCurves
from dasktune.algos.pop.active import BEHIND, Active, Label
from dasktune.algos.pop.allocation import Expectation, divide
from dasktune.algos.pop.goal import goal_of, ranges_in, seconds_in, within_ranges
from dasktune.algos.sampled import SampledTuner
from dasktune.errors import ConfigurationError, InternalError, refuse, unknown
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import (
    Decision,
    Direction,
    Extend,
    Finish,
    Predict,
    Rank,
    Register,
    Report,
    Step,
    Stop,
)

BOUNDARIES = 20
"""Evaluation boundaries of a trial unless `every` is given [section 5.3: 5 to 10% of it]."""

RERANKED = 0.05
"""By how much a confidence must change for a promising trial's priority to be changed."""

REVALUED = 0.1
"""By how much the worth of a poor trial must change for its place to be changed."""

GAIN = 0.01
"""What counts as better where there is no target: this part of the range that was seen."""


class POP(SampledTuner):
    """Reaches a target soon: trains what will probably get there, and tries the rest in turn.

    At each boundary a trial's learning curve is extrapolated: how probably, and when, will it
    reach the target in the time that is left? The more confident that is for some trials, the
    more slots they hold: they are *promising*. The others are *opportunistic*: they are
    suspended at each boundary, so that they share the other slots in turn. *Poor* ones, which
    will hardly get there, stand behind all others, or are ended.

    Predictions are computed on the cluster beside the training, which never waits for them:
    what comes late is used when it comes.

    Parameters
    ----------
    space
        What to draw from: a `dasktune.Space`, or a function that defines one by running.
    target
        Value of the metric to reach, in its own unit: above or below by the study's direction.
        None looks for the best there is `within` the time: what is to be reached is then a bit
        better than the best so far.
    within
        T_max: seconds, or "90s", "30min", "8h", "2d". The tuner ends then. None is for ever.
    trials
        How many configurations to draw.
    max_steps
        How far each is trained at most.
    every
        Steps between boundaries; None for a twentieth of `max_steps`, rounded up.
    bounds
        ``(low, high)``: the range that the metric can have, as far as it is known; None where
        there is no bound, such as ``(0, None)`` for a loss. Predictions keep to it.
    kill
        A trial whose metric, or its mean over the `window`, is worse than this at a boundary is
        ended: what one that learns nothing has, in the metric's own unit.
    least
        A trial whose confidence is lower than this is poor.
    dynamic
        By how much the target is raised each time it has been reached, in the metric's own
        unit; None ends the study then.
    window
        The target is reached by the mean over so many of a trial's last measurements: a task
        of reinforcement learning is solved only when it stays solved. What is predicted is the
        curve as it was measured: a mean would lag behind it.
    ends_when
        Ranges of metrics ``{"reward": (200, None), "crashes": (None, 0.1)}``: the study ends
        when one report lies in all of them. For more than that, override `is_done`.
    barrier
        Suspend all trials at each boundary, and decide what goes on when all are there and
        predicted.
    ends_poor
        Whether a poor trial is ended for good, as in the paper. If not, it stands behind all
        others: only when nothing else is left, the poor trial goes on whose predicted median
        comes nearest to the target. What may have been ended wrongly is not lost then, and
        nothing is trained for it as long as there is anything better.
    predictor
        Predicts curves: one of `dasktune.algos.curves`, also by its name, or one of your own;
        None for `PriorFitted`.
    seed
        Decides what is drawn; it has nothing to do with the seed of the training.
    sampler
        Proposes configurations; one that learns is asked for one more at each boundary. None
        draws at random.

    Raises
    ------
    ConfigurationError
        If a number is out of its range, a target or threshold outside the bounds, or a
        sequence ends before `max_steps`: all at once. When the study begins, if what has
        reached the target would be killed. At the first report, if its metric is outside the
        bounds or one of `ends_when` is not there.

    References
    ----------
    Rasley et al., "HyperDrive: Exploring Hyperparameters with POP Scheduling", sections 3 and
    5.3.
    """

    timed = True

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        target: float | None = None,
        within: float | str | None = None,
        trials: int = 100,
        max_steps: Step = 100,
        every: Step | None = None,
        bounds: tuple[float, float] | None = None,
        kill: float | None = None,
        least: float = 0.05,
        dynamic: float | None = None,
        window: int = 1,
        ends_when: Mapping[str, tuple[float | None, float | None]] | None = None,
        barrier: bool = False,
        ends_poor: bool = False,
        predictor: Predictor | str | None = None,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments("POP")
        steps = Arguments("").whole("max_steps", max_steps)
        self.every = check.whole("every", math.ceil(steps / BOUNDARIES) if every is None else every)
        self.window = check.whole("window", window)
        for name, value in (("every", self.every), ("window", self.window)):
            if value > steps:
                check.add(f"{name} must be <= max_steps, {steps}, got {value}")
        self.within_seconds = seconds_in(check, "within", within)
        self.least = check.real("least", least)
        if not 0 <= self.least < 1:
            check.add(f"least must be >= 0 and < 1, got {least}")
        self.dynamic = None if dynamic is None else check.real("dynamic", dynamic)
        if self.dynamic is not None and self.dynamic <= 0:
            check.add(f"dynamic must be > 0, got {dynamic}")
        self._given = goal_of(check, target, bounds, kill)
        self.ends_when = ranges_in(check, "ends_when", ends_when)
        self.predictor = checked_predictor(check, predictor)
        self.barrier, self.ends_poor = bool(barrier), bool(ends_poor)
        self.goal = self._given
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            seed=seed,
            sampler=sampler,
            check=check,
            more={
                "target": self._given.target,
                "within": None if self.within_seconds == math.inf else self.within_seconds,
                "every": self.every,
                "bounds": [self._given.low, self._given.high],
                "kill": self._given.kill,
                "least": self.least,
                "dynamic": self.dynamic,
                "window": self.window,
                "ends_when": {name: list(one) for name, one in self.ends_when.items()},
                "barrier": self.barrier,
                "ends_poor": self.ends_poor,
                "predictor": self.predictor.identity(),
            },
        )

    # ------------------------------------------------------------------ what it thinks

    @property
    def standing(self) -> dict[int, tuple[Label, Expectation | None]]:
        """What it holds of each trial that may go on, and expects of it, if that was predicted."""
        return {trial: (one.label, one.expected) for trial, one in sorted(self._active.items())}

    @property
    def target(self) -> float | None:
        """The score to reach now: larger is better; None while there is nothing to compare."""
        if self._target is not None:
            return self._target
        return None if self._best is None else self._better(self._best)

    def is_done(self, report: Report) -> bool:
        """Return whether a report ends the study: one that `ends_when` asks for.

        It may be overridden.
        """
        return bool(self.ends_when) and within_ranges(report.metrics, self.ends_when)

    # ------------------------------------------------------------- what a kind must do

    def begin(self) -> None:
        """Nothing is drawn yet, and nothing known."""
        self.curves = ObservedCurves()
        self._direction = Direction.MAXIMIZE
        self._active: dict[int, Active] = {}
        self._turns = 0
        self._workers = 1
        self._seconds = 0.0
        self._target = self.goal.target
        self._best: float | None = None
        self._worst: float | None = None
        self._round: set[int] = set()
        self._is_over = False

    def prepare(self, inputs: Inputs) -> None:
        """Take the direction of the metric: targets are given in its own unit."""
        super().prepare(inputs)
        match inputs.get("directions"):
            case [str(first), *_]:
                self._direction = Direction.parse(first)
            case _:
                raise InternalError(f"POP must be told the direction of its metric, got {inputs!r}")
        self.goal = self._given.turned(self._direction)
        self._target = self.goal.target
        if self.goal.kills_the_best:
            raise ConfigurationError(
                f"kill must be worse than the target, {self._given.target}, got {self._given.kill}"
            )

    def ask(self, capacity: int) -> list[Decision]:
        """Return all trials the first time, or one for each free worker if a sampler learns."""
        if self._is_over:
            return []
        if not self.registered:
            self._workers = max(1, capacity)
        if self.barrier and self.registered:
            return self._next_round()
        count = min(self.left, capacity) if self.source.learns else self.left
        drawn = self._draw_some(count)
        return [*drawn, *self._next_round()] if self.barrier else drawn

    def _draw_some(self, count: int) -> list[Decision]:
        found: list[Decision] = []
        for _ in range(count):
            trial = self.draw()
            self.curves.register(trial)
            self._active[trial.trial] = Active(turn=self._next_turn())
            found.append(trial)
        if not self.barrier:
            begun = [one.trial for one in found if isinstance(one, Register)]
            found += [self._wait_in_turn(trial) for trial in begun]
        return found

    def grow(self, trials: int) -> list[Decision]:
        """Go on with all that may still be trained, and with further trials.

        Raises
        ------
        ConfigurationError
            If its time is over.
        """
        if self._seconds >= self.within_seconds:
            raise ConfigurationError(
                f"a POP whose time is over cannot be given more trials; within was "
                f"{self.within_seconds:g} s"
            )
        self._is_over = False
        self._round.clear()
        for active in self._active.values():
            active.is_asked = False
            active.label = Label.OPPORTUNISTIC
        again = [] if self.barrier else [self._wait_in_turn(trial) for trial in self._active]
        drawn = self._draw_some(0 if self.source.learns else self.left)
        return [*again, *drawn, *(self._next_round() if self.barrier else [])]

    def told(self, report: Report) -> list[Decision]:
        """Return what follows from a report at a boundary."""
        active = self._active.get(report.trial)
        if active is None or report.now is None:
            return []
        if self._best is None:
            refuse(self._strange(report))
        self._round.discard(report.trial)
        self._seconds, self._workers = report.now.seconds, report.now.workers
        active.step, active.step_seconds = report.step, report.now.step_seconds
        scores = [(step, -losses[0]) for step, losses in report.now.between]
        reached = self._observe(report.trial, [*scores, (report.step, -report.loss)])
        if self.is_done(report):
            return self._over("a report was what it was to end with")
        if reached and not self._raise_target():
            return self._over(f"the target was reached after {self._seconds:,.1f} s")
        if report.step >= self.max_steps:
            del self._active[report.trial]
            return self._go_on([])
        last = self.curves.scores(report.trial)[-self.window :]
        score = sum(last) / len(last)
        if not math.isfinite(score) or (self.goal.kill is not None and score < self.goal.kill):
            return self._end(report.trial)
        found: list[Decision] = []
        if self.source.learns and active.label is not Label.PROMISING and not self.barrier:
            found += self._draw_some(min(1, self.left))
        if not active.is_asked:
            active.is_asked = True
            found.append(Predict(trial=report.trial))
        if active.until <= report.step and not self.barrier:
            active.turn = self._next_turn()
            found.append(self._wait_in_turn(report.trial))
        return self._go_on(found)

    def failed(self, trial: int) -> list[Decision]:
        """Return what follows from a failure."""
        self._round.discard(trial)
        return self._go_on([]) if self._active.pop(trial, None) is not None else []

    def question(self, trial: int) -> Question:
        """Return the question how the trial's curve goes on."""
        low, high = self.goal.low, self.goal.high
        curve = self.curves.curve(trial, max_steps=self.max_steps, low=low, high=high)
        steps = future_steps(curve.last_step, self.max_steps, self.every)
        return Question(predictor=self.predictor, curve=curve, steps=steps, seed=self.seed + trial)

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        """Return what follows from a prediction, however late."""
        active = self._active.get(trial)
        if active is None:
            return []
        active.is_asked = False
        found: list[Decision] = []
        if prediction is not None:
            active.learn(prediction)
            if prediction.after < active.step and not self.barrier:
                active.is_asked = True
                found.append(Predict(trial=trial))
        return self._go_on(found)

    @property
    def due_seconds(self) -> float | None:
        """The end of its time."""
        return None if self._is_over or self.within_seconds == math.inf else self.within_seconds

    def tell_time(self, seconds: float) -> list[Decision]:
        """End: the time is over."""
        self._seconds = seconds
        return self._over(f"its {self.within_seconds:,.10g} s are over")

    # ------------------------------------------------------------------------- the goal

    def _observe(self, trial: int, scores: Iterable[tuple[Step, float]]) -> bool:
        """Take in scores; return whether one of them reaches the target."""
        reached = False
        for step, score in scores:
            self.curves.observe(trial, step, score)
            last = self.curves.scores(trial)[-self.window :]
            mean = sum(last) / len(last)
            if len(last) < self.window or not math.isfinite(mean):
                continue
            self._best = mean if self._best is None else max(self._best, mean)
            self._worst = mean if self._worst is None else min(self._worst, mean)
            reached = reached or (self._target is not None and mean >= self._target)
        return reached

    def _raise_target(self) -> bool:
        """Go for more, if that is wanted; return whether it is."""
        if self.dynamic is None or self._best is None or self._target is None:
            return False
        rises = math.floor((self._best - self._target) / self.dynamic) + 1
        raised = self._target + rises * self.dynamic
        if raised <= self._best:
            return False  # it is too little to be told from nothing
        self._target = raised
        return self.goal.high is None or raised <= self.goal.high

    def _better(self, best: float) -> float:
        """Return what counts as better than the best so far: never what cannot be."""
        worst = best if self._worst is None else self._worst
        gain = GAIN * (best - worst) if self.dynamic is None else self.dynamic
        high = self.goal.high
        return best + gain if high is None else min(best + gain, (best + max(best, high)) / 2)

    def _strange(self, report: Report) -> Iterator[str]:
        """Say what the first report shows to be wrong with what was given."""
        value = (-report.loss if self._direction is Direction.MAXIMIZE else report.loss) + 0.0
        low, high = self._given.low, self._given.high
        where = f" at step {report.step} of trial {report.trial}"
        yield from beyond_bounds(value, low, high, metric="the metric", where=where)
        for name in self.ends_when.keys() - report.metrics.keys():
            yield f"ends_when: {unknown('metric', name, report.metrics)}"

    def _over(self, why: str) -> list[Decision]:
        self._is_over = True
        values = ", ".join(
            f"{name} {one if self._direction is Direction.MAXIMIZE else 0.0 - one:.6g}"
            for name, one in (("target", self._target), ("best", self._best))
            if one is not None
        )
        return [Finish(reason=f"{why} ({values or 'nothing was reported'})")]

    # --------------------------------------------------------------------- the division

    def _go_on(self, found: list[Decision]) -> list[Decision]:
        """Return decisions, and what the division of the slots says now."""
        every = [*found, *self._divide()]
        if not self._active and not self.left:
            return [*every, *self._over("no trial is left to go on")]
        return [*every, *self._next_round()] if self.barrier else every

    def _divide(self) -> list[Decision]:
        """Label every trial anew, and decide what that changes."""
        for active in self._active.values():
            self._look_at(active)
        known = {
            trial: one.expected for trial, one in self._active.items() if one.expected is not None
        }
        hopeful = {trial: one for trial, one in known.items() if one.confidence >= self.least}
        division = divide((one.confidence for one in hopeful.values()), self._workers)
        slots = math.floor(division.slots + 0.5)
        order = sorted(
            (trial for trial, one in hopeful.items() if one.confidence >= division.threshold),
            key=lambda trial: (-known[trial].confidence, known[trial].remaining_seconds, trial),
        )
        promising = set(order[:slots])
        found: list[Decision] = []
        for trial in list(self._active):
            if trial in promising:
                found += self._promote(trial, known[trial].confidence)
            elif trial in known and trial not in hopeful:
                found += self._give_up(trial)
            else:
                found += self._demote(trial)
        return found

    def _look_at(self, active: Active) -> None:
        active.look(self.target, self.max_steps, self.within_seconds - self._seconds)

    def _promote(self, trial: int, confidence: float) -> list[Decision]:
        """Let a promising trial hold a slot: with priority p, and on through its boundaries."""
        active = self._active[trial]
        was, active.label = active.label, Label.PROMISING
        if self.barrier:
            return []
        if was is not Label.PROMISING:
            active.ranked, active.until = confidence, self.max_steps
            reports = tuple(range(active.boundary(self.every), self.max_steps, self.every))
            priority = 1 + confidence
            return [Extend(trial=trial, until=active.until, priority=priority, reports=reports)]
        if abs(confidence - active.ranked) < RERANKED:
            return []
        active.ranked = confidence
        return [Rank(trial=trial, priority=1 + confidence)]

    def _demote(self, trial: int) -> list[Decision]:
        """Let a trial wait for its turn, if it did not."""
        active = self._active[trial]
        was, active.label = active.label, Label.OPPORTUNISTIC
        if self.barrier or was is Label.OPPORTUNISTIC:
            return []
        active.turn = self._next_turn()
        return [self._wait_in_turn(trial)]

    def _give_up(self, trial: int) -> list[Decision]:
        """End a poor trial, or let it wait behind all others."""
        active = self._active[trial]
        if self.ends_poor:
            del self._active[trial]
            self._round.discard(trial)
            return [Stop(trial=trial)]
        was, active.label = active.label, Label.POOR
        if self.barrier:
            return []
        if was is not Label.POOR:
            return [self._wait_in_turn(trial)]
        worth = active.worth
        if abs(worth - active.ranked) <= REVALUED:
            return []
        active.ranked = worth
        return [Rank(trial=trial, priority=worth - BEHIND)]

    def _end(self, trial: int) -> list[Decision]:
        del self._active[trial]
        return self._go_on([Stop(trial=trial)])

    def _wait_in_turn(self, trial: int) -> Extend:
        """Ask for a trial's next part, to be trained when it is its turn."""
        active = self._active[trial]
        active.until = min(active.boundary(self.every), self.max_steps)
        priority = -float(active.turn)
        if active.label is Label.POOR:
            active.ranked = active.worth
            priority = active.ranked - BEHIND
        return Extend(trial=trial, until=active.until, priority=priority)

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns

    def _next_round(self) -> list[Decision]:
        """Return what goes on after a barrier, once all are there and predicted."""
        if self._round or any(one.is_asked for one in self._active.values()):
            return []
        found: list[Decision] = []
        if self.source.learns and any(one.step for one in self._active.values()):
            found += self._draw_some(min(self.left, self._workers))
        rank = {Label.PROMISING: 0, Label.OPPORTUNISTIC: 1, Label.POOR: 2}
        order = sorted(self._active, key=lambda one: self._urgency(self._active[one], rank))
        for trial in order[: self._workers]:
            self._active[trial].turn = self._next_turn()
            self._round.add(trial)
            found.append(self._wait_in_turn(trial))
        return found

    def _urgency(self, active: Active, rank: Mapping[Label, int]) -> tuple[int, float, int]:
        confidence = active.confidence if active.label is Label.PROMISING else 0.0
        return rank[active.label], -confidence, active.turn

    # ------------------------------------------------------------------------ snapshots

    def state_json(self) -> dict[str, object]:
        """Return the trials under way, their curves and predictions, and the goal."""
        return {
            "curves": self.curves.to_json(),
            "active": [{"trial": trial, **one.to_json()} for trial, one in self._active.items()],
            "turns": self._turns,
            "workers": self._workers,
            "seconds": self._seconds,
            "target": self._target,
            "best": self._best,
            "worst": self._worst,
            "round": sorted(self._round),
            "over": self._is_over,
            "direction": self._direction.value,
        }

    def take_state_json(self, state: Mapping[str, Any]) -> None:
        """Take over such a state."""
        try:
            self.begin()
            self._direction = Direction(state["direction"])
            self.goal = self._given.turned(self._direction)
            self.curves = ObservedCurves.from_json(state["curves"])
            self._active = {one["trial"]: Active.from_json(one) for one in state["active"]}
            self._turns, self._workers = state["turns"], state["workers"]
            self._seconds, self._target = state["seconds"], state["target"]
            self._best, self._worst = state["best"], state["worst"]
            self._round, self._is_over = set(state["round"]), state["over"]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"not the state of this tuner: {error!r}") from error
        for active in self._active.values():
            self._look_at(active)
