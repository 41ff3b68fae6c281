"""Settings of a process by which own code changes the numbers of packages.

``torch.set_default_dtype(torch.float64)`` at the top of a study file changes every number that is
trained. The statement belongs to no function, so no source of the trainer shows it, and workers
that get the trainer's code do not run it. So settings that differ from those of a new process
count in the fingerprint, travel with the trainer, and are made before each build.

Not settings here: the number of threads (`dasktune.TorchTrainer.threads` decides it) and the
state of random generators.
"""

from __future__ import annotations

import decimal
import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from typing import Any

import numpy as np

from dasktune.errors import ClusterError

Value = str | int | bool | dict[str, str] | list[str]
"""The value of a setting: JSON."""

CARRIED = "_dasktune_settings"
"""Attribute of an unpacked trainer class: the settings of the driver that differ from defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of a process.

    Parameters
    ----------
    module
        The module that has it; a process that has not loaded it has the default.
    is_of_thread
        Whether each thread has a value of its own. That of the main thread counts.
    attribute
        The dotted name of the attribute, if it is one: the fingerprint may cover it already.
    option
        The name among the options that `dasktune.TorchTrainer` takes back after a build.
    shown
        Returns the value of that option as `read` returns it.
    items
        The names of the first items of a value that is a list.
    """

    module: str
    default: Value
    read: Callable[[], Value]
    write: Callable[[Any], None]
    is_of_thread: bool = False
    attribute: str = ""
    option: str = ""
    shown: Callable[[Any], Value] = lambda value: value
    items: tuple[str, ...] = ()

    def texts(self) -> dict[str, str]:
        """Return the value as a text, or each of its items; by the end of a path."""
        value = self.read()
        if not self.items or not isinstance(value, list):
            return {"": repr(value)}
        pairs = zip_longest(self.items, value[: len(self.items)])
        texts = {f" {name}": str(item) for name, item in pairs}
        return {**texts, " and more": ", ".join(value[len(self.items) :])}


def changed_settings() -> dict[str, Value]:
    """Return the settings of this process that differ from those of a new process, by name.

    What dasktune itself has set for a trainer in this process does not count.
    """
    values = {name: _value(name, each) for name, each in SETTINGS.items()}
    return {name: value for name, value in values.items() if value != SETTINGS[name].default}


def apply_settings(trainer_class: type) -> None:
    """Make the settings that a trainer class carries, in place of those of an earlier trainer.

    A class that was not sent to this process carries none: the settings of the process stay, but
    for those that were made here for another trainer.
    """
    carried: Mapping[str, Value] = getattr(trainer_class, CARRIED, {})
    if not carried and not _MADE:
        return
    if (options := options_of_builds()) is not None:
        options.take_back()
    for name in _MADE.keys() - carried.keys():
        before, made = _MADE.pop(name)
        if SETTINGS[name].read() == made:
            SETTINGS[name].write(before)
    for name, value in carried.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise ClusterError(f"the setting {name!r} is not known here: install the same dasktune")
        importlib.import_module(setting.module)
        if (now := setting.read()) != value:
            _MADE.setdefault(name, (now, value))
            setting.write(value)


def carrying(trainer_class: type, settings: Mapping[str, Value]) -> type:
    """Return a class that was sent to this process with the settings of its driver.

    If there are any, it is a subclass: another study, whose driver has other settings, may train
    the same imported class in this process.
    """
    if not settings:
        return trainer_class
    place = {"__module__": trainer_class.__module__, "__qualname__": trainer_class.__qualname__}
    members = {CARRIED: dict(settings), "__doc__": trainer_class.__doc__, **place}
    return type(trainer_class)(trainer_class.__name__, (trainer_class,), members)


_MADE: dict[str, tuple[Value, Value]] = {}
"""The value before, and the value that was made for a trainer, by the name of the setting."""

_LAST: dict[str, Value] = {}
"""The last values in the main thread of the settings that belong to threads."""


