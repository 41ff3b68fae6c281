"""dasktune fingerprint: the parts of a state's key, and their changes since a study was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dasktune.cli import app
from dasktune.cli.study_file import load
from dasktune.trainer import data_digest, fingerprint

pytestmark = pytest.mark.usefixtures("at_home")

SEEDED = "        metric=metric,\n", "        metric=metric,\n        seed=3,\n"


def command(*arguments: str) -> Result:
    done = CliRunner().invoke(app, arguments)
    assert "Traceback" not in done.output
    return done


def found(*arguments: str) -> dict[str, Any]:
    done = command("fingerprint", *arguments, "--json")
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def change(old: str, new: str, name: str = "counting.py") -> str:
    """Write the study file with a change; return its name."""
    text = Path("counting.py").read_text()
    assert old in text
    Path(name).write_text(text.replace(old, new))
    return name


def create() -> None:
    load(Path("counting.py")).study().close()


def test_a_file_that_a_check_saw_differs_by_name() -> None:
    net = Path("net.yaml")
    net.write_text("width: 1")
    study = load(Path("counting.py")).study()
    study.record_check(True, "passed", files={"./net.yaml": data_digest(net)})
    study.close()
    (same,) = found("counting.py")["compared"]
    assert same["is_same"]
    net.write_text("width: 2")
    document = found("counting.py")
    assert document["parts"]["read file ./net.yaml"] == data_digest(net)
    (other,) = document["compared"]
    assert (other["is_same"], other["differs"]) == (False, ["read file ./net.yaml"])


def test_all_that_counts_is_printed_and_nothing_is_made() -> None:
    done = command("fingerprint", "counting.py")
    assert done.exit_code == 0, done.output
    digest, *lines = done.stdout.splitlines()
    study = load(Path("counting.py")).study()
    assert digest == fingerprint(study.trainer, study.config).digest
    study.close()
    text = "\n".join(lines)
    for part in ("class Counting", "config", "version"):
        assert f"  {part}" in text
    assert "seed 0: part of each state's key beside this" in text
    assert "  data: the trainer has no fingerprint_data(config)" in text
    assert "  numpy " in text
    assert "recorded with each checkpoint" in text
    assert "study 'counting' has not been created yet" in text


def test_looking_makes_no_store() -> None:
    before = {path.name for path in Path().iterdir()}
    found("counting.py")
    assert {path.name for path in Path().iterdir()} == before


def test_programs_read_the_same() -> None:
    document = found("counting.py")
    assert set(document["parts"]) == {"class Counting", "config", "version"}
    assert set(document["packages"]) == {"python", "dasktune", "numpy"}
    assert (document["study"], document["seed"], document["compared"]) == ("counting", 0, [])


def test_fingerprint_edited_file_differs_from_created_study() -> None:
    create()
    (same,) = found("counting.py")["compared"]
    assert same == {"other": "study 'counting'", "is_same": True, "differs": []}
    change("+ self.lr\n", "+ self.lr * 2\n", "counting.py")
    (other,) = found("counting.py")["compared"]
    assert (other["is_same"], other["differs"]) == (False, ["class Counting"])
    assert (
        "study 'counting': differs in class Counting"
        in command("fingerprint", "counting.py").stdout
    )
    refused = command("run", "counting.py")
    assert refused.exit_code == 2
    assert "what differs: class Counting; another one needs another name" in refused.stderr


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ('"pause": pause}', '"pause": pause, "more": 1}', ["config"]),
        ("    def build", "    version = '2'\n    def build", ["class Counting", "version"]),
        (
            "        metric=metric,\n",
            "        metric=metric,\n        seed=3,\n",
            ["seed (0, here 3)"],
        ),
        ("import numpy as np\n", "import numpy as np\n# why\n", []),
        ('name="counting"', 'name="other"', []),
        (
            "class Counting(dt.Trainer):",
            "def doubled(x):\n    return 2 * x\n\n"
            "class Counting(dt.Trainer):\n    by = doubled(1)\n",
            ["class Counting", "function doubled (new)"],
        ),
    ],
)
def test_a_storage_and_a_file_can_be_compared_with(old: str, new: str, differs: list[str]) -> None:
    create()
    name = change(old, new, "changed.py")
    for other in ("runs/counting", "runs/counting/dasktune.db", "counting.py"):
        (one,) = found(name, "--against", other)["compared"]
        assert (one["is_same"], one["differs"]) == (not differs, differs)


def test_a_study_is_chosen_by_name() -> None:
    create()
    change('name="counting"', 'name="second"', "second.py")
    load(Path("second.py")).study().close()
    names = [one["other"] for one in found("counting.py", "--against", "runs/counting")["compared"]]
    assert names == ["study 'counting'"]
    third = change('name="counting"', 'name="third"', "third.py")
    names = [one["other"] for one in found(third, "--against", "runs/counting")["compared"]]
    assert names == ["study 'counting'", "study 'second'"]
    arguments = (third, "--against", "runs/counting", "--study", "second")
    assert [one["other"] for one in found(*arguments)["compared"]] == ["study 'second'"]
    done = command("fingerprint", *arguments[:-1], "fourth")
    assert (done.exit_code, "unknown study 'fourth'; known: counting, second" in done.stderr) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("study, tuner = 1, 2", "study must be a Study"),
        (
            "import dasktune as dt\ntuner = 1\n"
            "def study(): return dt.create_study(None, name='own', metric='loss')\n",
            "study 'own' has no trainer, so no fingerprint",
        ),
    ],
)
def test_what_has_no_fingerprint_is_refused(text: str, message: str) -> None:
    Path("file.py").write_text(text)
    done = command("fingerprint", "file.py")
    assert done.exit_code == 2
    assert message in done.stderr


def test_the_merge_rate_over_several_files_is_shown() -> None:
    other = change("lrs = [Constant(0.1),", "lrs = [Constant(0.2), Constant(0.1),", "other.py")
    document = json.loads(command("preview", "counting.py", other, "--json").stdout)
    assert [one["steps_unique"] for one in document["studies"]] == [33, 45]
    assert (document["steps_requested"], document["steps_unique"]) == (48 + 60, 45)
    assert document["merge_rate"] == 108 / 45
    text = command("preview", "counting.py", other).stdout
    assert "counting.py\n  4 trials ask for 48 steps; 33 are unique (69%)" in text
    assert "merge rate q = 2.400; p = 1.455, 1.333" in text


def test_studies_of_other_code_or_seeds_share_nothing() -> None:
    code = change("+ self.lr\n", "+ self.lr * 2\n", "code.py")
    seed = change(
        "        metric=metric,\n", "        metric=metric,\n        seed=3,\n", "seed.py"
    )
    document = json.loads(command("preview", "counting.py", code, seed, "--json").stdout)
    assert document["steps_unique"] == 3 * 33
    assert "the studies have nothing in common" in command("preview", "counting.py", seed).stdout
