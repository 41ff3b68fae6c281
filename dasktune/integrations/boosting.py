"""The part that the trainers of XGBoost and LightGBM share: a step is some boosting rounds."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from itertools import combinations
from typing import Any, ClassVar, TypeVar

import numpy as np

from dasktune._numbers import whole_of
from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.integrations.arguments import arguments_of, name_of
from dasktune.trainer.base import Trainer
from dasktune.types import ENDED_AT, Value

RATES = frozenset({"learning_rate", "eta", "shrinkage_rate"})
"""Parameters that a booster takes over between two rounds without a trace of the older value."""

_EARLY_STOPPING = "write trainer(..., early_stopping_rounds=NUMBER)"
_ROUNDS = "the tuner's max_steps times rounds_per_step is the number of rounds"
_SEED = "the study has the seed: write create_study(..., seed=NUMBER)"
_THREADS = "write trainer(..., threads=NUMBER)"

NO_PARAMETERS = {
    **dict.fromkeys(("early_stopping", "early_stopping_round"), _EARLY_STOPPING),
    **dict.fromkeys(("early_stopping_rounds", "n_iter_no_change"), _EARLY_STOPPING),
    **dict.fromkeys(("num_boost_round", "num_iteration", "num_iterations", "n_iter"), _ROUNDS),
    **dict.fromkeys(("num_round", "num_rounds", "nrounds", "max_iter"), _ROUNDS),
    **dict.fromkeys(("n_estimators", "num_tree", "num_trees"), _ROUNDS),
    **dict.fromkeys(("seed", "random_seed", "random_state"), _SEED),
    **dict.fromkeys(("n_jobs", "nthread", "nthreads", "num_thread", "num_threads"), _THREADS),
}
"""Names that both frameworks know for what the study, the tuner or the trainer decides here.

The value is what to do instead.
"""

_NO_OPTIONS = {
    **NO_PARAMETERS,
    "callbacks": "a space takes sequences, also of the learning rate; early_stopping_rounds is an "
    "option",
    **dict.fromkeys(("verbose_eval", "evals_result"), "the study shows and keeps all metrics"),
}
"""Options of the frameworks' own ``train`` that a trainer does not take, and what to do instead."""

Kind = TypeVar("Kind", bound="BoostingTrainer")

Data = tuple[Any, dict[str, Any]]
"""The data for training, and by name those for evaluation."""

Score = tuple[str, float, bool]
"""A metric: its name, its value, and whether higher values are better."""


def trainer_class(
    base: type[Kind],
    members: Mapping[str, Any],
    options: Mapping[str, Any],
    make_data: Callable[..., Any] | None,
) -> type[Kind]:
    """Return a subclass of a trainer for a user's parameters, data and options.

    Parameters
    ----------
    members
        Further members of the class.
    options
        Its `rounds_per_step`, `threads` and `early_stopping_rounds`, as far as they are given.
    make_data
        The function that makes the data; None if the members have them.

    Raises
    ------
    ConfigurationError
        If an option is unknown.
    """
    known = ("early_stopping_rounds", "rounds_per_step", "threads")
    refuse(
        f"{name} must not be given: {_NO_OPTIONS[name]}"
        if name in _NO_OPTIONS
        else unknown("option of trainer", name, known)
        for name in options
        if name not in known
    )
    # Of the module that calls `trainer`: a class of an installed package would not travel.
    module = sys._getframe(2).f_globals["__name__"] if make_data is None else make_data.__module__
    made = None if make_data is None else staticmethod(make_data)
    return type(
        base.__name__, (base,), {"__module__": module, "make_data": made, **members, **options}
    )


_OF_EARLY_STOPPING = ("best_score", "best_iteration")
"""Metrics that are reported with early stopping only."""


