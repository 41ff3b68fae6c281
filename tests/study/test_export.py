"""A model taken home is a plain file, that torch or NumPy reads without dasktune."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune._study.export import write_state
from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.codec import decode, encode
from tests.effort import examples

ABOUT = {"trial": 0}


class Own(dt.TorchTrainer):
    """Has a buffer that the model's own state leaves out."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.model = torch.nn.Linear(2, 2)
        self.model.register_buffer("seen", torch.zeros(1), persistent=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.count = 3


def test_parts_of_torch_trainer_are_its_attributes(tmp_path: Path) -> None:
    trainer = Own()
    trainer.device = "cpu"
    trainer.build({})
    snapshot = encode(trainer.state_dict())
    state = decode(snapshot.document, snapshot.data)
    path = tmp_path / "part.pt"
    fresh = torch.nn.Linear(2, 2)
    fresh.load_state_dict(torch.load(write_state(path, state, ABOUT, "model")))
    assert torch.equal(fresh.weight, trainer.model.weight)
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.5)
    optimizer.load_state_dict(torch.load(write_state(path, state, ABOUT, "optimizer")))
    assert optimizer.param_groups[0]["momentum"] == 0.9
    assert torch.load(write_state(path, state, ABOUT, "count")) == 3
    whole = torch.load(write_state(path, state, ABOUT), weights_only=True)
    assert sorted(whole) == ["dasktune", "generators", "objects", "values"]


def test_export_npz_ambiguous_names_are_refused(tmp_path: Path) -> None:
    state = {"a.b": 1, "a": {"b": 2}}
    with pytest.raises(ConfigurationError, match=r"two values named 'a\.b'"):
        write_state(tmp_path / "state.npz", state, ABOUT)
    assert list(tmp_path.iterdir()) == []


def test_export_npz_argument_names_of_numpy_are_allowed(tmp_path: Path) -> None:
    state = {"file": np.arange(3), "allow_pickle": True, "none": None}
    with np.load(write_state(tmp_path / "state.npz", state, ABOUT)) as saved:
        assert saved["file"].tolist() == [0, 1, 2]
        assert bool(saved["allow_pickle"]) is True
        assert "none" not in saved


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(max_size=5),
)
STATES = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
        ),
        max_leaves=10,
    ),
    max_size=4,
).filter(lambda state: "dasktune" not in state)


@given(state=STATES)
@settings(max_examples=examples(50), deadline=None)
def test_export_plain_values_are_read_back_unchanged(
    state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_state(tmp_path_factory.mktemp("plain") / "state.pt", state, ABOUT)
    assert torch.load(path, weights_only=True) == {**state, "dasktune": ABOUT}


INTEGERS = ["bool", "int8", "uint16", ">i4", "int64", "uint64"]
OTHERS = ["float16", ">f8", "float32", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", [*INTEGERS, *OTHERS])
def test_export_torch_arrays_become_equal_tensors(dtype: str, tmp_path: Path) -> None:
    array = np.arange(12).astype(dtype).reshape(3, 4).T[::-1]
    state = {"array": array, "scalar": array[1, 1], "nothing": array[:0], "point": array[1, 1, ...]}
    saved = torch.load(write_state(tmp_path / "state.pt", state, ABOUT), weights_only=True)
    assert np.array_equal(saved["array"].numpy(), array)
    assert saved["array"].shape == (4, 3)
    assert saved["nothing"].shape == (0, 3)
    assert saved["point"].shape == ()
    assert saved["scalar"] == array[1, 1].item()


def test_export_torch_other_values_become_text_and_lists(tmp_path: Path) -> None:
    state = {
        "names": np.array([["a", "b"]]),
        "day": np.array("2024-02-29", "M8[D]"),
        "long": np.array([0.5], np.longdouble),
        "one": np.str_("x"),
        "bytes": b"\x00\xff",
        "no bytes": b"",
        "huge": 2**5000,
        "set": {1, 2},
        "nan": math.nan,
    }
    saved = torch.load(write_state(tmp_path / "state.pt", state, ABOUT), weights_only=True)
    assert saved["names"] == [["a", "b"]]
    assert saved["day"] == "2024-02-29"
    assert saved["long"] == ["0.5"]
    assert saved["one"] == "x"
    assert saved["bytes"].tolist() == [0, 255]
    assert saved["no bytes"].tolist() == []
    assert int(saved["huge"], 16) == 2**5000
    assert saved["set"] == {1, 2}
    assert math.isnan(saved["nan"])


@pytest.mark.parametrize(
    ("dtype", "becomes"),
    [("bfloat16", "float32"), ("float8_e5m2", "float32"), ("float64", "float64")],
)
def test_export_npz_types_unknown_to_numpy_become_wider(
    dtype: str, becomes: str, tmp_path: Path
) -> None:
    tensor = torch.tensor([0.5, -2.0]).to(getattr(torch, dtype)).requires_grad_()
    with np.load(write_state(tmp_path / "state.npz", {"x": tensor}, ABOUT)) as saved:
        assert saved["x"].dtype == becomes
        assert saved["x"].tolist() == [0.5, -2.0]


def test_export_torch_view_does_not_bring_its_base(tmp_path: Path) -> None:
    part = torch.zeros(1_000_000)[:2]
    path = write_state(tmp_path / "state.pt", {"part": part, "again": part}, ABOUT)
    assert path.stat().st_size < 10_000
    saved = torch.load(path, weights_only=True)
    assert saved["part"].data_ptr() == saved["again"].data_ptr()


class Added(Own):
    """Adds an entry to the state, as ready trainers of frameworks do."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "checkpoint": {"epoch": 3}}


def test_parts_added_by_a_subclass_stand_beside_attributes(tmp_path: Path) -> None:
    trainer = Added()
    trainer.device = "cpu"
    trainer.build({})
    state, path = trainer.state_dict(), tmp_path / "part.pt"
    fresh = torch.nn.Linear(2, 2)
    fresh.load_state_dict(torch.load(write_state(path, state, ABOUT, "model")))
    assert torch.equal(fresh.weight, trainer.model.weight)
    assert torch.load(write_state(path, state, ABOUT, "checkpoint")) == {"epoch": 3}
    with pytest.raises(ConfigurationError, match="known: checkpoint, count, model, optimizer"):
        write_state(path, state, ABOUT, "net")


def test_export_needs_torch_only_for_its_endings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(ConfigurationError, match="pt needs torch: pip install 'dasktune"):
        write_state(tmp_path / "state.pt", {"x": 1}, ABOUT)
    assert write_state(tmp_path / "state.npz", {"x": 1}, ABOUT).exists()


def test_export_state_with_reserved_part_is_refused(tmp_path: Path) -> None:
    state = {"dasktune": 1, "x": 2}
    with pytest.raises(ConfigurationError, match="a part named 'dasktune' of its own"):
        write_state(tmp_path / "state.pt", state, ABOUT)
    assert torch.load(write_state(tmp_path / "state.pt", state, ABOUT, "x")) == 2


def test_export_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_state(tmp_path / "state.npz", {"x": 1}, ABOUT)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="Object arrays"):
        write_state(path, {"x": np.array([object()])}, ABOUT)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state.npz"]
    with pytest.raises(StorageError, match="cannot write"):
        write_state(path / "inside.npz", {"x": 1}, ABOUT)
