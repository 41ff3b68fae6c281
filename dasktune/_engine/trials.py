"""Trials: what a study knows of each configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from statistics import fmean, stdev
from typing import TypeVar

from dasktune._lazy import method_of
from dasktune.errors import CorruptRecordError
from dasktune.graph.devices import Periods, with_change, with_devices
from dasktune.graph.plan import SearchPlan
from dasktune.needs import Needs, NumericClass
from dasktune.sequences import sequence_from_json
from dasktune.types import Direction, Metrics, Objective, Sequences, Step, TrialState, Value

ONE_DEVICE: Periods = ((0, 1),)
"""The devices of a trial that is trained on one device."""

ADDED = -1
"""Stands for the tuner of trials that were added with their results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The trial is trained alone, always from step 0: its trainer does not resume exactly."""

    told: Step = 0
    """The step of its last report before that."""
    trained: Step = 0
    """The last of its steps that was trained before that."""


def lineage_of(sequences: Sequences, seed: int) -> str:
    """Return the name of a lineage: the trials with these values at step 0, and this seed.

    Examples
    --------
    >>> from dasktune.sequences import Constant, MultiStep
    >>> one, other = {"lr": Constant(0.1)}, {"lr": MultiStep(0.1, milestones=[3], gamma=0.5)}
    >>> lineage_of(one, 0) == lineage_of(other, 0), lineage_of(one, 0) == lineage_of(one, 1)
    (True, False)
    """
    values = [[name, sequence(0)] for name, sequence in sorted(sequences.items())]
    return json.dumps([seed, values], separators=(",", ":"))


@dataclass(slots=True, kw_only=True)
class TrialRecord:
    """The present state of one trial. Only the engine changes it."""

    number: int
    tuner: int
    """The place of the tuner that registered it; `ADDED` for none."""
    local: int
    """The number by which its tuner knows it."""
    params: Mapping[str, object]
    sequences: Sequences
    max_steps: Step
    state: TrialState = TrialState.PAUSED
    until: Step | None = None
    """The last step of the request for it; None without a request."""
    steps: Step = 0
    """The step of the last report that its tuner was told."""
    values: tuple[float, ...] | None = None
    """The metrics of the study's objectives at `steps`."""
    ended_at: Step | None = None
    """The last step that its trainer has trained, if the trainer has ended by itself."""
    message: str = ""
    traceback: str = ""
    user_attrs: Mapping[str, object] = field(default_factory=dict)
    point: Mapping[str, Value] = field(default_factory=dict)
    """The sampled values by coordinate of the space; JSON."""
    domains: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The domains of those coordinates; JSON."""
    seed: int = 0
    """This is added to the study's training seed."""
    alone: Alone | None = None
    """None if it shares steps with other trials."""
    needs: Needs | None = None
    """The needs that its tuner gives it, beside those of the study and of its configuration."""
    model_rank: float | None = None
    """The rank of its model, as in `dasktune.types.Register`."""
    devices: Periods = ONE_DEVICE
    """The numbers of devices that train it together, each with its first step."""
    numerics: str = ""
    """The numeric class that its state keys name; empty if they name none."""
    problem: str = ""
    """Why it cannot be trained, as in `dasktune.types.Register`."""

    @property
    def keyed_sequences(self) -> Sequences:
        """Its sequences, with the number of devices as another one if there are several."""
        return with_devices(self.sequences, self.devices)

    def use_devices(self, devices: int) -> bool:
        """Set the devices that train it after its last report; return whether they differ."""
        if self.devices[-1][1] == devices:
            return False
        start = 0 if self.alone is not None else self.steps
        self.devices = with_change(self.devices, start, devices)
        return True

    @property
    def reached(self) -> Step:
        """The step of its last report, or the earlier one at which its trainer has ended."""
        return self._at_most(self.steps)

    @property
    def asked(self) -> Step:
        """The last step that was requested, or the earlier one at which its trainer has ended."""
        return self._at_most(max(self.steps, self.until or 0))

    def _at_most(self, step: Step) -> Step:
        return step if self.ended_at is None else min(step, self.ended_at)

    @property
    def value(self) -> float | None:
        """The first of its values; None before the first report."""
        return None if self.values is None else self.values[0]

    def metrics(self, objective: Objective) -> dict[str, float]:
        """Return its values by the names of the objective's metrics; empty if it has none."""
        return dict(zip(objective.metrics, self.values or (), strict=bool(self.values)))

    @property
    def numeric_class(self) -> NumericClass | None:
        """The numeric class in its state keys, if they name one."""
        return NumericClass(name=self.numerics, in_keys=True) if self.numerics else None

    @property
    def was_trained_here(self) -> bool:
        """Whether a tuner proposed it; a user adds other trials with their results."""
        return self.tuner != ADDED

    def to_json(self) -> dict[str, object]:
        """Return the document of its row, without the fields that have columns of their own."""
        return {**self.changing_json(), **self.lasting_json()}

    def changing_json(self) -> dict[str, object]:
        """Return the fields of the document that reports and decisions change."""
        return {
            "until": self.until,
            "message": self.message,
            "traceback": self.traceback,
            "user_attrs": dict(self.user_attrs),
            "values": None if self.values is None else list(self.values),
            "max_steps": self.max_steps,
            **({} if self.ended_at is None else {"ended_at": self.ended_at, "steps": self.steps}),
            **({} if self.alone is None else {"alone": asdict(self.alone)}),
            **({} if self.devices == ONE_DEVICE else {"devices": [*map(list, self.devices)]}),
            **({"numerics": self.numerics} if self.numerics else {}),
        }

    def lasting_json(self) -> dict[str, object]:
        """Return the fields of the document that never change after the registration."""
        return {
            "tuner": self.tuner,
            "local": self.local,
            "params": dict(self.params),
            "sequences": {name: sequence.to_json() for name, sequence in self.sequences.items()},
            "point": dict(self.point),
            "domains": dict(self.domains),
            "seed": self.seed,
            **({} if self.needs is None else {"needs": self.needs.to_json()}),
            **({} if self.model_rank is None else {"model_rank": self.model_rank}),
            **({"problem": self.problem} if self.problem else {}),
        }

    @classmethod
    def from_json(
        cls,
        document: Mapping[str, object],
        *,
        number: int,
        state: str,
        steps: Step,
    ) -> TrialRecord:
        """Return the record that `to_json` and its columns were made from.

        Raises
        ------
        CorruptRecordError
            If the document is invalid: other programs may have written to the database.
        """
        try:
            fields = dict(document)
            sequences, values = fields.pop("sequences"), fields.pop("values")
            alone, needs = fields.pop("alone", None), fields.pop("needs", None)
            devices = fields.pop("devices", ONE_DEVICE)
            return cls(
                number=number,
                state=TrialState(state),
                # If its trainer has ended by itself, the column has the step of that end.
                steps=fields.pop("steps", steps),  # type: ignore[arg-type]
                values=tuple(values) if isinstance(values, list) else None,
                alone=None if alone is None else Alone(**alone),  # type: ignore[arg-type]
                needs=None if needs is None else Needs.of(needs),
                devices=tuple((int(step), int(count)) for step, count in devices),  # type: ignore[attr-defined]
                sequences={name: sequence_from_json(item) for name, item in sequences.items()},  # type: ignore[attr-defined]
                **fields,  # type: ignore[arg-type]
            )
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise CorruptRecordError(f"trial {number} cannot be read: {error!r:.200}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial as users see it; names and meaning are Optuna's where Optuna has them.

    Attributes
    ----------
    number
        Its number in the study, from 0.
    state
        RUNNING, PAUSED, COMPLETE, PRUNED or FAIL.
    params
        What was sampled.
    sequences
        Its hyper-parameters as functions of the step, by name.
    steps
        Steps that its last report was made at; fewer if its trainer had ended by itself before.
    values
        The metrics of the study's objectives at that step, None before the first report.
    metrics
        All metrics by step, as far as they are known and the trial was asked to go.
    error
        Traceback, or message, of its failure; None if it did not fail.
    user_attrs
        What users attached.
    seed
        Added to the study's training seed: how repeats of a configuration differ.
    devices
        On how many devices it is trained together, as pairs ``(first step, number)``.
    metric
        The first metric of the study; empty if it is not known.
    datetime_start, datetime_complete
        Local times, as in Optuna: the start of the first stage of its path in this study, and the
        end of the last. Shared stages count for each of their trials. The end is None until the
        trial is finished; both are None if this study trained none of its steps, and in callbacks.
    """

    number: int
    state: TrialState
    params: Mapping[str, object]
    sequences: Sequences
    steps: Step
    values: list[float] | None
    metrics: Mapping[Step, Metrics]
    error: str | None
    user_attrs: Mapping[str, object]
    seed: int = 0
    devices: Periods = ONE_DEVICE
    metric: str = ""
    datetime_start: datetime | None = None
    datetime_complete: datetime | None = None

    @property
    def duration(self) -> timedelta | None:
        """The time from its start to its end, waits and pauses included; None where unknown."""
        if self.datetime_start is None or self.datetime_complete is None:
            return None
        return self.datetime_complete - self.datetime_start

    _repr_html_ = method_of("dasktune.report.notebook:trial_html")

    def __repr__(self) -> str:
        value = "no value" if self.value is None else f"{self.metric or 'value'}={self.value:.6g}"
        params = ", ".join(f"{name}={value}" for name, value in self.params.items())
        return f"Trial({self.number}, {self.state.value}, step {self.steps}, {value}; {params})"

    @property
    def intermediate_values(self) -> dict[Step, float]:
        """The first metric of the study by step; steps count from 1."""
        reports = self.metrics.items()
        return {step: metrics[self.metric] for step, metrics in reports if self.metric in metrics}

    @property
    def value(self) -> float | None:
        """The metric at its last report, the first of several; None before it."""
        return None if self.values is None else self.values[0]


def trial_of(
    plan: SearchPlan,
    record: TrialRecord,
    metric: str = "",
    *,
    span: tuple[float, float] | None = None,
) -> Trial:
    """Return a trial as users see it, with the metrics that the plan knows.

    `metric` is the first one of the study, `span` the start and end of the trial's training in
    epoch seconds; None if they are unknown.
    """
    nodes = plan.nodes_of(record.number)
    failed = record.state is TrialState.FAIL
    # Other trials that share its nodes may have metrics beyond the last step that it was asked for.
    # If it has failed, the step that failed bounds them all.
    limit = record.max_steps if failed else record.asked
    known = {step: node.metrics[step] for node in nodes for step in node.metrics}
    metrics = {step: values for step, values in known.items() if step <= limit}
    if limit == record.ended_at and limit not in metrics:
        # The ended trainer was not evaluated at its last step, but at a later one: the same state.
        metrics[limit] = known[min(step for step in known if step > limit)]
    return Trial(
        number=record.number,
        state=record.state,
        params=record.params,
        sequences=record.sequences,
        steps=record.reached,
        values=None if record.values is None else list(record.values),
        metrics=metrics,
        error=(record.traceback or record.message) if failed else None,
        user_attrs=dict(record.user_attrs),
        seed=record.seed,
        devices=record.devices,
        metric=metric,
        datetime_start=None if span is None else datetime.fromtimestamp(span[0]),
        datetime_complete=(
            datetime.fromtimestamp(span[1]) if span and record.state.is_finished else None
        ),
    )


AnyTrial = TypeVar("AnyTrial", Trial, TrialRecord)


def best_of(trials: Iterable[AnyTrial], direction: Direction) -> AnyTrial | None:
    """Return the trial with the best finite value of those that did not fail."""
    best: AnyTrial | None = None
    for trial in trials:
        if trial.state is TrialState.FAIL or trial.value is None or not math.isfinite(trial.value):
            continue
        if best is None or best.value is None or direction.better(trial.value, best.value):
            best = trial
    return best


def pareto_front(trials: Iterable[AnyTrial], objective: Objective) -> list[AnyTrial]:
    """Return the Pareto front: the trials that no other trial dominates.

    A trial dominates another if it is better in one objective and at least as good in all.
    Failed trials, and trials with a value that is not finite, do not count.
    """
    counted = [
        (tuple(-v if d is Direction.MAXIMIZE else v for v, d in pairs), trial)
        for trial in trials
        if trial.values is not None and trial.state is not TrialState.FAIL
        for pairs in [list(zip(trial.values, objective.directions, strict=True))]
        if all(math.isfinite(value) for value in trial.values)
    ]
    return [
        trial
        for losses, trial in counted
        if not any(
            other != losses and all(a <= b for a, b in zip(other, losses, strict=True))
            for other, _ in counted
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """One configuration over several training seeds.

    Attributes
    ----------
    trials
        Numbers of its trials, by seed.
    mean, deviation
        Of the values; the deviation is that of the sample.
    """

    params: Mapping[str, object]
    sequences: Sequences
    trials: tuple[int, ...]
    values: tuple[float, ...]
    mean: float
    deviation: float


def repeats_of(records: Iterable[TrialRecord], direction: Direction) -> list[Repeated]:
    """Return the configurations that were trained over several seeds, the best mean first.

    Compared are those whose trials got as far as any's, all with finite values.
    """
    groups: dict[object, list[TrialRecord]] = {}
    for record in records:
        texts = tuple(sorted((name, repr(sequence)) for name, sequence in record.sequences.items()))
        groups.setdefault((record.tuner, texts), []).append(record)
    repeated = []
    for group in groups.values():
        group.sort(key=lambda record: record.seed)
        values = [record.value for record in group if record.value is not None]
        several = len({record.seed for record in group}) == len(group) > 1
        if several and len(values) == len(group) and all(map(math.isfinite, values)):
            made = Repeated(
                params=group[0].params,
                sequences=group[0].sequences,
                trials=tuple(record.number for record in group),
                values=tuple(values),
                mean=fmean(values),
                deviation=stdev(values),
            )
            repeated.append((min(record.steps for record in group), made))
    most = max((steps for steps, _ in repeated), default=0)
    full = [repeat for steps, repeat in repeated if steps == most]
    return sorted(full, key=lambda repeat: repeat.mean, reverse=direction is Direction.MAXIMIZE)


COLUMNS = ("number", "state", "steps", "value")
"""The first columns of a table of trials, before the hyper-parameters."""


def table_of(
    records: Iterable[TrialRecord], objectives: int = 1
) -> tuple[list[str], list[list[object]]]:
    """Return the names of the columns of a table of trials, and its rows.

    With several objectives there are ``values_0``, ``values_1``, ... in place of ``value``, as
    Optuna has them; where seeds differ, there is a column ``seed``. Where several devices train
    a trial, there is a column ``devices``: the last number of each trial. A hyper-parameter that
    has the name of one of these columns gets the column ``params_<name>``, as Optuna calls it.
    """
    records = list(records)
    names = dict.fromkeys(name for record in records for name in record.params)
    values = ["value"] if objectives == 1 else [f"values_{at}" for at in range(objectives)]
    seeds = ["seed"] if any(record.seed for record in records) else []
    devices = ["devices"] if any(record.devices != ONE_DEVICE for record in records) else []
    rows = [
        [
            *(record.number, record.state.value, record.reached),
            *(record.values or [None] * objectives),
            *([record.seed] * len(seeds)),
            *([record.devices[-1][1]] * len(devices)),
            *map(record.params.get, names),
        ]
        for record in records
    ]
    head = [*COLUMNS[:3], *values, *seeds, *devices]
    taken = {*COLUMNS, *head}
    return [*head, *(_column(name, taken, names) for name in names)], rows


def _column(name: str, taken: Collection[str], others: Iterable[str]) -> str:
    column = name
    while column in taken or (column != name and column in others):
        column = f"params_{column}"
    return column
