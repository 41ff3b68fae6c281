"""One seed: a study in a world in which everything goes wrong that can, and what must hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from dasktune.engine.event_log import replay
from dasktune.graph.events import RunStage, WorkerJoined
from dasktune.types import Step
from dasktune.worker.messages import StageEnded
from tests.torture.books import check
from tests.torture.driver import OBJECTIVE, Driver, World
from tests.torture.scenario import FAULTS, ORDERLY, Scenario
from tests.torture.undisturbed import undisturbed
from tests.torture.ways import State, Way, metrics_of
from tests.torture.workers import Worker

FAULT_SHARE = 0.06
"""How often something goes wrong, of all that happens."""

MOST_EVENTS = 3000
"""Within how many of its turns a study must end."""

MOST_TURNS = 400
"""Within how many rounds it must end once nothing goes wrong any more."""

HARMLESS = frozenset({"clock", "pause", "receipt", "repeat"})
"""Faults after which the driver itself knows all metrics, not only who opens the study next."""


class Torture:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.events = 0
        self.faults: list[str] = []
        self._rng = random.Random(scenario.seed + 1)
        self._luck = random.Random(scenario.seed + 2)
        self._joined = 0
        self._gone: list[Worker] = []
        self._fragile: dict[State, bool] = {}
        self._poison = 0.03 if "raise" in scenario.faults and scenario.most_faults else 0.0
        self._deadly = 0.03 if "poison" in scenario.faults else 0.0
        # What kills its workers is told from a stage that was unlucky as often as workers die for
        # other reasons, and once because it ended just before the next one killed them.
        options = replace(scenario.options, losses_allowed=scenario.most_faults + 1)
        self.world = World(scenario.make, options, scenario.snapshot_every, scenario.parts)
        self.world.evicts = "evict" in scenario.faults
        for _ in range(scenario.workers):
            self._join()
        self.driver = self._start()
        self._acts: tuple[Callable[[], None], ...] = (
            *(self._work,) * 4,
            *(self._obey,) * 2,
            *(self._write,) * 2,
            *(self._hear,) * 3,
            *(self._turn,) * 3,
            self._hear_receipt,
            self._others_act,
            self._speak,
            self._predict,
            self._remove,
        )
        self._may = [
            getattr(self, f"_{name}")
            for name in scenario.faults
            if name not in ("raise", "poison", "lease")
        ]

    # -------------------------------------------------------------------------- the run

    def run(self) -> None:
        """Run to the end, and check it.

        Raises
        ------
        ViolationError
            At the first thing that does not hold.
        """
        self.driver.begin()
        while not self.driver.is_done and self.events < MOST_EVENTS:
            if len(self.faults) >= self.scenario.most_faults and self._rng.random() < 0.02:
                break
            self._one()
        self._calm_down()
        self._check_end()

    def _one(self) -> None:
        """Make one random thing happen."""
        self.events += 1
        self.world.pass_time(0.25)
        rng = self._rng
        is_due = self._may and len(self.faults) < self.scenario.most_faults
        if is_due and self._luck.random() < FAULT_SHARE:
            fault = self._may[int(self._luck.random() * len(self._may))]
            name = fault.__name__[1:]
            self.faults.append(name)
            self.world.story.append(f"FAULT: {FAULTS[name]}")
            fault()
        else:
            self._acts[int(rng.random() * len(self._acts))]()

    def _calm_down(self) -> None:
        """Stop injecting faults and run the study to its end."""
        for _ in range(MOST_TURNS):
            if self.driver.is_done:
                return
            self.world.pass_time(5.0)
            self._round()
        check(False, f"the study does not end: {self._what_is_left()}")

    def _round(self) -> None:
        """Make every actor do all that it can do now."""
        driver = self.driver
        for attempt in list(driver.others):
            driver.other_ended(attempt)
        for worker in [*self.world.workers.values(), *self._gone]:
            self.events += 1
            worker.asleep = 0
            while worker.inbox:
                worker.take(0, self._way)
            worker.work()
            if self._has_died(worker):
                continue
            while worker.writes:
                worker.write()
            if worker in self._gone:
                continue
            while worker.outbox:
                driver.hear(worker.outbox.popleft())
            while worker.late:
                driver.hear_late(*worker.late.pop())
            while worker.receipts:
                driver.hear_receipt(worker.receipts.popleft())
        while driver.questions:
            driver.answer(0)
        driver.removals.shutdown()
        driver.tick()
        driver.ask()
        driver.make_room()
        driver.carry_out()

    def _what_is_left(self) -> str:
        view = self.driver.engine.view
        return f"wanted {dict(view.wanted)}, attempts {list(view.attempts.values())}"

    def _check_end(self) -> None:
        driver, world = self.driver, self.world
        driver.flush_all()
        driver.books.compare_all()
        self._check_stages(driver)
        found = replay(world.make(), world.records(), OBJECTIVE)
        check(found.identical, f"replay of the log: {found}")
        for trial in driver.engine.trials.values():
            check(trial.state.is_finished, f"trial {trial.number} ends {trial.state.value}")
        if HARMLESS.issuperset(self.faults):
            self._check_metrics(driver)
        if self.scenario.tuner in ORDERLY:
            mine = {
                one.number: (one.state, one.steps, one.value)
                for one in driver.engine.trials.values()
            }
            merge = self.scenario.options.merge
            expected = undisturbed(self.scenario.make(), self._always_fails, merge=merge)
            check(mine == expected, f"trials are {mine}, undisturbed {expected}")
        if "lose" not in self.faults:
            # What no driver heard of is found in the store by whoever opens the study next.
            self._check_metrics(self._start())

    def _check_stages(self, driver: Driver) -> None:
        """Check that the rows of stages add up to the steps that the engine has counted.

        A driver that ends before its stages do cannot count them all.
        """
        if {"kill", "drain"}.isdisjoint(self.faults):
            figures = self.world.database.figures(self.world.study_id)
            rows = figures.steps_executed, figures.steps_repeated
            view = driver.engine.view
            counted = view.steps_executed, view.steps_repeated
            check(rows == counted, f"stages have (executed, repeated) {rows} steps, not {counted}")

    def _check_metrics(self, driver: Driver) -> None:
        """Check that all metrics are there of the steps that trials have reported."""
        every = self.scenario.report_every
        for trial in driver.engine.trials.values():
            nodes = driver.engine.view.plan.nodes_of(trial.number)
            known = {step for node in nodes for step in node.metrics}
            missing = set(range(every, trial.steps + 1, every)) - known
            check(not missing, f"trial {trial.number} lacks metrics at steps {sorted(missing)}")

    # -------------------------------------------------------------------- what goes well

    def _start(self) -> Driver:
        return Driver(self.world, self._is_taken)

    def _way(self, order: RunStage) -> Way:
        return self.world.ways.of(order.node)

    def _pick(self) -> Worker | None:
        """Return a worker that is awake; also one that is cut off."""
        workers = [*self.world.workers.values(), *self._gone]
        if not workers:
            return None
        worker = workers[int(self._rng.random() * len(workers))]
        if worker.asleep:
            worker.asleep -= 1
            return None
        return worker

    def _work(self) -> None:
        worker = self._pick()
        if worker is not None and worker.jobs:
            worker.work()
            self._has_died(worker)

    def _has_died(self, worker: Worker) -> bool:
        """Check what a worker has come to; let the driver hear of it if it died."""
        check(worker.wrong is None, f"{worker.name}: {worker.wrong}")
        if worker.is_dead:
            self.world.story.append(f"{worker.name} was killed by its step")
            if worker in self._gone:
                self._gone.remove(worker)
            else:
                self._part_with(worker)
        return worker.is_dead

    def _obey(self) -> None:
        worker = self._pick()
        if worker is not None and worker.inbox:
            worker.take(int(self._rng.random() * len(worker.inbox)), self._way)

    def _write(self) -> None:
        worker = self._pick()
        if worker is not None and worker.writes:
            worker.write()

    def _speak(self) -> None:
        worker = self._pick()
        if worker is not None:
            worker.speak()

    def _hear(self) -> None:
        worker = self._pick()
        if worker is None:
            return
        for _ in range(3):
            if worker.outbox:
                self.driver.hear(worker.outbox.popleft())
        if worker.late and self._rng.random() < 0.5:
            self.driver.hear_late(*worker.late.pop())

    def _hear_receipt(self) -> None:
        worker = self._pick()
        if worker is None or not worker.receipts:
            return
        # Dask tells after the worker did, unless a fault makes it the other way round.
        attempt = worker.receipts[0].attempt
        if not any(message.attempt == attempt for message in worker.outbox):
            self.driver.hear_receipt(worker.receipts.popleft())

    def _turn(self) -> None:
        driver = self.driver
        driver.tick()
        driver.ask()
        driver.make_room()
        driver.carry_out()

    def _remove(self) -> None:
        """Do one of the listings and removals of the driver."""
        jobs = self.driver.removals
        if jobs.jobs:
            jobs.do(int(self._rng.random() * len(jobs.jobs)))

    def _predict(self) -> None:
        """Deliver one of the pending predictions."""
        questions = self.driver.questions
        if questions:
            self.driver.answer(int(self._rng.random() * len(questions)))

    def _others_act(self) -> None:
        driver = self.driver
        for attempt, other in list(driver.others.items()):
            order = other.order
            if other.position >= order.stop or self._rng.random() < 0.2:
                driver.other_ended(attempt)
                continue
            before, other.position = other.position, other.position + 1
            at_end = other.position == order.stop
            if self._raises_at(order, other.position):
                other.position = before
                driver.other_ended(attempt)
            elif at_end or self._rng.random() < 0.3:
                self._other_saves(order, other.position)
                driver.hear_of_other(attempt, other.position)

    def _other_saves(self, order: RunStage, step: Step) -> None:
        way = self.world.ways.of(order.node)
        steps = range(order.start + 1, step + 1)
        reports = tuple((at, metrics_of(way.state(at))) for at in steps)
        key, state = order.node.key_at(step), way.state(step)
        self.world.store.save(key, state, attempt="other", step=step, reports=reports)

    def _raises_at(self, order: RunStage, step: Step) -> bool:
        return self._always_fails(self.world.ways.of(order.node).state(step))

    # --------------------------------------------------------------------- what goes wrong

    def _is_taken(self, order: RunStage) -> bool:
        may = "lease" in self.scenario.faults and self.scenario.options.merge
        if not may or len(self.faults) >= self.scenario.most_faults:
            return False
        # Others train from a state that they have made, or found.
        there = not order.start or self.world.store.has(order.node.key_at(order.start))
        taken = there and self._luck.random() < 0.15
        if taken:
            self.faults.append("lease")
            self.world.story.append(f"FAULT: {FAULTS['lease']}")
        return taken

    def _always_raises(self, state: State) -> bool:
        return state % 1009 < self._poison * 1009

    def _always_kills(self, state: State) -> bool:
        return state % 1013 < self._deadly * 1013

    def _always_fails(self, state: State) -> bool:
        return self._always_raises(state) or self._always_kills(state)

    def _raises(self, state: State) -> bool:
        """Whether the trainer raises: always at some states, at others the first time."""
        if self._always_raises(state):
            return True
        if not self._poison or state % 997 > 60 or state in self._fragile:
            return False
        if "break" in self.scenario.faults:
            return False  # or it could have raised on all workers: on one by chance
        self._fragile[state] = True
        return True

    def _join(self) -> Worker:
        name = f"w{self._joined}"
        self._joined += 1
        scenario, store = self.scenario, self.world.store
        worker = Worker(name, store, self._raises, self._always_kills, scenario.report_every)
        self.world.workers[name] = worker
        return worker

    def _join_and_tell(self) -> None:
        self.driver.tell(WorkerJoined(worker=self._join().name))

    def _victim(self) -> Worker | None:
        workers = list(self.world.workers.values())
        return workers[int(self._luck.random() * len(workers))] if workers else None

    def _crash(self) -> None:
        worker = self._victim()
        if worker is not None:
            self._part_with(worker)

    def _part_with(self, worker: Worker) -> None:
        """Deliver the loss of a worker to the driver, and start another worker."""
        del self.world.workers[worker.name]
        hears = self._luck.random() < 0.5
        self.driver.abandon(worker.name)
        self._join_and_tell()
        while hears and worker.outbox:
            self.driver.hear(worker.outbox.popleft())
        self.driver.lose(worker.name)

    def _partition(self) -> None:
        worker = self._victim()
        if worker is not None:
            self._gone.append(worker)
            self._part_with(worker)

    def _scheduler(self) -> None:
        lost = list(self.world.workers)
        self._let_go_of_all()
        for name in lost:
            self.driver.abandon(name)
        for worker in self.world.workers.values():
            self.driver.tell(WorkerJoined(worker=worker.name))
        for name in lost:
            self.driver.lose(name, is_blameless=True)

    def _pause(self) -> None:
        worker = self._victim()
        if worker is not None:
            worker.asleep = 20

    def _retire(self) -> None:
        worker = self._victim()
        if worker is not None:
            worker.give_up()
            worker.work()
            while worker.writes:
                worker.write()
            self._part_with(worker)

    def _unsend(self) -> None:
        worker = self._victim()
        if worker is None:
            return
        lost = [one for one in worker.inbox if isinstance(one, RunStage)]
        worker.inbox = [one for one in worker.inbox if not isinstance(one, RunStage)]
        lost += [job.order for job in worker.jobs if not job.began]
        worker.jobs = [job for job in worker.jobs if job.began]
        for order in lost:
            worker.forget(order.attempt)
            receipt = StageEnded(attempt=order.attempt, step=order.start, status="lost", at=0.0)
            self.driver.hear_receipt(receipt)

    def _repeat(self) -> None:
        worker = self._victim()
        if worker is not None and worker.outbox:
            self.driver.hear(worker.outbox[0])

    def _silence(self) -> None:
        worker = self._victim()
        if worker is not None:
            worker.outbox.clear()

    def _receipt(self) -> None:
        worker = self._victim()
        if worker is not None and worker.receipts:
            self.driver.hear_receipt(worker.receipts.popleft())

    def _cloud(self) -> None:
        questions = self.driver.questions
        if questions:
            self.driver.answer(int(self._luck.random() * len(questions)), fails=True)

    def _kill(self) -> None:
        """Kill the driver in its turn, and start another."""
        driver, luck = self.driver, self._luck.random()
        if luck < 0.7:
            driver.carry_out(int(self._luck.random() * 3) if luck < 0.4 else 0)
        driver.note_told()
        self._let_go_of_all()
        self.world.now = 0.0
        self.driver = self._start()
        self.driver.begin()

    def _drain(self) -> None:
        driver = self.driver
        driver.drain()
        driver.carry_out()
        for _ in range(int(self._luck.random() * 60)):
            if driver.engine.view.is_idle:
                break
            self._acts[int(self._rng.random() * 11)]()
        self._let_go_of_all()
        driver.go_on()

    def _let_go_of_all(self) -> None:
        """Retire the hosts of a dead driver as Dask does: each ends its step and saves it."""
        for worker in self.world.workers.values():
            worker.give_up()
            self._gone.append(worker)
        self.world.workers.clear()
        for _ in range(self.scenario.workers):
            self._join()

    def _clock(self) -> None:
        self.world.pass_time((100.0, -50.0, 1e6)[int(self._luck.random() * 3)])

    def _evict(self) -> None:
        self.driver.tighten(self._luck.random())
        if self._luck.random() < 0.5:
            self.driver.removals.shutdown()

    def _lose(self) -> None:
        # Only what the driver knows of: a state whose message is lost, and then the state, too,
        # is waited for until the worker goes.
        store, known = self.world.store, self.driver.books.durable
        keys = [key for key, state in store.states() if state in known]
        if keys:
            key = keys[int(self._luck.random() * len(keys))]
            self.driver.books.lost(dict(store.states())[key])
            store.checkpoints.discard(key)

    def _break(self) -> None:
        worker = self._victim()
        well = [one for one in self.world.workers.values() if not one.is_broken]
        if worker is not None and len(well) > 1:
            worker.is_broken = True

    def _save(self) -> None:
        worker = self._victim()
        if worker is not None:
            worker.save()

    # ------------------------------------------------------------------------- the story

    def story(self, last: int = 30) -> list[str]:
        """Return the latest happenings, one line each."""
        return [str(one) for one in self.world.story[-last:]]
