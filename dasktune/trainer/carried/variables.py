"""The variables of a training function that its later steps need: found, saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType, FrameType
from typing import Any, Protocol

from dasktune.errors import StateError
from dasktune.trainer.carried.frames import PausedCall, Scope, refuse_hidden_positions, scopes_of
from dasktune.trainer.carried.kinds import kind_of
from dasktune.trainer.carried.loops import Loop
from dasktune.trainer.carried.originals import Originals
from dasktune.trainer.carried.packing import UNBOUND, Packer, UnpackableError, is_unbound, paths_in
from dasktune.trainer.carried.places import SavedParts, users_of_memory
from dasktune.trainer.carried.positions import PausePositions, Record
from dasktune.trainer.carried.refusals import refusal, refuse_opaque, refuse_unbound
from dasktune.trainer.carried.restoring import Restorer, object_at


class _Run(Protocol):
    """The part of a run that its variables may hold."""

    device: str
    state: dict[str, Any]
    tracked: dict[str, Any]
    fixed: list[Any]


class _NoRun:
    """The run of a function that has ended."""

    device = "cpu"

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.tracked: dict[str, Any] = {}
        self.fixed: list[Any] = []


class LoopVariables:
    """The variables that a state holds beside the tracked objects.

    Parameters
    ----------
    frames
        Returns the calls in which the function pauses, the innermost first.

    Attributes
    ----------
    is_memo
        Returns whether a variable of a name is a cache of what the code computes from its keys.
    is_made_empty
        Returns whether the arrays in a variable of a name are made without contents.
    """

    def __init__(self, run: _Run, frames: Callable[[], Sequence[FrameType]]) -> None:
        self.is_memo: Callable[[str], bool] = lambda name: False
        self.is_made_empty: Callable[[str], bool] = lambda name: False
        self._run: _Run = run
        self._frames = frames
        self._loops: dict[tuple[CodeType, int], Loop] = {}
        self._originals = Originals(SavedParts({}, {}), self._is_left_out)
        self._bound: set[tuple[str, str]] = set()
        self._positions = PausePositions()

    def begin(self) -> None:
        """Note what the variables are before the first step.

        Raises
        ------
        TrainerError
            If a step depends on a position that Python hides, such as that of ``enumerate``.
        """
        refuse_hidden_positions(self._frames())
        self._positions.begin(self._frames(), self._places)
        self._originals = Originals(self._places(), self._is_left_out)
        for scope in self._scopes():
            for name, value in scope.values().items():
                self._bound.add((scope.label, name))
                if name not in scope.loop.drops:
                    path = (scope.label, name)
                    self._originals.add(path, value, is_rebound=name in scope.loop.carries)
                    if self.is_made_empty(name):
                        self._originals.note_empty(path)

    def end(self) -> None:
        """Forget all: the function has ended, and its objects would live on."""
        self._frames = tuple
        self._originals = Originals(SavedParts({}, {}), self._is_left_out)
        self._positions = PausePositions()
        self._run = _NoRun()

    def saved(self, *, is_first: bool = False) -> dict[str, dict[str, Any]]:
        """Return the nodes of the variables that later steps need, by scope and name.

        Parameters
        ----------
        is_first
            Whether the function has just begun: then a carried variable that no state can hold
            is refused although it has not changed yet.

        Raises
        ------
        StateError
            If no state can hold one.
        """
        scopes, places = self._scopes(), self._places()
        users = cache(lambda: users_of_memory(_needed(scopes)))
        packer = Packer(
            self._originals,
            places,
            type_named=lambda name: _type_named(name, scopes),
            users_at=lambda address: users().get(address, []),
            is_on_cpu=self._run.device == "cpu",
        )
        nodes = {
            scope.label: dict(self._nodes(scope, packer, places, is_first=is_first))
            for scope in scopes
        }
        return {label: by_name for label, by_name in nodes.items() if by_name}

    def position(self) -> list[Record]:
        """Return where the function pauses; empty if it can pause nowhere else."""
        return self._positions.record(self._frames(), self._places)

    def refuse_other_position(self, saved: Sequence[Record]) -> None:
        """Raise an error if a state was saved elsewhere in the function than it pauses now.

        Raises
        ------
        StateError
            If it was: the variables of a paused call can be set, but not its place.
        """
        self._positions.refuse_others(saved, self._frames(), self._places)

    def dropped(self) -> dict[str, frozenset[str]]:
        """Return the variables that no later step needs, by scope: each step sets them first.

        Times are among them.
        """
        return {scope.label: scope.loop.drops for scope in self._scopes()}

    def restore(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Write saved variables into the paused function.

        Raises
        ------
        StateError
            If the function pauses elsewhere, or did not make an object that the state needs.
        """
        scopes = {scope.label: scope for scope in self._scopes()}
        if unknown := saved.keys() - scopes.keys():
            raise StateError(
                f"state['variables'][{min(unknown)!r}]",
                f"the function pauses elsewhere: in {', '.join(sorted(scopes))}",
            )
        now = {(s.label, n): value for s in scopes.values() for n, value in s.values().items()}
        before = {path: object_at(path, now) for path in paths_in(dict(saved))}
        restorer = Restorer(
            before,
            self._places(),
            type_named=lambda name: _type_named(name, scopes.values()),
            device=self._run.device,
        )
        for label, nodes in saved.items():
            bound = {n: node for n, node in nodes.items() if not is_unbound(node)}
            values = {name: restorer.value(node) for name, node in bound.items()}
            scopes[label].write(values, nodes.keys() - values.keys())

    def _nodes(
        self, scope: Scope, packer: Packer, places: SavedParts, *, is_first: bool
    ) -> Iterator[tuple[str, Any]]:
        values = scope.values()
        for name, value in values.items():
            is_carried = name in scope.loop.carries
            if self._is_left_out(value) or name in scope.loop.drops:
                continue
            path = (scope.label, name)
            is_changed = self._originals.is_changed(path, value, places)
            is_needed = is_changed or (is_carried and kind_of(value) not in ("object", "other"))
            if not is_needed and is_carried and is_first and places.of(value) is None:
                refuse_opaque(scope, name, value)
            if not is_needed:
                continue
            try:
                yield name, packer.node(value)
            except UnpackableError as error:
                if name in scope.loop.perhaps and path not in self._originals:
                    continue  # without it, such a read is an error: the variable is not bound
                if self.is_memo(name):
                    continue  # it is filled again
                raise refusal(scope, name, value, error) from error
        for name in scope.loop.carries:
            if name not in values and (scope.label, name) in self._bound:
                refuse_unbound(scope, name)
                yield name, UNBOUND

    def _scopes(self) -> list[Scope]:
        return scopes_of(self._frames(), self._loops)

    def _places(self) -> SavedParts:
        return SavedParts(self._run.state, self._run.tracked)

    def _is_left_out(self, value: Any) -> bool:
        return value is self._run or any(value is fixed for fixed in self._run.fixed)


def _needed(scopes: Iterable[Scope]) -> Iterator[Any]:
    """Yield the values of the variables that a later step does not set first."""
    for scope in scopes:
        yield from (value for n, value in scope.values().items() if n not in scope.loop.drops)


def _type_named(name: str, scopes: Iterable[Scope]) -> type | None:
    """Return the class that the function names so, or None."""
    for scope in scopes:
        if isinstance(scope, PausedCall):
            known = scope.values().get(name, scope.frame.f_globals.get(name))
            if isinstance(known, type):
                return known
    return None
