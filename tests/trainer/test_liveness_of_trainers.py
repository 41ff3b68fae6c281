"""Tests of the analysis of trainer classes: which attributes and gradients a step overwrites."""

from __future__ import annotations

import itertools
import linecache
import random
import textwrap
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune.trainer.function import trainer_of
from dasktune.trainer.liveness import Liveness

_NUMBERS = itertools.count()

REST = """
    def build(self, hp): self.x = self.y = self.z = 0
    def evaluate(self): return {"loss": 0.0}
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
"""


def run_source(source: str, namespace: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the global variables of a module with this source, as if it were a file."""
    name, source = f"<trainers {next(_NUMBERS)}>", textwrap.dedent(source)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    variables: dict[str, Any] = {"__name__": "liveness_case", "dt": dt, **(namespace or {})}
    exec(compile(source, name, "exec", dont_inherit=True), variables)
    return variables


def liveness_of(methods: str, *, base: str = "", module: str = "", rest: str = REST) -> Liveness:
    """Return the liveness of a trainer class with these methods; later ones replace the rest."""
    body = rest + textwrap.indent(textwrap.dedent(methods), " " * 4)
    source = f"{textwrap.dedent(module)}\nclass T({base}):\n{body}\n"
    return Liveness.of(run_source(source)["T"])


def in_train(train: str, methods: str = "", **options: str) -> Liveness:
    """Return the liveness of a trainer class whose `train` has this body."""
    body = textwrap.indent(textwrap.dedent(train).strip("\n"), " " * 4)
    return liveness_of(f"def train(self):\n{body}\n{textwrap.dedent(methods)}", **options)


@pytest.mark.parametrize(
    ("train", "is_dead"),
    [
        ("self.x = 1; print(self.x)", True),
        ("self.x = 1", True),
        ("print(self.x); self.x = 1", False),
        ("self.x += 1", False),
        ("self.x[0] = 1", False),
        ("self.x.append(1)", False),
        ("self.x.value = 1", False),
        ("self.x = min(self.x, 1)", False),
        ("if self.y: self.x = 1\nprint(self.x)", False),
        ("if self.y: self.x = 1\nelse: self.x = 2\nprint(self.x)", True),
        ("for i in self.y: self.x = i\nprint(self.x)", False),
        ("try: self.x = f()\nexcept OSError: pass\nprint(self.x)", False),
        ("self.x, self.y = f(); print(self.x)", True),
        ("setattr(self, 'x', 1); print(self.x)", True),
        ("print(getattr(self, 'x')); self.x = 1", False),
        ("getattr(self, f()); self.x = 1", False),
        ("vars(self); self.x = 1", False),
        ("self.x = 1; unknown(self)", False),
        ("self.first(); self.x = 1", True),
        ("self.reads(); self.x = 1", False),
        ("self.writes(); self.reads()", True),
        ("self.maybe(); self.reads()", False),
        ("self.prop; self.x = 1", False),
        ("self.x = 1; self.prop", True),
        ("self.put = 1; self.reads()", True),
        ("self.recursive(1); self.x = 1", False),
        ("hook(self.reads); self.x = 1", False),
        ("hook(lambda: self.x); self.x = 1", False),
        ("self.x = 1; self.y = [self.x for _ in f()]", True),
        ("self.y = [self.x for _ in f()]; self.x = 1", False),
        ("writes(self); self.reads()", True),
        ("reads(self); self.x = 1", False),
        ("keeps(self); self.x = 1", False),
        ("super().train(); self.x = 1", False),
        ("T.writes(self); self.reads()", True),
        ("self.twice(); self.x = 1", False),
        ("self.x = 1; self.twice()", True),
        ("self.fixed(1); self.x = 1", True),
        ("for _ in self.items(): pass\nself.x = 1", False),
        ("isinstance(self, T); self.x = 1", True),
        ("del self.x", False),
        ("base = super()\nself.x = 1; base.train()", False),
        ("(super() if self.y else self).train(); self.x = 1", False),
        ("def f(): return self.x\nself.x = 1; self.y.step(f)", True),
        ("def f(): return self.x\nself.y.step(f); self.x = 1", False),
        ("with suppress(OSError): self.writes()\nself.reads()", False),
        ("with torch.no_grad(): self.writes()\nself.reads()", True),
        ("pass", False),
    ],
)
def test_attribute_is_dead_if_train_writes_it_first(train: str, is_dead: bool) -> None:
    methods = """
        def first(self): return self.y
        def reads(self): return self.x
        def writes(self): self.x = 1
        def maybe(self):
            if self.y: return
            self.x = 1
        def recursive(self, n):
            if n: self.recursive(n - 1)
        def twice(self): return self.reads()
        def items(self):
            yield self.x
        @property
        def prop(self): return self.x
        @property
        def put(self): return 0
        @put.setter
        def put(self, value): self.x = value
        @staticmethod
        def fixed(n): return n
    """
    module = """
        class Base:
            def train(self): print(self.x)
        KEPT = []
        def writes(trainer): trainer.x = 1
        def reads(trainer): return trainer.x
        def keeps(trainer): KEPT.append(trainer)
    """
    liveness = in_train(train, methods, module=module, base="Base")
    for path in ("trainer.x", "trainer.x[0]", "len(trainer.x)", "trainer.x.value"):
        assert liveness.is_dead(path, before="train") is is_dead
    assert not liveness.is_dead("trainer.unknown", before="train")
    assert not liveness.is_dead("global x", before="train")


def test_setup_evaluate_and_state_dict_can_read_before_train() -> None:
    writes = "def train(self): self.x = 1; self.y = self.x"
    assert liveness_of(writes).is_dead("trainer.x", before="train")
    for reading in ("def setup(self, hp): print(self.x)",):
        liveness = liveness_of(f"{writes}\n{reading}")
        assert not liveness.is_dead("trainer.x", before="train")
        assert liveness.is_dead("trainer.y", before="train")
    for reading in (
        "def evaluate(self): return {'loss': self.x}",
        "def state_dict(self): return {'x': self.x}",
    ):
        assert liveness_of(f"{writes}\n{reading}").is_dead("trainer.x", before="train")
    evaluating = "def evaluate(self): return {'loss': self.x}"
    liveness = liveness_of(f"{writes}\n{evaluating}")
    assert not liveness.is_dead("trainer.x", before="evaluate")
    assert liveness.is_dead("trainer.y", before="evaluate")


def test_callback_that_build_registers_reads_at_any_time() -> None:
    methods = """
        def build(self, hp):
            self.net = hook(self.seen)
        def seen(self): return self.x
    """
    assert not in_train("self.x = 1", methods).is_dead("trainer.x", before="train")


def test_trainer_that_build_gives_away_has_no_dead_attribute() -> None:
    methods = "def build(self, hp): self.net = Net(self)"
    assert not in_train("self.x = 1", methods).is_dead("trainer.x", before="train")


@pytest.mark.parametrize("base", ["dt.Trainer", "dt.TorchTrainer", "ABC", "collections.UserDict"])
def test_unknown_base_class_has_no_dead_attribute(base: str) -> None:
    module = "import collections\nfrom abc import ABC"
    liveness = in_train("self.x = 1", base=base, module=module)
    assert liveness.is_dead("trainer.x", before="train") is (base != "collections.UserDict")


def test_torch_trainer_saves_what_a_step_leaves_out() -> None:
    rest = "    def build(self, hp): pass\n    def evaluate(self): return {}\n"
    train = "self.to_device(f()); self.x = 1\nif self.z: self.y = 1"
    liveness = in_train(train, base="dt.TorchTrainer", rest=rest)
    assert liveness.is_dead("trainer.x", before="train")
    assert not liveness.is_dead("trainer.y", before="train")


@pytest.mark.parametrize(
    ("train", "is_unread"),
    [
        ("self.d['last'] = f()", True),
        ("self.d['last'] = f(); self.x = self.d['first']", False),
        ("self.d['last'] = f(); print(self.d)", False),
        ("self.d['last'] = f(); print(getattr(self, 'd'))", False),
        ("self.d['last'] = f(); print(vars(self))", False),
        ("self.d.append(f())", False),
    ],
)
def test_items_that_nothing_reads_decide_nothing(train: str, is_unread: bool) -> None:
    liveness = in_train(f"{train}\nself.e = 1", "def make(self): self.d = {}")
    assert liveness.is_unread("trainer.d['last']") is is_unread
    assert not liveness.is_unread("trainer.d"), "an item can be set in what is there alone"


@pytest.mark.parametrize(
    ("train", "methods", "is_dead"),
    [
        ("g, = torch.autograd.grad(self.loss(), self.u); self.u -= g", "", True),
        ("g, = autograd.grad(self.loss(), self.u); self.u -= g", "", True),
        ("g, = grad(self.loss(), self.u); self.u -= g", "", True),
        ("self.u = self.norm(self.loss())", "", True),
        ("self.loss().backward(); g, = grad(self.loss(), self.u)", "", False),
        ("grad(self.loss(), self.u); print(self.w.grad)", "", False),
        ("grad = self.w.grad", "", False),
        ("torch.func.grad(self.loss)(self.u)", "", False),
        ("own.grad(self.model)", "", False),
        ("grad(self.loss(), self.u)", "def build(self, hp): self.u.register_hook(see)", False),
        ("grad(Own.apply(self.u), self.u)", "", True),
    ],
)
def test_returned_gradients_are_not_those_that_a_step_clears(
    train: str, methods: str, is_dead: bool
) -> None:
    module = """
        import torch
        from torch import autograd
        from torch.autograd import grad
        class Base:
            def build(self, hp):
                self.model = Net()
                self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
            def train(self):
                self.opt.zero_grad()
                self.loss().backward()
                self.opt.step()
            def loss(self): return self.model(1)
            def norm(self, y): return torch.autograd.grad(y, self.u, create_graph=True)[0].norm()
            def evaluate(self): return {"loss": 0.0}
            def state_dict(self): return {}
            def load_state_dict(self, state): pass
    """
    body = f"{train}\nsuper().train()"
    liveness = in_train(body, methods, base="Base", module=module, rest="")
    assert liveness.is_dead("trainer.model['0.weight'].grad", before="train") is is_dead


def test_reflection_of_a_class_leaves_nothing_dead() -> None:
    methods = "def __getattr__(self, name): return self.__dict__[name]"
    assert not in_train("self.x = 1", methods).is_dead("trainer.x", before="train")


@pytest.mark.parametrize(
    ("train", "is_dead"),
    [
        ("self.opt.zero_grad(); self.loss().backward(); self.opt.step()", True),
        ("x = self.model(1); self.opt.zero_grad(); x.backward()", True),
        ("self.opt.zero_grad(set_to_none=True); self.loss().backward()", True),
        ("self.opt.zero_grad(set_to_none=False); self.loss().backward()", False),
        ("self.loss().backward(); self.opt.step(); self.opt.zero_grad()", False),
        ("if self.y: self.opt.zero_grad()\nself.loss().backward()", False),
        ("for b in f():\n    self.opt.zero_grad(); self.model(b).backward()", True),
        ("self.model.zero_grad(); self.loss().backward()", True),
        ("for p in self.model.parameters():\n    p.grad = None\nself.loss().backward()", True),
        ("for p in self.model.parameters(): print(p.grad)\nself.opt.zero_grad()", False),
        ("clip_grad_norm_(self.model.parameters()); self.opt.zero_grad()", False),
        ("unknown(self.model); self.opt.zero_grad()", False),
        ("self.model.custom(); self.opt.zero_grad()", False),
        ("self.model.train(); self.opt.zero_grad(); self.loss().backward()", True),
        ("model, opt = self.model, self.opt\nopt.zero_grad()", False),
        ("opt = self.opt\nopt.zero_grad(); model = self.model; model(1).backward()", True),
        ("fit(self.model, self.opt)", True),
        ("unfit(self.model, self.opt)", False),
        ("self.other.zero_grad(); self.loss().backward()", False),
        ("self.fitting(); self.opt.zero_grad()", False),
        ("def f():\n    self.opt.zero_grad(); self.loss().backward()\nself.opt.step(f)", True),
        ("def f():\n    self.loss().backward(); self.opt.zero_grad()\nself.opt.step(f)", False),
        ("def f():\n    if self.y: self.opt.zero_grad()\nself.opt.step(f)", False),
        ("self.opt.zero_grad(); self.loss().backward(); self.model = f()", False),
    ],
)
def test_gradient_is_dead_if_train_clears_it_first(train: str, is_dead: bool) -> None:
    methods = """
        def build(self, hp):
            self.model = Net()
            self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.other = torch.optim.SGD([p for p in self.model.parameters() if p.ndim > 1])
        def loss(self): return self.model(1)
        def fitting(self): self.loss().backward()
    """
    module = """
        def fit(model, opt):
            for batch in range(3):
                opt.zero_grad()
                model(batch).backward()
        def unfit(model, opt):
            for batch in range(3):
                model(batch).backward()
                opt.zero_grad()
    """
    liveness = in_train(train, methods, module=module)
    assert liveness.is_dead("trainer.model['0.weight'].grad", before="train") is is_dead
    assert not liveness.is_dead("trainer.model['0.weight']", before="train")


def test_cleared_names_the_optimizers_whose_gradients_are_dead() -> None:
    train = "self.other.zero_grad(); self.model(1).backward()"
    assert in_train(train).cleared("train") == {"trainer.other"}


@pytest.mark.parametrize(
    ("body", "is_dead"),
    [
        ("opt.zero_grad(); model(step).backward(); opt.step()", True),
        ("model(step).backward(); opt.step(); opt.zero_grad()", False),
        ("fit(model, opt)", True),
    ],
)
def test_function_clears_gradients_of_its_variables(body: str, is_dead: bool) -> None:
    source = f"""
        def fit(model, opt):
            opt.zero_grad()
            model(1).backward()
        def train(run):
            model = Net()
            opt = run.track(torch.optim.SGD(model.parameters(), lr=0.1))
            best = 0
            for step in run.steps():
                {body}
                loss = best
                best = max(step, best)
    """
    liveness = Liveness.of(trainer_of(run_source(source)["train"]))
    gradient = "trainer.variables['model']['0.weight'].grad"
    assert liveness.is_dead(gradient, before="train") is is_dead
    assert liveness.cleared("train") == ({"trainer.variables['opt']"} if is_dead else set())
    assert liveness.is_dead("trainer.variables['loss']", before="train")
    assert liveness.is_dead("len(trainer.variables)", before="train")
    assert not liveness.is_dead("trainer.variables['best']", before="train")
    assert not liveness.is_dead("trainer.variables['model']", before="train")


def test_function_that_loops_over_a_helper_has_dead_variables() -> None:
    source = """
        def counted(run):
            for step in run.steps():
                yield step
        def train(run):
            best = 0
            for index in counted(run):
                loss = f(index)
                best = min(loss, best)
    """
    liveness = Liveness.of(trainer_of(run_source(source)["train"]))
    kinds = {name: liveness.is_dead(f"trainer.variables[{name!r}]", before="train")
             for name in ("step", "index", "loss", "best", "train.index", "other")}  # fmt: skip
    assert kinds == {"step": True, "index": True, "loss": True, "best": False,
                     "train.index": True, "other": False}  # fmt: skip


def test_iterator_class_may_hold_a_variable_of_the_same_name() -> None:
    source = """
        class Counted:
            def __init__(self, run): self.inner = run.steps()
            def __iter__(self): return self
            def __next__(self):
                loss = self.kept
                step = next(self.inner)
                self.kept = loss
                return step
        def train(run):
            for index in zip(Counted(run), run.steps()):
                loss = f(index)
    """
    liveness = Liveness.of(trainer_of(run_source(source)["train"]))
    assert not liveness.is_dead("trainer.variables['loss']", before="train")
    assert liveness.is_dead("trainer.variables['index']", before="train")


def test_trainer_class_may_have_a_method_named_function() -> None:
    liveness = in_train("self.x = 1", "def function(self): pass")
    assert liveness.is_dead("trainer.x", before="train")


def test_methods_that_dataclasses_writes_do_not_count() -> None:
    module = """
        from dataclasses import dataclass
        @dataclass
        class Part:
            size: int = 1
    """
    liveness = in_train("self.x = Part()", module=module)
    assert liveness.is_dead("trainer.x.size", before="train")


def test_analysis_of_a_long_trainer_is_fast() -> None:
    methods = "\n".join(
        f"def method_{i}(self):\n    for j in range(3):\n        if self.y: self.a{i} = j\n"
        f"    print(self.a{i})\n    return self.a{i}"
        for i in range(60)
    )
    train = "self.x = 1\n" + "\n".join(f"self.method_{i}()" for i in range(60))
    trainer = in_train(train, methods)
    start = time.perf_counter()
    assert trainer.is_dead("trainer.x", before="train")
    first = time.perf_counter() - start
    start = time.perf_counter()
    assert trainer.is_dead("trainer.x", before="train")
    print(f"{first * 1000:.1f} ms, then {(time.perf_counter() - start) * 1e6:.1f} us")
    assert first < 1


# ------------------------------------------------------------------------------ soundness

_EXPRESSIONS = (
    *("1", "self.{v}", "self.{v}", "(self.{v}, 2)", "(self.{v} if flip() else 3)"),
    *("(flip() and self.{v})", "[self.{v} for _ in range(number())]", "getattr(self, '{v}')"),
)
_SIMPLE = (
    *("self.{v} = {e}", "self.{v} = {e}", "self.{v} = {e}", "note({e})", "note({e})"),
    *("self.{v} += (1,)", "self.{v}, x = {e}, {e}", "del self.{v}", "fail()", "if flip(): return"),
    *(
        "{m}",
        "{m}",
        "if flip(): {m}",
        "kept.append(lambda: {e})",
        "note(kept.pop()()) if kept else 0",
    ),
    *("setattr(self, '{v}', {e})", "for self.{v} in range(number()): pass"),
    "def f(): note({e}); return 1\nf()",
)
_NESTED = (
    "if flip():\n{b}",
    "if flip():\n{b}\nelse:\n{b}",
    "for i in range(number()):\n{b}\nelse:\n{b}",
    "while flip():\n{b}",
    "try:\n{b}\nexcept ValueError:\n{b}",
    "try:\n{b}\nexcept ValueError as error:\n{b}\nelse:\n{b}\nfinally:\n{b}",
    "with suppress(ValueError):\n{b}",
)
_CALLS = (
    *("self.first()", "self.second()", "self.third()", "note(self.prop)", "helper(self)"),
    *("self.put = 1", "super().base()", "T.third(self)", "kept.append(self.third)"),
    "note(list(self.items()))",
)
_METHODS = ("train", "evaluate", "state_dict", "setup", "first", "second", "third")


class Writer:
    """Writes random methods: `{v}` is an attribute, `{m}` a call, `{e}` and `{b}` as they say."""

    def __init__(self, random_numbers: random.Random) -> None:
        self._random = random_numbers

    def source(self) -> str:
        bodies = {name: self._block(2 if name == "train" else 1, name) for name in _METHODS}
        methods = [
            f"    def {name}(self, hp=None):\n{textwrap.indent(body, ' ' * 8)}"
            for name, body in bodies.items()
        ]
        first, second = self._name(), self._name()
        return (
            f"def helper(trainer):\n    trainer.{first} = 1\n    note(trainer.{second})\n"
            f"class Base:\n    def base(self):\n        note(self.{self._name()})\n"
            "class T(Base):\n    def build(self, hp): self.a = self.b = self.c = ()\n"
            "    def load_state_dict(self, state): pass\n"
            f"    @property\n    def prop(self): return self.{self._name()}\n"
            f"    @property\n    def put(self): return 1\n"
            f"    @put.setter\n    def put(self, value): self.{self._name()} = value\n"
            f"    def items(self):\n        yield self.{self._name()}\n        yield 1\n"
            + "\n".join(methods)
        )

    def _block(self, depth: int, method: str) -> str:
        count = self._random.randint(1, 4 if method in ("train", "first") else 2)
        return "\n".join(self._statement(depth, method) for _ in range(count))

    def _statement(self, depth: int, method: str) -> str:
        is_short = method in ("state_dict", "setup", "evaluate")
        text = self._random.choice(["pass"] * 30 * is_short + [*_SIMPLE, *_NESTED * bool(depth)])
        # A method calls only later ones: no recursion.
        later = _METHODS[_METHODS.index(method) + 1 :]
        names = [name for name in ("first", "second", "third") if name not in later]
        calls = [call for call in _CALLS if not any(name in call for name in names)]
        for key, write in (
            ("{e}", lambda: self._random.choice(_EXPRESSIONS)),
            ("{m}", lambda: self._random.choice(calls)),
            ("{v}", self._name),
            ("{b}", lambda: textwrap.indent(self._block(depth - 1, method), "    ")),
        ):
            while key in text:
                text = text.replace(key, write(), 1)
        return text

    def _name(self) -> str:
        return self._random.choice("abc")


class Tools:
    """The functions that random methods call, and what they note."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.kept: list[Any] = []
        self.random = random.Random()

    def note(self, value: object) -> None:
        self.trace.append(repr(value))

    def fail(self) -> None:
        if self.random.random() < 0.4:
            raise ValueError

    def flip(self) -> bool:
        return self.random.random() < 0.5

    def number(self) -> int:
        return self.random.randrange(3)


def trace_of(
    variables: dict[str, Any], tools: Tools, seed: int, before: str, poison: tuple[int, str, bool]
) -> list[str]:
    """Return the notes of 3 random steps; one begins with another value in an attribute."""
    tools.random.seed(seed)
    tools.trace = []
    tools.kept.clear()
    poisoned, name, is_deleted = poison
    trainer, order = variables["T"](), random.Random(seed)
    trainer.build({})
    try:
        for step in range(3):
            if step == poisoned:
                setattr(trainer, name, "poison")
                if is_deleted:
                    delattr(trainer, name)
            if before == "evaluate" and step == poisoned % 3:
                trainer.evaluate()
            if order.random() < 0.5:
                trainer.setup({})
            trainer.train()
            for method in (trainer.state_dict, trainer.evaluate, trainer.state_dict):
                if order.random() < 0.5:
                    method()
    except (AttributeError, TypeError, ValueError) as error:
        tools.note(type(error).__name__)
    return tools.trace


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_nothing_reads_a_dead_attribute(seed: int) -> None:
    tools = Tools()
    names = {name: getattr(tools, name) for name in ("note", "fail", "flip", "number", "kept")}
    source = Writer(random.Random(seed)).source()
    variables = run_source(source, names | {"suppress": suppress})
    liveness = Liveness.of(variables["T"])
    for before, name in itertools.product(("train", "evaluate"), "abc"):
        if not liveness.is_dead(f"trainer.{name}", before=before):
            continue
        for run, step, is_deleted in itertools.product(range(6), range(3), (False, True)):
            expected = trace_of(variables, tools, seed + run, before, (step + 3, name, False))
            trace = trace_of(variables, tools, seed + run, before, (step, name, is_deleted))
            assert trace == expected, (before, name, source)
