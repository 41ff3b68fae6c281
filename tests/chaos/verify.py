"""Checks of a finished study: states, metrics, reports, decisions and steps."""

from __future__ import annotations

import copy
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import Document
from dasktune._study.study import Study
from dasktune.algos.base import Tuner
from dasktune.errors import DasktuneError
from dasktune.graph.plan import Node
from dasktune.storage import layout
from dasktune.storage.codec import encode
from dasktune.types import Metrics, Step, TrialState
from tests.chaos.faults import UNHEARD, Done
from tests.chaos.lone import ORDERLY, Alone, Lone, undisturbed
from tests.chaos.witness import Trained

MOST_TOLD = 5
"""Problems of one kind that are told one by one."""


@dataclass(slots=True, kw_only=True)
class Findings:
    """The counts of compared items, and the problems.

    Attributes
    ----------
    problems
        In words; empty if all holds.
    states, metrics, reports
        How many were compared with those of lone runs.
    steps, unique, repeated
        Steps that workers trained, different ones among them, and the others.
    late
        Those among them whose state was durable already, but only since its worker had been
        given up: one that is cut off, or wakes up, saves once more.
    longest
        Steps of the longest stage.
    per_loss
        Steps that were trained again, for each worker process that something had cost them.
    """

    problems: list[str] = field(default_factory=list)
    states: int = 0
    metrics: int = 0
    reports: int = 0
    steps: Step = 0
    unique: Step = 0
    repeated: Step = 0
    late: Step = 0
    longest: Step = 0
    per_loss: list[int] = field(default_factory=list)


def verify(
    study: Study, tuner: Tuner, alone: Alone, trained: Sequence[Trained], done: Sequence[Done]
) -> Findings:
    """Check all that must hold.

    Parameters
    ----------
    study
        The study as it was found after the run.
    tuner
        The one that ran; not used itself.
    alone
        Trains configurations alone.
    trained
        What workers say that they have trained.
    done
        What was done to processes.
    """
    return _Check(study, tuner, alone, trained, done).run()


