"""An audit on a worker: steps that are trained already, trained again and compared.

It loads a stored state in a new trainer and trains on. Metrics and states on the way must be those
that are stored, bit for bit; on a GPU, within the tolerance of `check_resume`. What was made with
other versions, or on another kind of device, shows nothing about the trainer. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from dasktune.errors import CorruptCheckpointError
from dasktune.sequences import Sequence, sequence_from_json
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import decode, encode
from dasktune.trainer.check_resume.check import is_harmless, tolerance_of
from dasktune.trainer.check_resume.differences import Difference, state_differences
from dasktune.trainer.environment import is_same_environment
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.worker.control import Control
from dasktune.worker.errors_in_words import in_words
from dasktune.worker.job import AuditSpec, Job
from dasktune.worker.messages import AuditEnded, AuditStatus

MOST_DIFFERENCES = 8
"""Parts of a state that are named."""


class AuditRun:
    """One audit while it runs.

    Parameters
    ----------
    spec
        What is trained, and what must come out.
    control
        Tells it to end.
    job, store
        Those of the host.
    begin
        Returns a new trainer at the first step, from the hyper-parameters by name.
    on_step
        Called when the trainer begins its part of a step.
    on_wait
        Called when the trainer has ended it: what follows may wait for the store.
    """

    def __init__(
        self,
        spec: AuditSpec,
        control: Control,
        *,
        job: Job,
        store: CheckpointStore,
        begin: Callable[[Mapping[str, Sequence]], TrainerRun],
        on_step: Callable[[], None],
        on_wait: Callable[[], None],
    ) -> None:
        self._spec, self._control = spec, control
        self._store, self._environment = store, job.environment
        self._begin, self._on_step, self._on_wait = begin, on_step, on_wait
        self._tolerance = tolerance_of(job.trainer_class, job.device)
        self._harmless = tuple(getattr(job.trainer_class, "harmless_differences", ()))
        self._steps, self._compared = 0, 0
        self._of_metrics: list[Difference] = []
        self._of_state: list[Difference] = []

    def train(self) -> AuditEnded:
        """Train and compare, up to the first state that differs; end where it is told to."""
        stage = self._spec.stage
        functions = {name: sequence_from_json(text) for name, text in stage.sequences.items()}
        if self._control.passes(stage.start)[1]:
            return self.dropped()
        if self._is_from_elsewhere():
            return self._end("elsewhere")
        try:
            run = self._begin(functions)
        except CorruptCheckpointError:
            return self._end("missing")
        for step in range(stage.start, stage.stop):
            self._on_step()
            run.advance({name: sequence(step) for name, sequence in functions.items()})
            self._steps += 1
            self._compare(run)
            if self._of_state:
                break
            if self._control.passes(run.step)[1] and run.step < stage.stop:
                return self.dropped()
        return self._end("differs" if self._differences else "identical")

    def failure(self, error: BaseException) -> AuditEnded:
        """Return the receipt of an audit whose trainer raised, or whose store cannot be read."""
        return self._end("failed", in_words(error)["message"])

    def overdue(self, seconds: float, where: str) -> None:
        """Do nothing: the process ends, and the audit is dropped with it."""

    def dropped(self) -> AuditEnded:
        """Return the receipt of an audit that was told to end."""
        return self._end("dropped")

    def _is_from_elsewhere(self) -> bool:
        """Return whether a state on the way was made in another environment than this one."""
        commits = self._store.commits(self._spec.states.values()).values()
        return not all(
            is_same_environment(commit.environment, self._environment) for commit in commits
        )

    def _compare(self, run: TrainerRun) -> None:
        """Compare what is stored of the present step; of metrics, the first differences stand."""
        metrics = self._spec.metrics.get(run.step)
        if metrics is not None and not self._of_metrics:
            self._compared += 1
            path = f"metrics[{run.step}]"
            self._of_metrics += self._differing(metrics, run.evaluate(), path)
        if run.step in self._spec.states:
            self._compare_state(run, self._spec.states[run.step])

    def _compare_state(self, run: TrainerRun, key: str) -> None:
        snapshot = encode(run.state())
        self._on_wait()
        commit = self._store.commit_of(key)
        if commit is None:  # evicted since
            return
        self._compared += 1
        if commit.digest == snapshot.digest:
            return
        stored, _ = self._store.load(key)
        trained = decode(snapshot.document, snapshot.data)
        self._of_state += self._differing(stored, trained, "state")

    def _differing(self, stored: object, trained: object, path: str) -> Iterator[Difference]:
        differences = state_differences(stored, trained, path=path, tolerance=self._tolerance)
        return (each for each in differences if not is_harmless(each.path, self._harmless))

    @property
    def _differences(self) -> list[Difference]:
        return [*self._of_state[:MOST_DIFFERENCES], *self._of_metrics]

    def _end(self, status: AuditStatus, message: str = "") -> AuditEnded:
        return AuditEnded(
            audit=self._spec.stage.attempt,
            step=self._spec.stage.start + self._steps,
            status=status,
            steps=self._steps,
            compared=self._compared,
            differences=tuple(_as_texts(self._differences)),
            message=message,
        )


def _as_texts(differences: Iterable[Difference]) -> Iterator[tuple[str, str]]:
    return ((difference.path, difference.reason) for difference in differences)
