"""Prometheus metrics of studies, on the endpoint of Dask's scheduler.

A driver says every few seconds how its run stands, in a message that passes the scheduler; the
plugin keeps what was said last and adds runs of one study up. Light, since schedulers import it.
Without ``prometheus_client`` on the scheduler, whose ``/metrics`` needs it, nothing is served.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin

import dasktune

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long the scheduler is waited for: nothing rests on it."""

TOPIC = "dasktune-figures"
NAME = "dasktune-prometheus"

SILENT_SECONDS = 60.0
"""A run that was not heard of for so long has no present any more: its gauges go."""

MOST_STUDIES = 1000
"""Studies that are remembered; of more, those that were heard of longest ago go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A metric: its name, what it means, and its values by the labels beside the study.

    Parameters
    ----------
    name
        As Prometheus knows it; without ``_total``, which counters get.
    help
        One line.
    figure
        Which figure of a message it is.
    label
        The label that a figure which is a mapping is told apart by; empty for a number.
    is_counter
        Whether it only grows: it stays when its run has ended, and further runs add to it.
    """

    name: str
    help: str
    figure: str
    label: str = ""
    is_counter: bool = False


FAMILIES = (
    Family(
        name="dasktune_steps",
        help="Steps trained, those repeated included.",
        figure="steps",
        is_counter=True,
    ),
    Family(
        name="dasktune_steps_repeated",
        help="Steps that had been trained before, and were trained again.",
        figure="repeated",
        is_counter=True,
    ),
    Family(
        name="dasktune_stages",
        help="Stages that have ended, by how.",
        figure="stages",
        label="status",
        is_counter=True,
    ),
    Family(
        name="dasktune_failures",
        help="Stages whose trainer raised an exception.",
        figure="failures",
        is_counter=True,
    ),
    Family(
        name="dasktune_checkpoint_bytes",
        help="Bytes of checkpoints saved.",
        figure="bytes",
        is_counter=True,
    ),
    Family(
        name="dasktune_worker_seconds",
        help="Seconds that workers had stages, of stages that have ended.",
        figure="worker_seconds",
        is_counter=True,
    ),
    Family(name="dasktune_trials", help="Trials by state.", figure="trials", label="state"),
    Family(
        name="dasktune_best_value",
        help="Value of the best trial, if the study has one objective.",
        figure="best",
    ),
    Family(name="dasktune_slots", help="Workers that can run stages.", figure="slots"),
    Family(name="dasktune_slots_busy", help="Workers that have a stage.", figure="busy"),
    Family(
        name="dasktune_stages_waiting",
        help="Stages that are wanted and that no worker has yet.",
        figure="waiting",
    ),
)
"""All metrics; each has the label ``study``, none has one for a trial."""

Sample = tuple[tuple[str, ...], float]
"""Values of the labels, and the value."""


@dataclass(slots=True)
class _Known:
    """What is known of one study: counters of runs that ended, and what runs said last."""

    ended: dict[tuple[str, str], float] = field(default_factory=dict)
    runs: dict[str, tuple[float, Mapping[str, Any]]] = field(default_factory=dict)


