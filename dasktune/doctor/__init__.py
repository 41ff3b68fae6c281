"""Checks of all that a study needs before it runs for days: cluster, store, database.

The module is itself the function: ``dasktune.doctor(study, client=client)``.
"""

from __future__ import annotations

from dasktune._lazy import make_callable
from dasktune.doctor.diagnosis import doctor, examine
from dasktune.doctor.findings import Diagnosis, Finding, Status

__all__ = ["Diagnosis", "Finding", "Status", "doctor", "examine"]

make_callable(__name__, doctor)
