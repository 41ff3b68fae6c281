"""The base class of trainers, and the checks of a trainer class before a run."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, NoReturn

from dasktune.errors import TrainerError
from dasktune.trainer.parsing import definition_of
from dasktune.types import Sequences, Step, Value

OWN = "_dasktune_"
"""Begins the names of attributes that dasktune itself keeps in a trainer and its class."""

HARMLESS = "harmless_differences"
"""Attribute of trainers that names what may differ after loading. It decides no result, so it is
no part of a fingerprint, and compared nowhere."""

LOGGERS = f"{OWN}loggers"
"""Attribute of a trainer class: the loggers that it brings to each study that trains it."""

METHODS = ("build", "train", "evaluate", "state_dict", "load_state_dict")
"""Methods that a trainer must have, in the order of first use."""

GivenTrainer = type | Callable[[Any], object]
"""What users train with: a trainer class, or a function of a `dasktune.Run`."""


class Trainer:
    """One training run: build it, train a step, evaluate, save and restore it.

    Subclassing is optional: any class with the methods is a trainer. `setup` is needed only if a
    value changes while a trial is trained. An ``__init__`` is optional, too, and takes no
    arguments, because workers make the trainers.

    Attributes
    ----------
    version
        Part of the fingerprint: change it after a change that the source does not show. Older
        states are then not used again.
    ignored_config
        Names of config keys that do not decide the result, such as a data folder.
    harmless_differences
        What `check_resume` may find different after loading although no result depends on it,
        such as ``("trainer.started", "global CACHE")``: the paths that its report names, or what
        they are parts of.
    model_endings
        The endings of the files for which `model_file` returns the content, such as ``".json"``.
    requires_process
        Whether it uses process-wide state (global generators, thread counts), so that only
        one trainer may run in a process.
    config
        The ``config`` of the study; set before `build`.
    seed
        The training seed of this lineage; set before `build`.
    device
        The device for training, such as ``"cpu"`` or ``"cuda:0"``; set before `build`.

    Notes
    -----
    The order of calls is a contract. From the start: ``build(values at 0)``,
    ``setup(all values at 0)``, ``train()``, and then for every step ``setup(changed
    values)``, only if a value changed, and ``train()``. Resumed: ``build(values at 0)``,
    ``setup(all values at the last step before)``, ``load_state_dict(state)``, and then the
    same calls as without the stop.

    The mapping that `setup` gets shows the changed values (``in``, iteration, ``items()``,
    ``get``); ``hp[name]`` gives the current value of any hyper-parameter.

    Examples
    --------
    >>> class Descent(Trainer):
    ...     def build(self, hp):
    ...         self.weight, self.lr = 1.0, hp["lr"]
    ...     def train(self):
    ...         self.weight -= self.lr * 2 * self.weight
    ...     def evaluate(self):
    ...         return {"loss": self.weight**2}
    ...     def state_dict(self):
    ...         return {"weight": self.weight}
    ...     def load_state_dict(self, state):
    ...         self.weight = state["weight"]
    >>> problems_of(Descent)
    ()
    """

    version: ClassVar[str] = "1"
    ignored_config: ClassVar[tuple[str, ...]] = ()
    harmless_differences: ClassVar[tuple[str, ...]] = ()
    model_endings: ClassVar[tuple[str, ...]] = ()
    requires_process: ClassVar[bool] = False

    config: dict[str, object]
    seed: int
    device: str

    def build(self, hp: Mapping[str, Value]) -> None:
        """Make model, data and optimizer; `hp` holds the values at step 0."""
        _must_define(self, "build")

    def setup(self, hp: Mapping[str, Value]) -> None:
        """Use the values that change at the coming step."""

    def train(self) -> None:
        """Train one step."""
        _must_define(self, "train")

    def evaluate(self) -> Mapping[str, float]:
        """Return the metrics of the model; leave no trace."""
        _must_define(self, "evaluate")

    def state_dict(self) -> Mapping[str, object]:
        """Return everything that the next step depends on."""
        _must_define(self, "state_dict")

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore the state that `state_dict` returned."""
        _must_define(self, "load_state_dict")

    def model_file(self, ending: str) -> bytes:
        """Return the content of a file of the model, with one of `model_endings`."""
        _must_define(self, "model_file")

    @classmethod
    def name_problems(cls, names: Collection[str]) -> Iterable[str]:
        """Return why it cannot train hyper-parameters of these names.

        A new study asks without names, for what is wrong with the class; a new tuner asks for the
        names of its space.
        """
        return ()

    @classmethod
    def metric_problems(cls, metrics: Collection[str]) -> Iterable[str]:
        """Return why it cannot report these metrics; a new study asks for its own."""
        return ()

    @classmethod
    def change_problems(
        cls, sequences: Sequences, changing: Collection[str], config: Mapping[str, object]
    ) -> Iterable[str]:
        """Return why it cannot train a trial in which these hyper-parameters change.

        A new tuner and a preview ask for configurations that are known before they run.
        """
        return ()

    def building(self) -> AbstractContextManager[None]:
        """Return the context in which `build` is called."""
        return nullcontext()

    def evaluating(self) -> AbstractContextManager[None]:
        """Return the context in which `evaluate` is called."""
        return nullcontext()


