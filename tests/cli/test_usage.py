"""Wrong usage of the command: one message without a traceback, and empty folders afterwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dasktune.cli.study_file import load, parse_config
from dasktune.errors import ConfigurationError

from .conftest import command

pytestmark = pytest.mark.usefixtures("at_home")

HEAD = "import dasktune as dt\nfrom counting import Counting, study, tuner\n"
SPACE = "dt.Space(\n        lr=[dt.sequences.MultiStep(0.1, milestones=[5, 3], gamma=0.1)])"


def write(text: str, name: str = "file.py") -> str:
    Path(name).write_text(text)
    return name


def entries() -> set[str]:
    return {path.name for path in Path().iterdir()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef study(:\n", ":2: SyntaxError: invalid syntax: def study(:"),
        ("\nx = missing + 1\n", ":2: x = missing + 1: NameError: name 'missing' is not defined"),
        (
            "import lightnin\n",
            ":1: import lightnin: ModuleNotFoundError: No module named 'lightnin'",
        ),
        (
            "from counting import study\n",
            "file.py must define study and tuner, or functions of those names; tuner cannot be "
            "found among study",
        ),
        ("x = 3", "study and tuner cannot be found among x"),
        (f"{HEAD}tuner = dt.algos.Grid\n", "tuner must be a Tuner or a function that returns one"),
        (f"{HEAD}def study(): return 3\n", "study must be a Study or a function that returns one"),
        (
            f"{HEAD}def tuner():\n    return {SPACE}\n",
            ":5: lr=[dt.sequences.MultiStep(0.1, milestones=[5, 3], gamma=0.1)]): MultiStep: "
            "milestones must be strictly increasing, got [5, 3]",
        ),
        (
            f"{HEAD}def study():\n    dt.create_study(\n        None, name='x', metric='')\n",
            "file.py:4: metric must be the name of a metric, got ''",
        ),
        (
            "import counting\nfrom counting import tuner\ndef study(): raise OSError('no disk')\n",
            ":3: def study(): raise OSError('no disk'): OSError: no disk",
        ),
        (
            f"{HEAD}def study(): raise OSError('cannot reach postgresql://me:s3cr3t-w0rd@host/x')\n",
            "OSError: cannot reach postgresql://***@host/x",
        ),
        (
            f"{HEAD}x = dict(storage='s3://AKEY:s3cr3t-w0rd@bucket/x'))\n",
            "SyntaxError: unmatched ')': x = dict(storage='s3://***@bucket/x'))",
        ),
    ],
)
def test_a_bad_study_file_is_refused_with_its_line(text: str, message: str) -> None:
    before = entries() | {"file.py"}
    done = command("run", write(text))
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "s3cr3t" not in done.stderr
    assert entries() == before


def test_an_unknown_metric_is_refused_and_nothing_is_made() -> None:
    done = command("run", "counting.py", "--config", "metric=accuracy")
    assert done.exit_code == 2
    assert "unknown metric 'accuracy'; known: loss" in done.stderr
    assert entries() == {"counting.py"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "none.py"], "no such file: 'none.py'; it must be a study file"),
        (["run", "."], "no such file: '.'; it must be a study file"),
        (["run", "counting.py", "--config", "x"], "must be given as key=value, got 'x'"),
        (
            ["run", "counting.py", "--config", "pauze=1"],
            "unknown config key 'pauze'; known: bad, metric, pause",
        ),
        (["run", "counting.py", "--workers", "0"], "--workers must be a number >= 1 or a range"),
        (["run", "counting.py", "--workers", "4-2"], "or a range such as 0-16, got '4-2'"),
        (["run", "counting.py", "--qos", "low"], "--qos must come with --slurm"),
        (
            ["run", "counting.py", "--scheduler", "tcp://192.0.2.1:8786"],
            "whoever reaches a scheduler without encryption runs code on it; --insecure",
        ),
        (
            ["run", "counting.py", "--workers", "2", "--scheduler", "tcp://127.0.0.1:1"],
            "--workers is for a local cluster",
        ),
        (["run"], "Missing argument"),
        (["frobnicate"], "No such command"),
        (["check", "counting.py", "--trial", "4"], "trial must be one of 0 to 3, got 4"),
        (["check", "counting.py", "--total", "13"], "total must be <= 12"),
        (["check", "counting.py", "--split", "12"], "split must be >= 1 and less than total"),
        (["report", "counting.py"], "study 'counting' has no trials yet: run it first"),
        (["status", "nowhere"], "no such file or folder: 'nowhere'"),
        (["status", ".", "--config", "pause=1"], "config is for a study file, got '.'"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: list[str], message: str) -> None:
    done = command(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("target", [".", "counting.py", "runs.db", "sqlite:///runs.db"])
def test_status_makes_nothing(target: str) -> None:
    if target == "runs.db":
        Path(target).touch()
    before = entries()
    done = command("status", target)
    assert done.exit_code in (1, 2)
    assert "error: " in done.stderr
    assert entries() == before


def test_status_lists_known_studies() -> None:
    load(Path("counting.py")).study().close()
    assert "counting (minimize loss)\n  trials  none\n" in command("status", "counting.py").stdout
    (found,) = json.loads(command("status", "runs/counting", "--json").stdout)
    assert (found["trials"], found["best"], found["steps_requested"]) == ({}, None, 0)
    done = command("status", "runs/counting/dasktune.db", "--study", "other")
    assert done.exit_code == 2
    assert "unknown study 'other'; known: counting" in done.stderr


def test_status_of_a_file_is_that_of_the_study_it_would_open() -> None:
    text = Path("counting.py").read_text()
    write(f"{text}\nstudy, tuner = study(), tuner()\n")
    before = entries()
    done = command("status", "file.py")
    assert "there is no database" in done.stderr
    assert entries() == before

    load(Path("counting.py")).study().close()
    assert command("status", "file.py").stdout.startswith("counting (minimize loss)\n")
    named = text.replace('name="counting"', 'name=f"pause {pause}"').replace(
        "runs/counting", "runs/all"
    )
    load(Path(write(named, "named.py"))).study().close()
    assert command("status", "named.py").stdout.startswith("pause 0.0 (minimize loss)\n")
    done = command("status", "named.py", "--config", "pause=0.5")
    assert "unknown study 'pause 0.5'; known: pause 0.0" in done.stderr


def test_preview_makes_nothing() -> None:
    done = command("preview", "counting.py", "--workers", "2")
    assert done.exit_code == 0, done.output
    assert "4 trials ask for 48 steps; 33 are unique (69%)" in done.stdout
    found = json.loads(command("preview", "counting.py", "--json", "--config", "bad=1").stdout)
    assert (found["trials"], found["steps_unique"], found["bound_steps"]) == (5, 39, 39.0)
    assert entries() == {"counting.py"}


def test_preview_of_a_budget_says_what_ends_it() -> None:
    grid = "dt.algos.Grid(dt.Space(lr=lrs), max_steps=12)"
    text = Path("counting.py").read_text()
    assert grid in text
    steps = write(text.replace(grid, "dt.algos.Auto(dt.Space(lr=lrs), budget=40)"))
    assert "ends it after 40 steps of all trials" in command("preview", steps).stdout
    hours = "dt.algos.Auto(dt.Space(lr=dt.Float(0, 1)), budget='1 worker-hours')"
    done = command("preview", write(text.replace(grid, hours)))
    assert done.exit_code == 2, done.output
    assert "max_steps of Auto must be given for a preview" in done.stderr


def test_preview_refuses_changes_that_the_trainer_cannot_make() -> None:
    text = (
        Path("counting.py")
        .read_text()
        .replace(
            "(dt.Trainer):\n",
            "(dt.Trainer):\n"
            "    @classmethod\n"
            "    def change_problems(cls, sequences, changing, config):\n"
            "        return [f'{name} changes: {sorted(config)}' for name in sorted(changing)]\n\n",
        )
    )
    for workers in ("2", "fast=2"):
        done = command("preview", write(text), "--workers", workers)
        assert done.exit_code == 2, done.output
        assert done.stderr.count("lr changes: [") == 1


@pytest.mark.slow
def test_a_check_is_recorded_and_its_verdict_is_the_exit_code() -> None:
    done = command("check", "counting.py", "--trial", "1", "--split", "4", "--total", "8", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["ok"], found["differences"], found["split"]) == (True, [], 4)

    text = Path("counting.py").read_text().replace('state["weight"], state', "self.weight, state")
    done = command("check", write(text.replace('"counting"', '"forgetful"')))
    assert done.exit_code == 1
    assert "resume check failed: 7 steps with a new process after 2, 3 and 5" in done.stdout
    named = text.replace('"counting"', '"another"')
    for name in ("file.py", write(named, "named.py")):
        refused = command("run", name, "--workers", "1", "--no-report")
        assert refused.exit_code == 2
        assert "must resume exactly for its trials to be merged" in refused.stderr


@pytest.mark.slow
def test_a_check_of_a_misspelt_name_is_a_misuse() -> None:
    text = Path("counting.py").read_text().replace('hp["lr"]', 'hp["lrr"]')
    done = command("check", write(text))
    assert done.exit_code == 2, "1 says that it does not resume exactly"
    assert "unknown hyper-parameter 'lrr'; known: lr" in done.stderr


def test_config_goes_to_the_functions_that_take_it() -> None:
    loaded = load(Path("counting.py"), ["pause=0.5", "bad=true"])
    study = loaded.study()
    assert study.config["pause"] == 0.5
    study.close()
    assert len(loaded.tuner().ask(1)) == 10


def test_a_function_of_any_keywords_takes_all() -> None:
    text = "def study(**config): raise ValueError(str(config))\ndef tuner(x=1): ...\n"
    with pytest.raises(ConfigurationError, match=r"{'x': 'a=b', 'y': None}"):
        load(Path(write(text)), ["x=a=b", "y=null"]).study()


def test_objects_take_no_config() -> None:
    text = f"{HEAD}study, tuner = study(), tuner()\n"
    assert load(Path(write(text))).study().name == "counting"
    with pytest.raises(ConfigurationError, match="unknown config key 'bad'; known: \\(none\\)"):
        load(Path("file.py"), ["bad=1"])


def test_a_command_opens_the_study_that_its_file_created() -> None:
    new = 'dt.create_study(Counting, name="again", metric="loss")'
    path = Path(write(f"{HEAD}study = {new}\n"))
    created = [load(path).study().results.row for _ in range(2)]
    assert created[0] == created[1]


@pytest.mark.parametrize("stem", ["json", "numpy", "my-study.v2"])
def test_a_study_file_hides_no_other_module(stem: str) -> None:
    before = sys.modules.get(stem)
    name = write(Path("counting.py").read_text(), f"{stem}.py")
    loaded = load(Path(name))
    assert sys.modules.get(stem) is before
    assert sys.modules[loaded.module.__name__] is loaded.module
    assert loaded.study().trainer.__module__ == loaded.module.__name__


@pytest.mark.parametrize("setting", ["=1", "a b=1", "a", ""])
def test_what_is_no_setting_is_refused(setting: str) -> None:
    with pytest.raises(ConfigurationError, match="key=value"):
        parse_config([setting, "fine=1"])


@pytest.mark.parametrize("name", ["run", "preview", "check", "status", "report", "migrate"])
def test_each_command_has_help(name: str) -> None:
    done = command(name, "--help")
    assert done.exit_code == 0
    assert f"{name} [OPTIONS]" in done.stdout


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--trials", "--trials-per-gpu"),
        ("--n-trials", "No such option: --n-trials; it is an argument of the tuner in the study"),
        ("--metric", "it is an argument of create_study in the study file"),
        ("--wrkers", "--workers"),
        ("--work", "--worker-seconds, --workers, --workers-timeout"),
        ("--zzz", "No such option: --zzz\n"),
    ],
)
def test_unknown_option_names_those_that_are_near(option: str, words: str) -> None:
    done = command("run", "file.py", option, "3")
    assert done.exit_code == 2
    assert words in done.output
    assert "--tls-ca" not in done.output
