"""The number of devices that train a trial together, chosen by measured speed.

Late in a study fewer trials live than there are devices. A trial then gets 2, 4, 8, ... devices,
as long as there are so many for each trial that lives, and as long as more of them pay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dasktune._engine.session import Session
from dasktune._engine.trials import TrialRecord
from dasktune._numbers import make_plain, real_of, whole_of
from dasktune.errors import refuse, shown
from dasktune.graph.devices import Periods, devices_at, with_change, with_devices, with_part
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.frontier import start_of
from dasktune.graph.view import AttemptView, RunView
from dasktune.types import Extend, Step

EFFICIENCY = 0.75
"""The least efficiency of several devices, unless told otherwise."""

PROVEN_STEPS, PROVEN_TIME = 3, 10.0
"""The steps, and the seconds, after which devices that do not pay are taken from a stage.

The first steps of several processes take longer than all that follow.
"""

LEAST_GAIN = 10.0
"""The seconds by which a stage must end sooner, at least, to be stopped for more devices.

To that comes the time of loading its state. Several processes begin to train within this time.
"""

MOST_LIVING = 4
"""With more living trials for each worker, every trial is trained on one device."""

NOTHING_ASKED: Mapping[int, Extend] = {}

Speedups = Mapping[int, float]
"""How many times the steps of one device several devices train in a second, by their number.

Only what was measured is in it: also the 1 of one device.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many devices may train one trial together when fewer trials live than devices.

    Parameters
    ----------
    max
        Most devices of a trial. It gets 1, 2, 4, ... of them, up to this number.
    efficiency
        The least share of their speed that devices must keep together: with 0.75, a trial gets 4
        devices if they train 3 times as many steps a second as one.

    Raises
    ------
    ConfigurationError
        If `max` is not an int >= 1, or `efficiency` is not above 0 and up to 1.

    Examples
    --------
    >>> Scale(max=8)
    Scale(max=8, efficiency=0.75)
    """

    max: int
    efficiency: float = EFFICIENCY

    def __post_init__(self) -> None:
        """Refuse all problems at once."""
        problems = []
        make_plain(self, "max", "efficiency")
        if whole_of(self.max) is None:
            problems.append(f"Scale.max must be an int >= 1, got {shown(self.max)}")
        if not 0 < real_of(self.efficiency) <= 1:
            problems.append(
                "Scale.efficiency must be a number above 0 and up to 1, got "
                f"{shown(self.efficiency)}"
            )
        refuse(problems)


def one_device_text(devices: int) -> str:
    """Return why a trial whose needs ask for several devices cannot have more of them."""
    return f"needs must ask for 1 device where scale gives a trial more of them, got {devices}"


def count_living(own: float, others: Iterable[float]) -> float:
    """Return for how many trials the devices must last while one of them is trained.

    `own` and `others` are the seconds that this one and the others have left on one device. A
    trial with less left than this one leaves its devices sooner, so it counts in part.

    Examples
    --------
    >>> count_living(48.0, [12.0, 12.0, 100.0])
    2.5
    """
    return 1.0 + sum(min(1.0, left / own) for left in others)


def most_devices(scale: Scale, *, living: float, pool: Mapping[str, int]) -> int:
    """Return the most devices for each trial: as many for all that live, all of one class.

    `living` trials train or wait, this one among them; see `count_living`. `pool` has the number of
    devices that may train this trial, by compute class.

    Examples
    --------
    >>> most_devices(Scale(max=8), living=2, pool={"a": 5, "b": 4})
    4
    """
    share = int(sum(pool.values()) / max(1.0, living))
    return _power_of_two(min(scale.max, share, max(pool.values(), default=0)))


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to a number; at least 1."""
    return 1 << (max(1, number).bit_length() - 1)


def choose_devices(scale: Scale, *, most: int, speedups: Speedups) -> int:
    """Return how many devices shall train a trial: the largest number up to `most` that pays.

    One device must have been measured. A number that was not is tried if it may pay; see
    `efficiency_of`. Measured curves have dips, so a number may pay although its half does not.

    Examples
    --------
    >>> scale = Scale(max=8)
    >>> choose_devices(scale, most=8, speedups={1: 1.0, 2: 1.9, 4: 3.1, 8: 4.0})
    4
    >>> choose_devices(scale, most=8, speedups={1: 1.0})
    8
    >>> choose_devices(scale, most=8, speedups={})
    1
    """
    if 1 not in speedups:
        return 1
    numbers = (1 << power for power in reversed(range(1, most.bit_length())))
    paying = (each for each in numbers if efficiency_of(each, speedups) >= scale.efficiency)
    return next(paying, 1)


