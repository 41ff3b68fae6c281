import dataclasses
import enum
import functools
import gc
import importlib
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType

import cloudpickle
import pytest
import torch

import dasktune.trainer.base
from dasktune.errors import ClusterError, ConfigurationError
from dasktune.trainer import code as code_module
from dasktune.trainer import fingerprint
from dasktune.trainer.base import Trainer
from dasktune.trainer.code import dumps_by_value, loads_apart, pack, unpack
from dasktune.trainer.fingerprint import late_imports
from tests.holding import PATIENCE
from tests.study_folder import without_bytecode

SCALE = 3


def scaled(value):
    return SCALE * value


class Here(Trainer):
    def train(self):
        return scaled(2)


def in_new_process(code, call, folder):
    """Return the output of `call` in a process that cannot import the test's files."""
    script = (
        "import pickle, sys; from dasktune.trainer.code import unpack; "
        f"cls = unpack(pickle.load(open(sys.argv[1], 'rb'))); print({call})"
    )
    path = folder / "code"
    path.write_bytes(pickle.dumps(code))
    (folder / "empty").mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", script, str(path)],
        cwd=folder / "empty",
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_an_installed_class_travels_by_path():
    code = pack(Trainer)
    assert (code.kind, code.module, code.qualname) == ("import", "dasktune.trainer.base", "Trainer")
    assert code.payload == b""
    assert unpack(code) is Trainer


MEANS = {}


class Mode(enum.Enum):
    MEAN = 1


class Averaging(Trainer):
    mode = Mode.MEAN

    def train(self):
        MEANS["mean"] = 2.0
        return self.mode


def test_unpack_in_the_same_process_leaves_the_class_alone():
    before, train = fingerprint(Averaging, {}), Averaging.train
    opened = unpack(pack(Averaging))
    assert opened().train().name == "MEAN"
    assert opened is not Averaging
    assert Averaging.train is train
    assert MEANS == {}
    assert fingerprint(Averaging, {}) == before


FACTOR = 2.0


def multiplied(value, factor=FACTOR):
    return factor * value


class Multiplying(Trainer):
    def train(self):
        return multiplied(1.0)


def test_fingerprint_stays_after_cloudpickle_in_the_same_process():
    before = fingerprint(Multiplying, {})
    assert cloudpickle.loads(dumps_by_value(Multiplying)) is Multiplying
    now = Multiplying.train.__globals__["multiplied"]
    assert "FACTOR" not in now.__globals__, "the function of the class is a copy now"
    assert fingerprint(Multiplying, {}) == before


@pytest.mark.process
def test_class_of_a_test_module_travels_by_value(tmp_path):
    code = pack(Here)
    assert code.kind == "bytes"
    assert in_new_process(code, "cls().train(), cls.__qualname__", tmp_path) == "6 Here"


def test_modules_of_a_class_of_their_own_travel_by_name():
    class Fast(Here):
        def build(self, hp):
            torch.backends.cudnn.benchmark = True  # what many scripts for GPUs begin with

    assert type(torch.backends.cudnn) is not ModuleType
    assert unpack(pack(Fast)).build.__globals__["torch"] is torch


@pytest.mark.process
def test_a_local_class_takes_its_closure_along(tmp_path):
    factor = 5

    class Local(Here):
        def train(self):
            return super().train() * factor

    assert in_new_process(pack(Local), "cls().train()", tmp_path) == "30"


@pytest.mark.process
def test_modules_beside_a_study_file_travel_along(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "layers_of_mine.py").write_text("def width():\n    return 17\n")
    (project / "study_of_mine.py").write_text(
        textwrap.dedent(
            """
            import layers_of_mine
            from layers_of_mine import width
            from dasktune.trainer.base import Trainer

            class Net(Trainer):
                def train(self):
                    return layers_of_mine.width() + width()
            """
        )
    )
    script = (
        "import pickle, sys; import study_of_mine; from dasktune.trainer.code import pack; "
        "open(sys.argv[1], 'wb').write(pickle.dumps(pack(study_of_mine.Net)))"
    )
    packed = tmp_path / "packed"
    subprocess.run([sys.executable, "-c", script, str(packed)], cwd=project, check=True)
    code = pickle.loads(packed.read_bytes())
    assert in_new_process(code, "cls().train()", tmp_path) == "34"


def test_the_registry_of_cloudpickle_is_left_as_it_was():
    before = cloudpickle.list_registry_pickle_by_value()
    pack(Here)
    assert cloudpickle.list_registry_pickle_by_value() == before


class Calling:
    """A value that calls a function while it is pickled."""

    def __init__(self, function):
        self.function = function

    def __reduce__(self):
        self.function()
        return int, ()


