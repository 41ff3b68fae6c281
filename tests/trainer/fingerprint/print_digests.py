"""Print the digests of all programs of `programs` as JSON, by name: ``first`` or ``last`` first.

Run as a module in a process of its own. Programs with NumPy or torch are left out on request
(``plain``), because a digest may name what these make.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

from dasktune.errors import ConfigurationError
from dasktune.trainer import settings
from dasktune.trainer.fingerprint.fingerprint import fingerprint
from dasktune.trainer.settings import SETTINGS

from .programs import CHANGED, UNCHANGED, both

PACKAGES = ("dasktune", "numpy", "pandas", "torch")


def load(path: Path, text: str) -> ModuleType:
    """Import a program as the module ``program`` from a file."""
    path.parent.mkdir(parents=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["program"] = module
    spec.loader.exec_module(module)
    return module


def restore_settings() -> None:
    """Give all settings the values of a new process."""
    if (options := settings.options_of_builds()) is not None:
        options.take_back()  # those of a trainer that an earlier test has built
    for setting in SETTINGS.values():
        if setting.module in sys.modules and setting.read() != setting.default:
            setting.write(setting.default)


def is_plain(text: str) -> bool:
    """Return whether a program needs and changes no package."""
    return not any(f"import {name}" in text or f"from {name}" in text for name in PACKAGES)


def digests(order: str, *, plain: bool) -> dict[str, str]:
    """Return the digest of each program; those that set attributes of Python come not."""
    texts = {
        f"{name} [{number}]": text
        for name, pair in {**CHANGED, **UNCHANGED}.items()
        for number, text in enumerate(both(pair))
        if "math.tanh" not in text and "math.pi" not in text and "string import" not in text
        if "fractions import Fraction\nFraction." not in text and "torch.Tensor.relu" not in text
        if not plain or is_plain(text)
    }
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, text) in enumerate(sorted(texts.items(), reverse=order == "last")):
            module = load(Path(folder, str(number), "program.py"), text)
            try:
                found[name] = fingerprint(module.Net, {}).digest
            except ConfigurationError as error:
                found[name] = str(error)
            restore_settings()
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    order, kind = sys.argv[1:]
    print(json.dumps(digests(order, plain=kind == "plain"), sort_keys=True))
