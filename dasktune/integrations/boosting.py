"""The part that the trainers of XGBoost and LightGBM share: a step is some boosting rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar

import numpy as np

from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.trainer.base import Trainer
from dasktune.types import Value

RATES = frozenset({"learning_rate", "eta", "shrinkage_rate"})
"""Parameters that a booster takes over between two rounds without a trace of the older value."""

_EARLY_STOPPING = (
    "the tuner stops trials: PatienceStopping(..., patience=STEPS, every=1) stops those without "
    "progress, ASHA and MedianStopping those behind others"
)
_ROUNDS = "set rounds_per_step, and the tuner's max_steps"
_SEED = "the study has the seed: write create_study(..., seed=NUMBER)"
_THREADS = "the trainer has the threads: write threads = NUMBER in the class"

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


class BoostingTrainer(Trainer):
    """A booster that grows by `rounds_per_step` rounds in each step.

    The state is the booster as bytes. Where rounds draw at random, each step begins with a
    booster made from these bytes and with a seed of its own. So the place in a stream of random
    numbers, which no booster saves, decides nothing.

    Attributes
    ----------
    params
        The fixed parameters of the framework. Hyper-parameters of the study have the framework's
        names, too, and are added.
    rounds_per_step
        Boosting rounds of one step.
    threads
        Threads for training. Sums depend on their number, so it belongs to the trainer and not to
        the machine.
    """

    params: ClassVar[Mapping[str, Any]] = {}
    rounds_per_step: ClassVar[int] = 1
    threads: ClassVar[int] = 1

    def data(self) -> tuple[Any, Mapping[str, Any]]:
        """Return the training data, and by name the data for evaluation."""
        raise ConfigurationError(
            f"{type(self).__name__} must define data(), which returns the training data and the "
            'data for evaluation: return train, {"valid": valid}'
        )

    def build(self, hp: Mapping[str, Value]) -> None:
        """Make the data, and a booster without rounds."""
        self.rounds = 0
        self.values: dict[str, Any] = {**self.params, **hp}
        refuse(self.problems(hp))
        self.train_data, self.evaluation = self.checked_data()
        self.booster = self.new_booster(b"")

    def setup(self, hp: Mapping[str, Value]) -> None:
        """Take over the parameters that change at this step."""
        changed = {name: value for name, value in hp.items() if self.values.get(name) != value}
        self.values.update(hp)
        if changed.keys() <= RATES:
            self.change_rate(changed)
        else:
            self.booster = self.new_booster(self.model_bytes())

    def train(self) -> None:
        """Add the rounds of one step."""
        if self.rounds and self.is_renewed_each_step():
            self.booster = self.new_booster(self.model_bytes())
        for _ in range(self.rounds_per_step):
            self.boost()
            self.rounds += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the booster's bytes and the number of its rounds."""
        model = self.model_bytes() if self.rounds else b""
        return {"model": np.frombuffer(model, np.uint8), "rounds": self.rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the booster of a state."""
        self.rounds = int(state["rounds"])
        self.booster = self.new_booster(np.asarray(state["model"], np.uint8).tobytes())

    def step_seed(self) -> int:
        """Return the seed of the coming rounds: the training seed's, and another one each step."""
        return int(np.random.SeedSequence([self.seed, self.rounds]).generate_state(1)[0] >> 1)

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
    def is_renewed_each_step(self) -> bool:
        """Return whether each step needs a new booster, since rounds draw at random."""

    @classmethod
    @abstractmethod
    def known_parameters(cls, values: Mapping[str, Any]) -> frozenset[str]:
        """Return the names of all parameters, aliases included.

        Parameters
        ----------
        values
            The parameters that are used; the value is None if it is unknown so far.
        """

    def checked_data(self) -> tuple[Any, dict[str, Any]]:
        """Return the result of `data` after a check of its form.

        Raises
        ------
        ConfigurationError
            If it is of another form.
        """
        given = self.data()
        if (
            not isinstance(given, tuple)
            or len(given) != 2
            or not isinstance(given[1], Mapping)
            or not given[1]
        ):
            raise ConfigurationError(
                f"{type(self).__name__}.data must return the training data and a dict of the data "
                f'for evaluation: return train, {{"valid": valid}}; got {type(given).__name__}'
            )
        return given[0], dict(given[1])

    @classmethod
    def name_problems(cls, names: Collection[str]) -> list[str]:
        """Return why hyper-parameters of these names cannot be trained in steps."""
        return cls.problems(dict.fromkeys(names))

    @classmethod
    def problems(cls, hp: Mapping[str, Any]) -> list[str]:
        """Return why these parameters, and those of the class, cannot be trained in steps.

        Parameters
        ----------
        hp
            The hyper-parameters of the study; the value is None if it is unknown so far.
        """
        name, values = cls.__name__, {**cls.params, **hp}
        problems = [
            f"{name}: {parameter!r} is no parameter here; {NO_PARAMETERS[parameter]}"
            for parameter in values
            if parameter in NO_PARAMETERS
        ]
        problems += [
            f"{name}.params fixes {parameter!r}, which the space varies; leave it to one of them"
            for parameter in sorted(cls.params.keys() & hp.keys())
        ]
        problems += [
            f"{name}.{attribute} must be an int >= 1, got {value!r}"
            for attribute in ("rounds_per_step", "threads")
            if type(value := getattr(cls, attribute)) is not int or value < 1
        ]
        known = cls.known_parameters(values)
        return problems + [
            f"{name}: {_unknown(parameter, known)}"
            for parameter in sorted(values.keys() - known - NO_PARAMETERS.keys())
        ]


def _unknown(name: str, known: frozenset[str]) -> str:
    """Return the sentence for an unknown parameter, with the nearest known name if one is near."""
    near = get_close_matches(name, known, n=1)
    if not near:
        return unknown("parameter", name, known)
    return f"unknown parameter {name!r}; did you mean {near[0]!r}?"
