"""Ask and tell: a tuner for users who train in a loop of their own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dasktune.algos.base import Tuner
from dasktune.driver.recorder import Recorder
from dasktune.engine.engine import Engine
from dasktune.engine.outcome import Outcome, RunPrediction
from dasktune.errors import ConfigurationError
from dasktune.graph.plan import Node
from dasktune.types import Metrics, Sequences, Step, TrialState, Value
from dasktune.worker.answering import answer_or_none


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be trained next.

    Attributes
    ----------
    number
        The trial's number in the study.
    params
        What was sampled.
    sequences
        Its hyper-parameters as functions of the step.
    start, until
        Steps that it has been trained, and that it is to be trained to in all.
    seed
        Of the training: the study's, plus what repeats of a configuration add to it.
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


class OwnLoop:
    """Runs a tuner on what a user measures.

    Parameters
    ----------
    engine
        Holds the tuner; it has no workers.
    recorder
        Makes every answer durable.
    identity
        The tuner's.
    seed
        The study's.
    begin
        Starts or resumes it: (now, capacity) -> outcome.
    on_safe
        Called with each outcome once its records are durable.
    """

    def __init__(
        self,
        engine: Engine,
        recorder: Recorder,
        identity: Mapping[str, object],
        seed: int,
        begin: Callable[[float, int], Outcome],
        on_safe: Callable[[Outcome], None],
    ) -> None:
        self._engine = engine
        self._recorder = recorder
        self._identity = identity
        self._seed = seed
        self._on_safe = on_safe
        self._handed: dict[int, float] = {}
        """What was handed out, and when."""
        self._began = time.monotonic()
        self._take(begin(0.0, 1))

    def is_for(self, tuner: Tuner) -> bool:
        """Whether it runs a tuner of the same identity."""
        return self._identity == tuner.identity()

    def ask(self) -> Asked | None:
        """Return the most urgent thing that nobody is at; None if there is none now."""
        waiting = self._waiting()
        if not waiting and not self._engine.finished:
            self._take(self._engine.ask(1, self._now()))
            waiting = self._waiting()
        if not waiting:
            return None
        priority = {number: max(node.requests.values()) for number, node in waiting.items()}
        number = min(waiting, key=lambda one: (-priority[one], one))
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
        """Take in what came of a trial that was asked for.

        Raises
        ------
        ConfigurationError
            If it was not asked for, or the values are not those of the study's metrics.
        """
        number = trial.number if isinstance(trial, Asked) else trial
        node = self._waiting(handed=True).get(number)
        if number not in self._handed:
            asked = ", ".join(map(str, sorted(self._handed))) or "none"
            raise ConfigurationError(
                f"a trial must be asked for before it is told of, got {number}; asked for: {asked}"
            )
        if state not in (None, TrialState.FAIL, TrialState.COMPLETE):
            raise ConfigurationError(f"state must be COMPLETE or FAIL, got {state!r}")
        if node is None or (isinstance(trial, Asked) and trial.until != node.stop):
            # Its tuner has ended it, or asked for something else, in the meantime.
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
        """Return the next node that each trial waits for, without those that were handed out."""
        wanted = self._engine.view.wanted
        return {
            number: nodes[0]
            for number, nodes in wanted.items()
            if handed or number not in self._handed
        }

    def _metrics(self, values: object) -> Metrics:
        """Return metrics by name from what a user may give, NumPy's and torch's numbers too."""
        names = self._engine.objective.metrics
        try:
            if isinstance(values, Mapping):
                found = {str(name): float(value) for name, value in values.items()}
            elif isinstance(values, list | tuple):
                found = dict(zip(names, map(float, values), strict=True))
            else:
                found = dict(zip(names, [float(values)], strict=True))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            found = {}
        if isinstance(values, str) or not set(names) <= found.keys():
            raise ConfigurationError(
                f"values must be those of {', '.join(names)}, by name or in this order, "
                f"got {values!r}"
            )
        return found

    def _take(self, outcome: Outcome) -> None:
        """Make an outcome durable; there are no workers, so predictions are made here."""
        waiting = deque([outcome])
        while waiting:
            one = waiting.popleft()
            self._recorder.outcome(one)
            self._recorder.flush()
            self._on_safe(one)
            for order in one.orders:
                if isinstance(order, RunPrediction):
                    answer = answer_or_none(order)
                    waiting.append(self._engine.predicted(order.trial, answer, self._now()))

    def _now(self) -> float:
        return time.monotonic() - self._began
