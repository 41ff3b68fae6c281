"""Findings: the outcome of each check, and how to mend a problem."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from dasktune.words import counted

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

    group: str
    check: str
    status: Status
    found: str
    mend: str = ""
    workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Makes the findings of one group of checks.

    Parameters
    ----------
    name
        The group's name.
    """

    name: str

    def ok(self, check: str, found: str, workers: Iterable[str] = ()) -> Finding:
        """Return a finding that all is well."""
        return self.finding(Status.OK, check, found, "", workers)

    def warning(self, check: str, found: str, mend: str, workers: Iterable[str] = ()) -> Finding:
        """Return a finding that may do harm."""
        return self.finding(Status.WARNING, check, found, mend, workers)

    def problem(self, check: str, found: str, mend: str, workers: Iterable[str] = ()) -> Finding:
        """Return a finding with which a run fails or has wrong results."""
        return self.finding(Status.PROBLEM, check, found, mend, workers)

    def finding(
        self, status: Status, check: str, found: str, mend: str, workers: Iterable[str] = ()
    ) -> Finding:
        """Return a finding with a status."""
        return Finding(
            group=self.name,
            check=check,
            status=status,
            found=found,
            mend=mend,
            workers=tuple(workers),
        )


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
        problems, warnings = (
            counted(number, noun) if number else f"no {noun}s"
            for number, noun in (
                (len(self.of(Status.PROBLEM)), "problem"),
                (len(self.of(Status.WARNING)), "warning"),
            )
        )
        yield f"\n{problems}, {warnings}"

    def _whose(self, workers: Sequence[str]) -> str:
        """Return the workers of a finding, in words."""
        if not workers:
            return ""
        if len(workers) == self.workers:
            return f": {counted(len(workers), 'worker')}"
        named = ", ".join(workers[:MOST_NAMED])
        more = f" and {len(workers) - MOST_NAMED} more" if len(workers) > MOST_NAMED else ""
        return f": {len(workers)} of {self.workers} workers, {named}{more}"


def _wrapped(head: str, text: str) -> str:
    """Return a text after its head, its further lines indented alike."""
    blank, width = " " * len(head), max(LINE, len(head) + 40)
    return textwrap.fill(
        text,
        width,
        initial_indent=head,
        subsequent_indent=blank,
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
