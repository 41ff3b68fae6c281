"""The lineages of a run in which a resume was refused: the run ends with them."""

from __future__ import annotations

from collections.abc import Iterable

from dasktune._driver.attempts import LineageRefused
from dasktune._driver.audit_notes import named
from dasktune._driver.parts import Following, News, Part
from dasktune._driver.refused_resumes import RefusedResume, ResumeRefusedError
from dasktune._engine.trials import lineage_of
from dasktune.graph.audits import Resume, resting_on
from dasktune.graph.devices import without_devices
from dasktune.graph.plan import SearchPlan


class RefusedLineages(Part):
    """The lineages of a run whose states could not be resumed, until the run ends with them."""

    def __init__(self, plan: SearchPlan) -> None:
        self._plan = plan
        self._refused: list[RefusedResume] = []

    def receive(self, news: News, now: float) -> Iterable[Following]:
        """Note a lineage whose state could not be resumed, once."""
        if isinstance(news, LineageRefused):
            node = news.node
            lineage = lineage_of(without_devices(node.sequences), self._plan.seed_of(node))
            if all(lineage != each.lineage for each in self._refused):
                self._refused.append(self._described(lineage, news))
        return ()

    def _described(self, lineage: str, refused: LineageRefused) -> RefusedResume:
        trials = resting_on(self._plan, Resume(node=refused.node, step=refused.step))
        state = f"{named(trials)} cannot go on from the state after step {refused.step}"
        return RefusedResume(
            lineage=lineage,
            trials=tuple(trials),
            step=refused.step,
            text=f"{state}:\n{refused.text}",
            paths=refused.paths,
        )

    def check(self) -> None:
        """Raise a `ResumeRefusedError` if a resume was refused."""
        if self._refused:
            raise ResumeRefusedError(self._refused)
