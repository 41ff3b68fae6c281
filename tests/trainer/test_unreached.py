"""A warning about code that stands behind the loop of a training function."""

import logging

from dasktune._study.create import create_study
from dasktune.trainer.base import Trainer
from dasktune.trainer.function import trainer_of
from dasktune.trainer.unreached import unreached_code


def ending(run):
    try:
        for _ in run.steps():
            run.report(loss=1)
        """The end."""
        return
    finally:
        run.config.get("log", print)("over")


def going_on(run):
    with open("log.txt", "w") as file:
        for step in run.steps():
            run.report(loss=step)
        file.write("trained")


def test_code_behind_the_loop_is_named():
    line = going_on.__code__.co_firstlineno + 4
    assert f"the code of going_on from line {line} on" in str(unreached_code(trainer_of(going_on)))
    assert unreached_code(trainer_of(ending)) is None
    assert unreached_code(Trainer) is None


def test_a_new_study_warns_of_code_behind_the_loop(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "dasktune")
    create_study(going_on, name="x", storage=tmp_path, metric="loss").close()
    warnings = [text for text in caplog.messages if "never runs" in text]
    assert len(warnings) == 1
