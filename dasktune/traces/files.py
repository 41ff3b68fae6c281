"""How traces are stored: as a zarr group, with all that a trace holds, or as an ``.npz``.

A **zarr group** (format 3), in a folder ``*.zarr`` or a file ``*.zarr.zip``:

``values``
    Floats, ``(configuration, step, metric)``: ``values[c, s - 1, m]`` is metric m after step s
    of configuration c, NaN where it was not measured or was no number.
``measured``
    Booleans, ``(configuration, step)``: where metrics were measured. May be missing.
``seconds``
    Floats, ``(configuration, step)``: what the step took, evaluation included; the mean of the
    steps since the last measurement. NaN where nobody measured it. May be missing.
``shared``
    Integers, ``(configuration, 2)``: the earlier configuration with which it shares most of its
    first steps, and how many of them: the tree of the study's stages. May be missing.

Its attributes:

``dasktune_trace``
    1, the version of this format.
``metrics``
    The names of the metrics, in order.
``directions``
    ``minimize`` or ``maximize`` by the name of each metric that was optimised.
``configurations``
    A list of objects: the hyper-parameters of each, by name, plain values or sequences as
    `dasktune.sequences.sequence_from_json` reads them.
``overheads``
    Seconds by name, as of `dasktune.traces.timing.Overheads`.
``digest``
    SHA-256 of the arrays' bytes, little-endian and in C order, one after the other as above: a
    chunk that is missing would be read as empty.

An **.npz** holds three arrays, none of them pickled:

``curves``
    Floats, ``(configurations, steps, columns)``: ``curves[c, s - 1]`` is what was measured
    after step s of configuration c, else NaN.
``columns``
    The name of each column. One whose name ends in ``_s`` holds the seconds that the step
    took; all others are metrics.
``configs_jsonl``
    Bytes (``uint8``): one JSON object a line, UTF-8, the hyper-parameters of each
    configuration.
"""

from __future__ import annotations

import hashlib
import json
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
"""How the name of a trace ends."""

VERSION = 1
"""Of the zarr group."""

ATTRIBUTES = ("metrics", "directions", "configurations", "overheads")
"""What its attributes must hold."""

ARRAYS = ("curves", "columns", "configs_jsonl")
"""What an ``.npz`` must hold."""

SECONDS = "_s"
"""How the name of its column of seconds ends."""

_DIMENSIONS = {
    "values": ("configuration", "step", "metric"),
    "measured": ("configuration", "step"),
    "seconds": ("configuration", "step"),
    "shared": ("configuration", "with_and_steps"),
}
_BROKEN = (
    *(OSError, EOFError, KeyError, RuntimeError, TypeError, ValueError),
    *(zipfile.BadZipFile, zlib.error),
)


