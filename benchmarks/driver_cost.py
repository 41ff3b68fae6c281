"""Our own cost: of deciding, per stage and per report, and of each step that is trained."""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

from figures import Figure, main
from simulated import engine_of, runner_of
from spaces import STEPS, all_different, three_levels
from trainers import Nothing

import dasktune as dt
from dasktune._worker.host import StageHost
from dasktune._worker.job import Job, StageSpec
from dasktune.graph.keys import Chain, root_key
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant, Exponential, Sequence
from dasktune.types import Decision, Report

SIZES, SHORT_SIZES = (1_000, 10_000, 100_000), (100, 1_000)
WORKERS = 40
CLASSES = {"a": 14, "b": 13, "c": 13}
SECONDS = {"a": 1.0, "b": 2.0, "c": 3.0}
CLASSES_TIMES = 1.2
LEVELS = 60
LONG_TRIALS, LONG_STEPS = 40, 27_000
EVENT_MS, REPORT_US, STEP_US, GROWTH = 1.0, 50.0, 50.0, 2.0


class Timed(dt.algos.Random):
    """Random search that takes the time of its own decisions."""

    seconds = 0.0
    reports = 0

    def tell(self, report: Report) -> list[Decision]:
        """Decide, and add to the time."""
        began = time.perf_counter()
        decisions = super().tell(report)
        self.seconds += time.perf_counter() - began
        self.reports += 1
        return decisions


