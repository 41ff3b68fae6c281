"""The compute class and the tags of a worker, from its hardware."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune._worker.gpus import Gpu, gpu_of
from dasktune._worker.hardware import (
    Hardware,
    class_of,
    describe_worker,
    hardware_of,
    label_problems,
    numerics_of,
    tags_of,
)

PLAIN = Hardware(cpu="", architecture="x86_64", cores=8, memory=2**36)


def of_gpu(model: str) -> Hardware:
    """Return the hardware of a worker with a GPU."""
    return replace(PLAIN, gpu=Gpu(model=model, nbytes=0), gpus=1.0)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("AMD EPYC 7763 64-Core Processor", "EPYC 7763, 8 cores"),
        ("Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz", "Xeon Platinum 8358, 8 cores"),
        ("AMD Ryzen 9 5950X 16-Core Processor", "Ryzen 9 5950X, 8 cores"),
        ("", "x86_64, 8 cores"),
    ],
)
def test_class_of_processor_is_model_and_cores(model: str, name: str) -> None:
    assert replace(PLAIN, cpu=model).name == name


@pytest.mark.parametrize(
    ("model", "mebibytes", "name", "tag"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100 80 GB", "h100"),
        ("NVIDIA H100 PCIe", 81559, "H100 PCIe 80 GB", "h100"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9856, "H100 MIG 1g.10gb 10 GB", "h100"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-SXM4 40 GB", "a100"),
        ("Tesla V100-SXM2-16GB", 16160, "V100-SXM2 16 GB", "v100"),
        ("NVIDIA GeForce RTX 3090", 24576, "RTX 3090 24 GB", "rtx-3090"),
    ],
)
def test_class_of_gpu_is_model_and_memory(model: str, mebibytes: int, name: str, tag: str) -> None:
    gpu = Gpu(model=model, nbytes=mebibytes * 2**20)
    hardware = replace(PLAIN, gpu=gpu, gpus=1.0)
    assert hardware.name == name
    assert {tag, "gpu", "x86_64"} <= hardware.tags


def test_share_of_a_gpu_is_a_class_of_its_own() -> None:
    whole = replace(PLAIN, gpu=Gpu(model="NVIDIA H100 80GB HBM3", nbytes=0), gpus=1.0)
    names = [replace(whole, gpus=amount).name for amount in (0.5, 1.0, 2.0)]
    assert names == ["H100 80 GB (0.5 of a GPU)", "H100 80 GB", "H100 80 GB (2 GPUs)"]


def test_unknown_gpu_has_a_class_and_a_tag() -> None:
    hardware = replace(PLAIN, gpus=1.0)
    assert (hardware.name, hardware.tags) == ("GPU", {"gpu", "x86_64"})


def test_class_and_tags_are_given_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASKTUNE_CLASS", "  old ")
    monkeypatch.setenv("DASKTUNE_TAGS", "Fast, lab3,,")
    assert class_of(PLAIN) == "old"
    assert tags_of(PLAIN, {"tag:big": 1.0, "tag:off": 0.0}) == {"x86_64", "fast", "lab3", "big"}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (PLAIN, replace(PLAIN, cpu="EPYC", cores=2, memory=2**30), True),
        (PLAIN, replace(PLAIN, architecture="aarch64"), False),
        (PLAIN, replace(PLAIN, gpus=1.0), False),
        (of_gpu("NVIDIA H100 PCIe"), replace(of_gpu("NVIDIA H100 PCIe"), cores=2, gpus=2.0), True),
        (of_gpu("NVIDIA H100 PCIe"), of_gpu("NVIDIA A100-SXM4-40GB"), False),
        (of_gpu("NVIDIA A100-SXM4-40GB"), of_gpu("NVIDIA A100-SXM4-80GB"), False),
        (of_gpu("NVIDIA H100 80GB HBM3"), of_gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), False),
    ],
)
def test_numeric_class_is_gpu_model_or_architecture(
    one: Hardware, other: Hardware, is_same: bool
) -> None:
    assert (numerics_of(one) == numerics_of(other)) is is_same


def test_numeric_class_is_given_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASKTUNE_CLASS", "old")
    assert numerics_of(PLAIN) == "cpu x86_64", "that names how fast a worker is"
    monkeypatch.setenv("DASKTUNE_NUMERICS", " avx2 ")
    assert numerics_of(PLAIN) == "avx2"


@pytest.mark.parametrize("variable", ["DASKTUNE_CLASS", "DASKTUNE_NUMERICS"])
@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "x" * 101])
def test_unfit_name_by_hand_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, variable: str, name: str
) -> None:
    assert list(label_problems(PLAIN, {})) == []
    monkeypatch.setenv(variable, name)
    (problem,) = label_problems(PLAIN, {})
    assert problem.startswith(f"{variable} must be printable")
    assert problem.isprintable()


def test_unfit_tags_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASKTUNE_TAGS", "\x1b[31mred, lab3 " + "x" * 10_000)
    problems = list(label_problems(PLAIN, {"tag:a b\n": 1.0}))
    assert len(problems) == 3
    assert all("must be printable" in each and len(each) < 300 for each in problems)


@given(st.text(max_size=40), st.integers(1, 256))
def test_equal_descriptions_have_one_name(cpu: str, cores: int) -> None:
    one, other = (replace(PLAIN, cpu=cpu, cores=cores) for _ in range(2))
    assert one.name == other.name
    assert one.name == " ".join(one.name.split())  # fit for one line


@pytest.mark.process
def test_description_loads_no_torch() -> None:
    code = (
        "import sys; from dasktune._worker.hardware import describe_worker as describe\n"
        "print(describe({})['class'], describe({'GPU': 1})['class'], 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
    )
    assert done.stdout.split()[-1] == "False"


def test_worker_without_the_resource_is_of_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert hardware_of({}).gpu is None
    assert hardware_of({"GPU": 2}).gpus == 2.0
    assert describe_worker({})["class"] == hardware_of({}).name


@pytest.mark.parametrize("gpu_id", ["9999", "GPU-none", "MIG-none"])
def test_unknown_gpu_id_has_no_description(gpu_id: str) -> None:
    assert gpu_of(gpu_id) is None


DRIVER = """
#include <stdio.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory;
static const char *names[] = {"NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB"};
static const char *uuids[] = {"GPU-1111-aa", "GPU-2222-bb"};
static const unsigned long long mebibytes[] = {81559, 16160};
static char devices[2];
static long number(void *device) { return (char *)device - devices; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index > 1) return 2;
    *device = devices + index;
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    for (int at = 0; at < 2; at++)
        if (!strcmp(uuid, uuids[at])) { *device = devices + at; return 0; }
    return 6;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "%s", uuids[number(device)]);
    return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    snprintf(name, length, "%s", names[number(device)]);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *found) {
    found->total = mebibytes[number(device)] << 20;
    return 0;
}
"""
"""A driver of two GPUs, with the functions and types of NVIDIA's."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("visible", "name"),
    [
        ("0", "H100 80 GB"),
        ("1", "V100-SXM2 16 GB"),
        ("GPU-2222-bb", "V100-SXM2 16 GB"),
        ("GPU-22", "V100-SXM2 16 GB"),
        ("1,0", "V100-SXM2 16 GB"),
        (None, "H100 80 GB"),
        ("2", "GPU"),
        ("GPU-3", "GPU"),
    ],
)
def test_class_is_that_of_the_pinned_gpu(tmp_path: Path, visible: str | None, name: str) -> None:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libnvidia-ml.so.1"
    built = [compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "driver.c")]
    subprocess.run(built, check=True)
    code = "from dasktune._worker.hardware import hardware_of; print(hardware_of({'GPU': 1}).name)"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    environment |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == name


@pytest.mark.gpu
def test_gpu_is_described_as_torch_describes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu, known = gpu_of("0"), torch.cuda.get_device_properties(0)
    assert gpu is not None
    assert gpu.model == known.name
    assert abs(gpu.nbytes / known.total_memory - 1) < 0.05
    assert gpu_of(f"GPU-{known.uuid}") == gpu_of(f"GPU-{known.uuid}"[:12]) == gpu
