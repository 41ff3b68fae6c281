"""The order of eviction: steps trained again in a small store, on a virtual clock.

Every shape of study runs with room for a few of its states. The order by value runs next to
rivals: least recently used, and cheapest to train again. Then each constant behind the values is
neutralised in turn. For each seed all variants run, one after the other. Workers are simulated; the
evictor, the values of states and the store are the real ones.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, median
from typing import Any
from uuid import uuid4
from zlib import crc32

from figures import Figure, main
from spaces import STEPS, all_different, hippo_144, hippo_448, three_levels

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.driver.retention import evict, value
from dasktune.driver.retention.evict import Evictor
from dasktune.driver.retention.listing import COMMIT_NBYTES
from dasktune.engine.engine import Engine
from dasktune.engine.limits import Limits
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Event, RunStage, Saved
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node
from dasktune.graph.save_policy import SavePolicy
from dasktune.simulate.jobs import Mishaps, Worker
from dasktune.simulate.runner import Conditions, SimulatedRunner
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.database.database import Database
from dasktune.storage.retention import Keep, Retention, State, evictions
from dasktune.traces.timing import EvenPace
from dasktune.types import Objective, Step

WORKERS = 4
SEEDS = 8
ROOMS = (20, 40)
"""How many states the store has room for: two for each worker and twelve more, and twice that."""

LOSS = Objective.single("value", "minimize")
STATE = encode({"weights": 1.0})

# ----------------------------------------------------------------------------- the shapes

Shape = Callable[[int, int], Tuner]
"""Makes a tuner from the steps of its trials and a seed."""


def _grid(steps: int, seed: int) -> Tuner:
    return dt.algos.Grid(hippo_144(), max_steps=steps)


def _bushy(steps: int, seed: int) -> Tuner:
    return dt.algos.Random(three_levels(4), trials=120, max_steps=steps, seed=seed)


def _sha(steps: int, seed: int) -> Tuner:
    first = max(1, steps // 16)
    space = hippo_448()
    return dt.algos.SHA(space, trials=160, max_steps=steps, min_steps=first, seed=seed)


def _asha(steps: int, seed: int) -> Tuner:
    first = max(1, steps // 16)
    space = hippo_448()
    return dt.algos.ASHA(
        space, trials=160, max_steps=steps, min_steps=first, brackets=[0], seed=seed
    )


def _asha_alone(steps: int, seed: int) -> Tuner:
    first = max(1, steps // 16)
    space = all_different()
    return dt.algos.ASHA(
        space, trials=80, max_steps=steps, min_steps=first, brackets=[0], seed=seed
    )


def _hyperband(steps: int, seed: int) -> Tuner:
    return dt.algos.Hyperband(hippo_448(), trials=120, max_steps=steps, eta=3, seed=seed)


def _pbt(steps: int, seed: int) -> Tuner:
    return dt.algos.PBT(
        all_different(), population=16, max_steps=steps, every=steps // 8, seed=seed
    )


SHAPES: dict[str, Shape] = {
    "Grid": _grid,
    "random, bushy": _bushy,
    "SHA": _sha,
    "ASHA": _asha,
    "ASHA, nothing shared": _asha_alone,
    "Hyperband": _hyperband,
    "PBT": _pbt,
}

# --------------------------------------------------------------------------- the variants


class Uses:
    """When each stored state was used last, for an order that goes by nothing else."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._count = 0

    def note(self, key: str) -> None:
        """Note that a state was saved or loaded now."""
        self._count += 1
        self._last[key] = self._count

    def order(self, states: Iterable[State], excess: int) -> list[State]:
        """Return the states to evict: those first that were used longest ago."""
        chosen: list[State] = []
        for state in sorted(states, key=lambda state: self._last.get(state.key, 0)):
            if excess <= 0:
                break
            if not state.stays:
                chosen.append(state)
                excess -= state.nbytes
        return chosen


