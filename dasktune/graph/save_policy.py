"""The policy of saves: the steps at which a stage saves its state on the way."""

from __future__ import annotations

from dataclasses import dataclass

from dasktune.errors import ConfigurationError, shown
from dasktune.graph.plan import Node
from dasktune.types import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePolicy:
    """Steps inside a stage at which its state is saved.

    The ends of stages and the branch points known to the plan are saved, but for ends that are
    cheaper to train again (`dasktune._worker.stage_run.StageRun.may_omit`); and
    unless `every` is given, a worker also saves whenever what saving costs is at most 2% of
    the time trained since the last save.

    Parameters
    ----------
    every
        Save every so many steps, counted from step 0.
    at_changes
        Save where a piecewise hyper-parameter changes its value: later trials tend to
        branch there.
    """

    every: int | None = None
    at_changes: bool = True

    def __post_init__(self) -> None:
        if self.every is not None and (type(self.every) is not int or self.every < 1):
            raise ConfigurationError(
                f"checkpoint_every must be an int >= 1, got {shown(self.every)}"
            )

    def steps_of(self, node: Node, start: Step) -> tuple[Step, ...]:
        """Return the steps in (start, node.stop), in order."""
        steps: set[Step] = set()
        if self.every is not None:
            first = (start // self.every + 1) * self.every
            steps.update(range(first, node.stop, self.every))
        if self.at_changes:
            for function in node.sequences.values():
                steps.update(function.boundaries(start, node.stop))
        return tuple(sorted(steps))
