"""Changes of sequences that come after the last step of a trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from dasktune._words import listed
from dasktune.space import Configuration
from dasktune.types import Step

_MOST_LISTED = 3
_FURTHEST: Step = 2**63


def unreached_changes(configurations: Collection[Configuration], max_steps: Step) -> Iterator[str]:
    """Yield a sentence for each hyper-parameter that has a change which no trial reaches.

    Such a change is often written in epochs or rounds where a step has several of them.

    Examples
    --------
    >>> from dasktune.sequences import Constant, MultiStep
    >>> from dasktune.space import Space
    >>> space = Space(lr=[Constant(0.1), MultiStep(0.1, milestones=[10, 30], gamma=0.1)])
    >>> [text.split(":")[0] for text in unreached_changes([*space.configurations()], 20)]
    ['lr changes at step 30 in 1 of 2 trials, and no trial goes beyond step 20 (max_steps)']
    """
    steps: dict[str, set[Step]] = defaultdict(set)
    trials: dict[str, int] = defaultdict(int)
    for configuration in configurations:
        for name, sequence in configuration.sequences.items():
            if changes := sequence.boundaries(max_steps - 1, _FURTHEST):
                steps[name].update(changes)
                trials[name] += 1
    for name, late in steps.items():
        count = len(configurations)
        of = "" if trials[name] == count else f" in {trials[name]:,} of {count:,} trials"
        yield (
            f"{name} changes at {_listed(sorted(late))}{of}, and no trial goes beyond step "
            f"{max_steps:,} (max_steps): sequences count steps, not the epochs, batches or rounds "
            "of a step"
        )


def _listed(steps: list[Step]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]:,}"
    if len(steps) > _MOST_LISTED:
        return f"steps from {steps[0]:,} to {steps[-1]:,}"
    return f"steps {listed(f'{step:,}' for step in steps)}"
