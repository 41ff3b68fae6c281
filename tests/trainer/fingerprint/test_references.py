"""The fingerprint covers references of every kind and lists those it cannot follow.

Each case is a package of a few modules; one module is changed in one place.
"""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from textwrap import dedent, indent
from types import ModuleType

import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.trainer import Fingerprint, fingerprint
from tests.study_folder import without_bytecode

Cover = Callable[..., Fingerprint]
PLUS = "def f(x=0):\n    return x + 1\n"
"""The function that is changed."""


def training(body: str, head: str = "") -> str:
    """Return a module with a trainer that does this."""
    return f"{dedent(head)}\nclass Net:\n    def train(self):\n{indent(dedent(body), ' ' * 8)}\n"


@pytest.fixture
def cover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cover]:
    """Return a function that writes a package and covers its ``net.Net``."""
    numbers = count()
    before = set(sys.modules)

    def forget() -> None:
        for name in {one for one in sys.modules if one.partition(".")[0] in ("pkg", "beside")}:
            del sys.modules[name]

    def cover(files: Mapping[str, str], old: str = "", new: str = "") -> Fingerprint:
        forget()
        folder = tmp_path / str(next(numbers))
        for name, text in {"__init__.py": "", **files}.items():
            path = folder / "pkg" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(old, new) if old else text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            return fingerprint(importlib.import_module("pkg.net").Net, {})

    with without_bytecode():
        yield cover
    forget()
    assert not {name for name in set(sys.modules) - before if name.startswith("pkg")}


REACHED = {
    "import of a module under another name": {
        "net.py": training("return y.f()", "from . import a as y"),
        "a.py": PLUS,
    },
    "import through another module": {
        "net.py": training("return y.g()", "from . import a as y"),
        "a.py": "from .b import f\ndef g(): return f()\n",
        "b.py": PLUS,
    },
    "a package that exports it": {
        "net.py": training("return sub.f()", "from . import sub"),
        "sub/__init__.py": "from .x import f\n",
        "sub/x.py": PLUS,
    },
    "import in the function": {
        "net.py": training("from .a import f\nreturn f()"),
        "a.py": PLUS,
    },
    "import in the function, of a module": {
        "net.py": training("from . import a\nreturn a.f()"),
        "a.py": PLUS,
    },
    "import in the function, with its full name": {
        "net.py": training("import pkg.a\nreturn pkg.a.f()"),
        "a.py": PLUS,
    },
    "import in the function, of a name that is global too": {
        "net.py": training("import pkg.a\nreturn pkg.a.f()", "import pkg"),
        "a.py": PLUS,
    },
    "a module that is looked into by name": {
        "net.py": training("return getattr(a, 'f')()", "from . import a"),
        "a.py": PLUS,
    },
    "a package without __init__": {
        "net.py": training("return beside.m.f()", "import beside.m"),
        "../beside/m.py": PLUS,
    },
    "import with an alternative": {
        "net.py": training(
            "return f()", "try:\n    from .no import f\nexcept ImportError:\n    from .a import f"
        ),
        "a.py": PLUS,
    },
    "a base class's function": {
        "net.py": "from .a import Base\nclass Net(Base):\n    def train(self): super().train()\n",
        "a.py": "from .b import f\nclass Base:\n    def train(self):\n        return f()\n",
        "b.py": PLUS,
    },
    "a method of an instance": {
        "net.py": training("return go()", f"class A:\n{indent(PLUS, '    ')}go = A().f"),
    },
    "a decorator": {
        "net.py": "from .a import deco\nclass Net:\n    @deco\n    def train(self): return 1\n",
        "a.py": "def deco(f):\n    def inner(x): return f(x + 1)\n    return inner\n",
    },
    "a decorator that was applied by hand": {
        "net.py": training("return g(1)", "from .a import deco\ndef h(x): return x\ng = deco(h)"),
        "a.py": """
            import functools
            def deco(f):
                @functools.wraps(f)
                def inner(x): return f(x + 1)
                return inner
            """,
    },
    "a registered function": {
        "net.py": training(
            "return g(1)",
            """
            from functools import singledispatch
            @singledispatch
            def g(x): return 0
            @g.register
            def _(x: int): return x + 1
            """,
        )
    },
    "a cached function": {
        "net.py": training("return f()", f"from functools import cache\n@cache\n{PLUS}")
    },
    "a cached property": {
        "net.py": "from functools import cached_property\nfrom .a import f\nclass Net:\n"
        "    @cached_property\n    def w(self): return f()\n    def train(self): return self.w\n",
        "a.py": PLUS,
    },
    "a property of a function from elsewhere": {
        "net.py": "from . import a\nclass Net:\n    w = property(a.f)\n    def train(self): pass\n",
        "a.py": PLUS,
    },
    "a metaclass": {
        "net.py": f"class Meta(type):\n{indent(PLUS, '    ')}\n"
        "class Net(metaclass=Meta):\n    def train(self): return 1\n"
    },
    "a partial": {
        "net.py": training("return g()", f"from functools import partial\n{PLUS}g = partial(f, 3)")
    },
    "a function in a dict": {"net.py": training("return T['a']()", f"{PLUS}T = {{'a': f}}")},
    "a lambda in a list": {"net.py": training("return T[0](1)", "T = [lambda x: x + 1]")},
    "the second lambda of a line": {
        "net.py": training("return b(1)", "a, b = lambda x: x, lambda x: x + 1")
    },
    "a factory of defaults": {
        "net.py": training(
            "return D['a']", f"from collections import defaultdict\n{PLUS}D = defaultdict(f)"
        )
    },
    "a kind of dict": {
        "net.py": training(
            "return D['a']", "class M(dict):\n    def __missing__(self, x): return x + 1\nD = M()"
        )
    },
    "a class that a call has made": {
        "net.py": training("return A()", f"{PLUS}A = type('A', (), {{'f': f}})")
    },
    "an enumeration's method": {
        "net.py": training(
            "return A.x.f()",
            "from enum import Enum\nclass E(float, Enum):\n    a = 1.0\n"
            f"{indent(PLUS, '    ')}A = E.a",
        )
    },
    "a comprehension in a nested function": {
        "net.py": training("def g(): return [f(x) for x in (1, 2)]\nreturn g()", PLUS)
    },
}