class _Check:
    """The comparison of one study."""

    def __init__(
        self,
        study: Study,
        tuner: Tuner,
        alone: Alone,
        trained: Sequence[Trained],
        done: Sequence[Done],
    ) -> None:
        self._study = study
        self._tuner = tuner
        self._alone = alone
        self._trained = trained
        self._done = done
        self._found = Findings()
        self._keys = _keys(study)
        self._ways = {key: way for way, key in reversed(self._keys.items())}
        self._lone: dict[int, Lone] = {}
        self._durable: dict[str, tuple[float, str]] = {}
        self._again: dict[tuple[Done, str], int] = defaultdict(int)

    def run(self) -> Findings:
        """Run all checks and return their findings."""
        self._train_alone()
        for problems in (
            self._states(),
            self._metrics(),
            self._reports(),
            self._decisions(),
            self._steps(),
            self._counts(),
        ):
            told = list(problems)
            self._found.problems += told[:MOST_TOLD]
            if len(told) > MOST_TOLD:
                self._found.problems.append(f"and {len(told) - MOST_TOLD} more of this kind")
        return self._found

    def _train_alone(self) -> None:
        """Train each trial alone as far as anything is known of it."""
        study, needed = self._study, {number: {one.steps} for number, one in self._records}
        for entry in self._told():
            needed[entry["trial"]].add(entry["step"])
        commits = study.store.commits(study.store.keys())
        keys = {row.key for root in self._roots() for row in study.database.metrics(root)}
        for key in commits.keys() | keys:
            if key in self._ways:
                trial, step = self._ways[key]
                needed[trial].add(step)
                if key in commits:
                    needed[trial].update(at for at, _ in commits[key].reports)
        for number, record in self._records:
            steps = max(needed[number])
            self._lone[number] = self._alone.run(
                record.sequences, steps, seed=record.seed, asked=needed[number]
            )

    @property
    def _records(self) -> list[tuple[int, TrialRecord]]:
        return list(self._study.records.items())

    def _told(self) -> Iterator[Document]:
        """Yield what the tuner was told."""
        return (one for one in self._study.log(self._tuner) if one["kind"] == "tell")

    def _roots(self) -> set[str]:
        plan = self._study.plan
        return {plan.root_key_of(node) for node in plan}

    def _digest(self, trial: int, step: Step) -> str:
        """Return the digest of a trial's state if it is trained alone; empty if it fails."""
        digests = self._lone[trial].digests
        return digests[step - 1] if 0 < step <= len(digests) else ""

    def _is_lone(self, trial: int, step: Step, metrics: Metrics) -> bool:
        """Whether metrics are those of a lone run, bit for bit."""
        return _exact(metrics) == _exact(self._lone[trial].metrics.get(step, {}))

    # ---------------------------------------------------------------- what was kept

    def _states(self) -> Iterator[str]:
        """Compare every state of the store, and what the database knows of it."""
        study = self._study
        for stored in study.store.inventory():
            if not stored.is_committed:
                continue
            if stored.key not in self._ways:
                yield f"the store has a state {stored.key[:12]} that is no trial's"
                continue
            trial, step = self._ways[stored.key]
            name = f"the state of trial {trial} at step {step}"
            try:
                state, commit = study.store.load(stored.key)
            except DasktuneError as error:
                yield f"{name} cannot be read: {error}"
                continue
            self._found.states += 1
            path = Path(study.store.url) / layout.commit_path(stored.key)
            self._durable[commit.digest] = (path.stat().st_ctime, commit.attempt)
            if not commit.digest == encode(state).digest == self._digest(trial, step):
                yield f"{name} is not that of a lone run"
            for at, metrics in commit.reports:
                if not self._is_lone(trial, at, metrics):
                    yield f"{name} comes with other metrics of step {at} than a lone run's"
        for root in self._roots():
            for row in study.database.checkpoints(root):
                trial, step = self._ways.get(row.key, (-1, row.step))
                if row.digest not in self._durable:
                    yield f"the database has a state of trial {trial} at {step}, the store has not"

    def _metrics(self) -> Iterator[str]:
        """Compare all metrics of the database."""
        for root in self._roots():
            for row in self._study.database.metrics(root):
                if row.key not in self._ways:
                    yield f"the database has metrics of a state {row.key[:12]} that is no trial's"
                    continue
                trial, step = self._ways[row.key]
                self._found.metrics += 1
                if not self._is_lone(trial, step, row.values):
                    lone = self._lone[trial].metrics.get(step)
                    yield (
                        f"trial {trial} has the metrics {row.values} at step {step}, "
                        f"a lone run {lone}"
                    )

    # ----------------------------------------------------------------- what was told

    def _reports(self) -> Iterator[str]:
        """Compare what the tuner was told, and what came of its trials."""
        told: dict[int, list[Step]] = defaultdict(list)
        for entry in self._told():
            trial, step = entry["trial"], entry["step"]
            told[trial].append(step)
            self._found.reports += 1
            if not self._is_lone(trial, step, entry["metrics"]):
                yield f"trial {trial} reported {entry['metrics']} at step {step}"
        for number, record in self._records:
            if told[number] != sorted(set(told[number])):
                yield f"trial {number} reported steps {told[number]}"
            if record.state is TrialState.FAIL and not self._lone[number].error:
                yield f"trial {number} failed: {record.message}"
            if record.state is TrialState.COMPLETE and record.steps not in self._kept(number):
                yield f"trial {number} is complete, its state at {record.steps} is not kept"
        yield from self._differences({number: tuple(told[number]) for number, _ in self._records})

    def _differences(self, here: Mapping[int, tuple[Step, ...]]) -> Iterator[str]:
        """Compare reported steps by trial with the undisturbed run's, if that is the same."""
        tuner = copy.deepcopy(self._tuner)
        there = undisturbed(tuner, self._alone, self._study.objective)
        for number in sorted(() if there is None else there.keys() | here.keys()):
            if there is not None and there.get(number) != here.get(number):
                yield (
                    f"trial {number} reported steps {here.get(number)}, "
                    f"undisturbed {there.get(number)}"
                )

    def _kept(self, trial: int) -> set[Step]:
        """Return the steps of a trial that have a state in the store."""
        return {
            step for step in range(1, len(self._lone[trial].digests) + 1)
            if self._digest(trial, step) in self._durable
        }  # fmt: skip

    def _decisions(self) -> Iterator[str]:
        try:
            found = self._study.replay(self._tuner)
        except DasktuneError as error:
            yield f"there is no replay: {error}"
            return
        if not found.identical:
            yield f"replay is {found}"

    # -------------------------------------------------------------- what was trained

    def _steps(self) -> Iterator[str]:
        """Check each repeated step: a fault explains it, and its state was still volatile."""
        found, copies = self._found, self._copies()
        authors, sent = _attempts(self._trained)
        runs: dict[str, list[Trained]] = defaultdict(list)
        for one in sorted(self._trained, key=lambda one: one.at):
            found.steps += 1
            runs[one.digest].append(one)
            if one.digest not in copies:
                yield f"step {one.step} of {one.process} gave a state that no lone run has"
            if len(runs[one.digest]) <= max(1, copies[one.digest]):
                found.unique += 1
                continue
            found.repeated += 1
            cause = self._cause(runs[one.digest][-2], one)
            if cause is None and isinstance(self._tuner, ORDERLY):
                yield f"step {one.step} was trained again by {one.process} for no reason"
            since, attempt = self._durable.get(one.digest, (math.inf, ""))
            if since >= sent[one.attempt] or copies[one.digest] > 1:
                continue
            author = authors.get(attempt, "")
            if self._was_unheard(author, since):
                found.late += 1
                continue
            yield (
                f"step {one.step} was trained by {one.process} (attempt {one.attempt}) "
                f"{one.at - since:.2f} s after {author} (attempt {attempt}) had saved it"
            )

    def _copies(self) -> Counter[str]:
        """Return how many state keys each digest of a lone run has: as often is it trained.

        More than one if hyper-parameters do not tell yet, or nothing is merged. Lone runs go as
        far as workers may have come: what was stopped may have come further than what was kept.
        """
        trained = {one.digest for one in self._trained}
        digests: dict[str, str] = {}
        for is_far in (False, True):
            for number, record in self._records:
                lone = self._lone[number]
                if is_far and not trained <= set(digests.values()):
                    lone = self._alone.run(record.sequences, record.max_steps, seed=record.seed)
                for step, digest in enumerate(lone.digests, 1):
                    digests[self._keys[number, step]] = digest
        return Counter(digests.values())

    def _cause(self, before: Trained, now: Trained) -> Done | None:
        """Return the latest fault that explains a repeated step."""
        cause = None
        for done in self._done:
            # One that was given up may go on with the stage that it was sent ahead.
            its_own = done.process == before.process
            of_all = done.fault.target != "worker" and before.began <= done.at
            if (its_own or of_all) and done.at <= now.at:
                cause = done
        if cause is not None:
            self._again[cause, before.process] += 1
        return cause

    def _was_unheard(self, process: str, at: float) -> bool:
        """Whether a worker may have been given up by then, and have gone on nevertheless."""
        mine = (one for one in self._done if one.process == process and one.at <= at)
        return any(one.fault.name in UNHEARD for one in mine)

    def _counts(self) -> Iterator[str]:
        """Compare counts: what workers wrote down, what the database says, what may be lost."""
        found, stages = self._found, self._study.stages()
        found.longest = max((one.stop - one.start for one in stages), default=0)
        found.per_loss = sorted(self._again.values())
        executed = sum(one.steps for one in stages)
        if executed > found.steps:
            yield f"{executed} steps are counted as executed, workers trained {found.steps}"
        for (done, process), steps in self._again.items():
            if steps > found.longest:
                yield (
                    f"{steps} steps of {process} were trained again after {done}; a stage has at "
                    f"most {found.longest}"
                )


