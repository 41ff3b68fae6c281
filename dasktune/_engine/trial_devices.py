"""The devices of trials: on how many of them each is trained from now on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dasktune._engine.scaling import DeviceChoices, LivingTrials, Scale, one_device_text
from dasktune._engine.session import Session
from dasktune._engine.trial_keeper import TrialKeeper
from dasktune._engine.trial_training import TrialTraining
from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_log import TunerLog
from dasktune._engine.tuner_records import DevicesChosen
from dasktune.errors import ConfigurationError, InternalError
from dasktune.graph.devices import Periods, before, devices_text
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Instruction
from dasktune.graph.view import RunView
from dasktune.needs import Needs
from dasktune.types import Extend, Step

DevicesOf = Callable[[Needs | None], int]
"""Returns how many devices train a trial together, from its own needs if it has any.

Raises `ConfigurationError` if its needs leave that open.
"""


class TrialDevices:
    """Gives trials their devices: as many as they need, or with a `Scale` as many as pay.

    Without `devices_of` each trial needs one device.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        keeper: TrialKeeper,
        training: TrialTraining,
        log: TunerLog,
        *,
        devices_of: DevicesOf | None,
        scale: Scale | None,
    ) -> None:
        self._dispatcher, self._view = dispatcher, RunView(dispatcher)
        self._keeper, self._training, self._log = keeper, training, log
        self._devices_of = devices_of
        self._choices = None if scale is None else DeviceChoices(scale, self._view)

    @property
    def least_workers(self) -> int:
        """The number of workers without which no stage of now can be trained.

        With a `Scale`, trials that wait for more workers than there are go on with fewer.
        """
        return 1 if self._choices is not None else self._view.least_workers

    @property
    def moving(self) -> Mapping[int, bool]:
        """The trials whose stages were told to end, as `DeviceChoices.moving` has them."""
        return {} if self._choices is None else self._choices.moving

    def expect(self, workers: int) -> None:
        """Count on workers that are about to join."""
        if self._choices is not None:
            self._choices.expected = workers

    def fit(self, trial: TrialRecord, needs: Needs | None) -> str:
        """Train a new trial on as many devices as it needs; one that has begun, from now on.

        Return why it cannot be trained; empty if it can.
        """
        problem = self._fit(trial, needs)
        if self._choices is not None:
            self._choices.take(trial)
        return problem

    def _fit(self, trial: TrialRecord, needs: Needs | None) -> str:
        if self._devices_of is None or trial.state.is_finished:
            return ""
        try:
            devices = self._devices_of(needs)
        except ConfigurationError as error:
            return str(error)
        if self._choices is not None:  # they are chosen when the trial is extended
            return one_device_text(devices) if devices > 1 else ""
        if trial.use_devices(devices):
            self._keeper.change(trial)
            if trial.number in self._dispatcher.plan.paths:
                # The study has read it as it was; it asks for nothing yet, and is made known anew.
                self._dispatcher.plan.remove(trial.number)
        return ""

    def choose(
        self, session: Session, request: Extend, asked: Mapping[int, Extend]
    ) -> list[Instruction]:
        """Choose the devices of a trial for a new request; `asked` are all of the same call."""
        choices, trial = self._choices, self._keeper.of(session, request.trial)
        if choices is None:
            return []
        is_alone = trial.alone is not None or self._training.is_alone(trial.sequences, trial.seed)
        if is_alone or trial.number in self._view.wanted:
            return []  # there is no state to go on from with other devices
        living = self._living(session).count(request, asked) + (session.tuner.to_begin or 0)
        choices.renew(trial.number)
        periods = choices.periods(trial, start=trial.steps, until=request.until, living=living)
        return self._use(session, choices, trial, periods)

    def follow(self, session: Session, now: float) -> list[Instruction]:
        """Change the devices of trials after an event: workers or measurements may be new."""
        choices = self._choices
        if choices is None:
            return []
        return [
            *self._give_fewer(session, choices, now),
            *self._take_back(session, choices, now),
            *self._go_on(session, choices, now),
        ]

    def _give_fewer(
        self, session: Session, choices: DeviceChoices, now: float
    ) -> list[Instruction]:
        """Give the trials that wait for more devices than there are as many as there are."""
        instructions: list[Instruction] = []
        living = self._living(session)
        for number, start in list(choices.unmet()):
            trial = self._keeper.trials[number]
            request = living.request_of(trial)
            # What was reported already must be trained again as it was, once there are workers.
            if request is not None and start >= trial.steps:
                instructions += self._dispatcher.stop(number, now)
                choices.renew(number)  # it may grow again when workers return
                instructions += self._choose_again(session, choices, request, start, now)
        return instructions

    def _take_back(self, session: Session, choices: DeviceChoices, now: float) -> list[Instruction]:
        """Stop the stages whose several devices do not pay: their trials go on with fewer."""
        instructions: list[Instruction] = []
        living = self._living(session)
        for number in list(choices.wasteful(self._keeper.trials)):
            if living.request_of(self._keeper.trials[number]) is not None:
                instructions += self._dispatcher.stop(number, now)
                choices.moving[number] = False
        return instructions

    def give_more(self, session: Session, now: float) -> list[Instruction]:
        """Stop the stages that idle workers shall join: the tuner has no other work for those."""
        choices = self._choices
        if choices is None or session.finished:
            return []
        instructions: list[Instruction] = []
        for growth in list(choices.growing(self._keeper.trials, self._living(session))):
            for number in growth.trials:
                instructions += self._dispatcher.stop(number, now)
                choices.moving[number] = True
        return instructions

    def _go_on(self, session: Session, choices: DeviceChoices, now: float) -> list[Instruction]:
        """Ask for the rest of the trials whose stages were stopped for other devices."""
        instructions: list[Instruction] = []
        for number in sorted(choices.moving):
            trial = self._keeper.trials[number]
            request = self._living(session).request_of(trial)
            start = self._view.last_state(number, trial.steps)
            if request is None or number in self._view.wanted:
                del choices.moving[number]  # the tuner has decided otherwise meanwhile
            elif start is not None:
                from_idle = choices.moving.pop(number)
                instructions += self._choose_again(
                    *(session, choices, request, start, now), from_idle=from_idle
                )
        return instructions

    def _choose_again(
        self,
        session: Session,
        choices: DeviceChoices,
        request: Extend,
        start: Step,
        now: float,
        *,
        from_idle: bool = False,
    ) -> list[Instruction]:
        """Ask for the rest of a request, on devices that are chosen for it now."""
        trial = self._keeper.of(session, request.trial)
        instructions: list[Instruction] = []
        if start < request.until:
            living = self._living(session).count(request)
            if not from_idle:
                living += session.tuner.to_begin or 0
            periods = choices.periods(
                trial, start=start, until=request.until, living=living, from_idle=from_idle
            )
            instructions += self._use(session, choices, trial, periods)
        return instructions + self._training.go_on(trial, request, now)

    def _use(
        self, session: Session, choices: DeviceChoices, trial: TrialRecord, periods: Periods
    ) -> list[Instruction]:
        """Train a trial on other devices from now on; the log says which were chosen."""
        if periods == trial.devices:
            return []
        if before(periods, trial.steps) != before(trial.devices, trial.steps):
            raise InternalError(
                f"trial {trial.number} must keep its devices up to step {trial.steps}, got "
                f"{devices_text(periods)} after {devices_text(trial.devices)}"
            )
        trial.devices = periods
        choices.take(trial)
        self._keeper.change(trial)
        self._dispatcher.plan.remove(trial.number)
        needs = self._training.needs(trial, session.tuner.searched_space)
        instructions = self._training.enter(trial, needs)
        self._log.note(session, DevicesChosen(trial=trial.local, devices=periods))
        return instructions

    def _living(self, session: Session) -> LivingTrials:
        return LivingTrials(session, self._keeper.trials, self._dispatcher)