@pytest.mark.parametrize("name", REACHED)
def test_reached_code_counts(cover: Cover, name: str) -> None:
    files = {path: dedent(text) for path, text in REACHED[name].items()}
    assert any("x + 1" in text for text in files.values())
    before = cover(files)
    assert cover(files).digest == before.digest
    assert cover(files, "x + 1", "x + 2").digest != before.digest
    assert cover(files, "x + 1", "( x+1 )").digest == before.digest
    assert set(before.gaps) == {"data"}


@pytest.mark.parametrize(
    ("head", "old", "new"),
    [
        ("from math import sqrt as X", "math", "cmath"),
        ("X = 3 * 2", "3 * 2", "3 * 3"),
        ("X = slice(1, 3)", "3", "4"),
        ("from fractions import Fraction\nX = Fraction(1, 3)", "1, 3", "1, 4"),
        ("from decimal import Decimal\nX = Decimal('1.10')", "1.10", "1.1"),
        ("import datetime\nX = datetime.date(2020, 1, 3)", "1, 3", "1, 4"),
        ("import re\nX = re.compile('a' * 300 + 'b')", "'b'", "'c'"),
        ("from types import SimpleNamespace\nX = SimpleNamespace(a=3)", "3", "4"),
        ("from types import MappingProxyType\nX = MappingProxyType({'a': 3})", "3", "4"),
        ("from collections import deque\nX = deque([3])", "3", "4"),
        ("from operator import itemgetter\nX = itemgetter(3)", "3", "4"),
        ("from collections import namedtuple\nX = namedtuple('P', 'a b')", "a b", "b a"),
        ("from enum import Enum\nX = Enum('E', 'A B')", "A B", "A C"),
        ("from enum import Enum\nclass E(Enum):\n    A = 3\n    B = 4\nX = E.A", "E.A", "E.B"),
        ("from enum import IntEnum\nclass E(IntEnum):\n    A = 3\nX = E.A", "3", "4"),
        ("from dasktune.sequences import Constant\nX = Constant(0.1)", "0.1", "0.2"),
        (
            "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\n"
            "class D:\n    a: int\nX = D(3)",
            "D(3)",
            "D(4)",
        ),
        (
            "from typing import NamedTuple\nclass P(NamedTuple):\n    a: int = 3\nX = P",
            "= 3",
            "= 4",
        ),
        (
            "class B:\n    __slots__ = ('a',)\nclass D(B):\n    __slots__ = ()\nX = D()\nX.a = 3",
            "X.a = 3",
            "X.a = 4",
        ),
        ("X = [3]\nX.append(X)", "[3]", "[4]"),
        ("X = {'a': 1, 'b': 2}", "'a': 1, 'b': 2", "'b': 2, 'a': 1"),
        ("def make(k):\n    return lambda: k\nX = make(3)", "make(3)", "make(4)"),
    ],
)
def test_values_count(cover: Cover, head: str, old: str, new: str) -> None:
    files = {"net.py": training("return X", head)}
    before = cover(files)
    assert set(before.gaps) == {"data"}
    assert cover(files).digest == before.digest
    assert cover(files, old, new).digest != before.digest


