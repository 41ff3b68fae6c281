"""The policies, which decide besides the kernel, `dasktune.graph.placement`: a file for each.

To remove a policy: delete its file, its line here, and what shows its figures to people.
"""

from __future__ import annotations

from dasktune.graph.placement import PolicyMaker
from dasktune.graph.policies.broken_workers import BrokenWorkers
from dasktune.graph.policies.compute_classes import ComputeClasses
from dasktune.graph.policies.fair_share import OwnWorkers
from dasktune.graph.policies.numeric_classes import OneNumericClass
from dasktune.graph.policies.paused_workers import PausedWorkers
from dasktune.graph.policies.several_workers import SeveralWorkers
from dasktune.graph.policies.shared_devices import SharedDevices
from dasktune.graph.policies.unchecked_trainer import UncheckedTrainer

POLICIES: tuple[PolicyMaker, ...] = (
    UncheckedTrainer,
    BrokenWorkers,
    PausedWorkers,
    OwnWorkers,
    SharedDevices,
    SeveralWorkers,
    OneNumericClass,
    ComputeClasses,
)
"""All policies, in the order in which they are asked."""