def save(fields: Mapping[str, Any], path: Path) -> Path:
    """Write what a trace holds, as arrays and JSON, where nothing is yet; return where it is.

    It is written beside and then renamed: nothing is left of what cannot be written.
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
    except (OSError, TypeError, ValueError) as error:
        raise StorageError(f"{path} cannot be written: {error}") from error
    return path


def target_problems(path: Path) -> list[str]:
    """Return why a trace cannot be written to a path."""
    found = []
    if not path.name.endswith(FORMATS):
        found.append(f"a trace must end in {', '.join(FORMATS)}, got {str(path)!r}")
    if path.exists():
        found.append(f"{path} exists already")
    elif not path.parent.is_dir():
        found.append(f"{path.parent} must be a folder that exists")
    return found


def _json_problems(configurations: Iterable[Mapping[str, object]]) -> list[str]:
    """Return what is wrong with the first configuration that is no JSON: NaN is none."""
    for one in configurations:
        try:
            json.dumps(dict(one), allow_nan=False)
        except (TypeError, ValueError) as error:
            return [f"configurations must be JSON, got {dict(one)}: {error}"]
    return []


def load(path: Path) -> dict[str, Any]:
    """Return what a trace holds, as arrays and JSON."""
    if not path.exists() or not path.name.endswith(FORMATS):
        raise ConfigurationError(
            f"a trace must be there, and end in {', '.join(FORMATS)}, got {str(path)!r}"
        )
    try:
        return _load_npz(path) if path.name.endswith(".npz") else _load_zarr(path)
    except ConfigurationError as error:
        raise ConfigurationError(*(f"{path}: {one}" for one in error.problems)) from error
    except DasktuneError:
        raise
    except _BROKEN as error:
        raise StorageError(f"{path} cannot be read as a trace: {error}") from error


def floats(name: str, array: ArrayLike) -> NDArray[np.floating[Any]]:
    """Return an array of floats.

    Raises
    ------
    ConfigurationError
        If it has something else in it.
    """
    try:
        found = np.asarray(array)
        return found if found.dtype.kind == "f" else found.astype(float)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"trace: {name} must be an array of numbers: {error}") from error


# ---------------------------------------------------------------------------------- zarr


def _save_zarr(fields: Mapping[str, Any], path: Path) -> None:
    import zarr

    arrays = {
        name: np.ascontiguousarray(fields[name]) for name in _DIMENSIONS if fields[name] is not None
    }
    attributes = {
        "dasktune_trace": VERSION,
        "metrics": list(fields["metrics"]),
        "directions": fields["directions"],
        "configurations": [dict(one) for one in fields["configurations"]],
        "overheads": fields["overheads"],
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

    if path.name.endswith(".zip") and not zipfile.is_zipfile(path):
        raise StorageError(f"{path} cannot be read as a trace: it is no zip file")
    store = _store(path, "r")
    try:
        group = zarr.open_group(store, mode="r", zarr_format=3)
        attributes = dict(group.attrs)
        if attributes.get("dasktune_trace") != VERSION:
            raise ConfigurationError(
                f"must hold a trace of version {VERSION}, got "
                f"{attributes.get('dasktune_trace', 'none')}"
            )
        held: dict[str, Any] = {name: group[name] for name in _DIMENSIONS if name in group}
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
    found = hashlib.sha256()
    for array in arrays.values():
        found.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return found.hexdigest()


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
    }


# ----------------------------------------------------------------------------------- npz


def _save_npz(fields: Mapping[str, Any], path: Path) -> None:
    curves, columns = fields["values"], list(fields["metrics"])
    if fields["seconds"] is not None:
        curves = np.concatenate([curves, fields["seconds"][:, :, None]], axis=-1)
        columns = [*columns, f"step{SECONDS}"]
    lines = "\n".join(json.dumps(dict(one)) for one in fields["configurations"])
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
    found = []
    if curves.ndim != 3 or curves.shape[-1] != len(names):
        found.append(
            f"curves must be (configurations, steps, {len(names)} columns), got {curves.shape}"
        )
    if len(timed) > 1:
        found.append(f"one column may end in {SECONDS!r}, got {', '.join(timed)}")
    refuse(found)
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
        # Not numpy.load, which takes any other file for a pickle and says how to load that.
        loaded = np.lib.npyio.NpzFile(file, allow_pickle=False)
        if any(name not in loaded.files for name in ARRAYS):
            raise ConfigurationError(
                f"a trace must hold {', '.join(ARRAYS)}, got {', '.join(loaded.files) or 'none'}"
            )
        return {name: loaded[name] for name in ARRAYS}


def _documents(packed: NDArray[Any]) -> tuple[Mapping[str, object], ...]:
    try:
        found = tuple(map(json.loads, packed.astype(np.uint8).tobytes().decode().splitlines()))
    except ValueError as error:
        raise ConfigurationError(f"configs_jsonl must be lines of JSON: {error}") from error
    return _objects(found, "configs_jsonl")


def _objects(found: Any, name: str) -> tuple[Mapping[str, object], ...]:
    if not all(isinstance(one, dict) for one in found):
        raise ConfigurationError(f"{name} must be JSON objects, one for each")
    return tuple(found)
