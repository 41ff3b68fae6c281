"""The number of devices that train a trial together, chosen by measured speed.

Late in a study fewer trials live than there are devices. A trial then gets 2, 4, 8, ... devices,
as long as there are so many for each trial that lives, and as long as more of them pay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dasktune.errors import refuse, shown

EFFICIENCY = 0.75
"""The least efficiency of several devices, unless told otherwise."""

Speedups = Mapping[int, float]
"""How many times the steps of one device several devices train in a second, by their number.

Only what was measured is in it: also the 1 of one device.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many devices may train one trial together when fewer trials live than devices.

    Parameters
    ----------
    max
        Most devices of a trial. It gets 1, 2, 4, ... of them, up to this number.
    efficiency
        The least share of their speed that devices must keep together: with 0.75, a trial gets 4
        devices if they train 3 times as many steps a second as one.

    Raises
    ------
    ConfigurationError
        If `max` is not an int >= 1, or `efficiency` is not above 0 and up to 1.

    Examples
    --------
    >>> Scale(max=8)
    Scale(max=8, efficiency=0.75)
    """

    max: int
    efficiency: float = EFFICIENCY

    def __post_init__(self) -> None:
        """Refuse all problems at once."""
        problems = []
        if type(self.max) is not int or self.max < 1:
            problems.append(f"Scale.max must be an int >= 1, got {shown(self.max)}")
        share = self.efficiency
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not (is_number and 0 < share <= 1):
            problems.append(
                f"Scale.efficiency must be a number above 0 and up to 1, got {shown(share)}"
            )
        refuse(problems)


def most_devices(scale: Scale, *, living: int, pool: Mapping[str, int]) -> int:
    """Return the most devices for each trial: as many for all that live, all of one class.

    Parameters
    ----------
    living
        The number of trials that train or wait, this one among them.
    pool
        Number of devices that may train this trial, by compute class.

    Examples
    --------
    >>> most_devices(Scale(max=8), living=2, pool={"a": 5, "b": 4})
    4
    """
    fair = min(scale.max, sum(pool.values()) // max(1, living), max(pool.values(), default=0))
    return 1 << (max(1, fair).bit_length() - 1)


def choose_devices(scale: Scale, *, most: int, speedups: Speedups) -> int:
    """Return how many devices shall train a trial: doubled up to `most` as long as that pays.

    One device must have been measured. A number that was not is tried; see `efficiency_of`.

    Examples
    --------
    >>> scale = Scale(max=8)
    >>> choose_devices(scale, most=8, speedups={1: 1.0, 2: 1.9, 4: 3.1, 8: 4.0})
    4
    >>> choose_devices(scale, most=8, speedups={1: 1.0})
    8
    >>> choose_devices(scale, most=8, speedups={})
    1
    """
    devices = 1
    while (
        1 in speedups
        and 2 * devices <= most
        and efficiency_of(2 * devices, speedups) >= scale.efficiency
    ):
        devices *= 2
    return devices


def efficiency_of(devices: int, speedups: Speedups) -> float:
    """Return the share of their speed that devices keep together, as measured or estimated.

    What was not measured follows from the next larger number that was, else from the largest, by
    Amdahl's law: of a step's time on one device a share f is not divided, so k devices keep
    ``1 / (1 + f * (k - 1))``. Where only one device was measured, they are taken to keep all.

    Examples
    --------
    >>> efficiency_of(2, {1: 1.0, 2: 1.5}), efficiency_of(2, {1: 1.0})
    (0.75, 1.0)
    >>> round(efficiency_of(3, {1: 1.0, 5: 2.5}), 3)
    0.667

    References
    ----------
    Amdahl, "Validity of the single processor approach to achieving large scale computing
    capabilities", 1967.
    """
    if devices in speedups:
        return speedups[devices] / devices
    several = [each for each in speedups if each > 1]
    if not several:
        return 1.0
    near = min(filter(devices.__lt__, several), default=max(several))
    undivided = max(0.0, (near / speedups[near] - 1) / (near - 1))
    return 1 / (1 + undivided * (devices - 1))
