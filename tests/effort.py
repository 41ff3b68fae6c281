"""The number of examples that a test tries: fewer in the quick run of the fast tier.

`make test-fast` loads the Hypothesis profile ``fast``; every other run tries all examples.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

SHARE = 4
"""A quick run tries one example of so many."""

FAST = "fast"


def register_profiles() -> None:
    """Register the two profiles, and load the one that tries all examples.

    Nothing may rest on how long an example, or drawing one, takes: a machine may stand still.
    """
    settings.register_profile(
        "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("untimed")
    most = settings.default.max_examples
    settings.register_profile(FAST, settings.default, max_examples=most // SHARE)


def is_quick() -> bool:
    """Return whether this is a quick run; known once pytest has read its arguments."""
    return settings.get_current_profile_name() == FAST


def examples(count: int) -> int:
    """Return how many of `count` examples this run tries."""
    return max(count // SHARE, 1) if is_quick() else count
