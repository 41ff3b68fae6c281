"""The numeric classes of a run's workers, and which of them state keys name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dasktune._engine.trials import TrialRecord
from dasktune.graph.events import WorkerJoined
from dasktune.needs import NumericClass
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.rows import StudyRow
from dasktune.storage.numerics import RecordedClass, record_class, recorded_class

PORTABLE = "portable"
"""Name in a study's description of what `dasktune.create_study` was given."""

ANY = "any"
"""The numeric class of all workers of a study whose states are portable."""

CPU = "cpu"
"""The numeric class of all processors, unless a study tells architectures apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericRule:
    """The rule by which workers of a run are of one numeric class or of several."""

    portable: bool | None
    """See `dasktune.create_study`."""
    fingerprint: str
    """Names the trainer in the store, or the study if it shares nothing."""

    def class_of(self, name: str) -> str:
        """Return the class of workers whose hardware has a numeric class of this name.

        Examples
        --------
        >>> rules = [NumericRule(portable=each, fingerprint="")
        ...          for each in (None, False, True)]
        >>> [rule.class_of("cpu x86_64") for rule in rules]
        ['cpu', 'cpu x86_64', 'any']
        >>> [rule.class_of("cuda NVIDIA H100 PCIe") for rule in rules]
        ['cuda NVIDIA H100 PCIe', 'cuda NVIDIA H100 PCIe', 'any']
        """
        if self.portable:
            return ANY
        if self.portable is None and _is_cpu(name):
            return CPU
        return name

    def plain_class(self, recorded: RecordedClass) -> NumericClass:
        """Return the class that no keys name.

        Its name says where such states were made. It is a class of this study's workers if
        `is_plain` says so.

        Examples
        --------
        >>> mixed, exact = (NumericRule(portable=each, fingerprint="")
        ...                 for each in (None, False))
        >>> earlier = RecordedClass(name="cpu x86_64", is_sure=False)
        >>> mixed.plain_class(earlier).name, exact.plain_class(earlier).name
        ('cpu', 'cpu x86_64')
        """
        is_ours = self.portable or recorded.is_sure
        return NumericClass(name=recorded.name if is_ours else self.class_of(recorded.name))

    def is_plain(self, name: str, recorded: RecordedClass) -> bool:
        """Return whether keys do not name the class of a worker whose hardware has this name.

        Those states then serve it, and it makes such states.

        Examples
        --------
        >>> mixed, exact = (NumericRule(portable=each, fingerprint="")
        ...                 for each in (None, False))
        >>> cpus, intel = RecordedClass(name="cpu"), RecordedClass(name="cpu x86_64")
        >>> [rule.is_plain("cpu x86_64", cpus) for rule in (mixed, exact)]
        [True, False]
        >>> [rule.is_plain("cpu x86_64", intel) for rule in (mixed, exact)]
        [False, True]
        """
        if self.portable is False and _is_cpu(recorded.name):
            # An earlier version recorded an architecture where others may have trained, too.
            return recorded.is_sure and name == recorded.name != CPU
        return self.class_of(name) == self.plain_class(recorded).name


def rule_of(row: StudyRow) -> NumericRule:
    """Return the rule of a study."""
    spec = row.spec
    # A study that shares no states has a root of its own.
    name = str(spec["fingerprint"]) if spec["merge"] else row.root
    return NumericRule(portable=spec[PORTABLE], fingerprint=name)


def may_store(row: StudyRow, store: CheckpointStore, trial: TrialRecord, name: str) -> bool:
    """Return whether states of a trial that are trained on a numeric class may be stored.

    `name` is the class as the hardware has it. Raises a `StorageError` if the store cannot be read.
    """
    rule = rule_of(row)
    if trial.numerics:
        return rule.class_of(name) == trial.numerics
    recorded = recorded_class(store.files, rule.fingerprint)
    return recorded is None or rule.is_plain(name, recorded)


def _is_cpu(name: str) -> bool:
    """Return whether a numeric class is one of processors, or all of them."""
    return name.partition(" ")[0] == CPU


class NumericClasses:
    """Tells the workers of a run apart by their numeric classes.

    Without a rule all workers are of one class, which no key names.
    """

    def __init__(self, rule: NumericRule | None, store: CheckpointStore) -> None:
        self._rule = rule
        self._store = store
        self._recorded: RecordedClass | None = None
        self.plain: NumericClass | None = None

    def of(self, joined: Sequence[WorkerJoined]) -> list[WorkerJoined]:
        """Return workers that have joined, with their classes as the rule has them.

        Raises a `StorageError` if the store cannot be read or written.
        """
        rule = self._rule
        if rule is None or not joined:
            return [replace(event, numerics=None) for event in joined]
        names = ["" if event.numerics is None else event.numerics.name for event in joined]
        recorded = self._recorded
        if recorded is None:
            recorded = self._recorded = self._record(rule, names)
            self.plain = rule.plain_class(recorded)
        classes = [
            NumericClass(name=rule.class_of(name), in_keys=not rule.is_plain(name, recorded))
            for name in names
        ]
        return [
            replace(event, numerics=numerics)
            for event, numerics in zip(joined, classes, strict=True)
        ]

    def _record(self, rule: NumericRule, names: Collection[str]) -> RecordedClass:
        """Return the recorded class that no keys name; the first run in a store records it.

        It is recorded as the study has it: a study for which all processors are one class may
        train on all of them, and must not record one architecture.
        """
        recorded = recorded_class(self._store.files, rule.fingerprint)
        if recorded is not None:
            return recorded
        [(most, _)] = Counter(names).most_common(1)
        own = ANY if rule.portable else rule.class_of(most)
        return record_class(self._store.files, rule.fingerprint, own)
