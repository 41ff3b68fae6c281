"""scikit-learn: a cross-validated search with scikit-learn's interface for estimators."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import joblib
import numpy as np
from distributed import default_client
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state, get_tags, indexable
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.metaestimators import _safe_split, available_if
from sklearn.utils.validation import check_is_fitted

from dasktune._engine.trials import Trial
from dasktune._numbers import whole_of
from dasktune._study.create import create_study
from dasktune._study.study import Study
from dasktune.algos.asha import ASHA
from dasktune.algos.base import Tuner
from dasktune.algos.random import Random
from dasktune.algos.samplers import GivenSource
from dasktune.errors import ConfigurationError, TrainerError, refuse, shown, unknown
from dasktune.integrations.estimators import (
    Way,
    classes_of,
    counted,
    load_state,
    prepared,
    state_of,
    train_once,
    way_of,
)
from dasktune.integrations.search_points import DRAWS, Points, given_space, points_of, whole_grid
from dasktune.space import Configuration, Space
from dasktune.trainer.base import Trainer
from dasktune.trainer.code import TrainerCode, pack, unpack
from dasktune.trainer.fingerprint.installed import is_installed_name
from dasktune.types import Value

METRIC = "mean_test_score"
_SHARED = ("client", "storage", "tuner")
"""Parameters that a clone shares with its original: a connection cannot be copied."""


class FoldsTrainer(Trainer):
    """A trainer of one estimator per fold; its metric is the mean of their scores.

    `DasktuneSearchCV` makes a subclass for its data. A step trains each estimator on all training
    rows of its fold.

    Attributes
    ----------
    template, scorer
        The estimator, which is not fitted, and the function of estimator, rows and targets.
    arrays, folds
        Rows and targets, and pairs of row numbers for training and for the score.
    way, iterations
        How a step trains, and the estimators or iterations that a step with ``warm_start`` adds.
        If the only step is ``fit``, the state holds the scores alone.
    digest
        Digest of all of these.
    """

    # All of the estimators is in the state, where it is compared.
    harmless_differences = ("trainer.models",)

    template: ClassVar[Any]
    scorer: ClassVar[Any]
    arrays: ClassVar[tuple[Any, Any]]
    folds: ClassVar[tuple[tuple[Any, Any], ...]]
    way: ClassVar[Way]
    iterations: ClassVar[int]
    digest: ClassVar[str]

    @classmethod
    def fingerprint_data(cls, config: Mapping[str, object]) -> str:
        """Return the digest of data, folds, estimator and scorer."""
        return cls.digest

    def build(self, hp: Mapping[str, Value]) -> None:
        """Make an estimator for each fold."""
        seeds = range(self.seed, self.seed + len(self.folds))
        self.models = [prepared(self.template, seed, self.way) for seed in seeds]
        self.classes = classes_of(self.template, self.arrays[1])
        self.scores: list[float] = []

    def setup(self, hp: Mapping[str, Value]) -> None:
        """Take over the parameters that change at this step."""
        for model in self.models:
            model.set_params(**hp)

    def train(self) -> None:
        """Train the estimator of each fold on all its training rows."""
        for model, (rows, _) in zip(self.models, self.folds, strict=True):
            given = self._rows(model, rows)
            train_once(model, given, self.classes, self.way, self.iterations)
        self.scores = [
            float(self.scorer(model, *self._rows(model, rows, trained)))
            for model, (trained, rows) in zip(self.models, self.folds, strict=True)
        ]

    def evaluate(self) -> Mapping[str, float]:
        """Return the score of each fold, and their mean."""
        scores = {f"split{fold}_test_score": score for fold, score in enumerate(self.scores)}
        return {METRIC: float(np.mean(self.scores)), **scores}

    def state_dict(self) -> dict[str, Any]:
        """Return the scores, and the attributes of the estimators of all folds."""
        learnt = {} if self.way == "fit" else state_of(self.models)
        return {"scores": list(self.scores), **learnt}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; only a fit makes the compiled objects that an estimator holds."""
        self.scores = list(state["scores"])
        if self.way == "fit":
            return
        for model, (rows, _) in zip(self.models, self.folds, strict=True):
            train_once(model, self._rows(model, rows), self.classes, self.way, iterations=1)
        load_state(self.models, state)

    def _rows(self, model: Any, rows: Any, trained: Any = None) -> tuple[Any, ...]:
        x, y = _safe_split(model, *self.arrays, rows, trained)
        return (x,) if y is None else (x, y)


