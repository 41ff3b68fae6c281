"""Messages of the leases' thread to the driver's loop: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dasktune.storage.checkpoints import Commit
from dasktune.storage.leases import Lease, SaveRequest
from dasktune.types import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAnswered:
    """The answer to `Leasing.ask`: `other` is the lease that stands in the way, if any."""

    attempt: str
    other: Lease | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseChanged:
    """The lease of another driver that is watched has changed, or has ended."""

    attempt: str
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsFound:
    """The answer to `Leasing.look_up`: the commits that are in the store, by step."""

    attempt: str
    commits: Mapping[Step, Commit]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavesRequested:
    """Other drivers ask for states."""

    requests: tuple[SaveRequest, ...]


LeaseMessage = LeaseAnswered | LeaseChanged | CommitsFound | SavesRequested
"""All that the leases' thread says to the driver's loop."""
