"""Checks of all that a study needs before it runs for days: cluster, store, database.

The module is itself the function: ``dasktune.doctor(study, client=client)``.
"""

from __future__ import annotations

import sys
from types import ModuleType

from dasktune.doctor.diagnosis import doctor, examine
from dasktune.doctor.findings import Diagnosis, Finding, Status

__all__ = ["Diagnosis", "Finding", "Status", "doctor", "examine"]


class _CallableModule(ModuleType):
    """Lets ``dasktune.doctor`` be both the package and the function users call."""

    __call__ = staticmethod(doctor)


sys.modules[__name__].__class__ = _CallableModule
