"""Reasons why a run waits, in words. Pure.

People read them in another terminal when nothing seems to happen: each sentence names what is
missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from dasktune._cluster.pools import PoolStatus
from dasktune._cluster.workers import paused_text
from dasktune._driver.run_status import Wait
from dasktune._engine.engine import Engine
from dasktune._engine.timeouts import LATE_SECONDS, SLOW_STORE_SECONDS
from dasktune._words import counted
from dasktune.graph.matching import Wanted
from dasktune.graph.plan import Node, on_class
from dasktune.graph.policies.broken_workers import Aside
from dasktune.graph.view import RunView
from dasktune.logs import trials_text
from dasktune.needs import NO_NEEDS, Needs, Offer, any_of, unmet_text

MOST_TRIALS = 5
"""Trials that a sentence about a stage names."""

MOST_NODES = 1000
"""Nodes below a stage's that are searched for them."""

MOST_LETTERS = 200
"""Letters of an error that one sentence shows."""

MOST_UNMET = 5
"""Needs that no worker meets of which each has a sentence."""

MOST_WORKERS = 3
"""Workers that one sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Facts about a run that its engine does not know."""

    now: float
    """When they were seen, in seconds on any clock."""
    needs: Needs = NO_NEEDS
    """The needs of every stage."""
    present: Mapping[str, Offer] = field(default_factory=dict)
    """What each worker of the cluster has by address, usable or not."""
    paused: Collection[str] = ()
    """Those of them that Dask has paused, while none is usable."""
    pool: str | None = None
    """What a cluster that starts its workers itself waits for, in words; None if nothing."""
    pools: tuple[PoolStatus, ...] = ()
    """The pools of such a cluster."""
    deserted: float | None = None
    """Since when there has been no usable worker; None if there is one."""
    others: Mapping[str, int] = field(default_factory=dict)
    """How many stages other drivers train, by driver in words."""
    unanswered: float | None = None
    """Since when the store has not answered a lease request; None if there is none."""
    disconnected: float | None = None
    """Since when the scheduler has been gone; None if it is there."""
    unbegun: Mapping[str, float] = field(default_factory=dict)
    unsaved: Mapping[str, float] = field(default_factory=dict)
    """Since when attempts were sent to their workers and have not begun, and since when they have
    ended and are not in the store; by attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Since when attempts have waited to begin, or to be in the store."""

    unbegun: Mapping[str, float] = field(default_factory=dict)
    """Time at which the first attempt of a worker's queue was seen not to have begun."""
    unsaved: Mapping[str, float] = field(default_factory=dict)
    """Time at which an attempt was seen to have ended, and not to be in the store."""

    def at(self, view: RunView, now: float) -> Delays:
        """Return the delays that there are now; what waits still keeps its time."""
        first = {slot.queue[0].id for slot in view.slots.values() if slot.queue}
        attempts = view.attempts.values()
        waiting = [each.id for each in attempts if each.id in first and not each.has_begun]
        ended = [each.id for each in attempts if each.ended and not each.taken]
        return Delays(
            unbegun={name: self.unbegun.get(name, now) for name in waiting},
            unsaved={name: self.unsaved.get(name, now) for name in ended},
        )


def waits_of(view: RunView, around: Surroundings) -> list[Wait]:
    """Return the reasons why a run waits, the gravest first; none if it trains what it can."""
    if around.disconnected is not None:
        text = "the scheduler is gone; the run waits for it, and for workers that come to it"
        return [Wait(kind="scheduler", text=text, since=around.disconnected)]
    waits = [*_for_workers(view, around), *_for_needs(view), *_for_share(view)]
    waits += [
        *_of_paused(view.paused),
        *_for_aside(view),
        *_for_store(around),
        *_for_begin(view, around),
    ]
    for name, count in sorted(around.others.items()):
        waits.append(Wait(kind="driver", text=f"{name} trains {counted(count, 'stage')}"))
    waits += _for_gangs(view)
    idle, total = view.idle_workers, len(view.slots)
    if idle and not view.is_idle:
        has = "has" if idle == 1 else "have"
        reason = (
            "the stages that can start need other workers"
            if view.count_ready(1)
            else "all other stages start from stages that run now, or the tuner decides on them "
            "when these report"
        )
        text = f"{idle:,} of {counted(total, 'worker')} {has} nothing to do: {reason}"
        waits.append(Wait(kind="stages", text=text))
    return waits


