"""Pairs of runs next to each other: the ratio of two programs on a machine that others use, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from figures import Figure

Run = Callable[[bool], tuple[float, float]]
"""Runs the baseline (True) or what is compared with it; returns its wall and CPU seconds."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Wall and CPU seconds of two programs that ran in turns.

    Parameters
    ----------
    rounds
        Of each round, those of the baseline and those of the other program.
    """

    rounds: tuple[tuple[tuple[float, float], tuple[float, float]], ...]

    @classmethod
    def of(cls, run: Run, *, rounds: int) -> Pair:
        """Run both in turns; which one is first changes from round to round."""
        found = []
        for number in range(rounds):
            order = (True, False) if number % 2 == 0 else (False, True)
            took = {is_baseline: run(is_baseline) for is_baseline in order}
            found.append((took[True], took[False]))
        return cls(tuple(found))

    def figures(
        self, name: str, bound: float | None, released: Mapping[str, float]
    ) -> list[Figure]:
        """Return the ratios of wall and CPU time, each next to the last release's."""
        figures = []
        for index, kind, limit in ((0, "wall", bound), (1, "CPU", None)):
            base = [first[index] for first, _ in self.rounds]
            other = [second[index] for _, second in self.rounds]
            ratios = sorted(own / plain for plain, own in zip(base, other, strict=True))
            title = f"{name}, {kind}"
            note = (
                f"median of {len(ratios)}, {ratios[0]:.2f} to {ratios[-1]:.2f}; "
                f"{median(other):.2f} s and {median(base):.2f} s"
            )
            if title in released:
                note += f"; the last release had {released[title]:.2f}"
            figures.append(
                Figure(name=title, value=median(ratios), unit="x", at_most=limit, note=note)
            )
        return figures


def released(path: Path) -> dict[str, float]:
    """Return the figures of the last release by name, as far as they are kept."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text())
    return {figure["name"]: figure["value"] for figure in document["figures"]}
