"""The hardware of a worker: its compute class and its tags, found without configuration.

Workers of equal description are one *compute class*: they are equally fast. Workers on which the
same steps give the same bits are one *numeric class*. A study is told the names of both, and the
tags, when it greets a worker.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dasktune._words import counted
from dasktune._worker.gpus import Gpu, gpu_of, has_gpus_of_its_own, visible_gpus
from dasktune.errors import shown
from dasktune.needs import LABELS, TAG_RESOURCE, is_label

CLASS = "DASKTUNE_CLASS"
"""Variable that names a worker's compute class by hand, in place of its hardware."""

TAGS = "DASKTUNE_TAGS"
"""Variable with the tags of a worker: words with commas or spaces between."""

NUMERICS = "DASKTUNE_NUMERICS"
"""Variable that names a worker's numeric class by hand, in place of its hardware."""

CPU_NOISE = re.compile(
    r"\((R|TM)\)|®|™|@.*|\b(CPU|Processor|\d+-Core|AMD|Intel|Genuine)\b", re.IGNORECASE
)
GPU_NOISE = re.compile(r"\b(NVIDIA|Tesla|GeForce|Graphics Device)\b|[- ]?\b\d+ ?GB\b|\bHBM\w*")
"""What names of processors have beside the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The share of a host that a worker may use."""

    cpu: str
    """Model of the processor; empty if the host does not say."""
    architecture: str
    """As ``uname -m`` has it."""
    cores: int
    memory: int
    """Cores, and bytes of memory, as affinity and control groups limit them."""
    gpu: Gpu | None = None
    """The first GPU that the worker trains on; None if it trains on the processor, or the GPU is
    not one of NVIDIA."""
    gpus: float = 0.0
    """How many GPUs the worker has, or its share of one."""

    @property
    def name(self) -> str:
        """The name of its compute class.

        Memory of the host and, beside a GPU, its processor are no part of it: they seldom decide
        how fast a model trains.

        Examples
        --------
        >>> plain = Hardware(cpu="AMD EPYC 7763 64-Core Processor", architecture="x86_64",
        ...                  cores=8, memory=2**36)
        >>> plain.name
        'EPYC 7763, 8 cores'
        >>> from dataclasses import replace
        >>> h100 = Gpu(model="NVIDIA H100 80GB HBM3", nbytes=81559 * 2**20)
        >>> replace(plain, gpu=h100, gpus=1.0).name
        'H100 80 GB'
        >>> replace(plain, gpu=h100, gpus=2.0).name
        'H100 80 GB (2 GPUs)'
        """
        if not self.gpus:
            cpu = _plain(CPU_NOISE, self.cpu) or self.architecture
            return f"{cpu}, {counted(self.cores, 'core')}"
        name = "GPU" if self.gpu is None else f"{self._gpu_model} {_gigabytes(self.gpu)} GB"
        if self.gpus == 1:
            return name
        return f"{name} ({self.gpus:g} {'GPUs' if self.gpus > 1 else 'of a GPU'})"

    @property
    def tags(self) -> frozenset[str]:
        """The tags that follow from it: its architecture, and ``gpu`` with the GPU's model.

        Examples
        --------
        >>> a100 = Gpu(model="NVIDIA A100-SXM4-40GB", nbytes=40960 * 2**20)
        >>> sorted(Hardware(cpu="", architecture="x86_64", cores=8, memory=2**36, gpu=a100,
        ...                 gpus=1.0).tags)
        ['a100', 'a100-sxm4', 'gpu', 'x86_64']
        """
        words = {self.architecture.lower()}
        if self.gpus:
            words.add("gpu")
        if self.gpu is not None:
            model = "-".join(self._gpu_model.lower().split())
            first = model.partition("-")[0]
            words |= {model, first} if any(map(str.isdigit, first)) else {model}
        return frozenset(words - {""})

    @property
    def numerics(self) -> str:
        """The name of its numeric class: the GPU's model, or the processor's architecture.

        The driver's whole name of the GPU counts: libraries choose other kernels for a part of a
        GPU, or for one with other memory, and other kernels round otherwise.

        Examples
        --------
        >>> plain = Hardware(cpu="AMD EPYC 7763", architecture="x86_64", cores=8, memory=2**36)
        >>> plain.numerics
        'cpu x86_64'
        >>> from dataclasses import replace
        >>> a100 = Gpu(model="NVIDIA A100-SXM4-40GB", nbytes=40960 * 2**20)
        >>> replace(plain, gpu=a100, gpus=0.5).numerics
        'cuda NVIDIA A100-SXM4-40GB'
        """
        if not self.gpus:
            return f"cpu {self.architecture}".rstrip()
        return "cuda" if self.gpu is None else f"cuda {self.gpu.model}"

    @property
    def _gpu_model(self) -> str:
        return "" if self.gpu is None else _plain(GPU_NOISE, self.gpu.model)


