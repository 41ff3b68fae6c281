"""Changes of functions, and of what functions reach, that change a training."""

from __future__ import annotations

FUNCTIONS: dict[str, str | tuple[str, str]] = {
    "default from a name that was rebound": (
        """
        K = <<1||2>>
        def f(a=K): return a
        K = 0
        """,
        "f()",
    ),
    "default from a name that was deleted": (
        """
        K = <<1||2>>
        def f(a=K): return a
        del K
        """,
        "f()",
    ),
    "default of a method from a name that was rebound": """
        K = <<1||2>>
        class Net:
            def train(self, k=K): return k
        K = 0
        """,
    "default from a list that changed": (
        """
        K = [<<1||2>>]
        def f(a=K[0]): return a
        K.clear()
        """,
        "f()",
    ),
    "mutable default that changed": (
        """
        def f(a=[]): return list(a)
        f.__defaults__[0].append(<<1||2>>)
        """,
        "f()",
    ),
    "keyword default made by a call": (
        """
        import itertools
        numbers = itertools.count(<<1||2>>)
        def make(): return next(numbers)
        def f(*, a=make()): return a
        """,
        "f()",
    ),
    "function of a loop": (
        """
        for i in <<(1, 2)||(2, 1)>>:
            if i != 3:
                def f(i=i): return i
        i = 0
        """,
        "f()",
    ),
    "functions of a loop in a list": (
        """
        F = []
        for i in <<(1, 2)||(2, 1)>>:
            def f(i=i): return i
            F.append(f)
        i = 0
        """,
        "[f() for f in F]",
    ),
    "lambdas of a comprehension": (
        """
        F = [lambda i=i: i for i in <<range(2)||range(1, 3)>>]
        """,
        "[f() for f in F]",
    ),
    "lambdas of a comprehension in a class": """
        class Net:
            k = [lambda i=i: i for i in <<range(2)||range(1, 3)>>]
            def train(self): return [f() for f in self.k]
        """,
    "lambdas of a comprehension in a function": (
        """
        def make(n):
            return {i: lambda: i for i in range(n)}
        F = make(<<1||2>>)
        """,
        "[f() for f in F.values()]",
    ),
    "methods of a loop": """
        class Net:
            def train(self): return self.f1() + self.f2()
        for i in (1, 2):
            def f(self, i=<<i||2 * i>>): return i
            setattr(Net, f"f{i}", f)
        """,
    "defaults set": (
        """
        def f(a=0): return a
        f.__defaults__ = (<<1||2>>,)
        """,
        "f()",
    ),
    "defaults of a method set": """
        class Net:
            def train(self, a=0): return a
        Net.train.__defaults__ = (<<1||2>>,)
        """,
    "keyword defaults set": (
        """
        def f(*, a=0): return a
        f.__kwdefaults__ = {"a": <<1||2>>}
        """,
        "f()",
    ),
    "defaults removed": (
        """
        def f(*a): return len(a)
        def g(b=1): return b
        def h():
            try: return g()
            except TypeError: return None
        <<g.__defaults__ = None||>>
        """,
        "h()",
    ),
    "code of a function set": (
        """
        def f(): return 1
        def g(): return 2
        <<f.__code__ = g.__code__||>>
        """,
        "f()",
    ),
    "attribute of a function": (
        """
        def f(): return f.k
        f.k = <<1||2>>
        """,
        "f()",
    ),
    "attribute of a method": """
        class Net:
            def train(self): return self.train.k
        Net.train.k = <<1||2>>
        """,
    "attribute of a decorated function": (
        """
        import functools
        def deco(f):
            @functools.wraps(f)
            def inner(): return inner.k
            return inner
        @deco
        def f(): return 0
        f.k = <<1||2>>
        """,
        "f()",
    ),
    "attribute of a cached function": (
        """
        from functools import cache
        @cache
        def f(): return f.k
        f.k = <<1||2>>
        """,
        "f()",
    ),
    "closure": (
        """
        def make(k): return lambda: k
        f = make(<<1||2>>)
        """,
        "f()",
    ),
    "closure with None": (
        """
        K = 1
        def make(k): return lambda: k
        f = make(<<1||None>>)
        """,
        "f()",
    ),
    "closure that counts": (
        """
        def make():
            k = 0
            def f():
                return k
            def more():
                nonlocal k
                k += 1
            return f, more
        f, more = make()
        <<more()||more(); more()>>
        """,
        "f()",
    ),
    "default of a function in a closure": (
        """
        K = <<1||2>>
        def make():
            def g(a=K): return a
            return lambda: g()
        f = make()
        K = 0
        """,
        "f()",
    ),
    "closure of a decorator": (
        """
        import functools
        def times(k):
            def deco(f):
                @functools.wraps(f)
                def inner(): return k * f()
                return inner
            return deco
        K = <<1||2>>
        @times(K)
        def f(): return 1
        K = 0
        """,
        "f()",
    ),
    "wrapper of an installed package": (
        """
        import numpy as np
        def f(): return str(np.float64(1.0) / np.float64(0.0))
        g = np.errstate(divide="ignore")(f)
        h = np.errstate(divide="raise")(f)
        def result():
            try: return <<g||h>>()
            except FloatingPointError: return "raised"
        """,
        "result()",
    ),
    "wrapped or not": (
        """
        import numpy as np
        def f(): return str(np.float64(1.0) / np.float64(0.0))
        with np.errstate(divide="ignore"): f()
        g = <<np.errstate(divide="raise")(f)||f>>
        def result():
            try: return g()
            except FloatingPointError: return "raised"
        """,
        "result()",
    ),
    "function that an installed package makes": (
        """
        import torch
        def f(x, y): return x * y * y
        g = torch.func.grad(f, argnums=<<0||1>>)
        """,
        "float(g(torch.tensor(2.0), torch.tensor(3.0)))",
    ),
    "argument of a partial": (
        """
        from functools import partial
        def f(a, b): return a
        f = partial(f, <<1||2>>, 3)
        """,
        "f()",
    ),
    "keyword of a partial": (
        """
        from functools import partial
        def f(a, b): return a - b
        f = partial(f, <<a||b>>=1)
        """,
        "f(**({'b': 2} if 'a' in f.keywords else {'a': 2}))",
    ),
    "cached function": (
        """
        from functools import lru_cache
        K = <<1||2>>
        @lru_cache
        def f(a=K): return a
        K = 0
        """,
        "f()",
    ),
}