def _for_workers(view: RunView, around: Surroundings) -> Iterator[Wait]:
    """Yield why stages wait while there is no usable worker."""
    if view.slots:
        yield from _for_pools(around.pools)
        return
    offers = around.present.values()
    if offers and not any(_may_fit(around.needs, offer) for offer in offers):
        unmet, waiting = unmet_text(around.needs, offers), view.stages_waiting
        # Before the tuner begins there are no stages yet, but needs of all that will come.
        text = f"{counted(waiting, 'stage')} to run: {unmet}" if waiting else unmet
        yield Wait(kind="resources", text=text, since=around.deserted)
    elif around.paused:
        yield from _of_paused(around.paused)
    elif around.present:
        text = f"none of {counted(len(around.present), 'worker')} can be used yet"
        yield Wait(kind="workers", text=text, since=around.deserted)
    elif around.pool is None:
        yield Wait(kind="workers", text="there is no worker", since=around.deserted)
    if around.pool is not None:
        yield Wait(kind="pool", text=around.pool, since=around.deserted)


def _may_fit(needs: Needs, offer: Offer) -> bool:
    """Whether a worker fits needs; before its greeting it has no class, and may have any tags."""
    return needs.fits(offer) or (not offer.kind and needs.may_fit(offer))


def _for_pools(pools: Iterable[PoolStatus]) -> Iterator[Wait]:
    """Yield which pools have no worker although stages are for them."""
    for pool in pools:
        if pool.wanted and not pool.workers:
            stages = counted(pool.wanted, "stage")
            yield Wait(kind="pool", text=f"{stages} for {pool.name}: {pool.reason}")


def _for_gangs(view: RunView) -> Iterator[Wait]:
    """Yield which stages wait until workers are idle that train them together."""
    for node in islice(view.gathering, MOST_UNMET):
        trials = trials_text(sorted(trials_of(node))[:MOST_TRIALS])
        count = counted(view.workers_of(node), "worker")
        text = f"1 stage of {trials} to run: it waits until {count} of one class are idle"
        yield Wait(kind="stages", text=text)
    if any(view.withheld):
        return  # it may take those of other studies in its turn
    for node, most in islice(view.short_of_workers, MOST_UNMET):
        trials = trials_text(sorted(trials_of(node))[:MOST_TRIALS])
        text = (
            f"1 stage of {trials} to run: {view.workers_of(node)} workers of one class must train "
            f"it together, since its state key names the number of devices; there "
            f"{'is' if most == 1 else 'are'} {most}"
        )
        yield Wait(kind="resources", text=text)


def _for_share(view: RunView) -> Iterator[Wait]:
    """Yield how many workers other studies have."""
    count, total = sum(1 for _ in view.withheld), len(view.slots)
    if count:
        text = f"other studies have {count:,} of {counted(total, 'worker')}: each has its share"
        yield Wait(kind="share", text=text)


def _for_needs(view: RunView) -> Iterator[Wait]:
    """Yield the needs of single trials that no worker meets, with the trials that wait."""
    waiting: dict[Wanted, list[Node]] = {}
    for node in view.unplaced if view.slots else ():
        waiting.setdefault(node.needs, []).append(node)
    for wanted, nodes in islice(waiting.items(), MOST_UNMET):
        trials = sorted({trial for node in nodes[:MOST_TRIALS] for trial in trials_of(node)})
        unmet = unmet_text(any_of(wanted), view.offers.values())
        text = f"{counted(len(nodes), 'stage')} of {trials_text(trials)} to run: {unmet}"
        yield Wait(kind="resources", text=text)
    if len(waiting) > MOST_UNMET:
        text = f"{len(waiting) - MOST_UNMET:,} more kinds of stages wait for workers"
        yield Wait(kind="resources", text=text)