class Announced:
    """A lock that calls a function before a thread waits for it."""

    def __init__(self, function):
        self.function, self.lock = function, threading.Lock()

    def __enter__(self):
        self.function()
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_threads_do_not_unregister_each_others_modules(monkeypatch):
    second_came, first_ended, payloads = threading.Event(), threading.Event(), []

    def come():
        if threading.current_thread() is second:
            second_came.set()

    def pickle_second():
        payloads.append(dumps_by_value([Calling(come_and_wait), scaled]))

    def come_and_wait():
        come()
        first_ended.wait(PATIENCE)

    def start_second():
        second.start()
        second_came.wait(PATIENCE)

    monkeypatch.setattr(code_module, "REGISTERING", Announced(come), raising=False)
    second = threading.Thread(target=pickle_second)
    dumps_by_value(Calling(start_second))
    first_ended.set()
    second.join()
    (payload,) = payloads
    assert b"_make_function" in payload, "by value"


def test_altered_bytes_are_refused():
    code = pack(Here)
    altered = dataclasses.replace(code, payload=code.payload[:-1] + b"!")
    with pytest.raises(ClusterError, match="was altered on its way"):
        unpack(altered)


def test_another_python_is_refused():
    with pytest.raises(ClusterError, match=r"was packed by Python 2.7; this is 3\."):
        unpack(dataclasses.replace(pack(Here), python=(2, 7)))


@pytest.mark.parametrize(
    ("module", "qualname"), [("no_such_package.of_mine", "Net"), ("dasktune.trainer.base", "Net")]
)
def test_import_failure_names_the_remedy(module, qualname):
    code = dataclasses.replace(pack(Trainer), module=module, qualname=qualname)
    with pytest.raises(ClusterError, match="install its package on the workers"):
        unpack(code)


def test_unpacked_value_must_be_a_class():
    code = dataclasses.replace(pack(Trainer), qualname="problems_of")
    with pytest.raises(ClusterError, match="must be a class"):
        unpack(code)


def test_unpicklable_class_is_refused(tmp_path):
    with open(tmp_path / "file", "w") as file:

        class Holder(Trainer):
            def train(self):
                return file

        with pytest.raises(ConfigurationError, match="Holder cannot be sent to workers"):
            pack(Holder)


def test_a_shadowed_name_travels_by_value(monkeypatch):
    other = type("Trainer", (), {"__module__": "dasktune.trainer.base"})
    assert pack(other).kind == "bytes"
    assert dasktune.trainer.base.Trainer is not other


