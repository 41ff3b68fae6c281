"""A trainer that was defined again in a session, as in an edited cell of a notebook."""

from __future__ import annotations

import sys
from dataclasses import replace

from dasktune.errors import DasktuneError
from dasktune.study.config import StudyConfig
from dasktune.trainer.given import as_trainer


def redefined(config: StudyConfig, digest: str) -> str | None:
    """Return the name of a study's trainer if the session has another one of that name by now.

    The same code that was run again is not another trainer.

    Parameters
    ----------
    config
        How the study was opened.
    digest
        The fingerprint with which it was created.
    """
    trainer = config.known_trainer
    given = getattr(trainer, "function", trainer)
    name = given.__qualname__
    if given.__module__ != "__main__":
        return None
    now = getattr(sys.modules["__main__"], name, given)
    if now is given:
        return None
    try:
        covered = replace(config, trainer=as_trainer(now)).fingerprint()
    except DasktuneError:
        return None  # it is no trainer any more
    return name if covered is not None and covered.digest != digest else None
