"""One study of a simulation, with its workers and its driver: what they do, and what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from dasktune._driver.worker_demand import demand_of
from dasktune._engine.event_log import replay
from dasktune._engine.trials import TrialRecord
from dasktune._worker.messages import StageEnded
from dasktune.graph.events import RunStage
from dasktune.graph.fair_shares import Claim
from dasktune.graph.packing import stand_ins
from dasktune.types import TrialState
from tests.torture.books import check
from tests.torture.driver import Driver
from tests.torture.scenario import ORDERLY, Plan
from tests.torture.study import OBJECTIVE, Study, World
from tests.torture.trainer import Trainer
from tests.torture.undisturbed import undisturbed
from tests.torture.ways import Way
from tests.torture.workers import Worker

HARMLESS = frozenset({"clock", "forget", "pause", "receipt", "repeat"})
"""Faults after which the driver itself knows all metrics, not only who opens the study next."""

MOST_SILENT_SECONDS = 15.0
"""Longest time without a turn of the driver's loop, which in truth turns every half second.

Less than a lease lasts: the leases of a loop that is silent for so long are not renewed.
"""


def is_cheap(key: str) -> bool:
    """Whether to store a state takes longer than to train it again."""
    return int(key[:2], 16) % 2 == 0


class Site:
    """A study, its workers and its driver.

    Parameters
    ----------
    world
        What it shares with others.
    plan
        Its tuner, and how many workers it has.
    trainer
        The model of user code.
    rng
        Decides what happens next.
    luck
        Decides what goes wrong.
    """

    def __init__(
        self, world: World, plan: Plan, trainer: Trainer, rng: random.Random, luck: random.Random
    ) -> None:
        self.world = world
        self.plan = plan
        self.study = Study(
            world,
            *(plan.name, plan.make, plan.options),
            *(plan.snapshot_every, plan.offset, plan.fleet),
            granted=self._first_granted,
            checked_at=plan.checked_at,
        )
        self._paused: frozenset[str] = frozenset()
        self._resting: frozenset[str] = frozenset()
        self.suspended = 0
        self.stuck = 0
        self.is_gone = False
        self._trainer = trainer
        self._rng = rng
        self._luck = luck
        self._joined = 0
        self._cut_off: list[Worker] = []
        self._join_all()
        self.driver = Driver(self.study)
        self._acts: tuple[Callable[[], None], ...] = (
            *(self._work,) * 4,
            *(self._obey,) * 2,
            *(self._write,) * 2,
            *(self._hear,) * 3,
            *(self._turn,) * 3,
            self._hear_receipt,
            *(self._hear_of_leases,) * 2,
            self._speak,
            self._predict,
            self._remove,
            self._look,
            self._claim,
        )
        self.driver.begin()
        self._turned_at = world.seconds

    @property
    def is_done(self) -> bool:
        """Whether the run has ended, or will never go on."""
        return self.is_gone or self.driver.is_done

    # ------------------------------------------------------------------ what goes well

    def act(self) -> None:
        """Make one random thing happen."""
        if self.suspended:
            self.suspended -= 1
            self._acts[int(self._rng.random() * 8)]()  # its workers go on
        elif self.world.seconds - self._turned_at > MOST_SILENT_SECONDS:
            self._turn()
        else:
            self._acts[int(self._rng.random() * len(self._acts))]()

    def go_on_with_leases(self) -> None:
        """Carry the jobs of the leases on, by a few requests to the store."""
        turns = self.driver.turns
        if self.suspended or self.stuck:
            self.stuck = max(0, self.stuck - 1)
            return
        turns.look()
        for _ in range(int(self._rng.random() * 8)):
            turns.go_on(int(self._rng.random() * 60))

    def end(self, faults: frozenset[str]) -> None:
        """End the run, once it is done."""
        if self.is_gone:
            return
        self.driver.flush_all()
        if "lose" not in faults:
            # What no driver heard of is found in the store by whoever opens the study next.
            self._check_metrics(Driver(self.study))
        self.driver.close()
        self._give_back()

    def _way(self, order: RunStage) -> Way:
        return self.world.ways.of(order.node)

    def _pick(self) -> Worker | None:
        """Return a worker that is awake; also one that is cut off."""
        workers = [*self.study.workers.values(), *self._cut_off]
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
            self.study.tell(f"{worker.name} was killed by its step")
            if worker in self._cut_off:
                self._cut_off.remove(worker)
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
        driver, self._turned_at = self.driver, self.world.seconds
        driver.pause(self._paused, self._resting)
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

    def _look(self) -> None:
        """Look which workers Dask has paused; what the driver makes of it comes later."""
        full = [worker for worker in self.study.workers.values() if worker.is_full]
        self._paused = frozenset(worker.name for worker in full)
        self._resting = frozenset(worker.name for worker in full if not worker.is_running)

    def _claim(self) -> None:
        """Claim workers, if two studies share them."""
        shares, view, engine = self.world.shares, self.driver.engine.view, self.driver.engine
        if shares is None or self.is_done:
            return
        demand = demand_of(view, self.study.now, left=engine.to_begin, least=engine.least_workers)
        shares.claim(
            self.plan.name,
            Claim(workers=demand.workers, weight=self.plan.fleet.weight, least=demand.least),
            self.world.seconds,
            self._places(view.busy_claims),
            self._places(view.claimable),
            wanted=None if demand.wanted is None else self._places(demand.wanted),
        )
        self.driver.grant(self._granted())

    def _first_granted(self) -> frozenset[str] | None:
        """Return the workers that a driver may use that has just come."""
        shares, fleet = self.world.shares, self.plan.fleet
        if shares is None:
            return None
        joined = [worker.machine.joined(name) for name, worker in self.study.workers.items()]
        claim = Claim(workers=1, weight=fleet.weight)
        usable = self._places(stand_ins(joined))
        shares.claim(self.plan.name, claim, self.world.seconds, usable=usable)
        self.world.sharing.add(self.plan.name)
        return self._granted()

    def _granted(self) -> frozenset[str] | None:
        """Return the workers that the study may use; None if it is alone."""
        shares = self.world.shares
        if shares is None or len(self.world.sharing) < 2:
            return None
        granted = shares.granted(self.plan.name)
        workers = self.study.workers.items()
        return frozenset(name for name, worker in workers if str(worker.place) in granted)

    def _places(self, workers: Iterable[str]) -> frozenset[str]:
        """Return the places of workers, by which two studies know them."""
        there = (self.study.workers.get(name) for name in workers)
        return frozenset(str(worker.place) for worker in there if worker is not None)

    def _give_back(self) -> None:
        """Give all workers to the other study."""
        if self.world.shares is not None:
            self.world.sharing.discard(self.plan.name)
            self.world.shares.leave(self.plan.name, self.world.seconds)

    def running_at(self) -> list[int]:
        """Return the places at which workers train."""
        workers = self.study.workers.values()
        busy = [worker for worker in workers if worker.is_running]
        lenders = [self.peer(name) for worker in busy for name in worker.lenders]
        return [worker.place for worker in (*busy, *lenders) if worker is not None]

    def peer(self, name: str) -> Worker | None:
        """Return a worker that is there."""
        return self.study.workers.get(name)

    def company(self, worker: Worker) -> int:
        """Return how many other workers of the same device train."""
        device, running = worker.machine.device, {*self.running_at()}
        return sum(
            each is not worker and each.machine.device == device and each.place in running
            for each in self.study.workers.values()
            if device
        )

    def _hear_of_leases(self) -> None:
        for _ in range(3):
            self.driver.hear_of_leases()

    # ------------------------------------------------------------------ once all is well

    def rest(self) -> None:
        """Make every actor do all that it can do now."""
        driver = self.driver
        self.suspended = self.stuck = 0
        for _ in range(20):
            driver.turns.give_way()
        driver.turns.look()
        while driver.lease_messages:
            driver.hear_of_leases()
        for worker in [*self.study.workers.values(), *self._cut_off]:
            worker.asleep = 0
            while worker.inbox:
                worker.take(0, self._way)
            worker.work()
            if self._has_died(worker):
                continue
            while worker.writes:
                worker.write()
            if worker in self._cut_off:
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
        for worker in self.study.workers.values():
            # The others must do all that is left, if they can.
            worker.is_full &= self._can_do_without(worker)
        self._look()
        self._claim()
        driver.pause(self._paused, self._resting)
        driver.tick()
        driver.ask()
        driver.make_room()
        driver.carry_out()

    def check_end(self, faults: frozenset[str]) -> None:
        """Check what must hold after all.

        Parameters
        ----------
        faults
            What went wrong.
        """
        if self.is_gone:
            return
        driver, plan = self.driver, self.plan
        driver.books.compare_all()
        self._check_stages(faults)
        found = replay(plan.make(), self.study.records(), OBJECTIVE)
        check(found.identical, f"replay of the log: {found}")
        trials = driver.engine.trials
        for trial in trials.values():
            check(trial.state.is_finished, f"trial {trial.number} ends {trial.state.value}")
            if trial.state is TrialState.FAIL:
                self._check_failure(trial)
        if faults <= HARMLESS:
            self._check_metrics(driver)
        if plan.tuner in ORDERLY:
            results = {
                trial.number: (trial.state, trial.steps, trial.value) for trial in trials.values()
            }
            merge = plan.options.merge
            expected = undisturbed(
                *(plan.make(), self._trainer.always_fails),
                merge=merge,
                paths=driver.engine.view.plan.paths,
            )
            check(results == expected, f"trials are {results}, undisturbed {expected}")

    def _check_failure(self, trial: TrialRecord) -> None:
        """Check that a trial which has failed could not be trained anywhere."""
        leaf = self.driver.engine.view.plan.paths[trial.number].leaf
        states = self.world.ways.of(leaf).states(0, trial.max_steps)
        has_failed = any(map(self._trainer.always_fails, states))
        check(has_failed, f"trial {trial.number} failed though it can be trained: {trial.message}")

    def _check_stages(self, faults: frozenset[str]) -> None:
        """Check that the rows of stages add up to the steps that the engine has counted.

        A driver that ends before its stages do cannot count them all.
        """
        if faults.isdisjoint(("kill", "drain")):
            figures = self.world.database.figures(self.study.id)
            rows = figures.steps_executed, figures.steps_repeated
            view = self.driver.engine.view
            counted = view.steps_executed, view.steps_repeated
            check(rows == counted, f"stages have (executed, repeated) {rows} steps, not {counted}")

    def _check_metrics(self, driver: Driver) -> None:
        """Check that all metrics are there of the steps that trials have reported."""
        every = self.plan.report_every
        for trial in driver.engine.trials.values():
            nodes = driver.engine.view.plan.nodes_of(trial.number)
            known = {step for node in nodes for step in node.metrics}
            missing = set(range(every, trial.steps + 1, every)) - known
            check(not missing, f"trial {trial.number} lacks metrics at steps {sorted(missing)}")

    def what_is_left(self) -> str:
        """Return the requests and attempts that are left."""
        view = self.driver.engine.view
        return f"{self.plan.name}: {dict(view.wanted)}, attempts {list(view.attempts.values())}"

    # ------------------------------------------------------------------ what goes wrong

    def suffer(self, fault: str) -> None:
        """Make one thing go wrong."""
        getattr(self, f"_{fault}")()

    def _join_all(self) -> None:
        for place in range(len(self.plan.fleet.machines)):
            self._join(place)

    def _join(self, place: int) -> Worker:
        name = f"{self.plan.name}-w{self._joined}"
        self._joined += 1
        world, trainer = self.world, self._trainer
        worker = Worker(
            name,
            world.store,
            trainer.raises,
            trainer.always_kills,
            self.plan.report_every,
            world.trained,
            is_cheap,
            machine=self.plan.fleet.machines[place],
            place=place,
            site=self,
        )
        self.study.workers[name] = worker
        return worker

    def _victim(self) -> Worker | None:
        workers = list(self.study.workers.values())
        return workers[int(self._luck.random() * len(workers))] if workers else None

    def _crash(self) -> None:
        worker = self._victim()
        if worker is not None:
            self._part_with(worker)

    def _part_with(self, worker: Worker) -> None:
        """Deliver the loss of a worker to the driver, and start another worker."""
        del self.study.workers[worker.name]
        hears = self._luck.random() < 0.5
        self.driver.abandon(worker.name)
        self.driver.join([self._join(worker.place).name])
        while hears and worker.outbox:
            self.driver.hear(worker.outbox.popleft())
        self.driver.lose(worker.name)

    def _partition(self) -> None:
        worker = self._victim()
        if worker is not None:
            self._cut_off.append(worker)
            self._part_with(worker)

    def _scheduler(self) -> None:
        lost = list(self.study.workers)
        self._let_go_of_all()
        for name in lost:
            self.driver.abandon(name)
        self.driver.grant(self._first_granted())
        self.driver.join(self.study.workers)
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
        self._die()
        self._let_go_of_all()
        self.world.keep_rows()  # what is lost later, this driver has not kept
        self.study.now = 0.0
        self.driver = Driver(self.study)
        self.driver.begin()

    def _die(self) -> None:
        driver, luck = self.driver, self._luck.random()
        if luck < 0.7:
            driver.carry_out(int(self._luck.random() * 3) if luck < 0.4 else 0)
        driver.note_told()
        driver.turns.kill()
        self.suspended = self.stuck = 0

    def _drain(self) -> None:
        driver = self.driver
        driver.drain()
        driver.carry_out()
        for _ in range(int(self._luck.random() * 60)):
            if driver.engine.view.is_idle:
                break
            self._acts[int(self._rng.random() * 11)]()
            self.go_on_with_leases()
            self.driver.hear_of_leases()
        self._let_go_of_all()
        driver.go_on()

    def _let_go_of_all(self) -> None:
        """Retire the hosts of a dead driver as Dask does: each ends its step and saves it."""
        for worker in self.study.workers.values():
            worker.give_up()
            self._cut_off.append(worker)
        self.study.workers.clear()
        self._give_back()
        self._join_all()

    def _evict(self) -> None:
        self.driver.tighten(self._luck.random())
        if self._luck.random() < 0.5:
            self.driver.removals.shutdown()

    def _break(self) -> None:
        worker = self._victim()
        # Where another study has the others, a trial fails after eight tries.
        is_alone = self.world.shares is None
        if worker is not None and is_alone and self._can_do_without(worker):
            worker.is_broken = True

    def _full(self) -> None:
        worker = self._victim()
        if worker is not None:
            worker.is_full = not worker.is_full

    def _can_do_without(self, worker: Worker) -> bool:
        """Whether another worker, which is well, may train all that this one may."""
        own = worker.machine
        return self.plan.fleet.features.isdisjoint({"gangs", "scale"}) and any(
            (each.machine.kind, each.machine.numerics) == (own.kind, own.numerics)
            for each in self.study.workers.values()
            if not (each is worker or each.is_broken or each.is_full)
        )

    def _save(self) -> None:
        worker = self._victim()
        if worker is not None:
            worker.save()

    def _store(self) -> None:
        """Fail some requests of the driver, and delay others."""
        self.driver.own_files.failures += int(self._luck.random() * 6)
        self.stuck += int(self._luck.random() * 120)

    def _suspend(self) -> None:
        self.suspended += int(self._luck.random() * 400)

    def vanish(self) -> None:
        """Kill the driver, unless it is done, with all its workers: none of them comes back."""
        if self.is_done:
            return
        self._die()
        self.study.workers.clear()
        self._cut_off.clear()
        self.is_gone = True
        self._give_back()
