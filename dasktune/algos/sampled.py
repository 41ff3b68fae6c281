"""The base of all tuners that draw configurations from a space."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Final, Self

import numpy as np

from dasktune.algos.base import Inputs, Proposal, Tuner, check_horizon
from dasktune.algos.curves.curve import Predictor
from dasktune.algos.forest.priority import Priority, PriorityQuestion
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.algos.samplers import RandomSource
from dasktune.algos.sources import source_of
from dasktune.algos.state import Readers, set_state, state_to_json, to_json, types_of
from dasktune.errors import ConfigurationError, InternalError
from dasktune.sequences.values import Arguments
from dasktune.space import MOST_GRID_POINTS, Configuration, Drawing, Space
from dasktune.space.define_by_run import AnySpace, Definition, space_of
from dasktune.types import (
    Assess,
    Decision,
    Extend,
    Finish,
    Register,
    Report,
    Sequences,
    Step,
    Value,
)

CHECKED = 1000
"""Configurations that are drawn and checked before anything runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The arguments that every tuner with a space has.

    Parameters
    ----------
    trials
        Number of configurations to try.
    max_steps
        The largest step that a trial is trained to.
    seed
        Decides the draws.
    """

    trials: int
    max_steps: Step
    seed: int

    @classmethod
    def checked(cls, check: Arguments, trials: object, max_steps: object, seed: object) -> Budget:
        """Return the budget; `check` keeps the problems, and harmless numbers take their place."""
        return cls(
            trials=check.whole("trials", trials),
            max_steps=check.whole("max_steps", max_steps),
            seed=check.whole("seed", seed, at_least=0, at_most=None),
        )


IF_SET: Final = {"identity": "if set"}
"""Metadata of an option that is part of an identity only if it is not None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The own arguments of a kind of tuner; their names and values are part of its identity."""

    def identity(self) -> dict[str, object]:
        """Return the values by name, as JSON."""
        hints = types_of(type(self))
        values = {
            field.name: value
            for field in fields(self)
            for value in [getattr(self, field.name)]
            if value is not None or field.metadata != IF_SET
        }
        return {
            name: value.identity() if isinstance(value, Predictor) else to_json(hints[name], value)
            for name, value in values.items()
        }


class SampledTuner(Tuner):
    """Draws configurations from a space, and lets its kind decide how far each is trained.

    A kind checks its own arguments, calls this constructor, and implements `begin`, `ask`,
    `on_report`, `on_failure` and, if more trials can be added, `grow`. The attributes that
    `state` names, without an underscore at the front, are its snapshot; see
    `dasktune.algos.state` for how their types are written.

    All kinds share these arguments and errors:

    Parameters
    ----------
    space
        A `dasktune.Space`, or a function that defines one by running (see
        `dasktune.space.DefinedByRun`).
    trials
        Number of configurations to try.
    max_steps
        The largest step that a trial is trained to.
    seed
        Decides which configurations are drawn. The seed of the training is the study's.
    sampler
        Proposes configurations: any sampler of Optuna, one of `dasktune.samplers`, or a
        `dasktune.algos.samplers.Source`. A sampler that learns proposes one for each free
        worker at a time. ``"grid"`` takes each configuration of a grid once, None draws at
        random.

    Attributes
    ----------
    options
        The arguments that only tuners of its class have.

    Raises
    ------
    ConfigurationError
        If a number is out of its range or a sequence ends before `max_steps`: all at once. If
        the space or the sampler is none.
    """

    growing: ClassVar[bool] = True
    """Whether trials can be added to it."""

    limits_trials: ClassVar[bool] = False
    """Whether `trials` is a limit, and a smaller grid is tried as a whole."""

    def __init__(
        self,
        space: AnySpace | Definition,
        budget: Budget,
        options: Options | None = None,
        *,
        sampler: object,
        check: Arguments,
    ) -> None:
        if not check.problems and budget.trials > MOST_GRID_POINTS:
            check.add(f"trials must be <= {MOST_GRID_POINTS:,}, got {budget.trials:,}")
        check.refuse()
        self.trials, self.max_steps, self.seed = budget.trials, budget.max_steps, budget.seed
        self.options = options or Options()
        self.space = space_of(space)
        self.source = source_of(self.space, sampler, self.seed)
        self._queue: deque[object] = deque()
        self._fed: deque[Proposal] = deque()
        self._proposed: list[Proposal] = []
        self._domains: Mapping[str, Mapping[str, object]] = {}
        """The domains of the last trial."""
        self.registered = 0
        if self.source.most is not None and self.limits_trials:
            self.trials = min(self.trials, self.source.most)
        if self.source.most is not None and self.trials > self.source.most:
            raise ConfigurationError(
                f"trials must be <= {self.source.most:,}, the size of the grid, got {self.trials:,}"
            )
        count = min(self.trials, CHECKED // 10 if self.limits_trials else CHECKED)
        known = self.source.known(count) or RandomSource(self.space, self.seed).known(count)
        check_horizon(known, self.max_steps)
        self.begin()
        self.derive()

    # ------------------------------------------------------------------- for kinds to define

    @abstractmethod
    def begin(self) -> None:
        """Set the state before the first `ask`."""

    def derive(self) -> None:
        """Set the attributes that follow from a state which was just begun or read."""

    @property
    def readers(self) -> Readers:
        """The readers of parts of the state that need the arguments of the tuner."""
        return {}

    @abstractmethod
    def on_report(self, report: Report) -> list[Decision]:
        """Return the decisions after a report, which the source has observed."""

    @abstractmethod
    def on_failure(self, trial: int) -> list[Decision]:
        """Return the decisions after a failure, which the source has observed."""

    def grow(self, trials: int) -> list[Decision]:
        """Return the decisions after `trials` trials were added to `trials`."""
        raise ConfigurationError(f"{type(self).__name__} cannot be given more trials")

    # --------------------------------------------------------------------- for kinds to call

    @property
    def learns(self) -> bool:
        """Whether its sampler learns, also from earlier trials."""
        return self.source.learns

    @property
    def most_queued(self) -> int:
        """As many queued points as trials; none if a grid gives the configurations."""
        return self.trials if self.source.most is None else 0

    @property
    def left(self) -> int:
        """The number of trials that have not been drawn yet."""
        return self.trials - self.registered

    @property
    def to_begin(self) -> int:
        """The trials that are left: all others have begun."""
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
        return self.take(proposal)

    def take(self, proposal: Proposal) -> Register:
        """Return the next trial, from a proposal."""
        trial = self.registered
        configuration = self.source.accept(trial, proposal)
        check_horizon((configuration,), self.max_steps)
        if self.source.logged:
            self._proposed.append(proposal)
        return self.register(configuration, model_rank=self.source.model_rank(trial))

    def register(
        self,
        configuration: Configuration,
        sequences: Sequences | None = None,
        *,
        model_rank: float | None = None,
    ) -> Register:
        """Return the next trial, of this configuration; `sequences` take the place of its own."""
        self.registered += 1
        return Register(
            trial=self.registered - 1,
            sequences=sequences or configuration.sequences,
            max_steps=self.max_steps,
            params=configuration.params,
            point=configuration.point,
            domains=self._same_domains(configuration.domains),
            model_rank=model_rank,
            problem=configuration.problem,
        )

    def _same_domains(
        self, domains: Mapping[str, Mapping[str, object]]
    ) -> Mapping[str, Mapping[str, object]]:
        """Return domains, or those of the last trial if they are the same: trials share them."""
        last = self._domains
        is_same = all(last.get(name) is domain for name, domain in domains.items())
        if not is_same or len(last) != len(domains):
            self._domains = domains
        return self._domains

    # --------------------------------------------------------------- the protocol of tuners

    def prepare(self, inputs: Inputs) -> None:
        """Queue the points of a user, and give earlier trials to the source."""
        queued, earlier = inputs.get("queued", ()), inputs.get("earlier", ())
        if not isinstance(queued, Iterable) or not isinstance(earlier, Iterable):
            raise InternalError(f"inputs must hold lists, got {inputs!r}")
        if self.source.most is None:
            self._queue.extend(map(self._checked, queued))
        if isinstance(objectives := inputs.get("objectives"), int):
            self.source.expect(objectives)
        for trial in earlier:
            self.source.earlier(trial["point"], trial["step"], tuple(trial["losses"]))

    def _checked(self, point: Mapping[str, Value]) -> Mapping[str, Value]:
        """Refuse a queued point outside the space: it would stop the study in every run."""
        try:
            self.space.at(point, otherwise=Drawing(np.random.default_rng(self.seed)))
        except ConfigurationError as error:
            raise ConfigurationError(
                *(f"queued point {dict(point)}: {text}" for text in error.problems),
                "study.clear_queue() forgets what is queued",
            ) from error
        return point

    def tell(self, report: Report) -> list[Decision]:
        """Return the decisions after a report."""
        self.source.observe(report.trial, report.step, report.losses)
        decisions = self.on_report(report)
        due = [Assess(model=model) for model in self.source.due_models()]
        is_over = any(isinstance(decision, Finish) for decision in decisions)
        return decisions if is_over else [*decisions, *due]

    @property
    def model_weights(self) -> list[ModelWeight]:
        """The models of its source, with their weights."""
        return self.source.model_weights

    def model_question(self, model: int) -> PriorityQuestion:
        """Return the question of the source about a model."""
        return self.source.model_question(model)

    def tell_priority(self, model: int, priority: Priority | None) -> list[Decision]:
        """Give the priority of a model to the source; it counts in later draws."""
        self.source.learn_priority(model, priority)
        return []

    def tell_failure(self, trial: int) -> list[Decision]:
        """Return the decisions after the failure of a trial."""
        self.source.fail(trial)
        return self.on_failure(trial)

    def tell_retry(self, trial: int, step: Step) -> list[Decision]:
        """Return the request for the rest of a failed trial, if the tuner can take it back."""
        if not self.takes_back:
            return super().tell_retry(trial, step)
        self.source.retry(trial)
        return [rest_of(self.on_retry(trial), step)]

    def on_retry(self, trial: int) -> Extend:
        """Return the request for a failed trial that is taken back; for kinds that can."""
        raise InternalError(f"{type(self).__name__} takes no trial back, got trial {trial}")

    @property
    def configurations(self) -> tuple[Configuration, ...] | None:
        """The configurations that will be tried; None if a sampler proposes them one by one."""
        return self.source.known(self.trials)

    def take_proposals(self) -> list[Proposal]:
        """Return the proposals of the sampler in the last call."""
        proposed, self._proposed = self._proposed, []
        return proposed

    def feed_proposals(self, proposals: Iterable[Proposal]) -> None:
        """Receive the proposals that a call had the first time, before it is replayed."""
        self._fed.extend(proposals)

    @property
    def searched_space(self) -> Space | None:
        """The space of its configurations; None if a function defines it."""
        return self.space if isinstance(self.space, Space) else None

    def identity(self) -> dict[str, object]:
        """Return class and arguments as JSON."""
        return {
            "tuner": type(self).__name__,
            "space": self.space.to_json(),
            "trials": self.trials,
            "max_steps": self.max_steps,
            "seed": self.seed,
            "sampler": self.source.identity(),
            **self.options.identity(),
        }

    def snapshot(self) -> dict[str, object]:
        """Return the state as JSON."""
        return {
            "trials": self.trials,
            "registered": self.registered,
            "queue": list(self._queue),
            "source": self.source.snapshot(),
            "state": state_to_json(self, self.state),
        }

    def restore(self, snapshot: Mapping[str, object]) -> None:
        """Continue with the snapshot of a tuner of the same identity."""
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
                set_state(self, self.state, state, self.readers)
                self.derive()
            case _:
                raise ConfigurationError(f"not a snapshot of this tuner: {snapshot!r}")

    def widened_from(self, identity: Mapping[str, object]) -> Self | None:
        """Return this tuner with the number of trials in `identity`; None if more differs."""
        narrow, trials = copy.deepcopy(self), identity.get("trials")
        own = json.loads(json.dumps(narrow.identity()))
        if not isinstance(trials, int) or not (self.growing or trials == self.trials):
            return None
        if {**own, "trials": trials} != identity:
            return None
        narrow.trials = trials
        narrow.begin()
        narrow.derive()
        return narrow

    def widen(self, trials: int) -> list[Decision]:
        """Return the decisions that raise the number of trials to `trials`."""
        more = trials - self.trials
        if more < 1:
            raise ConfigurationError(f"trials must be > {self.trials} to widen, got {trials}")
        self.trials = trials
        return self.grow(more)


class IndependentTrials(SampledTuner):
    """Extends each trial once, to its end, and finishes after the last of them.

    A kind implements `request`, and calls `on_failure` for a trial that has ended.
    """

    takes_back = True
    state: ClassVar[tuple[str, ...]] = ("open",)
    open: set[int]
    """The trials that have begun and not ended."""

    @abstractmethod
    def request(self, trial: int) -> Extend:
        """Return how far a new trial is trained, and the steps of its reports."""

    def begin(self) -> None:
        """Begin with no open trial."""
        self.open = set()

    def derive(self) -> None:
        """Refuse open trials that have not begun."""
        if self.open - set(range(self.registered)):
            raise ConfigurationError(f"not the state of this tuner: open trials {self.open}")

    def ask(self, capacity: int) -> list[Decision]:
        """Return all trials the first time, or one for each free worker if a sampler learns."""
        count = min(self.left, capacity) if self.source.learns else self.left
        drawn = [self.draw() for _ in range(count)]
        numbers = [register.trial for register in drawn]
        self.open.update(numbers)
        return [*drawn, *map(self.request, numbers)]

    def on_failure(self, trial: int) -> list[Decision]:
        """Return `Finish` when all other trials have ended."""
        if trial not in self.open:
            return []
        self.open.remove(trial)
        return [] if self.open or self.left else [Finish()]

    def on_retry(self, trial: int) -> Extend:
        """Open a failed trial again."""
        self.open.add(trial)
        return self.request(trial)

    def grow(self, trials: int) -> list[Decision]:
        """Draw the added trials, unless a sampler learns: then they wait for free workers."""
        return self.ask(0)


def rest_of(extend: Extend, step: Step) -> Extend:
    """Return a request without the reports at steps up to `step`."""
    return replace(extend, reports=tuple(at for at in extend.reports if at > step))
