"""What a doctor has found: each check with its outcome, and what to mend."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

LINE = 100
"""Letters of the longest line, if its words allow."""

MOST_NAMED = 3
"""Workers that are named in one line; of more, the number."""


class Status(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How one check came out.

    Parameters
    ----------
    group, check
        What was checked, and the part of the whole that it belongs to.
    status
        How it came out.
    found
        What was seen.
    mend
        What to do about it, in one sentence; empty if there is nothing to do.
    workers
        The addresses of the workers that it is about; none if it is about no worker.
    """

    group: str
    check: str
    status: Status
    found: str
    mend: str = ""
    workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Makes the findings of one part of the whole.

    Parameters
    ----------
    name
        Of the part.
    """

    name: str

    def ok(self, check: str, found: str, workers: Iterable[str] = ()) -> Finding:
        """Return that something is as it should be."""
        return self.finding(Status.OK, check, found, "", workers)

    def warning(self, check: str, found: str, mend: str, workers: Iterable[str] = ()) -> Finding:
        """Return something that may do harm."""
        return self.finding(Status.WARNING, check, found, mend, workers)

    def problem(self, check: str, found: str, mend: str, workers: Iterable[str] = ()) -> Finding:
        """Return something with which a run fails, or does wrong."""
        return self.finding(Status.PROBLEM, check, found, mend, workers)

    def finding(
        self, status: Status, check: str, found: str, mend: str, workers: Iterable[str] = ()
    ) -> Finding:
        """Return how something came out."""
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
    """All that a doctor has found.

    Parameters
    ----------
    study
        Its name.
    workers
        How many there are.
    seconds
        How long it took.
    findings
        In the order of their groups; equal ones of several workers are one.
    """

    study: str
    workers: int
    seconds: float
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """Whether nothing was found that will fail."""
        return not self.of(Status.PROBLEM)

    def of(self, status: Status) -> list[Finding]:
        """Return the findings that came out so."""
        return [one for one in self.findings if one.status is status]

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "study": self.study,
            "ok": self.ok,
            "workers": self.workers,
            "seconds": round(self.seconds, 3),
            "findings": [asdict(one) for one in self.findings],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"study {self.study}, {counted(self.workers, 'worker')}, {self.seconds:.1f} s"
        width = max((len(one.check) for one in self.findings), default=0)
        group = ""
        for one in self.findings:
            if one.group != group:
                group = one.group
                yield f"\n{group}"
            head = f"  {one.status:<8} {one.check:<{width}}  "
            yield _wrapped(head, one.found + self._whose(one.workers))
            if one.mend:
                yield _wrapped(f"{'':<{len(head)}}-> ", one.mend)
        problems, warnings = (len(self.of(one)) for one in (Status.PROBLEM, Status.WARNING))
        yield f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}"

    def _whose(self, workers: Sequence[str]) -> str:
        """Return in words which workers something is about."""
        if not workers:
            return ""
        if len(workers) == self.workers:
            return f": {counted(len(workers), 'worker')}"
        named = ", ".join(workers[:MOST_NAMED])
        more = f" and {len(workers) - MOST_NAMED} more" if len(workers) > MOST_NAMED else ""
        return f": {len(workers)} of {self.workers} workers, {named}{more}"


def _wrapped(head: str, text: str) -> str:
    """Return a text after its head, in lines that begin where the first one does."""
    blank, width = " " * len(head), max(LINE, len(head) + 40)
    return textwrap.fill(
        text,
        width,
        initial_indent=head,
        subsequent_indent=blank,
        break_long_words=False,
        break_on_hyphens=False,
    )


def counted(number: int, what: str) -> str:
    """Return how many there are of something.

    Examples
    --------
    >>> counted(1, "worker"), counted(0, "problem")
    ('1 worker', 'no problems')
    """
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def folded(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with those that differ in their workers alone made one.

    Examples
    --------
    >>> slow = Finding(group="store", check="speed", status=Status.WARNING, found="slow")
    >>> [one.workers for one in folded([replace(slow, workers=(name,)) for name in "ab"])]
    [('a', 'b')]
    """
    found: dict[Finding, tuple[str, ...]] = {}
    for one in findings:
        key = replace(one, workers=())
        found[key] = (*found.get(key, ()), *one.workers)
    return [replace(one, workers=workers) for one, workers in found.items()]