def _value(name: str, setting: Setting) -> Value:
    if not is_loaded(setting):
        return setting.default
    if setting.is_of_thread:
        if threading.current_thread() is threading.main_thread():
            _LAST[name] = setting.read()
        return _LAST.get(name, setting.default)
    options = options_of_builds() if setting.option else None
    before = {} if options is None else options.before_last_build()
    if setting.option not in before:
        return setting.read()
    return setting.shown(before[setting.option])


def options_of_builds() -> Any:
    """Return the options of torch that `dasktune.TorchTrainer` sets; None before its first use."""
    return getattr(sys.modules.get("dasktune.trainer.torch"), "_OPTIONS", None)


def _of_numpy(value: Mapping[str, str]) -> None:
    np.seterr(**value)  # type: ignore[arg-type]


_AUTOCAST = ("cpu", "cuda")


def _set_autocast(value: list[str]) -> None:
    for kind in _AUTOCAST:
        _torch().set_autocast_enabled(kind, kind in value)


def _decimal() -> Value:
    context = decimal.getcontext()
    traps = sorted(kind.__name__ for kind, is_on in context.traps.items() if is_on)
    numbers = [context.prec, context.Emin, context.Emax, context.capitals, context.clamp]
    return [*map(str, numbers), context.rounding, *traps]


def _set_decimal(value: list[str]) -> None:
    prec, least, most, capitals, clamp = map(int, value[:5])
    traps = [getattr(decimal, name) for name in value[6:]]
    decimal.setcontext(
        decimal.Context(
            prec=prec,
            Emin=least,
            Emax=most,
            capitals=capitals,
            clamp=clamp,
            rounding=value[5],
            traps=traps,
        )
    )


def hooks_of_all_modules() -> dict[str, dict[Any, Any]]:
    """Return the hooks that torch calls for every module, by the name of their kind; live."""
    modules = sys.modules.get("torch.nn.modules.module")
    return {
        name.removeprefix("_global_"): value
        for name, value in getattr(modules, "__dict__", {}).items()
        if name.startswith("_global_") and isinstance(value, dict)
    }


def _smallest() -> float:
    """Return the least normal number; what is computed with it tells whether less is 0."""
    return sys.float_info.min


def _torch() -> Any:
    return sys.modules["torch"]


def is_loaded(setting: Setting) -> bool:
    """Return whether this process has loaded the module of a setting."""
    module = sys.modules.get(setting.module)
    return module is not None and (setting.module != "torch" or hasattr(module, "Tensor"))


def _set_dtype(value: str) -> None:
    _torch().set_default_dtype(getattr(_torch(), value.removeprefix("torch.")))


def _precision() -> str:
    try:
        return _shown_precision(_torch().get_float32_matmul_precision())
    except RuntimeError:
        return _shown_precision(None)


def _shown_precision(value: str | None) -> str:
    # None: it was set in torch's newer way, `torch.backends.fp32_precision`.
    return "highest" if value is None else str(value)


def _algorithms() -> str:
    is_warning = _torch().is_deterministic_algorithms_warn_only_enabled()
    return _shown_algorithms((_torch().are_deterministic_algorithms_enabled(), is_warning))


def _shown_algorithms(value: tuple[bool, bool]) -> str:
    is_on, is_warning = value
    return "any" if not is_on else "deterministic or warned" if is_warning else "deterministic"


def _set_algorithms(value: str) -> None:
    use_deterministic_algorithms(value != "any", warns="warned" in value)


def use_deterministic_algorithms(is_on: bool, *, warns: bool = False) -> None:
    """Have torch, which is imported, use only algorithms that give the same bits, or any.

    torch's own function of this name imports its compiler at once, which takes seconds. The
    variable has the same effect if the compiler is imported later.
    """
    if is_on:
        os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    _torch().set_deterministic_debug_mode("default" if not is_on else "warn" if warns else "error")
    compiler: Any = sys.modules.get("torch._inductor.config")
    if compiler is not None:
        compiler.deterministic = is_on


