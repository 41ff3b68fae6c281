"""LightGBM: a step is some boosting rounds, and parameters may change between steps."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np

from dasktune.errors import ConfigurationError, DasktuneError, InternalError, refuse
from dasktune.integrations.arguments import name_of
from dasktune.integrations.boosting import BoostingTrainer, Data, Score, trainer_class
from dasktune.integrations.installed import framework
from dasktune.trainer.fingerprint.data import data_digest

_SEEDS = ("bagging_seed", "drop_seed", "extra_seed", "feature_fraction_seed", "objective_seed")
"""Seeds of rounds. Those of the data stay as they are, since the data are made once."""

_FIXED = {
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
    # Otherwise the first value of min_data_in_leaf chooses the features of all later ones.
    "feature_pre_filter": False,
}


_TRAINING = "training"
"""LightGBM's name of the data for training where they are among those for evaluation."""

_CONTENT = ("label", "weight", "group", "init_score", "position")
_ARGUMENTS = (*("data", *_CONTENT), "feature_name", "categorical_feature", "params")
"""Arguments of a ``Dataset``, which keeps them in attributes of the same names."""


def trainer(
    params: Mapping[str, Any],
    train_set: Any,
    *,
    valid_sets: Iterable[Any] | None = None,
    valid_names: Iterable[str] | None = None,
    **options: Any,
) -> type[LightGBMTrainer]:
    """Return a trainer class for what a script gives to ``lightgbm.train``.

    Its metrics are those of ``metric`` on each part of the data for evaluation, such as
    ``valid_binary_logloss``.

    Parameters
    ----------
    params
        The parameters of LightGBM. Hyper-parameters of the study take their place.
    train_set
        The ``Dataset`` for training. Or a function that returns it and `valid_sets`, as in
        ``return train, [valid]``: workers call it, with the entries of the study's config that its
        parameters name.
    valid_sets, valid_names
        As for ``lightgbm.train``: a ``Dataset`` each, and their names.
    options
        ``rounds_per_step`` (1): boosting rounds of one step. ``threads`` (1).
        ``early_stopping_rounds`` (none): as in ``lightgbm.early_stopping``.

    Raises
    ------
    ConfigurationError
        If an argument is of another kind, or unknown.

    Examples
    --------
    A study then is ``dasktune.create_study(trainer(params, train, valid_sets=[valid],
    valid_names=["valid"]), metric="valid_binary_logloss", ...)``.
    """
    members: dict[str, Any] = {"params": dict(params), "valid_names": _names(valid_names)}
    if inspect.isroutine(train_set):
        if valid_sets is not None:
            raise ConfigurationError(
                f"valid_sets must be left out: {name_of(train_set)} returns them, as in "
                f"`{LightGBMTrainer.example}`"
            )
        return trainer_class(LightGBMTrainer, members, options, train_set)
    sets = [] if valid_sets is None else [*valid_sets]
    refuse(_data_problems(train_set, sets))
    members["_dasktune_data"] = (
        _arguments(train_set),
        [None if each is train_set else _arguments(each) for each in sets],
    )
    return trainer_class(LightGBMTrainer, members, options, None)


