"""The bridge to Optuna: any of its samplers as a source of configurations.

Only this module of `dasktune.algos` imports Optuna, and it is imported when a sampler is given.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, Final

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import NopPruner
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    GridSampler,
    PartialFixedSampler,
    QMCSampler,
    RandomSampler,
)
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from dasktune.algos.base import Proposal
from dasktune.algos.observations import RUNNING, Observations, Observed, Outcome, losses_of
from dasktune.algos.sampler_parts import (
    digest_of,
    generators,
    identity_of,
    parts,
    reseed,
    settle_seeds,
)
from dasktune.algos.samplers import Source
from dasktune.errors import ConfigurationError, InternalError
from dasktune.space import Choice, Configuration, Drawing, Float, Int
from dasktune.space.define_by_run import AnySpace
from dasktune.types import Step

_BLIND: Final = frozenset(
    {RandomSampler, QMCSampler, GridSampler, BruteForceSampler, PartialFixedSampler}
)
"""Samplers that look at no loss, unless another one is in them."""

_NAME: Final = "dasktune"


class OptunaSource(Source):
    """Proposes what a sampler of Optuna does, from a study of Optuna's in memory.

    The sampler is copied, and sees one study in which all trials are minimised, each at the
    step at which they are compared (see `dasktune.algos.observations`): trials that are
    under way are ``RUNNING``, which TPE and GP take into account themselves.

    What it proposes next depends only on what has been proposed and reported, so that a
    source that is restored, or replayed, goes on as if nothing had happened: its generators
    are seeded anew for each trial, and Optuna's own samplers, which keep all else in the
    study, begin each trial as they were given. A sampler from elsewhere may have a state of
    its own, and keeps it for as long as the process lives.

    A sampler that has tried all there is, such as `GridSampler` at the end of its grid,
    goes on with what it has tried before: training that again costs nothing, and how many
    trials there are is the tuner's to say.

    Parameters
    ----------
    space
        What to propose from; a coordinate of it is a parameter in Optuna.
    sampler
        Any of Optuna's, or one written like them.
    seed
        Decides what is drawn, together with the sampler's own seed.

    Attributes
    ----------
    earlier_ignored
        How many earlier trials were not of this space.

    Raises
    ------
    ConfigurationError
        If it is no sampler; later if it proposes what is not in the space.

    References
    ----------
    Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019.
    """

    def __init__(self, space: AnySpace, sampler: object, seed: int) -> None:
        if not isinstance(sampler, BaseSampler):
            raise ConfigurationError(
                f"sampler must be a sampler of Optuna, or a Source, got {sampler!r}"
            )
        self._space = space
        self._seed = seed
        self._identity = identity_of(sampler)
        self._sampler = copy.deepcopy(sampler)
        settle_seeds(self._sampler, seed)
        samplers = [one for one in parts(self._sampler) if isinstance(one, BaseSampler)]
        self.learns = any(type(one) not in _BLIND for one in samplers)
        self._forgets = all(type(one).__module__.startswith("optuna.") for one in samplers)
        startups = (getattr(one, "_n_startup_trials", 0) for one in samplers)
        # A level with fewer trials would send the sampler back to drawing at random.
        self._startup = max(number for number in startups if isinstance(number, int))
        self._observed = Observations()
        self._view: _View | None = None
        self._asked: Proposal | None = None
        self.earlier_ignored = 0

    def propose(self, trial: int) -> Proposal:
        """Return what the sampler proposes, with what it noted for itself."""
        with _quietly():
            view = self._synchronised()
            try:
                found = view.ask(self._space, self._sampler_for(trial))
            except BaseException:
                self._view = None
                raise
        self._asked = found
        return found

    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration of a proposal; what its point lacks is drawn at random."""
        point, notes = proposal["point"], proposal.get("notes", {})
        if not isinstance(point, Mapping) or not isinstance(notes, Mapping):
            raise ConfigurationError(f"not a proposal for a sampler of Optuna: {proposal!r}")
        drawing = Drawing(np.random.default_rng((self._seed, trial)))
        found = self._space.at(point, otherwise=drawing)
        one = Observed(trial=trial, point=found.point, domains=found.domains, notes=notes)
        self._add(one, is_asked=proposal == self._asked)
        return found

    def expect(self, objectives: int) -> None:
        """Take in how many objectives there are, before the first report says it."""
        self._observed.expected = objectives

    def earlier(self, point: Mapping[str, object], step: Step, losses: tuple[float, ...]) -> None:
        """Take in an earlier trial if all its coordinates are of the space."""
        if not self.learns:
            return
        try:
            found = self._space.at(point)  # type: ignore[arg-type]
        except ConfigurationError:
            self.earlier_ignored += 1
            return
        one = Observed(trial=None, point=found.point, domains=found.domains, losses={step: losses})
        self._add(one, is_asked=False)

    def observe(self, trial: int, step: Step, losses: tuple[float, ...]) -> None:
        """Take in a report."""
        self._observed.report(trial, step, losses)

    def fail(self, trial: int) -> None:
        """Take in that a trial failed."""
        self._observed.fail(trial)

    def identity(self) -> object:
        """Return class and attributes of the sampler as it was given."""
        return self._identity

    def snapshot(self) -> object:
        """Return all that was proposed and reported."""
        return {
            "objectives": self._observed.expected,
            "trials": [one.to_json() for one in self._observed.trials],
            "earlier_ignored": self.earlier_ignored,
        }

    def restore(self, snapshot: object) -> None:
        """Take over what was proposed and reported."""
        match snapshot:
            case {
                "objectives": int() | None as objectives,
                "trials": list(trials),
                "earlier_ignored": int(ignored),
            }:
                self._observed, self._view, self._asked = Observations(), None, None
                self._observed.expected = objectives
                self.earlier_ignored = ignored
                for document in trials:
                    self._add(self._observed_of(document), is_asked=False)
            case _:
                raise ConfigurationError(f"not a snapshot of this source: {snapshot!r}")

    def _observed_of(self, document: Any) -> Observed:
        found = self._space.at(document["point"])
        return Observed(
            trial=document["trial"],
            point=found.point,
            domains=found.domains,
            notes=document["notes"],
            losses=losses_of(document["losses"]),
            failed=document["failed"],
        )

    def _add(self, one: Observed, *, is_asked: bool) -> None:
        self._observed.add(one)
        if not is_asked:
            self._forget_asked()
        self._asked = None

    def _forget_asked(self) -> None:
        """Drop a view with a trial that was proposed and not accepted."""
        if self._asked is not None:
            self._view = self._asked = None

    def _synchronised(self) -> _View:
        """Return a study of Optuna's that holds all that is known."""
        self._forget_asked()
        trials, objectives = self._observed.trials, self._observed.objectives
        if self.learns:
            level = self._observed.level(self._startup)
            outcomes = self._observed.outcomes(self._startup)
        else:
            level, outcomes = None, [RUNNING] * len(trials)
        if self._view is None or self._view.differs(level, outcomes, objectives):
            self._view = _View(self._sampler, level, objectives)
        self._view.update(trials, outcomes)
        return self._view

    def _sampler_for(self, trial: int) -> BaseSampler:
        sampler = copy.deepcopy(self._sampler) if self._forgets else self._sampler
        found = generators(sampler)
        reseed(found, self._seed, trial, digest_of(self._identity))
        if not found:
            # Whatever it draws with, it should not draw the same as after the last start.
            sampler.reseed_rng()
        return sampler