@pytest.mark.parametrize(
    ("head", "old", "new"),
    [
        ("X = {'a', 'b', 'c'}", "'a', 'b', 'c'", "'c', 'b', 'a'"),
        ("import logging\nX = logging.getLogger('here')", "here", "there"),
        ("X = 3\nY = 4", "Y = 4", "Y = 5"),
        ("class A:\n    b = 1\n    'What it is.'\nX = A", "What it is", "What else"),
        ("from typing import Optional, Union\nX = Optional[int]", "Optional[int]", "int | None"),
        ("from pathlib import Path\nX = 3", "from pathlib import Path\n", "\n\n"),
    ],
)
def test_equal_code_of_other_form_does_not_count(
    cover: Cover, head: str, old: str, new: str
) -> None:
    files = {"net.py": training("return X", head)}
    assert cover(files, old, new).digest == cover(files).digest


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (
            "A, B = {\n    'a': lambda x: x,\n}, {\n    'a': lambda x: 2 * x,\n}",
            "A['a'](1) - B['a'](1)",
        ),
        ("def make(k):\n    return lambda: k\nA, B = make(1), make(2)", "A() - B()"),
        ("from .a import L as A\nfrom .b import L as B", "A.w - B.w"),
        ("from . import a as A, b as B", "A.f() - B.f()"),
    ],
)
def test_things_of_one_name_cannot_be_swapped(cover: Cover, head: str, body: str) -> None:
    one = "class L:\n    w = 1\ndef f(): return 1\n"
    files = {"a.py": one, "b.py": one.replace("1", "2"), "net.py": training(f"return {body}", head)}
    there = cover(files).digest
    # The names change sides where they are used; what they stand for changes back with them.
    swapped = head.translate(str.maketrans("AB", "BA"))
    files["net.py"] = training(f"return {body}", swapped)
    assert cover(files).digest != there


def test_folder_of_the_package_does_not_count(cover: Cover) -> None:
    head = """
        import os
        from pathlib import Path
        HERE = Path(__file__).parent
        TEXT = os.path.join(os.path.dirname(__file__), "data.csv")
        """
    files = {"net.py": training("return HERE, TEXT, __file__, __name__", head)}
    before = cover(files)
    assert cover(files).digest == before.digest  # in another folder
    assert cover(files, "data.csv", "other.csv").digest != before.digest


@pytest.mark.parametrize(
    ("head", "body", "gap", "advice"),
    [
        (
            "import importlib",
            "importlib.import_module('x')",
            "importlib.import_module",
            "depends_on",
        ),
        (
            "",
            "from importlib import import_module\nimport_module('x')",
            "import_module",
            "depends_on",
        ),
        ("", "__import__('x')", "__import__", "depends_on"),
        ("", "eval('1 + 1')", "eval", "change version"),
        ("import os", "os.environ['X']", "os.environ", "config"),
        ("from os import environ", "environ['X']", "environ", "config"),
        ("", "from .nowhere import f\nf()", "import of .nowhere", "cannot be imported"),
    ],
)
def test_dynamic_references_are_gaps(
    cover: Cover, head: str, body: str, gap: str, advice: str
) -> None:
    found = cover({"net.py": training(body, head)})
    assert advice in found.gaps[f"class Net: {gap}"]
    assert set(found.gaps) == {f"class Net: {gap}", "data"}


@pytest.mark.parametrize(
    ("head", "gap"),
    [
        ("import torch\nX = torch.Generator()", "torch.Generator"),
        ("import numpy as np\nX = np.random.default_rng(1)", "numpy.Generator"),
        ("import threading\nX = threading.Lock()", "_thread.lock"),
    ],
)
def test_objects_of_unknown_content_are_gaps(cover: Cover, head: str, gap: str) -> None:
    found = cover({"net.py": training("return X", head)})
    (name,) = set(found.gaps) - {"data"}
    assert gap in name
    assert "version" in found.gaps[name]