@pytest.fixture
def installed_net(tmp_path, monkeypatch):
    """A trainer of a package that counts as installed, and the folder of the package."""
    folder = tmp_path / "site"
    (folder / "package_of_mine").mkdir(parents=True)
    (folder / "package_of_mine" / "__init__.py").write_text(
        textwrap.dedent(
            """
            from dasktune.trainer.base import Trainer

            def gain():
                return 1

            class Net(Trainer):
                width = 1

                def train(self):
                    return self.width * gain()
            """
        )
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("dasktune.trainer.code.is_installed", lambda module: True)
    with without_bytecode():
        yield importlib.import_module("package_of_mine").Net, folder
    del sys.modules["package_of_mine"]


def in_process_with(folder, code, tmp_path):
    """Return the width or the error that a process with the package prints for the code."""
    path = tmp_path / "code"
    path.write_bytes(pickle.dumps(code))
    script = (
        "import pickle, sys\nfrom dasktune.errors import ClusterError\n"
        "from dasktune.trainer.code import unpack\n"
        "try:\n    print(unpack(pickle.load(open(sys.argv[1], 'rb'))).width)\n"
        "except ClusterError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.mark.process
def test_installed_class_is_checked_on_the_worker(installed_net, tmp_path):
    net, folder = installed_net
    code = pack(net)
    assert code.kind == "import"
    assert in_process_with(folder, code, tmp_path) == "1"
    net.width = 100
    printed = in_process_with(folder, pack(net), tmp_path)
    assert "Net is not the same here as on the driver, it differs in class Net" in printed


@pytest.mark.process
def test_another_version_of_a_package_is_refused(installed_net, tmp_path):
    net, folder = installed_net
    code = pack(net)
    module = folder / "package_of_mine" / "__init__.py"
    module.write_text(module.read_text().replace("return 1", "return 12"))
    printed = in_process_with(folder, code, tmp_path)
    assert "it differs in function gain: install the same version" in printed


def test_dumps_by_value_bears_imports_meanwhile():
    """Another thread may import whenever Python allocates: here the garbage collector does."""
    names = []

    def import_another(phase, info):
        names.append(f"imported_meanwhile_{len(names)}")
        sys.modules[names[-1]] = ModuleType(names[-1])

    before = gc.get_threshold()
    gc.callbacks.append(import_another)
    gc.set_threshold(1)
    try:
        payload = dumps_by_value(scaled)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(import_another)
        for name in names:
            del sys.modules[name]
    assert names
    assert payload


def test_only_loaded_modules_of_the_user_travel_by_value(monkeypatch):
    made, alias = ModuleType("made_for_this_test"), ModuleType("another_name")
    known = ModuleType("known_for_this_test")
    for name, module in (
        ("made_for_this_test", made),
        ("alias_for_this_test", alias),
        ("known_for_this_test", known),
        ("lazy_for_this_test", object()),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    before = set(cloudpickle.list_registry_pickle_by_value())
    cloudpickle.register_pickle_by_value(known)
    try:
        with code_module.travelling_by_value():
            during = cloudpickle.list_registry_pickle_by_value()
        assert {"made_for_this_test", "known_for_this_test", __name__} <= during
        assert not {"another_name", "alias_for_this_test", "lazy_for_this_test"} & during
        assert not {"numpy", "json", "dasktune"} & during
        assert cloudpickle.list_registry_pickle_by_value() == before | {"known_for_this_test"}
    finally:
        cloudpickle.unregister_pickle_by_value(known)


def test_own_compiled_code_does_not_travel(monkeypatch, tmp_path):
    for suffix, travels in (("py", True), (EXTENSION_SUFFIXES[0].lstrip("."), False)):
        module = ModuleType("made_for_this_test")
        module.__file__ = str(tmp_path / f"made_for_this_test.{suffix}")
        exec("class Own: pass", vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        assert (loads_apart(dumps_by_value(module.Own)) is not module.Own) == travels


class Cached(Trainer):
    @functools.cached_property
    def table(self):
        return [scaled(value) for value in (1, 2)]

    def train(self):
        return self.table, fibonacci(10)


FIRST = 0


@functools.lru_cache(maxsize=64)
def fibonacci(n):
    return n + FIRST if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


fibonacci.note = "kept"


@pytest.mark.process
def test_cached_property_and_function_travel_by_value(tmp_path):
    Cached().train()
    code = pack(Cached)
    shown = "cls().train(), cls().table is not cls().table"
    assert in_new_process(code, shown, tmp_path) == "([3, 6], 55) True"


def test_cached_function_arrives_with_an_empty_cache(monkeypatch):
    assert fibonacci(3) == 2
    monkeypatch.setitem(globals(), "FIRST", 100)
    assert fibonacci(3) == 2, "the cache of this process"
    sent = unpack(pack(Cached)).train.__globals__["fibonacci"]
    assert sent(3) == 302
    assert (sent.cache_info().maxsize, sent.note, sent.__name__) == (64, "kept", "fibonacci")


def test_cached_property_keeps_its_name():
    sent = unpack(pack(Cached))()
    assert sent.table is sent.table
    assert "table" in vars(sent)


LATE = """
import json, pickle, sys
from dasktune.trainer.code import pack, unpack
from dasktune.errors import ClusterError

class Net:
    def train(self):
        import late_module
        return late_module.f()

if sys.argv[1] == "pack":
    sys.stdout.buffer.write(pickle.dumps(pack(Net)))
else:
    with open(sys.argv[2], "rb") as file:
        code = pickle.load(file)
    try:
        print(unpack(code)().train())
    except ClusterError as error:
        print(error)
"""


@pytest.mark.process
def test_another_file_of_a_module_imported_late_is_refused(tmp_path):
    folders = [tmp_path / name for name in ("driver", "same", "other")]
    for folder, text in zip(folders, ("return 1", "return  1  # why", "return 2"), strict=True):
        folder.mkdir()
        (folder / "study.py").write_text(LATE)
        (folder / "late_module.py").write_text(f"def f():\n    {text}\n")
    driver, same, other = folders

    def run(folder, *arguments):
        command = [sys.executable, "study.py", *map(str, arguments)]
        return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout

    path = tmp_path / "code"
    path.write_bytes(run(driver, "pack"))
    assert run(same, "unpack", path) == b"1\n"
    refused = run(other, "unpack", path).decode()
    assert "imports modules when it runs that are not the same here" in refused
    assert f"late_module ({other / 'late_module.py'})" in refused


def test_module_that_was_loaded_before_is_compared_as_loaded(tmp_path, monkeypatch):
    path = tmp_path / "late_and_loaded.py"
    path.write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with without_bytecode():
        digests = late_imports.digests_of(
            {"late_and_loaded": importlib.import_module("late_and_loaded")}
        )
        assert list(late_imports.differing_modules(digests)) == []
        path.write_text("def f():\n    return 12\n")
        assert list(late_imports.differing_modules(digests)) == [], "the loaded one runs"
        monkeypatch.delitem(sys.modules, "late_and_loaded")
        named = f"late_and_loaded ({path})"
        assert list(late_imports.differing_modules(digests)) == [named]
        changed = late_imports.digests_of(
            {"late_and_loaded": importlib.import_module("late_and_loaded")}
        )
        assert changed != digests
    monkeypatch.delitem(sys.modules, "late_and_loaded")
