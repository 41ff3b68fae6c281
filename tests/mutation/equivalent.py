"""Mutants that break nothing that dasktune promises, each with the reason."""

from __future__ import annotations

EQUIVALENT = {
    "dasktune/engine/engine.py Engine.give_up: 0 -> (-1)": (
        "The engine does not read the step of a failure: it is for those who watch a dispatcher."
    ),
}
"""Reasons by the name of the mutant."""
