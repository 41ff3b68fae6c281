"""Suggestions that a function may still make after the place at which its drawing may end."""

from __future__ import annotations

import dis
import inspect
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Final

SUGGESTIONS: Final = frozenset({"suggest_float", "suggest_int", "suggest_categorical"})

_JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})
_LAST: Final = ("RETURN", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
"""Prefixes of the names of instructions after which the next instruction does not run."""

Place = tuple[FrameType, int]
"""A frame, and the offset of the instruction that it has come to."""


def passed(trace: TracebackType | None, own_file: str) -> Iterator[Place]:
    """Yield the places that an exception has passed, without those in `own_file`."""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != own_file:
            yield trace.tb_frame, trace.tb_lasti
        trace = trace.tb_next


def above(frame: FrameType | None, own_file: str) -> Iterator[Place]:
    """Yield the places from a frame outwards, up to the first frame of `own_file`."""
    while frame is not None and frame.f_code.co_filename != own_file:
        yield frame, frame.f_lasti
        frame = frame.f_back


def later_suggestion(places: Iterable[Place], known: Collection[str]) -> str | None:
    """Return the ``file:line`` of a suggestion that may follow a place; None without one.

    Searched are the functions of these places, and the functions that they call by name.
    Repeated suggestions, of names in `known`, do not count.
    """
    for frame, last in places:
        instructions = list(dis.get_instructions(frame.f_code))
        for at in _reachable(instructions, last):
            if _suggests(instructions, at, frame, known):
                positions = instructions[at].positions
                line = (positions.lineno if positions else None) or frame.f_code.co_firstlineno
                return f"{frame.f_code.co_filename}:{line}"
    return None


def _reachable(instructions: Sequence[dis.Instruction], start: int) -> Iterator[int]:
    """Yield the indices of the instructions that may run after the one at offset `start`."""
    places = {instruction.offset: place for place, instruction in enumerate(instructions)}
    waiting, seen = [bisect_right([*places], start)], set[int]()
    while waiting:
        place = waiting.pop()
        if place in seen or place >= len(instructions):
            continue
        seen.add(place)
        yield place
        instruction = instructions[place]
        if instruction.opcode in _JUMPS and instruction.argval in places:
            waiting.append(places[instruction.argval])
        if not instruction.opname.startswith(_LAST):
            waiting.append(place + 1)


def _suggests(
    instructions: Sequence[dis.Instruction], at: int, frame: FrameType, known: Collection[str]
) -> bool:
    """Return whether an instruction suggests, or takes a function that does."""
    named = instructions[at].argval
    if isinstance(named, CodeType):
        return _has_suggestion(named, known)
    if _is_suggestion(instructions, at, known):
        return True
    for name in named if isinstance(named, tuple) else (named,):
        if isinstance(name, str) and instructions[at].opname.startswith("LOAD"):
            value = frame.f_locals.get(name, frame.f_globals.get(name))
            if inspect.isfunction(value) and _has_suggestion(value.__code__, known):
                return True
    return False


def _is_suggestion(
    instructions: Sequence[dis.Instruction], at: int, known: Collection[str]
) -> bool:
    """Return whether an instruction takes a method that suggests, but for a name in `known`."""
    named, after = instructions[at].argval, instructions[at + 1 : at + 2]
    if not isinstance(named, str) or named not in SUGGESTIONS:
        return False
    return not any(each.opname == "LOAD_CONST" and each.argval in known for each in after)


def _has_suggestion(code: CodeType, known: Collection[str]) -> bool:
    instructions = list(dis.get_instructions(code))
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return any(_is_suggestion(instructions, at, known) for at in range(len(instructions))) or any(
        _has_suggestion(each, known) for each in inner
    )
