"""The table: all kinds, in the order of their modules."""

from __future__ import annotations

from tests.trainer.resume_kinds import (
    branches,
    containers,
    correct,
    correct_torch,
    forgotten,
    functions,
    held,
    hidden,
    late,
    late_torch,
    learning,
    outside,
    unsaved,
    whole,
)
from tests.trainer.resume_kinds.kind import Kind

MODULES = (
    whole,
    functions,
    unsaved,
    forgotten,
    held,
    hidden,
    late,
    late_torch,
    containers,
    outside,
    branches,
    learning,
    correct,
    correct_torch,
)

ALL: tuple[Kind, ...] = tuple(kind for module in MODULES for kind in module.KINDS)

KINDS: dict[str, Kind] = {kind.name: kind for kind in ALL}
"""The kinds by name."""

if len(KINDS) != len(ALL):
    raise ValueError("the name of a kind must be new")
