"""Which workers may run a stage: what its trials need against what the workers have.

Trials with unlike needs may share a stage. It runs on workers that have what all of them need. If
there is none, any worker will do that has what one of them needs: for that trial alone it could
have trained the same steps, and what it trains serves the others, too. So no step waits for a
worker that no trial alone would wait for, and none is trained twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dasktune.graph.plan import Node
from dasktune.needs import Needs, Offer

Wanted = frozenset[Needs]
"""The different needs of the trials that pass through a stage; empty where none has its own."""


AWAY_SECONDS = 120.0
"""Time for which the tuner is asked for fewer trials because of a stage that no worker fits.

Longer than a worker takes that is started again, so that no sampler draws many trials meanwhile
without the reports of those that wait.
"""


class Unplaced:
    """The ready stages that no worker fits, and since when."""

    def __init__(self) -> None:
        self._since: dict[Node, float] = {}

    def lasting(self, unplaced: Iterable[Node], now: float) -> int:
        """Return how many of the stages that no worker fits have waited for `AWAY_SECONDS`.

        Parameters
        ----------
        now
            Seconds, by the clock of the run.
        """
        self._since = {node: self._since.get(node, now) for node in unplaced}
        return sum(1 for since in self._since.values() if now - since >= AWAY_SECONDS)


class Matching:
    """The offers of workers, and which of them may run a stage."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        self._offers: dict[str, Offer] = {}
        self._usable: dict[str, Offer] = {}
        self._able: dict[Wanted, frozenset[str]] = {}

    @property
    def offers(self) -> Mapping[str, Offer]:
        """The offers of all workers, by worker, also of those that may run nothing."""
        return self._offers

    def join(self, worker: str, offer: Offer) -> bool:
        """Add a worker; return whether it has what all stages need."""
        self._offers[worker] = offer
        fits = self._needs.fits(offer)
        if fits:
            self._usable[worker] = offer
            self._able.clear()
        return fits

    def retire(self, worker: str) -> None:
        """Stop counting on a worker: it will be gone soon."""
        if self._usable.pop(worker, None) is not None:
            self._able.clear()

    def lose(self, worker: str) -> None:
        """Remove a worker that is gone."""
        self.retire(worker)
        self._offers.pop(worker, None)

    def clear(self) -> None:
        """Remove all workers."""
        for known in (self._offers, self._usable, self._able):
            known.clear()

    def may_run(self, worker: str, wanted: Wanted) -> bool:
        """Whether a worker may run a stage that trials with these needs share."""
        return not wanted or worker in self.able(wanted)

    def able(self, wanted: Wanted) -> frozenset[str]:
        """Return the workers that may run such a stage; see the top of this module."""
        able = self._able.get(wanted)
        if able is None:
            offers = self._usable.items()
            fit_all = (w for w, offer in offers if all(needs.fits(offer) for needs in wanted))
            fit_one = (w for w, offer in offers if any(needs.fits(offer) for needs in wanted))
            able = self._able[wanted] = frozenset(fit_all) or frozenset(fit_one)
        return able

    def claims(self, worker: str, wanted: Wanted) -> dict[str, float]:
        """Return the amounts that such a stage uses up: the largest that one of them needs."""
        offer = self._offers.get(worker, Offer())
        claims = self._needs.claims(offer)
        for needs in wanted:
            for name, amount in needs.claims(offer).items():
                claims[name] = max(amount, claims.get(name, 0.0))
        return claims
