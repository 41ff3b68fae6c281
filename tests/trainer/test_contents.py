"""ContentStamp of values decide whether they have changed, whoever changed them."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dasktune.trainer import contents
from dasktune.trainer.contents import ContentStamp

VALUES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.arange(6.0),
    "scalar": lambda: torch.tensor(1.0),
    "empty": lambda: torch.empty(0, 3),
    "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16),
    "bool": lambda: torch.ones(3, dtype=torch.bool),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "strided": lambda: torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)[1:],
    "expanded": lambda: torch.ones(1).expand(3, 2),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "rows": lambda: torch.eye(3).to_sparse_csr(),
    "array": lambda: np.arange(6),
    "fortran": lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strings": lambda: np.array(["a", "bcd"]),
    "record": lambda: np.zeros(2, [("a", "i4"), ("b", "f8")]),
    "nothing": lambda: np.zeros(0),
    "container": lambda: {"x": [torch.ones(2)], "names": {"a", "b"}, "n": (1, 2.5, float("nan"))},
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("name", VALUES)
def test_contents_equal_values_are_equal(name: str) -> None:
    value = VALUES[name]()
    taken = ContentStamp.of(value)
    assert taken.are_those_of(value)
    assert taken.are_those_of(VALUES[name]())


def double_behind_torch(tensor: torch.Tensor) -> None:
    tensor.data.mul_(2)


def add_through_numpy(tensor: torch.Tensor) -> None:
    tensor.numpy()[1:] += 1


def swap_through_storage(tensor: torch.Tensor) -> None:
    view = torch.tensor([], dtype=tensor.dtype).set_(tensor.untyped_storage(), 0, (6,), (1,))
    view[[0, 5]] = view[[5, 0]]


def write_in_inference(tensor: torch.Tensor) -> None:
    with torch.inference_mode():
        tensor.data[3] = -1


CHANGES = [double_behind_torch, add_through_numpy, swap_through_storage, write_in_inference]


@pytest.mark.parametrize("change", CHANGES)
def test_contents_writes_without_version_are_seen(
    change: Callable[[torch.Tensor], None],
) -> None:
    tensor = torch.arange(6.0)
    taken, version = ContentStamp.of([tensor]), tensor._version
    change(tensor)
    assert tensor._version == version
    assert not taken.are_those_of([tensor])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ({"a"}, {"a", "b"}),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
        ([[1], 2], [1, [2]]),
        ((1,), [1]),
        (torch.ones(2), torch.ones(2, 1)),
        (torch.ones(2), torch.ones(2).double()),
        (torch.ones(2), torch.ones(2, requires_grad=True)),
        (torch.eye(3).to_sparse(), 2 * torch.eye(3).to_sparse()),
        (np.ones(2), np.ones(2, ">f8")),
        (np.array([0.0]), np.array([-0.0])),
    ],
)
def test_contents_other_values_differ(before: Any, after: Any) -> None:
    assert not ContentStamp.of(before).are_those_of(after)
    assert not ContentStamp.of(after).are_those_of(before)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "CHUNK_BYTES", 16)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("place", [0, 3, 5, 8])
@pytest.mark.parametrize("make", [torch.zeros, np.zeros])
def test_contents_each_chunk_counts(make: Callable[..., Any], place: int) -> None:
    for value in (make(9), make((9, 2)), make((2, 9)).T):
        taken = ContentStamp.of(value)
        value[place] = 1
        assert not taken.are_those_of(value)


@pytest.mark.usefixtures("small_chunks")
def test_contents_comparison_ends_at_first_change(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def digest_of(content: memoryview) -> str:
        read.append(content.nbytes)
        return content.tobytes().hex()

    monkeypatch.setattr(contents, "digest_of", digest_of)
    value = torch.zeros(100, dtype=torch.float64)
    taken = ContentStamp.of(value)
    value.data[3] = 1
    assert (sum(read), max(read)) == (800, 16)
    read.clear()
    assert not taken.are_those_of(value)
    assert sum(read) == 32


def test_contents_of_read_only_file_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.npy"
    np.save(path, np.arange(10))
    monkeypatch.setattr(contents, "digest_of", None)  # a call fails
    mapped = np.load(path, mmap_mode="r")
    constant = np.frombuffer(b"12345678", np.int64)
    taken = ContentStamp.of([mapped, constant])
    assert taken.are_those_of([mapped, constant])
    assert not taken.are_those_of([mapped[1:], constant])
    assert not taken.are_those_of([np.load(path, mmap_mode="r"), constant])


def test_contents_of_writable_memory_are_read(tmp_path: Path) -> None:
    """The owner of a read-only view may write."""
    path = tmp_path / "data.npy"
    np.save(path, np.arange(10))
    mapped = np.load(path, mmap_mode="r+")
    shared = np.frombuffer(mmap.mmap(-1, 64), np.int64)
    owned = np.arange(10)
    for owner in (mapped, shared, owned):
        view = owner[:5]
        view.flags.writeable = False
        taken = ContentStamp.of(view)
        owner[0] = -1
        assert not taken.are_those_of(view)


def test_contents_that_cannot_be_read_count_as_changed() -> None:
    class Closed(torch.Tensor):
        def __tensor_flatten__(self) -> None:
            raise RuntimeError("closed")

    value = torch.ones(2).as_subclass(Closed)
    assert not ContentStamp.of(value).are_those_of(value)
