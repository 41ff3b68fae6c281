"""Prometheus metrics of studies, on the endpoint of Dask's scheduler.

Every few seconds a driver sends the status of its run to the scheduler. The plugin there keeps the
last figures of each run and adds up the runs of a study. This module is light, since schedulers
import it. Without ``prometheus_client`` on the scheduler, whose ``/metrics`` needs it, it serves
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin

from dasktune._cluster.scheduler import add_plugin
from dasktune._engine.timeouts import NO_HEARTBEAT_SECONDS, PROMETHEUS_SECONDS

TOPIC = "dasktune-figures"
NAME = "dasktune-prometheus"

MOST_STUDIES = 1000
"""Studies that are remembered; beyond that, those with the oldest messages are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """A metric: its name, what it means, and its values by the labels beside the study."""

    name: str
    """Its name in Prometheus, without ``_total``, which is added for counters."""
    help: str
    """One line."""
    figure: str
    """The name of the figure in a message."""
    label: str = ""
    """The label for the keys of a figure that is a mapping; empty for a number."""
    is_counter: bool = False
    """Whether it only grows: it stays when its run has ended, and further runs add to it."""


FAMILIES = (
    MetricFamily(
        name="dasktune_steps",
        help="Steps trained, those repeated included.",
        figure="steps",
        is_counter=True,
    ),
    MetricFamily(
        name="dasktune_steps_repeated",
        help="Steps that had been trained before, and were trained again.",
        figure="repeated",
        is_counter=True,
    ),
    MetricFamily(
        name="dasktune_stages",
        help="Stages that have ended, by how.",
        figure="stages",
        label="status",
        is_counter=True,
    ),
    MetricFamily(
        name="dasktune_failures",
        help="Stages whose trainer raised an exception.",
        figure="failures",
        is_counter=True,
    ),
    MetricFamily(
        name="dasktune_checkpoint_bytes",
        help="Bytes of checkpoints saved.",
        figure="bytes",
        is_counter=True,
    ),
    MetricFamily(
        name="dasktune_worker_seconds",
        help="Seconds that workers had stages, of stages that have ended.",
        figure="worker_seconds",
        is_counter=True,
    ),
    MetricFamily(name="dasktune_trials", help="Trials by state.", figure="trials", label="state"),
    MetricFamily(
        name="dasktune_best_value",
        help="Value of the best trial, if the study has one objective.",
        figure="best",
    ),
    MetricFamily(name="dasktune_slots", help="Workers that can run stages.", figure="slots"),
    MetricFamily(name="dasktune_slots_busy", help="Workers that have a stage.", figure="busy"),
    MetricFamily(
        name="dasktune_slots_aside",
        help="Workers that get no stages for a while, because stage after stage raised on them.",
        figure="aside",
    ),
    MetricFamily(
        name="dasktune_stages_waiting",
        help="Stages that are wanted and that no worker has yet.",
        figure="waiting",
    ),
)
"""All metrics; each has the label ``study``, none has one for a trial."""

Sample = tuple[tuple[str, ...], float]
"""Values of the labels, and the value."""


@dataclass(slots=True)
class _StudyFigures:
    """The figures of one study: counters of ended runs, and the last figures of the others."""

    ended: dict[tuple[str, str], float] = field(default_factory=dict)
    runs: dict[str, tuple[float, Mapping[str, Any]]] = field(default_factory=dict)


