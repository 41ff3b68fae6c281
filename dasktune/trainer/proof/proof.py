"""The proof of a resume: what the trainer that saved a state held beside it.

With each state the trainer that made it leaves a text for everything in its reach, by path. Whoever
loads the state compares before the first step. No training is needed to find what a state lacks,
at whatever step, in whatever branch.

A part that lies in the state is not written down: its place in the state is. Then the loaded
trainer must hold there what the state holds: large tensors are compared once, when they are loaded.

Two processes build the same trainer from the same values, so a part that has not changed since
`build` is compared, too: a build that draws without a seed makes another trainer each time. Texts
that have not changed since (paths, names of hosts and devices), and numbers that tell the time or
the process, belong to the process and not to the training.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import zlib
from base64 import b85decode, b85encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune.trainer.base import harmless_of, is_harmless
from dasktune.trainer.generators import global_states, restore_global
from dasktune.trainer.liveness import Liveness
from dasktune.trainer.proof.arrays import (
    LARGE,
    StateArrays,
    array_difference,
    arrays_of,
    text_of_large,
)
from dasktune.trainer.proof.differences import Difference
from dasktune.trainer.proof.kept import (
    KEPT,
    Keeper,
    Proof,
    is_scalar,
    set_generators,
    set_kept,
)
from dasktune.trainer.proof.reach import (
    GENERATOR,
    IDS,
    LEVEL,
    ORDER,
    SETTING,
    VARIABLE,
    Reach,
    Tie,
    generator_path,
    reach_digest,
    settings,
)
from dasktune.trainer.proof.reached_code import code_of, import_modules
from dasktune.trainer.proof.texts import (
    UNSEEN,
    PartText,
    TimeText,
    Unseen,
    form_of,
    is_array,
    order_of,
    text_of,
)
from dasktune.trainer.proof.written_files import (
    FILE,
    WRITTEN_FILES,
    FileText,
    is_as_before,
    place_of,
    text_of_named,
)

_BUILT, _CHANGED, _IN_STATE = "=", "~", "@"
"""Unchanged since `build`; changed since; the number of an array of the state follows."""

MOST_NAMED = 8
"""Differences that are named."""

_GETS_STATE = {"python": "getstate", "numpy": "get_state", "torch": "get_rng_state"}
"""The functions by which a trainer saves a global generator by itself."""

_MODULE = "module "
"""Begins the paths of modules of own code that functions import while they run."""

_TIE = " (tied)"
"""End of the paths of arrays and containers that another path reaches, too."""

_TEXTS = ("str ", "bytes ", "PosixPath ", "WindowsPath ", "PurePosixPath ")
_TIME, _PROCESS = "a time", "a number of the process"
"""Texts of parts that belong to the process; a time decides no result."""


@dataclass(slots=True, kw_only=True)
class Witness:
    """Writes down what a trainer holds, and compares; made directly after `build`.

    Parameters
    ----------
    trainer, device
        The trainer, and where it trains.
    environment
        The variables of the process before `build`.
    began
        The clocks of the process before `build`; see `clocks`.
    has_generators
        Whether the global random generators count: nobody else in the process draws from them.

    Attributes
    ----------
    left_out
        By path, the parts that nobody can look into, and why.
    kept
        The paths that the loaded state lacks, and that were set to what they were.
    gradients
        By path, the ids of the parameters whose gradients were found to differ.
    """

    trainer: Any
    device: str
    environment: Mapping[str, str]
    began: tuple[float, ...]
    has_generators: bool = True
    seconds: float = 0.0
    left_out: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    gradients: dict[str, int] = field(default_factory=dict)
    _built: dict[str, str] = field(default_factory=dict)
    _reach: Reach = field(init=False)
    """That of the last look at all parts."""
    _generators: dict[str, Any] = field(default_factory=dict)
    """The states of the global generators after `build`."""
    _ties: dict[str, Tie] = field(default_factory=dict)
    """Those of that look."""
    _places: dict[str, str] = field(default_factory=dict)
    """By path, the texts and paths of that look that may name a file."""
    sets_generators: bool = True
    """Whether global generators that a state lacks are set."""
    _has_files: bool = False
    """Whether the proof of the loaded state names files."""

    @classmethod
    def of(
        cls,
        trainer: Any,
        device: str,
        environment: Mapping[str, str],
        began: tuple[float, ...],
        *,
        has_generators: bool = True,
        proof: Proof | None = None,
    ) -> Witness:
        """Return the witness of a trainer that was just built.

        What the state of a `proof` has will be another one after loading, and is not looked at.
        """
        witness = cls(
            trainer=trainer,
            device=device,
            environment=environment,
            began=began,
            has_generators=has_generators,
        )
        with _Timed(witness):
            # What is stored names no other modules than the code itself imports.
            imports = code_of(type(trainer)).imports
            import_modules(name for name in sorted(imports) if f"{_MODULE}{name}" in (proof or {}))
            loaded = {path for path, text in (proof or {}).items() if text[0] == _IN_STATE}
            witness._built = {
                path: "" if path in loaded else witness._text(value)
                for path, value in witness._parts()
            }
            witness._ties = witness._reach.ties
            if has_generators:
                witness._generators = global_states(device)
        return witness

    def proof(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Return the texts of everything in reach, for a state that was taken just now.

        What the state lacks, and can be kept, is among them.
        """
        arrays = arrays_of(state)
        texts = self._texts(arrays)
        with _Timed(self):
            changed = {
                unit
                for path, text in texts.items()
                if text[0] == _CHANGED and (unit := self._reach.unit_of.get(path))
            }
            changed -= _named_in(state)
            drawn = {} if "generators" in state else self._drawn(texts)
            if kept := self._kept(texts, sorted(changed), arrays, drawn):
                texts[KEPT] = kept
        return texts

    def before_state(self) -> dict[str, str] | None:
        """Return the texts of all parts; None if `state_dict` is known to read alone."""
        return None if code_of(type(self.trainer)).state_only_reads else self._look()

    def _look(self) -> dict[str, str]:
        """Return the texts of all parts, as if nobody had looked."""
        before = self._ties, self._reach
        texts = self._texts([])
        self._ties, self._reach = before
        return texts

    def changed_by_state(self, before: Proof) -> list[Difference]:
        """Return the parts that `state_dict` has changed in its trainer, and that others read."""
        now, read = self._look(), code_of(type(self.trainer)).read_elsewhere
        return [
            Difference(path=path, reason=f"is {_shown(now.get(path, ' missing')[1:])} afterwards")
            for path in sorted({*before, *now})
            if now.get(path) != before.get(path)
            and not (path.endswith(_TIE) or path.startswith(FILE))
            and (not (name := _name_in(path)) or name in read)
        ]

    def texts(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Return the texts alone."""
        return self._texts(arrays_of(state))

    def _texts(self, arrays: list[Any]) -> dict[str, str]:
        with _Timed(self):
            before = self._reach.arrays
            places = StateArrays(arrays)
            forms = {form_of(array) for array in arrays if array.nbytes >= LARGE}
            texts: dict[str, str] = {}
            for path, value in self._parts():
                index = places.of(value) if is_array(value) else None
                if index is not None:
                    order = order_of(value)
                    texts[path] = f"{_IN_STATE}{index} {order}" if order else f"{_IN_STATE}{index}"
                    continue
                text = self._text(value, forms)
                texts[path] = f"{_BUILT if self._built.get(path) == text else _CHANGED}{text}"
            ties, self._ties = self._ties, self._reach.ties
            texts |= {
                f"{path}{_TIE}": f"{_CHANGED}{tie.path}"
                for path, tie in self._ties.items()
                if (tie.is_that_of(ties.get(path)) or self._stays(path, tie, before))
                and texts.get(path, _CHANGED)[0] != _BUILT
            }
        return texts

    def _stays(self, path: str, tie: Tie, before: Mapping[str, Any]) -> bool:
        """Return whether a tied array is changed in place: what a step makes anew is not."""
        now = self._reach.arrays
        return tie.is_trained or any(
            each in before and before[each] is now.get(each) for each in (path, tie.path)
        )

    def differences(self, proof: Proof, arrays: list[Any]) -> list[Difference]:
        """Return the differences from the trainer that saved the state which this one has loaded.

        Parameters
        ----------
        arrays
            The arrays of the state, as `arrays_of` returned them before the state was loaded.
        """
        with _Timed(self):
            self._undo_draws(proof)
            self._has_files = any(path.startswith(FILE) for path in proof)
            differences = self._compared(proof, arrays)
            harmless = harmless_of(type(self.trainer))
            paths = [each.path for each in differences if not is_harmless(each.path, harmless)]
            loaded = code_of(type(self.trainer)).loaded
            paths = [each for each in paths if _attribute_of(each) not in loaded]
            if paths and self._keeps:
                self.kept = set_kept(self._reach, proof, paths, sets_globals=self.has_generators)
            names = {generator_path(name): name for name in self._generators}
            drawn = {path: names[path] for path in paths if path in names}
            if drawn and self.sets_generators:
                self.kept += set_generators(proof, drawn, self.device)
            if self.kept:
                differences = self._compared(proof, arrays)
        return differences

    def _undo_draws(self, proof: Proof) -> None:
        """Set back each global generator from which loading has drawn, and training had not."""
        if not self.has_generators:
            return
        now = global_states(self.device)
        drawn = {
            name: state
            for name, state in self._generators.items()
            if proof.get(path := generator_path(name), "")[:1] == _BUILT
            and text_of(PartText(reach_digest(now[name]))) != self._built.get(path)
        }
        if drawn:
            restore_global({**now, **drawn}, self.device)

    def _compared(self, proof: Proof, arrays: list[Any]) -> list[Difference]:
        differences: list[Difference] = []
        parts = dict(self._parts())
        for path in proof.keys() | parts.keys():  # the code may get a logger late
            if path.startswith(LEVEL) and not parts.setdefault(path, 0) and path not in proof:
                del parts[path]
        self._ties = self._reach.ties
        imports_more = any(path.startswith(_MODULE) and path not in proof for path in parts)
        for path in dict.fromkeys([*proof, *parts]):
            if path == KEPT or (
                imports_more and path not in proof and self._is_imported(path, parts[path])
            ):
                continue
            if path.endswith(_TIE):
                place, first = path.removesuffix(_TIE), proof[path][1:]
                is_there = place in parts or f"len({place})" in parts
                tie = self._ties.get(place)
                if is_there and (tie is None or tie.path != first):
                    lost = f"is {first} no more: a change of one will not change the other"
                    differences.append(Difference(path=place, reason=lost))
                continue
            reason = self._difference(path, proof.get(path), parts, arrays)
            if reason is None:
                continue
            differences.append(Difference(path=path, reason=reason))
            if path.endswith(".grad"):
                self.gradients[path] = id(parts.get(path.removesuffix(".grad")))
        # What is missing is often left over from an inner loop.
        return sorted(
            differences, key=lambda d: (_suspicion(d.path), " is missing" in f" {d.reason}")
        )

    def _is_imported(self, path: str, value: Any) -> bool:
        """Return whether a part may be of a module that another trial has imported here.

        It is as it was imported, see `CleanProcess`: so `build` has found it, and nobody since has
        changed it.
        """
        is_own = path.startswith(("trainer.", SETTING, VARIABLE, FILE))
        return not is_own and self._built.get(path) == self._text(value)

    @property
    def _keeps(self) -> bool:
        """Whether values are kept: each of several processes that train together has its own."""
        return "division" not in getattr(self.trainer, "__dict__", {})

    def _drawn(self, texts: Proof) -> dict[str, Any]:
        """Return the states of the global generators that own code draws from and does not save."""
        if not self.has_generators:
            return {}
        names, harmless = code_of(type(self.trainer)).all_names, harmless_of(type(self.trainer))
        return {
            path: state
            for name, state in global_states(self.device).items()
            if texts.get(path := generator_path(name), _BUILT)[0] == _CHANGED
            and _GETS_STATE.get(name, "") not in names
            and not is_harmless(path, harmless)
        }

    def _kept(
        self, texts: Proof, changed: list[str], arrays: list[Any], drawn: Mapping[str, Any]
    ) -> str:
        """Return the text of the values that a state lacks; each scalar has a text already."""
        if not (changed or drawn) or not self._keeps:
            return ""
        liveness, harmless = Liveness.of(type(self.trainer)), harmless_of(type(self.trainer))
        keeper = Keeper(arrays)
        for path, state in drawn.items():
            keeper.add_state(path, state)
        for unit in changed:
            holder = self._reach.holders.get(unit)
            if holder is None or unit in self._reach.shared or is_harmless(unit, harmless):
                continue
            if unit in texts and is_scalar(texts[unit]):
                continue
            if holder.is_global and not self.has_generators:
                continue
            if not _is_dead(liveness, unit):
                keeper.add(unit, holder.value)
        return keeper.text

    def differences_of_build(self, built: Mapping[str, str]) -> list[Difference]:
        """Return the differences from what `build` has made in another process."""
        liveness = Liveness.of(type(self.trainer))
        return [
            Difference(
                path=path,
                reason=f"is {_shown(now)} after one build and {_shown(was)} after another: seed it "
                "from the trainer's seed",
            )
            for path, now in self._built.items()
            if (was := built.get(path, now)) != now
            and not now.startswith(_TEXTS)
            and not path.startswith((SETTING, VARIABLE))
            and not liveness.is_made_empty(path)
        ]

    @property
    def built(self) -> dict[str, str]:
        """The texts of all parts after `build`."""
        return dict(self._built)

    def _difference(
        self, path: str, saved: str | None, parts: Mapping[str, Any], arrays: list[Any]
    ) -> str | None:
        """Return why a part is not what it was, in words; None if it is."""
        is_on_one_side = saved is None or path not in parts
        if is_on_one_side and path.endswith(GENERATOR):
            return None  # the trainer of one of the processes was not alone in it, or without torch
        if path.startswith(SETTING) and (saved is None or (is_on_one_side and saved[0] == _BUILT)):
            return None  # one of the processes may have loaded torch, and the other one not
        if path.startswith(FILE):
            was = None if saved is None else saved[1:]
            name = path.removeprefix(FILE)
            if was is not None and not is_as_before(name, was, self._places):
                return "has another content than when the state was saved"
            WRITTEN_FILES.note_own(name)
            return None
        if saved is None:
            text = self._text(parts[path])
            if path.startswith(VARIABLE):
                return f"is {_shown(text)}, and was not set when the state was saved"
            return f"is {_shown(text)}, and was not there when the state was saved"
        if path not in parts:
            was = "" if saved[0] == _IN_STATE else f"; it was {_shown(saved[1:])}"
            return f"is missing after loading{was}"
        if saved[0] == _IN_STATE:
            index, _, order = saved[1:].partition(" ")
            return array_difference(parts[path], arrays, int(index), order)
        if isinstance(parts[path], Unseen) or saved[1:].startswith(UNSEEN):
            unseen = parts[path] if isinstance(parts[path], Unseen) else saved[1:]
            kind = unseen.partition(" ")[2]
            return f"is a {kind}, into which nobody can look: a later step may depend on it"
        now = self._text(parts[path])
        if now == saved[1:]:
            return None
        if path.startswith(IDS):
            return (
                "are of other objects than when the state was saved: use names or indices as keys"
            )
        if saved[1:] == _TIME:
            return None
        is_built = saved[0] == _BUILT and self._built.get(path) == now
        if is_built and (now.startswith(_TEXTS) or path.startswith(SETTING)):
            return None
        if saved[0] == _BUILT and path.endswith(GENERATOR):
            return None  # nothing was drawn from it since build
        shown, was = _shown(now), _shown(saved[1:])
        if shown.startswith("another ") and was.startswith("another ") and shown != was:
            shown, was = shown.removeprefix("another "), was.removeprefix("another ")
        if is_built:
            return f"is {shown}, and was {was}: each build gives another one"
        if shown == was:  # digests of two things of one form
            form = shown.removeprefix("another ")
            what = "" if form == "value" else f" ({form})"
            return f"is not what it was when the state was saved{what}"
        return f"is {shown} after loading, and was {was} when the state was saved"

    def _parts(self) -> Iterator[tuple[str, Any]]:
        reached = Reach(self.trainer, self.device, has_generators=self.has_generators)
        self._reach = reached
        liveness = Liveness.of(type(self.trainer))
        files = WRITTEN_FILES.paths() if self.has_generators else []
        places: dict[str, str] = {}
        for path, value in reached.leaves():
            unit = reached.unit_of.get(path, path)
            # What a function or class holds that only a dead variable names goes with it.
            if unit not in path and unit.startswith("trainer.") and _is_dead(liveness, unit):
                continue
            yield path, value
            if (files or self._has_files) and (place := place_of(value)):
                places.setdefault(place, path)
        yield from settings().items()
        for name in sorted(code_of(type(self.trainer)).imported):
            yield f"{_MODULE}{name}", "imported"
        self._places = {path: place for place, path in places.items()}
        yield from ((f"{FILE}{path}", text_of_named(path, places)) for path in files)
        texts = code_of(type(self.trainer)).texts
        for name, value in os.environ.items():
            # Packages set variables of their own.
            if self.environment.get(name) != value and name in texts:
                yield f"{VARIABLE}[{name!r}]", value
        self.left_out |= reached.left_out

    def _text(self, value: Any, forms: Collection[str] = ()) -> str:
        """Return the text of a part; `forms` are those of the arrays in its state."""
        if isinstance(value, FileText):
            return str(value)
        if isinstance(value, (int, float, PartText)) and (own := self._of_the_process(value)):
            return own
        if not is_array(value) or value.nbytes < LARGE:
            return text_of(value)
        return text_of_large(value, is_copied=form_of(value) in forms)

    def _of_the_process(self, value: float | PartText) -> str | None:
        """Return the text of a time since `build`, or of a number of the process."""
        if isinstance(value, PartText):
            return _TIME if isinstance(value, TimeText) and self._is_time(value.seconds) else None
        if isinstance(value, int):
            if value in (os.getpid(), threading.get_ident(), os.getppid()) and value > 1:
                return _PROCESS
            return _TIME if value > 10**12 and self._is_time(value / 1e9) else None
        return _TIME if self._is_time(value) and not value.is_integer() else None

    def _is_time(self, value: float) -> bool:
        return any(begin <= value <= end for begin, end in zip(self.began, clocks(), strict=True))


def _is_dead(liveness: Liveness, path: str) -> bool:
    return all(liveness.is_dead(path, before=way) for way in ("train", "evaluate"))


def _attribute_of(path: str) -> str:
    """Return the name of the trainer's attribute that a path begins with; empty without one."""
    match = re.match(r"(?:len\()?trainer\.(\w+)", path)
    return match[1] if match else ""


def _name_in(path: str) -> str:
    """Return the name of the attribute or global variable in a path; empty without one."""
    match = re.match(r"global ([\w.]*\.)?(\w+)|(\w+)\.(\w+)$", path)
    return _attribute_of(path) or (str(match[2] or match[4]) if match else "")


def _named_in(state: Mapping[str, Any]) -> set[str]:
    """Return the paths of the attributes that a state has by their names."""
    values = state.get("values")  # those of a `TorchTrainer`
    names = {*state, *values} if isinstance(values, Mapping) else {*state}
    return {f"trainer.{name}" for name in names}


class _Timed:
    """Adds the time of its block to a witness."""

    def __init__(self, witness: Witness) -> None:
        self._witness, self._began = witness, time.perf_counter()

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._witness.seconds += time.perf_counter() - self._began


def packed(proof: Proof) -> str:
    """Return a proof as a short text for the commit of its state."""
    content = json.dumps(list(proof.items()), separators=(",", ":")).encode()
    return b85encode(zlib.compress(content, 1)).decode()


def unpacked(text: str) -> dict[str, str]:
    """Return the proof that `packed` has packed.

    Raises
    ------
    ValueError
        If the text is none of these.
    """
    try:
        whole = zlib.decompressobj()
        content = whole.decompress(b85decode(text), _MOST_BYTES)
        pairs: Any = json.loads(content) if whole.eof else [[None]]
        if all(type(part) is str for pair in pairs for part in pair):
            return dict(pairs)
    except (TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"the proof cannot be read: {error}") from error
    raise ValueError("the proof must hold texts, and end")


_MOST_BYTES = 2**26


def clocks() -> tuple[float, ...]:
    """Return the time of day, and that of the clock that never goes back, in seconds."""
    return time.time(), time.perf_counter()


_LEFT_OVER = re.compile(r"trainer\.variables\['_\w*'\].*")
"""The variables of a function that are not meant to be used."""


def _suspicion(path: str) -> int:
    """Return the rank of a suspect: lengths and gradients last, since others say more."""
    if path.endswith(".grad"):
        return 4
    if path.startswith("len(") or path.endswith(ORDER):
        return 3
    if path.endswith(GENERATOR) or path.startswith((SETTING, VARIABLE)):
        return 2
    if _LEFT_OVER.fullmatch(path):
        return 5
    return 0 if path.startswith("trainer.") else 1


def _shown(text: str) -> str:
    """Return a text for a message: ``float 0.5`` as the number, a digest by its type alone."""
    kind, _, value = text.partition(" ")
    if kind in ("int", "float", "bool", "str", "NoneType", "complex", "bytes") and value:
        return value if len(value) != 32 or kind not in ("str", "bytes") else f"another {kind}"
    form, _, digest = text.rpartition(" ")
    if digest.isalnum() and len(digest) == 32:
        return f"another {form or 'value'}"
    return text
