from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import ConfigurationError, StateError
from dasktune.trainer.data import ResumableLoader
from tests.effort import examples


class Squares:
    """A map-style data set of dicts."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError(index)
        return {"x": np.array([index, index**2]), "label": f"n{index}"}


def noisy(sample, generator):
    return sample + generator.integers(0, 10**6, 3)


def drawn(loader, batches):
    return [loader.next_batch().tolist() for _ in range(batches)]


def test_every_epoch_is_another_permutation():
    loader = ResumableLoader(np.arange(10), 4, seed=0)
    epochs = [[batch.tolist() for batch in loader.epoch_batches()] for _ in range(2)]
    assert [[len(batch) for batch in epoch] for epoch in epochs] == [[4, 4, 2]] * 2
    first, second = ([*chain(*epoch)] for epoch in epochs)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert loader.epoch == 2


def test_the_seed_decides_the_order():
    def order(seed):
        return ResumableLoader(np.arange(50), 50, seed=seed).next_batch().tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)


@given(
    length=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=20),
    shuffle=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_changing_batch_sizes_visit_each_sample_once(length, sizes, shuffle):
    loader = ResumableLoader(np.arange(length), 1, seed=3, shuffle=shuffle)
    seen = []
    for size in sizes:
        loader.batch_size = size
        seen += loader.next_batch().tolist()
    epochs = [seen[start : start + length] for start in range(0, len(seen), length)]
    for epoch in epochs[:-1]:
        assert sorted(epoch) == list(range(length))
    assert len(set(epochs[-1])) == len(epochs[-1])
    assert loader.epoch * length + loader.consumed == len(seen)


@given(
    sizes=st.lists(st.integers(1, 7), min_size=2, max_size=12),
    split=st.integers(1, 11),
    moved=st.integers(0, 3),
    workers=st.sampled_from([0, 2]),
    drop_last=st.booleans(),
)
@settings(max_examples=examples(40), deadline=None)
def test_resumed_loader_gives_the_same_batches(sizes, split, moved, workers, drop_last):
    split = min(split, len(sizes) - 1)

    def make():
        return ResumableLoader(
            np.arange(7),
            1,
            seed=5,
            drop_last=drop_last,
            workers=workers,
            prefetch=3,
            transform=noisy,
        )

    def go(loader, sizes):
        batches = []
        for size in sizes:
            loader.batch_size = size
            batches.append(loader.next_batch().tolist())
        return batches

    whole, first, second = make(), make(), make()
    expected = go(whole, sizes)
    head = go(first, sizes[:split])
    go(second, sizes[:moved])  # it may have fetched more than it has given
    second.load_state_dict(first.state_dict())
    assert head + go(second, sizes[split:]) == expected
    assert second.state_dict() == whole.state_dict()
    for loader in (whole, first, second):
        loader.close()


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.process)])
def test_workers_and_prefetching_change_no_batch(processes):
    here = ResumableLoader(np.arange(20), 3, seed=1, transform=noisy)
    ahead = ResumableLoader(
        np.arange(20), 3, seed=1, transform=noisy, workers=2, prefetch=4, processes=processes
    )
    assert drawn(here, 3) == drawn(ahead, 3)
    assert here.state_dict() == ahead.state_dict()
    here.batch_size = ahead.batch_size = 5
    assert drawn(here, 8) == drawn(ahead, 8)
    assert here.state_dict() == ahead.state_dict()
    ahead.close()


def test_the_transform_depends_on_seed_epoch_and_sample_only():
    by_one = ResumableLoader(np.zeros(6, int), 1, seed=0, shuffle=False, transform=noisy)
    at_once = ResumableLoader(np.zeros(6, int), 6, seed=0, shuffle=False, transform=noisy)
    singles = [*chain(*drawn(by_one, 6))]
    assert [singles] == drawn(at_once, 1)
    assert len({tuple(row) for row in singles}) == 6
    assert drawn(at_once, 1) != [singles]


def test_drop_last_keeps_whole_batches_only():
    loader = ResumableLoader(np.arange(10), 4, seed=0, shuffle=False, drop_last=True)
    assert len(loader) == 2
    assert drawn(loader, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    loader.batch_size = 7
    assert drawn(loader, 1) == [[0, 1, 2, 3, 4, 5, 6]]


def test_len_counts_what_is_left():
    loader = ResumableLoader(np.arange(10), 4, seed=0)
    assert len(loader) == 3
    loader.next_batch()
    loader.batch_size = 3
    assert len(loader) == 2


def test_tuples_of_arrays_and_tensors_go_together():
    x, y = np.arange(6.0), torch.arange(6) * 10
    batch_x, batch_y = ResumableLoader((x, y), 4, seed=2).next_batch()
    assert isinstance(batch_y, torch.Tensor)
    assert (batch_x * 10).tolist() == batch_y.tolist()


def test_tensors_with_a_transform_stay_tensors():
    x = torch.arange(6.0).reshape(3, 2)
    loader = ResumableLoader(x, 3, seed=0, shuffle=False, transform=lambda s, generator: s * 2)
    assert torch.equal(loader.next_batch(), x * 2)


def test_data_sets_are_stacked_by_part():
    batch = ResumableLoader(Squares(5), 3, seed=0, shuffle=False).next_batch()
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 4]]
    assert batch["label"] == ["n0", "n1", "n2"]


class Pairs(Squares):
    """Samples of many kinds."""

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError(index)
        return np.float32(index), index, torch.tensor([index]), [index], 1j * index, index > 1


def test_samples_of_many_kinds_are_stacked_by_part():
    batch = ResumableLoader(Pairs(4), 3, seed=0, shuffle=False).next_batch()
    numbers, integers, tensors, lists, complexes, truths = batch
    assert isinstance(batch, tuple)
    assert (numbers.dtype, numbers.tolist()) == (np.float32, [0, 1, 2])
    assert (integers.tolist(), complexes.tolist()) == ([0, 1, 2], [0, 1j, 2j])
    assert torch.equal(tensors, torch.tensor([[0], [1], [2]]))
    assert (lists, truths.tolist()) == ([[0], [1], [2]], [False, False, True])


def test_arrays_with_a_transform_are_given_by_sample():
    x, y = np.arange(6), np.arange(6) * 10

    def joined(sample, generator):
        return sample[0] + sample[1]

    loader = ResumableLoader((x, y), 3, seed=0, shuffle=False, transform=joined)
    assert loader.next_batch().tolist() == [0, 11, 22]
    (alone,) = ResumableLoader((x,), 3, seed=0, shuffle=False).next_batch()
    assert alone.tolist() == [0, 1, 2]
    assert ResumableLoader(x, 3, seed=0, shuffle=False).next_batch().tolist() == [0, 1, 2]


def test_a_failing_sample_fails_its_batch_and_not_the_position():
    def picky(sample, generator):
        if sample == 2:
            raise ValueError("sample 2")
        return sample

    for workers in (0, 2):
        loader = ResumableLoader(
            np.arange(4), 2, seed=0, shuffle=False, workers=workers, transform=picky
        )
        loader.next_batch()
        for _ in range(2):
            with pytest.raises(ValueError, match="sample 2"):
                loader.next_batch()
        assert loader.consumed == 2
        loader.close()


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        (np.arange(0), {}, "at least one sample, got none"),
        (3, {}, "must be an array, a tensor, a tuple of them or a map-style data set, got int"),
        (([1, 2], np.arange(2)), {}, "got a tuple of list, ndarray"),
        ((np.arange(3), np.arange(4)), {}, r"must be equally long, got \[3, 4\]"),
        (np.arange(3), {"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        (np.arange(3), {"batch_size": 2.0}, "batch_size must be an integer >= 1, got 2.0"),
        (np.arange(3), {"batch_size": 4, "drop_last": True}, "batch_size must be <= 3"),
        (np.arange(3), {"seed": -1}, "seed must be an integer >= 0, got -1"),
        (np.arange(3), {"workers": -1}, "workers must be >= 0, got -1"),
        (np.arange(3), {"prefetch": 0}, "prefetch must be >= 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(source, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        ResumableLoader(source, **{"batch_size": 1, "seed": 0, **arguments})


def test_a_state_of_other_data_or_another_seed_is_refused():
    state = ResumableLoader(np.arange(9), 2, seed=0).state_dict()
    with pytest.raises(StateError, match=r"loader\['samples'\]: must be 8, .* got 9"):
        ResumableLoader(np.arange(8), 2, seed=0).load_state_dict(state)
    with pytest.raises(StateError, match=r"loader\['order'\]: another seed"):
        ResumableLoader(np.arange(9), 2, seed=1).load_state_dict(state)
