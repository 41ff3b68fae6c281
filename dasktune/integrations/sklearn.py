"""scikit-learn: estimators with ``partial_fit`` as trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dasktune.errors import ConfigurationError, StateError
from dasktune.integrations.installed import framework
from dasktune.trainer.base import Trainer
from dasktune.trainer.data import ResumableLoader
from dasktune.trainer.generators import generator_state, is_generator, restore_generator
from dasktune.types import Value

_PLAIN = (type(None), bool, int, float, str)

_WITHOUT_STATE = ("sklearn._loss", "sklearn.linear_model._sgd_fast")
"""Modules of compiled objects that hold nothing but their parameters."""


class SklearnTrainer(Trainer):
    """A trainer of an estimator with ``partial_fit``, of which the user writes three methods.

    A step is one batch, or all of the training data where `batch_size` is None.
    Hyper-parameters have the names of the estimator's parameters, and may change between steps.
    ``random_state`` follows from the study's seed where the estimator leaves it None.

    **State.** The state holds the estimator's attributes: numbers, texts, arrays, random
    generators, and objects of scikit-learn that hold such. It is never a pickle. An
    estimator with other attributes, such as the trees of a forest, is refused when it is saved.

    Attributes
    ----------
    batch_size
        Rows of a step; None for all.

    Examples
    --------
    A trainer of the study's ``alpha`` and ``eta0``::

        class LinearModel(dt.integrations.sklearn.SklearnTrainer):
            def estimator(self):
                return SGDClassifier(learning_rate="constant", eta0=0.1)

            def data(self):
                return (x, y), (x_valid, y_valid)
    """

    batch_size: ClassVar[int | None] = None

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
        self.model = self.estimator()
        if not hasattr(self.model, "partial_fit"):
            raise ConfigurationError(
                f"{type(self).__name__}.estimator must return an estimator with partial_fit, got "
                f"{type(self.model).__name__}"
            )
        if self.model.get_params().get("warm_start"):
            raise ConfigurationError("warm_start must be False: steps call partial_fit")
        if self.model.get_params().get("random_state", 0) is None:
            self.model.set_params(random_state=np.random.RandomState(self.seed % 2**32))
        (x, y), (self.x_valid, self.y_valid) = self.data()
        x, y = np.asarray(x), np.asarray(y)
        size = self.batch_size or len(x)
        self.loader = ResumableLoader((x, y), batch_size=size, seed=self.seed)
        self.classes = (
            np.unique(y)
            if framework("sklearn.base", extra="sklearn").is_classifier(self.model)
            else None
        )

    def setup(self, hp: Mapping[str, Value]) -> None:
        """Take over the parameters that change at this step."""
        known = self.model.get_params()
        if unknown := sorted(hp.keys() - known.keys()):
            raise ConfigurationError(
                f"unknown parameter {unknown[0]!r} of {type(self.model).__name__}; known: "
                f"{', '.join(sorted(known))}"
            )
        self.model.set_params(**hp)

    def train(self) -> None:
        """Train on one batch."""
        self._fit(*self.loader.next_batch())

    def evaluate(self) -> Mapping[str, float]:
        """Return the metrics on the data for evaluation."""
        return self.score(self.model, self.x_valid, self.y_valid)

    def state_dict(self) -> dict[str, Any]:
        """Return the estimator's attributes and the place in the data."""
        arrays: dict[int, tuple[int, Any]] = {}
        model = _stored(self.model, "model", arrays)
        return {
            "model": model,
            "arrays": [array for _, array in arrays.values()],
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Only a fit makes the objects of an estimator. So it is fitted to one batch, and then all
        that it learnt is replaced.
        """
        loader = self.loader.state_dict()
        self._fit(*self.loader.next_batch())
        self.loader.load_state_dict(loader)
        _load_attributes(self.model, state["model"]["object"], state["arrays"], "model")
        self.loader.load_state_dict(state["loader"])

    def _fit(self, x: Any, y: Any) -> None:
        if self.classes is None:
            self.model.partial_fit(x, y)
        else:
            self.model.partial_fit(x, y, classes=self.classes)


def _stored(value: Any, path: str, arrays: dict[int, tuple[int, Any]]) -> Any:
    """Return a value as plain values; arrays go to `arrays`, each object once.

    Attributes may share an array (``coef_`` and what averages it), and still do so after loading.
    """
    if type(value) in _PLAIN:
        return {"plain": value}
    if isinstance(value, np.generic):
        return {"scalar": _array(np.asarray(value), path)}
    if isinstance(value, np.ndarray):
        number, _ = arrays.setdefault(id(value), (len(arrays), _array(value, path)))
        return {"array": number}
    if type(value) in (list, tuple):
        items = [_stored(item, f"{path}[{i}]", arrays) for i, item in enumerate(value)]
        return {type(value).__name__: items}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {k: _stored(item, f"{path}[{k!r}]", arrays) for k, item in value.items()}}
    if is_generator(value):
        return {"generator": generator_state(value)}
    module = type(value).__module__
    if module.startswith(_WITHOUT_STATE):
        return {"same": type(value).__name__}
    if module.partition(".")[0] == "sklearn" and hasattr(value, "__dict__"):
        attributes = vars(value).items()
        return {"object": {k: _stored(item, f"{path}.{k}", arrays) for k, item in attributes}}
    raise StateError(
        path,
        f"{module}.{type(value).__qualname__} cannot be stored; an estimator's attributes must be "
        "numbers, texts, arrays, generators, and objects of scikit-learn that hold such",
    )


def _array(value: Any, path: str) -> Any:
    if value.dtype.kind == "U":
        return value.tolist()
    if value.dtype.hasobject:
        raise StateError(path, f"an array of {value.dtype} cannot be stored; use numbers or texts")
    return value


def _loaded(saved: Any, current: Any, arrays: list[Any], path: str) -> Any:
    """Return a stored value; generators and objects are those that are there already."""
    ((kind, value),) = saved.items()
    match kind:
        case "plain":
            return value
        case "scalar":
            return np.asarray(value)[()]
        case "array":
            if not isinstance(arrays[value], np.ndarray):
                arrays[value] = np.asarray(arrays[value])
            return arrays[value]
        case "list" | "tuple":
            olds = current if isinstance(current, (list, tuple)) else ()
            padded = [*olds, *[None] * (len(value) - len(olds))]
            items = [
                _loaded(item, old, arrays, f"{path}[{i}]")
                for i, (item, old) in enumerate(zip(value, padded, strict=False))
            ]
            return items if kind == "list" else tuple(items)
        case "dict":
            own = current if isinstance(current, dict) else {}
            return {k: _loaded(v, own.get(k), arrays, f"{path}[{k!r}]") for k, v in value.items()}
        case "generator" if is_generator(current):
            restore_generator(current, value)
            return current
        case "object" if type(current).__module__.partition(".")[0] == "sklearn":
            _load_attributes(current, value, arrays, path)
            return current
        case "same" if type(current).__name__ == value:
            return current
    raise StateError(path, f"a {kind} was stored, got {type(current).__qualname__}")


def _load_attributes(owner: Any, saved: Mapping[str, Any], arrays: list[Any], path: str) -> None:
    for name in vars(owner).keys() - saved.keys():
        delattr(owner, name)
    for name, value in saved.items():
        setattr(owner, name, _loaded(value, getattr(owner, name, None), arrays, f"{path}.{name}"))
