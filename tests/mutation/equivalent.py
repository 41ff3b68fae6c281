"""Mutants that break nothing that dasktune promises, each with the reason."""

from __future__ import annotations

EQUIVALENT = {
    "dasktune/engine/engine.py Engine.give_up: 0 -> (-1)": (
        "The engine does not read the step of a failure: it is for those who watch a dispatcher."
    ),
    "dasktune/storage/files/objects.py ObjectFiles._remove_seen.look_and_remove: 1 -> (2)": (
        "Only whether the list of tries is empty is read."
    ),
    "dasktune/trainer/fingerprint/installed.py _is_editable: return False -> return None": (
        "The only caller asks for truth, and None is as false as False."
    ),
}
"""Reasons by the name of the mutant."""