@pytest.mark.parametrize("statement", ["1 / 0", "raise SystemExit", "import no_such_module"])
@pytest.mark.parametrize("body", ["from .sub import f", "from . import sub", "return pkg.sub.f"])
def test_own_module_that_cannot_be_imported_is_a_gap(
    cover: Cover, statement: str, body: str
) -> None:
    files = {"net.py": training(body, "import pkg"), "sub.py": f"{statement}\ndef f(): return 1\n"}
    gaps = cover(files).gaps
    (name,) = set(gaps) - {"data"}
    assert "sub" in name
    assert gaps[name].startswith("it cannot be imported: ")


def test_lazy_attribute_that_fails_is_a_gap(cover: Cover) -> None:
    lazy = "def __getattr__(name):\n    raise RuntimeError(name)\n"
    gaps = cover(
        {"net.py": training("return lazy.f()", "from . import lazy"), "lazy.py": lazy}
    ).gaps
    assert gaps["pkg.lazy.f"] == "it cannot be imported: RuntimeError: f"


def test_object_of_dasktune_is_named_without_its_module(cover: Cover) -> None:
    head = "import dasktune as dt\nX = object.__new__(dt.Study)\nY = dt.Space(lr=[0.1])"
    gaps = cover({"net.py": training("return X, Y", head)}).gaps
    assert set(gaps) == {"dasktune.Study", "data"}, "modules move inside a package"


def test_the_environment_is_no_constant(cover: Cover, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"net.py": training("return environ", "from os import environ")}
    before = cover(files).digest
    monkeypatch.setenv("DASKTUNE_ANY", "1")
    assert cover(files).digest == before


def test_installed_packages_are_named_not_covered(cover: Cover) -> None:
    head = "import math\nimport numpy as np\nfrom torch.nn import Linear"
    loaded = "sklearn.svm" in sys.modules
    found = cover({"net.py": training("import sklearn.svm\nreturn np.sum, Linear, math.pi", head)})
    assert found.packages == ("numpy", "sklearn", "torch")
    assert set(found.parts) == {"class Net", "config", "version"}
    assert ("sklearn.svm" in sys.modules) == loaded, "what is not covered is not imported"


def test_module_in_depends_on_counts_as_a_whole(cover: Cover, tmp_path: Path) -> None:
    def digest(old: str = "", new: str = "") -> str:
        files = {"net.py": training("return 1"), "sub/__init__.py": "", "sub/deep/x.py": PLUS}
        cover(files, old, new)
        sub = importlib.import_module("pkg.sub")
        return fingerprint(sys.modules["pkg.net"].Net, {}, depends_on=[sub]).digest

    assert digest() == digest("x + 1", "(x + 1)")
    assert digest() != digest("x + 1", "x + 2")


@pytest.mark.parametrize("namespace", ["{}", "{'__name__': __name__}"])
def test_functions_compiled_from_text_are_refused(cover: Cover, namespace: str) -> None:
    head = f"names = {namespace}\nexec('def f(): return 1', names)\nf = names['f']"
    with pytest.raises(ConfigurationError, match="the source of f cannot be read"):
        cover({"net.py": training("return f()", head)})


def test_classes_of_a_notebook_are_found_in_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(*cells: str) -> str:
        notebook = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", notebook)
        for number, text in enumerate(cells):
            name = f"<ipython-input-{number}-abc>"
            lines = text.splitlines(keepends=True)
            monkeypatch.setitem(linecache.cache, name, (len(text), None, lines, name))
            exec(compile(text, name, "exec"), vars(notebook))
        return fingerprint(vars(notebook)["Net"], {}).digest

    layer, net = "class Layer:\n    size = 3\n", training("return Layer, f()", PLUS)
    before = digest(layer, net)
    assert digest(f"# one more\n\n{layer}", net) == before
    assert digest(layer.replace("3", "4"), net) != before
    assert digest(layer, net.replace("x + 1", "x + 2")) != before
    assert digest(layer, net, layer.replace("3", "4")) != before


