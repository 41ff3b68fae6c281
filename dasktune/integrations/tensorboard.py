"""TensorBoard: each trial of a study as a run, with its hyper-parameters.

A run has one file of events, which is only appended to. When a study goes on after a crash, the
file itself says which steps it has. A last record that was cut short is removed.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import google_crc32c

from dasktune._study.folder import from_folder
from dasktune.errors import ConfigurationError, StorageError, shown
from dasktune.integrations.installed import framework
from dasktune.mirror import LoggedStudy, Logger, TrialRun
from dasktune.storage.layout import slug
from dasktune.types import Step, TrialState

__all__ = ["TensorBoard"]

FINAL: Final = "final/"
"""Before the names of metrics with which a trial has ended."""

HYPER_PARAMETER: Final = "hp/"
"""Before the names of hyper-parameters that change over the steps."""

TRIAL: Final = "trial"
"""Name of the text about a trial."""

_PARTS: Final = (
    *("compat.proto.event_pb2", "compat.proto.summary_pb2", "util.tensor_util"),
    *("plugins.text.metadata", "plugins.hparams.metadata", "plugins.hparams.api_pb2"),
)
_EVENTS = "events.out.tfevents."
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_HEADER = _LENGTH.size + _CHECKSUM.size


@dataclass(frozen=True)
class TensorBoard(Logger):
    """Writes each trial as a run of TensorBoard.

    Runs are in ``<folder>/<name of the study>/trial-0000``, and so on. They have the metrics
    of each step that no other run has, the values of changing hyper-parameters as
    ``hp/<name>``, the metrics at the end as ``final/<name>``, the hyper-parameters for the tab
    HPARAMS, and a text that names the runs with the shared steps.

    Parameters
    ----------
    folder
        The folder that ``tensorboard --logdir`` gets. A relative one is in that of the study file.

    Raises
    ------
    ConfigurationError
        If TensorBoard is not installed, or the folder is a URL.

    Examples
    --------
    ``create_study(..., loggers=[TensorBoard("runs/tensorboard")])``
    """

    folder: str | os.PathLike[str]

    def __post_init__(self) -> None:
        given = self.folder
        if not isinstance(given, str | os.PathLike) or not str(given) or "://" in str(given):
            raise ConfigurationError(
                f"the folder of TensorBoard must be a local folder, got {shown(given)}"
            )
        framework("tensorboard", extra="tensorboard")

    def open(self, study: LoggedStudy) -> TensorBoardRuns:
        """Open the folder of a study, and read which steps its runs have.

        Raises
        ------
        ConfigurationError
            If it has runs of another study of that name.
        StorageError
            If it cannot be read.
        """
        for part in _PARTS:  # not at the first write, whose time sets the pause to the next one
            framework(f"tensorboard.{part}", extra="tensorboard")
        folder = Path(from_folder(study.folder, os.fspath(self.folder))).expanduser()
        try:
            return TensorBoardRuns(folder / slug(study.name), study)
        except OSError as error:
            raise StorageError(f"cannot use {folder} for TensorBoard: {error}") from error


@dataclass(slots=True)
class _EventFile:
    """The steps, the end and the text that the file of a run has."""

    path: Path
    steps: set[Step] = field(default_factory=set)
    final: Step | None = None
    text: str = ""


class TensorBoardRuns:
    """The runs of one study in a folder.

    Parameters
    ----------
    folder
        The folder of the study; it is created.
    study
        The study.
    """

    def __init__(self, folder: Path, study: LoggedStudy) -> None:
        self._folder = folder
        self._files: dict[str, _EventFile] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"trial-*/{_EVENTS}*")):
            identifier = path.name.removeprefix(_EVENTS)
            if not identifier.startswith(f"{study.id}-"):
                raise ConfigurationError(
                    f"{folder} must have runs of this study {study.name!r} only, got "
                    f"{path.parent.name} of another one of that name: remove the folder, or "
                    "use another one"
                )
            self._files[identifier] = _read(path)

    @property
    def written(self) -> Mapping[str, set[Step]]:
        """The steps that files have, by identifier of the run."""
        return {identifier: set(file.steps) for identifier, file in self._files.items()}

    def write(self, run: TrialRun) -> None:
        """Append to the file of a run; the file is created for its first record."""
        file = self._files.get(run.id)
        events = []
        if file is None:
            file = _EventFile(self._folder / run.name / f"{_EVENTS}{run.id}")
            events = [_event(file_version="brain.Event:2"), _start(run)]
        events += _new_events(run, file)
        if not events:
            return
        file.path.parent.mkdir(exist_ok=True)
        with file.path.open("ab") as opened:
            opened.write(b"".join(map(_record, events)))
        self._files[run.id] = file

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _new_events(run: TrialRun, file: _EventFile) -> Iterator[Any]:
    """Yield the events of a run that its file lacks, and note them."""
    for step in sorted(run.metrics.keys() - file.steps):
        file.steps.add(step)
        values = {**run.metrics[step], **_numbers(run.hp.get(step, {}))}
        yield _summary(step, _scalars(values))
    text = "\n".join(f"- {name}: {text}" for name, text in run.tags().items())
    if text != file.text and (run.shared or run.state.is_finished):
        file.text = text
        yield _text(run.steps, text)
    if run.state.is_finished and file.final != run.steps:
        file.final = run.steps
        yield _end(run)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{HYPER_PARAMETER}{name}": float(value)
        for name, value in values.items()
        if isinstance(value, bool | int | float)
    }


# ------------------------------------------------------------------------------ events


def _event(**content: Any) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(wall_time=time.time(), **content)


def _summary(step: Step, values: Iterable[Mapping[str, Any]]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return _event(step=step, summary=Summary(value=[Summary.Value(**value) for value in values]))


def _scalars(values: Mapping[str, float]) -> list[Mapping[str, Any]]:
    return [{"tag": name, "simple_value": float(value)} for name, value in values.items()]


def _text(step: Step, text: str) -> Any:
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    metadata, tensor = create_summary_metadata(TRIAL, ""), make_tensor_proto(text)
    return _summary(step, [{"tag": TRIAL, "metadata": metadata, "tensor": tensor}])


def _start(run: TrialRun) -> Any:
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    info = SessionStartInfo(group_name=run.name, start_time_secs=time.time())
    for name, value in run.params.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            info.hparams[name].number_value = float(value)
        else:
            info.hparams[name].string_value = str(value)
    data = HParamsPluginData(session_start_info=info)
    return _summary(0, [_of_session(metadata.SESSION_START_INFO_TAG, data)])


def _end(run: TrialRun) -> Any:
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.api_pb2 import Status
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    is_failure = run.state is TrialState.FAIL
    status = Status.STATUS_FAILURE if is_failure else Status.STATUS_SUCCESS
    info = SessionEndInfo(status=status, end_time_secs=time.time())
    end = _of_session(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=info))
    # In one record, which is written as a whole or not at all.
    final = _scalars({f"{FINAL}{name}": value for name, value in run.values.items()})
    return _summary(run.steps, [*final, end])


def _of_session(tag: str, data: Any) -> Mapping[str, Any]:
    from tensorboard.plugins.hparams.metadata import NULL_TENSOR, create_summary_metadata

    metadata = create_summary_metadata(data)
    return {"tag": tag, "metadata": metadata, "tensor": NULL_TENSOR}


# ------------------------------------------------------------------------------- files


def _record(event: Any) -> bytes:
    """Return an event as a record of a file of events.

    It is the length as 64 bits, the checksum of these, the event, and its checksum.
    """
    content: bytes = event.SerializeToString()
    length = _LENGTH.pack(len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    """Return the masked CRC-32C of TFRecord files."""
    crc = google_crc32c.value(content)
    return _CHECKSUM.pack((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the whole records of a file, each with the position of its end."""
    start = 0
    while start + _HEADER <= len(data):
        header = data[start : start + _LENGTH.size]
        (length,) = _LENGTH.unpack(header)
        begin, stop = start + _HEADER, start + _HEADER + length
        content, end = data[begin:stop], stop + _CHECKSUM.size
        if data[start + _LENGTH.size : begin] != _checksum(header):
            return
        if data[stop:end] != _checksum(content):
            return
        yield end, content
        start = end


def _read(path: Path) -> _EventFile:
    """Return the contents of a file, after removing a last record that was cut short."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG

    file, data, end = _EventFile(path), path.read_bytes(), 0
    for end, content in _records(data):  # noqa: B007 - the last end counts
        event = Event.FromString(content)
        values = event.summary.value
        if any(value.tag == SESSION_END_INFO_TAG for value in values):
            file.final = event.step
        elif any(value.HasField("simple_value") for value in values):
            file.steps.add(event.step)
        for value in values:
            if value.tag == TRIAL and value.tensor.string_val:
                file.text = value.tensor.string_val[0].decode()
    if end < len(data):
        os.truncate(path, end)
    return file
