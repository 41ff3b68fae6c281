"""The process of a worker, set back before each trainer is built.

"Alone" is a promise about a process that has trained nothing else. Worker processes are used
again. So what a trainer has changed in its process must not reach the next one:

- *Settings* (folder, environment, warnings, options of NumPy and torch) are set back, so is what
  its code puts into installed packages, and the global random generators are seeded.
- *Own code* has global variables, attributes of classes, defaults and caches. If they are not what
  they were when the code was opened, the next trainer gets a copy of the code of its own, in
  which they are. So a trainer never sees what another one has left.

A data set that is loaded once is worth keeping. Nobody can see from outside whether it depends on
the hyper-parameters. So copies are used until builds with other values have left the same; then
one copy serves all configurations whose values were seen in this. If a build leaves anything
else, copies are used from then on.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from dasktune._worker.job import Job
from dasktune.errors import TrainerError, text_of
from dasktune.trainer.base import harmless_of, is_harmless
from dasktune.trainer.code import TrainerCode, unpack
from dasktune.trainer.fingerprint.installed import is_installed
from dasktune.trainer.generators import seed_global
from dasktune.trainer.proof.arrays import text_of_any
from dasktune.trainer.proof.reach import Reach
from dasktune.trainer.proof.reached_code import Holder, code_of, is_ours
from dasktune.trainer.settings import (
    SETTINGS,
    Setting,
    hooks_of_all_modules,
    is_loaded,
)
from dasktune.types import Value

Values = Mapping[str, Value]


class CleanProcess:
    """Gives each trainer code that no other trainer has changed, in a process that is set back."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._class = job.trainer_class
        self._modules = frozenset(sys.modules)
        self._start = _process_start() if job.is_own_process else None
        if self._start is not None:
            self._start.note(self._class)
        self._opened = self._left()
        """The own code's variables when it was opened, as texts by path."""
        self._prepared: tuple[Values, bool] | None = None
        """The values of the last build, and whether its copy of the code was unused before."""
        self._shared: dict[str, str] | None = None
        """What builds with other values have left; None before the first, empty if they differ."""
        self._seen: list[Values] = []
        """The values for which builds of unused copies have left that."""

    def prepare(self, values: Values, seed: int, *, is_alone: bool = False) -> type:
        """Return the trainer's class for a build with values at step 0, and set the process back.

        `is_alone`: nothing of another trial may be used, a data set that is kept included.
        """
        if self._start is not None:
            self._start.set_back()
            seed_global(seed, self._job.device)
        left = self._left()
        is_used = left != self._opened
        if is_used and (is_alone or not self._may_share(values, left)):
            self._class = self._copy(_first_change(self._opened, left))
            self._opened, is_used = self._left(), False
        self._prepared = dict(values), is_used
        return self._class

    @property
    def is_used(self) -> bool:
        """Whether the last trainer was built where earlier trials had left something."""
        return self._prepared is not None and self._prepared[1]

    def accepts_build(self) -> bool:
        """Return whether a first build is as in a new process; called directly after it.

        If not, it must be made again: `prepare` then gives it another copy of the code.
        """
        if self._prepared is None:
            return True
        (values, is_used), left = self._prepared, self._left()
        self._prepared = None
        if left == self._opened:
            return True
        if self._shared is None:
            self._shared = left
        if left != self._shared:
            self._shared, self._seen = {}, []
            return not is_used
        if not is_used:
            self._seen.append(values)
        return True

    def _may_share(self, values: Values, left: Mapping[str, str]) -> bool:
        """Return whether a build with values may use what earlier builds have left."""
        if not self._shared or left != self._shared:
            return False
        return all(
            _is_covered(value, [seen.get(name) for seen in self._seen])
            for name, value in values.items()
        )

    def _left(self) -> dict[str, str]:
        """Return the variables of own code as texts by path, without those named as harmless."""
        harmless = harmless_of(self._class)
        leaves = Reach(self._class, self._job.device, has_generators=False, has_trainer=False)
        return {
            path: text_of_any(value)
            for path, value in leaves.leaves()
            if not is_harmless(path, harmless)
        }

    def _copy(self, changed: str) -> type:
        """Return the trainer's class from a new copy of its code."""
        code = self._job.code
        if code is None:
            return self._class
        if code.kind == "bytes":
            self._forget_modules()
            return unpack(code)
        if not self._job.is_own_process:
            return self._class  # its modules are those of the user's own program
        return _imported_anew(code, changed)

    def _forget_modules(self) -> None:
        """Forget own modules that trainers have imported here, so that they are imported anew."""
        if not self._job.is_own_process:
            return
        for name in [*sys.modules.keys() - self._modules]:
            module = sys.modules[name]
            if isinstance(module, ModuleType) and not is_installed(module):
                del sys.modules[name]