def _attempts(trained: Iterable[Trained]) -> tuple[dict[str, str], dict[str, float]]:
    """Return by attempt its process, and a time before which it was not sent there.

    A worker is sent a stage when the one before the last has ended.
    """
    process: dict[str, str] = {}
    sent: dict[str, float] = {}
    latest: dict[str, Trained] = {}
    for one in trained:
        if one.attempt not in process:
            before = latest.get(one.process, one)
            process[one.attempt], sent[one.attempt] = one.process, before.began
        latest[one.process] = one
    return process, sent


def _keys(study: Study) -> dict[tuple[int, Step], str]:
    """Return the key of each state that any trial may come to, by trial and step."""
    shared: dict[Node, list[str]] = {}
    found = {}
    for number in study.records:
        for node in study.plan.nodes_of(number):
            if node not in shared:
                shared[node] = list(_keys_in(node))
            for step, key in enumerate(shared[node], node.start + 1):
                found[number, step] = key
    return found


def _keys_in(node: Node) -> Iterator[str]:
    chain = node.chain_at(node.start)
    for step in range(node.start, node.stop):
        chain = chain.advance(node.sequences, step, step + 1)
        yield chain.key


def _exact(metrics: Metrics) -> list[tuple[str, str]]:
    """Return metrics so that only the same bits are equal: NaN to itself, -0.0 not to 0.0."""
    return sorted((name, repr(value)) for name, value in metrics.items())
