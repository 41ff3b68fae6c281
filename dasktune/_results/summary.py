"""The summary of a study: requested and trained steps, and their cost, as measured."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean, pstdev
from typing import TypedDict

from dasktune._driver.audit_notes import AuditFigures
from dasktune._engine.trials import TrialRecord
from dasktune._results.withdrawn import Withdrawn
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.graph.devices import devices_at
from dasktune.graph.plan import Node, SearchPlan
from dasktune.storage.database.rows import StageRow
from dasktune.types import Step


class Measurements(TypedDict):
    """Mean, standard deviation, 95th percentile and maximum of measurements."""

    mean: float
    deviation: float
    p95: float
    most: float


class Suspensions(TypedDict):
    """How often trials were suspended, the seconds that it took, and the bytes of their states.

    The bytes are those of the whole stored state. A suspension lasts from the order to stop, or
    from the end of the last requested step, until the state is durable.

    References
    ----------
    Rasley et al., "HyperDrive", section 6.2: suspend latency and snapshot size.
    """

    count: int
    seconds: Measurements
    nbytes: Measurements


class AuditResults(TypedDict):
    """The audits of resumed stages: their number by result.

    ``not_run`` counts those that were drawn and not done. ``incomparable`` counts those whose
    worker computes other bits than the one that trained: they say nothing about the trainer.
    ``resumes`` counts the stages that resumed from a stored state, ``steps`` the steps that audits
    trained. ``differences`` says what differed, and which trials rest on it, in one text for each
    audit.
    """

    identical: int
    differing: int
    not_run: int
    incomparable: int
    resumes: int
    steps: int
    differences: list[str]


class WithdrawnResults(TypedDict):
    """Results that rest on withdrawn metrics: an audit found a difference behind them.

    ``trials`` are those whose last report does. ``others`` counts the other trials whose last
    report was made while trials were merged; they may be wrong as well if they resumed.
    """

    trials: list[int]
    others: int


class ModelFigures(TypedDict):
    """A model of a forest: its weight, rank, complexity and priority, and its trials so far.

    See `dasktune.algos.forest.ranks.ModelWeight`.
    """

    name: str
    weight: float
    rank: float | None
    complexity: float
    priority: float | None
    trials: int


class StepsOnDevices(TypedDict):
    """The different requested steps that so many devices train, or trained, together."""

    devices: int
    steps: int


class ClassesOfTrial(TypedDict):
    """A trial that was trained on several compute classes, and these classes."""

    trial: int
    classes: list[str]


class Summary(TypedDict):
    """Figures of a study; ``wall_seconds`` are of the wall clock.

    ``steps_requested`` counts the requested steps of all trials, ``steps_unique`` the different
    states among them. ``steps_executed`` counts the steps that workers trained. They include
    ``steps_repeated``, which had been trained before, and ``steps_beyond``, which a trial
    trained before its order to stop arrived. ``steps_reused`` were found in the store.
    ``steps_audited`` were trained by checks and audits, and are in no other figure; of these,
    ``audits["steps"]`` were trained by audits.
    ``steps_withdrawn`` were trained before an audit found a difference, and are of no use since:
    their trials are trained alone. ``audits`` is the result of the audits of resumed stages, and
    ``withdrawn`` what rests on metrics behind a difference.
    ``merge_rate`` is requested by unique steps. ``worker_seconds`` is the time that workers
    spent on stages, and ``proof_seconds`` the part of it in which resumes proved themselves.
    ``suspensions`` is None if no trial was suspended. ``models`` are those of
    the forest of the last run's tuner. ``steps_on_devices`` divides ``steps_unique`` by the number
    of devices that train a step together. ``trials_on_several_classes`` has the trials of a study
    with ``portable=True`` whose steps this study trained on workers of several compute classes.
    """

    trials: int
    steps_requested: int
    steps_unique: int
    steps_executed: int
    steps_repeated: int
    steps_beyond: int
    steps_reused: int
    steps_audited: int
    steps_withdrawn: int
    audits: AuditResults
    withdrawn: WithdrawnResults
    merge_rate: float
    wall_seconds: float
    worker_seconds: float
    proof_seconds: float
    best_value: float | None
    suspensions: Suspensions | None
    models: list[ModelFigures]
    steps_on_devices: list[StepsOnDevices]
    trials_on_several_classes: list[ClassesOfTrial]


def summarise(
    plan: SearchPlan,
    trials: Mapping[int, TrialRecord],
    *,
    steps_executed: int,
    steps_repeated: int,
    wall_seconds: float,
    worker_seconds: float,
    best_value: float | None,
    proof_seconds: float = 0.0,
    steps_beyond: int = 0,
    steps_audited: int = 0,
    audits: AuditFigures | None = None,
    withdrawn: Withdrawn | None = None,
    suspensions: Suspensions | None = None,
) -> Summary:
    """Return the summary of a study from its plan and measurements."""
    asked = steps_asked(trials)
    requested = sum(asked.values())
    unique = unique_steps(plan, asked)
    existing = unique_steps(plan, steps_known(plan, asked))
    withdrawn = withdrawn or Withdrawn()
    trained = steps_executed - steps_repeated - steps_beyond - withdrawn.steps
    return Summary(
        trials=len(trials),
        steps_requested=requested,
        steps_unique=unique,
        steps_executed=steps_executed,
        steps_repeated=steps_repeated,
        steps_beyond=steps_beyond,
        steps_reused=max(0, existing - trained),
        steps_audited=steps_audited,
        steps_withdrawn=withdrawn.steps,
        audits=audits_of(audits or AuditFigures()),
        withdrawn=WithdrawnResults(trials=list(withdrawn.trials), others=withdrawn.others),
        merge_rate=requested / unique if unique else 1.0,
        wall_seconds=wall_seconds,
        worker_seconds=worker_seconds,
        proof_seconds=proof_seconds,
        best_value=best_value,
        suspensions=suspensions,
        models=[],
        steps_on_devices=steps_on_devices(plan, asked),
        trials_on_several_classes=[],
    )


def models_of(models: Iterable[ModelWeight]) -> list[ModelFigures]:
    """Return the models of a forest as a part of a summary."""
    return [
        ModelFigures(
            name=model.name,
            weight=model.weight,
            rank=model.rank,
            complexity=model.complexity,
            priority=model.priority,
            trials=model.trials,
        )
        for model in models
    ]


def audits_of(figures: AuditFigures) -> AuditResults:
    """Return the figures of audits as a part of a summary."""
    return AuditResults(
        identical=figures.identical,
        differing=figures.differing,
        not_run=figures.not_run,
        incomparable=figures.incomparable,
        resumes=figures.resumes,
        steps=figures.steps,
        differences=list(figures.differences),
    )


def suspensions_of(stages: Iterable[StageRow]) -> Suspensions | None:
    """Return the measured suspensions, or None."""
    measured = [
        (stage.suspend_seconds, stage.snapshot_bytes)
        for stage in stages
        if stage.suspend_seconds is not None and stage.snapshot_bytes is not None
    ]
    if not measured:
        return None
    seconds, nbytes = zip(*measured, strict=True)
    return Suspensions(count=len(measured), seconds=spread_of(seconds), nbytes=spread_of(nbytes))


def spread_of(values: Iterable[float]) -> Measurements:
    """Return the statistics of measurements; the percentile is a measurement (nearest rank).

    Examples
    --------
    >>> spread_of([4.0, 2.0])
    {'mean': 3.0, 'deviation': 1.0, 'p95': 4.0, 'most': 4.0}
    """
    ordered = sorted(values)
    return Measurements(
        mean=fmean(ordered),
        deviation=pstdev(ordered),
        p95=ordered[math.ceil(0.95 * len(ordered)) - 1],
        most=ordered[-1],
    )


def steps_asked(trials: Mapping[int, TrialRecord]) -> dict[int, Step]:
    """Return the requested steps of each trial that is trained here."""
    return {number: trial.asked for number, trial in trials.items() if trial.was_trained_here}


def unique_steps(plan: SearchPlan, asked: Mapping[int, Step]) -> int:
    """Return the number of different states on the paths of trials up to `asked` steps."""
    return sum(end - node.start for node, end in _ends(plan, asked).items())


def steps_on_devices(plan: SearchPlan, asked: Mapping[int, Step]) -> list[StepsOnDevices]:
    """Return the different steps of trials up to `asked` by their number of devices."""
    steps: Counter[int] = Counter()
    for node, end in _ends(plan, asked).items():
        steps[devices_at(node.sequences, node.start)] += end - node.start
    return [StepsOnDevices(devices=number, steps=steps[number]) for number in sorted(steps)]


def steps_beyond(
    plan: SearchPlan, trials: Mapping[int, TrialRecord], stages: Iterable[StageRow]
) -> int:
    """Return the number of trained states beyond the requested steps of all trials."""
    asked = steps_asked(trials)
    ends = _ends(plan, asked)
    beyond: dict[Node, tuple[Step, Step]] = {}
    for stage in stages:
        last = stage.start + stage.steps
        trial = next((number for number in stage.trials if number in asked), None)
        if trial is None or last <= asked[trial]:
            continue
        for node in plan.nodes_of(trial):
            begin, end = max(stage.start, ends.get(node, node.start)), min(last, node.stop)
            if begin < end:
                known = beyond.get(node, (begin, end))
                beyond[node] = min(begin, known[0]), max(end, known[1])
    return sum(end - begin for begin, end in beyond.values())


def trials_on_several_classes(
    plan: SearchPlan, trials: Mapping[int, TrialRecord], stages: Iterable[StageRow]
) -> list[ClassesOfTrial]:
    """Return the trials whose requested steps were trained on several compute classes.

    Stages count for all trials that share their steps. Those without a known class do not count.
    """
    asked = steps_asked(trials)
    trained: dict[Node, set[tuple[Step, str]]] = defaultdict(set)
    for stage in stages:
        trial = next((number for number in stage.trials if number in asked), None)
        if trial is None or not stage.kind:
            continue
        for node in plan.nodes_of(trial):
            begin, end = max(stage.start, node.start), min(stage.start + stage.steps, node.stop)
            if begin < end:
                trained[node].add((begin, stage.kind))
    several = []
    for trial, until in asked.items():
        passed = (each for node in plan.nodes_of(trial) for each in trained.get(node, ()))
        classes = sorted({kind for begin, kind in passed if begin < until})
        if len(classes) > 1:
            several.append(ClassesOfTrial(trial=trial, classes=classes))
    return several


def _ends(plan: SearchPlan, asked: Mapping[int, Step]) -> dict[Node, Step]:
    """Return the last requested step of each node that has one."""
    ends: dict[Node, Step] = {}
    for trial, until in asked.items():
        for node in plan.nodes_of(trial):
            if node.start < until:
                ends[node] = max(ends.get(node, 0), min(until, node.stop))
    return ends


def steps_known(plan: SearchPlan, asked: Mapping[int, Step]) -> dict[int, Step]:
    """Return the step of each trial's last state or metrics, at most the requested one."""
    known: dict[Node, int] = {}
    steps = {}
    for trial, until in asked.items():
        reached = 0
        for node in plan.nodes_of(trial):
            if node not in known:
                known[node] = max((*node.checkpoints, *node.metrics), default=0)
            reached = max(reached, known[node])
        steps[trial] = min(until, reached)
    return steps