def _is_covered(value: Value, seen: list[Value | None]) -> bool:
    """Return whether builds with other values have left the same as a value would leave.

    A number between others counts as seen if two others were.

    Examples
    --------
    >>> _is_covered(0.1, [0.2, 0.3]), _is_covered(0.1, [0.2, 0.2]), _is_covered("b", ["a", "c"])
    (True, False, False)
    """
    if any(type(value) is type(other) and value == other for other in seen):
        return True
    return type(value) is float and len({*seen}) > 1


def _first_change(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return next((path for path in sorted({*before, *now}) if before.get(path) != now.get(path)), "")


def _imported_anew(code: TrainerCode, changed: str) -> type:
    """Return the class of an importable trainer from modules that were imported anew."""
    package = code.module.partition(".")[0]
    own = {
        name: module
        for name, module in sys.modules.items()
        if isinstance(module, ModuleType)
        and name != "__main__"
        and (name.partition(".")[0] == package or not is_installed(module))
        and name.partition(".")[0] != "dasktune"
    }
    for name in own:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        return unpack(code)
    except BaseException as error:
        sys.modules.update(own)
        raise TrainerError(
            f"{changed} was changed by another trial in this process, and its module cannot be "
            f"imported anew: {type(error).__name__}: {text_of(error)}. Keep it in an attribute of "
            f"the trainer, or name {changed!r} in harmless_differences if no result depends on it"
        ) from error


OWN_VARIABLES = (
    *("CUBLAS_WORKSPACE_CONFIG", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    "TORCHINDUCTOR_DETERMINISTIC",
)
"""Variables of the environment that dasktune itself sets."""


class _ProcessStart:
    """The environment and settings of a process before a training, to set it back."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._folder = os.getcwd()
        self._warnings = list(warnings.filters)
        self._settings = {name: each.read() for name, each in _loaded_settings().items()}
        self._hooks = {name: dict(hooks) for name, hooks in hooks_of_all_modules().items()}
        self._packages: dict[tuple[int, str], tuple[Holder, Any]] = {}
        """What packages had, by the id of the module or class and by name, where code sets it."""

    def note(self, trainer_class: type) -> None:
        """Note what packages have where a trainer's code may set something else."""
        self._set_packages_back()
        harmless, code = harmless_of(trainer_class), code_of(trainer_class)
        for path, holder in code.packages.items():
            place = id(holder.space), holder.name
            if place not in code.set_in_packages or is_harmless(path, harmless):
                continue  # a package may change it by itself
            value = holder.value if holder.is_set else _MISSING
            self._packages.setdefault(place, (holder, value))

    def _set_packages_back(self) -> None:
        for holder, value in self._packages.values():
            if (holder.value if holder.is_set else _MISSING) is value:
                continue
            if value is _MISSING:
                holder.remove()
            else:
                holder.set(value)

    def set_back(self) -> None:
        """Set back what differs."""
        self._set_packages_back()
        now = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        for name in now.keys() - self._environment.keys():
            del os.environ[name]
        for name, value in self._environment.items():
            if os.environ.get(name) != value and name not in OWN_VARIABLES:
                os.environ[name] = value
        if _folder() != self._folder:
            os.chdir(self._folder)
        if warnings.filters != self._warnings:
            warnings.filters[:] = self._warnings  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
        for name, setting in _loaded_settings().items():
            before = self._settings.get(name, setting.default)
            if setting.read() != before:
                setting.write(before)
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        """Remove the hooks for all modules of torch that own code has registered."""
        hooks = hooks_of_all_modules()
        own = {
            key
            for name, each in hooks.items()
            for key, hook in each.items()
            if key not in self._hooks.get(name, {}) and (is_ours(hook) or is_ours(type(hook)))
        }
        for each in hooks.values():
            for key in own & each.keys():
                del each[key]


_MISSING = object()

_STARTS: list[_ProcessStart] = []
"""That of this process, once a trainer is expected: an earlier study may leave its settings."""


def _process_start() -> _ProcessStart:
    if not _STARTS:
        _STARTS.append(_ProcessStart())
    return _STARTS[0]


def _loaded_settings() -> dict[str, Setting]:
    return {name: each for name, each in SETTINGS.items() if is_loaded(each)}


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
