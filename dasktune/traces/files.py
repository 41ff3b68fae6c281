"""Files of traces: a zarr group, which holds a whole trace, or an ``.npz``.

A **zarr group** (format 3), in a folder ``*.zarr`` or a file ``*.zarr.zip``:

``values``
    Floats, ``(configuration, step, metric)``: ``values[c, s - 1, m]`` is metric m after step s
    of configuration c, NaN where it was not measured or was no number.
``measured``
    Booleans, ``(configuration, step)``: whether metrics were measured. May be missing.
``seconds``
    Floats, ``(configuration, step)``: seconds of the step, evaluation included; the mean of the
    steps since the last measurement. NaN if it was not measured. May be missing.
``shared``
    Integers, ``(configuration, 2)``: the earlier configuration with which it shares most of its
    first steps, and how many of them: the tree of the study's stages. May be missing.
``kinds``
    Integers, ``(configuration, step)``: the number of the compute class in ``classes`` that
    measured the seconds of the step, -1 if it is unknown. In version 2 only.

Its attributes:

``dasktune_trace``
    The version of this format: 2 with classes, else 1.
``metrics``
    The names of the metrics, in order.
``directions``
    ``minimize`` or ``maximize`` by the name of each metric that was optimised.
``configurations``
    A list of objects: the hyper-parameters of each, by name, plain values or sequences as
    `dasktune.sequences.sequence_from_json` reads them.
``overheads``
    Seconds by name, as of `dasktune.traces.timing.Overheads`.
``classes``
    The names of two or more compute classes. In version 2 only.
``digest``
    SHA-256 of the arrays' bytes, little-endian and in C order, one after the other as above: a
    chunk that is missing would be read as empty.

An **.npz** holds three arrays, none of them pickled:

``curves``
    Floats, ``(configurations, steps, columns)``: ``curves[c, s - 1]`` was measured after step s
    of configuration c; NaN if it was not.
``columns``
    The name of each column. A column whose name ends in ``_s`` holds the seconds of the step;
    all others are metrics.
``configs_jsonl``
    Bytes (``uint8``): one JSON object a line, UTF-8, the hyper-parameters of each
    configuration.
"""

from __future__ import annotations

import hashlib
import json
import stat
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasktune.errors import ConfigurationError, DasktuneError, StorageError, refuse

FORMATS = (".zarr", ".zarr.zip", ".npz")
"""Endings of the name of a trace."""

MOST_NBYTES = 2**32
"""Bytes of the largest trace, packed or unpacked: many times those of any study."""

VERSION = 1
"""Version of the zarr group of a trace without classes."""

VERSION_WITH_CLASSES = 2
"""Version of the zarr group of a trace with several classes; older releases refuse it."""

ATTRIBUTES = ("metrics", "directions", "configurations", "overheads")
"""Attributes that a zarr group must have."""

ARRAYS = ("curves", "columns", "configs_jsonl")
"""Arrays that an ``.npz`` must have."""

SECONDS = "_s"
"""Ending of the name of its column of seconds."""

_DIMENSIONS = {
    "values": ("configuration", "step", "metric"),
    "measured": ("configuration", "step"),
    "seconds": ("configuration", "step"),
    "shared": ("configuration", "with_and_steps"),
    "kinds": ("configuration", "step"),
}
_BROKEN = (
    *(OSError, EOFError, KeyError, MemoryError, RuntimeError, TypeError, ValueError),
    *(zipfile.BadZipFile, zlib.error),
)


def save(fields: Mapping[str, Any], path: Path) -> Path:
    """Write the fields of a trace to a new file or folder; return its path.

    It is written under a temporary name and then renamed: a failed write leaves no trace.
    """
    problems = [*target_problems(path), *_json_problems(fields["configurations"])]
    if path.name.endswith(".npz"):
        problems += [
            f"a metric's name must not end in {SECONDS} in an .npz, got {name!r}"
            for name in fields["metrics"]
            if name.endswith(SECONDS)
        ]
    refuse(problems)
    write = _save_npz if path.name.endswith(".npz") else _save_zarr
    try:
        with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
            beside = Path(folder, path.name)
            write(fields, beside)
            beside.rename(path)
    except (OSError, TypeError, ValueError, KeyError) as error:  # zarr 3.0 raises a `KeyError`
        raise StorageError(f"{path} cannot be written: {error}") from error
    return path


