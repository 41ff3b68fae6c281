"""Changes of classes and instances that change a training."""

from __future__ import annotations

MEMBERS: dict[str, str | tuple[str, str]] = {
    "class attribute set after the class": """
        class Net:
            k = 0
            def train(self): return self.k
        Net.k = <<1||2>>
        """,
    "class attribute of a helper set after the class": """
        class Sizes:
            k = 0
        class Net:
            def train(self): return Sizes.k
        Sizes.k = <<1||2>>
        """,
    "class attribute set in a loop": """
        class Net:
            def train(self): return self.a + self.b
        for name, value in {"a": 1, "b": <<1||2>>}.items():
            setattr(Net, name, value)
        """,
    "class attribute of a base set after the class": """
        class Base:
            k = 0
        class Net(Base):
            def train(self): return self.k
        Base.k = <<1||2>>
        """,
    "class attribute of a nested class set after the class": """
        class Net:
            class Sizes:
                k = 0
            def train(self): return self.Sizes.k
        Net.Sizes.k = <<1||2>>
        """,
    "class attribute computed from a list that changed": """
        SIZES = [<<1||1, 2>>]
        class Net:
            k = len(SIZES)
            def train(self): return self.k
        SIZES.clear()
        """,
    "class attribute computed from a name that was rebound": """
        K = <<1||2>>
        class Net:
            k = K
            def train(self): return self.k
        K = 0
        """,
    "class attribute computed from a name that was deleted": """
        K = <<1||2>>
        class Net:
            k = 2 * K
            def train(self): return self.k
        del K
        """,
    "class attribute deleted after the class": """
        class Base:
            k = 0
        class Net(Base):
            k = 1
            def train(self): return self.k
        <<del Net.k||>>
        """,
    "list in a class that grew": """
        class Net:
            k = [1]
            def train(self): return self.k
        Net.k.append(<<1||2>>)
        """,
    "dict in a class that changed": """
        class Net:
            k = {"a": 1}
            def train(self): return self.k
        Net.k["a"] = <<1||2>>
        """,
    "array in a class that changed": """
        import numpy as np
        class Net:
            k = np.zeros(2)
            def train(self): return self.k.tolist()
        Net.k[0] = <<1||2>>
        """,
    "tensor in a class that changed": """
        import torch
        class Net:
            k = torch.zeros(2)
            def train(self): return self.k.tolist()
        Net.k[0] = <<1||2>>
        """,
    "instance in a class that changed": """
        class Size:
            k = 0
        class Net:
            size = Size()
            def train(self): return self.size.k
        Net.size.k = <<1||2>>
        """,
    "method replaced after the class": """
        class Net:
            def train(self): return 0
        def train(self): return <<1||2>>
        Net.train = train
        """,
    "method replaced by a lambda": """
        class Net:
            def train(self): return self.k()
            def k(self): return 0
        Net.k = lambda self: <<1||2>>
        """,
    "method replaced by a method of another class": """
        class Other:
            def a(self): return 1
            def b(self): return 2
        class Net:
            def train(self): return 0
        Net.train = Other.<<a||b>>
        """,
    "method wrapped after the class": """
        def doubled(f):
            def inner(self): return 2 * f(self)
            return inner
        class Net:
            def train(self): return 1
        <<Net.train = doubled(Net.train)||>>
        """,
    "method of a base replaced after the class": """
        class Base:
            def train(self): return 0
        class Net(Base): pass
        def train(self): return <<1||2>>
        Base.train = train
        """,
    "method deleted after the class": """
        class Base:
            def train(self): return 0
        class Net(Base):
            def train(self): return 1
        <<del Net.train||>>
        """,
    "static method replaced after the class": """
        class Net:
            @staticmethod
            def k(): return 0
            def train(self): return self.k()
        Net.k = staticmethod(lambda: <<1||2>>)
        """,
    "static and class method of one function": """
        class Net:
            def train(self): return self.f()
        def f(*given): return len(given)
        Net.f = <<static||class>>method(f)
        """,
    "property replaced after the class": """
        class Net:
            k = property(lambda self: 0)
            def train(self): return self.k
        Net.k = property(lambda self: <<1||2>>)
        """,
    "setter of a property": """
        def get(self): return self.x
        def one(self, value): self.x = value
        def two(self, value): self.x = 2 * value
        class Net:
            k = property(get, <<one||two>>)
            def train(self):
                self.k = 1
                return self.k
        """,
    "cached property of a function made by a call": """
        from functools import cached_property
        def make(k): return lambda self: k
        class Net:
            def train(self): return self.k
        Net.k = cached_property(make(<<1||2>>))
        Net.k.__set_name__(Net, "k")
        """,
    "partial method": """
        from functools import partialmethod
        K = <<1||2>>
        class Net:
            def f(self, k): return k
            g = partialmethod(f, K)
            def train(self): return self.g()
        K = 0
        """,
    "method registered with a dispatching method": """
        from functools import singledispatchmethod
        class Net:
            @singledispatchmethod
            def f(self, x): return 0
            def train(self): return self.f(1)
        @Net.f.register
        def _(self, x: int): return <<1||2>>
        """,
    "descriptor with a state": """
        class Given:
            def __init__(self, k): self.k = k
            def __get__(self, thing, kind=None): return self.k
        K = <<1||2>>
        class Net:
            k = Given(K)
            def train(self): return self.k
        del K
        """,
    "attribute that a class decorator sets": """
        def with_k(k):
            def inner(kind):
                kind.k = k
                return kind
            return inner
        K = <<1||2>>
        @with_k(K)
        class Net:
            def train(self): return self.k
        K = 0
        """,
    "attribute that a metaclass sets": """
        K = <<1||2>>
        class Meta(type):
            def __init__(cls, name, bases, members):
                super().__init__(name, bases, members)
                cls.k = globals()["K"]
        class Net(metaclass=Meta):
            def train(self): return self.k
        del K
        """,
    "attribute that __init_subclass__ sets": """
        class Base:
            def __init_subclass__(cls, k): cls.k = k
        K = <<1||2>>
        class Net(Base, k=K):
            def train(self): return self.k
        K = 0
        """,
    "attribute of a metaclass": """
        class Meta(type):
            k = 0
        class Net(metaclass=Meta):
            def train(self): return type(self).k
        Meta.k = <<1||2>>
        """,
    "bases set after the class": """
        class A:
            k = 1
        class B:
            k = 2
        class Net(A):
            def train(self): return self.k
        Net.__bases__ = (<<A||B>>,)
        """,
    "order of bases": """
        class A:
            k = 1
        class B:
            k = 2
        class Net(<<A, B||B, A>>):
            def train(self): return self.k
        """,
    "call of an object set after the class": """
        class F:
            def __call__(self): return 0
        class Net:
            def train(self): return F()()
        F.__call__ = lambda self: <<1||2>>
        """,
    "call of a class that a call made": """
        F = type("F", (), {"__call__": lambda self: <<1||2>>})
        class Net:
            def train(self): return F()()
        """,
    "attribute with a dunder name": """
        class Net:
            def train(self): return self.__size__
        Net.__size__ = <<1||2>>
        """,
    "constructor replaced after the class": """
        class Net:
            def __init__(self): self.k = 0
            def train(self): return self.k
        def __init__(self): self.k = <<1||2>>
        Net.__init__ = __init__
        """,
    "default of a data class from a name that was rebound": """
        from dataclasses import dataclass
        K = <<1||2>>
        @dataclass
        class D:
            k: int = K
        K = 0
        class Net:
            def train(self): return D().k
        """,
    "factory of a data class from a name that was rebound": """
        from dataclasses import dataclass, field
        def make(k): return lambda: [k]
        F = make(<<1||2>>)
        @dataclass
        class D:
            k: list = field(default_factory=F)
        del F
        class Net:
            def train(self): return D().k
        """,
    "defaults of a data class's constructor": """
        from dataclasses import dataclass
        @dataclass
        class D:
            k: int = 0
        D.__init__.__defaults__ = (<<1||2>>,)
        class Net:
            def train(self): return D().k
        """,
    "data class made by hand": """
        from dataclasses import dataclass
        class D:
            k: int = 0
        D = dataclass(order=<<True||False>>)(D)
        class Net:
            def train(self): return hasattr(D, "__lt__") and "__lt__" in vars(D)
        """,
    "order of a data class's fields": """
        from dataclasses import dataclass
        @dataclass
        class D:
            <<a: int = 1; b: int = 2||b: int = 2; a: int = 1>>
        class Net:
            def train(self): return D(3).a
        """,
    "value of an enumeration from a name that was rebound": """
        from enum import Enum
        K = <<1||2>>
        class E(Enum):
            A = K
        K = 0
        class Net:
            def train(self): return E.A.value
        """,
    "method of an enumeration replaced": """
        from enum import Enum
        class E(Enum):
            A = 1
            def f(self): return 0
        E.f = lambda self: <<1||2>>
        class Net:
            def train(self): return E.A.f()
        """,
    "defaults of a named tuple": """
        from collections import namedtuple
        P = namedtuple("P", "a", defaults=[0])
        P.__new__.__defaults__ = (<<1||2>>,)
        class Net:
            def train(self): return P().a
        """,
    "method of a named tuple": """
        from typing import NamedTuple
        class P(NamedTuple):
            a: int = 0
            def f(self): return 0
        P.f = lambda self: <<1||2>>
        class Net:
            def train(self): return P().f()
        """,
    "two defs of one name in a class": """
        class Net:
            <<def train(self): return 1||def train(self): return 2>>
            <<def train(self): return 2||def train(self): return 1>>
        """,
    "slot with a mangled name": (
        """
        class A:
            __slots__ = ("__k",)
            def __init__(self, k): self.__k = k
            def k(self): return self.__k
        THING = A(<<1||2>>)
        """,
        "THING.k()",
    ),
    "slot of a base with a mangled name": (
        """
        class _A:
            __slots__ = "__k"
            def __init__(self, k): self.__k = k
            def k(self): return self.__k
        class B(_A):
            __slots__ = ()
        THING = B(<<1||2>>)
        """,
        "THING.k()",
    ),
    "slots from an iterator": (
        """
        class A:
            __slots__ = [name for name in ("k",)]
            def __init__(self, k): self.k = k
        A.__slots__.clear()
        THING = A(<<1||2>>)
        """,
        "THING.k",
    ),
    "attribute with a mangled name": (
        """
        class A:
            def __init__(self, k): self.__k = k
            def k(self): return self.__k
        THING = A(<<1||2>>)
        """,
        "THING.k()",
    ),
    "bound method of an instance": (
        """
        class A:
            def __init__(self, k): self.k = k
            def f(self): return self.k
        f = A(<<1||2>>).f
        """,
        "f()",
    ),
    "function in an instance": (
        """
        class A: pass
        THING = A()
        THING.f = lambda: <<1||2>>
        """,
        "THING.f()",
    ),
    "instance of a kind of dict": (
        """
        class M(dict): pass
        THING = M(a=1)
        THING.k = <<1||2>>
        """,
        "THING.k",
    ),
}
