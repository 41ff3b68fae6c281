"""scikit-learn: estimators with ``partial_fit`` or ``warm_start`` as trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dasktune._numbers import whole_of
from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.integrations.estimators import (
    classes_of,
    counted,
    load_state,
    prepared,
    state_of,
    train_once,
    way_of,
)
from dasktune.integrations.installed import framework
from dasktune.trainer.base import Trainer
from dasktune.trainer.data import ResumableLoader
from dasktune.types import Value


class SklearnTrainer(Trainer):
    """A trainer of an estimator that learns in steps, of which the user writes two methods.

    A step is one call of ``partial_fit`` with a batch, or with all training data if `batch_size` is
    None. If the estimator has ``warm_start`` alone, such as a forest or gradient boosting, or is
    made with ``warm_start=True``, a step is one call of ``fit`` that adds `iterations_per_step`
    estimators or iterations.
    Hyper-parameters have the names of the estimator's parameters, and may change between steps.
    ``random_state`` follows from the study's seed where the estimator leaves it None.

    **State.** The state holds the estimator's attributes: numbers, texts, arrays, random
    generators, trees, and objects of scikit-learn that hold such. It is never a pickle. An
    estimator with other attributes is refused when it is saved.

    Attributes
    ----------
    batch_size
        Rows of a step with ``partial_fit``; None for all.
    iterations_per_step
        Estimators or iterations that a step with ``warm_start`` adds.

    Examples
    --------
    A trainer of the study's ``alpha`` and ``eta0``::

        class LinearModel(dt.integrations.sklearn.SklearnTrainer):
            def estimator(self):
                return SGDClassifier(learning_rate="constant", eta0=0.1)

            def data(self):
                return (x, y), (x_valid, y_valid)
    """

    version = "2"  # states of the first form, without trees, are not found
    # All of the model is in the state, where it is compared.
    harmless_differences = ("trainer.model",)

    batch_size: ClassVar[int | None] = None
    iterations_per_step: ClassVar[int] = 1

    def estimator(self) -> Any:
        """Return the estimator, which is not fitted yet."""
        raise ConfigurationError(f"{type(self).__name__} must define estimator()")

    def data(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Return the arrays for training and those for evaluation."""
        raise ConfigurationError(
            f"{type(self).__name__} must define data(), which returns (x, y), (x_valid, y_valid)"
        )

    def score(self, model: Any, x: Any, y: Any) -> Mapping[str, float]:
        """Return the metrics of a fitted estimator: its own score."""
        return {"score": float(model.score(x, y))}

    def build(self, hp: Mapping[str, Value]) -> None:
        """Make data and estimator."""
        framework("sklearn", extra="sklearn")
        template = self.estimator()
        self.way = way_of(template)
        refuse(self._problems(template, hp))
        self.model = prepared(template, self.seed, self.way)
        (x, y), (self.x_valid, self.y_valid) = self.data()
        self.rows = np.asarray(x), np.asarray(y)
        self.classes = classes_of(self.model, self.rows[1])
        size = self.batch_size or len(self.rows[0])
        self.loader = ResumableLoader(self.rows, batch_size=size, seed=self.seed)

    def setup(self, hp: Mapping[str, Value]) -> None:
        """Take over the parameters that change at this step."""
        known = self.model.get_params()
        kind = f"parameter of {type(self.model).__name__}"
        refuse(unknown(kind, name, known) for name in sorted(hp.keys() - known.keys()))
        self.model.set_params(**hp)

    def train(self) -> None:
        """Train on one batch, or add estimators or iterations."""
        rows = self.rows if self.way == "warm_start" else self.loader.next_batch()
        train_once(self.model, rows, self.classes, self.way, self.iterations_per_step)

    def evaluate(self) -> Mapping[str, float]:
        """Return the metrics on the data for evaluation."""
        return self.score(self.model, self.x_valid, self.y_valid)

    def state_dict(self) -> dict[str, Any]:
        """Return the estimator's attributes and the place in the data."""
        return {**state_of([self.model]), "loader": self.loader.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Only a fit makes the compiled objects of an estimator. So this fits it to one batch, or by
        one iteration, and then replaces its attributes.
        """
        rows = self.rows
        if self.way != "warm_start":
            loader = self.loader.state_dict()
            rows = self.loader.next_batch()
            self.loader.load_state_dict(loader)
        train_once(self.model, rows, self.classes, self.way, iterations=1)
        load_state([self.model], state)
        self.loader.load_state_dict(state["loader"])

    def _problems(self, template: Any, hp: Mapping[str, Value]) -> list[str]:
        """Return why this estimator cannot be trained in steps."""
        name, problems = type(template).__name__, []
        if self.way == "fit":
            problems.append(
                f"{type(self).__name__}.estimator must return an estimator with partial_fit or "
                f"warm_start, got {name}"
            )
        if self.way != "warm_start":
            return problems
        if self.batch_size is not None:
            problems.append(f"batch_size must be None with warm_start, got {self.batch_size}")
        if whole_of(size := self.iterations_per_step) is None:
            problems.append(f"iterations_per_step must be an int >= 1, got {size!r}")
        return [*problems, *counted(template, hp)]
