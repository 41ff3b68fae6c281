"""A study as an Optuna study: in memory for Optuna's plots, or mirrored into its storages.

This module imports Optuna only when a function needs it.
"""

from __future__ import annotations

from dasktune.mirror.mirroring import Mirror
from dasktune.mirror.snapshot import Seen, Span, optuna_study, spans_of

__all__ = ["Mirror", "Seen", "Span", "optuna_study", "spans_of"]