class Figures:
    """What drivers have said of their runs, by study.

    Parameters
    ----------
    clock
        Gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._studies: dict[str, _Known] = {}

    def take(self, message: object) -> None:
        """Take in a message of a driver; anyone may send one, so what is odd is passed over."""
        if not isinstance(message, Mapping):
            return
        study, run, figures = (message.get(name) for name in ("study", "run", "figures"))
        if not (isinstance(study, str) and isinstance(run, str) and isinstance(figures, Mapping)):
            return
        known = self._studies.pop(study, None) or _Known()
        self._studies[study] = known  # the last of all now
        if len(self._studies) > MOST_STUDIES:
            del self._studies[next(iter(self._studies))]
        for one, (heard, _) in list(known.runs.items()):
            if one != run and self._clock() - heard > SILENT_SECONDS:
                self._end(known, one)
        known.runs[run] = self._clock(), figures
        if message.get("ended"):
            self._end(known, run)

    def samples(self, family: Family) -> Iterator[Sample]:
        """Yield the values of a metric, by study and label."""
        for study, known in self._studies.items():
            found: dict[str, float] = {}
            if family.is_counter:
                for (figure, label), value in known.ended.items():
                    if figure == family.figure:
                        found[label] = value
            for heard, figures in known.runs.values():
                if family.is_counter or self._clock() - heard <= SILENT_SECONDS:
                    for label, value in _values(family, figures):
                        found[label] = value + (found.get(label, 0.0) if family.is_counter else 0.0)
            for label, value in found.items():
                yield ((study, label) if family.label else (study,)), value

    def _end(self, known: _Known, run: str) -> None:
        """Keep of a run what lasts."""
        _, figures = known.runs.pop(run)
        for family in FAMILIES:
            if family.is_counter:
                for label, value in _values(family, figures):
                    key = family.figure, label
                    known.ended[key] = known.ended.get(key, 0.0) + value


def _values(family: Family, figures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the values of a metric in a message, by label; an empty label for a number."""
    value = figures.get(family.figure)
    pairs = value.items() if isinstance(value, Mapping) else [("", value)]
    for label, one in pairs:
        if isinstance(one, int | float) and (bool(family.label) == bool(label)):
            yield str(label), float(one)


class Served:
    """All figures of this process, as `prometheus_client` collects them.

    There is one registry in a process, and a metric may be in it once, also where several
    schedulers are.
    """

    def __init__(self) -> None:
        self._figures: list[Figures] = []

    def add(self, figures: Figures) -> None:
        """Serve further figures, if there is what serves them."""
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
        """Return no metrics: so that their registration does not ask for them."""
        return []

    def collect(self) -> Iterator[object]:
        """Yield all metrics as `prometheus_client` wants them; called by it."""
        core = import_module("prometheus_client.core")
        for family in FAMILIES:
            kind = core.CounterMetricFamily if family.is_counter else core.GaugeMetricFamily
            labels = ["study", family.label] if family.label else ["study"]
            made = kind(family.name, family.help, labels=labels)
            samples = (one for figures in self._figures for one in figures.samples(family))
            for values, value in dict(samples).items():
                made.add_metric(values, value)
            yield made


SERVED = Served()
"""What this process serves."""


class FiguresPlugin(SchedulerPlugin):
    """Serves what drivers say of their runs at ``/metrics`` of the scheduler it is on."""

    name = NAME
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Begin to collect, and to be collected from."""
        self.figures = Figures()
        SERVED.add(self.figures)

    async def close(self) -> None:
        """Serve nothing any more."""
        SERVED.remove(self.figures)

    def log_event(self, topic: str, msg: object) -> None:
        """Take in a message that passes the scheduler."""
        if topic == TOPIC:
            self.figures.take(msg)


def serve(client: Client) -> bool:
    """Let the scheduler of a client serve metrics; return whether it does.

    It does not where dasktune is missing, is another version, or may not be asked for: that is
    said nowhere, since nothing depends on it.
    """
    version = dasktune.__version__

    def can_serve() -> bool:
        # Defined here so that it travels by value: dasktune may be missing over there.
        import importlib

        try:
            found = importlib.import_module("dasktune")
        except ImportError:
            return False
        # A folder of that name is a module, too.
        return getattr(found, "__version__", None) == version

    async def ask() -> bool:
        if not await client.run_on_scheduler(can_serve):
            return False
        await client.register_plugin(FiguresPlugin())
        return True

    try:
        return bool(client.sync(ask, callback_timeout=ANSWER_SECONDS))
    except Exception as error:  # noqa: BLE001 - whatever fails there is no reason to fail here
        logger.debug("the scheduler serves no metrics of studies: %s", error)
        return False


def tell(client: Client, message: Mapping[str, object], *, waits: bool = False) -> None:
    """Send how a run stands to the scheduler of a client; wait for it to be there if asked to."""
    scheduler, loop = client.scheduler, client.loop
    if client.status != "running" or scheduler is None or loop is None:
        return

    async def send() -> None:
        with suppress(OSError):
            await scheduler.log_event(topic=TOPIC, msg=dict(message))

    if waits:
        with suppress(OSError):  # a time-out, too
            client.sync(send, callback_timeout=ANSWER_SECONDS)
    else:
        loop.add_callback(send)
