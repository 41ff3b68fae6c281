"""The undisturbed study: each trial trained alone, reports in order."""

from __future__ import annotations

from collections.abc import Mapping

from dasktune._engine.event_log import report_of
from dasktune.algos.base import Tuner
from dasktune.graph.plan import Path
from dasktune.types import (
    Decision,
    Extend,
    Finish,
    Register,
    Sequences,
    Step,
    Stop,
    TrialState,
)
from tests.torture.study import OBJECTIVE
from tests.torture.ways import Way, metrics_of, root_of
from tests.torture.workers import Raises

Result = tuple[TrialState, Step, float | None]
"""State, steps and value of a trial."""


def undisturbed(
    tuner: Tuner, raises: Raises, *, merge: bool, paths: Mapping[int, Path]
) -> dict[int, Result]:
    """Return the result of each trial of a tuner, by number.

    Parameters
    ----------
    tuner
        A new one.
    raises
        Whether the trainer raises where it should get to a state, always.
    merge
        Whether trials share what they have in common.
    paths
        The trials in the plan: their devices and numeric classes, which states depend on.
    """
    return _Alone(tuner, raises, merge, paths).run()


class _Alone:
    """A study without workers: each trial trained alone, its reports in order."""

    def __init__(
        self, tuner: Tuner, raises: Raises, merge: bool, paths: Mapping[int, Path]
    ) -> None:
        self._paths = paths
        self._tuner = tuner
        self._merge = merge
        self._raises = raises
        self._found: dict[int, Result] = {}
        self._sequences: dict[int, tuple[Sequences, str, Step]] = {}
        self._asked: dict[int, list[Step]] = {}
        self._is_finished = False

    def run(self) -> dict[int, Result]:
        """Return the result of each trial."""
        self._tuner.prepare({})
        while not self._is_finished:
            self._take(self._tuner.ask(1))
            if self._asked and not self._is_finished:
                self._train(min(self._asked))
        return {
            number: (TrialState.PRUNED, steps, value) if not state.is_finished else found
            for number, found in sorted(self._found.items())
            for state, steps, value in [found]
        }

    def _train(self, trial: int) -> None:
        step = self._asked[trial].pop(0)
        if not self._asked[trial]:
            del self._asked[trial]
        _, before, value = self._found[trial]
        sequences, root, most = self._sequences[trial]
        way = Way(sequences, root)
        if any(map(self._raises, way.states(before, step))):
            self._asked.pop(trial, None)
            self._found[trial] = TrialState.FAIL, before, value
            self._take(self._tuner.tell_failure(trial))
            return
        metrics = metrics_of(way.state(step))
        state = TrialState.COMPLETE if step >= most else TrialState.PAUSED
        self._found[trial] = state, step, metrics["loss"]
        self._take(self._tuner.tell(report_of(trial, step, metrics, OBJECTIVE)))

    def _take(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Register():
                    path = self._paths.get(decision.trial)
                    numerics = None if path is None else path.leaf.numerics
                    root = root_of(
                        *(decision.trial, decision.seed),
                        merge=self._merge,
                        numerics=numerics,
                    )
                    self._sequences[decision.trial] = (
                        decision.sequences if path is None else path.sequences,
                        root,
                        decision.max_steps,
                    )
                    self._found[decision.trial] = TrialState.PAUSED, 0, None
                case Extend():
                    self._asked[decision.trial] = [*decision.reports, decision.until]
                case Stop():
                    self._asked.pop(decision.trial, None)
                    _, steps, value = self._found[decision.trial]
                    self._found[decision.trial] = TrialState.PRUNED, steps, value
                case Finish():
                    self._is_finished = True
