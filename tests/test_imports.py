"""Starting is quick: what is heavy is imported when it is used."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.process

HEAVY = {"dask", "distributed", "optuna", "pandas", "sqlalchemy", "torch", "zarr"}
REPORT = "import json; sys.stderr.write(json.dumps(sorted(sys.modules)))"
HELP = f"""
import sys
sys.argv = ["dasktune", "--help"]
from dasktune.cli import main
try:
    main()
finally:
    {REPORT}
"""


def modules_after(program: str) -> set[str]:
    """Return the top-level modules that a new process holds after a program."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.partition(".")[0] for name in json.loads(done.stderr)}


def test_the_measure_sees_a_heavy_import() -> None:
    assert HEAVY & modules_after(f"import sys, dask; {REPORT}") == {"dask"}


def test_import_dasktune_is_light() -> None:
    assert HEAVY & modules_after(f"import sys, dasktune; {REPORT}") == set()


@pytest.mark.skipif(find_spec("dasktune.cli") is None, reason="there is no command yet")
def test_the_commands_help_is_light() -> None:
    assert HEAVY & modules_after(HELP) == set()
