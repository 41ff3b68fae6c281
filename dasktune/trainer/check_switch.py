"""The switch that turns the resume check and the audits off, for this process and its children.

Test suites and benchmarks train thousands of small trainers that they know. An environment
variable reaches all of their drivers, whoever starts them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dasktune.errors import ConfigurationError

SWITCH = "DASKTUNE_CHECK"
"""The environment variable: ``on``, which is the default, or ``off``."""


def checks_are_on(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether studies check and audit their trainers; see `is_on`."""
    return is_on(SWITCH, environment)


def is_on(switch: str, environment: Mapping[str, str] | None = None) -> bool:
    """Return whether a switch is on, as it is without its variable.

    Parameters
    ----------
    environment
        Environment variables by name; those of this process if None.

    Raises
    ------
    ConfigurationError
        If the variable is neither ``on`` nor ``off``.

    Examples
    --------
    >>> is_on(SWITCH, {}), is_on(SWITCH, {"DASKTUNE_CHECK": "off"})
    (True, False)
    """
    value = (os.environ if environment is None else environment).get(switch, "")
    if value not in ("", "on", "off"):
        raise ConfigurationError(f"{switch} must be on or off, got {value!r}")
    return value != "off"
