"""The parts of an open study that running a tuner in it needs."""

from __future__ import annotations

from dataclasses import dataclass

from dasktune._results.results import StudyResults
from dasktune._study.callbacks import LoggerFeeds
from dasktune._study.changed_code import OpenCode
from dasktune._study.config import StudyConfig
from dasktune._study.memory import StudyMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyParts:
    """An open study: how it was created, its memory and its reader, its code, and its loggers."""

    name: str
    config: StudyConfig
    memory: StudyMemory
    results: StudyResults
    code: OpenCode
    feeds: LoggerFeeds
