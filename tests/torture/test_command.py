"""`python -m tests.torture`: seeds from the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from tests.torture.__main__ import app


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_seeds_without_a_violation() -> None:
    result = command("--seeds", 10, "--start", 5, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert (document["seeds"], document["violations"]) == (10, [])


def test_violation_is_printed_with_the_command_to_reproduce_it() -> None:
    result = command("--seeds", 5, "--bug", "report-told-twice")
    assert result.exit_code == 1
    assert "violations" in result.stdout
    line = next(
        line for line in result.stderr.splitlines() if line.startswith("python -m tests.torture")
    )
    again = command(*line.split()[3:])
    assert again.exit_code == 1
    assert again.stderr in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--most", 2), "--most and --only need --seed"),
        (("--bug", "typo"), "unknown bug 'typo'; known: attempt-kept, "),
        (("--seed", 1, "--only", "flood"), "unknown fault 'flood'; known: break, clock, cloud"),
    ],
)
def test_a_wrong_use_is_refused(arguments: tuple[object, ...], message: str) -> None:
    result = command(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
