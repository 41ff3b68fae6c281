"""Weights & Biases: each trial of a study as a run of a project.

W&B writes each run to a local file first, offline as well as online. When a study goes on, these
files say which steps its runs have.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dasktune._study.folder import from_folder
from dasktune.errors import ConfigurationError, StorageError, refuse, shown, unknown
from dasktune.integrations.installed import framework, refuse_missing
from dasktune.mirror import LoggedStudy, Logger, TrialRun
from dasktune.storage.layout import slug
from dasktune.types import Step, TrialState

__all__ = ["WandB"]

MODES: Final = ("online", "offline")
FINAL: Final = "final/"
"""Before the names of metrics with which a trial has ended."""

HYPER_PARAMETER: Final = "hp/"
"""Before the names of hyper-parameters that change over the steps."""

END: Final = "dasktune_end"
"""Name of the summary's text about the end of a trial: its state and steps."""

_HEADER = 7
_PART = struct.Struct("<IHB")
_BLOCK_NBYTES = 32 * 1024
_WHOLE, _FIRST, _LAST = 1, 2, 4


@dataclass(frozen=True)
class WandB(Logger):
    """Writes each trial as a run of Weights & Biases, in a group with the study's name.

    A run has the metrics of each step that no other run has, the values of changing
    hyper-parameters as ``hp/<name>``, the metrics at the end as ``final/<name>`` in its summary,
    and the sampled values in its config. Its notes name the trials whose runs have the shared
    steps.

    Parameters
    ----------
    project
        Name of the project; the study's name if None.
    folder
        The folder in which W&B makes its folder ``wandb``. A relative one is in that of the study
        file.
    mode
        ``"online"`` or ``"offline"``; that of W&B's own settings (``WANDB_MODE``) if None.

    Raises
    ------
    ConfigurationError
        If W&B is not installed, or an argument is invalid.

    Examples
    --------
    ``create_study(..., loggers=[WandB("net", mode="offline")])``
    """

    project: str | None = None
    folder: str | os.PathLike[str] = "."
    mode: str | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.project is not None and (not isinstance(self.project, str) or not self.project):
            problems.append(f"project must be a name or None, got {shown(self.project)}")
        if not isinstance(self.folder, str | os.PathLike) or "://" in str(self.folder):
            problems.append(f"the folder of WandB must be a local folder, got {shown(self.folder)}")
        if self.mode is not None and self.mode not in MODES:
            problems.append(unknown("mode", shown(self.mode), MODES))
        refuse(problems)
        refuse_missing("wandb", extra="wandb")

    def open(self, study: LoggedStudy) -> WandBRuns:
        """Open the folder, and read which steps the runs of a study have.

        Raises
        ------
        ConfigurationError
            If nobody has logged in, and the mode is not offline.
        StorageError
            If the folder cannot be read or written.
        """
        wandb = framework("wandb", extra="wandb")
        folder = Path(from_folder(study.folder, os.fspath(self.folder))).expanduser()
        mode = self.mode or os.environ.get("WANDB_MODE", "online")
        if mode == "online" and not wandb.api.api_key:
            raise ConfigurationError(
                "Weights & Biases must know its user: type 'wandb login', or write "
                "WandB(mode='offline')"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return WandBRuns(folder, study, project=self.project or slug(study.name), mode=mode)
        except OSError as error:
            raise StorageError(f"cannot use {folder} for Weights & Biases: {error}") from error


@dataclass(slots=True)
class _LocalRun:
    """The contents of the files of a run, and the run itself while it is open."""

    steps: set[Step] = field(default_factory=set)
    end: str = ""
    opened: Any = None


class WandBRuns:
    """The runs of one study.

    Parameters
    ----------
    folder
        The folder with W&B's folder ``wandb``.
    study
        The study.
    project
        Name of the project.
    mode
        ``online``, ``offline``, or another one of W&B's settings.
    """

    def __init__(self, folder: Path, study: LoggedStudy, *, project: str, mode: str) -> None:
        self._folder = folder
        self._study = study
        self._project = project
        self._mode = mode
        self._runs: dict[str, _LocalRun] = {}
        for path in sorted(folder.glob(f"wandb/*run-*/run-{study.id}-*.wandb")):
            identifier = path.name.removeprefix("run-").removesuffix(".wandb")
            _read(path, self._runs.setdefault(identifier, _LocalRun()))

    @property
    def written(self) -> Mapping[str, set[Step]]:
        """The steps that local files have, by identifier of the run."""
        return {identifier: set(run.steps) for identifier, run in self._runs.items()}

    def write(self, run: TrialRun) -> None:
        """Write the steps of a run that W&B lacks; a run is open while its trial is trained."""
        there = self._runs.setdefault(run.id, _LocalRun())
        end = f"{run.state.value} at step {run.steps}" if run.state.is_finished else ""
        if run.metrics or end != there.end or there.opened is not None:
            opened = there.opened or self._init(run)
            there.opened = opened
            for step, metrics in sorted(run.metrics.items()):
                values = _numbers(run.hp.get(step, {}))
                opened.log({**metrics, **values}, step=step, commit=True)
                there.steps.add(step)
            if run.state is not TrialState.RUNNING:
                self._finish(there, run, end)

    def close(self) -> None:
        """Finish the runs of trials that have not ended; they can go on."""
        for run in self._runs.values():
            if run.opened is not None:
                run.opened.finish()
                run.opened = None

    def _init(self, run: TrialRun) -> Any:
        import wandb

        # A folder has the second in its name: in the same second W&B would lose these steps.
        while [*self._folder.glob(f"wandb/*run-{time.strftime('%Y%m%d_%H%M%S')}-{run.id}")]:
            time.sleep(1 - time.time() % 1)
        return wandb.init(
            project=self._project,
            group=slug(self._study.name),
            job_type="trial",
            id=run.id,
            name=run.name,
            notes=_notes(run),
            config={**run.params, "dasktune": run.tags()},
            allow_val_change=True,
            dir=str(self._folder),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                mode=self._mode,
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
            ),
        )

    def _finish(self, there: _LocalRun, run: TrialRun, end: str) -> None:
        opened, there.opened, there.end = there.opened, None, end
        opened.config.update({"dasktune": run.tags()}, allow_val_change=True)
        opened.notes = _notes(run)
        final = run.values if run.state.is_finished else {}
        opened.summary.update({f"{FINAL}{name}": value for name, value in final.items()})
        opened.summary.update({END: end})
        opened.finish(exit_code=1 if run.state is TrialState.FAIL else 0)


