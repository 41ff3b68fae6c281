"""Define-by-run spaces: a function that suggests values and returns hyper-parameters.

As in Optuna's objectives, a suggestion may depend on the values before it. The function may also be
the one that trains: its suggestions then come first, and it is run as far as these go.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Protocol

import numpy as np

from dasktune.errors import ConfigurationError, name_problems, refuse, text_of
from dasktune.sequences import Constant, Sequence, as_sequence
from dasktune.sequences.values import BY_NAME
from dasktune.space.domains import Choice, Chooser, Domain, Drawing, Float, Int
from dasktune.space.drawing import PointChooser, RecordingChooser
from dasktune.space.later_suggestions import above, later_suggestion, passed
from dasktune.space.space import Configuration, Space, space_problem
from dasktune.types import Value

_PROBES: Final = 8
"""Random points at which a new function is tried."""


OF_A_RUN: Final = frozenset(
    {"config", "items", "keep_fixed", "keys", "loader", "report", "state", "step", "steps", "track"}
    | {"values"}
)
"""Names of a `dasktune.Run` at which the suggestions of a training function end."""

HINTS: Final = {
    "should_prune": "; the tuner stops and pauses trials, leave it out",
    "suggest_uniform": "; use run.suggest_float",
    "suggest_loguniform": "; use run.suggest_float with log=True",
    "params": "; run is a mapping of the values: run[name], dict(run)",
    "number": "; what a trial computes must not depend on its number",
}
"""By name, what stands for an attribute of Optuna's trials."""


class _SuggestionsEnded(BaseException):
    """Raised where a training function first uses its run for more than suggestions."""


class _NotChosen(BaseException):
    """Raised where the chooser has no value; a handler of the user's function does not catch it."""


