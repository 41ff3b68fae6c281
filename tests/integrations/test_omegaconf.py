"""Configs of OmegaConf, as Hydra gives them."""

from __future__ import annotations

import pytest

from dasktune.errors import ConfigurationError
from dasktune.trainer.given_config import plain_config

pytestmark = pytest.mark.framework("omegaconf")


def test_omegaconf_becomes_plain_with_its_interpolations() -> None:
    from omegaconf import OmegaConf

    config = OmegaConf.create({"rate": 0.5, "model": {"widths": [4, 8]}, "twice": "${rate}"})
    plain = {"rate": 0.5, "model": {"widths": [4, 8]}, "twice": 0.5}
    assert plain_config(None, config) == plain
    assert plain_config(None, {"hydra": config}) == {"hydra": plain}


def test_omegaconf_without_a_value_is_refused_by_its_place() -> None:
    from omegaconf import OmegaConf

    config = OmegaConf.create({"model": {"width": "???"}, "rates": [0.1, "???"]})
    with pytest.raises(ConfigurationError) as error:
        plain_config(None, config)
    assert [problem.partition(" must")[0] for problem in error.value.problems] == [
        "config['model']['width']",
        "config['rates'][1]",
    ]


def test_omegaconf_that_cannot_be_resolved_is_refused() -> None:
    from omegaconf import OmegaConf

    config = OmegaConf.create({"lost": "${nowhere}"})
    with pytest.raises(ConfigurationError, match="must be resolvable by OmegaConf, got Interpol"):
        plain_config(None, config)
