"""Changes outside of definitions: settings of the process, files, caches, written globals."""

from __future__ import annotations

_SETTINGS: dict[str, tuple[str, str, str, str]] = {
    "default type of torch": (
        "import torch",
        "torch.set_default_dtype(torch.float32)",
        "torch.set_default_dtype(torch.float64)",
        "str(torch.zeros(1).dtype)",
    ),
    "precision of matrix products": (
        "import torch",
        "torch.set_float32_matmul_precision('highest')",
        "torch.set_float32_matmul_precision('high')",
        "torch.get_float32_matmul_precision()",
    ),
    "deterministic algorithms": (
        "import torch",
        "torch.use_deterministic_algorithms(False)",
        "torch.use_deterministic_algorithms(True)",
        "torch.are_deterministic_algorithms_enabled()",
    ),
    "deterministic algorithms that warn": (
        "import torch",
        "torch.use_deterministic_algorithms(True)",
        "torch.use_deterministic_algorithms(True, warn_only=True)",
        "torch.is_deterministic_algorithms_warn_only_enabled()",
    ),
    "gradients": (
        "import torch",
        "torch.set_grad_enabled(True)",
        "torch.set_grad_enabled(False)",
        "torch.is_grad_enabled()",
    ),
    "default device": (
        "import torch",
        "torch.set_default_device('cpu')",
        "torch.set_default_device('meta')",
        "str(torch.zeros(1).device)",
    ),
    "search of convolutions": (
        "import torch\nnamed = torch.backends.cudnn",
        "pass",
        "setattr(torch.backends.cudnn, 'benchmark', True)",
        "torch.backends.cudnn.benchmark",
    ),
    "errors of NumPy": (
        "import numpy as np",
        "np.seterr(under='ignore')",
        "np.seterr(under='raise')",
        "np.geterr()['under']",
    ),
    "precision of decimals": (
        "import decimal",
        "decimal.getcontext().prec = 10",
        "decimal.getcontext().prec = 11",
        "str(decimal.Decimal(1) / 3)",
    ),
    "rounding of decimals": (
        "import decimal",
        "pass",
        "decimal.getcontext().rounding = 'ROUND_UP'",
        "str(round(decimal.Decimal('0.5') + 0, 0) + decimal.Decimal(1) / 3)",
    ),
    "seed of NumPy": (
        "import numpy as np",
        "np.random.seed(1)",
        "np.random.seed(2)",
        "float(np.random.rand())",
    ),
    "seed of Python": ("import random", "random.seed(1)", "random.seed(2)", "random.random()"),
    "seed of torch": (
        "import torch",
        "torch.manual_seed(1)",
        "torch.manual_seed(2)",
        "float(torch.rand(1))",
    ),
    "threads of torch": (
        "import torch",
        "torch.set_num_threads(1)",
        "torch.set_num_threads(2)",
        "torch.get_num_threads()",
    ),
}
"""By name: preparation, two statements, and what is shown."""

_BESIDE = "from pathlib import Path\nHERE = Path(__file__).parent\n"

_READS: dict[str, tuple[str, str]] = {
    "by open": ("", "open(HERE / 'c.txt').read()"),
    "by open with a mode": ("", "open(HERE / 'c.txt', 'rt').read()"),
    "by open with a named mode": ("", "open(HERE / 'c.txt', mode='rb').read()"),
    "by a path": ("", "(HERE / 'c.txt').read_text()"),
    "by bytes of a path": ("", "(HERE / 'c.txt').read_bytes()"),
    "by open of a path": ("", "(HERE / 'c.txt').open().read()"),
    "by a constant": ("NAME = HERE / 'c.txt'", "open(NAME).read()"),
    "by a constant text": ("NAME = str(HERE / 'c.txt')", "open(NAME).read()"),
    "by a joined text": ("import os", "open(os.path.join(HERE, 'c.txt')).read()"),
    "by a sum of texts": ("NAME = str(HERE)", "open(NAME + '/c.txt').read()"),
    "by the place of the file": (
        "import os",
        "open(os.path.join(os.path.dirname(__file__), 'c.txt')).read()",
    ),
    "by the parent of the file": ("", "(Path(__file__).parent / 'c.txt').read_text()"),
    "by its resolved place": ("", "(Path(__file__).resolve().parent / 'c.txt').read_text()"),
    "as JSON": ("import json", "json.load(open(HERE / 'c.txt'))"),
    "as an array": ("import numpy as np", "float(np.loadtxt(HERE / 'c.txt'))"),
    "by an attribute of a class": (
        "class Paths: TEXT = str(HERE / 'c.txt')",
        "open(Paths.TEXT).read()",
    ),
    "in a function": (
        "def read():\n    with open(HERE / 'c.txt') as file:\n        return file.read()",
        "read()",
    ),
}
"""By name: preparation, and what is shown of a file beside the program."""