class DasktuneSearchCV(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A cross-validated search over a space, with the interface of ``RandomizedSearchCV``.

    With `max_steps` above 1 the estimator must have ``partial_fit`` or ``warm_start``. A step is
    one call of ``partial_fit`` with all training rows, or one of ``fit`` that adds estimators or
    iterations. ASHA promotes the best configurations, and one state holds the estimators of all
    folds. With `max_steps` of 1 each configuration is trained whole by ``fit``.

    Parameters
    ----------
    estimator
        An estimator of scikit-learn.
    space
        A `dasktune.Space`, or a mapping of parameter names to lists, domains or distributions of
        ``scipy.stats``; values may be sequences of the step.
    cv, scoring
        As for ``GridSearchCV``, with one metric.
    max_steps
        Most steps of a configuration.
    iterations_per_step
        Estimators or iterations that a step with ``warm_start`` adds.
    param_grid
        In place of `space`: lists by name, as for ``GridSearchCV``. Each point is trained.
    param_distributions
        In place of `space`: lists and distributions by name, as for ``RandomizedSearchCV``.
    trials, n_iter
        Number of configurations: one of the two, 10 if both are None. No configuration of lists
        comes twice; if there are fewer, each is trained.
    tuner
        Any other tuner, used in place of ASHA. Its space must be `space`, and its
        `max_steps` the same.
    refit
        Whether to train the best configuration, to the step of its score, on all rows.
    storage
        A folder or URL that keeps the states, so that the same search goes on where it was. None
        is a temporary folder, removed after the search.
    client
        Connected to a Dask cluster. None is the current client of this process; if there is none,
        a local cluster for the time of the search.
    random_state
        Seed of configurations and estimators. None is 0: results are the same in each run.
    check
        Whether the study checks before it begins that resuming is exact.

    Attributes
    ----------
    best_params_, best_score_, best_index_
        Configuration, mean score and row in `cv_results_` of the best trial.
    best_estimator_
        The estimator that `refit` trained.
    cv_results_
        Columns as of ``GridSearchCV``, and ``n_steps``: the steps behind each score. A failed
        trial has NaN.
    n_splits_, scorer_
        Number of folds, and the function that scores.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> DasktuneSearchCV(SGDClassifier(), param_grid={"alpha": [1e-4, 1e-2]}).param_grid
    {'alpha': [0.0001, 0.01]}
    """

    # The folds alone use the groups; the search routes no metadata to other estimators.
    __metadata_request__fit: ClassVar = {"groups": UNUSED}

    def __init__(
        self,
        estimator: Any,
        space: Any = None,
        *,
        param_grid: Any = None,
        param_distributions: Any = None,
        cv: Any = None,
        scoring: Any = None,
        max_steps: int = 1,
        iterations_per_step: int = 1,
        trials: int | None = None,
        n_iter: int | None = None,
        tuner: Tuner | None = None,
        refit: bool = True,
        storage: Any = None,
        client: Any = None,
        random_state: Any = None,
        check: bool = True,
    ) -> None:
        self.estimator = estimator
        self.space = space
        self.param_grid = param_grid
        self.param_distributions = param_distributions
        self.cv = cv
        self.scoring = scoring
        self.max_steps = max_steps
        self.iterations_per_step = iterations_per_step
        self.trials = trials
        self.n_iter = n_iter
        self.tuner = tuner
        self.refit = refit
        self.storage = storage
        self.client = client
        self.random_state = random_state
        self.check = check

    def __sklearn_clone__(self) -> DasktuneSearchCV:
        """Return an unfitted copy, which shares client, storage and tuner."""
        given = self.get_params(deep=False)
        copied = {k: v if k in _SHARED else clone(v, safe=False) for k, v in given.items()}
        return type(self)(**copied)

    def __sklearn_tags__(self) -> Any:
        """Return the tags of the estimator: what data it takes, and what it predicts."""
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags = copy.deepcopy(inner.classifier_tags)
        tags.regressor_tags = copy.deepcopy(inner.regressor_tags)
        tags.target_tags = copy.deepcopy(inner.target_tags)
        tags.input_tags = copy.deepcopy(inner.input_tags)
        return tags

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> DasktuneSearchCV:  # noqa: N803
        """Search, and train the best configuration on all rows.

        Parameters
        ----------
        X, y
            Rows and targets.
        groups
            Groups of the rows, for a `cv` that splits by groups.

        Raises
        ------
        ConfigurationError
            If an argument is wrong: before anything is trained.
        TrainerError
            If no configuration has a finite score. If the estimator refuses the data, its own
            error is raised.
        """
        seed = self._seed()
        space, points = self._points(seed)
        refuse(self._problems(space, y))
        self.scorer_ = self._scorer()
        X, y, groups = indexable(X, y, groups)  # noqa: N806
        splitter = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        folds = tuple(splitter.split(X, y, groups))
        self.n_splits_ = len(folds)
        trainer = self._trainer(X, y, folds)
        with self._study(trainer, seed) as study:
            tuner = copy.deepcopy(self.tuner) or self._default_tuner(space, points, seed)
            client = self.client or _current_client()
            study.optimize(tuner, client=client, check=self.check, progress=False, last_line=False)
            trials = study.trials
        self._take(trials, trainer, seed)
        if self.refit:
            self._refit(trials[self.best_index_], trainer, seed)
        return self

    # --------------------------------------------------------------------- before the study

    def _seed(self) -> int:
        if self.random_state is None or isinstance(self.random_state, int | np.integer):
            return int(self.random_state or 0)
        return int(check_random_state(self.random_state).randint(2**31))

    def _points(self, seed: int) -> Points:
        """Return the space, and the configurations as far as they are drawn before the search."""
        given = given_space(self.space, self.param_grid, self.param_distributions)
        counts = {"trials": self.trials, "n_iter": self.n_iter}
        named = {name: count for name, count in counts.items() if count is not None}
        refuse(
            f"{name} must be an int >= 1, got {shown(count)}"
            for name, count in named.items()
            if whole_of(count) is None
        )
        if len(named) > 1 or (named and self.param_grid is not None):
            raise ConfigurationError(
                "trials or n_iter must be given, not both, and neither with param_grid, of which "
                f"each point is trained, got {named}"
            )
        if self.param_grid is not None:
            return whole_grid(given)
        return points_of(given, next(iter(named.values()), None), seed)

    def _problems(self, space: Space, y: Any) -> Iterator[str]:
        name = type(self.estimator).__name__
        if y is None and get_tags(self.estimator).target_tags.required:
            yield f"{name} requires y to be passed, but the target y is None"
        known = self.estimator.get_params()
        for parameter, _ in space.dimensions:
            if parameter not in known:
                yield unknown(f"parameter of {name}", parameter, known)
        if whole_of(size := self.iterations_per_step) is None:
            yield f"iterations_per_step must be an int >= 1, got {size!r}"
        if self.max_steps > 1 and way_of(self.estimator) == "fit":
            yield (
                f"max_steps must be 1 for an estimator without partial_fit or warm_start, which "
                f"is trained whole, got {self.max_steps} for {name}"
            )
        if self.max_steps > 1 and way_of(self.estimator) == "warm_start":
            yield from counted(self.estimator, (parameter for parameter, _ in space.dimensions))
        if self.tuner is None:
            return
        if (steps := self.tuner.max_steps) != self.max_steps:
            yield f"max_steps must be that of the tuner, {steps}, got {self.max_steps}"
        if getattr(self.tuner, "space", space) != space:
            yield "space must be that of the tuner"

    def _scorer(self) -> Any:
        if isinstance(self.scoring, list | tuple | set | dict):
            raise ConfigurationError(
                f"scoring must be one metric: a name, a callable or None, got {self.scoring!r}"
            )
        return check_scoring(self.estimator, scoring=self.scoring)

    def _trainer(self, x: Any, y: Any, folds: tuple[Any, ...]) -> type[FoldsTrainer]:
        way: Way = "fit" if self.max_steps == 1 else way_of(self.estimator)
        if way != "fit":
            y = _texts(y)
        iterations = self.iterations_per_step if way == "warm_start" else 1
        # A local function cannot be hashed; its code counts by `depends_on`.
        scorer = self.scorer_
        if inspect.isfunction(scorer):
            scorer = (scorer.__module__, scorer.__qualname__)
        return type(
            "SearchTrainer",
            (FoldsTrainer,),
            {
                "__module__": __name__,
                "template": clone(self.estimator),
                "scorer": staticmethod(self.scorer_),
                "arrays": (x, y),
                "folds": folds,
                "way": way,
                "iterations": iterations,
                "digest": joblib.hash(
                    (clone(self.estimator), scorer, x, y, folds, way, iterations)
                ),
            },
        )

    @contextmanager
    def _study(self, trainer: type[FoldsTrainer], seed: int) -> Iterator[Study]:
        """Open the study of these data, closed afterwards; other data are another study."""
        with TemporaryDirectory(prefix="dasktune-search-") as folder:
            study = create_study(
                trainer,
                name=f"search-{trainer.digest[:16]}-{seed}",
                storage=folder if self.storage is None else self.storage,
                metric=METRIC,
                direction="maximize",
                seed=seed,
                load_if_exists=True,
                depends_on=_code_of(self.estimator, self.scorer_),
            )
            try:
                yield study
            finally:
                study.close()

    def _default_tuner(
        self, space: Space, points: tuple[Configuration, ...] | None, seed: int
    ) -> Tuner:
        options: dict[str, Any] = {"trials": self.trials or self.n_iter or DRAWS, "seed": seed}
        if points is not None:
            shown_points = [each.params for each in points]
            source = GivenSource(points, {"search": joblib.hash(shown_points)})
            options |= {"trials": len(points), "sampler": source}
        if self.max_steps == 1:
            return Random(space, max_steps=1, **options)
        return ASHA(space, max_steps=self.max_steps, brackets="aggressive", **options)

    # ---------------------------------------------------------------------- after the study

    def _take(self, trials: list[Trial], trainer: type[FoldsTrainer], seed: int) -> None:
        """Make the table of the trials, and choose the best: of equal scores the first.

        A store may have a configuration from an earlier search, too: it stands there once.
        """
        first: dict[str, Trial] = {}
        for trial in trials:
            first.setdefault(repr(sorted(_params(trial).items())), trial)
        trials = [*first.values()]
        rows = [trial.metrics.get(trial.steps, {}) for trial in trials]
        keys = [f"split{fold}_test_score" for fold in range(self.n_splits_)]
        splits = {key: np.array([row.get(key, np.nan) for row in rows]) for key in keys}
        means = np.array([row.get(METRIC, np.nan) for row in rows])
        params = [_params(trial) for trial in trials]
        names = sorted({name for given in params for name in given})
        columns = {f"param_{name}": _column(params, name) for name in names}
        if not np.isfinite(means).any():
            failed = [trial for trial in trials if trial.error]
            if failed:
                self._train_again(trainer, failed[0], seed)
            reason = failed[0].error if failed else "every score is NaN or infinite"
            raise TrainerError(f"no configuration has a finite score; the first: {reason}")
        ranked = np.where(np.isfinite(means), means, -np.inf)
        self.cv_results_ = {
            **columns,
            "params": params,
            **splits,
            METRIC: means,
            "std_test_score": np.std(list(splits.values()), axis=0),
            "rank_test_score": np.array([1 + int((ranked > own).sum()) for own in ranked]),
            "n_steps": np.array([trial.steps for trial in trials]),
        }
        self.best_index_ = int(np.argmax(ranked))
        self.best_params_ = params[self.best_index_]
        self.best_score_ = float(means[self.best_index_])

    def _train_again(self, trainer: type[FoldsTrainer], trial: Trial, seed: int) -> None:
        """Train the first step of a failed trial, so that the estimator raises its own error."""
        values = {name: at(0) for name, at in trial.sequences.items()}
        client = self.client or _current_client()
        if client is None:  # the local cluster of the search has ended
            _train(trainer, values, seed)
        else:
            client.submit(_train_packed, pack(trainer), values, seed, pure=False).result()

    def _refit(self, trial: Trial, trainer: type[FoldsTrainer], seed: int) -> None:
        """Train the best configuration on all rows, with the values of each of its steps."""
        model = prepared(self.estimator, seed, trainer.way)
        x, y = trainer.arrays
        rows = (x,) if y is None else (x, y)
        for step in range(trial.steps):
            model.set_params(**{name: at(step) for name, at in trial.sequences.items()})
            train_once(model, rows, classes_of(model, y), trainer.way, trainer.iterations)
        self.best_estimator_ = model
        if hasattr(x, "columns") and hasattr(model, "feature_names_in_"):
            self.feature_names_in_ = model.feature_names_in_

    # ------------------------------------------------------------------------- when fitted

    @property
    def classes_(self) -> Any:
        """The classes of the best estimator."""
        return self._best("classes_").classes_

    @property
    def n_features_in_(self) -> int:
        """The number of columns that the best estimator was trained on."""
        return int(self._best("n_features_in_").n_features_in_)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: N803
        """Return the score of the best estimator by `scoring`."""
        check_is_fitted(self, "best_estimator_")
        return float(self.scorer_(self.best_estimator_, *((X,) if y is None else (X, y))))

    def _best(self, attribute: str) -> Any:
        if not hasattr(self, "best_estimator_"):
            raise AttributeError(f"{attribute} exists after fit with refit=True")
        return self.best_estimator_


def _delegated(name: str) -> Any:
    """Return a method that calls the method of the best estimator, if the estimator has it."""

    def has_method(search: DasktuneSearchCV) -> bool:
        getattr(getattr(search, "best_estimator_", search.estimator), name)
        return True

    def call(self: DasktuneSearchCV, X: Any) -> Any:  # noqa: N803
        check_is_fitted(self, "best_estimator_")
        return getattr(self.best_estimator_, name)(X)

    call.__name__ = name
    call.__doc__ = f"Return `{name}` of the best estimator."
    return available_if(has_method)(call)


for _name in (
    *("predict", "predict_proba", "predict_log_proba", "decision_function"),
    *("transform", "inverse_transform", "score_samples"),
):
    setattr(DasktuneSearchCV, _name, _delegated(_name))


def _train_packed(code: TrainerCode, values: Mapping[str, Value], seed: int) -> None:
    """Train one step on a worker."""
    _train(unpack(code), values, seed)


def _train(trainer: type[FoldsTrainer], values: Mapping[str, Value], seed: int) -> None:
    """Train one step."""
    own = trainer()
    own.seed = seed
    own.build(values)
    own.setup(values)
    own.train()


def _texts(y: Any) -> Any:
    """Return targets whose objects are all texts as an array of texts, which a state can hold."""
    array = None if y is None else np.asarray(y)
    if array is None or array.dtype != object or not all(isinstance(v, str) for v in array.flat):
        return y
    return array.astype(str)


def _params(trial: Trial) -> dict[str, object]:
    """Return the configuration: plain values, and sequences where a value changes."""
    return {
        name: getattr(sequence, "value", sequence) for name, sequence in trial.sequences.items()
    }


def _column(params: list[dict[str, object]], name: str) -> Any:
    column = np.ma.MaskedArray(np.empty(len(params), dtype=object), mask=True)
    for row, given in enumerate(params):
        if name in given:
            column[row] = given[name]
    return column


def _code_of(estimator: Any, scorer: Any) -> list[object]:
    """Return the classes and functions whose code decides the scores."""
    values = [estimator, *estimator.get_params().values()]
    classes = {type(value) for value in values if hasattr(value, "get_params")}
    function = scorer if inspect.isfunction(scorer) else getattr(scorer, "_score_func", None)
    named = sorted(classes, key=lambda kind: (kind.__module__, kind.__qualname__))
    things = [*named, *([function] if inspect.isfunction(function) else [])]
    # Installed packages are part of the environment: only the user's own code is followed.
    return [thing for thing in things if not is_installed_name(thing.__module__.partition(".")[0])]


def _current_client() -> Any:
    try:
        return default_client()
    except ValueError:
        return None
