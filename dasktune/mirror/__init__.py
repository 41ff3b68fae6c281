"""A study as Optuna has it: in memory for its plots, or mirrored into one of its storages.

Importing this loads no Optuna: what needs it is imported when it is used.
"""

from __future__ import annotations

from dasktune.mirror.mirroring import Mirror
from dasktune.mirror.snapshot import Seen, Span, optuna_study, spans_of

__all__ = ["Mirror", "Seen", "Span", "optuna_study", "spans_of"]
