"""A notebook for tests: a module whose code comes in cells, which may be edited and run again."""

from __future__ import annotations

import ast
import linecache
from itertools import count
from textwrap import dedent
from types import ModuleType
from typing import Any

_NUMBERS = count(1)


class Notebook:
    """Runs cells in one namespace, as IPython does: each run has a file name of its own.

    Parameters
    ----------
    module
        In `sys.modules` under its name.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def run(self, text: str) -> None:
        """Run a cell."""
        text, name = dedent(text), f"<ipython-input-{next(_NUMBERS)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        for statement in ast.parse(text).body:  # each is compiled alone
            alone = ast.Module(body=[statement], type_ignores=[])
            exec(compile(alone, name, "exec", dont_inherit=True), vars(self._module))