def _notes(run: TrialRun) -> str | None:
    if not run.shared:
        return None
    return f"Shared steps are in the runs of other trials: {'; '.join(map(str, run.shared))}"


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{HYPER_PARAMETER}{name}": float(value)
        for name, value in values.items()
        if isinstance(value, bool | int | float)
    }


# ------------------------------------------------------------------------------- files


def _read(path: Path, run: _LocalRun) -> None:
    """Add the steps and the end that a file of W&B has."""
    from wandb.proto.wandb_internal_pb2 import Record

    for content in records(path.read_bytes()):
        record = Record.FromString(content)
        if record.HasField("history"):
            names = {item.key or ".".join(item.nested_key) for item in record.history.item}
            if any(not name.startswith("_") for name in names):
                run.steps.add(record.history.step.num)
        for item in record.summary.update:
            if END in (item.key, *item.nested_key):
                run.end = json.loads(item.value_json)


def records(data: bytes) -> Iterator[bytes]:
    """Yield the whole records of a file, which is a log of LevelDB after a header of 7 bytes.

    References
    ----------
    Format of LevelDB's log: https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    at, content = _HEADER, b""
    while at + _PART.size <= len(data):
        left = _BLOCK_NBYTES - at % _BLOCK_NBYTES
        if left < _PART.size:
            at += left
            continue
        checksum, length, kind = _PART.unpack_from(data, at)
        part = data[at + _PART.size : at + _PART.size + length]
        if len(part) < length or zlib.crc32(bytes([kind]) + part) != checksum:
            return  # the last record was cut short
        at += _PART.size + length
        content = part if kind in (_WHOLE, _FIRST) else content + part
        if kind in (_WHOLE, _LAST):
            yield content
