"""One seed: studies in a world in which everything goes wrong that can, and what must hold."""

from __future__ import annotations

import random
import re
from collections import Counter

from dasktune.graph.fair_shares import StudyShares
from tests.torture.books import check
from tests.torture.scenario import FAULTS, SHARED, Plan, Scenario
from tests.torture.site import Site
from tests.torture.study import World
from tests.torture.trainer import Trainer
from tests.torture.ways import State

FAULT_SHARE = 0.06
"""How often something goes wrong, of all that happens."""

EVENT_SECONDS = 0.25
"""Time between two happenings."""

MOST_EVENTS = 3000
"""Within how many of its turns a study must end."""

MOST_TURNS = 400
"""Within how many rounds it must end once nothing goes wrong any more."""

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""What a story would have otherwise in each process."""

UNLEASED = frozenset({"clock", "store", "suspend"})
"""Faults by which a live driver may lose its leases."""


class Torture:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.events = 0
        self.faults: list[str] = []
        self._rng = random.Random(scenario.seed + 1)
        self._luck = random.Random(scenario.seed + 2)
        self._trainer = Trainer(scenario)
        self.world = World(scenario.parts)
        self.world.evicts = "evict" in scenario.faults
        self.world.forgets = "forget" in scenario.faults
        self._copies = random.Random(scenario.seed + 6)
        if "shared" in scenario.plan.fleet.features:
            self.world.shares = StudyShares()
            for place in range(len(scenario.plan.fleet.machines)):
                self.world.shares.join(str(place), 0.0)
        self._ended: set[str] = set()
        self._may = [
            name
            for name in scenario.faults
            if name not in ("raise", "poison") and (name != "lease" or scenario.plan.options.merge)
        ]
        self.sites: list[Site] = []

    # -------------------------------------------------------------------------- the run

    def run(self) -> None:
        """Run to the end, and check it.

        Raises
        ------
        ViolationError
            At the first thing that does not hold.
        """
        self._arrive(self.scenario.plan)
        if self._is_due("lease") and self._luck.random() < 0.35:
            self._go_wrong("lease")
        while self._open and self.events < MOST_EVENTS:
            if len(self.faults) >= self.scenario.most_faults and self._rng.random() < 0.02:
                break
            self._one()
        if self._is_due("lease") and len(self.sites) == 1 and self._luck.random() < 0.3:
            self._go_wrong("lease")
        self._calm_down()
        self._check_end()

    @property
    def _open(self) -> list[Site]:
        """The sites that have not ended; those that have come to their end are ended now."""
        there = []
        for site in self.sites:
            if not site.is_done:
                there.append(site)
            elif site.plan.name not in self._ended:
                self._ended.add(site.plan.name)
                site.end(frozenset(self.faults))
                self.world.keep_rows()
        return there

    def _arrive(self, plan: Plan) -> None:
        """Start the first driver of a study."""
        self.sites.append(Site(self.world, plan, self._trainer, self._rng, self._luck))
        self.world.keep_rows()

    def _is_due(self, *names: str) -> bool:
        """Whether one of these faults may happen now."""
        left = len(self.faults) < self.scenario.most_faults
        return left and not set(names).isdisjoint(self._may)

    def _one(self) -> None:
        """Make one random thing happen."""
        self.events += 1
        self._pass_time(EVENT_SECONDS)
        there = self._open
        for site in there:
            site.go_on_with_leases()
        if self.world.forgets and self._copies.random() < 0.1:
            self.world.keep_rows()
        if self._is_due(*self._may) and self._luck.random() < FAULT_SHARE:
            fault = self._may[int(self._luck.random() * len(self._may))]
            if fault not in ("lease", "vanish") or (fault == "lease") == (len(self.sites) == 1):
                self._go_wrong(fault)
        elif there:
            there[int(self._rng.random() * len(there)) if len(there) > 1 else 0].act()
        if len(there) > 1:
            self._check_leases([site for site in there if not site.is_done])
            self._check_sharing()

    def _check_leases(self, there: list[Site]) -> None:
        """Check that no driver has taken a lease that a live one holds."""
        if UNLEASED.isdisjoint(self.faults):
            keys = Counter(key for site in there for key in set(site.driver.held_leases))
            twice = [key for key, drivers in keys.items() if drivers > 1]
            check(not twice, f"the lease on {twice} was taken over while its driver lived")

    def _check_sharing(self) -> None:
        """Check that no two studies train on one worker, if they share the workers.

        A paused worker may have begun what its driver has taken back.
        """
        if self.world.shares is not None and "full" not in self.faults:
            places = Counter(place for site in self.sites for place in {*site.running_at()})
            twice = [place for place, studies in places.items() if studies > 1]
            check(not twice, f"both studies train on the workers {twice}")

    def _pass_time(self, seconds: float) -> None:
        """Move all clocks on."""
        self.world.epoch += seconds
        self.world.seconds += max(0.0, seconds)
        for site in self.sites:
            site.study.now += seconds

    def _calm_down(self) -> None:
        """Stop injecting faults and run all studies to their ends."""
        for _ in range(MOST_TURNS):
            there = self._open
            if not there:
                return
            for _ in range(5):
                self._pass_time(1.0)
                for site in there:
                    site.go_on_with_leases()
            for site in there:
                self.events += len(site.study.workers)
                site.rest()
        left = "; ".join(site.what_is_left() for site in self._open)
        check(not left, f"the study does not end: {left}")

    def _check_end(self) -> None:
        faults = frozenset(self.faults)
        for site in self.sites:
            site.check_end(faults)
        # Nobody hears how far a worker has come that is killed by its step.
        if faults.issubset((*SHARED, "forget")) and "poison" not in self.scenario.faults:
            self._check_counts()

    def _check_counts(self) -> None:
        """Check that drivers report every step that was trained before, whoever trained it."""
        views = [site.driver.engine.view for site in self.sites]
        trained, distinct = self.world.trained.total(), len(self.world.trained)
        executed = sum(view.steps_executed for view in views)
        repeated = sum(view.steps_repeated for view in views)
        check(trained == executed, f"{trained} steps were trained, {executed} are counted")
        if self.world.shares is not None:
            return  # a driver that gets no worker for long hears nothing of what is not stored
        check(
            distinct + repeated == trained,
            f"{trained} steps were trained, {distinct} of them once, {repeated} are repeats",
        )

    # --------------------------------------------------------------------- what goes wrong

    def _go_wrong(self, fault: str) -> None:
        self.faults.append(fault)
        self.world.story.append(f"FAULT: {FAULTS[fault]}")
        match fault:
            case "lease":
                self._arrive(self.scenario.other)
                # It lives for a short time only: later nobody notices that it is gone.
                self._may += [name for name in self._may if name == "vanish"] * 8
            case "vanish":
                self.sites[1].vanish()
                self.world.keep_rows()
            case "clock":
                self._pass_time((100.0, -50.0, 1e6)[int(self._luck.random() * 3)])
            case "lose":
                self._lose()
            case "forget":
                self.world.lose_rows()
                for site in self._open:
                    site.driver.database.next_event(site.study.id)
            case _:
                there = self._open
                if there:
                    there[int(self._luck.random() * len(there))].suffer(fault)

    def _lose(self) -> None:
        # Only what the drivers know of: a state whose message is lost, and then the state, too,
        # is waited for until the worker goes.
        store, books = self.world.store, self.world.books
        known = set[State]().union(*(site.driver.books.durable for site in self.sites))
        keys = [key for key, state in store.states() if state in known]
        if keys:
            key = keys[int(self._luck.random() * len(keys))]
            for each in books:
                each.lost(dict(store.states())[key])
            store.checkpoints.discard(key)

    # ------------------------------------------------------------------------- the story

    def story(self, last: int = 30) -> list[str]:
        """Return the latest happenings, one line each."""
        lines = (
            item if isinstance(item, str) else f"{item[0]}: {item[1]}"
            for item in self.world.story[-last:]
        )
        return [ADDRESS.sub("", line) for line in lines]