CORPUS = {
    "a.py": """
import logging, re
from functools import reduce, singledispatch, wraps
from math import sqrt
from operator import itemgetter
logger = logging.getLogger(__name__)
def deco(f):
    @wraps(f)
    def inner(*a, **k):
        return f(*a, **k)
    return inner
@singledispatch
def many(x): return 0
@many.register
def _(x: int): return 1
@deco
def g(x, *, by: float = 1.0, **rest):
    match x:
        case {"a": [1, *others]} if x:
            return others
        case str() as s:
            return f"{s!r:>{by}} {x=} {'nested' + f'{s}'} {{}}"
        case _:
            pass
    with open("x") as a, open("y") as b:
        async def coro():
            async with a: yield
        return [y for y in range(3) if (z := y)] + [*map(lambda q: q + sqrt(by), (1, 2))]
    try:
        raise ValueError from None
    except* KeyError: ...
    finally: global W; W = 1
W = re.compile("a+b", re.I)
FIRST = itemgetter(1)
""",
    "kinds.py": '''
from __future__ import annotations
from collections import namedtuple
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Callable, Generic, Literal, NamedTuple, Optional, TypeVar, Union
from . import a as other
T = TypeVar("T")
Alias = Union[int, str]
Opt = Optional[dict[str, int]]
New = int | None
Lit = Literal["a", 1]
Fn = Callable[[int], str]
class Mode(Enum):
    A = 1
class Level(IntEnum):
    LOW = 3
P = namedtuple("P", "a b", defaults=[3])
class Q(NamedTuple):
    x: int = 1
@dataclass(frozen=True, slots=True)
class D:
    """Doc."""
    a: int = 3
    b: list[int] = field(default_factory=list)
''',
    "net.py": """
from typing import Any, Generic, Mapping, Optional, Union
from .kinds import T, Alias, Opt, New, Lit, Fn, Mode, Level, P, Q, D, other
from .members import Shape, Keys, Name, Rank, Pair, Whole
THING = D(4)
TABLE = {"a": lambda x: x, "b": other.g, "c": Mode.A, "d": Level.LOW, "e": 1e-3, "f": P(1, 2)}
class Base(Generic[T]):
    def build(self, hp: Mapping[str, Any]) -> Optional[Union[int, str]]:
        return TABLE, THING, other.FIRST, other.W, other.many, Q(1), {"z", "y"}
class Net(Base[int]):
    w: Alias = 3
    def f(self, x: Opt, y: New = None, z: Lit = 1, fn: Fn = None) -> "Net":
        return super().build(x), __class__, [self.w for _ in range(3)], __name__, __file__
    def train(self):
        from .late import late
        try:
            return late(self.f), Shape, Keys, Name.A, Rank.LOW, Pair(), Whole
        except (ValueError, KeyError):
            pass
""",
    "late.py": "def late(x): return x + 1\n",
    "members.py": """
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Flag, IntEnum, StrEnum, auto
from functools import cache, cached_property, partialmethod, singledispatchmethod, total_ordering
from typing import ClassVar, NamedTuple, Protocol, TypedDict, runtime_checkable
@runtime_checkable
class Shape(Protocol):
    size: int
    def area(self) -> float: ...
class Keys(TypedDict, total=False):
    a: int
class Color(Flag):
    RED = auto()
    BLUE = auto()
class Name(StrEnum):
    A = auto()
    def upper(self): return "A"
class Rank(IntEnum):
    LOW = 1
@dataclass(frozen=True, order=True, kw_only=True, slots=True)
class Point:
    x: int = 1
    y: list = field(default_factory=lambda: [k for k in (1, 2)], compare=False)
    z: ClassVar[int] = 3
class Pair(NamedTuple):
    a: int = 1
    def total(self): return self.a
@total_ordering
class Base(ABC):
    table = [lambda i=i: i for i in range(2)]
    @abstractmethod
    def f(self): pass
    def __lt__(self, other): return self is other
class Whole(Base):
    __slots__ = ("__k", "j")
    def f(self): return self.g
    @cached_property
    def g(self): return {i: lambda: i for i in range(3)}
    @singledispatchmethod
    def h(self, x): return x
    @h.register
    def _(self, x: int): return x + 1
    i = partialmethod(h, 3)
    @staticmethod
    @cache
    def s(*, k=lambda: 1): return k()
    @classmethod
    def c(cls): return cls.__mro__
    @contextmanager
    def m(self): yield self
Whole.s.extra = Color.RED | Color.BLUE
Whole.late = property(lambda self: Point(x=2))
""",
}


def test_a_study_counts_by_its_public_name(cover: Cover, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of `Study` has moved once; the trainers that refer to one must not notice."""
    head = "import dasktune as dt\nSTUDY = object.__new__(dt.Study)\nKIND = dt.Study"
    files = {"net.py": training("return STUDY, KIND", head)}
    before = cover(files)
    monkeypatch.setattr(dt.Study, "__module__", "dasktune.elsewhere.study")
    after = cover(files)
    assert after.digest == before.digest
    assert set(after.gaps) == set(before.gaps) == {"dasktune.Study", "data"}


def test_the_digest_is_the_same_in_every_version_of_python(cover: Cover) -> None:
    """A change of the coverage changes this digest and makes all stored states useless."""
    assert cover(CORPUS).digest == "a3a55878fd5a41e793b0e7f90cd5aaf7"
