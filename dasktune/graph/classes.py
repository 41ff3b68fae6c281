"""Compute classes in words."""

from __future__ import annotations

from collections.abc import Mapping

from dasktune._words import counted

MOST_CLASSES = 8
"""Classes that one sentence names."""


def classes_text(classes: Mapping[str, int]) -> str:
    """Return how many workers there are of each compute class, the largest class first.

    Parameters
    ----------
    classes
        Number of workers by name of the class; a name may be empty.

    Examples
    --------
    >>> classes_text({"EPYC 7763, 8 cores": 1, "H100 80 GB": 2})
    '3 workers: 2 x H100 80 GB; 1 x EPYC 7763, 8 cores'
    >>> classes_text({"": 1})
    '1 worker'
    """
    total = sum(classes.values())
    head = counted(total, "worker")
    named = sorted((-count, name) for name, count in classes.items() if name and count > 0)
    texts = [f"{-count:,} x {name}" for count, name in named[:MOST_CLASSES]]
    if len(named) > MOST_CLASSES:
        texts.append(f"{len(named) - MOST_CLASSES:,} classes more")
    return f"{head}: {'; '.join(texts)}" if texts else head
