"""Findings: the outcome of each check, and how to mend a problem."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from dasktune._words import counted
from dasktune.doctor.facts import WorkerFacts

LINE = 100
"""Longest line, in letters, if its words allow."""

MOST_NAMED = 3
"""Most workers named in one line; of more, the line gives the number."""


class Status(StrEnum):
    """The outcome of a check.

    Attributes
    ----------
    OK
        Nothing is wrong.
    WARNING
        A study runs, but something may go wrong or be slow.
    PROBLEM
        A study will not run, or not as it should.
    """

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Parameters
    ----------
    group, check
        The group of the check, and its name.
    status
        The outcome.
    found
        The observation, in words.
    mend
        The remedy in one sentence; empty if nothing is wrong.
    workers
        Addresses of the workers concerned; empty for a finding that concerns no worker.
    """

    group: str = ""
    check: str
    status: Status
    found: str
    mend: str = ""
    workers: tuple[str, ...] = ()


def ok(check: str, found: str, *workers: WorkerFacts) -> Finding:
    """Return a finding that all is well."""
    return _finding(Status.OK, check, found, "", workers)


def warning(check: str, found: str, mend: str, *workers: WorkerFacts) -> Finding:
    """Return a finding that may do harm."""
    return _finding(Status.WARNING, check, found, mend, workers)


def problem(check: str, found: str, mend: str, *workers: WorkerFacts) -> Finding:
    """Return a finding with which a run fails or has wrong results."""
    return _finding(Status.PROBLEM, check, found, mend, workers)


def _finding(
    status: Status, check: str, found: str, mend: str, workers: Iterable[WorkerFacts]
) -> Finding:
    addresses = tuple(worker.address for worker in workers)
    return Finding(check=check, status=status, found=found, mend=mend, workers=addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings on a study.

    Parameters
    ----------
    study
        Its name.
    workers
        The number of workers.
    seconds
        The duration of all checks.
    findings
        The findings by group; equal findings of several workers are merged.
    """

    study: str
    workers: int
    seconds: float
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.of(Status.PROBLEM)

    def of(self, status: Status) -> list[Finding]:
        """Return the findings with a status."""
        return [finding for finding in self.findings if finding.status is status]

    def to_json(self) -> dict[str, object]:
        """Return a JSON document."""
        return {
            "study": self.study,
            "ok": self.ok,
            "workers": self.workers,
            "seconds": round(self.seconds, 3),
            "findings": [asdict(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"study {self.study}, {counted(self.workers, 'worker')}, {self.seconds:.1f} s"
        width = max((len(finding.check) for finding in self.findings), default=0)
        group = ""
        for finding in self.findings:
            if finding.group != group:
                group = finding.group
                yield f"\n{group}"
            head = f"  {finding.status:<8} {finding.check:<{width}}  "
            yield _wrapped(head, finding.found + self._whose(finding.workers))
            if finding.mend:
                yield _wrapped(f"{'':<{len(head)}}-> ", finding.mend)
        problems, warnings = len(self.of(Status.PROBLEM)), len(self.of(Status.WARNING))
        end = "" if self.workers else "; the cluster had no worker to check"
        yield f"\n{_number_of(problems, 'problem')}, {_number_of(warnings, 'warning')}{end}"

    def _whose(self, workers: Sequence[str]) -> str:
        """Return the workers of a finding, in words."""
        if not workers:
            return ""
        if len(workers) == self.workers:
            return f": {counted(len(workers), 'worker')}"
        named = ", ".join(workers[:MOST_NAMED])
        more = f" and {len(workers) - MOST_NAMED} more" if len(workers) > MOST_NAMED else ""
        return f": {len(workers)} of {self.workers} workers, {named}{more}"


def _number_of(amount: int, noun: str) -> str:
    return counted(amount, noun) if amount else f"no {noun}s"


def _wrapped(head: str, text: str) -> str:
    """Return a text after its head, its further lines indented alike."""
    return textwrap.fill(
        text,
        max(LINE, len(head) + 40),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def folded(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, merged where they differ only in their workers.

    Examples
    --------
    >>> slow = Finding(group="store", check="speed", status=Status.WARNING, found="slow")
    >>> [one.workers for one in folded([replace(slow, workers=(name,)) for name in "ab"])]
    [('a', 'b')]
    """
    merged: dict[Finding, tuple[str, ...]] = {}
    for finding in findings:
        key = replace(finding, workers=())
        merged[key] = (*merged.get(key, ()), *finding.workers)
    return [replace(finding, workers=workers) for finding, workers in merged.items()]