class _Study(optuna.Study):
    """A study of Optuna's that samplers cannot stop."""

    def stop(self) -> None:
        """Do nothing: how many trials there are is the tuner's to say."""


class _View:
    """A study of Optuna's with the trials of a source, in their order.

    Parameters
    ----------
    sampler
        Sees how trials end.
    level
        At which step they are compared.
    objectives
        How many losses there are.
    """

    def __init__(self, sampler: BaseSampler, level: Step | None, objectives: int) -> None:
        self._storage = InMemoryStorage()
        directions = [StudyDirection.MINIMIZE] * objectives
        optuna.create_study(storage=self._storage, study_name=_NAME, directions=directions)
        self.study = _Study(_NAME, self._storage, sampler=sampler, pruner=NopPruner())
        self._id = self._storage.get_study_id_from_name(_NAME)
        self._level, self._objectives = level, objectives
        self._shown: list[Outcome] = []

    def differs(self, level: Step | None, outcomes: Iterable[Outcome], objectives: int) -> bool:
        """Return whether a trial has ended here otherwise than it should."""
        return (level, objectives) != (self._level, self._objectives) or any(
            shown is not RUNNING and shown != outcome
            for shown, outcome in zip(self._shown, outcomes, strict=False)
        )

    def update(self, trials: Sequence[Observed], outcomes: Iterable[Outcome]) -> None:
        """Add the trials that are new, and end those that have ended."""
        for one in trials[len(self._shown) :]:
            self._add(one)
        for number, outcome in enumerate(outcomes):
            if self._shown[number] != outcome:
                self._shown[number] = outcome
                state = TrialState[outcome.state.name]
                self.study.tell(number, list(outcome.losses) or None, state)

    def _add(self, one: Observed) -> None:
        """Add a trial as running, with what the sampler noted when it proposed it.

        What it noted in the study, such as who are the parents of a generation, it found
        out by comparing trials, and holds at the level where it did.
        """
        values = {**one.point, **one.notes.get("values", {})}
        trial = create_trial(
            state=TrialState.RUNNING,
            params=values,
            distributions={name: distribution_of(one.domains[name]) for name in values},
            system_attrs=dict(one.notes.get("trial", {})),
        )
        self.study.add_trial(trial)
        self._shown.append(RUNNING)
        if one.notes.get("level") == self._level:
            for name, value in one.notes.get("study", {}).items():
                self._storage.set_study_system_attr(self._id, name, value)

    def ask(self, space: AnySpace, sampler: BaseSampler) -> Proposal:
        """Return what the sampler proposes for a new trial, and leave that running."""
        self.study.sampler = sampler
        before = dict(self._storage.get_study_system_attrs(self._id))
        asking = _Asking(self.study, sampler)
        point = dict(space.pick(asking).point)
        trial: FrozenTrial = self.study.get_trials(deepcopy=False)[-1]
        after = self._storage.get_study_system_attrs(self._id)
        self._shown.append(RUNNING)
        notes: dict[str, Any] = {
            # Optuna's sums of steps are not as people write them; samplers go on from those.
            "values": {name: has for name, has in trial.params.items() if has != point[name]},
            "trial": dict(trial.system_attrs),
            "study": {name: has for name, has in after.items() if has != before.get(name)},
        }
        kept = {kind: found for kind, found in notes.items() if found}
        if "study" in kept and self._level is not None:
            kept["level"] = self._level
        return {"point": point, "notes": kept} if kept else {"point": point}