def cheapest(states: Iterable[State], excess: int) -> list[State]:
    """Return the states to evict as if all were asked for with the same chance."""
    return evictions([replace(state, chance=1.0) for state in states], excess)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to choose the states to evict.

    Parameters
    ----------
    constants
        Other constants of the values, by name.
    order
        Chooses the states in place of `evictions`, from the uses so far; None for `evictions`.
    """

    constants: Mapping[str, object] | None = None
    order: Callable[[Uses], Callable[[Iterable[State], int], list[State]]] | None = None


VALUE, RECENT = "by value", "least recently used"
RIVALS = {
    VALUE: Variant(),
    RECENT: Variant(order=lambda uses: uses.order),
    "cheapest to train again": Variant(order=lambda uses: cheapest),
}
CONSTANTS = {
    "GOES_ON 0.5": {"GOES_ON": 0.5},
    "STEEPNESS 0, the same for all": {"STEEPNESS": 0},
    "STEEPNESS 1": {"STEEPNESS": 1},
    "STEEPNESS 16": {"STEEPNESS": 16},
    "END as INSIDE": {"END": 0.002},
    "INSIDE as END": {"INSIDE": 0.02},
    "INSIDE, END 0": {"INSIDE": 0.0, "END": 0.0},
    "INSIDE, END 0.1": {"INSIDE": 0.1, "END": 0.1},
    "SLACK 0": {"SLACK": 0.0},
    "SLACK 0.2": {"SLACK": 0.2},
    "never CROWDED": {"CROWDED": (2.0, 0.0)},
    "always CROWDED": {"CROWDED": (-1.0, -1.0)},
    "CROWDED 0.5, 0.5": {"CROWDED": (0.5, 0.5)},
    "CROWDED 0.8, 0.4": {"CROWDED": (0.8, 0.4)},
}
VARIANTS = RIVALS | {name: Variant(constants=each) for name, each in CONSTANTS.items()}


class StoredRunner(SimulatedRunner):
    """A simulated run whose states lie in a real store."""

    store: CheckpointStore
    uses: Uses
    evictor: Evictor | None = None
    rounds = 0

    def tell(self, event: Event) -> None:
        """Handle an event, and keep the store under its budget."""
        attempt = self.engine.view.attempts.get(getattr(event, "attempt", ""))
        if isinstance(event, Saved) and attempt is not None:
            node, step = attempt.node_at(event.step), event.step
            key = node.key_at(step)
            commit = self.store.save(STATE, key=key, attempt=event.attempt, step=step, seconds=1.0)
            self.uses.note(key)
            if self.evictor is not None:
                self.evictor.saved(node, commit)
        super().tell(event)
        while self.evictor is not None:
            for following in self.evictor.turn():
                super().tell(following)
            if not self.evictor.is_busy:
                break
            threading.Event().wait(0.0002)

    def _launch(self, worker: Worker, order: RunStage, stop: Step) -> None:
        if order.start:
            self.uses.note(order.node.holder(order.start).key_at(order.start))
        super()._launch(worker, order, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictedRun:
    """A run: its steps, the rounds of eviction, and the states that are left.

    Parameters
    ----------
    steps, repeated
        Steps trained, and those of them trained again.
    to_go_on
        Steps to train again if all trials went on now, as in another study with more steps.
    rounds
        How often states were chosen.
    nbytes, states
        Of the store at the end.
    is_cut
        Whether it was ended, because it trained too many steps.
    """

    steps: int
    repeated: int
    to_go_on: int
    rounds: int
    nbytes: int
    states: int
    is_cut: bool

    @property
    def share(self) -> float:
        """Steps trained again, over those that were trained the first time."""
        return self.repeated / (self.steps - self.repeated)


def run(
    tuner: Tuner, variant: Variant, *, budget: int | None, most: Step | None, seed: int
) -> EvictedRun:
    """Run a tuner over a real store, cut after `most` steps."""
    options = DispatchOptions(attempt_prefix="a", saves=SavePolicy())
    engine = Engine(Dispatcher(root_key("play", 0), options), objective=LOSS, trials={})
    conditions = Conditions(
        curve=curve,
        pace=lambda sequences, start, stop, kind: EvenPace(1.0),
        mishaps=Mishaps(straggling=0.3, drop=0.0, seed=seed),
        report_every=STEPS,
    )
    runner = StoredRunner(engine, conditions, workers=WORKERS, limits=Limits(steps=most))
    runner.store = CheckpointStore(f"memory://{uuid4().hex}")
    runner.uses = Uses()
    with closing(Database("sqlite://")) as database, replaced(variant, runner):
        if budget is not None:
            runner.evictor = Evictor(
                runner.store,
                database,
                Retention(budget=budget, keep=Keep.parse("best:1")),
                view=engine.view,
                trials=engine.trials,
                objective=LOSS,
                clock=lambda: 0.0,
            )
            runner.evictor.open()
        try:
            runner.run(tuner)
        finally:
            if runner.evictor is not None:
                engine.dismiss()
                engine.evicted(runner.evictor.close())
    uploads = list(runner.store.inventory())
    return EvictedRun(
        steps=engine.view.steps_executed,
        repeated=engine.view.steps_repeated,
        to_go_on=_steps_to_go_on(engine),
        rounds=runner.rounds,
        nbytes=sum(upload.nbytes + COMMIT_NBYTES for upload in uploads),
        states=len(uploads),
        is_cut=runner.limit is not None,
    )


def _steps_to_go_on(engine: Engine) -> int:
    """Return the steps between the ends of all trials and the nearest states that are stored."""
    plan = engine.view.plan
    missing: set[tuple[Node, Step]] = set()
    for trial in filter(lambda trial: trial.steps, engine.trials.values()):
        node, step = plan.node_at(trial.number, trial.steps), trial.steps
        while node.parent is not None and step not in node.checkpoints:
            missing.add((node, step))
            step -= 1
            node = node.holder(step)
    return len(missing)


def curve(values: Mapping[str, Any], step: int) -> float:
    """Return a loss that falls with the step and depends on all values there."""
    return sum(crc32(f"{name} {value}".encode()) % 97 for name, value in values.items()) / 97 + (
        5 / step
    )


@contextmanager
def replaced(variant: Variant, runner: StoredRunner) -> Iterator[None]:
    """Run with the order and the constants of a variant; count the rounds of eviction."""
    order = evictions if variant.order is None else variant.order(runner.uses)

    def counted(states: Iterable[State], excess: int) -> list[State]:
        runner.rounds += 1
        return order(states, excess)

    before = []
    for name, constant in {**(variant.constants or {}), "evictions": counted}.items():
        for module in (evict, value):
            if hasattr(module, name):
                before.append((module, name, getattr(module, name)))
                setattr(module, name, constant)
    try:
        yield
    finally:
        for module, name, constant in before:
            setattr(module, name, constant)


def measure(short: bool) -> list[Figure]:
    """Return the steps trained again by each variant, and by value over least recently used."""
    steps, seeds = (STEPS // 2, 1) if short else (STEPS, SEEDS)
    variants = RIVALS if short else VARIANTS
    figures: list[Figure] = []
    for name, make in SHAPES.items():
        runs: dict[tuple[int, str], list[EvictedRun]] = defaultdict(list)
        free = []
        for seed in range(seeds):
            free.append(run(make(steps, seed), Variant(), budget=None, most=None, seed=seed))
            state_nbytes, most = -(-free[-1].nbytes // free[-1].states), 3 * free[-1].steps
            for room, (variant, how) in product(ROOMS, variants.items()):
                tuner, budget = make(steps, seed), room * state_nbytes
                runs[room, variant].append(run(tuner, how, budget=budget, most=most, seed=seed))
        states = mean(each.states for each in free)
        for room in ROOMS:
            what = f"{name}, room for {room} of {states:.0f} states"
            figures += _figures(what, {variant: runs[room, variant] for variant in variants})
    return figures


def _figures(name: str, runs: Mapping[str, list[EvictedRun]]) -> list[Figure]:
    ratios = [
        (1 + value.share) / (1 + recent.share)
        for value, recent in zip(runs[VALUE], runs[RECENT], strict=True)
    ]
    return [
        Figure(
            name=f"{name}: steps {VALUE}, over {RECENT}",
            value=median(ratios),
            unit="x",
            at_most=1.0,
            note=f"{min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} pairs",
        ),
        *(_figure(f"{name}, {variant}: trained again", ran) for variant, ran in runs.items()),
    ]


def _figure(name: str, ran: list[EvictedRun]) -> Figure:
    shares = [100 * each.share for each in ran]
    cut = sum(each.is_cut for each in ran)
    later = mean(100 * each.to_go_on / (each.steps - each.repeated) for each in ran)
    note = (
        f"{min(shares):.1f} to {max(shares):.1f}; {later:.1f}% to go on; "
        f"{mean(each.rounds for each in ran):.0f} rounds"
    )
    return Figure(
        name=name, value=mean(shares), unit="%", note=f"{note}, {cut} cut" if cut else note
    )


if __name__ == "__main__":
    sys.exit(main("eviction", measure))
