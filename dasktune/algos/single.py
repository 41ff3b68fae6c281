"""One configuration, trained as far as it is asked for: what `Study.evaluate` runs."""

from __future__ import annotations

from collections.abc import Mapping

from dasktune.algos.fixed import FixedTrials
from dasktune.sequences import Sequence, as_sequence
from dasktune.sequences.values import whole
from dasktune.space import Configuration
from dasktune.types import Step, Value


class SingleTrial(FixedTrials):
    """Trains one configuration.

    Parameters
    ----------
    hp
        Values and sequences by name.
    max_steps
        How far.
    """

    def __init__(self, hp: Mapping[str, object], max_steps: Step) -> None:
        sequences = {name: as_sequence(value) for name, value in hp.items()}
        params = {name: _shown(sequence) for name, sequence in sequences.items()}
        configuration = Configuration(params=params, sequences=sequences)
        super().__init__([configuration], whole("steps", max_steps, at_least=1))

    def identity(self) -> dict[str, object]:
        """Return the configuration and how far it is trained."""
        sequences = self.configurations[0].sequences
        return {
            "tuner": "evaluate",
            "hp": {name: sequence.to_json() for name, sequence in sequences.items()},
            "max_steps": self.max_steps,
        }


def _shown(sequence: Sequence) -> Value:
    return sequence(0) if sequence.constant_until(0) is None else repr(sequence)