def problems_of(trainer_class: object) -> tuple[str, ...]:
    """Return why a class or function is not a trainer; empty for a trainer.

    The check runs none of its code.

    Examples
    --------
    >>> problems_of(3)
    ('the trainer must be a class or a function, got 3',)
    """
    if inspect.isfunction(trainer_class):
        return tuple(_function_problems(trainer_class))
    if not isinstance(trainer_class, type):
        got = f"the trainer must be a class or a function, got {trainer_class!r}"
        return (f"{got}{_hint(trainer_class)}",)
    name = trainer_class.__name__
    problems = [
        problem
        for method in METHODS
        if (problem := _method_problem(trainer_class, method)) is not None
    ]
    if (needed := _required_arguments(trainer_class)) is not None:
        problems.append(f"{name}.__init__ must take no arguments, got {needed}")
    for attribute in ("ignored_config", HARMLESS):
        names = getattr(trainer_class, attribute, ())
        if isinstance(names, str) or not all(isinstance(key, str) and key for key in names):
            problems.append(f"{name}.{attribute} must be a tuple of names, got {names!r}")
    if divides(trainer_class) and (problem := division_problem(trainer_class)) is not None:
        problems.append(problem)
    return tuple(problems)


def name_problems_of(trainer_class: type | None, names: Collection[str]) -> tuple[str, ...]:
    """Return why a trainer class cannot train hyper-parameters of these names, if it knows."""
    if trainer_class is None or not issubclass(trainer_class, Trainer):
        return ()
    return tuple(trainer_class.name_problems(names))


def metric_problems_of(trainer_class: type | None, metrics: Collection[str]) -> tuple[str, ...]:
    """Return why a trainer class cannot report these metrics, if it knows."""
    if trainer_class is None or not issubclass(trainer_class, Trainer):
        return ()
    return tuple(trainer_class.metric_problems(metrics))


def change_problems_of(
    trainer_class: type | None,
    configurations: Iterable[Sequences],
    max_steps: Step,
    config: Mapping[str, object],
) -> Iterator[str]:
    """Yield why a trainer class cannot train configurations, if it knows.

    It is asked once for all configurations in which the same hyper-parameters change.
    """
    if trainer_class is None or not issubclass(trainer_class, Trainer):
        return
    asked: set[frozenset[str]] = {frozenset()}
    for sequences in configurations:
        ends = {name: each.constant_until(0) for name, each in sequences.items()}
        changing = frozenset(
            name for name, end in ends.items() if end is not None and end < max_steps
        )
        if changing not in asked:
            asked.add(changing)
            yield from trainer_class.change_problems(sequences, changing, config)


def has_setup(trainer: object) -> bool:
    """Return whether a trainer defines `setup` itself."""
    return getattr(type(trainer), "setup", None) not in (None, Trainer.setup)


def harmless_of(trainer_class: type) -> tuple[str, ...]:
    """Return the parts that a trainer class and its bases name as harmless.

    Items of the config that decide no result are among them.

    Examples
    --------
    >>> class Own(Trainer):
    ...     harmless_differences = ("trainer.log",)
    >>> harmless_of(type("Below", (Own,), {"harmless_differences": ("trainer.bar",)}))
    ('trainer.bar', 'trainer.log')
    """
    named = (vars(base).get(HARMLESS, ()) for base in trainer_class.__mro__)
    ignored = (f"trainer.config[{key!r}]" for key in getattr(trainer_class, "ignored_config", ()))
    return tuple(dict.fromkeys([*(path for paths in named for path in paths), *ignored]))


