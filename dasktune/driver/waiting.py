"""What a run waits for, in words; who wants a stage; and how much is left. Pure.

What is said here is read by people, in another terminal, when nothing seems to happen: each
sentence names what is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from dasktune.graph.plan import Node
from dasktune.graph.view import RunView

MOST_TRIALS = 5
"""Trials that are named where a stage is spoken of."""

MOST_NODES = 1000
"""Nodes below a stage's that are looked at for them."""

MOST_WORKERS = 3
"""Workers that are named in one sentence."""

SLOW_SECONDS = 30.0
"""How long a worker may take to begin a stage, or to store a state, before it is spoken of."""

ANSWER_SECONDS = 10.0
"""How long the store may take to answer before it is spoken of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Something that a run waits for.

    Parameters
    ----------
    kind
        ``workers``, ``resources``, ``pool``, ``worker``, ``store``, ``driver`` or ``stages``.
    text
        In words, without for how long.
    since
        When it began, on the clock that the run was looked at with; None if it is not known.
    """

    kind: str
    text: str
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen of a run beside its view.

    Parameters
    ----------
    now
        When it was looked at, in seconds on any clock.
    needs
        Resources that a stage occupies.
    present
        Resources of all workers of the cluster by address, usable or not.
    pool
        What a cluster that starts its workers itself says it waits for; None if there is none.
    deserted
        Since when there has been no worker that can be used; None if there is one.
    others
        How many stages other drivers train, by driver in words.
    unanswered
        Since when the store has been asked for a lease and has not answered; None if it has.
    disconnected
        Since when the scheduler has been gone; None if it is there.
    unbegun, unsaved
        Since when attempts were sent to their workers and have not begun, and ended and are
        not in the store, by attempt.
    """

    now: float
    needs: Mapping[str, float] = field(default_factory=dict)
    present: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pool: str | None = None
    deserted: float | None = None
    others: Mapping[str, int] = field(default_factory=dict)
    unanswered: float | None = None
    disconnected: float | None = None
    unbegun: Mapping[str, float] = field(default_factory=dict)
    unsaved: Mapping[str, float] = field(default_factory=dict)


def waits_of(view: RunView, sight: Sight) -> list[Wait]:
    """Return what a run waits for, the gravest first; nothing if it trains what it can."""
    if sight.disconnected is not None:
        text = "the scheduler is gone; it is waited for, and so are workers that come to it"
        return [Wait(kind="scheduler", text=text, since=sight.disconnected)]
    found = [*_for_workers(view, sight), *_for_store(sight), *_for_begin(view, sight)]
    for name, count in sorted(sight.others.items()):
        found.append(Wait(kind="driver", text=f"{name} trains {_counted(count, 'stage')}"))
    idle, total = view.idle_workers, len(view.slots)
    if idle and not view.is_idle:
        has = "has" if idle == 1 else "have"
        text = (
            f"{idle:,} of {_counted(total, 'worker')} {has} nothing to do: what is left goes on "
            "from stages that run now, or is decided when they report"
        )
        found.append(Wait(kind="stages", text=text))
    return found


def _for_workers(view: RunView, sight: Sight) -> Iterator[Wait]:
    """Yield why nothing can run, if there is no worker that can be used."""
    if view.slots:
        return
    if sight.present and sight.needs:
        stages = _counted(view.stages_waiting, "stage")
        shown = [f"{worker} has {dict(has)}" for worker, has in sight.present.items()]
        more = f" and {len(shown) - MOST_WORKERS:,} more" if len(shown) > MOST_WORKERS else ""
        text = (
            f"{_what_lacks(sight)}: {stages} to run, each needs {dict(sight.needs)}; "
            f"{', '.join(shown[:MOST_WORKERS])}{more}"
        )
        yield Wait(kind="resources", text=text, since=sight.deserted)
    elif sight.present:
        text = f"none of {_counted(len(sight.present), 'worker')} can be used yet"
        yield Wait(kind="workers", text=text, since=sight.deserted)
    elif sight.pool is None:
        yield Wait(kind="workers", text="there is no worker", since=sight.deserted)
    if sight.pool is not None:
        yield Wait(kind="pool", text=sight.pool, since=sight.deserted)


def _what_lacks(sight: Sight) -> str:
    """Say what no worker has of what a stage needs."""
    most = {name: max(has.get(name, 0) for has in sight.present.values()) for name in sight.needs}
    lacking = [name for name, amount in sight.needs.items() if most[name] < amount]
    if not lacking:
        return "no worker has all that a stage needs"
    enough = "enough " if all(most[name] for name in lacking) else "a "
    return f"no worker has {' and '.join(enough + name for name in lacking)}"


def _for_store(sight: Sight) -> Iterator[Wait]:
    """Yield what the store has been asked for, and has not done, for long."""
    since = sight.unanswered
    if since is not None and sight.now - since >= ANSWER_SECONDS:
        yield Wait(kind="store", text="the store has not answered", since=since)
    late = [at for at in sight.unsaved.values() if sight.now - at >= ANSWER_SECONDS]
    if late:
        stages = _counted(len(late), "stage")
        text = f"the store has not got the states of {stages} that ended"
        yield Wait(kind="store", text=text, since=min(late))


def _for_begin(view: RunView, sight: Sight) -> Iterator[Wait]:
    """Yield which workers do not begin what they were sent."""
    late = {
        attempt.worker: since
        for name, since in sight.unbegun.items()
        if sight.now - since >= SLOW_SECONDS and (attempt := view.attempts.get(name)) is not None
    }
    for worker, since in islice(late.items(), MOST_WORKERS):
        text = f"worker {worker} has not begun the stage that it was sent"
        yield Wait(kind="worker", text=text, since=since)
    if len(late) > MOST_WORKERS:
        text = f"{_counted(len(late) - MOST_WORKERS, 'worker')} more have not begun theirs"
        yield Wait(kind="worker", text=text)


def trials_of(node: Node) -> list[int]:
    """Return a few of the trials that want the steps of a node, or what comes after it."""
    wanting = (trial for below in islice(node.below(), MOST_NODES) for trial in below.requests)
    return sorted(dict.fromkeys(islice(wanting, MOST_TRIALS)))


def in_words(drivers: Iterable[str]) -> Counter[str]:
    """Return how often each holder of a lease is there, named as people know it.

    Examples
    --------
    >>> dict(in_words(["9f3b-4711-node7", "9f3b-4711-node7", "0a11"]))
    {'another driver (node7, process 4711)': 2, 'another driver': 1}
    """
    found: Counter[str] = Counter()
    for holder in drivers:
        _, dash, rest = holder.partition("-")
        pid, _, host = rest.partition("-")
        is_told = dash and pid.isdecimal() and host
        found[f"another driver ({host}, process {pid})" if is_told else "another driver"] += 1
    return found


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
