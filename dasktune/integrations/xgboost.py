"""XGBoost: a step is some boosting rounds, and parameters may change between steps."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from dasktune.errors import ConfigurationError
from dasktune.integrations.arguments import name_of
from dasktune.integrations.boosting import BoostingTrainer, Data, Score, trainer_class
from dasktune.integrations.installed import framework
from dasktune.trainer.fingerprint.data import data_digest

_ALIASES = {
    "eta": "learning_rate",
    "alpha": "reg_alpha",
    "lambda": "reg_lambda",
    "gamma": "min_split_loss",
    "nthread": "n_jobs",
    "seed": "random_state",
}

_GENERAL = {"eval_metric", "process_type", "validate_parameters", "verbosity"}
"""Parameters that a booster's configuration does not name."""

_DECIDING = ("booster", "objective")
"""Parameters whose values decide which other parameters there are."""

_MAXIMIZED = ("auc", "pre", "map", "ndcg")
"""Beginnings of the metrics whose higher values are better; ``mape`` is not one of them."""


def trainer(
    params: Mapping[str, Any],
    dtrain: Any,
    *,
    evals: Iterable[tuple[Any, str]] | None = None,
    **options: Any,
) -> type[XGBoostTrainer]:
    """Return a trainer class for what a script gives to ``xgboost.train``.

    Its metrics are those of ``eval_metric`` on each part of the data for evaluation, such as
    ``valid_logloss``.

    Parameters
    ----------
    params
        The parameters of XGBoost. Hyper-parameters of the study take their place.
    dtrain
        The ``DMatrix`` for training. Or a function that returns it and `evals`, as in ``return
        dtrain, [(dvalid, "valid")]``: workers call it, with the entries of the study's config
        that its parameters name.
    evals
        Pairs of a ``DMatrix`` and its name.
    options
        ``rounds_per_step`` (1): boosting rounds of one step. ``threads`` (1).
        ``early_stopping_rounds`` (none): as in ``xgboost.train``.

    Raises
    ------
    ConfigurationError
        If an argument is of another kind, or unknown.

    Examples
    --------
    A study then is ``dasktune.create_study(trainer(params, dtrain, evals=[(dvalid, "valid")]),
    metric="valid_logloss", ...)``.
    """
    if inspect.isroutine(dtrain):
        if evals is not None:
            raise ConfigurationError(
                f"evals must be left out: {name_of(dtrain)} returns them, as in "
                f"`{XGBoostTrainer.example}`"
            )
        return trainer_class(XGBoostTrainer, {"params": dict(params)}, options, dtrain)
    train, evaluation = XGBoostTrainer.checked_data(dtrain, evals)
    matrices = {id(matrix): _Matrix(matrix) for matrix in (train, *evaluation.values())}
    given = matrices[id(train)], {name: matrices[id(each)] for name, each in evaluation.items()}
    members = {"params": dict(params), "_dasktune_data": given}
    return trainer_class(XGBoostTrainer, members, options, None)