class LightGBMTrainer(BoostingTrainer):
    """A trainer of LightGBM; made by `trainer`.

    **Exactness.** A booster that goes on from its bytes is, on the CPU, the booster that was not
    interrupted, bit for bit. Without sampling it is also the booster of ``lightgbm.train``. With
    sampling it is another one, because each step has seeds of its own. The modes ``rf`` and
    ``dart`` are refused: the first cannot go on from a model, the second changes older trees.

    **Cost.** With sampling, each step begins by predicting the training data with all trees so far.
    More `rounds_per_step` make that rarer.

    Attributes
    ----------
    valid_names
        Names of the data for evaluation; empty for LightGBM's own: ``valid_0`` and so on.
    """

    # A booster that goes on from a model leaves its scores in the data.
    harmless_differences = ("trainer.train_data", "trainer.evaluation", "trainer.booster")

    model_endings = (".txt",)
    example = "return train, [valid]"

    valid_names: ClassVar[tuple[str, ...]] = ()
    _dasktune_data: ClassVar[tuple[dict[str, Any], list[dict[str, Any] | None]]]

    @classmethod
    def fingerprint_data(cls, config: Mapping[str, object]) -> list[Any] | None:
        """Return digests of the data; None if a function makes them."""
        if cls.make_data is not None:
            return None
        train, sets = cls._dasktune_data
        return [_digest(train), [each and _digest(each) for each in sets]]

    def given_data(self) -> Data:
        """Return new data sets, equal to those that were given to `trainer`."""
        make = framework("lightgbm", extra="lightgbm").Dataset
        train, sets = self._dasktune_data
        made = make(**train)
        return self.checked_data(made, [made if each is None else make(**each) for each in sets])

    @classmethod
    def checked_data(cls, train: Any, evaluation: Any) -> Data:
        """Return data sets for training and evaluation, which keep what they were made from."""
        sets = [*evaluation]
        refuse(_data_problems(train, sets))
        for each in (train, *sets):
            each.free_raw_data = False
        names = cls.valid_names or [
            _TRAINING if each is train else f"valid_{index}" for index, each in enumerate(sets)
        ]
        if len(names) != len(sets):
            raise ConfigurationError(
                f"valid_names must name {len(sets)} valid_sets, got {', '.join(names)}"
            )
        return train, dict(zip(names, sets, strict=True))

    @classmethod
    def main_name(cls, name: str) -> str:
        """Return the main name of a parameter, which may be given by an alias."""
        return _main_names().get(name, name)

    def scores(self) -> list[Score]:
        """Return the metrics on the data for evaluation; those for training come first."""
        of_training = self.train_data in self.evaluation.values()
        results = [*(self.booster.eval_train() if of_training else ()), *self.booster.eval_valid()]
        return [(f"{part}_{name}", float(score), high) for part, name, score, high in results]

    def mark_best(self) -> None:
        """Set the number of rounds that the booster predicts with and writes."""
        self.booster.best_iteration = self.best_rounds

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
        return self._text(num_iteration=-1)

    def model_file(self, ending: str) -> bytes:
        """Return the booster, up to its best round, as the file of ``Booster.save_model``."""
        return self._text(num_iteration=None)

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

    @classmethod
    def problems(cls, hp: Mapping[str, Any]) -> list[str]:
        """Return why these parameters, and those of the class, cannot be trained in steps."""
        mode = _by_main_name(cls.values_with(hp)).get("boosting", "gbdt")
        refused = mode in ("rf", "random_forest", "dart")
        wrong = [f"boosting must be 'gbdt' or 'goss' to train in steps, got {mode!r}"]
        return [*super().problems(hp), *(wrong if refused else [])]

    def _text(self, num_iteration: int | None) -> bytes:
        text = str(self.booster.model_to_string(num_iteration=num_iteration))
        before, _, rest = text.partition("\nparameters:")
        return (before + rest.partition("end of parameters\n")[2]).encode()


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


def _names(names: Iterable[str] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _data_problems(train: Any, sets: list[Any]) -> list[str]:
    named = {"train_set": train, **{f"valid_sets[{i}]": each for i, each in enumerate(sets)}}
    problems = [] if sets else [f"valid_sets must have a Dataset, as in {LightGBMTrainer.example}"]
    return problems + [
        f"{name} {problem}" for name, each in named.items() if (problem := _data_problem(each))
    ]


def _data_problem(dataset: Any) -> str:
    """Return why a data set cannot be used, or an empty text."""
    kind = framework("lightgbm", extra="lightgbm").Dataset
    if not isinstance(dataset, kind):
        return f"must be a lightgbm.Dataset, got a {type(dataset).__name__}"
    if dataset.used_indices is not None:
        return "must be made from its own rows, got a subset of another Dataset"
    if dataset.data is None:
        return "has freed its raw data; make it with free_raw_data=False"
    if dataset.init_score is not None:
        return "must have no init_score; the booster's own scores take its place"
    return ""


def _arguments(dataset: Any) -> dict[str, Any]:
    """Return the arguments to make a data set again: itself it cannot be sent to workers."""
    return {name: getattr(dataset, name) for name in _ARGUMENTS}


def _digest(arguments: Mapping[str, Any]) -> list[Any]:
    """Return digests of the arguments of a data set."""
    content = [_plain(arguments[name]) for name in _CONTENT]
    words = [repr(arguments[name]) for name in ("feature_name", "categorical_feature", "params")]
    return [data_digest(_plain(arguments["data"])), data_digest(content), *words]


def _plain(data: Any) -> Any:
    """Return data as paths, and arrays in lists."""
    if data is None:
        return []
    if hasattr(data, "tocsr"):
        rows = data.tocsr()
        return [rows.data, rows.indices, rows.indptr, np.array(rows.shape)]
    if hasattr(data, "columns") and hasattr(data, "dtypes"):  # a DataFrame of pandas
        return [[_text(data.columns), *(_plain(data[name]) for name in data.columns)]]
    if hasattr(data, "cat"):
        return [_text(data.cat.categories), np.asarray(data.cat.codes)]
    if isinstance(data, (str, os.PathLike)):
        return data
    try:
        return np.asarray(data, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the content of a {type(data).__name__} is not known: give trainer a function that "
            f"makes it, and ends with `{LightGBMTrainer.example}`"
        ) from error


def _text(names: Iterable[Any]) -> Any:
    return np.array([str(name) for name in names], dtype=str)
