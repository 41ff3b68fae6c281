"""The arguments of `Study.optimize`, checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dasktune._cluster.pools import scaling_problems, worker_bounds
from dasktune._driver.transfer import TRANSFERS
from dasktune._engine.limits import Limits
from dasktune._engine.timeouts import Timeouts
from dasktune._numbers import make_plain
from dasktune._study.callbacks import Callback
from dasktune._study.from_optuna import tuner_problem
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, refuse, shown, unknown
from dasktune.graph.audits import audit_problems
from dasktune.trainer.check_switch import checks_are_on

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """A tuner and how it is run, as `Study.optimize` describes it; `audit` is the study's or its.

    Raises
    ------
    ConfigurationError
        If one of them is invalid: all problems at once.
    """

    tuner: Tuner
    client: Client | None
    workers: int | str | None
    gpus_per_worker: float | None
    trials_per_gpu: int
    limits: Limits
    callbacks: tuple[Callback, ...]
    progress: bool | None
    last_line: bool
    check: bool
    allow_failed_check: bool
    audit: float
    timeouts: Timeouts
    transfer: str | None

    def __post_init__(self) -> None:
        make_plain(self, "workers", "audit")
        refuse(self._problems())

    @property
    def checks(self) -> bool:
        """Whether a trainer without a verdict is checked before its trials are merged."""
        return self.check and checks_are_on()

    @property
    def audited_share(self) -> float:
        """Share of the resumed stages that are audited."""
        return self.audit if self.checks and not self.allow_failed_check else 0.0

    def _problems(self) -> Iterator[str]:
        if (problem := tuner_problem(self.tuner)) is not None:
            yield problem
        if self.client is not None and not hasattr(self.client, "submit"):
            yield f"client must be a dask.distributed.Client, got {self.client!r}"
        elif self.client is not None and self.workers is not None:
            yield from scaling_problems(self.client)
        if self.workers is not None and worker_bounds(self.workers) is None:
            given = shown(self.workers)
            yield f"workers must be a number >= 1 or a range such as '0-16', got {given}"
        if not isinstance(self.limits, Limits):
            yield f"limits must be dasktune.Limits, got {self.limits!r}"
        if not isinstance(self.timeouts, Timeouts):
            yield f"timeouts must be dasktune.Timeouts, got {self.timeouts!r}"
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                yield f"a callback must be a dasktune.Callback, got {callback!r}"
        yield from audit_problems(self.audit)
        if self.transfer is not None and self.transfer not in TRANSFERS:
            yield unknown("transfer", str(self.transfer), TRANSFERS)


def listed_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """Return the callbacks of an argument that must be a list of them."""
    if not isinstance(callbacks, Iterable):
        raise ConfigurationError(
            f"callbacks must be a list of dasktune.Callback, got {callbacks!r}"
        )
    return tuple(callbacks)
