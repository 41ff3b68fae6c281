"""Suggestions that a function may still make after the place at which its drawing has ended."""

from __future__ import annotations

import dis
import inspect
from bisect import bisect_right
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Final

SUGGESTIONS: Final = frozenset({"suggest_float", "suggest_int", "suggest_categorical"})

_JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})
_LAST: Final = ("RETURN", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
"""Prefixes of the names of instructions after which the next instruction does not run."""


def later_suggestion(trace: TracebackType | None, own_file: str) -> str | None:
    """Return a place, as ``file:line``, that suggests and may be reached after an exception.

    None if there is no such place. It must be in a function that the exception has passed, or in
    one that such a function calls by its name. Functions of `own_file` do not count.
    """
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename != own_file:
            for instruction, line in _reachable(frame.f_code, trace.tb_lasti):
                if _suggests(instruction, frame):
                    return f"{frame.f_code.co_filename}:{line}"
        trace = trace.tb_next
    return None


def _reachable(code: CodeType, start: int) -> Iterator[tuple[dis.Instruction, int]]:
    """Yield the instructions that may run after the one at `start`, each with its line."""
    instructions = list(dis.get_instructions(code))
    places = {instruction.offset: place for place, instruction in enumerate(instructions)}
    waiting, seen = [bisect_right([*places], start)], set[int]()
    while waiting:
        place = waiting.pop()
        if place in seen or place >= len(instructions):
            continue
        seen.add(place)
        instruction = instructions[place]
        positions = instruction.positions
        yield instruction, (positions.lineno if positions else None) or code.co_firstlineno
        if instruction.opcode in _JUMPS and instruction.argval in places:
            waiting.append(places[instruction.argval])
        if not instruction.opname.startswith(_LAST):
            waiting.append(place + 1)


def _suggests(instruction: dis.Instruction, frame: FrameType) -> bool:
    """Return whether an instruction suggests, or takes a function that does."""
    named = instruction.argval
    if isinstance(named, CodeType):
        return _has_suggestion(named)
    for name in named if isinstance(named, tuple) else (named,):
        if name in SUGGESTIONS and isinstance(name, str):
            return True
        if isinstance(name, str) and instruction.opname.startswith("LOAD"):
            value = frame.f_locals.get(name, frame.f_globals.get(name))
            if inspect.isfunction(value) and _has_suggestion(value.__code__):
                return True
    return False


def _has_suggestion(code: CodeType) -> bool:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return bool(SUGGESTIONS & set(code.co_names)) or any(map(_has_suggestion, inner))
