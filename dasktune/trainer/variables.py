"""The variables of a training function while it pauses, and the objects in them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, GeneratorType
from typing import Any

from dasktune.errors import ConfigurationError, StateError
from dasktune.trainer import attributes
from dasktune.trainer.fingerprint.installed import is_installed_name
from dasktune.trainer.generators import is_generator
from dasktune.trainer.optional_torch import torch


class Variables(Mapping[str, Any]):
    """The variables of a function that pauses, and of the functions through which it pauses.

    The loop may stand in a function that the training function calls, or go through an iterator
    such as a progress bar. Variables of other packages are left out. The values are read from
    the function when they are asked for, and are not held: a batch would stay in memory until
    the end of the next step.

    Parameters
    ----------
    hidden
        An object that is left out: to look into the run is to use its values.
    """

    def __init__(self, home: str = "", hidden: object = None) -> None:
        self._home = home.partition(".")[0]
        # Not held: it holds these variables, and both would live until the garbage collection.
        self._hidden = None if hidden is None else weakref.ref(hidden)
        self._frames: tuple[FrameType, ...] = ()

    def look_from(self, frame: FrameType | None, above: str) -> None:
        """Show the variables of the calls from `frame` up to those of the module `above`."""
        frames = []
        while frame is not None and (module := _module_of(frame)) != above:
            if module.partition(".")[0] == self._home or not is_installed_name(
                module.partition(".")[0]
            ):
                frames.append(frame)
            frame = frame.f_back
        self._frames = tuple(frames)

    @property
    def frames(self) -> tuple[FrameType, ...]:
        """The paused calls, the innermost first."""
        return self._frames

    def end(self) -> None:
        """Show no variables: the function has ended, and its frames would keep them alive."""
        self._frames = ()

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> dict[str, Any]:
        """Return the variables by name; of two with one name, one has that of its function."""
        values: dict[str, Any] = {}
        hidden = None if self._hidden is None else self._hidden()
        for frame in self._frames:
            local = frame.f_locals
            for name, value in local.items():
                if hidden is not None and value is hidden:
                    continue
                values[name if name not in values else f"{frame.f_code.co_name}.{name}"] = value
            if isinstance(local, dict):
                # Before Python 3.13 it is a copy that the frame keeps.
                local.clear()
        return values


def refuse_untracked(
    variables: Mapping[str, Any], known: Iterable[Any], other: object, *, is_first: bool
) -> None:
    """Raise an error if a variable holds an object whose state would be lost.

    Parameters
    ----------
    known
        The objects that are tracked, and those that never change.
    other
        An object whose contents do not count: the run.
    is_first
        Whether no step has been trained. What a step makes anew is lost by intent, so from then
        on neither iterators nor the contents of objects count.

    Raises
    ------
    ConfigurationError
        If there is an object that could be tracked. The first check of a trainer ends the run.
    StateError
        If there is an iterator, or a loader whose position cannot be saved.
    """
    own, seen = _ids_within(known), {id(other)}
    for name, value in variables.items():
        for path, item in attributes.items_within(name, value, seen):
            if id(item) in own:
                continue
            if getattr(item, "persistent_workers", False) is True:
                raise StateError(
                    path,
                    "the position of a DataLoader with persistent_workers=True cannot be saved; "
                    "use run.loader(DataLoader(...)), or persistent_workers=False",
                )
            is_within = "." in path.removeprefix(name)
            if is_within and not is_first:
                continue
            if attributes.is_object(item) and _has_state(item):
                raise ConfigurationError(
                    f"{path}, a {type(item).__name__}, has a state that would be lost: call "
                    f"run.track({path}) before the loop, or run.keep_fixed({path}) if it never "
                    "changes or each step makes it anew"
                )
            if is_first and not is_within and isinstance(item, Iterator) and _has_position(item):
                raise StateError(
                    path,
                    f"the position of a {type(item).__name__} cannot be saved; draw batches from "
                    "run.loader, or make the iterator in the step",
                )


def _ids_within(known: Iterable[Any]) -> set[int]:
    """Return the ids of objects, of their parts, and of the parts of modules."""
    ids: set[int] = set()
    for item in known:
        for _, part in attributes.items_within("", item, set()):
            modules = part.modules() if isinstance(part, torch.nn.Module) else ()
            is_prepared = attributes.is_prepared(part)
            inner = attributes.within_prepared(part).values() if is_prepared else ()
            ids |= {id(part), *map(id, modules), *map(id, inner)}
    return ids


def _has_state(item: Any) -> bool:
    """Return whether there is anything to lose: a loss function is a module without a state."""
    if is_generator(item) or attributes.is_prepared(item):
        return True
    return bool(item.state_dict())


def _has_position(item: Iterator[Any]) -> bool:
    """Return whether an iterator is neither a file nor the loop over the steps itself."""
    if isinstance(item, GeneratorType):
        return not item.gi_running
    return not attributes.is_file(item)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
