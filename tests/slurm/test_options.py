"""The options of SLURM: read, checked as a whole, and written into jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.errors import ClusterError, ConfigurationError
from dasktune.slurm import SlurmOptions, options_for, pools_for, workers
from dasktune.slurm.options import pools_of, seconds_of
from dasktune.slurm.workers import check_accepted, job_options
from tests.pages import python_blocks

pytestmark = pytest.mark.usefixtures("commands")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("4:00:00", 14_400),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("2-0:0:1", 172_801),
        ("", None),
        ("-1", None),
        ("1:2:3:4", None),
        ("four", None),
        (90, None),
    ],
)
def test_times_are_read_as_slurm_reads_them(text: object, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


def test_slurm_options_report_all_problems_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        SlurmOptions(
            workers="8-2",
            partition="a b",
            gpus_per_worker=-1,
            cpus_per_worker=0,
            memory="much",
            walltime="1",
            directives=("nice",),
            prologue=("two\nlines",),
            interface="no0",
        )
    assert len(caught.value.problems) == 9


def test_a_margin_must_be_within_the_walltime() -> None:
    with pytest.raises(ConfigurationError, match="margin must be a time > 0 and < walltime 10"):
        SlurmOptions(walltime="10", margin="10:00")


@pytest.mark.parametrize(("walltime", "margin"), [("10", 60), ("4:00:00", 300), ("2-0", 300)])
def test_margin_is_a_tenth_of_the_walltime_up_to_five_minutes(walltime: str, margin: int) -> None:
    assert SlurmOptions(walltime=walltime).margin_seconds == margin


def test_commands_of_slurm_that_are_missing_are_named(commands: Path) -> None:
    (commands / "squeue").unlink()
    with pytest.raises(ConfigurationError, match="squeue must be in PATH"):
        SlurmOptions()


UNREACHABLE = """#!/bin/sh
echo "${0##*/}: error: fetch_config: DNS SRV lookup failed" >&2
echo "${0##*/}: error: _establish_config_source: failed to fetch config" >&2
echo "${0##*/}: fatal: Could not establish a configuration source" >&2
exit 1
"""
"""As the commands of SLURM answer where there is no controller."""


def test_slurm_that_does_not_answer_is_told_from_a_refusal(commands: Path, tmp_path: Path) -> None:
    (commands / "sbatch").write_text(UNREACHABLE)
    (commands / "squeue").write_text("#!/bin/sh\n")
    with pytest.raises(ClusterError, match="SLURM refuses such jobs: fetch_config: DNS SRV"):
        check_accepted({"": SlurmOptions()}, tmp_path)
    (commands / "squeue").write_text(UNREACHABLE)
    with pytest.raises(ClusterError) as caught:
        check_accepted({"": SlurmOptions()}, tmp_path)
    text = str(caught.value)
    assert text == (
        "SLURM does not answer: squeue: fatal: Could not establish a configuration source; run "
        "this where jobs are submitted"
    )


def test_flags_come_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "dasktune.toml").write_text(
        '[slurm]\nworkers = "2-8"\npartition = "long"\nprologue = ["module load cuda"]\n'
    )
    options = pools_for(tmp_path, {"partition": "gpu", "account": None})[""]
    assert (options.partition, options.account) == ("gpu", None)
    assert (options.least, options.most) == (2, 8)
    assert options.prologue == ("module load cuda",)


def test_pools_for_unknown_key_lists_the_known_keys(tmp_path: Path) -> None:
    (tmp_path / "dasktune.toml").write_text('[slurm]\nqueue = "gpu"\n')
    with pytest.raises(ConfigurationError, match=r"unknown option 'queue'.*partition"):
        pools_for(tmp_path, {})[""]


@pytest.mark.parametrize("text", ["[slurm", "slurm = 3"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "dasktune.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"dasktune\.toml"):
        pools_for(tmp_path, {})[""]


def test_page_shows_readable_options_and_names_every_key(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()
    first, several, pools = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "dasktune.toml").write_text(first)
    assert pools_for(tmp_path, {})[""].prologue == ("module load cuda",)
    (tmp_path / "dasktune.toml").write_text(several)
    options = pools_for(tmp_path, {})[""]
    assert (options.gpus_per_job, options.workers_per_job * options.cpus_per_worker) == (4, 32)
    (tmp_path / "dasktune.toml").write_text(pools)
    assert [*pools_for(tmp_path, {})] == ["cpu", "a100", "h100"]
    for one in fields(SlurmOptions):
        assert f"`{one.name}`" in page


def test_python_of_the_page_gives_readable_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Mapping[str, SlurmOptions], str]] = []

    @contextmanager
    def pools_client(pools: Mapping[str, SlurmOptions]) -> Iterator[Mapping[str, SlurmOptions]]:
        yield pools

    def optimize(tuner: str, client: Mapping[str, SlurmOptions]) -> None:
        asked.append((client, tuner))

    monkeypatch.setattr(workers, "pools_client", pools_client)
    names = {"study": SimpleNamespace(optimize=optimize), "tuner": "a tuner"}
    for block in python_blocks("slurm.md"):
        exec(compile(block, "slurm.md", "exec"), names)
    (single, first), (several, second) = asked
    assert (first, second) == ("a tuner", "a tuner")
    assert (single[""].partition, single[""].least, single[""].most) == ("gpu", 2, 8)
    assert [(name, pool.account, pool.most) for name, pool in several.items()] == [
        ("cpu", "vision", 40),
        ("gpu", "vision", 4),
    ]


def test_the_options_beside_the_examples_can_be_read() -> None:
    options = options_for(Path(__file__).parents[2] / "examples", {})
    assert (options.least, options.most, options.margin_seconds) == (1, 4, 120)


def test_a_job_is_one_process_and_comes_back_when_it_is_requeued(tmp_path: Path) -> None:
    found = job_options(SlurmOptions(qos="high", gpus_per_worker=2, walltime="60"), tmp_path)
    assert found["python"].startswith("exec ")
    wanted = {"--requeue", "--open-mode=append", "--gres=gpu:2", "--qos=high"}
    assert wanted <= set(found["job_extra_directives"])
    assert "GPU=2" in found["worker_extra_args"]


def test_a_job_asks_for_what_all_its_workers_need(tmp_path: Path) -> None:
    options = SlurmOptions(workers_per_job=4, gpus_per_worker=0.5, cpus_per_worker=3)
    assert (options.least, options.most) == (4, 4)
    found = job_options(options, tmp_path)
    assert found["job_cpu"] == 12
    assert found["memory"] == options.memory, "that of the job"
    assert "--gres=gpu:2" in found["job_extra_directives"]
    assert "GPU=0.5" in found["worker_extra_args"]
    assert "--workers 4 --gpus-per-worker 1 --sharers 2" in found["worker_command"]
    assert 'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-3}"' in found["job_script_prologue"]


def test_workers_of_a_job_share_its_gpus_by_measurement(tmp_path: Path) -> None:
    (tmp_path / "dasktune.toml").write_text("[slurm]\ngpus-per-worker = 1\nworkers = '4-8'\n")
    options = pools_for(tmp_path, {"trials_per_gpu": 4})[""]
    assert (options.processes, options.gpus_per_job, options.least) == (4, 1, 4)
    found = job_options(options, tmp_path)
    assert found["worker_command"].endswith(
        "--workers 4 --gpus-per-worker 1 --sharers 4 --is-measured"
    )
    assert (found["processes"], found["job_cpu"]) == (4, 4)
    assert "GPU=1" in found["worker_extra_args"]
    two = SlurmOptions(trials_per_gpu=4, gpus_per_worker=1, workers_per_job=8)
    assert two.gpus_per_job == 2


@pytest.mark.parametrize(
    ("workers", "gpus", "asked"),
    [(1, 0, 0), (3, 1, 3), (2, 4, 8), (2, 0.5, 1), (6, 0.33, 2), (4, 0.25, 1)],
)
def test_gpus_of_a_job_are_counted(workers: int, gpus: float, asked: int) -> None:
    assert SlurmOptions(workers_per_job=workers, gpus_per_worker=gpus).gpus_per_job == asked


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus_per_worker": 0.5}, "workers_per_job must be a multiple of 2"),
        ({"gpus_per_worker": 0.7}, "gpus_per_worker must be an int >= 0 or a part"),
        ({"gpus_per_worker": 1.5}, "gpus_per_worker must be an int >= 0 or a part"),
        ({"gpus_per_worker": "1"}, "gpus_per_worker must be an int >= 0 or a part"),
        ({"gpus_per_worker": float("nan")}, "gpus_per_worker must be an int >= 0 or a part"),
        ({"workers_per_job": 0}, "workers_per_job must be an int >= 1, got 0"),
        ({"workers": "2-5", "workers_per_job": 2}, "workers must be multiples of workers_per_job"),
        ({"trials_per_gpu": 2}, "trials_per_gpu=2 must come with gpus_per_worker=1, got 0"),
        ({"trials_per_gpu": 0}, "trials_per_gpu must be an int >= 1, got 0"),
        ({"trials_per_gpu": 2.0}, "trials_per_gpu must be an int >= 1, got 2.0"),
        (
            {"trials_per_gpu": 2, "gpus_per_worker": 0.5},
            "trials_per_gpu=2 must come with gpus_per_worker=1, got 0.5",
        ),
        (
            {"trials_per_gpu": 2, "gpus_per_worker": 1, "workers_per_job": 3},
            "workers_per_job must be a multiple of 2, since so many share a GPU (trials_per_gpu=2)",
        ),
        (
            {"trials_per_gpu": 2, "gpus_per_worker": 1, "workers": "1-4"},
            "workers must be multiples of trials_per_gpu 2, got '1-4'",
        ),
        ({"idle_seconds": 0}, "idle_seconds must be a number > 0, got 0"),
        ({"job_name": "a b"}, "job_name must be one word"),
        ({"job_name": None}, "job_name must be one word"),
    ],
)
def test_what_cannot_be_shared_or_counted_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SlurmOptions(**given)
    (problem,) = caught.value.problems
    assert problem.startswith(said)


@pytest.mark.parametrize(("wait", "seconds"), [("30", "25"), ("5", "2.5")])
def test_workers_have_as_long_to_save_as_slurm_gives(
    tmp_path: Path, commands: Path, wait: str, seconds: str
) -> None:
    (commands / "scontrol").write_text(f"#!/bin/sh\necho 'KillWait       = {wait} sec'\n")
    (commands / "scontrol").chmod(0o755)
    prologue = job_options(SlurmOptions(prologue=("module load cuda",)), tmp_path)[
        "job_script_prologue"
    ]
    assert f"export DASKTUNE_CLOSE_SECONDS={seconds}" in prologue
    assert prologue[-1] == "module load cuda", "what the user writes comes last"


@pytest.mark.parametrize(
    ("interface", "encrypt", "is_encrypted"),
    [("lo", None, False), (None, None, True), ("lo", True, True), (None, False, False)],
)
def test_is_encrypted_defaults_to_true_beyond_loopback(
    interface: str | None, encrypt: bool | None, is_encrypted: bool
) -> None:
    assert SlurmOptions(interface=interface, encrypt=encrypt).is_encrypted is is_encrypted


def test_tags_stand_in_the_environment_of_the_workers(tmp_path: Path) -> None:
    (tmp_path / "dasktune.toml").write_text('[slurm]\ntags = ["Fast", "lab3"]\n')
    options = pools_for(tmp_path, {})[""]
    assert options.tags == ("Fast", "lab3")
    assert "export DASKTUNE_TAGS=Fast,lab3" in job_options(options, tmp_path)["job_script_prologue"]


@pytest.mark.parametrize("name", ["b\nc", "\x1b[31m", "x" * 101, "a b", ""])
def test_unfit_name_of_a_pool_is_one_line(name: str) -> None:
    with pytest.raises(ConfigurationError, match="a pool's name must have letters") as refused:
        pools_of({name: {"workerz": 2}}, {})
    (problem,) = refused.value.problems
    assert problem.isprintable()
    assert len(problem) < 250


@pytest.mark.parametrize("tags", [("a b",), ("a,b",), ("",), "fast", (3,)])
def test_tags_that_are_no_words_are_refused(tags: Any) -> None:
    with pytest.raises(ConfigurationError, match="tags must be a list of words"):
        SlurmOptions(tags=tags)
