"""scikit-learn's estimators: how they train in steps, and how a state holds them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np

from dasktune.errors import StateError
from dasktune.integrations.installed import framework
from dasktune.trainer.generators import generator_state, is_generator, restore_generator

Way = Literal["fit", "partial_fit", "warm_start"]
"""How an estimator trains: whole, by batches, or by calls of ``fit`` that go on from the last."""

_PLAIN = (type(None), bool, int, float, str)

_WITHOUT_STATE = ("sklearn._loss", "sklearn.linear_model._sgd_fast")
"""Modules of compiled objects that hold nothing but their parameters."""

_TREE = "sklearn.tree._tree"
"""The module of the compiled trees, which alone are saved by their own ``__reduce__``."""


def way_of(estimator: Any) -> Way:
    """Return how an estimator trains in steps; ``"fit"`` if it can only train whole.

    An estimator with ``partial_fit`` and ``warm_start`` trains by the latter if that is True.
    """
    parameters = estimator.get_params(deep=False)
    if hasattr(estimator, "partial_fit") and not parameters.get("warm_start"):
        return "partial_fit"
    if "warm_start" in parameters and counter_of(estimator) is not None:
        return "warm_start"
    return "fit"


def counter_of(estimator: Any) -> str | None:
    """Return the name of the parameter for the length of a ``fit``, or None."""
    known = estimator.get_params(deep=False)
    return next((name for name in ("n_estimators", "max_iter") if name in known), None)


def counted(estimator: Any, names: Iterable[str]) -> list[str]:
    """Return why hyper-parameters of these names cannot be varied with ``warm_start``."""
    return [
        f"{name!r} cannot be varied: steps set it; use iterations_per_step and max_steps"
        for name in sorted({"warm_start", str(counter_of(estimator))} & set(names))
    ]


def prepared(template: Any, seed: int, way: Way) -> Any:
    """Return an unfitted clone whose every unset ``random_state`` follows from a seed.

    If each step would draw the same numbers from a seed, ``random_state`` is a generator, so that
    each step draws others.
    """
    model = _sklearn("base").clone(template)
    draws_anew = way == "partial_fit" or (way == "warm_start" and not _counts_all(model))
    for name, value in sorted(model.get_params().items()):
        if value is None and name.rpartition("__")[2] == "random_state":
            number = seed % 2**32
            model.set_params(**{name: np.random.RandomState(number) if draws_anew else number})
    if way == "warm_start":
        model.set_params(warm_start=True)
        if _counts_all(model):
            model.set_params(**{str(counter_of(model)): 0})
    return model


def classes_of(model: Any, y: Any) -> Any:
    """Return the classes of all targets for a classifier; None for others."""
    is_classifier = _sklearn("base").is_classifier
    return np.unique(y) if y is not None and is_classifier(model) else None


def train_once(model: Any, rows: Sequence[Any], classes: Any, way: Way, iterations: int) -> None:
    """Train an estimator one step.

    Parameters
    ----------
    rows
        Rows, and targets if there are any.
    classes
        All classes for a classifier, else None.
    iterations
        Estimators or iterations that a step with ``warm_start`` adds.
    """
    match way:
        case "fit":
            model.fit(*rows)
        case "partial_fit":
            model.partial_fit(*rows, **({} if classes is None else {"classes": classes}))
        case "warm_start":
            counter = str(counter_of(model))
            before = getattr(model, counter) if _counts_all(model) else 0
            model.set_params(**{counter: before + iterations})
            with warnings.catch_warnings():
                # A step is not meant to converge.
                warnings.simplefilter("ignore", _sklearn("exceptions").ConvergenceWarning)
                model.fit(*rows)


def state_of(models: Sequence[Any]) -> dict[str, Any]:
    """Return the attributes of estimators as plain values and arrays.

    Raises
    ------
    StateError
        If an attribute holds an object that has no such form.
    """
    objects = _Objects()
    stored = [_stored(model, f"models[{i}]", objects) for i, model in enumerate(models)]
    return {"models": stored, "arrays": objects.arrays, "generators": objects.generators}


def load_state(models: Sequence[Any], state: Mapping[str, Any]) -> None:
    """Replace the attributes of estimators by those of a state.

    The estimators must be fitted: only a fit makes their compiled objects.
    """
    arrays = [np.asarray(array) for array in state["arrays"]]
    objects = _Objects(arrays, [_generator(saved) for saved in state["generators"]])
    for i, (model, saved) in enumerate(zip(models, state["models"], strict=True)):
        _load_attributes(model, saved["object"]["attributes"], objects, f"models[{i}]")


def _sklearn(module: str) -> Any:
    return framework(f"sklearn.{module}", extra="sklearn")


def _counts_all(model: Any) -> bool:
    """Return whether the counter counts all calls of ``fit`` together, not the next one alone."""
    ensemble = _sklearn("ensemble")
    kinds = ensemble.HistGradientBoostingClassifier, ensemble.HistGradientBoostingRegressor
    return counter_of(model) == "n_estimators" or isinstance(model, kinds)


class _Objects:
    """Arrays and generators, each once: attributes that share one still do so after loading."""

    def __init__(self, arrays: Sequence[Any] = (), generators: Sequence[Any] = ()) -> None:
        self.arrays = list(arrays)
        self.generators = list(generators)
        self._seen: dict[int, tuple[int, Any]] = {}

    def array(self, value: Any, path: str) -> int:
        """Return the number of an array."""
        return self._number(value, self.arrays, lambda: _array(value, path))

    def generator(self, value: Any) -> int:
        """Return the number of a generator."""
        made = lambda: {"kind": type(value).__name__, "state": generator_state(value)}  # noqa: E731
        return self._number(value, self.generators, made)

    def _number(self, value: Any, table: list[Any], make: Any) -> int:
        if id(value) not in self._seen:
            table.append(make())
            self._seen[id(value)] = len(table) - 1, value  # kept, or another could have its id
        return self._seen[id(value)][0]


def _stored(value: Any, path: str, objects: _Objects) -> Any:
    """Return a value as plain values; arrays and generators go to `objects`."""
    if type(value) in _PLAIN:
        return {"plain": value}
    if isinstance(value, np.generic):
        return {"scalar": _array(np.asarray(value), path)}
    if isinstance(value, np.ndarray):
        return _stored_array(value, path, objects)
    if type(value) in (list, tuple):
        items = [_stored(item, f"{path}[{i}]", objects) for i, item in enumerate(value)]
        return {type(value).__name__: items}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {k: _stored(item, f"{path}[{k!r}]", objects) for k, item in value.items()}}
    if is_generator(value):
        return {"generator": objects.generator(value)}
    kind = type(value)
    if kind.__module__ == _TREE:
        _, arguments, state = value.__reduce__()
        return {"tree": _stored([*arguments, state], path, objects)}
    if kind.__module__.startswith(_WITHOUT_STATE):
        return {"same": kind.__name__}
    if kind.__module__.partition(".")[0] == "sklearn" and hasattr(value, "__dict__"):
        attributes = {k: _stored(v, f"{path}.{k}", objects) for k, v in vars(value).items()}
        return {"object": {"class": [kind.__module__, kind.__name__], "attributes": attributes}}
    raise StateError(
        path,
        f"{kind.__module__}.{kind.__qualname__} cannot be stored; an estimator's attributes must "
        "be numbers, texts, arrays, generators, and objects of scikit-learn that hold such",
    )


def _stored_array(value: Any, path: str, objects: _Objects) -> Any:
    if value.dtype.names is not None:
        # The bytes between the fields are arbitrary: a copy has zeros there.
        clean = np.zeros(value.shape, value.dtype)
        for name in value.dtype.names:
            clean[name] = value[name]
        fields = [value.dtype.fields[name] for name in value.dtype.names]
        form = {
            "names": [*value.dtype.names],
            "formats": [field[0].str for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": value.dtype.itemsize,
        }
        return {"records": {"form": form, "bytes": objects.array(clean.view(np.uint8), path)}}
    if value.dtype.hasobject:
        items = [_stored(item, f"{path}.flat[{i}]", objects) for i, item in enumerate(value.flat)]
        return {"objects": {"shape": [*value.shape], "items": items}}
    return {"array": objects.array(value, path)}


def _array(value: Any, path: str) -> Any:
    if value.dtype.kind == "U":
        return value.tolist()
    if value.dtype.hasobject:
        raise StateError(path, f"an array of {value.dtype} cannot be stored; use numbers or texts")
    return value


def _loaded(saved: Any, current: Any, objects: _Objects, path: str) -> Any:
    """Return a stored value; a compiled object without a state is the one of `current`."""
    ((kind, value),) = saved.items()
    match kind:
        case "plain":
            return value
        case "scalar":
            return np.asarray(value)[()]
        case "array":
            return objects.arrays[value]
        case "generator":
            return objects.generators[value]
        case "records":
            form = np.dtype(value["form"])
            return np.ascontiguousarray(objects.arrays[value["bytes"]]).view(form)
        case "objects":
            array = np.empty(value["shape"], object)
            for i, item in enumerate(value["items"]):
                array.flat[i] = _loaded(item, None, objects, f"{path}.flat[{i}]")
            return array
        case "list" | "tuple":
            olds = current if isinstance(current, (list, tuple)) else ()
            padded = [*olds, *[None] * (len(value) - len(olds))]
            items = [
                _loaded(item, old, objects, f"{path}[{i}]")
                for i, (item, old) in enumerate(zip(value, padded, strict=False))
            ]
            return items if kind == "list" else tuple(items)
        case "dict":
            own = current if isinstance(current, dict) else {}
            return {k: _loaded(v, own.get(k), objects, f"{path}[{k!r}]") for k, v in value.items()}
        case "tree":
            *arguments, state = _loaded(value, None, objects, path)
            tree = import_module(_TREE).Tree(*arguments)
            tree.__setstate__(state)
            return tree
        case "object":
            same = [type(current).__module__, type(current).__name__] == value["class"]
            made = current if same else _made(path, *value["class"])
            _load_attributes(made, value["attributes"], objects, path)
            return made
        case "same" if type(current).__name__ == value:
            return current
    raise StateError(path, f"a {kind} was stored, got {type(current).__qualname__}")


def _load_attributes(owner: Any, saved: Mapping[str, Any], objects: _Objects, path: str) -> None:
    for name in vars(owner).keys() - saved.keys():
        delattr(owner, name)
    for name, value in saved.items():
        setattr(owner, name, _loaded(value, getattr(owner, name, None), objects, f"{path}.{name}"))


def _made(path: str, module: str, name: str) -> Any:
    """Return an empty object of a class of scikit-learn; its constructor is not called."""
    if module.partition(".")[0] == "sklearn":
        kind: Any = getattr(import_module(module), name, None)
        if isinstance(kind, type):
            return object.__new__(kind)
    raise StateError(path, f"{module}.{name} was stored, which is no class of scikit-learn here")


def _generator(saved: Mapping[str, Any]) -> Any:
    kind, state = saved["kind"], saved["state"]
    made: Any = np.random.RandomState()
    if kind == "Generator":
        made = np.random.Generator(getattr(np.random, state["bit_generator"])())
    elif kind != "RandomState":
        raise StateError("generators", f"must be RandomState or Generator, got {kind}")
    restore_generator(made, state)
    return made