def target_problems(path: Path) -> list[str]:
    """Return the reasons why a trace cannot be written to a path."""
    problems = []
    if not path.name.endswith(FORMATS):
        problems.append(f"a trace must end in {', '.join(FORMATS)}, got {str(path)!r}")
    if path.exists():
        problems.append(f"{path} exists already")
    elif not path.parent.is_dir():
        problems.append(f"{path.parent} must be a folder that exists")
    return problems


def _json_problems(configurations: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the problem of the first configuration that is not JSON; NaN is not."""
    for configuration in configurations:
        try:
            json.dumps(dict(configuration), allow_nan=False)
        except (TypeError, ValueError) as error:
            return [f"configurations must be JSON, got {dict(configuration)}: {error}"]
    return []


def load(path: Path) -> dict[str, Any]:
    """Return the fields of a stored trace, as arrays and JSON."""
    problems = [] if path.exists() else [f"no such file: {str(path)!r}; it must be a trace"]
    if not path.name.endswith(FORMATS):
        problems.append(f"a trace must end in {', '.join(FORMATS)}, got {str(path)!r}")
    refuse(problems)
    try:
        _check_files(path)
        return _load_npz(path) if path.name.endswith(".npz") else _load_zarr(path)
    except ConfigurationError as error:
        raise ConfigurationError(*(f"{path}: {problem}" for problem in error.problems)) from error
    except DasktuneError:
        raise
    except _BROKEN as error:
        raise StorageError(f"{path} cannot be read as a trace: {error}") from error


def _check_files(path: Path) -> None:
    """Refuse a trace whose files would never end, or fill the memory."""
    total = 0
    files = path.rglob("*") if path.is_dir() else [path]
    for file in files:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise StorageError(f"{path} cannot be read as a trace: {file} is no regular file")
        total += status.st_size
    if total <= MOST_NBYTES and path.is_file():
        with zipfile.ZipFile(path) as packed:
            total = sum(part.file_size for part in packed.infolist())
    _check_nbytes(path, total)


def _check_nbytes(path: Path, nbytes: int) -> None:
    if nbytes > MOST_NBYTES:
        raise StorageError(
            f"{path}: a trace must have at most {MOST_NBYTES:,} bytes, got {nbytes:,}"
        )


def floats(name: str, array: ArrayLike) -> NDArray[np.floating[Any]]:
    """Return an array of floats.

    Raises
    ------
    ConfigurationError
        If it is not an array of numbers.
    """
    try:
        numbers = np.asarray(array)
        return numbers if numbers.dtype.kind == "f" else numbers.astype(float)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"trace: {name} must be an array of numbers: {error}") from error


# ---------------------------------------------------------------------------------- zarr


def _save_zarr(fields: Mapping[str, Any], path: Path) -> None:
    import zarr

    arrays = {
        name: np.ascontiguousarray(fields[name]) for name in _DIMENSIONS if fields[name] is not None
    }
    attributes = {
        "dasktune_trace": VERSION_WITH_CLASSES if fields["classes"] else VERSION,
        "metrics": list(fields["metrics"]),
        "directions": fields["directions"],
        "configurations": [dict(each) for each in fields["configurations"]],
        "overheads": fields["overheads"],
        **({"classes": list(fields["classes"])} if fields["classes"] else {}),
        "digest": _digest(arrays),
    }
    store = _store(path, "w")
    try:
        group = zarr.create_group(store, zarr_format=3, attributes=attributes)
        for name, array in arrays.items():
            fill = np.nan if array.dtype.kind == "f" else array.dtype.type(0)
            made = group.create_array(
                name,
                shape=array.shape,
                dtype=array.dtype,
                fill_value=fill,
                dimension_names=_DIMENSIONS[name],
            )
            made[...] = array
    finally:
        store.close()


def _load_zarr(path: Path) -> dict[str, Any]:
    import zarr

    store = _store(path, "r")
    try:
        group = zarr.open_group(store, mode="r", zarr_format=3)
        attributes = dict(group.attrs)
        version = attributes.get("dasktune_trace", "none")
        if version not in (VERSION, VERSION_WITH_CLASSES):
            raise ConfigurationError(
                f"must hold a trace of version {VERSION} or {VERSION_WITH_CLASSES}, got {version}"
            )
        held: dict[str, Any] = {name: group[name] for name in _DIMENSIONS if name in group}
        _check_nbytes(path, sum(array.nbytes for array in held.values()))
        arrays = {name: np.asarray(array[...]) for name, array in held.items()}
    except FileNotFoundError as error:
        raise ConfigurationError(f"holds no zarr group: {error}") from error
    finally:
        store.close()
    if "values" not in arrays or attributes.get("digest") != _digest(arrays):
        raise StorageError(f"{path} is damaged: its arrays are not those that were written")
    return _fields(attributes, arrays)


def _store(path: Path, mode: Literal["r", "w"]) -> Any:
    from zarr.storage import LocalStore, ZipStore

    if path.name.endswith(".zip"):
        return ZipStore(path, mode=mode)
    return LocalStore(path, read_only=mode == "r")


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def _fields(attributes: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    missing = [name for name in ATTRIBUTES if not isinstance(attributes.get(name), list | dict)]
    refuse(
        f"attributes must be those of a trace, got {name} {attributes.get(name)!r}"
        for name in missing
    )
    return {
        "metrics": tuple(map(str, attributes["metrics"])),
        "values": floats("values", arrays["values"]),
        "seconds": floats("seconds", arrays["seconds"]) if "seconds" in arrays else None,
        "measured": arrays["measured"].astype(bool) if "measured" in arrays else None,
        "configurations": _objects(attributes["configurations"], "configurations"),
        "directions": attributes["directions"],
        "shared": arrays.get("shared", ()),
        "overheads": attributes["overheads"],
        "classes": _names(attributes.get("classes", [])),
        "kinds": arrays.get("kinds"),
    }


def _names(listed: object) -> tuple[str, ...]:
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ConfigurationError(f"classes must be a list of names, got {listed!r}")
    return tuple(listed)


# ----------------------------------------------------------------------------------- npz


def _save_npz(fields: Mapping[str, Any], path: Path) -> None:
    curves, columns = fields["values"], list(fields["metrics"])
    if fields["seconds"] is not None:
        curves = np.concatenate([curves, fields["seconds"][:, :, None]], axis=-1)
        columns = [*columns, f"step{SECONDS}"]
    lines = "\n".join(json.dumps(dict(each)) for each in fields["configurations"])
    with path.open("xb") as file:
        np.savez_compressed(
            file,
            curves=curves,
            columns=np.array(columns),
            configs_jsonl=np.frombuffer(lines.encode(), np.uint8),
        )


def _load_npz(path: Path) -> dict[str, Any]:
    arrays = _read(path)
    curves, names = arrays["curves"], [str(name) for name in arrays["columns"].ravel()]
    timed = [name for name in names if name.endswith(SECONDS)]
    problems = []
    if curves.ndim != 3 or curves.shape[-1] != len(names):
        problems.append(
            f"curves must be (configurations, steps, {len(names)} columns), got {curves.shape}"
        )
    if len(timed) > 1:
        problems.append(f"one column may end in {SECONDS!r}, got {', '.join(timed)}")
    refuse(problems)
    curves = floats("curves", curves)
    kept = [index for index, name in enumerate(names) if name not in timed]
    return {
        "metrics": tuple(names[index] for index in kept),
        "values": curves[:, :, kept],
        "seconds": curves[:, :, names.index(timed[0])] if timed else None,
        "configurations": _documents(arrays["configs_jsonl"]),
        "directions": {},
        "shared": (),
        "overheads": {},
    }


def _read(path: Path) -> dict[str, NDArray[Any]]:
    with path.open("rb") as file:
        # numpy.load takes any other file for a pickle, and explains how to load that.
        loaded = np.lib.npyio.NpzFile(file, allow_pickle=False)
        if any(name not in loaded.files for name in ARRAYS):
            raise ConfigurationError(
                f"a trace must hold {', '.join(ARRAYS)}, got {', '.join(loaded.files) or 'none'}"
            )
        return {name: loaded[name] for name in ARRAYS}


def _documents(packed: NDArray[Any]) -> tuple[Mapping[str, object], ...]:
    try:
        documents = tuple(map(json.loads, packed.astype(np.uint8).tobytes().decode().splitlines()))
    except ValueError as error:
        raise ConfigurationError(f"configs_jsonl must be lines of JSON: {error}") from error
    return _objects(documents, "configs_jsonl")


def _objects(documents: Any, name: str) -> tuple[Mapping[str, object], ...]:
    if not all(isinstance(document, dict) for document in documents):
        raise ConfigurationError(f"{name} must be JSON objects, one for each")
    return tuple(documents)
