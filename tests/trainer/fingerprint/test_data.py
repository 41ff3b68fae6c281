"""Data count by their content, wherever and however they lie; what is no data is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import ConfigurationError
from dasktune.trainer import data_digest

# Not those that begin with "._": editors leave them behind, and they do not count.
names = st.text("abAB_.é", min_size=1, max_size=3).filter(
    lambda one: one.strip(".") and not one.startswith("._")
)
trees = st.dictionaries(
    st.lists(names, min_size=1, max_size=3).map("/".join), st.binary(max_size=4), min_size=1
)


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def is_writable(files: dict[str, bytes]) -> bool:
    """Whether no file has the name of a folder that another one lies in."""
    return not any(one != two and two.startswith(f"{one}/") for one in files for two in files)


def test_different_data_have_different_digests() -> None:
    array = np.arange(6)
    things: list[Any] = [
        array,
        array.reshape(2, 3),
        array.astype(float),
        array.astype(">i8"),
        array[::-1],
        np.zeros(2, dtype=[("a", "i4"), ("b", "f4")]),
        np.zeros(2, dtype=[("a", "i4"), ("c", "f4")]),
        np.array(3),
        np.zeros(0),
        np.zeros((0, 3)),
        np.array(["2020"], dtype="M8[D]"),
        torch.arange(6),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([1j]),
        torch.tensor([1j]).conj(),
        torch.tensor(3),
        torch.zeros(0),
        (array, array),
        (array,),
        ((array,), array),
        {"x": array},
        {"y": array},
        [],
        {},
    ]
    digests = [data_digest(thing) for thing in things]
    assert len(set(digests)) == len(digests)
    assert digests == [data_digest(thing) for thing in things]
    assert {len(one) for one in digests} == {32}


def test_memory_layout_does_not_change_the_digest() -> None:
    array = np.arange(6).reshape(2, 3)
    assert data_digest(np.asfortranarray(array)) == data_digest(array)
    assert data_digest(np.arange(12)[::2]) == data_digest(np.arange(0, 12, 2))
    tensor = torch.arange(6).reshape(2, 3)
    assert data_digest(tensor.T.contiguous().T) == data_digest(tensor)
    assert data_digest(torch.nn.Parameter(torch.ones(2))) == data_digest(torch.ones(2))
    assert data_digest({"a": array, "b": array[0]}) == data_digest({"b": array[0], "a": array})
    assert data_digest([array]) == data_digest((array,))


@given(first=trees.filter(is_writable), second=trees.filter(is_writable), data=st.data())
def test_folder_digest_covers_names_and_contents(
    tmp_path_factory: pytest.TempPathFactory,
    first: dict[str, bytes],
    second: dict[str, bytes],
    data: st.DataObject,
) -> None:
    one, two, other = (tmp_path_factory.mktemp("folder") for _ in range(3))
    write(one, first)
    write(two, dict(data.draw(st.permutations(list(first.items())))))
    for path in two.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    assert data_digest(one) == data_digest(str(two))
    write(other, second)
    assert (data_digest(one) == data_digest(other)) == (first == second)


def test_file_digest_equals_b3sum(tmp_path: Path) -> None:
    for content in (b"", b"abc", os.urandom(1 << 20), bytes(20 << 20)):
        (tmp_path / "file").write_bytes(content)
        assert data_digest(tmp_path / "file") == blake3(content).hexdigest(length=16)


@pytest.mark.parametrize(
    "litter",
    [".DS_Store", ".git/x", "a/__pycache__/x", "data.csv~", ".data.csv.swp", ".#x", "._x"],
)
def test_litter_of_editors_and_systems_is_ignored(tmp_path: Path, litter: str) -> None:
    write(tmp_path, {"a/b": b"1", ".zarray": b"{}"})
    before = data_digest(tmp_path)
    write(tmp_path, {litter: b"2"})
    (tmp_path / "empty").mkdir()
    assert data_digest(tmp_path) == before
    write(tmp_path, {".zarray": b"[]"})
    assert data_digest(tmp_path) != before


def test_links_are_followed(tmp_path: Path) -> None:
    plain, linked, elsewhere = (tmp_path / name for name in ("plain", "linked", "elsewhere"))
    write(plain, {"a": b"1", "b/c": b"2", "d/c": b"2"})
    write(elsewhere, {"one": b"1", "sub/c": b"2"})
    linked.mkdir()
    (linked / "a").symlink_to(elsewhere / "one")
    (linked / "b").symlink_to(elsewhere / "sub")
    (linked / "d").symlink_to(elsewhere / "sub")
    assert data_digest(linked) == data_digest(plain)
    write(elsewhere, {"sub/c": b"3"})
    assert data_digest(linked) != data_digest(plain)


def broken_link(folder: Path) -> None:
    (folder / "link").symlink_to("nowhere")


def ring(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "link").symlink_to(folder)


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def unreadable(folder: Path) -> None:
    # Root may read everything but this.
    (folder / "memory").symlink_to("/proc/self/mem")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (broken_link, "data cannot be read: .*No such file"),
        (ring, "data must not contain itself, got the link .*sub/link'"),
        (pipe, "data must be files and folders, got .*pipe'"),
        (unreadable, "data cannot be read: .*memory'"),
    ],
)
def test_unreadable_data_are_named(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    write(tmp_path, {"a": b"1"})
    spoil(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        data_digest(tmp_path)


def test_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"data cannot be read: .*nothing"):
        data_digest(tmp_path / "nothing")
    write(tmp_path, {".DS_Store": b"1"})
    with pytest.raises(ConfigurationError, match="data must be a folder with files, got"):
        data_digest(tmp_path)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (3, "data must be arrays, tensors or paths, got int"),
        ([np.zeros(1), None], "data must be arrays, tensors or paths, got NoneType"),
        (np.ma.array([1]), "got MaskedArray"),
        (np.array([object()]), "data must be arrays of plain values, got object"),
        (torch.eye(2).to_sparse(), "data must be dense tensors, got one of torch.float32"),
        (torch.zeros(2, device="meta"), "on meta"),
    ],
)
def test_values_of_other_types_are_refused(thing: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        data_digest(thing)