class _Asking:
    """A chooser that asks a sampler.

    Parameters
    ----------
    study
        In which a trial is begun.
    sampler
        The study's.
    """

    def __init__(self, study: optuna.Study, sampler: BaseSampler) -> None:
        self._name = type(sampler).__name__
        with self._answering("a trial"):
            self._trial: Trial = study.ask()

    def number(self, name: str, domain: Float | Int) -> float | int:
        """Return the sampler's value, as the domain writes it."""
        low, high, log = domain.low, domain.high, domain.log
        with self._answering(f"coordinate {name!r}"):
            if isinstance(domain, Float):
                found = self._trial.suggest_float(name, low, high, step=domain.step, log=log)
            else:
                found = self._trial.suggest_int(
                    name, domain.low, domain.high, step=domain.step, log=log
                )
        near = domain.nearest(found)
        if not math.isclose(near, found, rel_tol=1e-9, abs_tol=1e-9 * (high - low)):
            raise ConfigurationError(
                f"{self._name} must propose a point of {domain} for coordinate {name!r}, "
                f"got {found!r}"
            )
        return near

    def option(self, name: str, domain: Choice) -> int:
        """Return the position of the sampler's option."""
        labels = domain.labels
        with self._answering(f"coordinate {name!r}"):
            return labels.index(self._trial.suggest_categorical(name, labels))

    @contextmanager
    def _answering(self, what: str) -> Iterator[None]:
        """Say whose error it was."""
        try:
            yield
        except Exception as error:
            raise ConfigurationError(
                f"{self._name} could not propose {what}: {type(error).__name__}: {error}"
            ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what Optuna warns of and logs from users, who have not called it."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)


def distribution_of(document: Mapping[str, Any]) -> BaseDistribution:
    """Return the distribution that a domain's JSON document means.

    Examples
    --------
    >>> distribution_of({"domain": "Int", "low": 1, "high": 8, "log": True, "step": 1})
    IntDistribution(high=8, log=True, low=1, step=1)
    """
    arguments = {name: value for name, value in document.items() if name != "domain"}
    match document["domain"]:
        case "Float":
            return FloatDistribution(**{**arguments, "high": _last(Float(**arguments))})
        case "Int":
            return IntDistribution(**{**arguments, "high": _last(Int(**arguments))})
        case "Choice":
            return CategoricalDistribution(arguments["options"])
        case kind:
            raise InternalError(f"a coordinate has a domain of unknown kind {kind!r}")


def _last(domain: Float | Int) -> Any:
    """Return the largest point: Optuna warns of an upper bound that no step arrives at."""
    if domain.step is None or domain.size is None:
        return domain.high
    last = Fraction(repr(domain.low)) + (domain.size - 1) * Fraction(repr(domain.step))
    return type(domain.high)(last)