PROCESS: dict[str, str | tuple[str, str]] = {
    **{
        f"setting: {name}": (f"{head}\n<<{first}||{second}>>\n", shown)
        for name, (head, first, second, shown) in _SETTINGS.items()
    },
    **{
        f"file: {name}": (f"{_BESIDE}{head}\n(HERE / 'c.txt').write_text('<<1||2>>')\n", shown)
        for name, (head, shown) in _READS.items()
    },
    "file: by a helper that is given the name": (
        f"{_BESIDE}(HERE / 'c.txt').write_text('<<1||2>>')\n"
        "def read(path): return open(path).read()\n"
        "NAME = 'c.txt'\n",
        "read(HERE / 'c.txt')",
    ),
    "file: large": (
        f"{_BESIDE}(HERE / 'c.txt').write_text('<<1||2>>' * (1 << 21))\n",
        "(HERE / 'c.txt').read_text()[0]",
    ),
    "file: read at import": (
        f"{_BESIDE}(HERE / 'c.txt').write_text('<<1||2>>')\nK = (HERE / 'c.txt').read_text()\n",
        "K",
    ),
    "default of a data class made by a call": (
        """
        from dataclasses import field, make_dataclass
        D = make_dataclass("D", [("a", int, field(default=<<1||2>>))])
        """,
        "D().a",
    ),
    "default of a class made by a call": (
        """
        import types
        D = types.new_class("D", (), {}, lambda body: body.update(a=<<1||2>>))
        """,
        "D.a",
    ),
    "class registered with an abstract class": (
        """
        from abc import ABC
        class Base(ABC): pass
        class Own: pass
        <<||Base.register(Own)>>
        """,
        "isinstance(Own(), Base)",
    ),
    "first value of a counter": (
        "COUNT = {'n': <<1||2>>}\ndef f():\n    COUNT['n'] += 1\n    return COUNT['n']",
        "f()",
    ),
    "first value of a global that is bound": (
        "N = <<1||2>>\ndef f():\n    global N\n    N += 1\n    return N",
        "f()",
    ),
    "first value of a list that grows": (
        "SEEN = [<<1||2>>]\ndef f():\n    SEEN.append(3)\n    return list(SEEN)",
        "f()",
    ),
    "first value of an array that is filled": (
        "import numpy as np\nA = np.array([<<1||2>>, 0])\n"
        "def f():\n    A[1] = 3\n    return A.tolist()",
        "f()",
    ),
}
"""Changes outside of definitions that change a training."""

UNCHANGED_PROCESS: dict[str, str | tuple[str, str]] = {
    "setting that is the default": (
        "import torch\n<<||torch.set_default_dtype(torch.float32)>>",
        "1",
    ),
    "setting that is taken back": (
        "import numpy as np\n<<||np.seterr(all='raise')\nnp.seterr(all='warn', under='ignore')>>",
        "1",
    ),
    "order of settings": (
        "import decimal, torch\n"
        "<<torch.set_default_dtype(torch.float64)||decimal.getcontext().prec = 5>>\n"
        "<<decimal.getcontext().prec = 5||torch.set_default_dtype(torch.float64)>>\n",
        "1",
    ),
    "print options": ("import numpy as np\n<<||np.set_printoptions(precision=3)>>", "1"),
    "file that is not read": (f"{_BESIDE}(HERE / 'c.txt').write_text('<<1||2>>')\n", "1"),
    "file that is written": (
        f"{_BESIDE}(HERE / 'c.txt').write_text('<<1||2>>')\n",
        "open(HERE / 'c.txt', 'a').close()",
    ),
    "file that is written by a path": (
        f"{_BESIDE}(HERE / 'c.txt').write_text('<<1||2>>')\n",
        "(HERE / 'c.txt').write_text('3')",
    ),
    "file that a command reads": (
        f"{_BESIDE}(HERE / 'c.txt').write_text('<<1||2>>')\n"
        "def show(): return open(HERE / 'c.txt').read()",
        "1",
    ),
    "file read at import, with the same result": (
        f"{_BESIDE}(HERE / 'c.txt').write_text('<<1||2>>')\n"
        "K = len((HERE / 'c.txt').read_text())\n",
        "K",
    ),
    "empty cache": (
        "from functools import lru_cache\n"
        "@lru_cache\n"
        "def f(): return 1\n"
        "<<||f()\nf.cache_clear()>>\n",
        "f()",
    ),
    "unused class registered": (
        """
        from abc import ABC
        class Base(ABC): k = 1
        class Other(ABC): pass
        <<||Other.register(int)>>
        """,
        "Base.k",
    ),
    "text that is no name of a file": ("def f(path): return len(path)", "f('<<a.txt||a.txt>>')"),
}
