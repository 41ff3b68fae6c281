import copy
import importlib.util
import subprocess
import sys
import threading
from itertools import count
from textwrap import dedent

import numpy as np
import pytest
import torch

from dasktune.errors import ConfigurationError
from dasktune.trainer.fingerprint.fingerprint import code_parts, fingerprint
from dasktune.trainer.fingerprint.source import Sources
from dasktune.trainer.given import as_trainer
from tests.toy_trainers import Adding

STUDY = """
import math
from functools import partial

import numpy as np

from dasktune.trainer.base import Trainer

WIDTH = 32
SCALES = {"a": [1, 2.0]}
UNUSED = 1


def scaled(x, by=1.0):
    return by * math.tanh(x) * SCALES["a"][0]


def unused():
    return UNUSED


half = partial(scaled, by=0.5)


class Layer:
    size = WIDTH


class Net(Trainer):
    def build(self, hp):
        self.layer = Layer()
        self.text = f"{hp['lr']:.3f} and 'so' on"

    def train(self):
        values = (1, 2)
        return scaled(values[0]) + half(2)


SPACE = [unused]
"""

numbers = count()


@pytest.fixture
def digest_of(tmp_path):
    """Return a function that gives the digest of ``Net`` in a study file of this text."""

    def digest(text, config=None):
        return loaded(text, tmp_path, config).digest

    return digest


def loaded(text, folder, config=None, **arguments):
    path = folder / f"study_{next(numbers)}.py"
    path.write_text(dedent(text))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        return fingerprint(module.Net, config or {}, **arguments)
    finally:
        del sys.modules[path.stem]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    def train(self):\n", "    # why\n\n    def train(self):\n        '''Go on.'''\n"),
        ("class Layer:", 'class Layer:\n    """Doc."""\n'),
        ("return by * math", "return  by*math"),
        ("scaled(values[0]) + half(2)", "(\n            scaled(\n  values[0],\n) + half(2)\n)"),
        ('SCALES["a"]', "SCALES['a']"),
        ("f\"{hp['lr']:.3f} and 'so' on\"", "f'''{hp[\"lr\"]:.3f} and 'so' on'''"),
        ("        values = (1, 2)\n", "        values = 1, 2,\n"),
        ("    return by * math", "            return by * math"),
        ("UNUSED = 1", "UNUSED = 2"),
        ("return UNUSED", "return UNUSED + 1"),
        ("SPACE = [unused]", "SPACE = []"),
    ],
)
def test_equivalent_code_has_the_same_fingerprint(digest_of, old, new):
    assert old in STUDY
    assert digest_of(STUDY) == digest_of(STUDY.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH = 32", "WIDTH = 64"),
        ("WIDTH = 32", "WIDTH = 32.0"),
        ("[1, 2.0]", "[1, 2]"),
        ("math.tanh(x)", "math.sinh(x)"),
        ("import math\n", "import cmath as math\n"),
        ("by=1.0", "by=2.0"),
        ("by=0.5", "by=0.25"),
        ("size = WIDTH", "size = WIDTH + 1"),
        (":.3f}", ":.4f}"),
        ("values = (1, 2)", "values = (1, 2, 3)"),
        ("half(2)", "half(2,) + 0"),
        ("self.layer = Layer()", "self.layer = (Layer(),)"),
        ("(Trainer):", "(Trainer):\n    version = '2'\n"),
        ("(Trainer):", "(Trainer):\n    ignored_config = ('a',)\n"),
    ],
)
def test_changed_code_has_another_fingerprint(digest_of, old, new):
    assert old in STUDY
    assert digest_of(STUDY) != digest_of(STUDY.replace(old, new))


def test_swapped_imports_count(digest_of):
    text = """
    from math import {} as first, {} as second
    class Net:
        def train(self):
            return first(1) + second(2)
    """
    assert digest_of(text.format("sin", "cos")) != digest_of(text.format("cos", "sin"))


def test_the_parts_are_named(tmp_path):
    parts = loaded(STUDY, tmp_path).parts
    assert sorted(parts) == [
        "class Layer",
        "class Net",
        "config",
        "function scaled",
        "version",
    ]


@pytest.mark.process
def test_run_file_and_imported_file_are_equal(tmp_path):
    text = STUDY + dedent(
        """
        from dasktune.trainer.fingerprint.fingerprint import code_parts, fingerprint
        print(fingerprint(Net, {}).digest)
        """
    )
    (tmp_path / "study.py").write_text(text)
    commands = (["study.py"], ["-c", "import study"], ["-m", "study"])
    printed = {
        subprocess.run(
            [sys.executable, *command], cwd=tmp_path, check=True, capture_output=True
        ).stdout
        for command in commands
    }
    assert len(printed) == 1


@pytest.mark.process
def test_files_beside_a_study_file_count(tmp_path):
    (tmp_path / "layers_here.py").write_text("def width():\n    return 1\n")
    (tmp_path / "study.py").write_text(
        dedent(
            """
            import layers_here
            from dasktune.trainer.fingerprint.fingerprint import code_parts, fingerprint
            class Net:
                def train(self):
                    return layers_here.width()
            print(fingerprint(Net, {}).digest)
            """
        )
    )

    def digest():
        command = [sys.executable, "study.py"]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout

    before = digest()
    (tmp_path / "layers_here.py").write_text("def width():\n    return 12\n")
    assert digest() != before