def measure(short: bool) -> list[Figure]:
    """Simulate studies of growing size, and a few long ones; train nothing, often."""
    sizes = SHORT_SIZES if short else SIZES
    steps = 500 if short else 20_000
    changing = Exponential(0.1, gamma=0.99999)
    _simulate(dt.algos.Random(all_different(), trials=100, max_steps=STEPS))  # warms up
    return [
        *_studies("a bushy tree", three_levels(LEVELS), sizes),
        *_studies("nothing in common", all_different(), sizes),
        _classes(sizes[0]),
        *_long(LONG_STEPS // 100 if short else LONG_STEPS),
        _key_cost(LONG_STEPS // 100 if short else LONG_STEPS),
        _own_cost("constant values", {"lr": Constant(0.1), "width": Constant(64)}, steps),
        _own_cost("a value that changes", {"lr": changing, "width": Constant(64)}, steps),
    ]


def _studies(what: str, space: dt.Space, sizes: tuple[int, ...]) -> list[Figure]:
    """Return the cost of studies of growing size, and how it grows."""
    figures, costs = [], []
    for trials in sizes:
        tuner = Timed(space, trials=trials, max_steps=STEPS)
        seconds, stages = _simulate(tuner)
        costs.append(seconds / stages * 1e3)
        name = f"driver CPU per stage, {trials:,} trials, {what}"
        note = f"{stages:,} stages: started, saved and ended; registration included"
        figures.append(Figure(name=name, value=costs[-1], unit="ms", at_most=EVENT_MS, note=note))
    per_report = tuner.seconds / tuner.reports * 1e6
    name = f"tuner's time per report, {sizes[-1]:,} trials, {what}"
    figures.append(Figure(name=name, value=per_report, unit="us", at_most=REPORT_US))
    name = f"growth of the cost per stage, {what}"
    growth = max(costs) / min(costs)
    figures.append(Figure(name=name, value=growth, unit="x", at_most=GROWTH))
    return figures


def _classes(trials: int) -> Figure:
    """Return the cost of a stage on three classes of workers, next to one: median of five pairs.

    Workers say how far they are on both sides, as real ones do.
    """
    pairs = [(_on_classes(trials, {"a": WORKERS}), _on_classes(trials, CLASSES)) for _ in range(5)]
    single = min(alone for alone, _ in pairs)
    ratios = sorted(several / alone for alone, several in pairs)
    return Figure(
        name=f"driver CPU per stage on {len(CLASSES)} classes over 1, {trials:,} trials",
        value=ratios[2],
        unit="x",
        at_most=CLASSES_TIMES,
        note=f"{ratios[0]:.2f} to {ratios[-1]:.2f}; {single * 1e3:.2f} ms on one class",
    )


def _on_classes(trials: int, classes: Mapping[str, int]) -> float:
    """Return the CPU seconds per stage of a simulated run, in which each class has its speed."""
    runner = runner_of(
        engine_of("cost"),
        lambda sequences, kind: SECONDS[kind],
        classes,
        report_every=STEPS,
        tells_progress=True,
    )
    gc.collect()
    began = time.process_time()
    runner.run(dt.algos.Random(all_different(), trials=trials, max_steps=STEPS))
    seconds = time.process_time() - began
    return seconds / sum(each.kind == "ended" for each in runner.happenings)


def _simulate(tuner: dt.algos.Random | dt.algos.Grid) -> tuple[float, int]:
    """Return the CPU seconds of a simulated run, and the number of its stages."""
    gc.collect()
    began = time.process_time()
    # Looking the metric up at every step is no cost of a driver's.
    ran = dt.simulate(
        tuner,
        lambda values, step: 1 / step,
        workers=WORKERS,
        report_every=tuner.max_steps,
    )
    seconds = time.process_time() - began
    return seconds, sum(event.kind == "ended" for event in ran.events)


def _long(steps: int) -> list[Figure]:
    """Return the cost of few trials of very many steps, each with a value of its own."""
    different = [Exponential(0.1, gamma=1 - index * 1e-5) for index in range(1, LONG_TRIALS + 1)]
    trunk = Exponential(0.1, gamma=1 - 1e-5)
    cut = steps // (LONG_TRIALS + 1)
    branched = [trunk[: cut * index] >> Constant(0.5) for index in range(1, LONG_TRIALS + 1)]
    figures = []
    for what, rates in (("all different", different), ("branching off one", branched)):
        tuner = dt.algos.Grid(dt.Space(lr=rates), max_steps=steps)
        seconds, stages = _simulate(tuner)
        name = f"driver CPU per stage, {LONG_TRIALS} trials of {steps:,} steps, {what}"
        per_step = seconds / (LONG_TRIALS * steps) * 1e6
        note = f"{stages} stages; a value that changes at every step; {per_step:.2f} us a step"
        value = seconds / stages * 1e3
        figures.append(Figure(name=name, value=value, unit="ms", at_most=EVENT_MS, note=note))
    return figures


def _key_cost(steps: int) -> Figure:
    """Return the cost of computing the key of a long trial's last state, once."""
    plan = SearchPlan(root_key("long", 0))
    leaf = plan.register(0, {"lr": Exponential(0.1, gamma=1 - 1e-5)}, steps)
    began = time.process_time()
    leaf.key_at(steps)
    return Figure(
        name=f"driver CPU for the key of a state after {steps:,} different steps, per step",
        value=(time.process_time() - began) / steps * 1e6,
        unit="us",
        at_most=STEP_US,
        note="one hash a step; simulated runs need no keys",
    )


def _own_cost(what: str, sequences: Mapping[str, Sequence], steps: int) -> Figure:
    """Return the cost of a step on a worker beyond the same calls by hand."""
    ours, by_hand = [], []
    for _ in range(5):
        ours.append(_on_host(sequences, steps))
        by_hand.append(_by_hand(sequences, steps))
    value = (min(ours) - min(by_hand)) / steps * 1e6
    return Figure(
        name=f"our cost per trained step, {what}",
        value=value,
        unit="us",
        at_most=STEP_US,
        note=f"reported at every step; by hand {min(by_hand) / steps * 1e6:.2f} us",
    )


def _on_host(sequences: Mapping[str, Sequence], steps: int) -> float:
    """Return the seconds that a worker takes for a stage."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(trainer_class=Nothing, config={}, device="cpu", store=folder, report_every=1)
        host = StageHost(job, lambda messages: None)
        chain = Chain(root_key("own cost", 0))
        spec = StageSpec(
            attempt="0-0",
            start=0,
            stop=steps,
            saves=(),
            sequences={name: sequence.to_json() for name, sequence in sequences.items()},
            chain=(chain.base, chain.values.hex(), chain.length),
            seed=0,
        )
        began = time.perf_counter()
        receipt = host.run(spec)
        host.close(60)
        seconds = time.perf_counter() - began
    if receipt.status != "trained" or receipt.step != steps:
        raise RuntimeError(f"the stage must be trained to step {steps}, got {receipt}")
    return seconds


def _by_hand(sequences: Mapping[str, Sequence], steps: int) -> float:
    """Return the seconds that the trainer's own methods take."""
    trainer = Nothing()
    trainer.build(next(_changes(sequences, 1)))
    began = time.perf_counter()
    for hp in _changes(sequences, steps):
        if hp:
            trainer.setup(hp)
        trainer.train()
        trainer.evaluate()
    return time.perf_counter() - began


def _changes(sequences: Mapping[str, Sequence], steps: int) -> Iterator[dict[str, object]]:
    """Yield at each step the values that are new."""
    varying = [name for name, each in sequences.items() if each.constant_until(0) is not None]
    yield {name: sequence(0) for name, sequence in sequences.items()}
    for step in range(1, steps):
        yield {name: sequences[name](step) for name in varying}


if __name__ == "__main__":
    sys.exit(main("driver_cost", measure))