def hardware_of(resources: Mapping[str, float]) -> Hardware:
    """Return the hardware of this process as the worker with these Dask resources uses it.

    It loads no package but Dask and starts no CUDA: NVIDIA's driver is asked itself.
    """
    amount = resources.get("GPU", 0.0) or float(has_gpus_of_its_own())
    seen = visible_gpus() if amount else ()
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    return Hardware(
        cpu=_cpu_model(),
        architecture=platform.machine(),
        cores=CPU_COUNT,
        memory=MEMORY_LIMIT,
        gpu=gpu_of(seen[0]) if seen else None,
        gpus=amount,
    )


def describe_worker(resources: Mapping[str, float]) -> dict[str, object]:
    """Return the class and the tags of a worker with these Dask resources, as plain data."""
    hardware = hardware_of(resources)
    return {"class": class_of(hardware), "tags": sorted(tags_of(hardware, resources))}


def label_problems(hardware: Hardware, resources: Mapping[str, float]) -> Iterator[str]:
    """Yield the names and tags of this worker, given by hand, that no message could show.

    They are not mended: a numeric class whose name was cut could be taken for another one.
    """
    for variable in (CLASS, NUMERICS):
        name = os.environ.get(variable, "").strip()
        if name and not is_label(name):
            yield f"{variable} must be {LABELS}, got {shown(name)}"
    for tag in sorted(tags_of(hardware, resources)):
        if not is_label(tag):
            source = f"{TAGS}, or a resource '{TAG_RESOURCE}...'"
            yield f"a tag ({source}) must be {LABELS}, got {shown(tag)}"


def class_of(hardware: Hardware) -> str:
    """Return the name of this worker's compute class: the one given by hand, or the hardware's."""
    return os.environ.get(CLASS, "").strip() or hardware.name


def numerics_of(hardware: Hardware) -> str:
    """Return the name of this worker's numeric class: given by hand, or the hardware's."""
    return os.environ.get(NUMERICS, "").strip() or hardware.numerics


def processor_numerics() -> str:
    """Return the name of the numeric class of what this process trains on its processor."""
    return os.environ.get(NUMERICS, "").strip() or f"cpu {platform.machine()}".rstrip()


def tags_of(hardware: Hardware, resources: Mapping[str, float]) -> frozenset[str]:
    """Return the tags of this worker, in lower case: given by hand, and those of its hardware.

    Examples
    --------
    >>> plain = Hardware(cpu="", architecture="x86_64", cores=8, memory=2**36)
    >>> sorted(tags_of(plain, {"tag:Lab3": 1, "licence": 2}))
    ['lab3', 'x86_64']
    """
    given = os.environ.get(TAGS, "").replace(",", " ").split()
    named = [
        name.removeprefix(TAG_RESOURCE)
        for name, amount in resources.items()
        if name.startswith(TAG_RESOURCE) and amount > 0
    ]
    return hardware.tags | {tag.lower() for tag in (*given, *named) if tag}


def _plain(noise: re.Pattern[str], name: str) -> str:
    return " ".join(noise.sub(" ", name).split())


def _gigabytes(gpu: Gpu) -> int:
    """Return a GPU's memory as its name has it, or else as its driver counts it, rounded."""
    stated = re.search(r"(\d+) ?GB\b", gpu.model)
    if stated and "MIG" not in gpu.model:
        return int(stated[1])
    return round(gpu.nbytes / 2**30)


@lru_cache(maxsize=1)
def _cpu_model() -> str:
    """Return the model of the processor, as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "")
