"""Tests of the analysis of memos: dicts that own code only looks results up in."""

from __future__ import annotations

import textwrap

import pytest

from dasktune.trainer.function import trainer_of
from dasktune.trainer.liveness import Liveness
from tests.trainer.test_liveness_of_trainers import run_source


def liveness_of(module: str) -> Liveness:
    source = """
        import functools, random
        {module}
        class T:
            def build(self, hp): self.data = Data(); self.used = USED
            def train(self): self.x = self.data[0]
            def evaluate(self): return dict(loss=self.x)
            def state_dict(self): return dict()
            def load_state_dict(self, state): pass
    """
    text = textwrap.dedent(source).replace("{module}", textwrap.dedent(module))
    return Liveness.of(run_source(text)["T"])


def in_class(getitem: str, rest: str = "") -> Liveness:
    module = f"""
USED = None
class Data:
    def __init__(self):
        self.cache = {{}}
        self.paths, self.scale = ["a"], 2
    def __getitem__(self, i):
{textwrap.indent(textwrap.dedent(getitem), " " * 8)}
    def load(self, path): return len(path) * self.scale
    def draw(self, path): return random.random()
{textwrap.indent(textwrap.dedent(rest), " " * 4)}
"""
    return liveness_of(module)


@pytest.mark.parametrize(
    ("getitem", "is_memo"),
    [
        ("if i not in self.cache: self.cache[i] = i * 2\nreturn self.cache[i]", True),
        ("if i not in self.cache: self.cache[i] = self.load(self.paths[i])\nreturn 1", True),
        (
            "x = self.cache.get(i)\nif x is None:\n    x = i * 2\n    self.cache[i] = x\nreturn x",
            True,
        ),
        (
            "try: return self.cache[i]\nexcept KeyError: pass\nx = len(self.paths[i])\n"
            "self.cache[i] = x\nreturn x",
            True,
        ),
        ("key = (i, 1)\nself.cache[key] = i * 2", True),
        ("return self.cache.setdefault(i, i * 2)", True),
        ("self.cache[i] = self.draw(i)", False),
        ("self.cache[i] = random.random()", False),
        ("self.cache['rows'] = i", False),
        ("self.cache[i % 2] = i", False),
        ("self.cache[i] = self.cache.get(i, 0) + 1", False),
        ("self.cache[i] = i\nreturn len(self.cache)", False),
        ("self.cache[i] = i\nfor k in self.cache: print(k)", False),
        ("self.cache[i] = i\nself.cache.pop(i)", False),
        ("self.cache[i] += 1", False),
        ("self.cache[i] = i\nprint(self.cache)", False),
        ("self.cache[i] = i\nself.cache[i].append(1)", False),
        ("self.cache[i] = self.count\nself.count += 1", False),
        ("self.cache[i] = i\nself.cache.update(a=1)", False),
        ("self.cache[i] = i\ngetattr(self, 'cache')", False),
        ("x = []\nrandom.shuffle(x)\nself.cache[i] = x", False),
        ("self.cache[i] = self.source(i)", False),
        ("if i in self.cache: return self.cache[i]\nx = i * 2\nself.cache[i] = x\nreturn x", True),
        (
            "if i in self.cache: x = self.cache[i]\nelse:\n    x = i * 2\n    self.cache[i] = x",
            True,
        ),
        ("if i not in self.cache: self.cache[i] = 1; self.seen += 1", False),
        ("if i not in self.cache: self.cache[i] = 1; self.paths.append(1)", False),
        ("if i in self.cache: return 0\nself.cache[i] = 1\nreturn 1 + self.draw(i)", False),
        ("x = self.cache.get(i, 0)\nx += 1\nself.cache[i] = x", False),
        ("x = self.cache.get(i)\nif x is None: x = 0\nx += 1\nself.cache[i] = x", False),
        ("if i in self.cache: self.cache[i] = self.cache[i] + 1", False),
        ("if i not in self.cache: self.cache[i] = i\nreturn self.draw(self.cache[i])", True),
        ("if i not in self.cache:\n    self.cache[i] = 1\n    i.append(1)", False),
        ("if i not in self.cache:\n    x = []\n    x.append(i)\n    self.cache[i] = x", True),
        ("is_new = i not in self.cache\nself.cache[i] = i\nreturn is_new", False),
        ("self.cache[i] = self.cache[i - 1] + 1", False),
    ],
)
def test_attribute_is_a_memo_if_keys_decide_its_values(getitem: str, is_memo: bool) -> None:
    liveness = in_class(getitem)
    for path in ("trainer.data.cache[3]", "len(trainer.data.cache)", "trainer.data.cache['a.b'].c"):
        assert liveness.is_memo(path) is is_memo
    assert not liveness.is_memo("trainer.data.paths[0]")