def _gradients() -> bool:
    return bool(_torch().is_grad_enabled())


def _set_gradients(value: bool) -> None:
    _torch().set_grad_enabled(value)


def _device() -> str:
    read = getattr(_torch(), "get_default_device", None)  # torch 2.3 brought it
    return "cpu" if read is None else str(read())


def _set_device(value: str) -> None:
    _torch().set_default_device(value)


def _attribute(path: str, default: bool | str) -> Setting:
    """Return the setting that is an attribute of a module."""
    *place, name = path.split(".")[1:]

    def read() -> Value:
        try:
            value: Value = getattr(reduce(getattr, place, _torch()), name)
        except (AttributeError, RuntimeError):  # an older torch, or both ways of torch were mixed
            return default
        return value

    def write(value: Value) -> None:
        setattr(reduce(getattr, place, _torch()), name, value)

    option = "benchmark" if name == "benchmark" else ""
    return Setting(
        module="torch", default=default, read=read, write=write, attribute=path, option=option
    )


_ATTRIBUTES: tuple[tuple[str, bool | str], ...] = (
    ("torch.backends.cudnn.benchmark", False),
    ("torch.backends.cudnn.deterministic", False),
    ("torch.backends.cudnn.allow_tf32", True),
    ("torch.backends.mkldnn.enabled", True),
    ("torch.backends.fp32_precision", "none"),
)
"""Attributes of modules of torch, and their defaults."""

SETTINGS: Mapping[str, Setting] = {
    "numpy errors": Setting(
        module="numpy",
        default={"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"},
        read=lambda: {name: str(action) for name, action in np.geterr().items()},
        write=_of_numpy,
        is_of_thread=True,
    ),
    "decimal context": Setting(
        module="decimal",
        default=[
            *("28", "-999999", "999999", "1", "0", "ROUND_HALF_EVEN"),
            *("DivisionByZero", "InvalidOperation", "Overflow"),
        ],
        read=_decimal,
        write=_set_decimal,
        items=("prec", "Emin", "Emax", "capitals", "clamp", "rounding"),
        is_of_thread=True,
    ),
    "torch autocast": Setting(
        module="torch",
        default=[],
        read=lambda: [kind for kind in _AUTOCAST if _torch().is_autocast_enabled(kind)],
        write=_set_autocast,
        is_of_thread=True,
    ),
    "torch default dtype": Setting(
        module="torch",
        default="torch.float32",
        read=lambda: str(_torch().get_default_dtype()),
        write=_set_dtype,
        option="dtype",
        shown=str,
    ),
    "torch default device": Setting(
        module="torch", default="cpu", read=_device, write=_set_device, is_of_thread=True
    ),
    "torch matmul precision": Setting(
        module="torch",
        default="highest",
        read=_precision,
        write=lambda value: _torch().set_float32_matmul_precision(value),
        attribute="torch.backends.cuda.matmul.allow_tf32",
        option="precision",
        shown=_shown_precision,
    ),
    "torch algorithms": Setting(
        module="torch",
        default="any",
        read=_algorithms,
        write=_set_algorithms,
        option="algorithms",
        shown=_shown_algorithms,
    ),
    "torch gradients": Setting(
        module="torch", default=True, read=_gradients, write=_set_gradients, is_of_thread=True
    ),
    "torch anomaly": Setting(
        module="torch",
        default=False,
        read=lambda: bool(_torch().is_anomaly_enabled()),
        write=lambda value: _torch().autograd.set_detect_anomaly(value),
    ),
    "torch flush denormal": Setting(
        module="torch",
        default=False,
        read=lambda: _smallest() * 0.5 == 0.0,
        write=lambda value: _torch().set_flush_denormal(value),
        is_of_thread=True,
    ),
    **{
        path.replace(".backends", "").replace(".", " "): _attribute(path, default)
        for path, default in _ATTRIBUTES
    },
}
"""The settings by name."""
