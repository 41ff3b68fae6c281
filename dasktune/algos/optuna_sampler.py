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
from itertools import islice
from typing import Any, Final

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
from dasktune.algos.observations import RUNNING, Observed, TrialOutcome
from dasktune.algos.observing import ObservingSource
from dasktune.algos.sampler_parts import (
    digest_of,
    generators,
    identity_of,
    parts,
    reseed,
    settle_seeds,
)
from dasktune.errors import ConfigurationError, InternalError
from dasktune.space import Choice, Configuration, Float, Int
from dasktune.space.define_by_run import SpaceLike
from dasktune.types import Step

_BLIND: Final = frozenset(
    {RandomSampler, QMCSampler, GridSampler, BruteForceSampler, PartialFixedSampler}
)
"""Samplers that ignore losses, unless another sampler is in them."""

_NAME: Final = "dasktune"


class OptunaSource(ObservingSource):
    """Proposes with a sampler of Optuna, from an Optuna study in memory.

    The sampler is copied, and sees one study in which all trials are minimised, each with its
    loss at the step at which trials are compared (see `dasktune.algos.observations`). Trials
    that are paused, or under way, are ``RUNNING``: TPE (with `constant_liar`, its default) and GP
    keep away from their points. Their losses so far are their intermediate values, as are those
    of other trials up to the step of comparison; with several objectives Optuna has none.

    The next proposal depends only on the proposals and reports so far: a source that was
    restored or replayed continues as the first one would have. For this its generators are
    seeded anew for each trial, and Optuna's own samplers, which keep everything else in the
    study, begin each trial as they were given. A sampler of another package may have a state
    of its own, which lasts as long as the process.

    A sampler that has tried everything, such as `GridSampler` at the end of its grid,
    proposes old points again: training them costs nothing, and the tuner decides on the
    number of trials.

    Parameters
    ----------
    space
        The space; each of its coordinates is a parameter in Optuna.
    sampler
        Any sampler of Optuna, or a subclass of `optuna.samplers.BaseSampler`.
    seed
        Decides the draws, together with the sampler's own seed.

    Attributes
    ----------
    earlier_ignored
        The number of earlier trials that were not of this space.

    Raises
    ------
    ConfigurationError
        If it is no sampler; later if a proposal is not in the space.

    References
    ----------
    Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019.
    """

    def __init__(self, space: SpaceLike, sampler: object, seed: int) -> None:
        if not isinstance(sampler, BaseSampler):
            made = f"; make one: {sampler.__name__}()" if isinstance(sampler, type) else ""
            raise ConfigurationError(
                f"sampler must be a sampler of Optuna, or a Source, got {sampler!r}{made}"
            )
        super().__init__(space, seed)
        self._identity = identity_of(sampler)
        self._sampler = copy.deepcopy(sampler)
        settle_seeds(self._sampler, seed)
        samplers = [part for part in parts(self._sampler) if isinstance(part, BaseSampler)]
        self.learns = any(type(part) not in _BLIND for part in samplers)
        self._forgets = all(type(part).__module__.startswith("optuna.") for part in samplers)
        startups = (getattr(part, "_n_startup_trials", 0) for part in samplers)
        # A level with fewer trials would send the sampler back to drawing at random.
        self._startup = max(number for number in startups if isinstance(number, int))
        self.view: _View | None = None
        self._asked: Proposal | None = None

    def propose(self, trial: int) -> Proposal:
        """Return the proposal of the sampler, with its notes for itself."""
        with _quietly():
            view = self._synchronised()
            try:
                proposal = view.ask(self._space, self._sampler_for(trial))
            except BaseException:
                self.view = None
                raise
        self._asked = proposal
        return proposal

    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration of a proposal; missing coordinates are drawn at random."""
        if proposal != self._asked:
            self._forget_asked()
        self._asked = None
        return super().accept(trial, proposal)

    def earlier(self, point: Mapping[str, object], step: Step, losses: tuple[float, ...]) -> None:
        """Observe an earlier trial if all its coordinates are of the space."""
        self._forget_asked()
        super().earlier(point, step, losses)

    def identity(self) -> object:
        """Return class and attributes of the given sampler."""
        return self._identity

    def restore(self, snapshot: object) -> None:
        """Continue with the proposals and reports of a snapshot."""
        super().restore(snapshot)
        self.view = self._asked = None

    def _forget_asked(self) -> None:
        """Drop a view in which a proposal stands that was not accepted."""
        if self._asked is not None:
            self.view = self._asked = None

    def _synchronised(self) -> _View:
        """Return an Optuna study with all trials."""
        self._forget_asked()
        trials, objectives = self._observed.trials, self._observed.objectives
        if self.learns:
            level = self._observed.level(self._startup)
            outcomes = self._observed.outcomes(self._startup)
        else:
            level, outcomes = None, [RUNNING] * len(trials)
        if self.view is None or self.view.differs(level, outcomes, objectives):
            self.view = _View(self._sampler, level, objectives)
        self.view.update(trials, outcomes)
        return self.view

    def _sampler_for(self, trial: int) -> BaseSampler:
        sampler = copy.deepcopy(self._sampler) if self._forgets else self._sampler
        rngs = generators(sampler)
        reseed(rngs, self._seed, trial, digest_of(self._identity))
        if not rngs:
            # Its generator is unknown: it must not draw the same as after the last start.
            sampler.reseed_rng()
        return sampler


class _Study(optuna.Study):
    """An Optuna study that samplers cannot stop."""

    def stop(self) -> None:
        """Do nothing: the tuner decides on the number of trials."""


class _View:
    """An Optuna study with the trials of a source, compared at the step `level`."""

    def __init__(self, sampler: BaseSampler, level: Step | None, objectives: int) -> None:
        self._storage = InMemoryStorage()
        directions = [StudyDirection.MINIMIZE] * objectives
        optuna.create_study(storage=self._storage, study_name=_NAME, directions=directions)
        self.study = _Study(_NAME, self._storage, sampler=sampler, pruner=NopPruner())
        self._id = self._storage.get_study_id_from_name(_NAME)
        self._level, self._objectives = level, objectives
        self._shown: list[TrialOutcome] = []
        self._reports: list[int] = []

    def differs(
        self, level: Step | None, outcomes: Iterable[TrialOutcome], objectives: int
    ) -> bool:
        """Return whether a trial has ended here with another outcome."""
        return (level, objectives) != (self._level, self._objectives) or any(
            shown is not RUNNING and shown != outcome
            for shown, outcome in zip(self._shown, outcomes, strict=False)
        )

    def update(self, trials: Sequence[Observed], outcomes: Iterable[TrialOutcome]) -> None:
        """Add new trials and new reports, and end the trials that have ended."""
        for observed in trials[len(self._shown) :]:
            self._add(observed)
        for number, (observed, outcome) in enumerate(zip(trials, outcomes, strict=True)):
            if self._shown[number] is RUNNING:
                self._add_reports(number, observed)
            if self._shown[number] != outcome:
                self._shown[number] = outcome
                state = TrialState[outcome.state.name]
                self.study.tell(number, list(outcome.losses) or None, state)

    def _add_reports(self, number: int, observed: Observed) -> None:
        """Add the new reports of a trial that is running here.

        Of a trial that has reported at the level they are those up to it: it is complete here
        then, and Optuna takes no later ones. Without this limit a view that was built anew would
        show more than the first one.
        """
        if self._objectives > 1:
            return
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        is_there = observed.trial is not None and self._level in observed.losses
        for step, (loss,) in islice(observed.losses.items(), self._reports[number], None):
            if not is_there or step <= (self._level or 0):
                self._storage.set_trial_intermediate_value(trial_id, step, loss)
        self._reports[number] = len(observed.losses)

    def _add(self, observed: Observed) -> None:
        """Add a trial as running, with the notes that the sampler made when it proposed it.

        Notes in the study, such as the parents of a generation, come from a comparison of
        trials, and are valid only at the level of that comparison.
        """
        values = {**observed.point, **observed.notes.get("values", {})}
        trial = create_trial(
            state=TrialState.RUNNING,
            params=values,
            distributions={name: distribution_of(observed.domains[name]) for name in values},
            system_attrs=dict(observed.notes.get("trial", {})),
        )
        self.study.add_trial(trial)
        self._shown.append(RUNNING)
        self._reports.append(0)
        if observed.notes.get("level") == self._level:
            for name, value in observed.notes.get("study", {}).items():
                self._storage.set_study_system_attr(self._id, name, value)

    def ask(self, space: SpaceLike, sampler: BaseSampler) -> Proposal:
        """Return the sampler's proposal for a new trial, which stays running."""
        self.study.sampler = sampler
        before = dict(self._storage.get_study_system_attrs(self._id))
        asking = _Asking(self.study, sampler)
        point = dict(space.pick(asking).point)
        trial: FrozenTrial = self.study.get_trials(deepcopy=False)[-1]
        after = self._storage.get_study_system_attrs(self._id)
        self._shown.append(RUNNING)
        self._reports.append(0)
        notes: dict[str, Any] = {
            # Optuna sums up steps with rounding errors; samplers continue from its own values.
            "values": {name: value for name, value in trial.params.items() if value != point[name]},
            "trial": dict(trial.system_attrs),
            "study": {name: value for name, value in after.items() if value != before.get(name)},
        }
        kept = {kind: note for kind, note in notes.items() if note}
        if "study" in kept and self._level is not None:
            kept["level"] = self._level
        return {"point": point, "notes": kept} if kept else {"point": point}