class Suggesting:
    """The argument of a define-by-run function; it suggests values by name.

    A repeated suggestion under one name gives the same value.

    Parameters
    ----------
    chooser
        Chooses the values.

    """

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._asked: dict[str, tuple[Domain, object]] = {}

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a float from `low` to `high`, both included; see `dasktune.space.Float`."""
        return float(self.suggest(name, Float(low, high, step=step, log=log)))  # type: ignore[arg-type]

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """Return an int from `low` to `high`, both included; see `dasktune.space.Int`."""
        return int(self.suggest(name, Int(low, high, step=step, log=log)))  # type: ignore[call-overload,no-any-return]

    def suggest_categorical(self, name: str, choices: Iterable[object]) -> object:
        """Return one of the choices: plain values, sequences, or tuples of values."""
        options = Choice(choices)
        refuse(
            f"{name}: choices must be values, got {option!r}; suggest its values instead"
            for option in options.options
            if isinstance(option, Domain)
        )
        return self.suggest(name, options)

    def __getitem__(self, name: str) -> object:
        """Return a value that was suggested before."""
        if name not in self._asked:
            names = ", ".join(self._asked) or "(none)"
            raise ConfigurationError(
                f"the value of {name!r} must be suggested before it is read; suggested so far: "
                f"{names}"
            )
        return self._asked[name][1]

    def __contains__(self, name: object) -> bool:
        return name in self._asked or self._end()

    def __iter__(self) -> NoReturn:
        self._end()

    def __len__(self) -> NoReturn:
        self._end()

    def get(self, name: str, default: object = None) -> object:
        """Return a value that was suggested before; else the suggestions have ended."""
        return self._asked[name][1] if name in self else default

    def __getattr__(self, name: str) -> NoReturn:
        if name in OF_A_RUN:
            self._end()
        raise AttributeError(
            f"a run has no attribute {name!r}{HINTS.get(name, '')}; suggest_float, suggest_int and "
            "suggest_categorical suggest values"
        )

    @property
    def device(self) -> str:
        """A placeholder, if suggestions follow; else the suggestions have ended."""
        self._end_unless_suggested(inspect.currentframe())
        return "cpu"

    @property
    def seed(self) -> int:
        """A placeholder, if suggestions follow; else the suggestions have ended."""
        self._end_unless_suggested(inspect.currentframe())
        return 0

    def _end_unless_suggested(self, here: FrameType | None) -> None:
        """End the suggestions, unless others may follow: the rest may be costly, or need a GPU."""
        caller = None if here is None else here.f_back
        if later_suggestion(above(caller, __file__), self._asked) is None:
            self._end()

    def _end(self) -> NoReturn:
        raise _SuggestionsEnded

    def ended(self) -> dict[str, object]:
        """Return the hyper-parameters of a training function that has suggested all of them.

        Raises
        ------
        ConfigurationError
            If there are none, or options that have no plain value.
        """
        if not self._asked:
            raise ConfigurationError(
                "a training function must suggest its values before it uses its run otherwise, "
                "got no suggestion; or give its tuner a Space"
            )
        refuse(
            f"{name}: choices of a training function must be plain values, got {option!r}; give "
            f"{BY_NAME} in the function"
            for name, (domain, _) in self._asked.items()
            for option in (domain.options if isinstance(domain, Choice) else ())
            if isinstance(option, Sequence | tuple)
        )
        return {name: value for name, (_, value) in self._asked.items()}

    @property
    def params(self) -> dict[str, Value]:
        """The values so far by name, as tables show them."""
        return {name: _plain(value) for name, (_, value) in self._asked.items()}

    def suggest(self, name: str, domain: Domain) -> object:
        """Return the value of a domain."""
        if type(name) is not str or not name:
            raise ConfigurationError(f"a name must be a string that is not empty, got {name!r}")
        refuse(name_problems("a name", name))
        known, value = self._asked.get(name, (domain, None))
        if known.to_json() != domain.to_json():
            raise ConfigurationError(
                f"{name!r} must be asked for with one domain, got {known} and {domain}"
            )
        if name not in self._asked:
            try:
                value = domain.choose(name, self._chooser)
            except Exception as error:
                raise _NotChosen from error
            self._asked[name] = domain, value
        return value


Definition = Callable[[Suggesting], Mapping[str, object]]
"""A function that defines a space: returns values and sequences by hyper-parameter."""


class DefinedByRun:
    """A search space that a function defines by running.

    The constructor calls the function twice at 8 random points, so that its errors show before any
    training. With equal suggestions it must return equal hyper-parameters. Where it raises (as
    ``optuna.TrialPruned`` for values that do not fit together), the trial fails with that reason
    and is not trained.

    Parameters
    ----------
    function
        A function that calls ``suggest_float``, ``suggest_int`` and ``suggest_categorical``,
        with the same meaning as in Optuna, and returns the hyper-parameters: plain values or
        sequences by name. Or a function that trains (see `dasktune.Run`): it is run up to the first
        use of its run that is no suggestion, and its hyper-parameters are the suggested values.

    Raises
    ------
    ConfigurationError
        If the argument is no function, or the function raises at all of these points, returns
        anything else, or suggests one name with two domains. The message has file and line.

    Examples
    --------
    >>> from dasktune.sequences import Exponential, Warmup
    >>> def space(trial):
    ...     lr = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
    ...     if trial.suggest_categorical("warmup", [True, False]):
    ...         return {"lr": Warmup(trial.suggest_int("steps", 1, 9), lr) >> lr}
    ...     return {"lr": Exponential(lr, gamma=0.9)}
    >>> DefinedByRun(space).at({"lr": 0.1, "warmup": True, "steps": 5}).sequences
    {'lr': Warmup(5, 0.1) >> Constant(0.1)}
    """

    def __init__(self, function: Definition) -> None:
        if not callable(function) or isinstance(function, type):
            raise ConfigurationError(space_problem(function, "a Space or a function"))
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__qualname__)
        self._file, self._where = _place(function, self._name)
        self._digest = self._probed()

    def pick(self, chooser: Chooser) -> Configuration:
        """Return the configuration with the coordinates that `chooser` chooses."""
        return self._drawn(chooser)[0]

    def _drawn(self, chooser: Chooser) -> tuple[Configuration, ConfigurationError | None]:
        """Return a configuration, and the error of the function if it has not come to its end."""
        recorder = RecordingChooser(chooser)
        suggesting, error = Suggesting(recorder), None
        try:
            sequences = self._sequences(self._returned(suggesting))
        except _NotChosen as not_chosen:
            self._refuse_choice(not_chosen)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # noqa: BLE001 - one trial fails, also by sys.exit()
            error = self._error(raised, suggesting)
            sequences = {name: Constant(value) for name, value in suggesting.params.items()}
        configuration = Configuration(
            params=suggesting.params,
            sequences=sequences,
            point=recorder.point,
            domains=recorder.domains,
            problem="" if error is None else str(error),
        )
        return configuration, error

    def _returned(self, suggesting: Suggesting) -> object:
        """Return the return value of the function, or the drawn values if it trains."""
        try:
            return self._function(suggesting)
        except _SuggestionsEnded as end:
            values = suggesting.ended()
            places = passed(end.__traceback__, __file__)
            if (line := later_suggestion(places, suggesting.params)) is not None:
                raise ConfigurationError(
                    f"{self._line(end.__traceback__)}: this line uses the run, so all values must "
                    f"be suggested before it, got a suggestion behind this line, at {line}; move "
                    "that suggestion up (only run[name], run.device and run.seed may stand before "
                    "a suggestion)"
                ) from None
            return values

    def _refuse_choice(self, not_chosen: _NotChosen) -> NoReturn:
        """Raise the error of the chooser, with the line that suggests."""
        error = not_chosen.__cause__
        if not isinstance(error, ConfigurationError):
            raise error or not_chosen
        where = self._line(not_chosen.__traceback__)
        raise ConfigurationError(*(f"{where}: {text}" for text in error.problems)) from error

    def _error(self, raised: BaseException, suggesting: Suggesting) -> ConfigurationError:
        """Return the error for what the function has raised, with the line and the values."""
        where = self._line(raised.__traceback__)
        if isinstance(raised, ConfigurationError):
            own = f"{self._file}:"
            problems = [
                text if text.startswith(own) else f"{where}: {text}" for text in raised.problems
            ]
        else:
            problems = [
                f"{where}: {self._name} must give a configuration; for {suggesting.params} it "
                f"raised {type(raised).__name__}: {text_of(raised)}"
            ]
        error = ConfigurationError(*problems)
        error.__cause__ = raised
        return error

    def at(self, point: Mapping[str, Value], otherwise: Chooser | None = None) -> Configuration:
        """Return the configuration at a point, as `dasktune.space.Space.at` does."""
        following = PointChooser(point, otherwise)
        configuration = self.pick(following)
        if not configuration.problem:  # or it has fewer coordinates than it might have
            following.check(configuration.point)
        return configuration

    def sample(self, rng: np.random.Generator) -> Configuration:
        """Return a random configuration; each coordinate is drawn on its own."""
        return self.pick(Drawing(rng))

    def to_json(self) -> dict[str, object]:
        """Return the identity: the function's name, and a digest of its results at the probes."""
        module = getattr(self._function, "__module__", None)
        return {"function": f"{module}.{self._name}", "gives": self._digest}

    def _probed(self) -> str:
        probes, errors = [], []
        for seed in range(_PROBES):
            probe, error = self._drawn(Drawing(np.random.default_rng(seed)))
            errors += [] if error is None else [error]
            if error is not None and isinstance(error.__cause__, ConfigurationError):
                raise error
            if self.at(probe.point) != probe:
                raise ConfigurationError(
                    f"{self._where}: {self._name} must give the same whenever the same is "
                    f"suggested, got two configurations for {dict(probe.point)}"
                )
            sequences = {name: sequence.to_json() for name, sequence in probe.sequences.items()}
            of_failure = [] if error is None else [type(error.__cause__).__name__]
            probes.append([probe.params, probe.point, probe.domains, sequences, *of_failure])
        if len(errors) == _PROBES:
            raise errors[0]
        return blake2b(json.dumps(probes).encode(), digest_size=16).hexdigest()

    def _sequences(self, returned: object) -> dict[str, Sequence]:
        if not isinstance(returned, Mapping) or not returned:
            raise ConfigurationError(
                f"{self._where}: {self._name} must return hyper-parameters by name, "
                f"got {returned!r}"
            )
        problems: list[str] = []
        sequences: dict[str, Sequence] = {}
        for name, value in returned.items():
            if type(name) is not str or not name:
                problems.append(f"a name must be a string that is not empty, got {name!r}")
                continue
            problems += name_problems("a name", name)
            try:
                sequences[name] = as_sequence(value)
            except ConfigurationError as error:
                problems += [f"{name}: {text}" for text in error.problems]
        refuse(f"{self._where}: {text}" for text in problems)
        return sequences

    def _line(self, trace: TracebackType | None) -> str:
        """Return the last line in the function's file that a traceback names."""
        where = self._where
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self._file:
                where = f"{self._file}:{trace.tb_lineno}"
            trace = trace.tb_next
        return where


AnySpace = Space | DefinedByRun
"""A space of either kind."""


class SpaceLike(Protocol):
    """The methods of a space that samplers call; the space of one model has them, too."""

    def pick(self, chooser: Chooser) -> Configuration:
        """Return the configuration with the coordinates that `chooser` chooses."""

    def at(self, point: Mapping[str, Value], otherwise: Chooser | None = None) -> Configuration:
        """Return the configuration at a point, as `dasktune.space.Space.at` does."""


def space_of(given: Space | DefinedByRun | Definition) -> AnySpace:
    """Return a space as it is, and a function as the space that it defines.

    Raises
    ------
    ConfigurationError
        If it is neither, or the function has an error.
    """
    return given if isinstance(given, Space | DefinedByRun) else DefinedByRun(given)


def _place(function: Any, name: str) -> tuple[str, str]:
    """Return the file of a function, and its first line as ``file:line``."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(function.__call__, "__code__", None)
    file = getattr(code, "co_filename", "")
    return file, f"{file}:{code.co_firstlineno}" if code else name


def _plain(value: object) -> Value:
    return repr(value) if isinstance(value, Sequence | tuple) else value  # type: ignore[return-value]
