"""Ranks of models: the higher ones go to better classes where no measured speed decides."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Instruction, RunStage, Saved, Tick, TrainingEnded, WorkerJoined
from dasktune.graph.keys import root_key
from dasktune.graph.plan import SearchPlan
from dasktune.graph.save_policy import SavePolicy
from dasktune.graph.speeds import Speeds
from dasktune.sequences import Constant, Piecewise

ALIKE = {"tree": {"old": 2.0, "new": 1.0}, "net": {"old": 4.0, "new": 2.0}}
"""The new class is twice as fast for both models: no speed says which of them it should train."""

UNLIKE = {"tree": {"old": 2.0, "new": 1.0}, "net": {"old": 10.0, "new": 1.0}}
"""The new class is worth more to the net."""


class Table:
    """A dispatcher whose stages are all known before the first of them starts."""

    def __init__(self, times: Mapping[str, Mapping[str, float]] | None = None) -> None:
        speeds, plan = Speeds(), SearchPlan(root_key("known", 0))
        for number, (model, each) in enumerate((times or {}).items()):
            plan.register(number, {"model": Constant(model)}, 1)
            for kind, seconds in each.items():
                speeds.observe(plan.paths[number].leaf, steps=1, seconds=seconds, kind=kind)
        options = DispatchOptions(saves=SavePolicy(at_changes=False))
        self.is_open = False
        self.dispatcher = Dispatcher(
            root_key("table", 0), options, speeds=speeds, may_place=lambda: self.is_open
        )
        self.stages: dict[str, RunStage] = {}
        self.count = 0

    def trial(self, model: str, model_rank: float | None) -> None:
        sequences = {"model": Constant(model), "lr": Constant(float(self.count))}
        self.dispatcher.register(self.count, sequences, 4, model_rank=model_rank)
        self.carry_out(self.dispatcher.extend(self.count, 4, 0.0, 0.0))
        self.count += 1

    def join(self, worker: str, kind: str, cores: float = 0.0) -> None:
        event = WorkerJoined(worker=worker, kind=kind, resources={"cores": cores})
        self.carry_out(self.dispatcher.handle(event, 0.0))

    def start(self) -> None:
        self.is_open = True
        self.carry_out(self.dispatcher.handle(Tick(), 0.0))

    def end(self, worker: str) -> None:
        stage = self.stages.pop(worker)
        reports = ((stage.stop, {"loss": 1.0}),)
        saved = Saved(attempt=stage.attempt, step=stage.stop, reports=reports)
        ended = TrainingEnded(attempt=stage.attempt, step=stage.stop, status="trained")
        for event in (saved, ended):
            self.carry_out(self.dispatcher.handle(event, 0.0))

    def carry_out(self, instructions: list[Instruction]) -> None:
        self.stages |= {each.worker: each for each in instructions if isinstance(each, RunStage)}

    @property
    def models(self) -> dict[str, object]:
        return {
            worker: stage.node.sequences["model"](stage.start)
            for worker, stage in self.stages.items()
        }


@pytest.mark.parametrize("first", ["tree", "net"])
def test_high_rank_goes_to_the_larger_class_at_first(first: str) -> None:
    table = Table()
    table.join("large", "b", cores=16.0)
    table.join("small", "a", cores=4.0)
    ranks = {"tree": 0.0, "net": 1.0}
    for model in sorted(ranks, key=lambda model: model != first):
        table.trial(model, ranks[model])
    table.start()
    assert table.models == {"large": "net", "small": "tree"}


@pytest.mark.parametrize("high", ["tree", "net"])
def test_high_rank_goes_to_the_faster_class(high: str) -> None:
    table = Table(ALIKE)
    table.join("fast", "new")
    table.join("slow", "old")
    for model in ("tree", "net") * 3:
        table.trial(model, 1.0 if model == high else 0.0)
    table.start()
    low = "net" if high == "tree" else "tree"
    assert table.models == {"fast": high, "slow": low}
    table.end("slow")
    assert table.models == {"fast": high, "slow": low}, "it takes the lowest that waits"
    table.end("fast")
    assert table.models == {"fast": high, "slow": low}


def test_measured_advantage_goes_before_the_rank() -> None:
    table = Table(UNLIKE)
    table.join("fast", "new")
    table.join("slow", "old")
    for model, model_rank in [("tree", 1.0), ("net", 0.0)] * 3:
        table.trial(model, model_rank)
    table.start()
    assert table.models == {"fast": "net", "slow": "tree"}


def test_stage_of_low_rank_leaves_no_better_worker_idle() -> None:
    table = Table()
    table.join("small", "a", cores=4.0)
    table.join("large", "b", cores=16.0)
    table.trial("tree", 0.0)
    table.start()
    assert table.models == {"large": "tree"}


def test_classes_of_one_size_follow_the_length() -> None:
    table = Table()
    table.join("first", "a")
    table.join("second", "b")
    table.trial("tree", 0.0)
    table.trial("net", 1.0)
    table.start()
    assert sorted(map(str, table.models.values())) == ["net", "tree"]


def test_middle_class_takes_the_middle_ranks() -> None:
    table = Table()
    for worker, cores in (("middle", 8.0), ("small", 4.0), ("large", 16.0)):
        table.join(worker, worker, cores=cores)
    for number in range(7):
        table.trial(f"model {number}", number / 6)
    table.start()
    numbers = {worker: int(str(model)[-1]) for worker, model in table.models.items()}
    assert numbers["small"] <= 1 < numbers["middle"] < 5 <= numbers["large"]


def test_waiting_stage_takes_the_highest_rank_of_its_trials() -> None:
    table = Table()
    table.join("large", "b", cores=16.0)
    table.join("small", "a", cores=4.0)
    trunk = {"model": Constant("net"), "lr": Constant(0.5)}
    table.dispatcher.register(0, trunk, 4, model_rank=0.0)
    table.carry_out(table.dispatcher.extend(0, 4, 0.0, 0.0))
    table.count = 1
    table.trial("tree", 0.5)
    branch = {**trunk, "lr": Piecewise([0.5, 0.1], [2])}
    table.dispatcher.register(2, branch, 4, model_rank=1.0)
    table.start()
    assert table.models == {"large": "net", "small": "tree"}


def test_rank_comes_to_a_trial_that_was_known_without() -> None:
    table = Table()
    table.join("large", "b", cores=16.0)
    table.join("small", "a", cores=4.0)
    for number, model in enumerate(("tree", "net")):
        sequences = {"model": Constant(model)}
        table.dispatcher.register(number, sequences, 4)
        table.dispatcher.register(number, sequences, 4, model_rank=float(number))
        table.carry_out(table.dispatcher.extend(number, 4, 0.0, 0.0))
    table.start()
    assert table.models == {"large": "net", "small": "tree"}


def test_split_and_separated_paths_keep_their_rank() -> None:
    plan = SearchPlan(root_key("plan", 0))
    plan.register(0, {"lr": Constant(0.5)}, 4, model_rank=0.25)
    plan.register(1, {"lr": Piecewise([0.5, 0.1], [2])}, 4, model_rank=0.75)
    assert [node.model_rank for node in plan.nodes_of(0)] == [0.75, 0.25]
    assert [node.model_rank for node in plan.nodes_of(1)] == [0.75, 0.75]
    dispatcher = Table().dispatcher
    dispatcher.register(0, {"lr": Constant(0.5)}, 4, model_rank=0.25)
    dispatcher.separate(0, {"lr": Constant(0.5)}, 4)
    assert [node.model_rank for node in dispatcher.plan.nodes_of(0)] == [0.25]
