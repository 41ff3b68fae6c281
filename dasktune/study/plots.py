"""Plots of a study by Optuna, with the names and the choices that suit it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dasktune.errors import ConfigurationError
from dasktune.results.results import StudyResults

NEEDS_PLOTLY = "plots need plotly: pip install 'dasktune[optuna]'"


class StudyPlots:
    """Plots of a study's trials, as figures of plotly.

    The curves, and the value of a study with several objectives, are those of its first metric.

    Parameters
    ----------
    results
        Reads the study.
    """

    def __init__(self, results: StudyResults) -> None:
        self._results = results

    def plot_history(self) -> Any:
        """Return the value of each trial by number, with the best so far.

        Raises
        ------
        ModuleNotFoundError
            If plotly is missing.
        """
        return self._of_values("plot_optimization_history")

    def plot_importances(self) -> Any:
        """Return the importance of each coordinate of the space.

        Raises
        ------
        ConfigurationError
            If fewer than 2 trials are complete.
        ModuleNotFoundError
            If plotly is missing.

        References
        ----------
        Watanabe et al., "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in
        Arbitrary Subspaces", IJCAI 2023.
        """
        from optuna.importance import PedAnovaImportanceEvaluator

        self._require_complete(2)
        evaluator = PedAnovaImportanceEvaluator()
        return self._of_values("plot_param_importances", evaluator=evaluator)

    def plot_slice(self, params: Iterable[str] | None = None) -> Any:
        """Return the value over each coordinate of the space.

        Parameters
        ----------
        params
            Names of coordinates, such as ``lr.init``; all if None.

        Raises
        ------
        ModuleNotFoundError
            If plotly is missing.
        """
        return self._of_values("plot_slice", params=_listed(params))

    def plot_parallel(self, params: Iterable[str] | None = None) -> Any:
        """Return each trial as a line through its coordinates and its value.

        Parameters
        ----------
        params
            Names of coordinates; all if None.

        Raises
        ------
        ModuleNotFoundError
            If plotly is missing.
        """
        return self._of_values("plot_parallel_coordinate", params=_listed(params))

    def plot_curves(self) -> Any:
        """Return the learning curve of each trial.

        Raises
        ------
        ModuleNotFoundError
            If plotly is missing.
        """
        return self._drawn("plot_intermediate_values")

    def _of_values(self, name: str, **options: Any) -> Any:
        """Return a plot of Optuna that takes one value of each trial."""
        metric = self._results.metric
        if len(self._results.objective.metrics) > 1:
            options["target"] = _first_value
        return self._drawn(name, target_name=metric, **options)

    def _drawn(self, name: str, **options: Any) -> Any:
        import optuna.visualization

        if not optuna.visualization.is_available():
            raise ModuleNotFoundError(NEEDS_PLOTLY, name="plotly")
        return getattr(optuna.visualization, name)(self._results.optuna_study(), **options)

    def _require_complete(self, least: int) -> None:
        states = [record.state.value for record in self._results.records.values()]
        if states.count("COMPLETE") < least:
            raise ConfigurationError(
                f"importances need at least {least} complete trials, got "
                f"{states.count('COMPLETE')} of {len(states)}"
            )


def _first_value(trial: Any) -> float:
    return float(trial.values[0])


def _listed(params: Iterable[str] | None) -> list[str] | None:
    return None if params is None else list(params)
