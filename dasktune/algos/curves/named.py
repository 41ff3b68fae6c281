"""Predictors by name, and the default one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dasktune.algos.curves.curve import Predictor
from dasktune.algos.curves.mcmc.ensemble import CurveEnsemble
from dasktune.algos.curves.mixture.mixture import Mixture
from dasktune.algos.curves.network.prior_fitted import PriorFitted
from dasktune.algos.curves.persistence import Persistence
from dasktune.errors import ConfigurationError
from dasktune.sequences.values import Arguments

PREDICTORS: Final[Mapping[str, Callable[[], Predictor]]] = {
    kind.__name__: kind for kind in (CurveEnsemble, Mixture, Persistence, PriorFitted)
}
"""The predictors that have a name; each is made with its default arguments."""


def predictor_of(given: Predictor | str | None) -> Predictor:
    """Return a predictor.

    Parameters
    ----------
    given
        One of `PREDICTORS` by name, or a predictor; None for `Mixture`.

    Raises
    ------
    ConfigurationError
        If it is anything else, or needs a package that is not installed.

    Examples
    --------
    >>> predictor_of("Persistence").identity()
    {'predictor': 'Persistence'}
    """
    match given:
        case None:
            return Mixture()
        case str() if given in PREDICTORS:
            return PREDICTORS[given]()
        case Predictor() if not isinstance(given, type):
            return given
        case _:
            raise ConfigurationError(
                f"predictor must be one of {', '.join(PREDICTORS)}, or an instance that has "
                f"predict and identity, got {given!r}"
            )


def checked_predictor(check: Arguments, given: Predictor | str | None) -> Predictor:
    """Return the predictor of a tuner's argument; `check` keeps the problems."""
    try:
        return predictor_of(given)
    except ConfigurationError as error:
        for problem in error.problems:
            check.add(problem)
        return Mixture()
