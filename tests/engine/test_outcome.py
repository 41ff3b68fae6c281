"""Orders of one turn: a save-point travels with the stage that starts."""

from __future__ import annotations

from dasktune._engine.outcome import Order, RunPrediction, with_save_points
from dasktune.algos.curves.curve import Curve, Question
from dasktune.algos.curves.persistence import Persistence
from dasktune.graph.events import RunStage, SavePoint, StopStage
from dasktune.graph.plan import Node


def test_save_points_of_stages_that_start_now_go_with_them() -> None:
    stage = RunStage(
        attempt="a0",
        order=0,
        worker="w",
        after=None,
        node=Node(1, None, (0, 9), {}),
        start=0,
        stop=9,
        saves=(4,),
        needs={},
    )
    curve = Curve(steps=(1, 2), scores=(0.1, 0.2), max_steps=9)
    question = Question(predictor=Persistence(), curve=curve, steps=(9,))
    running = SavePoint(attempt="b1", worker="w", step=6)
    others: list[Order] = [
        running,
        StopStage(attempt="b1", worker="w"),
        StopStage(attempt="a0", worker="w", at=8),
        RunPrediction(trial=0, question=question),
    ]
    starting = SavePoint(attempt="a0", worker="w", step=6)
    found = with_save_points([stage, starting, *others])
    assert found[1:] == others
    assert isinstance(found[0], RunStage)
    assert found[0].saves == (4, 6)