def savings_line(summary: Summary) -> str:
    """Return the line that every run ends with."""
    requested, beyond = summary["steps_requested"], summary["steps_beyond"]
    if not requested:
        return "nothing was trained" if not summary["trials"] else "no trial came to a report"
    executed = summary["steps_executed"] - beyond
    details = [f"{executed:,} of {requested:,}"]
    if summary["steps_repeated"]:
        details.append(f"{summary['steps_repeated']:,} repeated")
    if summary["steps_withdrawn"]:
        details.append(f"{summary['steps_withdrawn']:,} withdrawn")
    if summary["steps_reused"]:
        details.append(f"{summary['steps_reused']:,} found from other runs")
    line = f"trained {executed / requested:.0%} of the steps asked for ({', '.join(details)})"
    if beyond:
        line += (
            f", and {beyond:,} more that no result uses: trials were stopped or failed meanwhile"
        )
    alone = "the trials share no steps" if is_apart(summary) else ""
    parts = [line, alone, devices_line(summary), audits_text(summary), withdrawn_text(summary)]
    return "; ".join(filter(None, parts))


def is_apart(summary: Summary) -> bool:
    """Return whether a study has several trials, and no two of them share a step."""
    return summary["trials"] > 1 and summary["steps_requested"] == summary["steps_unique"] > 0


def devices_line(summary: Summary) -> str:
    """Return how many steps several devices train together, in words; empty if none are."""
    several = [each for each in summary["steps_on_devices"] if each["devices"] > 1]
    texts = [f"{each['steps']:,} on {each['devices']} devices" for each in several]
    return f"of the different steps {', '.join(texts)} together" if texts else ""


def withdrawn_text(summary: Summary) -> str:
    """Return in words what rests on withdrawn metrics; empty if all is right."""
    withdrawn = summary["withdrawn"]
    return str(Withdrawn(trials=tuple(withdrawn["trials"]), others=withdrawn["others"]))


def audits_text(summary: Summary) -> str:
    """Return the result of the audits in words; empty without any."""
    audits = summary["audits"]
    figures = AuditFigures(
        identical=audits["identical"],
        differing=audits["differing"],
        incomparable=audits["incomparable"],
        resumes=audits["resumes"],
    )
    return str(figures)
