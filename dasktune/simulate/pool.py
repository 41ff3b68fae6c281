"""Simulated workers by class: how many there are, what they have, how long a step takes on each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping

from dasktune._engine.scaling import Scale
from dasktune._numbers import real_of, whole_of
from dasktune.errors import ConfigurationError, shown, unknown
from dasktune.needs import Amounts, Needs, Offer, needs_problems
from dasktune.traces.timing import Pace
from dasktune.types import Sequences, Step, Value

MOST_SPEED = 1e6
"""The greatest speed of a class, and one over the least: beyond it times would be infinite."""

Values = Mapping[str, Value]
"""Hyper-parameters at one step."""

StepSeconds = Callable[..., float]
"""Virtual seconds of a step, by the hyper-parameters and, with two arguments, the class.

If it has a parameter `devices`, it also gets the number of devices that train the step together.
"""

StagePace = Callable[[Sequences, Step, Step, str], Pace]
"""The pace of a stage, by its sequences, first step and end, and its worker's class."""


def pool_problems(workers: object) -> list[str]:
    """Return the reasons why a number of workers, or numbers by class, cannot be simulated."""
    if not isinstance(workers, Mapping):
        if whole_of(workers) is not None:
            return []
        return [f"workers must be an int >= 1, got {workers!r}"]
    if not workers:
        return ["workers must have at least one class, got none"]
    problems = [
        f"a class of workers must be a name, such as 'H100 80 GB', got {kind!r}"
        for kind in workers
        if not isinstance(kind, str) or not kind.isprintable() or not kind or kind != kind.strip()
    ]
    problems += [
        f"workers of class {kind!r} must be an int >= 1, got {count!r}"
        for kind, count in workers.items()
        if whole_of(count) is None
    ]
    return problems


def offer_problems(offers: object, workers: object) -> list[str]:
    """Return the reasons why the workers of a pool cannot have these amounts and tags."""
    if offers is None:
        return []
    if not isinstance(offers, Mapping):
        return [f"offers must be amounts and tags by class of workers, got {shown(offers)}"]
    classes = list(workers) if isinstance(workers, Mapping) else []
    problems = []
    for kind, offer in offers.items():
        if kind not in classes:
            problems.append(unknown("class of workers with offers", str(kind), classes))
        elif not isinstance(offer, Mapping):
            problems.append(f"offers of class {kind!r} must be a mapping, got {shown(offer)}")
        else:
            problems += [f"offers of class {kind!r}: {each}" for each in needs_problems(offer)]
    return problems


def speed_problems(speeds: object, workers: object) -> list[str]:
    """Return the reasons why the classes of a pool cannot have these speeds."""
    if speeds is None:
        return []
    if not isinstance(speeds, Mapping):
        return [f"speeds must be numbers > 0 by class of workers, got {shown(speeds)}"]
    classes = list(workers) if isinstance(workers, Mapping) else []
    problems = []
    for kind, speed in speeds.items():
        if kind not in classes:
            problems.append(unknown("class of workers with a speed", str(kind), classes))
        elif not 1 / MOST_SPEED <= real_of(speed) <= MOST_SPEED:
            problems.append(
                f"the speed of class {kind!r} must be a number > 0, from {1 / MOST_SPEED:g} to "
                f"{MOST_SPEED:g}, got {shown(speed)}"
            )
    return problems


def at_speeds(pace: StagePace, speeds: Mapping[str, float]) -> StagePace:
    """Return the pace of stages on workers whose classes have these speeds.

    Examples
    --------
    >>> from dasktune.traces.timing import EvenPace
    >>> pace = at_speeds(lambda sequences, start, stop, kind: EvenPace(1.0), {"slow": 0.25})
    >>> pace({}, 0, 3, "slow").between(0, 3), pace({}, 0, 3, "fast").between(0, 3)
    (12.0, 3.0)
    """

    def changed(sequences: Sequences, start: Step, stop: Step, kind: str) -> Pace:
        own = pace(sequences, start, stop, kind)
        return own.slower(1 / speeds[kind]) if kind in speeds else own

    return changed


def offers_of(
    workers: int | Mapping[str, int], offers: Mapping[str, Amounts] | None = None
) -> Iterator[Offer]:
    """Yield the offer of each worker.

    Examples
    --------
    >>> for offer in offers_of({"fast": 1, "slow": 2}, {"fast": {"GPU": 1, "tags": "a100"}}):
    ...     print(offer)
    fast (GPU=1, tags a100)
    slow (neither amounts nor tags)
    slow (neither amounts nor tags)
    """
    for kind in kinds_of(workers):
        (has,) = Needs.of((offers or {}).get(kind)).alternatives
        yield Offer(kind=kind, amounts=has.amounts, tags=has.tags)


def kinds_of(workers: int | Mapping[str, int]) -> Iterator[str]:
    """Yield the class of each worker; it is empty where all are of one class.

    Examples
    --------
    >>> list(kinds_of({"fast": 1, "slow": 2})), list(kinds_of(2))
    (['fast', 'slow', 'slow'], ['', ''])
    """
    counts = workers if isinstance(workers, Mapping) else {"": workers}
    for kind, count in counts.items():
        yield from [kind] * int(count)


def call_problems(given: StepSeconds) -> list[str]:
    """Return the reason why a function cannot give the seconds of a step, if there is one."""
    if _call_of(given) is not None:
        return []
    return [f"seconds_per_step must be a function of (values) or (values, kind), got {given!r}"]


def scale_problems(scale: object, seconds: object) -> list[str]:
    """Return the reasons why trials on several devices cannot be simulated."""
    if scale is None:
        return []
    if not isinstance(scale, Scale):
        return [f"scale must be dasktune.Scale, got {shown(scale)}"]
    if callable(seconds) and _takes_devices(_signature_of(seconds)):
        return []
    return [
        "scale must come with a function seconds_per_step that has a parameter devices, such as "
        f"lambda values, devices: 1 / devices, got seconds_per_step={shown(seconds)}"
    ]


def step_seconds(given: StepSeconds) -> Callable[[Values, str, int], float]:
    """Return the seconds of a step as a function of hyper-parameters, class and devices.

    A function gets the class if it cannot be called without a second argument, or if it has a
    parameter `kind`; it gets the number of devices if it has a parameter `devices`. All others are
    functions of the hyper-parameters alone.

    Raises
    ------
    ConfigurationError
        If the function can be called in none of these ways.
    """
    call = _call_of(given)
    if call is None:
        raise ConfigurationError(*call_problems(given))
    return call


def _signature_of(given: Callable[..., object]) -> inspect.Signature | None:
    """Return the signature of a function; some functions written in C do not tell it."""
    try:
        return inspect.signature(given)
    except (TypeError, ValueError):
        return None


def _takes_devices(signature: inspect.Signature | None) -> bool:
    return signature is not None and "devices" in signature.parameters


def _call_of(given: StepSeconds) -> Callable[[Values, str, int], float] | None:
    signature = _signature_of(given)
    if signature is None:
        return lambda values, kind, devices: given(values)

    def named(devices: int) -> dict[str, int]:
        return {"devices": devices} if _takes_devices(signature) else {}

    if "kind" in signature.parameters and _binds(signature, "", kind="", **named(1)):
        return lambda values, kind, devices: given(values, kind=kind, **named(devices))
    if _binds(signature, "", **named(1)):
        return lambda values, kind, devices: given(values, **named(devices))
    if _binds(signature, "", "", **named(1)):
        return lambda values, kind, devices: given(values, kind, **named(devices))
    return None


def _binds(signature: inspect.Signature, *args: str, **kwargs: str | int) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
