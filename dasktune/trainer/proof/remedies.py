"""Which differences after loading decide nothing, and what to write against the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from dasktune.errors import TrainerError
from dasktune.trainer.base import harmless_of, holder_of, is_harmless
from dasktune.trainer.liveness import Liveness
from dasktune.trainer.proof.differences import Difference
from dasktune.trainer.proof.kept import Proof
from dasktune.trainer.proof.proof import Witness
from dasktune.trainer.proof.reach import GENERATOR, ORDER, SETTING, THREAD, VARIABLE
from dasktune.trainer.proof.written_files import FILE

Next = Literal["train", "evaluate"]
"""What a trainer does after loading: it trains a step, or it evaluates the state as it is."""

_VARIABLES = "trainer.variables['"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proving:
    """How a trainer's resumes prove themselves.

    Parameters
    ----------
    owns_process
        Whether nothing else in its process draws from the global random generators.
    proof
        What the trainer that saved the state held beside it; None if that is not known.
    refuses
        Whether a trainer that differs is refused. If not, it gets what the state lacks all the
        same.
    sets_generators
        Whether global generators that a state lacks are set. Where workers are threads, they
        cannot be, so a check does not rely on it.
    """

    owns_process: bool = True
    proof: Proof | None = None
    before: Next = "train"
    refuses: bool = True
    sets_generators: bool = True


def harmless_in_state(trainer_class: type) -> tuple[str, ...]:
    """Return the parts of a state that decide nothing: named by the trainer, unread, and times.

    A `TorchTrainer` saves its attributes by name.
    """
    harmless = harmless_of(trainer_class)
    named = (path.removeprefix("trainer.") for path in harmless if path.startswith("trainer."))
    liveness = Liveness.of(trainer_class)
    names = [*named, *sorted(liveness.decides_nothing)]
    return (
        *harmless,
        *(f"trainer.{name}" for name in names),
        *(f"state['values'][{name!r}]" for name in names),
        *(f"state['variables'][{at!r}][{n!r}]" for at, n in sorted(liveness.timing_variables)),
    )


def deciding(
    witness: Witness, differences: Iterable[Difference], before: Next = "train"
) -> list[Difference]:
    """Return the differences on which a later step may depend.

    The others are named as harmless, or what comes next writes the whole part before anything reads
    it, on every path of the code, or they are in what a cache holds that is computed from its keys
    alone. Before a state is evaluated, it must hold for a step, too:
    the trainer may go on afterwards.
    """
    made = type(witness.trainer)
    harmless = harmless_of(made)
    left = [each for each in differences if not is_harmless(each.path, harmless)]
    if not left:
        return []
    liveness = Liveness.of(made)
    ways: tuple[Next, ...] = ("train",) if before == "train" else ("train", "evaluate")
    cleared = {way: cleared_parameters(witness.trainer, way) for way in ways}
    clears = getattr(made, "clears_gradients", False)
    return [
        each
        for each in left
        if not all(
            (clears and each.path.endswith(".grad"))
            or witness.gradients.get(each.path) in cleared[way]
            or liveness.is_dead(each.path, before=way)
            or liveness.is_time(each.path)
            or liveness.is_unread(each.path)
            or (each.is_of_a_cache and any(map(liveness.is_memo, _containers(each.path))))
            for way in ways
        )
    ]


def refuse_changes_by_state(witness: Witness, before: Proof) -> None:
    """Refuse a trainer whose `state_dict` has changed it.

    Raises
    ------
    TrainerError
        If a later step may depend on what it has changed.
    """
    for way in ("train", "evaluate"):
        changed = deciding(witness, witness.changed_by_state(before), way)
        if changed:
            path = changed[0].path
            raise TrainerError(
                f"state_dict changes {path}, which {changed[0].reason}. States are taken at steps "
                "that other trials decide, so results would depend on these: change a copy; or if "
                f"no result depends on it, name {path!r} in harmless_differences"
            )


def _containers(path: str) -> Iterator[str]:
    """Yield a path, and those of the containers around it: ``x[0][1]``, ``x[0]``, ``x``."""
    path = path.removeprefix("len(").removesuffix(")") if path.startswith("len(") else path
    path = path.removesuffix(ORDER)
    yield path
    while path.endswith("]"):
        path = path[: path.rindex("[")]
        yield path


def cleared_parameters(trainer: Any, before: Next) -> frozenset[int]:
    """Return the ids of the parameters whose gradients are cleared before anything reads them."""
    return frozenset(_cleared(trainer, Liveness.of(type(trainer)).cleared(before)))


def _cleared(trainer: Any, places: Iterable[str]) -> Iterator[int]:
    for place in places:
        item = _at(trainer, place)
        if hasattr(item, "param_groups"):
            yield from (id(each) for group in item.param_groups for each in group["params"])
        elif hasattr(item, "parameters"):
            yield from map(id, item.parameters())
        elif item is not None:
            yield id(item)


def _at(trainer: Any, place: str) -> Any:
    """Return the object at a path of attributes, or of a function's variables; None if missing."""
    if place.startswith(_VARIABLES):
        return trainer.variables.get(place.removeprefix(_VARIABLES).partition("'")[0])
    item = trainer
    for name in place.split(".")[1:]:
        item = getattr(item, name, None)
    return item


_OF_THE_PROCESS = {
    GENERATOR: "draw from a generator of the trainer's own, seeded by its seed, and save it",
    SETTING: "set it in build",
    VARIABLE: "set it in build",
    FILE: "keep what steps read from it in the state",
    THREAD: "let it end before a state is saved, and start it again in the next step",
}
"""What to do about a part of the process, by a text in its path."""


def remedy(trainer_class: type, path: str, *others: str) -> str:
    """Return the line to write for a part that a state lacks, and for others like it.

    Examples
    --------
    >>> print(remedy(object, "trainer.best"))
    save it in state_dict and restore it in load_state_dict; or if no result depends on it, \
write harmless_differences = ("trainer.best",)
    """
    path = holder_of(path)
    listed = repr(tuple(dict.fromkeys([path, *map(holder_of, others)])))
    line = f"harmless_differences = {listed if others else f'({_quoted(path)},)'}"
    own = _OF_THE_PROCESS.get(next((each for each in _OF_THE_PROCESS if each in path), ""))
    if own is not None and not path.startswith("trainer."):
        function = f"{trainer_class.__name__}." if hasattr(trainer_class, "function") else ""
        return f"{own}; or if no result depends on it, write {function}{line}"
    if hasattr(trainer_class, "function"):
        variable = path.removeprefix("trainer.variables['").partition("'")[0]
        if path.startswith("trainer.variables['"):
            how = f'write run.state["{variable}"] = ... in its place, or run.track({variable})'
        else:
            how = "keep it in run.state"
        function = trainer_class.__name__
        return f"{how}; if no result depends on it, write {function}.{line}"
    how = (
        "keep it in an attribute of the trainer, save it in state_dict and restore it in "
        "load_state_dict"
        if not path.startswith("trainer.")
        else "save it in state_dict and restore it in load_state_dict"
    )
    return f"{how}; or if no result depends on it, write {line}"


def _quoted(path: str) -> str:
    return f'"{path}"' if '"' not in path else repr(path)
