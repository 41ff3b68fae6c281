"""Changes that do not change a training."""

from __future__ import annotations

UNCHANGED: dict[str, str | tuple[str, str]] = {
    "comment": ("def f(): return 1  <<||# why>>", "f()"),
    "documentation": ("def f():\n    <<||'Return it.'>>\n    return 1", "f()"),
    "documentation of a class": ("class A:\n    'It<< is||was>>.'\n    k = 1", "A.k"),
    "documentation set after": ("def f(): return 1\nf.__doc__ = '<<a||b>>'", "f()"),
    "documentation of a module": ("'<<One||Two>>.'\nK = 1", "K"),
    "line breaks and brackets": ("def f(x): return <<x + 1||(\n    x+1\n)>>", "f(1)"),
    "quotes": ("K = {'a': 1}", """K[<<'a'||"a">>]"""),
    "spelling of a number": ("def f(): return <<16||0x10>>", "f()"),
    "statement that does nothing": ("def f():\n    <<||pass>>\n    return 1", "f()"),
    "trailing comma": ("def f(a<<||,>>): return a", "f(1<<||,>>)"),
    "unused function": ("def f(): return 1\ndef g(): return <<1||2>>", "f()"),
    "unused constant": ("K = 1\nL = <<1||2>>", "K"),
    "unused class": ("class A:\n    k = <<1||2>>\nK = 1", "K"),
    "attribute of an unused class": ("class A: pass\nA.k = <<1||2>>\nK = 1", "K"),
    "attribute of an unused function": ("def g(): pass\ng.k = <<1||2>>\nK = 1", "K"),
    "default of an unused function": ("def g(a=<<1||2>>): pass\nK = 1", "K"),
    "search space": ("import dasktune as dt\nSPACE = dt.Space(lr=[0.<<1||2>>])\nK = 1", "K"),
    "order of functions": (
        "def <<a(): return 1||b(): return 2>>\ndef <<b(): return 2||a(): return 1>>",
        "a() + b()",
    ),
    "order of classes": (
        "<<class A: k = 1\nclass B: k = 2||class B: k = 2\nclass A: k = 1>>",
        "A.k + B.k",
    ),
    "order of methods": """
        class Net:
            <<def f(self): return 1||def train(self): return self.f() + G().h()>>
            <<def train(self): return self.f() + G().h()||def f(self): return 1>>
        class G:
            <<def h(self): return 1||def i(self): return 2>>
            <<def i(self): return 2||def h(self): return 1>>
        """,
    "order of decorated methods": """
        def deco(f):
            def inner(self): return f(self)
            return inner
        class Net:
            <<@property
            def f(self): return 1||@deco
            def train(self): return self.f>>
            <<@deco
            def train(self): return self.f||@property
            def f(self): return 1>>
        """,
    "order of methods and attributes": """
        class Net:
            <<k = 1||def train(self): return self.k>>
            <<def train(self): return self.k||k = 1>>
        """,
    "order of a data class's methods": """
        from dataclasses import dataclass
        @dataclass
        class D:
            a: int = 1
            <<def f(self): return 1||def g(self): return 2>>
            <<def g(self): return 2||def f(self): return 1>>
        class Net:
            def train(self): return D().f() + D().g()
        """,
    "order of an enumeration's methods": """
        from enum import Enum
        class E(Enum):
            A = 1
            <<def f(self): return 1||def g(self): return 2>>
            <<def g(self): return 2||def f(self): return 1>>
        class Net:
            def train(self): return E.A.f() + E.A.g()
        """,
    "order of attributes set after the class": """
        class Net:
            def train(self): return self.a + self.b
        Net.<<a = 1||b = 2>>
        Net.<<b = 2||a = 1>>
        """,
    "order of a function's attributes": (
        "def f(): return f.a + f.b\nf.<<a = 1||b = 2>>\nf.<<b = 2||a = 1>>",
        "f()",
    ),
    "def of a name that is defined again": """
        class Net:
            <<def train(self): return 0||def train(self): return 3>>
            def train(self): return 1
        """,
    "order of imports": ("<<import math, cmath||import cmath, math>>", "math.pi + cmath.pi"),
    "unused import": ("<<||import cmath>>\nimport math", "math.pi"),
    "spelling of an f-string": ("K = 1", """<<f"{K} a"||f'{K}' f' a'>>"""),
    "order of a set": ("K = {<<'a', 'b', 'c'||'c', 'b', 'a'>>}", "sorted(K)"),
    "set of functions": (
        "def f(): return 1\ndef g(): return 2\nK = {<<f, g||g, f>>}",
        "sum(f() for f in K)",
    ),
    "name of a logger": ("import logging\nlog = logging.getLogger('<<a||b>>')", "log.debug('x')"),
    "two spellings of a type": (
        "from typing import Optional\nK = <<Optional[int]||int | None>>",
        "isinstance(1, K)",
    ),
    "copy of a list": ("K = [1, 2]<<||[:]>>", "K"),
    "constant in another spelling": ("K = <<4||2 * 2>>", "K"),
    "loop instead of a display": ("K = <<[0, 1, 4]||[i * i for i in range(3)]>>", "K"),
    "layout of an array": (
        "import numpy as np\nK = np.zeros((2, 3), order='<<C||F>>')",
        "K.tolist()",
    ),
    "setting of Python that trains nothing": ("import sys\n<<||sys.getrecursionlimit()>>", "1"),
    "cache that was filled": (
        "from functools import cache\n@cache\ndef f(): return 1\n<<||f()>>",
        "f()",
    ),
    "abstract base that was asked": """
        from abc import ABC
        class Base(ABC): pass
        class Net(Base):
            def train(self): return 1
        <<||isinstance(1, Net); isinstance("", Base)>>
        """,
    "generic class that was used": """
        from typing import Generic, TypeVar
        T = TypeVar("T")
        class Base(Generic[T]): pass
        class Net(Base[int]):
            def train(self): return 1
        <<||Net(); Base[str]>>
        """,
    "hints that were read": """
        import typing
        class D:
            k: int = 1
        class Net:
            def train(self): return D.k
        <<||typing.get_type_hints(D)>>
        """,
    "another subclass of a base": """
        class Base: k = 1
        <<||class Other(Base): pass>>
        class Net(Base):
            def train(self): return self.k
        """,
}
