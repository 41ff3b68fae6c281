"""Bugs to plant in the code by hand: each is one that somebody might write."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A bug that replaces code, wherever it stands in one file.

    Attributes
    ----------
    name
        What the bug does.
    path
        File, from the root of the repository.
    before, after
        The code that is replaced, and what replaces it.
    """

    name: str
    path: str
    before: str
    after: str

    operator: str = "planted"
    part: str = "planted"

    def apply(self, source: str) -> str:
        """Return the source of the file with the bug.

        Raises
        ------
        ValueError
            If the code that it replaces is not there any more.
        """
        if self.before not in source:
            raise ValueError(f"{self.path} must contain the code of {self.name!r}: {self.before}")
        return source.replace(self.before, self.after)

    def lines(self, source: str) -> list[int]:
        """Return the lines in which the code begins that is replaced."""
        starts = [match.start() for match in re.finditer(re.escape(self.before), source)]
        return [source.count("\n", 0, start) + 1 for start in starts]


PLANTED = (
    Planted(
        name="a split gives the metrics at its step to the wrong part",
        path="dasktune/graph/known.py",
        before="Measured(report for report in reports if report[0] <= step)",
        after="Measured(report for report in reports if report[0] < step)",
    ),
    Planted(
        name="ASHA promotes by two rungs",
        path="dasktune/algos/asha.py",
        before="return [self._promote(best, place, level + 1)]",
        after="return [self._promote(best, place, min(level + 2, len(bracket.steps) - 1))]",
    ),
    Planted(
        name="an attempt whose first state is gone keeps its slot",
        path="dasktune/graph/placement.py",
        before="if slot is not None and attempt in slot.queue:",
        after="if slot is not None and attempt in slot.queue and not attempt.uprooted:",
    ),
    Planted(
        name="the state that a stage starts from may be evicted",
        path="dasktune/_driver/retention/evict.py",
        before="yield from self._view.needed_states()",
        after="yield from ()",
    ),
    Planted(
        name="the held lease of another driver is ignored",
        path="dasktune/_driver/other_leases.py",
        before="return in_the_way(lease, chain(running, self._ended.values()), heeded)",
        after="return in_the_way(lease, self._ended.values(), heeded)",
    ),
    Planted(
        name="a lease is granted before the other driver lists all of its own",
        path="dasktune/_driver/leases.py",
        before="if self._others.may_answer(now) or is_away:",
        after="if True:",
    ),
    Planted(
        name="the digest of a state is not checked",
        path="dasktune/storage/checkpoints.py",
        before="if before + text + after != attributes or digest_of(text) != digest:",
        after="if before + text + after != attributes:",
    ),
    Planted(
        name="a commit is removed whatever it contains",
        path="dasktune/storage/files/local.py",
        before="is_same = seen is not None and seen == content",
        after="is_same = seen is not None",
    ),
    Planted(
        name="uploads under way are removed as orphans",
        path="dasktune/_driver/retention/listing.py",
        before="if _has_no_commit(upload, attempt, makers) and 0 < last < store_now - grace",
        after="if _has_no_commit(upload, attempt, makers) and last",
    ),
    Planted(
        name="the loser of a commit continues from its own state",
        path="dasktune/_worker/writer.py",
        before="commit.attempt != attempt and commit.digest != write.snapshot.digest",
        after="False",
    ),
    Planted(
        name="a warm trainer is used for any state",
        path="dasktune/_worker/trainers.py",
        before="(self.key, self.devices, self.lenders) != (key, devices, lenders)",
        after="self.devices != devices",
    ),
    Planted(
        name="a commit appears before it is whole",
        path="dasktune/storage/files/local.py",
        before="            os.link(aside, target)\n",
        after='            with target.open("xb") as file:\n                file.write(content)\n',
    ),
    Planted(
        name="nothing is synced to the disk",
        path="dasktune/storage/files/local.py",
        before="os.fsync(",
        after="os.stat(",
    ),
    Planted(
        name="orders are carried out before their decisions are durable",
        path="dasktune/_driver/orders.py",
        before="if self._recorder.holds_decisions or now - self._flushed_at > self._flush_seconds:",
        after="if now - self._flushed_at > self._flush_seconds:",
    ),
    Planted(
        name="an attempt counts one step more as saved than it was",
        path="dasktune/graph/dispatch.py",
        before="attempt.saved = max(attempt.saved, event.step)",
        after="attempt.saved = max(attempt.saved, event.step + 1)",
    ),
)
