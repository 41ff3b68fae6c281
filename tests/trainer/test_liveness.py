"""Tests of the static analysis that tells which values the next step overwrites unread."""

from __future__ import annotations

import itertools
import linecache
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.trainer.liveness import carried_variables

_NUMBERS = itertools.count()


def run_source(source: str, namespace: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the global variables of a module with this source, as if it were a file."""
    name, source = f"<liveness {next(_NUMBERS)}>", textwrap.dedent(source)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    variables: dict[str, Any] = {"__name__": "liveness_case", **(namespace or {})}
    exec(compile(source, name, "exec", dont_inherit=True), variables)
    return variables


def kinds_of(source: str) -> dict[str, str]:
    """Return the kind of each variable of the function `train` that is not constant."""
    function = run_source(source)["train"]
    variables = carried_variables(function.__code__, namespace=function.__globals__)
    assert variables is not None
    return {name: item.kind for name, item in variables.items() if item.kind != "constant"}


def in_loop(body: str, before: str = "") -> str:
    """Return the source of a training function with a loop of this body."""
    parts = [textwrap.indent(textwrap.dedent(part).strip("\n"), " " * 4) for part in (before, body)]
    loop = f"    for step in run.steps():\n{textwrap.indent(parts[1], ' ' * 4)}"
    return f"def train(run):\n{parts[0]}\n{loop}\n"


@pytest.mark.parametrize(
    ("body", "carried"),
    [
        ("x = 1; print(x)", ""),
        ("print(x); x = 1", "x"),
        ("x = min(x, 1)", "x"),
        ("x += 1", "x"),
        ("y = x = 1", ""),
        ("x, y = y, x", "x y"),
        ("x, *y = f()\nprint(x, y)", ""),
        ("x = f(x) if step else 0", "x"),
        ("if step: x = 1\nprint(x)", "x"),
        ("if step: x = 1\nelse: x = 2\nprint(x)", ""),
        ("if step: x = 1", ""),
        ("if step and (x := f()): print(x)", ""),
        ("if step or (x := f()): print(x)", "x"),
        ("if 0 < step < (x := f()): pass\nprint(x)", "x"),
        ("print({(x := 1): x})", ""),
        ("print(x, (x := 1))", "x"),
        ("for x in f(): print(x)", ""),
        ("for x in f(): pass\nprint(x)", "x"),
        ("for i in f():\n    if i: break\n    x = 1\nelse: x = 2\nprint(x)", "x"),
        ("for i in f(): x = i\nelse: x = 2\nprint(x)", ""),
        ("for i in f(): print(x); x = i", "x"),
        ("while f(): x = 1\nprint(x)", "x"),
        ("while True:\n    x = 1\n    if f(): break\nprint(x)", ""),
        ("if step: continue\nx = 1\nprint(x)", ""),
        ("if step: x = 0\nelse: continue\nprint(x)", ""),
        ("x = 1\nif step: continue\ny = x", ""),
        ("try: x = f()\nexcept OSError: pass\nprint(x)", "x"),
        ("try: x = f()\nexcept OSError: x = 2\nprint(x)", ""),
        ("try: x = f()\nexcept OSError: raise\nprint(x)", ""),
        ("try: x = f()\nfinally: print(x)", "x"),
        ("try: f()\nexcept OSError as x: print(x)", ""),
        ("try: f()\nexcept OSError as x: pass\nprint(x)", "x"),
        ("try: y = f()\nexcept OSError: continue\nelse: x = 1\nprint(x, y)", ""),
        ("with open(f()) as x: print(x)", ""),
        ("with open(f()): x = 1\nprint(x)", ""),
        ("with suppress(OSError): x = f()\nprint(x)", "x"),
        ("with unknown(): x = f()\nprint(x)", "x"),
        ("with passing(): x = f()\nprint(x)", ""),
        ("with catching(): x = f()\nprint(x)", "x"),
        ("x = 1\ndel x", ""),
        ("del x", "x"),
        ("import os as x\nprint(x)", ""),
        ("match f():\n    case [x, *y]: print(x, y)", ""),
        ("match f():\n    case [x]: pass\nprint(x)", "x"),
        ("match f():\n    case {'a': 1, **x} if x: print(x)\n    case _: pass", ""),
        ("x[0] = 1", ""),
        ("x = {}\nx[0] = 1", ""),
        ("i, xs[i] = f()", ""),
        ("xs[i], i = f()", "i"),
        ("y = [x for x in f()]\nprint(y)", ""),
        ("y = [z := x for x in f()]\nprint(z)", "z"),
        ("x = [x for _ in f()]", "x"),
        ("y = sum(x for _ in f()); x = 1", "x"),
        ("x = 1; y = sum(x for _ in f()); print(y)", ""),
        ("x = 1; y = (x for _ in f()); print(y)", "x"),
        ("x = f()\ndef g(): return x\ng()", ""),
        ("def g(): return x\ng(); x = 1", "x"),
        ("x = f()\ndef g(): return x\noptimizer.step(g)", ""),
        ("x = f()\ndef g(): return x\nkept.append(g)", "x"),
        ("x = f()\nkept.append(lambda: x)", "x"),
        ("x = f()\ny = sorted(f(), key=lambda i: x[i])", ""),
        ("x = f()\ny = jax.value_and_grad(lambda w: w * x)(w)", ""),
        ("x = f()\nclass K:\n    y = x\nprint(K)", "x"),
        ("x = f()\nprint(locals())", "K f g i step x y z"),
        ("def g():\n    nonlocal x\n    x += 1\nx = 1\ng()", ""),
        ("def g():\n    nonlocal x\n    x += 1\ng()", "x"),
        ("def g():\n    nonlocal x\n    x = 1\ng(); print(x)", "x"),
        ("def g():\n    def h(): return x\n    return h()\ng()\nx = 1", "x"),
        ("def g(): return x\ndef h():\n    x = 1\n    return g()\nh()\nx = 2", "x"),
        ("x = f(); z = x\nfor b in f():\n    y = b\n    print(y)", ""),
        ("time = f() - start; start = f()", "start"),
        ("def g(a=x): return a\nx = 1", "x"),
        ("async def g(): return x\ng()\nx = 1", "x"),
        ("x: int = 1\nprint(x)", ""),
        ("x: int\nprint(x)", ""),
        ("if not (step and (x := f())): print(1)\nelse: print(x)", ""),
        ("y = x if (step and (x := f())) else 0", ""),
        ("while not (x := f()): pass\nprint(x)", ""),
        ("assert x, f()\nx = 1", "x"),
        ("frame = frame.query('a > @x'); x = 1", "frame x"),
    ],
)
def test_variable_of_a_turn_is_carried_if_read_first(body: str, carried: str) -> None:
    before = """
        x = y = z = i = g = K = start = frame = f = 1
    """
    managers = """
from contextlib import contextmanager, suppress
@contextmanager
def passing():
    yield
@contextmanager
def catching():
    try:
        yield
    except OSError:
        pass
"""
    kinds = kinds_of(managers + in_loop(body, before))
    if "locals()" in body:
        assert kinds["x"] == "carried"
    else:
        assert {name for name, kind in kinds.items() if kind == "carried"} == set(carried.split())


@pytest.mark.parametrize(
    ("source", "carried", "dead"),
    [
        (
            """
            def train(run):
                best, model = 0, make()
                for step, batch in zip(run.steps(), model):
                    loss = model(batch)
                    best = min(best, loss)
                return loss, batch
            """,
            {"best"},
            {"step", "batch", "loss"},
        ),
        (
            """
            def train(run):
                it, x = iter(run.steps()), 0
                while True:
                    y = x
                    step = next(it)
                    x = step + y
            """,
            {"y"},
            {"step", "x"},
        ),
        (
            """
            def train(run):
                it = run.steps()
                while (step := next(it, None)) is not None:
                    loss = f(step)
                    print(loss)
            """,
            set(),
            {"step", "loss"},
        ),
        (
            """
            def train(run):
                steps = run.steps()
                for epoch in range(9):
                    seen = 0
                    for step in steps:
                        seen += 1
                        if step % 5 == 4:
                            break
                    print(seen, epoch)
            """,
            {"seen", "epoch"},
            {"step"},
        ),
        (
            """
            def train(run):
                try:
                    for step in run.steps():
                        loss = f(step)
                finally:
                    print(loss)
            """,
            set(),
            {"step", "loss"},
        ),
        (
            """
            def train(run):
                for step in tqdm(enumerate(run.steps())):
                    for batch in loader:
                        loss = f(batch)
                    print(loss)
            """,
            {"loss"},
            {"step", "batch"},
        ),
        (
            """
            def train(run):
                best = None
                def body(step):
                    nonlocal best
                    best = step if best is None else best
                for step in run.steps():
                    body(step)
            """,
            {"best"},
            {"step"},
        ),
    ],
)
def test_loop_over_steps_is_known_in_each_form(
    source: str, carried: set[str], dead: set[str]
) -> None:
    kinds = kinds_of(source)
    assert {name for name, kind in kinds.items() if kind == "carried"} == carried
    assert {name for name, kind in kinds.items() if kind == "dead"} == dead


def test_carried_variable_has_the_line_of_its_assignment() -> None:
    function = run_source(in_loop("y = 1\nx = x + y\nx = 2", "x = 1"))["train"]
    variables = carried_variables(function.__code__)
    assert variables is not None
    assert (variables["x"].kind, variables["x"].line) == ("carried", 5)
    assert (variables["run"].kind, variables["run"].line) == ("constant", None)


def test_variable_of_an_outer_function_is_carried() -> None:
    source = """
        def outer():
            best = 0
            def train(run):
                nonlocal best
                for step in run.steps():
                    best = step
            return train
        train = outer()
    """
    assert kinds_of(source) == {"best": "carried", "step": "dead"}


def test_unknown_source_or_loop_gives_none() -> None:
    variables: dict[str, Any] = {}
    exec("def train(run):\n    for step in run.steps(): pass", variables)
    assert carried_variables(variables["train"].__code__) is None
    assert carried_variables(run_source("def train(run): fit(run)")["train"].__code__) is None


def test_paused_frames_of_helpers_are_found_by_instruction() -> None:
    source = """
        import sys
        frames = []
        def steps():
            yield 0
            frame = sys._getframe(1)
            while frame.f_globals is globals():
                frames.append((frame.f_code, frame.f_lasti))
                frame = frame.f_back
            yield 1
        def helper():
            kept = None
            for step in steps():
                print(kept)
                kept = step
                yield step
        def fit(model):
            for step in helper():
                x = step
                model = model + x
        def train():
            y = 1
            fit(y)
            y = 2
    """
    variables = run_source(source)
    variables["train"]()
    kinds = {}
    for code, at in variables["frames"]:
        variables_of_frame = carried_variables(code, at=at)
        if variables_of_frame is not None:
            kinds[code.co_name] = {
                name: item.kind
                for name, item in variables_of_frame.items()
                if item.kind != "constant"
            }
    assert kinds == {
        "helper": {"kept": "carried", "step": "dead"},
        "fit": {"x": "dead", "step": "dead", "model": "carried"},
        "train": {},
    }


# ------------------------------------------------------------------------------ soundness

_EXPRESSIONS = (
    *("1", "2", "{v}", "{v}", "{v}", "({v}, {w})", "({v} if flip() else {w})", "(flip() and {v})"),
    "[{v} for _ in range(number())]",
    "[{v} for {v} in range(number())]",
    "list({w} for {v} in range(number()))",
    *("({v} := 3)", "(flip() or ({v} := 4))", "call(lambda: {v})"),
)
_SIMPLE = (
    *("{v} = {e}", "{v} = {e}", "{v} = {e}", "note({e})", "note({e})", "{v} += 1"),
    *("{v}, *{w} = [{e}, {e}]", "{v} = {w} = {e}", "{v} = 0; del {v}", "del {v}"),
    *("fail()", "if flip(): continue", "note(f())", "if flip(): f()", "f = lambda: {e}"),
    "kept.append(lambda: {e})",
    "note(kept[-1]()) if kept else None",
    "def f():\n    note({e})\n    return {e}",
    "def f():\n    nonlocal {v}\n    {v} = {e}\n    note({e})",
    "def f():\n    {v} = 1\n    return g()",
    "def g():\n    return {e}",
    "note(list({v} for {w} in [{e}]))",
    "{v} = ({w} for _ in range(2))",
    "class K:\n    {v} = {e}\n    note({v})",
    "import os as {v}; {v} = 1",
    "note({{{e}: {e}}})",
)
_NESTED = (
    "if {e}:\n{b}",
    "if flip() and {e}:\n{b}\nelse:\n{b}",
    "if not flip():\n{b}\nelif {e} or flip():\n{b}",
    "for {v} in range(number()):\n{l}",
    "for {v} in range(number()):\n{l}\nelse:\n{b}",
    "while flip():\n{l}",
    "while True:\n{l}\n    if flip(): break",
    "try:\n{b}\nexcept ValueError:\n{b}",
    "try:\n{b}\nexcept ValueError as {v}:\n{b}\nelse:\n{b}",
    "try:\n{b}\nfinally:\n{b}",
    "try:\n{b}\nexcept ValueError:\n{b}\nfinally:\n{b}",
    "with suppress(ValueError):\n{b}",
    "with passing() as {v}:\n{b}",
    "match {e}:\n    case ({v}, {w}) if flip():\n        note({v})\n"
    "    case [{v}]:\n        pass\n    case _:\n        {w} = 1",
)
_VARIABLES = ("a", "b", "c", "d")


class Writer:
    """Writes random code; `{v}` is a variable, `{e}` an expression, `{b}` and `{l}` blocks."""

    def __init__(self, random_numbers: random.Random) -> None:
        self._random = random_numbers

    def block(self, depth: int, *, is_inner: bool = False) -> str:
        lines = [self._statement(depth, is_inner) for _ in range(self._random.randint(1, 4))]
        return "\n".join(lines)

    def _statement(self, depth: int, is_inner: bool) -> str:
        shapes = [*_SIMPLE, *(["if flip(): break"] if is_inner else []), *_NESTED * bool(depth)]
        text = self._random.choice(shapes)
        for key, write in (("{e}", self._expression), ("{v}", self._name), ("{w}", self._name)):
            while key in text and (key == "{e}"):
                text = text.replace(key, write(), 1)
            text = text.replace(key, write())
        for key in ("{b}", "{l}"):
            while key in text:
                inner = self.block(depth - 1, is_inner=is_inner or key == "{l}")
                text = text.replace(key, textwrap.indent(inner, "    "), 1)
        return text.replace("{{", "{").replace("}}", "}")

    def _expression(self) -> str:
        text = self._random.choice(_EXPRESSIONS)
        return text.replace("{v}", self._name()).replace("{w}", self._name())

    def _name(self) -> str:
        return self._random.choice(_VARIABLES)


@contextmanager
def passing() -> Iterator[int]:
    yield 5


class Tools:
    """The functions that random code calls, and what it notes."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.random = random.Random()

    def steps(self) -> Iterator[int]:
        yield from range(4)

    def note(self, value: object) -> None:
        self.trace.append(re.sub(" at 0x[0-9a-f]+", "", repr(value)))

    def fail(self) -> None:
        if self.random.random() < 0.4:
            raise ValueError

    def flip(self) -> bool:
        return self.random.random() < 0.5

    def number(self) -> int:
        return self.random.randrange(3)

    def call(self, function: Callable[[], object]) -> object:
        return function()

    def namespace(self) -> dict[str, Any]:
        names = ("note", "fail", "flip", "number", "call")
        return {name: getattr(self, name) for name in names} | {
            "suppress": suppress,
            "passing": passing,
        }


def traces_of(source: str, seeds: range) -> list[list[str]]:
    """Return the notes that a function with random branches takes in 4 steps, by seed."""
    tools, traces = Tools(), []
    train: Callable[[Any], None] = run_source(source, tools.namespace())["train"]
    for seed in seeds:
        tools.random.seed(seed)
        tools.trace = []
        try:
            train(tools)
        except (NameError, TypeError, ValueError) as error:
            tools.note(type(error).__name__)
        traces.append(tools.trace)
    return traces


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_nothing_reads_a_dead_variable(seed: int) -> None:
    body = textwrap.indent(Writer(random.Random(seed)).block(2), " " * 8)
    start = "def train(run):\n    a = b = c = d = 0\n    f = g = (lambda: 0); kept = []\n"
    head = f"{start}    for _step in run.steps():\n"
    try:
        function = run_source(f"{head}{body}", Tools().namespace())["train"]
    except SyntaxError:
        return
    variables = carried_variables(function.__code__, namespace=function.__globals__)
    assert variables is not None
    seeds = range(seed, seed + 8)
    expected = traces_of(f"{head}{body}", seeds)
    for name in (name for name in _VARIABLES if variables[name].kind == "dead"):
        for poison in (f"{name} = 'poison'", f"{name} = 1; del {name}"):
            source = f"{head}        {poison}\n{body}"
            assert traces_of(source, seeds) == expected, (name, source)
