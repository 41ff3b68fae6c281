"""The first check of a trainer as a part of the run: stages that need its verdict wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dasktune._driver.parts import Following, RunCheck
from dasktune._study.first_check import TrainerChecks
from dasktune.graph.events import StagesHeld

if TYPE_CHECKING:
    from dasktune.report.progress import RunDisplay


class CheckBeside(RunCheck):
    """Holds back stages until the check has ended, and raises what it has found.

    `finish` takes its result, and `refuse_change` raises if a file has changed of which the check
    knows.
    """

    def __init__(
        self,
        checks: TrainerChecks,
        finish: Callable[[], None],
        refuse_change: Callable[[], None],
        display: RunDisplay | None,
    ) -> None:
        self._checks, self._finish, self._refuse_change = checks, finish, refuse_change
        self._display = display
        self._has_begun = False
        self.files_known = 0 if checks.running is not None else 1

    def use(self, wake: Callable[[], None]) -> None:
        """Begin a run: have a function called when the check has ended."""
        self._has_begun = False
        if self._checks.running is not None:
            self._checks.running.wait_for_trials(wake)

    def turn(self, now: float) -> Iterable[Following]:
        """Yield what is held back when the check begins, and when it has ended."""
        check = self._checks.running
        if check is not None and not check.has_ended:
            self._say(self._checks.doing(check.progress))
            if not self._has_begun:
                self._has_begun = True
                yield StagesHeld(which=self._checks.held)
            if check.has_files and not self.files_known:
                self._checks.note_files(check)
                self._refuse_change()
                self.files_known = 1
        elif check is not None:
            self._finish()
            self._refuse_change()
            self.files_known += 1
            self._say("")
            yield StagesHeld(which="none")

    def wait_for_files(self) -> None:
        """Wait, when a run has ended before the check, for the files that the trainer reads."""
        if self._checks.running is not None:
            self._checks.wait_for_files()
            self._refuse_change()

    def _say(self, text: str) -> None:
        if self._display is not None:
            self._display.note(text)