class XGBoostTrainer(BoostingTrainer):
    """A trainer of XGBoost; made by `trainer`.

    **Exactness.** A booster that goes on from its bytes is, on the CPU, the booster that was not
    interrupted, bit for bit. Without sampling it is also the booster of ``xgboost.train``. With
    sampling it is another one, because each step has a seed of its own.

    **Cost.** With sampling, each step begins by predicting the training data with all trees so far.
    More `rounds_per_step` make that rarer.
    """

    model_endings = (".json", ".ubj")
    example = 'return dtrain, [(dvalid, "valid")]'

    _dasktune_data: ClassVar[tuple[_Matrix, dict[str, _Matrix]]]

    @classmethod
    def fingerprint_data(cls, config: Mapping[str, object]) -> list[Any] | None:
        """Return digests of the data; None if a function makes them."""
        if cls.make_data is not None:
            return None
        train, evaluation = cls._dasktune_data
        digests = [[name, data_digest(each.content)] for name, each in evaluation.items()]
        return [data_digest(train.content), digests]

    def given_data(self) -> Data:
        """Return new matrices, equal to those that were given to `trainer`."""
        train, evaluation = self._dasktune_data
        made = {id(each): each.opened() for each in {train, *evaluation.values()}}
        return made[id(train)], {name: made[id(each)] for name, each in evaluation.items()}

    @classmethod
    def checked_data(cls, train: Any, evaluation: Any) -> Data:
        """Return matrices for training and evaluation, after a check of their form."""
        kind = framework("xgboost", extra="xgboost").DMatrix
        pairs = list(evaluation or ())
        if not isinstance(train, kind):
            raise ConfigurationError(f"dtrain must be a DMatrix, got a {type(train).__name__}")
        if not pairs or not all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], kind)
            for pair in pairs
        ):
            raise ConfigurationError(
                f'evals must be pairs of a DMatrix and its name, as in [(dvalid, "valid")], got '
                f"{evaluation!r:.80}"
            )
        return train, {str(name): matrix for matrix, name in pairs}

    @classmethod
    def main_name(cls, name: str) -> str:
        """Return the main name of a parameter, which may be given by an alias."""
        return _ALIASES.get(name, name)

    def scores(self) -> list[Score]:
        """Return the metrics on the data for evaluation, in their order."""
        sets = [(data, name) for name, data in self.evaluation.items()]
        text = self.booster.eval_set(sets, self.rounds)
        pairs = (item.rpartition(":") for item in text.split("\t")[1:])
        return [self._score(name, float(value)) for name, _, value in pairs]

    def mark_best(self) -> None:
        """Set the attributes of the booster, which are saved with it."""
        self.booster.set_attr(
            best_iteration=str(self.best_rounds - 1), best_score=str(self.best_score)
        )

    def new_booster(self, model: bytes) -> Any:
        """Return a booster that goes on from a model; from nothing if it is empty."""
        xgboost = framework("xgboost", extra="xgboost")
        parameters = {
            **self.values,
            "nthread": self.threads,
            "seed": self.step_seed() if self.is_renewed_each_step() else self.seed % 2**31,
        }
        booster = xgboost.Booster(parameters, [self.train_data, *self.evaluation.values()])
        if model:
            booster.load_model(bytearray(model))
            booster.set_param(list(_pairs(parameters)))
        return booster

    def model_bytes(self) -> bytes:
        """Return the booster in UBJSON."""
        return bytes(self.booster.save_raw("ubj"))

    def model_file(self, ending: str) -> bytes:
        """Return the booster as a file that ``xgboost.Booster(model_file=...)`` reads."""
        return bytes(self.booster.save_raw(ending.removeprefix(".")))

    def change_rate(self, changed: Mapping[str, Any]) -> None:
        """Give the booster another learning rate."""
        self.booster.set_param(dict(changed))

    def boost(self) -> None:
        """Add one round."""
        self.booster.update(self.train_data, self.rounds)

    def is_renewed_each_step(self) -> bool:
        """Return whether rounds sample rows or columns, drop trees or choose features."""
        sampled = ("subsample", *(name for name in self.values if name.startswith("colsample_")))
        return (
            any(self.values.get(name, 1) != 1 for name in sampled)
            or self.values.get("booster") == "dart"
            or self.values.get("feature_selector") in ("random", "shuffle")
        )

    @classmethod
    def known_parameters(cls, values: Mapping[str, Any]) -> frozenset[str]:
        """Return the names of all parameters of this kind of booster, aliases included.

        They are the given names if XGBoost cannot say: the kind of booster is unknown so far, or
        XGBoost refuses a value, as it does again at the first round.
        """
        xgboost = framework("xgboost", extra="xgboost")
        if any(values.get(name, "") is None for name in _DECIDING):
            return frozenset(values)
        with xgboost.config_context(verbosity=0):  # it warns of unknown names, `problems` refuses
            data = xgboost.DMatrix(np.zeros((1, 1)), [0.0], nthread=1)
            try:
                config = json.loads(xgboost.Booster({**values, "nthread": 1}, [data]).save_config())
            except xgboost.core.XGBoostError:
                return frozenset(values)
        names = {*_GENERAL, *_parameters_in(config)}
        pairs = [pair for pair in _ALIASES.items() if names.intersection(pair)]
        return frozenset(names.union(*pairs))

    def _score(self, name: str, value: float) -> Score:
        part = next(part for part in self.evaluation if name.startswith(f"{part}-"))
        metric = name[len(part) + 1 :]
        is_higher_better = metric.startswith(_MAXIMIZED) and metric != "mape"
        return f"{part}_{metric}", value, is_higher_better


class _Matrix:
    """The content of a ``DMatrix``, which itself cannot be sent to workers."""

    def __init__(self, matrix: Any) -> None:
        with TemporaryDirectory(prefix="dasktune-xgboost-") as folder:
            path = Path(folder, "matrix.bin")
            try:
                matrix.save_binary(path)
            except framework("xgboost.core", extra="xgboost").XGBoostError as error:
                raise ConfigurationError(
                    f"a {type(matrix).__name__} cannot be sent to workers: give trainer a function "
                    f"that makes it, and ends with `{XGBoostTrainer.example}`"
                ) from error
            self.content = np.fromfile(path, np.uint8)

    def opened(self) -> Any:
        """Return a new ``DMatrix``."""
        with TemporaryDirectory(prefix="dasktune-xgboost-") as folder:
            path = Path(folder, "matrix.bin")
            self.content.tofile(path)
            return framework("xgboost", extra="xgboost").DMatrix(path)


def _pairs(parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield parameters as XGBoost takes them one by one: a list is several of one name."""
    for name, value in parameters.items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            yield name, item


def _parameters_in(config: Any) -> Iterator[str]:
    """Yield the names of the parameters in a booster's configuration."""
    if isinstance(config, dict):
        for name, value in config.items():
            if isinstance(value, str):
                yield name
            yield from _parameters_in(value)
    elif isinstance(config, list):
        for item in config:
            yield from _parameters_in(item)
