"""Metric values as strict JSON that gives back the same floats."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache

from dasktune.types import Metrics


def metrics_to_json(metrics: Metrics) -> dict[str, float | str]:
    """Return metrics as JSON values; NaN and infinities become strings.

    Examples
    --------
    >>> metrics_to_json({"loss": float("nan"), "accuracy": 0.1})
    {'loss': 'nan', 'accuracy': 0.1}
    """
    return {
        name: float(value) if math.isfinite(value) else str(float(value))
        for name, value in metrics.items()
    }


def metrics_to_text(metrics: Metrics) -> str:
    """Return `metrics_to_json` as text; faster than `json`, for it runs at every report.

    Examples
    --------
    >>> metrics_to_text({"loss": float("nan"), "accuracy": 0.1})
    '{"loss":"nan","accuracy":0.1}'
    """
    parts = []
    for name, value in metrics.items():
        number = repr(float(value))
        parts.append(_quoted(name) + (number if math.isfinite(value) else f'"{number}"'))
    return "{" + ",".join(parts) + "}"


@lru_cache(maxsize=1000)
def _quoted(name: str) -> str:
    return json.dumps(name) + ":"


def metrics_from_json(document: Mapping[str, float | str]) -> dict[str, float]:
    """Return the metrics that `metrics_to_json` wrote.

    Examples
    --------
    >>> metrics_from_json({"loss": "-inf", "accuracy": 0.1})
    {'loss': -inf, 'accuracy': 0.1}
    """
    return {str(name): float(value) for name, value in document.items()}
