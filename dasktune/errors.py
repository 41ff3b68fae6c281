"""The errors that users meet: one class per reaction of the caller.

==========================  =====================================================
class                       reaction of the caller
==========================  =====================================================
``ConfigurationError``      corrects the arguments; nothing has run yet
``StateError``              corrects the trainer's ``state_dict``
``TrainerError``            reads the traceback of the trial; others continued
``StorageError``            repairs the store or database and runs again
``CorruptCheckpointError``  nothing: the state is trained again
``ClusterError``            repairs the cluster and runs again
``InternalError``           reports a bug
==========================  =====================================================

All are picklable with their attributes, because they travel between processes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from inspect import Parameter, Signature
from typing import Final

_BY_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_NONE: Final = Parameter.empty


class DasktuneError(Exception):
    """Base of every error that dasktune raises on purpose."""


class ConfigurationError(DasktuneError, ValueError):
    """The arguments are wrong; refused before anything ran.

    Parameters
    ----------
    problems
        One sentence per problem, each with the condition and the value given. All problems
        are reported at once.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        return "\n".join(f"- {problem}" for problem in self.problems)


class StateError(DasktuneError, TypeError):
    """A trainer's state holds a value that cannot be stored.

    Parameters
    ----------
    path
        Place of the value in the state, such as ``state['optimizer'][0]``.
    reason
        The condition and the value given.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class TrainerError(DasktuneError):
    """User code failed while it built, trained, evaluated, saved or loaded.

    Parameters
    ----------
    message
        The last line of the failure.
    traceback
        The whole traceback as text, empty if there is none.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message, traceback)
        self.message, self.traceback = message, traceback

    def __str__(self) -> str:
        return self.message


class UnknownValueError(TrainerError, KeyError):
    """User code reads a hyper-parameter that its trial does not have."""


class ResumeError(TrainerError):
    """A trainer that has loaded a state is not the one that saved it; nothing was trained.

    Parameters
    ----------
    message
        What differs, in words.
    traceback
        The traceback if its `load_state_dict` raised; else empty.
    paths
        The parts that differ.
    """

    def __init__(self, message: str, traceback: str = "", paths: Sequence[str] = ()) -> None:
        super().__init__(message, traceback)
        self.args = message, traceback, tuple(paths)
        self.paths = tuple(paths)


class StorageError(DasktuneError):
    """A checkpoint store or database cannot be used in its present condition."""


class CorruptCheckpointError(StorageError):
    """A checkpoint is missing, cut short or altered; its state must be trained again.

    Parameters
    ----------
    message
        The damage.
    attempt
        The attempt that wrote the checkpoint; empty without a readable commit.
    """

    def __init__(self, message: str, attempt: str = "") -> None:
        super().__init__(message, attempt)
        self.message, self.attempt = message, attempt

    def __str__(self) -> str:
        return self.message


class FencedError(StorageError):
    """Another driver has begun to run the study: this one must write no more events."""


class CorruptRecordError(StorageError):
    """A study or trial row in the database is corrupt or was written by another program."""


class ClusterError(DasktuneError):
    """The Dask cluster cannot run the study in its present condition."""


class InternalError(DasktuneError):
    """An invariant of dasktune itself does not hold: a bug, please report it."""


MOST_LETTERS = 100
"""Letters of a value that `shown` shows."""

MOST_PLAIN = 300
"""Letters of a text that `plain` shows."""

MOST_KNOWN = 30
"""Names that `unknown` lists where one of them is near."""


def refuse(problems: Iterable[str]) -> None:
    """Raise one `ConfigurationError` with all the problems, if there are any."""
    if every := tuple(problems):
        raise ConfigurationError(*every)


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """Return the sentence for an unknown name: all known names, and the nearest one if one is near.

    More than `MOST_KNOWN` names are left out if one of them is near.

    Examples
    --------
    >>> unknown("metric", "acc", ["loss", "accuracy"])
    "unknown metric 'acc'; known: accuracy, loss"
    >>> unknown("metric", "acuracy", ["loss", "accuracy"])
    "unknown metric 'acuracy'; known: accuracy, loss; did you mean 'accuracy'?"
    """
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    listed = [] if near and len(names) > MOST_KNOWN else [f"known: {', '.join(names) or '(none)'}"]
    meant = [f"did you mean {near[0]!r}?"] if near else []
    return "; ".join([f"unknown {kind} {name!r}", *listed, *meant])


