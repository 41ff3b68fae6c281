"""Predictors by name, and the default one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dasktune.algos.curves.curve import Curve, Prediction, Predictor
from dasktune.algos.curves.mcmc.ensemble import CurveEnsemble
from dasktune.algos.curves.mixture.mixture import Mixture
from dasktune.algos.curves.network.prior_fitted import PriorFitted
from dasktune.algos.curves.persistence import Persistence
from dasktune.errors import ConfigurationError
from dasktune.sequences.values import Arguments
from dasktune.types import Step

PREDICTORS: Final[Mapping[str, Callable[[], Predictor]]] = {
    kind.__name__: kind for kind in (CurveEnsemble, Mixture, Persistence, PriorFitted)
}
"""The predictors that have a name; each is made with its default arguments."""

BEFORE: Final = "PriorFitted"
"""The name of the default predictor until version 0.1.0."""


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


def follower(predictor: Predictor, before: object) -> Follower | None:
    """Return the predictor that goes on under the identity of the one of before, or None.

    One may where the weights of the network differ alone, and the default predictor where the
    default of before predicted. What was predicted is in the event log: all is decided again as
    it was.
    """
    identity = predictor.identity()
    if not isinstance(before, Mapping) or identity == before:
        return None
    pair = identity.get("predictor"), before.get("predictor")
    names = {(BEFORE, BEFORE), (Mixture.__name__, BEFORE), (Mixture.__name__, Mixture.__name__)}
    return Follower(predictor, before) if pair in names else None


@dataclass(frozen=True, slots=True)
class Follower:
    """A predictor in a study that another began, under that one's identity."""

    predictor: Predictor
    before: Mapping[str, object]

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        """Return the prediction."""
        return self.predictor.predict(curve, steps, seed=seed)

    def identity(self) -> dict[str, object]:
        """Return the identity of the predictor of before."""
        return dict(self.before)
