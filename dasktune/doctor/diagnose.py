"""From what is known to what is to be mended. Pure."""

from __future__ import annotations

from dasktune.doctor import machines, network, places, software
from dasktune.doctor.facts import Facts
from dasktune.doctor.findings import Finding, folded

RULES = (
    *(network.presence, network.settings, network.slots, network.ports, network.trips),
    *(software.versions, software.trainer, software.config_paths, software.resumes),
    *(places.store, places.speed, places.leftovers, places.database, places.disks),
    *(machines.clocks, machines.memory, machines.cores, machines.gpus),
)
"""Each returns what it finds, in the order in which it is told."""


def diagnose(facts: Facts) -> list[Finding]:
    """Return what the facts mean; equal findings of several workers are one."""
    return folded(finding for rule in RULES for finding in rule(facts))
