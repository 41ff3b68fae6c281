"""Which GPUs there are, and how they are shared out among workers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune._worker.gpus import shared_out, visible_gpus
from dasktune.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0,1", ("0", "1")),
        (" 3 , 2", ("3", "2")),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("NoDevFiles", ()),
        ("GPU-9baca7f5-0f2f,MIG-1-2/3/0", ("GPU-9baca7f5-0f2f", "MIG-1-2/3/0")),
    ],
)
def test_ids_are_those_that_cuda_would_take(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpus() == expected


def test_without_the_variable_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == tuple(map(str, range(torch.cuda.device_count())))


amounts = st.one_of(st.integers(1, 5), st.floats(0.01, 0.99))


@given(st.integers(0, 8), amounts, st.one_of(st.none(), st.integers(1, 12)))
def test_no_gpu_is_given_away_more_than_once_over(
    count: int, per_worker: float, workers: int | None
) -> None:
    gpus = tuple(map(str, range(count)))
    most = count // per_worker if per_worker >= 1 else count * math.floor(1 / per_worker + 1e-9)
    if most < (workers or 1):
        with pytest.raises(ConfigurationError, match="here"):
            shared_out(gpus, per_worker, workers)
        return
    found = [one.split(",") for one in shared_out(gpus, per_worker, workers)]
    assert len(found) == (most if workers is None else workers)
    assert all(len(one) == max(1, per_worker) for one in found)
    used = [sum(gpu in one for one in found) for gpu in gpus]
    assert max(used) * min(1, per_worker) <= 1 + 1e-6
    if per_worker < 1:  # spread: no GPU has two more workers than another
        assert max(used) - min(used) <= 1
