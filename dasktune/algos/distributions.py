"""What Optuna calls the domains of coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from dasktune.errors import InternalError
from dasktune.space import Float, Int


def distribution_of(document: Mapping[str, Any]) -> BaseDistribution:
    """Return the distribution that a domain's JSON document means.

    Examples
    --------
    >>> distribution_of({"domain": "Int", "low": 1, "high": 8, "log": True, "step": 1})
    IntDistribution(high=8, log=True, low=1, step=1)
    """
    arguments = {name: value for name, value in document.items() if name != "domain"}
    match document["domain"]:
        case "Float":
            return FloatDistribution(**{**arguments, "high": _last(Float(**arguments))})
        case "Int":
            return IntDistribution(**{**arguments, "high": _last(Int(**arguments))})
        case "Choice":
            return CategoricalDistribution(arguments["options"])
        case kind:
            raise InternalError(f"a coordinate has a domain of unknown kind {kind!r}")


def _last(domain: Float | Int) -> Any:
    """Return the largest point: Optuna warns of an upper bound that no step arrives at."""
    if domain.step is None or domain.size is None:
        return domain.high
    last = Fraction(repr(domain.low)) + (domain.size - 1) * Fraction(repr(domain.step))
    return type(domain.high)(last)