def is_harmless(path: str, harmless: tuple[str, ...]) -> bool:
    """Return whether a trainer names a path, or what it is a part of, as harmless.

    Examples
    --------
    >>> is_harmless("trainer.log['seconds']", ("trainer.log",))
    True
    >>> is_harmless("trainer.logged", ("trainer.log",))
    False
    >>> is_harmless("len(trainer.log['seconds'])", ("trainer.log",))
    True
    >>> is_harmless("trainer.rows (a generator)", ("trainer.rows",))
    True
    """
    place = holder_of(path)
    return any(
        place == (name := holder_of(each)) or (place.startswith(name) and place[len(name)] in ".[")
        for each in harmless
    )


_WITHIN = re.compile(r" \((?:an? (?:generator|iterator)|its \w+|a \w+, part \d+)\).*", re.DOTALL)
"""The end of the path of a position, an order or another part that has no name in the code."""


def holder_of(path: str) -> str:
    """Return the path of the value of which a path names the length, position or order.

    Examples
    --------
    >>> holder_of("len(trainer.log)"), holder_of("trainer.rows (an iterator)[0]")
    ('trainer.log', 'trainer.rows')
    >>> holder_of("trainer.log['a (b)']")
    "trainer.log['a (b)']"
    """
    if path.startswith("len(") and path.endswith(")"):
        path = path[len("len(") : -1]
    return _WITHIN.sub("", path)


def divides(trainer_class: object) -> bool:
    """Return whether a trainer says that several devices may train it together."""
    return bool(getattr(trainer_class, "divides", False))


def division_problem(trainer_class: type) -> str | None:
    """Return why several devices cannot train a trainer together; None if they can."""
    if divides(trainer_class) and hasattr(trainer_class, "common_digest"):
        return None
    if hasattr(trainer_class, "function") and hasattr(trainer_class, "common_digest"):
        return (
            f"{trainer_class.__name__} is a function, which trains on one device; several devices "
            "need a TorchTrainer with divides = True"
        )
    return (
        f"{trainer_class.__name__} must be a TorchTrainer with divides = True, whose train() uses "
        "self.divided(module) and self.share(batch), to be trained on several devices"
    )


def _hint(given: object) -> str:
    """Return how to turn something else into a trainer, as the end of a message."""
    if isinstance(given, partial):
        return "; give the function itself, and its further arguments as config, for run.config"
    if inspect.ismethod(given):
        return (
            "; a method depends on its object, which is unknown to workers and fingerprints: "
            "write a function, and give what it needs as config"
        )
    if not problems_of(type(given)):
        return f"; give the class itself, {type(given).__name__}, of which workers make objects"
    return "; write a function, and give what it needs as config" if callable(given) else ""


def _function_problems(function: FunctionType) -> Iterator[str]:
    name = function.__qualname__
    if function.__name__ == "<lambda>":
        yield "a lambda cannot loop over run.steps(): write the training function with def"
        return
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        yield f"{name} must be a plain function, without async and yield"
        return
    needed = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
    ]
    if len(needed) != 1 or needed[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        yield f"{name} must take one argument, the run, got {inspect.signature(function)}"
    elif _counts_anew(function):
        yield (
            f"{name} must not use enumerate(run.steps()), which counts from 0 where a trial goes "
            "on: 'for step in run.steps()' gives the step of the trial"
        )


def _counts_anew(function: FunctionType) -> bool:
    """Return whether a function enumerates the steps of its run, as far as its source shows it."""
    tree, steps = definition_of(function), f"{function.__code__.co_varnames[0]}.steps()"
    calls = [] if tree is None else [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        ast.unparse(call.func) == "enumerate" and ast.unparse(call.args[0]) == steps
        for call in calls
        if call.args
    )


def _method_problem(trainer_class: type, method: str) -> str | None:
    member = getattr(trainer_class, method, None)
    name = trainer_class.__name__
    if member is None or member is getattr(Trainer, method):
        return f"{name} must define {method}()"
    if not callable(member):
        return f"{name}.{method} must be a method, got {member!r}"
    return None


def _required_arguments(trainer_class: type) -> str | None:
    """Return the names of the required arguments of ``__init__``, or None."""
    initialise = getattr(trainer_class, "__init__")  # noqa: B009  (mypy forbids the plain access)
    if initialise is object.__init__:
        return None
    parameters = list(inspect.signature(initialise).parameters.values())[1:]
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty and parameter.kind not in starred
    ]
    return ", ".join(needed) or None


def _must_define(trainer: Trainer, method: str) -> NoReturn:
    raise TrainerError(f"{type(trainer).__name__} must define {method}()")