@pytest.mark.parametrize(
    ("code", "is_memo"),
    [
        ("if i not in USED: USED[i] = i * 2\nreturn USED[i]", True),
        ("if 'rows' not in USED: USED['rows'] = i\nreturn USED['rows']", False),
        ("USED['rows'] = [1, 2]", True),
        ("if i not in USED: USED[i] = self.scale * i", False),
    ],
)
def test_global_is_a_memo_if_keys_decide_its_values(code: str, is_memo: bool) -> None:
    module = (
        f"USED = {{}}\nclass Data:\n    def __getitem__(self, i):\n{textwrap.indent(code, ' ' * 8)}"
    )
    liveness = liveness_of(module.replace("self.used = USED", ""))
    # `build` of the trainer gives the dict away.
    assert not liveness.is_memo("global USED['a']")
    other = liveness_of(module.replace("USED", "KNOWN") + "\nUSED = None")
    assert other.is_memo("global KNOWN['a']") is is_memo
    assert other.is_memo("global module.KNOWN['a']") is is_memo


def test_default_and_cached_functions_are_memos_if_pure() -> None:
    module = """
USED, STATE = None, []
def known(i, cache={}):
    if i not in cache:
        cache[i] = i + 1
    return cache[i]
def counted(i, cache={}):
    cache[i] = len(cache)
    return cache[i]
@functools.lru_cache
def pure(i): return sum(range(i))
@functools.lru_cache(maxsize=None)
def drawn(i): return random.random() * i
@functools.cache
def stateful(i): return STATE[i]
class Data:
    def __init__(self): self.paths = [1]; self.count = 0
    def __getitem__(self, i):
        self.count += 1
        return known(i) + counted(i) + pure(i) + drawn(i) + stateful(i) + self.size + self.now
    @functools.cached_property
    def size(self): return len(self.paths)
    @functools.cached_property
    def now(self): return self.count
"""
    liveness = liveness_of(module)
    assert liveness.is_memo("default cache of known[3]")
    assert not liveness.is_memo("default cache of counted[3]")
    assert liveness.is_memo("cache of pure")
    assert not liveness.is_memo("cache of drawn")
    assert not liveness.is_memo("cache of stateful")
    assert liveness.is_memo("trainer.data.size")
    assert not liveness.is_memo("trainer.data.now")


def test_reads_tells_whether_own_code_names_a_value() -> None:
    liveness = in_class("return self.cache[i]")
    assert liveness.reads("trainer.data.scale") is True
    assert liveness.reads("trainer.unknown['a']") is False
    assert liveness.reads("Python's global random generator") is None


DATA = """
import functools, numpy as np, torch
class Data:
    def __init__(self, n):
        self.x = torch.randn(n, 3)
        self.y = self.x[:, :1].abs()
        self.own = Own()
    @functools.lru_cache(maxsize=None)
    def raw(self, i): {raw}
    def __getitem__(self, i):
        {item}
def build(): return Data(8)
def shifted(x): x += 1
def doubled(x): return 2 * x
def train(run):
    data = build()
    w = 0.0
    for step in run.steps():
        for x, y in data:
            {use}
        run.report(loss=w)
"""
RAW = "return self.x[i].clone(), self.y[i]"
ITEM = "x, y = self.raw(i); return x + torch.randn(3), y"


@pytest.mark.parametrize(
    ("raw", "item", "use", "is_memo"),
    [
        (RAW, ITEM, "w += x.sum()", True),
        ("return self.x[i].mean()", "return self.raw(i) + torch.randn(3)", "w += x", True),
        (RAW, ITEM, "y += 1", False),
        (RAW, ITEM, "y.mul_(2)", False),
        (RAW, ITEM, "z = y; z += 1", False),
        (RAW, "x, y = self.raw(i); x += torch.randn(3); return x, y", "w += x.sum()", False),
        (RAW, "x, y = self.raw(i); x[0] = 0; return x, y", "w += x.sum()", False),
        (RAW, "return keep(self.raw(i))", "w += x.sum()", False),
        ("return self.x[i] + torch.randn(3)", ITEM, "w += x.sum()", False),
        ("return self.own[i]", ITEM, "w += x.sum()", False),
        (RAW, ITEM, "shifted(y)", False),
        (RAW, ITEM, "w += doubled(y).sum()", True),
        (RAW, ITEM, "relu(y, inplace=True)", False),
        (RAW, ITEM, "data.x = x", False),
        (RAW, ITEM, "data.x[0] = 1", False),
    ],
)
def test_cached_parts_of_data_are_memos(raw: str, item: str, use: str, is_memo: bool) -> None:
    source = DATA.format(raw=raw, item=item, use=use)
    liveness = Liveness.of(trainer_of(run_source(source)["train"]))
    assert liveness.is_memo("cache of Data.raw") is is_memo
