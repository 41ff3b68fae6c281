"""Studies whose fingerprints were taken by another rule: they are read, and not trained.

Whether the trainer is the one that made their states is unknown, so none of these is used.
"""

from __future__ import annotations

from dasktune.errors import ConfigurationError
from dasktune.storage.database.rows import StudyRow
from dasktune.trainer.fingerprint.fingerprint import RULE, is_outdated, rule_of


def other_rule(row: StudyRow) -> str:
    """Return in words that a study's fingerprint is of another rule; empty if it is not."""
    if not is_outdated(row.spec):
        return ""
    return (
        f"study {row.name!r} has a fingerprint of rule {rule_of(row.spec)}, and this version of "
        f"dasktune takes fingerprints by rule {RULE}, so whether the code is still the same is "
        "unknown"
    )


def refuse_other_rule(row: StudyRow) -> None:
    """Refuse to train in a study whose fingerprint is of another rule.

    Raises
    ------
    ConfigurationError
        If it is.
    """
    if problem := other_rule(row):
        raise ConfigurationError(f"{problem}: its results can only be read; train in a new study")