def unmet_needs(engine: Engine, offers: Collection[Offer]) -> dict[Needs, list[int]]:
    """Return the needs that no worker meets, of unfinished trials, with the trials' numbers."""
    unmet: dict[Needs, list[int]] = {}
    for number, path in engine.view.plan.paths.items():
        trial = engine.trials.get(number)
        if trial is not None and trial.state.is_finished:
            continue
        # A trial that has begun on another numeric class is only missed if it is to go on now.
        numerics = path.leaf.numerics if number in engine.view.wanted else None
        if path.needs or numerics is not None:
            for needs in on_class(path.needs, numerics):
                if not any(map(needs.fits, offers)):
                    unmet.setdefault(needs, []).append(number)
    return unmet


def unmet_needs_text(unmet: Mapping[Needs, list[int]], offers: Collection[Offer]) -> str:
    """Return a few of the needs that no worker meets in words, one in a line."""
    lines = [
        f"{trials_text(trials[:MOST_TRIALS])}: {unmet_text(needs, offers)}"
        for needs, trials in islice(unmet.items(), MOST_UNMET)
    ]
    return "\n".join(lines)


def _of_paused(paused: Iterable[str]) -> Iterator[Wait]:
    """Yield workers that Dask has paused."""
    workers = list(paused)
    for worker in workers[:MOST_WORKERS]:
        yield Wait(kind="worker", text=paused_text(worker))
    if len(workers) > MOST_WORKERS:
        text = f"{counted(len(workers) - MOST_WORKERS, 'worker')} more are paused"
        yield Wait(kind="worker", text=text)


def _for_aside(view: RunView) -> Iterator[Wait]:
    """Yield the workers that get no stages for a while, because stage after stage raised there."""
    workers = list(view.aside)
    for aside in workers[:MOST_WORKERS]:
        yield Wait(kind="aside", text=f"{aside_text(aside)}; it is tried again later")
    if len(workers) > MOST_WORKERS:
        text = f"{counted(len(workers) - MOST_WORKERS, 'worker')} more put aside"
        yield Wait(kind="aside", text=text)


def aside_text(aside: Aside) -> str:
    """Return in words why a worker is put aside."""
    stages = counted(aside.raised, "stage")
    reason = (aside.message.splitlines() or [""])[0][:MOST_LETTERS]
    return f"worker {aside.worker} is put aside: {stages} in a row raised there, last {reason}"


def _for_store(around: Surroundings) -> Iterator[Wait]:
    """Yield what the store has not answered or saved for long."""
    since = around.unanswered
    if since is not None and around.now - since >= SLOW_STORE_SECONDS:
        yield Wait(kind="store", text="the store has not answered", since=since)
    late = [at for at in around.unsaved.values() if around.now - at >= SLOW_STORE_SECONDS]
    if late:
        stages = counted(len(late), "stage")
        text = f"the store has not got the states of {stages} that ended"
        yield Wait(kind="store", text=text, since=min(late))


def _for_begin(view: RunView, around: Surroundings) -> Iterator[Wait]:
    """Yield the workers that have not begun a stage for long."""
    late = {
        attempt.worker: since
        for name, since in around.unbegun.items()
        if around.now - since >= LATE_SECONDS and (attempt := view.attempts.get(name)) is not None
    }
    for worker, since in islice(late.items(), MOST_WORKERS):
        text = f"worker {worker} has not begun the stage that it was sent"
        yield Wait(kind="worker", text=text, since=since)
    if len(late) > MOST_WORKERS:
        text = f"{counted(len(late) - MOST_WORKERS, 'worker')} more have not begun theirs"
        yield Wait(kind="worker", text=text)


def trials_of(node: Node) -> list[int]:
    """Return a few of the trials that want the steps of a node, or of nodes below it."""
    wanting = (trial for below in islice(node.below(), MOST_NODES) for trial in below.requests)
    return sorted(dict.fromkeys(islice(wanting, MOST_TRIALS)))


def in_words(drivers: Iterable[str]) -> Counter[str]:
    """Return how often each holder of a lease is there, named as people know it.

    Examples
    --------
    >>> dict(in_words(["9f3b-4711-node7", "9f3b-4711-node7", "0a11"]))
    {'another driver (node7, process 4711)': 2, 'another driver': 1}
    """
    names: Counter[str] = Counter()
    for holder in drivers:
        _, dash, rest = holder.partition("-")
        pid, _, host = rest.partition("-")
        is_named = dash and pid.isdecimal() and host
        names[f"another driver ({host}, process {pid})" if is_named else "another driver"] += 1
    return names
