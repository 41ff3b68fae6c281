"""`python -m tests.torture`: seeds from the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from dasktune.graph.dispatch import Dispatcher
from tests.torture.__main__ import app


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_seeds_without_a_violation() -> None:
    found = command("--seeds", 30, "--start", 5, "--json")
    assert found.exit_code == 0
    document = json.loads(found.stdout)
    assert (document["seeds"], document["violations"]) == (30, [])


def test_violation_is_printed_with_the_command_to_reproduce_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Dispatcher, "stop", lambda self, trial, now: [])
    found = command("--seeds", 30)
    assert found.exit_code == 1
    assert "violations" in found.stdout
    line = next(
        line for line in found.stderr.splitlines() if line.startswith("python -m tests.torture")
    )
    again = command(*line.split()[3:])
    assert again.exit_code == 1
    assert again.stderr in found.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--most", 2), "--most and --only need --seed"),
        (("--seed", 1, "--only", "flood"), "unknown fault 'flood'; known: break, clock, cloud"),
    ],
)
def test_a_wrong_use_is_refused(arguments: tuple[object, ...], message: str) -> None:
    found = command(*arguments)
    assert found.exit_code == 2
    assert message in found.stderr
