"""Training single stages in any process, for `StageTree.to_dask`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dasktune.errors import InternalError
from dasktune.graph.tree import Stage
from dasktune.trainer.code import TrainerCode, unpack
from dasktune.trainer.isolation import give_own_generator
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof.remedies import Proving
from dasktune.types import Metrics, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """The result of a stage: the state at its end with its proof, and the metrics by step."""

    state: Mapping[str, Any]
    metrics: Mapping[Step, Metrics]
    proof: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTraining:
    """A picklable function that trains a stage of a study from the result of its parent.

    Parameters
    ----------
    config, seed, report_every
        As for `dasktune.create_study`.
    """

    code: TrainerCode
    config: Mapping[str, object]
    seed: int
    report_every: int = 1

    def __call__(self, stage: Stage, before: object) -> StageResult:
        """Train `stage` from its parent's result; from step 0 if that is None."""
        give_own_generator()
        run = self._begin(stage, before)
        metrics: dict[Step, Metrics] = {}
        for step in range(stage.start, stage.stop):
            run.advance({name: sequence(step) for name, sequence in stage.sequences.items()})
            if run.step % self.report_every == 0 or run.step == stage.stop:
                metrics[run.step] = run.evaluate()
        state = run.state()
        proof = run.proof(state)
        return StageResult(state=copy.deepcopy(state), metrics=metrics, proof=proof)

    def _begin(self, stage: Stage, before: object) -> TrainerRun:
        trainer = unpack(self.code)
        first = {name: sequence(0) for name, sequence in stage.sequences.items()}
        # Other stages may be trained in this process at the same time.
        proving = Proving(owns_process=False)
        if stage.start == 0:
            return TrainerRun.start(
                trainer, first, config=self.config, seed=self.seed, proving=proving
            )
        if not isinstance(before, StageResult):
            raise InternalError(f"{stage.key} starts at step {stage.start} from nothing")
        return TrainerRun.resume(
            trainer,
            step=stage.start,
            first_values=first,
            last_values={name: at(stage.start - 1) for name, at in stage.sequences.items()},
            state=copy.deepcopy(before.state),
            config=self.config,
            seed=self.seed,
            proving=replace(proving, proof=before.proof),
        )
