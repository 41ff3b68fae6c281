"""LightGBM: a step is some boosting rounds, and parameters may change between steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from dasktune.errors import DasktuneError, InternalError, refuse
from dasktune.integrations.boosting import BoostingTrainer
from dasktune.integrations.installed import framework

_SEEDS = ("bagging_seed", "drop_seed", "extra_seed", "feature_fraction_seed", "objective_seed")
"""Seeds of rounds. Those of the data stay as they are, since the data are made once."""

_FIXED = {
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
    # Otherwise the first value of min_data_in_leaf chooses the features of all later ones.
    "feature_pre_filter": False,
}


class LightGBMTrainer(BoostingTrainer):
    """A trainer of LightGBM, of which the user writes `data`.

    Metrics are those of ``metric`` on each part of the data for evaluation, such as
    ``valid_binary_logloss``. `data` makes those for evaluation with ``train.create_valid``.

    **Exactness.** A booster that goes on from its bytes is, on the CPU, the booster that was not
    interrupted, bit for bit. Without sampling it is also the booster of ``lightgbm.train``. With
    sampling it is another one, because each step has seeds of its own. The modes ``rf`` and
    ``dart`` are refused: the first cannot go on from a model, the second changes older trees.

    **Cost.** With sampling, each step begins by predicting the training data with all trees so far.
    More `rounds_per_step` make that rarer.

    Attributes
    ----------
    params, rounds_per_step, threads
        See `BoostingTrainer`.
    booster
        The ``lightgbm.Booster``.

    Examples
    --------
    A trainer of the study's ``learning_rate`` and ``bagging_fraction``::

        class SampledTrees(dt.integrations.lightgbm.LightGBMTrainer):
            params = {"objective": "binary", "bagging_freq": 1}
            rounds_per_step = 10

            def data(self):
                train = lgb.Dataset(x, y)
                return train, {"valid": train.create_valid(x_valid, y_valid)}
    """

    # A booster that goes on from a model leaves its scores in the data.
    harmless_differences = ("trainer.train_data", "trainer.evaluation", "trainer.booster")

    model_endings = (".txt",)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of `params` on the data for evaluation."""
        results = self.booster.eval_valid()
        return {f"{part}_{metric}": float(value) for part, metric, value, _ in results}

    def new_booster(self, model: bytes) -> Any:
        """Return a booster that goes on from a model; from nothing if it is empty."""
        lightgbm = framework("lightgbm", extra="lightgbm")
        parameters = {**_FIXED, **self.values, "num_threads": self.threads}
        seed = self.step_seed() if self.is_renewed_each_step() else self.seed % 2**31
        parameters |= {name: seed for name in _SEEDS if name not in self.values}
        parameters.setdefault("data_random_seed", self.seed % 2**31)
        earlier = lightgbm.Booster(model_str=model.decode()) if model else None
        try:
            lightgbm.train(
                parameters,
                self.train_data,
                valid_sets=list(self.evaluation.values()),
                valid_names=list(self.evaluation),
                init_model=earlier,
                callbacks=[_hand_over],
            )
        except _MadeError as made:
            return made.booster
        raise InternalError("lightgbm.train made no booster")

    def model_bytes(self) -> bytes:
        """Return the booster as LightGBM's text, without the parameters: they are the study's."""
        text = str(self.booster.model_to_string(num_iteration=-1))
        before, _, rest = text.partition("\nparameters:")
        return (before + rest.partition("end of parameters\n")[2]).encode()

    def model_file(self, ending: str) -> bytes:
        """Return the booster as a file that ``lightgbm.Booster(model_file=...)`` reads."""
        return self.model_bytes()

    def change_rate(self, changed: Mapping[str, Any]) -> None:
        """Give the booster another learning rate."""
        if changed:
            self.booster.reset_parameter(dict(changed))

    def boost(self) -> None:
        """Add one round."""
        self.booster.update()

    def is_renewed_each_step(self) -> bool:
        """Return whether rounds draw at random, or fit lines in the leaves."""
        values = _by_main_name(self.values)
        fractions = (name for name in values if name.endswith(("_fraction", "_fraction_bynode")))
        return (
            any(values[name] != 1 for name in fractions)
            or "goss" in (values.get("data_sample_strategy"), values.get("boosting"))
            or any(
                values.get(name) for name in ("extra_trees", "use_quantized_grad", "linear_tree")
            )
            or values.get("objective") == "rank_xendcg"
        )

    @classmethod
    def known_parameters(cls, values: Mapping[str, Any]) -> frozenset[str]:
        """Return the names of all parameters, aliases included."""
        return frozenset(_main_names())

    def checked_data(self) -> tuple[Any, dict[str, Any]]:
        """Return the data, which keep what they were made from."""
        train, evaluation = super().checked_data()
        lightgbm = framework("lightgbm", extra="lightgbm")
        for name, dataset in {"train": train, **evaluation}.items():
            refuse(_data_problems(name, dataset, lightgbm.Dataset))
            dataset.free_raw_data = False
        return train, evaluation

    @classmethod
    def problems(cls, hp: Mapping[str, Any]) -> list[str]:
        """Return why these parameters, and those of the class, cannot be trained in steps."""
        mode = _by_main_name({**cls.params, **hp}).get("boosting", "gbdt")
        refused = mode in ("rf", "random_forest", "dart")
        wrong = [f"boosting must be 'gbdt' or 'goss' to train in steps, got {mode!r}"]
        return [*super().problems(hp), *(wrong if refused else [])]


class _MadeError(DasktuneError):
    """The end of `lightgbm.train` before its first round.

    It alone merges an earlier model with its scores, but not without a round.
    """

    def __init__(self, booster: Any) -> None:
        super().__init__(booster)
        self.booster = booster


def _hand_over(env: Any) -> None:
    """Take the booster from `lightgbm.train` before it trains."""
    raise _MadeError(env.model)


_hand_over.before_iteration = True  # type: ignore[attr-defined]


@cache
def _main_names() -> dict[str, str]:
    """Return the main name of each parameter by all its names."""
    lightgbm = framework("lightgbm", extra="lightgbm")
    names = lightgbm.basic._ConfigAliases._get_all_param_aliases()
    return {alias: main for main, aliases in names.items() for alias in aliases}


def _by_main_name(values: Mapping[str, Any]) -> dict[str, Any]:
    main = _main_names()
    return {main.get(name, name): value for name, value in values.items()}


def _data_problems(name: str, dataset: Any, kind: Any) -> list[str]:
    if not isinstance(dataset, kind):
        return [f"data(): {name} must be a lightgbm.Dataset, got {type(dataset).__name__}"]
    if dataset.data is None:
        return [f"data(): {name} has freed its raw data; make it with free_raw_data=False"]
    if dataset.init_score is not None:
        return [f"data(): {name} must have no init_score; the booster's own scores take its place"]
    return []