class _Asking:
    """A chooser that asks the sampler of a study for one new trial."""

    def __init__(self, study: optuna.Study, sampler: BaseSampler) -> None:
        self._name = type(sampler).__name__
        with self._answering("a trial"):
            self._trial: Trial = study.ask()

    def number(self, name: str, domain: Float | Int) -> float | int:
        """Return the sampler's value, rounded to the nearest point of the domain."""
        low, high, log = domain.low, domain.high, domain.log
        with self._answering(f"coordinate {name!r}"):
            if isinstance(domain, Float):
                value = self._trial.suggest_float(name, low, high, step=domain.step, log=log)
            else:
                value = self._trial.suggest_int(
                    name, domain.low, domain.high, step=domain.step, log=log
                )
        near = domain.nearest(value)
        if not math.isclose(near, value, rel_tol=1e-9, abs_tol=1e-9 * (high - low)):
            raise ConfigurationError(
                f"{self._name} must propose a point of {domain} for coordinate {name!r}, "
                f"got {value!r}"
            )
        return near

    def option(self, name: str, domain: Choice) -> int:
        """Return the position of the sampler's option."""
        labels = domain.labels
        with self._answering(f"coordinate {name!r}"):
            return labels.index(self._trial.suggest_categorical(name, labels))

    @contextmanager
    def _answering(self, what: str) -> Iterator[None]:
        """Name the sampler in an error that it raised."""
        try:
            yield
        except Exception as error:
            raise ConfigurationError(
                f"{self._name} could not propose {what}: {type(error).__name__}: {error}"
            ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide warnings and logs of Optuna from users, who did not call it."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)


def distribution_of(document: Mapping[str, Any]) -> BaseDistribution:
    """Return Optuna's distribution for the JSON document of a domain.

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
    """Return the largest point: Optuna warns of an upper bound that is no point of the domain."""
    if domain.step is None or domain.size is None:
        return domain.high
    last = Fraction(repr(domain.low)) + (domain.size - 1) * Fraction(repr(domain.step))
    return type(domain.high)(last)
