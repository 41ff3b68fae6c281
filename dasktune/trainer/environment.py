"""What a state is trained with beside its own code: recorded with each checkpoint."""

from __future__ import annotations

import platform
import sys

import numpy as np

from dasktune import __version__


def environment(device: str) -> dict[str, object]:
    """Return the versions and the device that training here uses; JSON.

    torch counts only where it is loaded: a trainer that does not use it does not depend
    on it.
    """
    torch = sys.modules.get("torch")
    return {
        "dasktune": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": None if torch is None else str(torch.__version__),
        "device": device,
    }
