"""How many simulated studies a second are run under faults, each checked after every event."""

from __future__ import annotations

import sys
import time

from figures import Figure, main

from tests.torture.seeds import many

SEEDS, SHORT_SEEDS = 4000, 200
RATE = 10


def measure(short: bool) -> list[Figure]:
    """Run seeds in one process."""
    seeds = SHORT_SEEDS if short else SEEDS
    began = time.process_time()
    findings = [each for some in many(0, seeds) for each in some]
    seconds = time.process_time() - began
    events = sum(each.events for each in findings)
    faults = sum(len(each.faults) for each in findings)
    return [
        Figure(
            name="seeds with a violation",
            value=sum(finding.problem is not None for finding in findings),
            equals=0,
            note=f"of {seeds:,}; {events / seeds:.0f} events and {faults / seeds:.1f} faults each",
        ),
        Figure(
            name="CPU time of a seed",
            value=1e3 * seconds / seeds,
            unit="ms",
            at_most=None if short else 1e3 / RATE,
            note=f"{seeds / seconds:,.0f} seeds a second on one core",
        ),
    ]


if __name__ == "__main__":
    sys.exit(main("torture", measure))