class Figures:
    """The figures that drivers have sent, by study; `clock` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._studies: dict[str, _StudyFigures] = {}

    def receive(self, message: object) -> None:
        """Keep a driver's message; malformed ones are ignored, since any client may send one."""
        if not isinstance(message, Mapping):
            return
        study, run, figures = (message.get(name) for name in ("study", "run", "figures"))
        if not (isinstance(study, str) and isinstance(run, str) and isinstance(figures, Mapping)):
            return
        known = self._studies.pop(study, None) or _StudyFigures()
        self._studies[study] = known  # the last of all now
        if len(self._studies) > MOST_STUDIES:
            del self._studies[next(iter(self._studies))]
        for other, (received, _) in list(known.runs.items()):
            if other != run and self._clock() - received > NO_HEARTBEAT_SECONDS:
                self._end(known, other)
        known.runs[run] = self._clock(), figures
        if message.get("ended"):
            self._end(known, run)

    def samples(self, family: MetricFamily) -> Iterator[Sample]:
        """Yield the values of a metric, by study and label."""
        for study, known in self._studies.items():
            totals: dict[str, float] = {}
            if family.is_counter:
                for (figure, label), value in known.ended.items():
                    if figure == family.figure:
                        totals[label] = value
            for received, figures in known.runs.values():
                if family.is_counter or self._clock() - received <= NO_HEARTBEAT_SECONDS:
                    for label, value in _values(family, figures):
                        before = totals.get(label, 0.0) if family.is_counter else 0.0
                        totals[label] = value + before
            for label, value in totals.items():
                yield ((study, label) if family.label else (study,)), value

    def _end(self, known: _StudyFigures, run: str) -> None:
        """Add the counters of a run to those of ended runs."""
        _, figures = known.runs.pop(run)
        for family in FAMILIES:
            if family.is_counter:
                for label, value in _values(family, figures):
                    key = family.figure, label
                    known.ended[key] = known.ended.get(key, 0.0) + value


def _values(family: MetricFamily, figures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the values of a metric in a message, by label; an empty label for a number."""
    value = figures.get(family.figure)
    pairs = value.items() if isinstance(value, Mapping) else [("", value)]
    for label, number in pairs:
        if isinstance(number, int | float) and (bool(family.label) == bool(label)):
            yield str(label), float(number)


class Served:
    """All figures of this process, as `prometheus_client` collects them.

    A process has one registry, which takes each metric once, even where several schedulers run.
    """

    def __init__(self) -> None:
        self._figures: list[Figures] = []

    def add(self, figures: Figures) -> None:
        """Serve further figures, if `prometheus_client` is installed."""
        with suppress(ImportError):
            registry = import_module("prometheus_client").REGISTRY
            if not self._figures:
                registry.register(self)
            self._figures.append(figures)

    def remove(self, figures: Figures) -> None:
        """Serve these figures no more."""
        if figures in self._figures:
            self._figures.remove(figures)
            if not self._figures:
                import_module("prometheus_client").REGISTRY.unregister(self)

    def describe(self) -> list[object]:
        """Return no metrics: the registry then does not collect them at registration."""
        return []

    def collect(self) -> Iterator[object]:
        """Yield all metrics as `prometheus_client` wants them; called by it."""
        core = import_module("prometheus_client.core")
        for family in FAMILIES:
            kind = core.CounterMetricFamily if family.is_counter else core.GaugeMetricFamily
            labels = ["study", family.label] if family.label else ["study"]
            metric = kind(family.name, family.help, labels=labels)
            samples = (pair for figures in self._figures for pair in figures.samples(family))
            for values, value in dict(samples).items():
                metric.add_metric(values, value)
            yield metric


SERVED = Served()
"""The figures that this process serves."""


class FiguresPlugin(SchedulerPlugin):
    """Serves the figures of runs at ``/metrics`` of its scheduler."""

    name = NAME
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Begin to receive and to serve."""
        self.figures = Figures()
        SERVED.add(self.figures)

    async def close(self) -> None:
        """Serve nothing any more."""
        SERVED.remove(self.figures)

    def log_event(self, topic: str, msg: object) -> None:
        """Receive a message that a client logs on the scheduler."""
        if topic == TOPIC:
            self.figures.receive(msg)


def serve(client: Client) -> bool:
    """Start serving metrics on the scheduler of a client; return whether it does.

    It does not where `add_plugin` cannot add to it.
    """
    return add_plugin(client, FiguresPlugin, PROMETHEUS_SECONDS)


def send(client: Client, message: Mapping[str, object], *, waits: bool = False) -> None:
    """Send the figures of a run to the scheduler of a client; `waits` for the answer if told so."""
    scheduler, loop = client.scheduler, client.loop
    if client.status != "running" or scheduler is None or loop is None:
        return

    async def log() -> None:
        with suppress(OSError):
            await scheduler.log_event(topic=TOPIC, msg=dict(message))

    if waits:
        with suppress(OSError):  # a time-out, too
            client.sync(log, callback_timeout=PROMETHEUS_SECONDS)
    else:
        loop.add_callback(log)
