"""The files of this folder that can be read only with the framework that they test."""

from __future__ import annotations

from importlib.util import find_spec

READ_WITH = {
    "test_accelerate.py": "accelerate",
    "test_keras.py": "keras",
    "test_lightning.py": "lightning",
    "test_transformers.py": "transformers",
}
"""Files that derive from classes of a framework, so that no marker comes before its import."""

collect_ignore = [name for name, package in READ_WITH.items() if find_spec(package) is None]
