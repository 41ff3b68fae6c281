"""What tuners have in common that try a number of configurations of a space."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

import numpy as np

from dasktune.algos.base import Inputs, Proposal, Tuner, check_horizon
from dasktune.algos.samplers import RandomSource, Source, grid_source
from dasktune.errors import ConfigurationError, InternalError, unknown
from dasktune.sequences.values import Arguments
from dasktune.space import MOST_GRID_POINTS, Configuration, Drawing
from dasktune.space.define_by_run import AnySpace, Definition, space_of
from dasktune.types import Decision, Register, Report, Step, Value

CHECKED = 1000
"""Configurations that are drawn and looked at before anything runs."""


class SampledTuner(Tuner):
    """Draws `trials` configurations, and leaves to its kind what becomes of them.

    A kind sets what its own arguments are, calls this constructor, and implements `begin`,
    `ask`, `told`, `failed`, `state_json`, `take_state_json` and, if it can, `grow`.

    Parameters
    ----------
    space
        What to draw from: a `dasktune.Space`, or a function that defines one by running
        (see `dasktune.space.DefinedByRun`).
    trials
        How many configurations to try.
    max_steps
        How far each is trained at most.
    seed
        Decides what is drawn; it has nothing to do with the seed of the training.
    sampler
        Proposes configurations: any sampler of Optuna, or a `dasktune.algos.samplers.Source`;
        ``"grid"`` takes each configuration of a grid once, None draws at random.
    check
        What was found wrong with the kind's own arguments so far.
    more
        The kind's own arguments, for the identity: JSON values by name.

    Raises
    ------
    ConfigurationError
        If a number is too small or a sequence ends before `max_steps`: all at once. If the
        space or the sampler is none.
    """

    growing: ClassVar[bool] = True
    """Whether it can go on with more trials."""

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        seed: int = 0,
        sampler: object = None,
        check: Arguments | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        check = check or Arguments(type(self).__name__)
        self.trials = check.whole("trials", trials)
        self.seed = check.whole("seed", seed, at_least=0)
        self.max_steps = check.whole("max_steps", max_steps)
        if not check.problems and self.trials > MOST_GRID_POINTS:
            check.add(f"trials must be <= {MOST_GRID_POINTS:,}, got {self.trials:,}")
        check.refuse()
        self.space = space_of(space)
        self.source = source_of(self.space, sampler, self.seed)
        self._more = dict(more or {})
        self._queue: deque[object] = deque()
        self._fed: deque[Proposal] = deque()
        self._proposed: list[Proposal] = []
        self.registered = 0
        if self.source.most is not None and self.trials > self.source.most:
            raise ConfigurationError(
                f"trials must be <= {self.source.most:,}, the size of the grid, got {self.trials:,}"
            )
        looked_at = min(self.trials, CHECKED)
        known = self.source.known(looked_at) or RandomSource(self.space, self.seed).known(looked_at)
        check_horizon(known, self.max_steps)
        self.begin()

    # --------------------------------------------------------------- what kinds must do

    @abstractmethod
    def begin(self) -> None:
        """Set the state to that before the first `ask`, as the arguments want it."""

    @abstractmethod
    def told(self, report: Report) -> list[Decision]:
        """Return what follows from a report; the source knows of it already."""

    @abstractmethod
    def failed(self, trial: int) -> list[Decision]:
        """Return what follows from a failure; the source knows of it already."""

    def grow(self, trials: int) -> list[Decision]:
        """Return what follows from `trials` further trials, counted in `trials` already."""
        raise ConfigurationError(f"{type(self).__name__} cannot be given more trials")

    @abstractmethod
    def state_json(self) -> dict[str, object]:
        """Return the kind's own state as JSON."""

    @abstractmethod
    def take_state_json(self, state: Mapping[str, object]) -> None:
        """Take over such a state."""

    # ------------------------------------------------------------------ what it has for them

    @property
    def learns(self) -> bool:
        """Whether its sampler learns, also from earlier trials."""
        return self.source.learns

    @property
    def most_queued(self) -> int:
        """As many queued points as there are trials; none if a grid says what is tried."""
        return self.trials if self.source.most is None else 0

    @property
    def left(self) -> int:
        """How many trials have not been drawn yet."""
        return self.trials - self.registered

    @property
    def to_begin(self) -> int:
        """What is left: the rest is under way."""
        return self.left

    def draw(self) -> Register:
        """Return the next trial, whose number is `registered` before the call."""
        trial = self.registered
        queued = self._queue.popleft() if self._queue else None
        if self._fed:
            proposal = self._fed.popleft()
        elif queued is not None:
            proposal = {"point": queued}
        else:
            proposal = self.source.propose(trial)
        configuration = self.source.accept(trial, proposal)
        check_horizon((configuration,), self.max_steps)
        if self.source.logged:
            self._proposed.append(proposal)
        self.registered += 1
        return Register(
            trial=trial,
            sequences=configuration.sequences,
            max_steps=self.max_steps,
            params=configuration.params,
            point=configuration.point,
            domains=configuration.domains,
        )

    # ----------------------------------------------------------------- what a tuner must do

    def prepare(self, inputs: Inputs) -> None:
        """Take queued points, and give the source what has been learned before."""
        queued, earlier = inputs.get("queued", ()), inputs.get("earlier", ())
        if not isinstance(queued, Iterable) or not isinstance(earlier, Iterable):
            raise InternalError(f"inputs must hold lists, got {inputs!r}")
        if self.source.most is None:
            self._queue.extend(map(self._checked, queued))
        if isinstance(objectives := inputs.get("objectives"), int):
            self.source.expect(objectives)
        for one in earlier:
            self.source.earlier(one["point"], one["step"], tuple(one["losses"]))

    def _checked(self, point: Mapping[str, Value]) -> Mapping[str, Value]:
        """Refuse a queued point that cannot be: it would stop the study each time it comes up."""
        try:
            self.space.at(point, otherwise=Drawing(np.random.default_rng(self.seed)))
        except ConfigurationError as error:
            raise ConfigurationError(
                *(f"queued point {dict(point)}: {text}" for text in error.problems),
                "study.clear_queue() forgets what is queued",
            ) from error
        return point

    def tell(self, report: Report) -> list[Decision]:
        """Return what follows from a report."""
        self.source.observe(report.trial, report.step, report.losses)
        return self.told(report)

    def tell_failure(self, trial: int) -> list[Decision]:
        """Return what follows from the failure of a trial."""
        self.source.fail(trial)
        return self.failed(trial)

    @property
    def configurations(self) -> tuple[Configuration, ...] | None:
        """What will be tried; None if a sampler proposes it."""
        return self.source.known(self.trials)

    def take_proposals(self) -> list[Proposal]:
        """Return what the sampler proposed in the last call."""
        proposed, self._proposed = self._proposed, []
        return proposed

    def feed_proposals(self, proposals: Iterable[Proposal]) -> None:
        """Give, before a call is replayed, what was proposed in it the first time."""
        self._fed.extend(proposals)

    def identity(self) -> dict[str, object]:
        """Return class and arguments as JSON."""
        return {
            "tuner": type(self).__name__,
            "space": self.space.to_json(),
            "trials": self.trials,
            "max_steps": self.max_steps,
            "seed": self.seed,
            "sampler": self.source.identity(),
            **self._more,
        }

    def snapshot(self) -> dict[str, object]:
        """Return the state as JSON."""
        return {
            "trials": self.trials,
            "registered": self.registered,
            "queue": list(self._queue),
            "source": self.source.snapshot(),
            "state": self.state_json(),
        }

    def restore(self, snapshot: Mapping[str, object]) -> None:
        """Take over the state that a tuner of the same identity had."""
        match snapshot:
            case {
                "trials": int(trials),
                "registered": int(registered),
                "queue": list(queue),
                "source": source,
                "state": dict(state),
            }:
                self.trials, self.registered, self._queue = trials, registered, deque(queue)
                self.source.restore(source)
                self.take_state_json(state)
            case _:
                raise ConfigurationError(f"not a snapshot of this tuner: {snapshot!r}")

    def widened_from(self, identity: Mapping[str, object]) -> Self | None:
        """Return this tuner with the number of trials that `identity` has, if it is that one."""
        mine, trials = json.loads(json.dumps(self.identity())), identity.get("trials")
        if not self.growing or not isinstance(trials, int):
            return None
        if {**mine, "trials": trials} != identity:
            return None
        found = copy.deepcopy(self)
        found.trials = trials
        found.begin()
        return found

    def widen(self, trials: int) -> list[Decision]:
        """Go on with `trials` in all."""
        more = trials - self.trials
        if more < 1:
            raise ConfigurationError(f"trials must be > {self.trials} to widen, got {trials}")
        self.trials = trials
        return self.grow(more)


def source_of(space: AnySpace, sampler: object, seed: int) -> Source:
    """Return where a tuner's configurations come from.

    Parameters
    ----------
    space
        What to propose from.
    sampler
        One of Optuna's, or a `Source` as it is; ``"grid"`` takes the grid of the space,
        None draws at random.
    seed
        Decides what is drawn.

    Raises
    ------
    ConfigurationError
        If the sampler is anything else.
    """
    if sampler is None:
        return RandomSource(space, seed)
    if isinstance(sampler, Source):
        return sampler
    if isinstance(sampler, str):
        if sampler != "grid":
            known = unknown("sampler", sampler, ("grid",))
            raise ConfigurationError(f"{known}, or one of Optuna's, such as TPESampler()")
        return grid_source(space)
    from dasktune.algos.optuna_sampler import OptunaSource

    return OptunaSource(space, sampler, seed)
