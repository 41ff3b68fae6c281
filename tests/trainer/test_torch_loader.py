"""torch's `DataLoader` goes on where it stopped, whatever draws its order and its samples."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

import dasktune as dt
from dasktune.errors import ConfigurationError, StateError, TrainerError
from dasktune.trainer.check_resume import check_resume
from dasktune.trainer.function import trainer_of
from dasktune.trainer.generators import global_states
from dasktune.trainer.lifecycle import TrainerRun, run_alone
from tests.forked import fork_for_resume_checks


class Noisy(Dataset):
    """Samples with noise from all the generators that a transform may use."""

    def __len__(self):
        return 11

    def __getitem__(self, index):
        return index + torch.rand(()) + np.random.rand() + random.random()


class Whole(Noisy):
    """Gives whole batches."""

    def __getitems__(self, indices):
        return [torch.tensor(float(index)) for index in indices]


def of_kind(kind, workers=0, **options):
    if workers:
        options |= {"num_workers": workers, "persistent_workers": kind == "persistent"}
    match kind:
        case "weighted":
            options["sampler"] = WeightedRandomSampler([1.0] * 11, 7)
        case "own generator":
            options |= {"shuffle": True, "generator": torch.Generator()}
        case "batch sampler":
            order = RandomSampler(range(11), generator=torch.Generator())
            return DataLoader(Noisy(), batch_sampler=BatchSampler(order, 3, True), **options)
        case "whole":
            return DataLoader(Whole(), 3, shuffle=True, **options)
        case "in order":
            options["sampler"] = SequentialSampler(range(11))
        case _:
            options["shuffle"] = True
    return DataLoader(Noisy(), 3, **options)


def numbers(loader, count):
    return [loader.next_batch().tolist() for _ in range(count)]


KINDS = ["shuffled", "weighted", "own generator", "batch sampler", "whole", "in order"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("taken", "moved"), [(0, 2), (1, 0), (3, 2), (4, 1), (6, 0), (6, 5)])
def test_it_goes_on_where_it_stopped(kind, taken, moved):
    first = dt.loader(of_kind(kind), seed=1)
    numbers(first, taken)
    state, drawn = first.state_dict(), global_states()
    rest = numbers(first, 6)
    second = dt.loader(of_kind(kind), seed=1)
    numbers(second, moved)
    second.load_state_dict(state)
    torch.set_rng_state(drawn["torch"])
    np.random.set_state(drawn["numpy"])
    version, words, gauss = drawn["python"].values()
    random.setstate((version, tuple(words.tolist()), gauss))
    assert numbers(second, 6) == rest
    assert second.state_dict() == first.state_dict()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_workers_give_the_same_from_any_place():
    whole = numbers(dt.loader(of_kind("shuffled", workers=1), seed=1), 7)
    for taken, kind in ((1, "persistent"), (4, "shuffled")):
        loader = dt.loader(of_kind(kind, workers=2), seed=1)
        skipped = dt.loader(of_kind("shuffled"), seed=1)
        numbers(skipped, taken)
        numbers(loader, 2)
        loader.load_state_dict(skipped.state_dict())
        assert numbers(loader, 7 - taken) == whole[taken:]


def test_the_order_leaves_the_generators_of_the_process():
    before = global_states()
    loader = dt.loader(of_kind("shuffled"), seed=1)
    loader.state_dict()
    now = global_states()
    assert torch.equal(now["torch"], before["torch"])
    assert str(now["numpy"]) == str(before["numpy"])
    assert str(now["python"]) == str(before["python"])


def test_iterating_gives_the_rest_of_an_epoch():
    loader = dt.loader(of_kind("whole"), seed=1)
    assert len(loader) == 4
    for _ in loader:
        break
    assert (len(loader), loader.epoch) == (3, 0)
    assert len([*loader]) == 3
    assert (len(loader), loader.epoch) == (4, 1)


class Endless(IterableDataset):
    def __iter__(self):
        yield 1


class Unseeded(SequentialSampler):
    def __iter__(self):
        yield from np.random.default_rng().permutation(11).tolist()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda: DataLoader(Endless()), "must have a map-style data set"),
        (lambda: DataLoader(Noisy(), batch_size=None), "must have a map-style data set"),
        (lambda: DataLoader(Noisy(), 100, drop_last=True), "at least one batch, got none"),
        (lambda: DataLoader(Noisy(), sampler=Unseeded(range(11))), "the order of a Unseeded must"),
        (lambda: [1, 2], "takes a DataLoader of torch, got list"),
    ],
)
def test_a_loader_that_cannot_be_resumed_is_refused(source, words):
    with pytest.raises(ConfigurationError) as error:
        dt.loader(source(), seed=0)
    assert words in str(error.value)


def test_another_order_is_refused():
    state = dt.loader(of_kind("shuffled"), seed=1).state_dict()
    with pytest.raises(StateError, match="another seed"):
        dt.loader(of_kind("shuffled"), seed=2).load_state_dict(state)


def train(run):
    source = of_kind("own generator")
    loader = run.loader(source)
    total = run.state["total"] = torch.zeros(())
    for step in run.steps():
        for batch in loader:
            total += batch.sum() * run["lr"]
            if step % 2:
                break
        run.report(loss=float(total))


def test_a_function_goes_on_within_an_epoch():
    alone = run_alone(train, {"lr": 0.5}, 6, states_at=[2])
    run = TrainerRun.resume(
        trainer_of(train),
        step=2,
        first_values={"lr": 0.5},
        last_values={"lr": 0.5},
        state=alone.states[2],
        config={},
        seed=0,
    )
    for step in range(3, 7):
        run.advance({"lr": 0.5})
        assert run.evaluate() == alone.metrics[step]


@pytest.mark.process
def test_the_check_passes(monkeypatch):
    fork_for_resume_checks(monkeypatch)
    assert check_resume(train, {"lr": 0.5}).ok


def test_a_batch_size_beside_a_loader_is_refused():
    def function(run):
        run.loader(DataLoader(Noisy()), batch_size=3)

    with pytest.raises(TrainerError, match="or a DataLoader of torch alone, got a DataLoader and"):
        run_alone(function, {"lr": 0.5}, 1)
