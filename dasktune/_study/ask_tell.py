"""Ask and tell: a tuner for users who train in their own loop."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dasktune._driver.predictions import answer_or_none
from dasktune._driver.refused_resumes import AloneRule
from dasktune._driver.run import begin_tuner
from dasktune._engine.outcome import Outcome, RunAssessment, RunPrediction
from dasktune._numbers import measured
from dasktune._study.beginning import engine_of, inputs_in, place_in
from dasktune._study.from_optuna import tuner_problem
from dasktune._study.parts import StudyParts
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, FencedError, shown
from dasktune.graph.plan import Node
from dasktune.types import Metrics, Sequences, Step, TrialState, Value

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial that the user shall train next.

    Attributes
    ----------
    number
        The trial's number in the study.
    sequences
        Its hyper-parameters as functions of the step.
    start, until
        Steps that it has been trained so far, and shall have been trained in all.
    seed
        Seed of the training: the study's, plus what repeats of a configuration add to it.
    """

    number: int
    params: Mapping[str, object]
    sequences: Sequences
    start: Step
    until: Step
    seed: int

    def hp(self, step: Step) -> dict[str, Value]:
        """Return the values of the hyper-parameters at a step, by name."""
        return {name: function(step) for name, function in self.sequences.items()}


class AskTell:
    """The ask and tell of a study without a trainer; safe to call from several threads."""

    def __init__(self, parts: StudyParts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        history = parts.memory.history
        self._hold = history.database.hold_of(history.study_id)
        self._loop: OwnLoop | None = None

    def ask(self, tuner: Tuner | None = None) -> Asked | None:
        """Return the trial to train next in the user's own loop, or None for now.

        The study must have been created without a trainer. After a restart, trials that were
        asked for but not told are asked for again.

        Parameters
        ----------
        tuner
            Decides; may be left out after the first call.

        Raises
        ------
        ConfigurationError
            If it is another tuner, and a trial of the one before is still to be told.

        Examples
        --------
        >>> import dasktune as dt
        >>> study = dt.create_study(None, name="own", storage="memory://own", metric="loss")
        >>> tuner = dt.algos.Random(dt.Space(x=dt.Float(-1, 1)), trials=3, max_steps=1)
        >>> while asked := study.ask(tuner):
        ...     study.tell(asked, asked.params["x"] ** 2)
        >>> len(study.trials)
        3
        """
        with self._lock:
            return self._loop_of(tuner).ask()

    def tell(
        self,
        trial: Asked | int,
        values: float | Iterable[float] | Mapping[str, float] | None = None,
        *,
        state: TrialState | None = None,
    ) -> None:
        """Record the result of a trial that `ask` returned.

        Parameters
        ----------
        trial
            The return value of `ask`, or its number.
        values
            The metric, or one value for each objective, or metrics by name, after
            `Asked.until` steps.
        state
            `TrialState.FAIL` if the training failed; it has no values then.

        Raises
        ------
        ConfigurationError
            If it was not asked for, or the values are not those of the study's metrics.
        """
        with self._lock:
            self._loop_of(None).tell(trial, values, state)

    def close(self) -> None:
        """Release the study for other study objects, and other processes."""
        with self._lock:
            self._loop = None
            self._hold.release()

    def _loop_of(self, tuner: Tuner | None) -> OwnLoop:
        if self._loop is None or (tuner is not None and not self._loop.is_for(tuner)):
            if tuner is None:
                raise ConfigurationError("ask must be given a tuner first, got None")
            self._refuse(tuner)
            if self._loop is not None:
                self._loop.refuse_untold()
            if not self._hold.take():
                raise FencedError(
                    f"study {self._parts.name!r} must be asked through one study object at a "
                    "time, of one process, got a second one: close the first one, study.close(), "
                    "or end its process"
                )
            self._loop = OwnLoop(self._parts, tuner)
        return self._loop

    def _refuse(self, tuner: Tuner) -> None:
        """Refuse what is no tuner, and a study with a trainer."""
        if (trainer := self._parts.config.trainer) is not None:
            raise ConfigurationError(
                f"study {self._parts.name!r} trains with {trainer.__qualname__}; ask and tell "
                "are for studies without a trainer: create_study(None, ...)"
            )
        if (problem := tuner_problem(tuner)) is not None:
            raise ConfigurationError(problem)


class OwnLoop:
    """Runs a tuner on the values that a user measures: its dispatcher has no workers."""

    def __init__(self, parts: StudyParts, tuner: Tuner) -> None:
        memory = parts.memory
        memory.catch_up()
        place = place_in(memory, tuner)
        self._engine = engine_of(parts, AloneRule())
        self._engine.dismiss()  # stages that the loop of another tuner still waits for
        self._feeds = parts.feeds
        self._feeds.open()
        self._recorder = memory.recorder()
        self._identity = tuner.identity()
        self._seed = parts.results.seed
        self._handed: dict[int, float] = {}
        """Trials that were handed out, and when."""
        self._began = time.monotonic()
        self._take(begin_tuner(self._engine, place, inputs_in(parts, place.tuner), 0.0, 1))

    def is_for(self, tuner: Tuner) -> bool:
        """Whether it runs a tuner of the same identity."""
        return self._identity == tuner.identity()

    def refuse_untold(self) -> None:
        """Refuse another tuner while trials are trained whose results would be lost."""
        if self._handed:
            untold = ", ".join(map(str, sorted(self._handed)))
            raise ConfigurationError(
                "the result of each trial must be told before another tuner is asked, got untold "
                f"trials: {untold}; study.tell(number, value) tells a result, "
                "study.tell(number, state=TrialState.FAIL) gives a trial up"
            )

    def ask(self) -> Asked | None:
        """Return the most urgent of the trials that wait to be handed out, or None for now."""
        waiting = self._waiting()
        if not waiting and not self._engine.finished:
            self._take(self._engine.ask(1, self._now()))
            waiting = self._waiting()
        if not waiting:
            return None
        priority = {number: max(node.requests.values()) for number, node in waiting.items()}
        number = min(waiting, key=lambda number: (-priority[number], number))
        self._handed[number] = self._now()
        self._engine.own_workers = max(self._engine.own_workers, len(self._handed))
        trial = self._engine.trials[number]
        return Asked(
            number=number,
            params=trial.params,
            sequences=trial.sequences,
            start=trial.steps,
            until=waiting[number].stop,
            seed=self._seed + trial.seed,
        )

    def tell(
        self,
        trial: Asked | int,
        values: float | Iterable[float] | Mapping[str, float] | None,
        state: TrialState | None,
    ) -> None:
        """Record the result of a trial that was handed out."""
        number = trial.number if isinstance(trial, Asked) else trial
        node = self._waiting(handed=True).get(number)
        if number not in self._handed:
            asked = ", ".join(map(str, sorted(self._handed))) or "none"
            raise ConfigurationError(
                "a trial must be told through the study object that asked for it last, got "
                f"{number}; this one has asked for: {asked}"
            )
        if state not in (None, TrialState.FAIL, TrialState.COMPLETE):
            raise ConfigurationError(f"state must be COMPLETE or FAIL, got {state!r}")
        if node is None or (isinstance(trial, Asked) and trial.until != node.stop):
            # Meanwhile the tuner has ended the trial, or asked for another number of steps.
            self._handed.pop(number, None)
            return
        if state is TrialState.FAIL:
            self._handed.pop(number, None)
            self._take(self._engine.give_up(number, "told to have failed", self._now()))
            return
        metrics = self._metrics(values)
        seconds = self._now() - self._handed.pop(number)
        self._recorder.metrics(node, [(node.stop, node.key_at(node.stop), metrics)])
        now = self._now()
        self._take(self._engine.measured(number, node.stop, metrics, now, seconds=seconds))

    def _waiting(self, handed: bool = False) -> dict[int, Node]:
        """Return the next node that each trial waits for; `handed` includes handed out trials."""
        wanted = self._engine.view.wanted
        return {
            number: nodes[0]
            for number, nodes in wanted.items()
            if handed or number not in self._handed
        }

    def _metrics(self, values: object) -> Metrics:
        """Return metrics by name; users may give numbers of NumPy or torch."""
        names = self._engine.objective.metrics
        try:
            if isinstance(values, Mapping):
                given = {str(name): measured(value) for name, value in values.items()}
            else:
                listed = values if isinstance(values, list | tuple) else [values]
                given = dict(zip(names, map(measured, listed), strict=True))
        except ValueError:
            given = {}
        metrics = {name: value for name, value in given.items() if value is not None}
        if not set(names) <= metrics.keys() or len(metrics) < len(given):
            raise ConfigurationError(
                f"values must be those of {', '.join(names)}, by name or in this order, as "
                f"numbers that fit into a float, got {shown(values)}"
            )
        return metrics

    def _take(self, outcome: Outcome) -> None:
        """Make an outcome durable; there are no workers, so predictions are made here."""
        outcomes = deque([outcome])
        while outcomes:
            outcome = outcomes.popleft()
            self._recorder.outcome(outcome)
            self._recorder.flush()
            for warning in outcome.warnings:
                logger.warning("%s", warning)
            self._feeds.take(outcome)
            for order in outcome.orders:
                if isinstance(order, RunPrediction | RunAssessment):
                    answer = answer_or_none(order)
                    outcomes.append(self._engine.predicted(order.subject, answer, self._now()))

    def _now(self) -> float:
        return time.monotonic() - self._began
