"""The switch that turns the resume check and the audits off."""

from __future__ import annotations

import os

import pytest

from dasktune.errors import ConfigurationError
from dasktune.trainer.check_switch import SWITCH, checks_are_on


@pytest.mark.parametrize(("value", "is_on"), [("", True), ("on", True), ("off", False)])
def test_checks_are_on_follows_the_value(value: str, is_on: bool) -> None:
    assert checks_are_on({SWITCH: value}) is is_on


def test_checks_are_on_without_the_variable() -> None:
    assert checks_are_on({})


def test_checks_are_on_refuses_another_value() -> None:
    with pytest.raises(ConfigurationError, match=r"DASKTUNE_CHECK must be on or off, got 'no'"):
        checks_are_on({SWITCH: "no"})


def test_checks_are_off_in_this_suite() -> None:
    assert os.environ[SWITCH] == "off"
    assert not checks_are_on()
