"""Settings of the process count where they differ from defaults, and travel with the trainer."""

from __future__ import annotations

import decimal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import dasktune as dt
from dasktune.trainer import TorchTrainer, fingerprint, pack, unpack
from dasktune.trainer import settings as module
from dasktune.trainer.lifecycle import run_alone
from dasktune.trainer.settings import SETTINGS, apply_settings, carrying, changed_settings
from tests.toy_trainers import Adding

OTHER: dict[str, Any] = {
    "numpy errors": {"divide": "raise", "over": "warn", "under": "ignore", "invalid": "warn"},
    "decimal context": [
        *("10", "-99", "99", "1", "0", "ROUND_UP"),
        *("DivisionByZero", "InvalidOperation"),
    ],
    "torch default dtype": "torch.float64",
    "torch autocast": ["cpu"],
    "torch default device": "meta",
    "torch matmul precision": "high",
    "torch algorithms": "deterministic or warned",
    "torch gradients": False,
    "torch cudnn benchmark": True,
    "torch cudnn deterministic": True,
    "torch cudnn allow_tf32": False,
    "torch mkldnn enabled": False,
}
"""By name a value that is not the default."""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore all settings after the test."""
    monkeypatch.setattr(module, "_MADE", {})
    monkeypatch.setattr(module, "_LAST", {})
    if (options := module.options_of_builds()) is not None:
        options.take_back()
    yield
    for setting in SETTINGS.values():
        if setting.read() != setting.default:
            setting.write(setting.default)


def values() -> dict[str, object]:
    return {name: setting.read() for name, setting in SETTINGS.items()}


@pytest.mark.parametrize("name", OTHER)
def test_changed_setting_is_read_and_made_elsewhere(name: str) -> None:
    assert changed_settings() == {}
    SETTINGS[name].write(OTHER[name])
    assert changed_settings()[name] == OTHER[name]
    before = fingerprint(Adding, {})
    assert f"setting {name}" in before.parts
    code = pack(Adding)
    SETTINGS[name].write(SETTINGS[name].default)
    assert fingerprint(Adding, {}).digest != before.digest
    plain = pack(Adding)
    apply_settings(unpack(code))
    assert SETTINGS[name].read() == OTHER[name]
    apply_settings(unpack(plain))
    assert values() == {other: setting.default for other, setting in SETTINGS.items()}


def test_setting_is_made_before_each_build() -> None:
    class Typed(Adding):
        def evaluate(self) -> dict[str, float]:
            return {"bytes": float(torch.zeros(1).element_size())}

    double = carrying(Typed, {"torch default dtype": "torch.float64"})
    assert double is not Typed
    assert (double.__name__, double.__qualname__) == (Typed.__name__, Typed.__qualname__)
    for trainer, nbytes in ((Typed, 4.0), (double, 8.0), (Typed, 4.0), (double, 8.0)):
        assert run_alone(trainer, {"lr": 0.1}, 1).metrics == {1: {"bytes": nbytes}}


def test_setting_that_somebody_else_changed_later_stays() -> None:
    apply_settings(carrying(Adding, {"torch default dtype": "torch.float64"}))
    torch.set_default_dtype(torch.bfloat16)
    apply_settings(Adding)
    assert torch.get_default_dtype() is torch.bfloat16


def test_options_of_a_build_do_not_count() -> None:
    class Fast(TorchTrainer):
        def build(self, hp: Any) -> None:
            torch.set_default_dtype(torch.float64)
            torch.backends.cudnn.benchmark = True
            self.model = torch.nn.Linear(1, 1)

        def train(self) -> None: ...

        def evaluate(self) -> dict[str, float]:
            return {"loss": 1.0}

    before = fingerprint(Fast, {})
    run_alone(Fast, {"lr": 0.1}, 1)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_default_dtype() is torch.float64
    assert changed_settings() == {}
    assert fingerprint(Fast, {}) == before


def test_values_of_the_main_thread_count() -> None:
    seen: list[object] = []

    def look() -> None:
        seen.append(changed_settings())

    torch.set_grad_enabled(False)
    np.seterr(under="raise")
    decimal.getcontext().prec = 5
    here = changed_settings()
    assert len(here) == 3
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [here]


def test_attribute_that_the_module_sets_is_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    parts = fingerprint(Adding, {}).parts
    assert [name for name in parts if "setting" in name] == ["setting torch cudnn benchmark"]
    assert isinstance(dt.Trainer, type)