def test_closures_and_bases_of_local_classes_count():
    def make(width, depth):
        class Base:
            def build(self, hp):
                return depth

        class Net(Base):
            def train(self):
                return width

        return fingerprint(Net, {}).digest

    assert make(1, 2) == make(1, 2)
    assert len({make(1, 2), make(2, 2), make(1, 3)}) == 3


def test_functions_that_call_each_other_end():
    parts = fingerprint(Recursive, {}).parts
    assert "function even" in parts
    assert "function odd" in parts


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


class Recursive:
    def train(self):
        return even(3)


TABLE = np.arange(3)
HANDLE = threading.Lock()
DTYPE = torch.float32


class Constants:
    def train(self):
        return TABLE, HANDLE, DTYPE


def test_arrays_count_and_uncovered_objects_are_gaps(monkeypatch):
    before = fingerprint(Constants, {})
    assert list(before.gaps) == ["_thread.lock", "data"]
    assert "depends_on or version" in before.gaps["_thread.lock"]
    assert "_thread.lock" not in before.parts
    monkeypatch.setitem(globals(), "TABLE", np.arange(4))
    assert fingerprint(Constants, {}).digest != before.digest
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "DTYPE", torch.float64)
    assert fingerprint(Constants, {}).digest != before.digest


def test_depends_on_changes_the_fingerprint():
    plain = fingerprint(Recursive, {})
    more = fingerprint(Recursive, {}, depends_on=[make_data, 3])
    assert "function make_data" in more.parts
    assert len({plain.digest, more.digest, fingerprint(Recursive, {}, depends_on=[4]).digest}) == 3


def make_data():
    return 1


class Configured:
    ignored_config = ("folder",)

    @classmethod
    def fingerprint_data(cls, config):
        return {"rows": config.get("rows", 0)}


def test_config_counts_except_ignored_keys():
    def digest(**config):
        return fingerprint(Configured, config).digest

    assert digest(a=1, b=(1, 2)) == digest(b=[1, 2], a=1)
    assert digest(a=1, folder="x") == digest(a=1, folder={object})
    assert len({digest(a=1), digest(a=1.0), digest(a=True), digest(a="1"), digest()}) == 5


def test_the_data_count():
    def digest(rows):
        return fingerprint(Configured, {"rows": rows}).parts["data"]

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_config_of_other_values_is_refused_with_all_paths():
    config = {"a": [1, {"b": {1}}], "c": float("nan"), "d": {3: 4}}
    with pytest.raises(ConfigurationError) as caught:
        fingerprint(Configured, config)
    assert caught.value.problems == (
        "config['a'][1]['b'] must be a JSON value, got {1} (set); write a list, such as "
        "sorted(values)",
        "config['c'] must be a JSON value, got nan (float); write its values as numbers, texts, "
        "lists and dicts",
        "config['d'] must have names as keys, got 3",
    )


def test_file_is_parsed_again_only_after_a_change(tmp_path):
    path = tmp_path / "studied.py"
    path.write_text(STUDY)
    first = Sources().file(str(path))
    assert first is not None
    assert Sources().file(str(path)) is first
    path.write_text(STUDY + "\nLATER = 1\n")
    assert Sources().file(str(path)) is not first


def test_class_without_source_is_refused():
    namespace = {"__name__": "__main__"}
    exec("class Typed:\n    def train(self): ...", namespace)
    with pytest.raises(ConfigurationError, match="the source of Typed cannot be read"):
        fingerprint(namespace["Typed"], {})


def test_code_parts_are_those_of_the_class_and_its_bases():
    parts = code_parts(Adding)
    assert "class Adding" in parts
    assert parts == code_parts(Adding)
    assert parts != code_parts(type("Adding", (Adding,), {"train": lambda self: None}))


BRANCHES = """
from dasktune.trainer.base import Trainer

if {condition}:
    class Net(Trainer):
        WIDTH = {first}

        def train(self):
            return self.WIDTH
else:
    class Net(Trainer):
        WIDTH = {second}

        def train(self):
            return self.WIDTH
"""


@pytest.mark.parametrize("condition", [True, False])
def test_only_the_class_that_was_defined_counts(digest_of, condition):
    def digest(first, second):
        own, other = (first, second) if condition else (second, first)
        return digest_of(BRANCHES.format(condition=condition, first=own, second=other))

    assert digest("[8][0]", "1") == digest("[8][0]", "2")
    assert digest("[8][0]", "1") != digest("[8, 9][0]", "1"), "its source, with the same value"


def test_names_of_harmless_parts_do_not_count() -> None:
    class Named:
        def train(self) -> None: ...

    def train(run: object) -> None: ...

    def digest(thing: type) -> str:
        return fingerprint(thing, {}).digest

    before = digest(Named)
    Named.harmless_differences = ("trainer.log",)  # type: ignore[attr-defined]
    assert digest(Named) == before
    made = digest(as_trainer(train))
    train.harmless_differences = ("trainer.variables['log']",)  # type: ignore[attr-defined]
    assert digest(as_trainer(train)) == made


class Table:
    def __init__(self):
        self.rows = [1, 2]


TABLE = Table()


class Looking(Adding):
    def train(self):
        super().train()
        self.row = TABLE.rows[0]


def test_copying_an_object_is_no_change_of_its_class():
    before = fingerprint(Looking, {}).digest
    copy.copy(TABLE)  # which Python notes in the class
    assert "__slotnames__" in vars(Table)
    assert fingerprint(Looking, {}).digest == before