REACHED: dict[str, str | tuple[str, str]] = {
    "function by name in globals()": (
        """
        def a(): return 1
        def b(): return 2
        f = <<a||b>>
        """,
        "globals()['f']()",
    ),
    "function by an unknown name in globals()": (
        """
        def f(): return <<1||2>>
        """,
        "globals()['F'.lower()]()",
    ),
    "function in vars() of a module": (
        """
        import sys
        def f(): return <<1||2>>
        """,
        "vars(sys.modules[__name__])['f']()",
    ),
    "function of a module by its name": (
        """
        import sys
        def f(): return <<1||2>>
        """,
        "getattr(sys.modules[__name__], 'f')()",
    ),
    "subclasses": (
        """
        class Base: pass
        class A(Base):
            k = <<1||2>>
        """,
        "Base.__subclasses__()[-1].k",
    ),
    "documentation read as data": (
        """
        def f():
            "<<1||2>>"
        """,
        "f.__doc__",
    ),
    "annotations read as data": (
        """
        class D:
            k: int
        D.__annotations__["k"] = <<int||float>>
        """,
        "str(D.__annotations__['k'])",
    ),
    "globals of a function": (
        """
        def f(): return K
        K = <<1||2>>
        """,
        "f.__globals__['K']",
    ),
    "text that is run": (
        """
        K = <<1||2>>
        """,
        "eval('K')",
    ),
    "registry filled by a base": (
        """
        KNOWN = {}
        class Base:
            def __init_subclass__(cls): KNOWN[cls.__name__] = cls
        class A(Base):
            k = <<1||2>>
        """,
        "KNOWN['A'].k",
    ),
    "NumPy function patched": (
        """
        import numpy as np
        def tanh(x): return <<1||2>>
        np.tanh = tanh
        """,
        "np.tanh(0)",
    ),
    "NumPy function replaced by another": (
        """
        import numpy as np
        np.tanh = <<np.sinh||np.cosh>>
        """,
        "float(np.tanh(1))",
    ),
    "function of Python patched": (
        """
        import math
        math.tanh = lambda x: <<1||2>>
        """,
        "math.tanh(0)",
    ),
    "patched function imported by name": (
        """
        import numpy as np
        np.tanh = lambda x: <<1||2>>
        from numpy import tanh
        """,
        "tanh(0)",
    ),
    "patched function of a submodule": (
        """
        import numpy as np
        np.linalg.norm = lambda x: <<1||2>>
        """,
        "np.linalg.norm([0])",
    ),
    "method of an installed class patched": (
        """
        from fractions import Fraction
        Fraction.limit_denominator = lambda self: <<1||2>>
        """,
        "Fraction(1, 3).limit_denominator()",
    ),
    "method of an installed base patched": (
        """
        from string import Template
        Template.safe_substitute = lambda self: <<1||2>>
        class Text(Template): pass
        """,
        "Text('').safe_substitute()",
    ),
    "method of an unnamed class patched": (
        """
        import fractions, torch
        torch.Tensor.relu = lambda self: <<1||2>>
        """,
        "torch.zeros(1).relu()",
    ),
    "constant of an installed module set": (
        """
        import math
        math.pi = <<3||4>>
        """,
        "math.pi",
    ),
    "attribute of an installed module set by name": (
        """
        import math
        setattr(math, "pi", <<3||4>>)
        """,
        "math.pi",
    ),
}
"""Names found at run time, and installed packages that a program changes."""