def call_problems(
    name: str,
    signature: Signature,
    args: Sequence[object],
    options: Collection[str],
    *,
    example: str = "",
) -> list[str]:
    """Return the problems of a call: unknown, missing and doubled arguments, too many by position.

    Parameters
    ----------
    name
        The function or class that is called.
    signature
        Its signature.
    args, options
        The arguments by position, and the names of the others.
    example
        What follows the problem of a missing argument, such as a call that has it.

    Examples
    --------
    >>> from inspect import signature
    >>> call_problems("Grid", signature(lambda space, *, max_steps, seed=0: ...), ["x"], ["n"])
    ["unknown option of Grid 'n'; known: max_steps, seed, space", 'Grid must be given max_steps']
    """
    parameters = {known.name: known for known in signature.parameters.values()}
    kinds = {parameter.kind for parameter in parameters.values()}
    takes_any = Parameter.VAR_KEYWORD in kinds
    known = [
        key for key, each in parameters.items() if each.kind not in _VARIABLE and key != "self"
    ]
    problems = [
        unknown(f"option of {name}", option, known)
        for option in options
        if option not in known and not takes_any
    ]
    by_place = [key for key, each in parameters.items() if each.kind in _BY_PLACE]
    if len(args) > len(by_place) and Parameter.VAR_POSITIONAL not in kinds:
        taken = ", ".join(key for key in by_place if key != "self") or "nothing"
        others = ", ".join(key for key in known if key not in by_place)
        problems.append(f"{name} takes only {taken} without a name; name the others: {others}")
        return problems
    given = {*by_place[: len(args)], *options}
    problems += [
        f"{name} takes {key} once, got it by its place and by its name"
        for key in by_place[: len(args)]
        if key in options
    ]
    missing = [key for key in known if key not in given and parameters[key].default is _NONE]
    if missing:
        problems.append(f"{name} must be given {' and '.join(missing)}{example}")
    return problems


def shown(value: object) -> str:
    """Return a value for a message, also one that has no text or too long a text.

    Examples
    --------
    >>> shown(7), shown("9" * 400) == "'" + "9" * 96 + "..."
    ('7', True)
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - nested too deep, too many digits, or code of a user
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."


def text_of(error: BaseException) -> str:
    """Return the text of somebody else's error, also of one whose text cannot be made.

    Examples
    --------
    >>> text_of(ValueError("no disk"))
    'no disk'
    """
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is code of a user or a library
        return "its text cannot be shown"


def plain(text: str) -> str:
    r"""Return a text of somebody else's for a message: on one line, printable and short.

    Examples
    --------
    >>> print(plain("no disk\n  left on \x1b[31mnode7"))
    no disk left on \x1b[31mnode7
    """
    letters = (
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in " ".join(text[: 2 * MOST_PLAIN].split())
    )
    line = "".join(letters)
    return line if len(line) <= MOST_PLAIN else f"{line[: MOST_PLAIN - 3]}..."


def name_problems(what: str, name: str) -> list[str]:
    """Return the problems of a name: it must be fit for terminals, logs and pages.

    Examples
    --------
    >>> name_problems("metric", "loss"), name_problems("metric", "")
    ([], ["metric must be a string that is not empty, got ''"])
    """
    if not name.strip():
        return [f"{what} must be a string that is not empty, got {name!r}"]
    if not name.isprintable() and any(map(_is_unfit, name)):
        return [f"{what} must have no control characters and no surrogates, got {name!r}"]
    return []


def _is_unfit(letter: str) -> bool:
    """Return whether a letter is a control character or half of a surrogate pair."""
    return letter < " " or "\x7f" <= letter < "\xa0" or "\ud800" <= letter <= "\udfff"
