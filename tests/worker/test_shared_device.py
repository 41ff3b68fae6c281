"""The device that a worker shares, and the memory that it holds there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dasktune._worker import shared_device as sharing
from dasktune._worker.errors_in_words import is_out_of_memory
from dasktune._worker.gpus import Gpu
from dasktune._worker.hardware import Hardware
from dasktune._worker.shared_device import (
    describe_sharing,
    device_name,
    free_unused,
    mps_runs,
    peak_bytes,
)

PLAIN = Hardware(cpu="", architecture="x86_64", cores=8, memory=2**36)
GPU = Gpu(model="NVIDIA H100 80GB HBM3", nbytes=80 * 2**30, uuid="GPU-1234")


def test_a_worker_shares_no_device_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sharing.SHARED_DEVICE, raising=False)
    assert describe_sharing({}) == {"device": "", "device_bytes": 0, "mps": False}


def test_a_gpu_is_known_by_its_uuid_on_all_hosts() -> None:
    shared = replace(PLAIN, gpu=GPU, gpus=1.0)
    assert device_name(shared, "0", "a") == device_name(shared, "1", "b") == "GPU-1234"
    unnamed = replace(shared, gpu=replace(GPU, uuid=""))
    assert device_name(unnamed, "0", "a") != device_name(unnamed, "0", "b")


def test_workers_of_a_gpu_say_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sharing.SHARED_DEVICE, "0")
    shared = replace(PLAIN, gpu=GPU, gpus=1.0)
    monkeypatch.setattr(sharing, "hardware_of", lambda resources: shared)
    said = describe_sharing({"GPU": 1})
    assert (said["device"], said["device_bytes"]) == ("GPU-1234", 80 * 2**30)


def test_mps_runs_where_its_daemon_has_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sharing.MPS_PIPES, str(tmp_path))
    assert not mps_runs()
    (tmp_path / "control").touch()
    assert not mps_runs()
    (tmp_path / "control").unlink()
    os.mkfifo(tmp_path / "control")
    assert mps_runs()


def test_memory_of_a_process_is_known_and_grows() -> None:
    before = peak_bytes("cpu")
    filled = bytearray(2**28)
    after = peak_bytes("cpu")
    assert before is not None
    assert after is not None
    assert after >= len(filled)
    free_unused("cpu")


def test_memory_of_a_gpu_without_torch_is_unknown() -> None:
    assert peak_bytes("cuda") is None


def test_full_memory_is_found_in_what_an_error_came_from() -> None:
    torch_like = type("OutOfMemoryError", (RuntimeError,), {})
    for error in (MemoryError(), torch_like("x"), RuntimeError("CUDA out of memory. Tried")):
        assert is_out_of_memory(error)
        wrapped = ValueError("in a batch")
        wrapped.__cause__ = error
        assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(ValueError("no"))