def efficiency_of(devices: int, speedups: Speedups) -> float:
    """Return the share of their speed that devices keep together, as measured or estimated.

    What was not measured follows from the next larger number that was, else from the largest, by
    Amdahl's law: of a step's time on one device a share f is not divided, so k devices keep
    ``1 / (1 + f * (k - 1))``. Where only one device was measured, they are taken to keep all.

    Examples
    --------
    >>> efficiency_of(2, {1: 1.0, 2: 1.5}), efficiency_of(2, {1: 1.0})
    (0.75, 1.0)
    >>> round(efficiency_of(3, {1: 1.0, 5: 2.5}), 3)
    0.667

    References
    ----------
    Amdahl, "Validity of the single processor approach to achieving large scale computing
    capabilities", 1967.
    """
    if devices in speedups:
        return speedups[devices] / devices
    several = [each for each in speedups if each > 1]
    if not several:
        return 1.0
    near = min(filter(devices.__lt__, several), default=max(several))
    undivided = max(0.0, (near / speedups[near] - 1) / (near - 1))
    return 1 / (1 + undivided * (devices - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A stage that shall go on with more devices, at most so many; `trials` wait for it."""

    trials: tuple[int, ...]
    devices: int


class LivingTrials:
    """The trials of a tuner that train or wait: devices must last for all of them."""

    def __init__(
        self, session: Session, trials: Mapping[int, TrialRecord], dispatcher: Dispatcher
    ) -> None:
        self._session, self._trials, self._dispatcher = session, trials, dispatcher

    def request_of(self, trial: TrialRecord) -> Extend | None:
        """Return the request of a trial that may change its devices, if there is one."""
        if trial.tuner != self._session.place or trial.alone is not None:
            return None
        return self._session.requests.get(trial.local)

    def count(self, request: Extend, asked: Mapping[int, Extend] = NOTHING_ASKED) -> float:
        """Return for how many trials the devices must last while one request is trained.

        `asked` are the requests of the present call, by trial; the session need not have them yet.
        """
        requests = {**self._session.requests, **asked}
        own = self._seconds_left(requests.pop(request.trial, request))
        certain = len(self._session.retrained)
        if len(requests) > MOST_LIVING * len(self._dispatcher.slots):
            return float(certain + len(requests))  # none of them will have several devices
        return certain + count_living(own, map(self._seconds_left, requests.values()))

    def _seconds_left(self, request: Extend) -> float:
        """Return about how long the rest of a request takes; steps before any was measured."""
        trial = self._trials[self._session.numbers[request.trial]]
        seconds = self._dispatcher.seconds_per_step(trial.number) or 1.0
        return max(1, request.until - trial.steps) * seconds


class DeviceChoices:
    """Chooses the devices of the trials of a run."""

    def __init__(self, scale: Scale, view: RunView) -> None:
        self._scale = scale
        self._view = view
        self.expected = 0
        """Number of workers that are about to join: the devices, as long as there are none."""
        self.moving: dict[int, bool] = {}
        """The trials whose stage was told to end, so that they go on with other devices; and
        whether these shall be idle then, as they are where a trial gets more."""
        self._grown: dict[int, int] = {}
        """The most devices that were meant for each trial since it was last renewed."""
        self._reviewed: tuple[int, ...] = ()
        self._several: set[int] = set()
        """Trials on several devices that may wait for them."""
        self._known: dict[Periods, None] = {}
        """The devices of all trials so far."""

    def take(self, trial: TrialRecord) -> None:
        """Note the devices of a trial, as they are now."""
        self._known[tuple(trial.devices)] = None
        if trial.devices[-1][1] > 1:
            self._several.add(trial.number)
        else:
            self._several.discard(trial.number)

    def renew(self, trial: int) -> None:
        """Handle a new request of a trial, or the loss of its workers: it may grow anew."""
        self._grown.pop(trial, None)

    def periods(
        self,
        trial: TrialRecord,
        *,
        start: Step,
        until: Step,
        living: float,
        from_idle: bool = False,
    ) -> Periods:
        """Return the devices of a trial that is to be trained further, by their first steps.

        It may change them from `start` on. Steps that were trained on some number of devices, or
        will be for other trials, are taken as they are: none is trained twice. The choice begins
        behind them. With `from_idle`, the trial takes idle devices and waits for no others.
        """
        devices, shared = self._shared(trial, start, until)
        if shared >= until:
            return devices
        chosen = self._choose(trial, shared, living)
        if from_idle and shared == start:
            node = self._view.plan.node_at(trial.number, start + 1)
            free = max(self._view.idle_for(node).values(), default=0)
            chosen = min(chosen, _power_of_two(free))
            self._grown[trial.number] = max(chosen, self._grown.get(trial.number, 1))
        return with_change(devices, shared, chosen)

    def _shared(self, trial: TrialRecord, start: Step, until: Step) -> tuple[Periods, Step]:
        """Return the devices on which most steps are shared, and the step where that ends."""
        # The present number goes first: with as many steps on others, nothing changes.
        present = with_change(trial.devices, start, trial.devices[-1][1])
        choices = (with_part(trial.devices, each, start, until) for each in self._known)
        made = {
            choice: self._view.made_until(
                trial.number, with_devices(trial.sequences, choice), until
            )
            for choice in dict.fromkeys((present, *choices))
        }
        best = max(made, key=lambda choice: made[choice])
        return (best, made[best]) if made[best] > start else (trial.devices, start)

    def _pool(self, trial: TrialRecord, start: Step) -> Mapping[str, int]:
        """Return the devices that may train a trial from a step on, by class: at least one."""
        node = self._view.plan.node_at(trial.number, start + 1)
        return self._view.devices_for(node) or {"": max(1, self.expected)}

    def _choose(self, trial: TrialRecord, start: Step, living: float) -> int:
        pool = self._pool(trial, start)
        most = most_devices(self._scale, living=living, pool=pool)
        if most == 1:
            return 1
        speedups = self._view.speedups(trial.sequences, start, self._numbers)
        return choose_devices(self._scale, most=most, speedups=speedups)

    @property
    def _numbers(self) -> list[int]:
        """The numbers of several devices that a trial may have."""
        return [1 << power for power in range(1, self._scale.max.bit_length())]

    def wasteful(self, trials: Mapping[int, TrialRecord]) -> Iterator[int]:
        """Yield the trials that train on devices that do not pay, by what was measured so far."""
        for number in sorted(self._several):
            attempt = self._view.running_attempt(number)
            if attempt is None or attempt.ended or attempt.taken:
                continue
            trial, steps = trials[number], attempt.position - attempt.start
            devices = devices_at(attempt.node.sequences, attempt.start)
            seconds = steps * self._view.seconds_per_step(attempt.node, attempt.kind)
            is_proven = steps >= PROVEN_STEPS and seconds >= PROVEN_TIME
            if is_proven and devices == trial.devices[-1][1] > 1:
                speedups = self._view.speedups(trial.sequences, attempt.start, self._numbers)
                is_known = {1, devices} <= speedups.keys()
                if is_known and efficiency_of(devices, speedups) < self._scale.efficiency:
                    yield number

    def growing(self, trials: Mapping[int, TrialRecord], living: LivingTrials) -> Iterator[Growth]:
        """Yield the stages that would end sooner if idle workers joined them, the longest first."""
        view = self._view
        state = view.idle_workers, len(view.attempts), view.measurements
        if not view.idle_workers or state == self._reviewed:
            return
        self._reviewed = state
        groups = []
        for attempt, numbers in view.running_groups():
            group = [trials[number] for number in numbers]
            requests = [living.request_of(trial) for trial in group]
            if (first := requests[0]) is not None and None not in requests:
                groups.append((self._seconds_left(attempt, group), attempt, numbers, first))
        taken: Counter[str] = Counter()
        for left, attempt, numbers, request in sorted(groups, key=lambda group: -group[0]):
            own = devices_at(attempt.node.sequences, attempt.position)
            if not all(_is_trained_on(own, trials[number], attempt) for number in numbers):
                continue
            free = view.idle_for(attempt.node)[attempt.kind] - taken[attempt.kind]
            most = self._most_grown(attempt, own, free, living.count(request))
            tried = max(self._grown.get(number, own) for number in numbers)
            devices = self._grown_to(attempt, own, most, left) if most > tried else own
            if devices > tried:
                taken[attempt.kind] += devices - own
                self._grown.update(dict.fromkeys(numbers, devices))
                yield Growth(trials=tuple(numbers), devices=devices)

    def _seconds_left(self, attempt: AttemptView, trials: Iterable[TrialRecord]) -> float:
        """Return about how long a stage, and what its trials ask for behind it, still takes."""
        until = max(trial.until or attempt.stop for trial in trials)
        per_step = self._view.seconds_per_step(attempt.node, attempt.kind)
        return max(0, until - attempt.position) * per_step

    def _most_grown(self, attempt: AttemptView, own: int, free: int, living: float) -> int:
        """Return the most devices of a stage: its own, and idle ones of its class."""
        if any(map(self._view.company, (attempt.worker, *attempt.lenders))):
            return own  # others train on the same device
        pool = self._view.devices_for(attempt.node)
        return min(most_devices(self._scale, living=living, pool=pool), _power_of_two(own + free))

    def _grown_to(self, attempt: AttemptView, own: int, most: int, left: float) -> int:
        """Return the number of devices up to `most` that is worth to stop a stage for, or `own`."""
        speedups = self._view.speedups(attempt.node.sequences, attempt.position, self._numbers)
        devices = choose_devices(self._scale, most=most, speedups=speedups)
        if devices <= own:
            return own
        before, after = (each * efficiency_of(each, speedups) for each in (own, devices))
        gain = left * (1 - before / after)
        cost = LEAST_GAIN + self._view.load_seconds(attempt.kind)
        return devices if gain >= cost else own

    def unmet(self) -> Iterator[tuple[int, Step]]:
        """Yield the trials that wait for more devices than there are, and where their stage starts.

        No class has as many workers any more. If there are none at all, the stage waits for them,
        as all others do.
        """
        for number in sorted(self._several):
            node = self._view.waiting_stage(number)
            if node is not None:
                most = max(self._view.devices_for(node).values(), default=0)
                if 0 < most < devices_at(node.sequences, start_of(node)):
                    yield number, start_of(node)


def _is_trained_on(devices: int, trial: TrialRecord, attempt: AttemptView) -> bool:
    """Whether a stage trains steps that a trial has not reported, on its last devices."""
    step, last = trial.devices[-1]
    return last == devices and max(step, trial.steps) <= attempt.position
