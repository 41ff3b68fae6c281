"""Scripts that would run themselves again in each process that they start."""

from __future__ import annotations

import ast
import sys
from pathlib import Path


def guard_problem() -> str | None:
    """Return the problem of a script that starts processes outside of a main guard, if any.

    Each new process imports the script first: without a guard it would begin the study again, and
    Python ends it with a long traceback from each process.
    """
    main = sys.modules.get("__main__")
    path = Path(getattr(main, "__file__", None) or "")
    line = _line_in(vars(main)) if main is not None and path.suffix == ".py" else None
    if line is None or not path.is_file() or _is_guarded(path.read_text(errors="replace"), line):
        return None
    return (
        f"{path}, line {line} must stand below a main guard, since the workers' processes "
        "import this file:\n"
        '    if __name__ == "__main__":\n'
        "        study.optimize(...)"
    )


def _line_in(names: dict[str, object]) -> int | None:
    """Return the line of a script's top level that runs now, if it does."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_name == "<module>":
            return frame.f_lineno
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _is_guarded(source: str, line: int) -> bool:
    """Return whether a line stands in an ``if`` that asks for ``__name__``."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return True  # it runs, so it has been changed since
    return any(
        isinstance(each, ast.If)
        and each.lineno <= line <= (each.end_lineno or each.lineno)
        and any(
            isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(each.test)
        )
        for each in statements
    )
