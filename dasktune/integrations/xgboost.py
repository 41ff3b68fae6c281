"""XGBoost: a step is some boosting rounds, and parameters may change between steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dasktune.integrations.boosting import BoostingTrainer
from dasktune.integrations.installed import framework

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


class XGBoostTrainer(BoostingTrainer):
    """A trainer of XGBoost, of which the user writes `data`.

    Metrics are those of ``eval_metric`` on each part of the data for evaluation, such as
    ``valid_logloss``.

    **Exactness.** A booster that goes on from its bytes is, on the CPU, the booster that was not
    interrupted, bit for bit. Without sampling it is also the booster of ``xgboost.train``. With
    sampling it is another one, because each step has a seed of its own.

    **Cost.** With sampling, each step begins by predicting the training data with all trees so far.
    More `rounds_per_step` make that rarer.

    Attributes
    ----------
    params, rounds_per_step, threads
        See `BoostingTrainer`.
    booster
        The ``xgboost.Booster``.

    Examples
    --------
    A trainer of the study's ``eta`` and ``subsample``::

        class BoostedTrees(dt.integrations.xgboost.XGBoostTrainer):
            params = {"objective": "binary:logistic", "eval_metric": "logloss"}
            rounds_per_step = 10

            def data(self):
                return xgb.DMatrix(x, y), {"valid": xgb.DMatrix(x_valid, y_valid)}
    """

    model_endings = (".json", ".ubj")

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of `params` on the data for evaluation."""
        sets = [(data, name) for name, data in self.evaluation.items()]
        text = self.booster.eval_set(sets, self.rounds)
        pairs = (item.rpartition(":") for item in text.split("\t")[1:])
        metrics = {name: float(value) for name, _, value in pairs}
        return {self._metric_name(name): value for name, value in metrics.items()}

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

    def _metric_name(self, name: str) -> str:
        part = next(part for part in self.evaluation if name.startswith(f"{part}-"))
        return f"{part}_{name[len(part) + 1 :]}"


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