class BoostingTrainer(Trainer):
    """A booster that grows by `rounds_per_step` rounds in each step; made by ``trainer``.

    The state is the booster as bytes. Where rounds draw at random, each step begins with a
    booster made from these bytes and with a seed of its own. So the place in a stream of random
    numbers, which no booster saves, decides nothing.

    With `early_stopping_rounds` the training has ended after so many rounds without a better score.
    The score is the last metric on the last data for evaluation. Then ``best_score`` and
    ``best_iteration`` are metrics, too.

    Attributes
    ----------
    params
        The parameters of the framework. Hyper-parameters of the study have the framework's
        names, too, and take their place.
    rounds_per_step
        Boosting rounds of one step.
    threads
        Threads for training. Sums depend on their number, so it belongs to the trainer and not to
        the machine.
    early_stopping_rounds
        Rounds without a better score that end the training; None for no end.
    make_data
        Makes the data; None if they were given themselves.
    booster
        The booster of the framework.
    train_data, evaluation
        The data for training, and by name those for evaluation.
    rounds
        Number of rounds so far.
    has_ended
        Whether early stopping has ended the training.
    """

    params: ClassVar[Mapping[str, Any]] = {}
    rounds_per_step: ClassVar[int] = 1
    threads: ClassVar[int] = 1
    early_stopping_rounds: ClassVar[int | None] = None
    make_data: ClassVar[Callable[..., Any] | None] = None

    booster: Any
    example: ClassVar[str]
    """What a function that makes the data returns, for messages."""

    def build(self, hp: Mapping[str, Value]) -> None:
        """Make the data, and a booster without rounds."""
        self.rounds = self.best_rounds = 0
        self.best_score: float | None = None
        self.has_ended = False
        self.values: dict[str, Any] = self.values_with(hp)
        refuse(self.problems(hp))
        self.train_data, self.evaluation = self.data()
        self.booster = self.new_booster(b"")

    def setup(self, hp: Mapping[str, Value]) -> None:
        """Take over the parameters that change at this step."""
        changed = {name: value for name, value in hp.items() if self.values.get(name) != value}
        self.values.update(hp)
        if changed.keys() <= RATES:
            self.change_rate(changed)
        else:
            self._renew()

    def train(self) -> None:
        """Add the rounds of one step, or those up to its end by early stopping."""
        if self.rounds and self.is_renewed_each_step():
            self._renew()
        for _ in range(self.rounds_per_step):
            if self.has_ended:
                return
            self.boost()
            self.rounds += 1
            if self.early_stopping_rounds is not None:
                self._watch(self.early_stopping_rounds)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on the data for evaluation."""
        metrics = {name: score for name, score, _ in self._scores()}
        if self.best_score is not None:
            metrics["best_score"] = self.best_score
            metrics["best_iteration"] = self.booster.best_iteration
        if self.has_ended:
            metrics[ENDED_AT] = -(-self.rounds // self.rounds_per_step)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the booster's bytes, the number of its rounds, and the best of them."""
        model = self.model_bytes() if self.rounds else b""
        return {
            "model": np.frombuffer(model, np.uint8),
            "rounds": self.rounds,
            "best_rounds": self.best_rounds,
            "best_score": self.best_score,
            "has_ended": self.has_ended,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the booster of a state."""
        self.rounds, self.best_rounds = int(state["rounds"]), int(state["best_rounds"])
        self.best_score, self.has_ended = state["best_score"], bool(state["has_ended"])
        self._renew(np.asarray(state["model"], np.uint8).tobytes())

    def data(self) -> Data:
        """Return the data for training and for evaluation, new ones in each call."""
        if self.make_data is None:
            return self.given_data()
        made = self.make_data(**arguments_of(self.make_data, {}, self.config))
        if not isinstance(made, tuple) or len(made) != 2 or not made[1]:
            raise ConfigurationError(
                f"{name_of(self.make_data)} must return the data for training and those for "
                f"evaluation: {self.example}; got {type(made).__name__}"
            )
        return self.checked_data(*made)

    def step_seed(self) -> int:
        """Return the seed of the coming rounds: the training seed's, and another one each step."""
        return int(np.random.SeedSequence([self.seed, self.rounds]).generate_state(1)[0] >> 1)

    def _renew(self, model: bytes | None = None) -> None:
        """Go on with a new booster from a model, by default from the present one."""
        self.booster = self.new_booster(self.model_bytes() if model is None else model)
        if self.best_score is not None:
            self.mark_best()

    def _watch(self, patience: int) -> None:
        """Compare the score of this round with the best one."""
        _, score, is_higher_better = self._scores()[-1]
        best = self.best_score
        if best is None or (score > best if is_higher_better else score < best):
            self.best_score, self.best_rounds = score, self.rounds
            self.mark_best()
        self.has_ended = self.rounds - self.best_rounds >= patience

    def _scores(self) -> list[Score]:
        # A round is scored once, although early stopping and the study both ask.
        rounds, scores = getattr(self, "_dasktune_scores", (-1, []))
        if rounds != self.rounds or not scores:
            self._dasktune_scores = self.rounds, self.scores()
        return self._dasktune_scores[1]

    @abstractmethod
    def new_booster(self, model: bytes) -> Any:
        """Return a booster that goes on from a model; from nothing if it is empty."""

    @abstractmethod
    def model_bytes(self) -> bytes:
        """Return the booster's model."""

    @abstractmethod
    def change_rate(self, changed: Mapping[str, Any]) -> None:
        """Give the booster another learning rate."""

    @abstractmethod
    def boost(self) -> None:
        """Add one round."""

    @abstractmethod
    def scores(self) -> list[Score]:
        """Return the metrics on the data for evaluation, in their order."""

    @abstractmethod
    def mark_best(self) -> None:
        """Set the booster's ``best_iteration`` by `best_rounds`, as the framework counts it."""

    @abstractmethod
    def is_renewed_each_step(self) -> bool:
        """Return whether each step needs a new booster, since rounds draw at random."""

    @abstractmethod
    def given_data(self) -> Data:
        """Return new data, equal to those that were given to ``trainer``."""

    @classmethod
    @abstractmethod
    def checked_data(cls, train: Any, evaluation: Any) -> Data:
        """Return data for training and evaluation, after a check of their form."""

    @classmethod
    @abstractmethod
    def main_name(cls, name: str) -> str:
        """Return the main name of a parameter, which may be given by an alias."""

    @classmethod
    @abstractmethod
    def known_parameters(cls, values: Mapping[str, Any]) -> frozenset[str]:
        """Return the names of all parameters, aliases included.

        Parameters
        ----------
        values
            The parameters that are used; the value is None if it is unknown so far.
        """

    @classmethod
    def values_with(cls, hp: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters, with hyper-parameters in place of those that they vary."""
        varied = {cls.main_name(name) for name in hp}
        fixed = {n: value for n, value in cls.params.items() if cls.main_name(n) not in varied}
        return {**fixed, **hp}

    @classmethod
    def name_problems(cls, names: Collection[str]) -> list[str]:
        """Return why hyper-parameters of these names cannot be trained in steps."""
        return cls.problems(dict.fromkeys(names))

    @classmethod
    def metric_problems(cls, metrics: Collection[str]) -> list[str]:
        """Return why metrics of early stopping cannot be reported."""
        absent = [] if cls.early_stopping_rounds is not None else _OF_EARLY_STOPPING
        return [
            f"metric must be one that is reported, got {name!r}: only a trainer with "
            "early_stopping_rounds reports it"
            for name in absent
            if name in metrics
        ]

    @classmethod
    def problems(cls, hp: Mapping[str, Any]) -> list[str]:
        """Return why these parameters, and those of the class, cannot be trained in steps.

        Parameters
        ----------
        hp
            The hyper-parameters of the study; the value is None if it is unknown so far.
        """
        name, values = cls.__name__, cls.values_with(hp)
        problems = [
            f"{name}: {parameter!r} is no parameter here; {NO_PARAMETERS[parameter]}"
            for parameter in {**cls.params, **hp}
            if parameter in NO_PARAMETERS
        ]
        names = sorted(values)
        problems += [
            f"{name}: {first!r} and {second!r} are the same parameter; leave out one of them"
            for first, second in combinations(names, 2)
            if cls.main_name(first) == cls.main_name(second)
        ]
        counts = {key: getattr(cls, key) for key in ("rounds_per_step", "threads")}
        if cls.early_stopping_rounds is not None:
            counts["early_stopping_rounds"] = cls.early_stopping_rounds
        problems += [
            f"{name}: {key} must be an int >= 1, got {value!r}"
            for key, value in counts.items()
            if whole_of(value) is None
        ]
        known = cls.known_parameters(values)
        return problems + [
            f"{name}: {unknown('parameter', parameter, known)}"
            for parameter in sorted(values.keys() - known - NO_PARAMETERS.keys())
        ]
