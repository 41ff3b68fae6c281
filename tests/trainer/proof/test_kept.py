"""Values that a state lacks: kept in the proof, and set in the trainer that has loaded it."""

from __future__ import annotations

import array
import io
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.errors import ResumeError
from dasktune.storage.codec import decode, encode
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof.kept import KEPT, Keeper, nodes_of, value_of
from dasktune.trainer.proof.proof import packed, unpacked
from dasktune.trainer.proof.remedies import Proving

COUNT = {"n": 0}
SHARED: Any = ModuleType("shared")
"""Another module of the user."""


class Forgetful(dt.Trainer):
    """Forgets in its state all that `change` changes in it."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x = 0.0
        self.make()

    def make(self) -> None:
        """Make what it forgets."""

    def change(self) -> float:
        """Change it, and return a number that depends on it."""
        return 0.0

    def train(self) -> None:
        self.x += 1 + self.change()

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


class Best(Forgetful):
    def make(self) -> None:
        self.best, self.name = float("inf"), "none"

    def change(self) -> float:
        self.best, self.name = min(self.best, 3 - self.x), f"step {self.x}"
        return self.best + len(self.name)


class Momentum(Forgetful):
    def make(self) -> None:
        self.momentum, self.tensor = np.zeros(3), torch.zeros(2)

    def change(self) -> float:
        self.momentum *= 0.5
        self.momentum += self.x + 1
        self.tensor = self.tensor + 1
        return float(self.momentum.sum() + self.tensor.sum())


class LateAverage(Forgetful):
    def change(self) -> float:
        if not hasattr(self, "average"):
            self.average = np.ones(2, dtype="f4")
        self.average = self.average * 0.9 + self.x
        return float(self.average.sum())


class Containers(Forgetful):
    def make(self) -> None:
        self.losses: list[Any] = []
        self.last: deque[float] = deque(maxlen=3)
        self.counts, self.seen, self.raw = Counter[str](), {0}, array.array("d", [0.0])
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.order: OrderedDict[tuple[int, str], Any] = OrderedDict()

    def change(self) -> float:
        self.losses.append([self.x, {"x": (self.x, None)}])
        self.last.append(self.x)
        self.counts["a"] += 2
        self.seen.add(len(self.losses))
        self.raw.append(self.x)
        self.sums[f"s{len(self.seen)}"] += self.x
        self.order[len(self.seen), "b"] = np.float32(self.x)
        parts = (self.losses, self.last, self.counts, self.seen, self.raw, self.sums, self.order)
        return float(sum(map(len, parts))) + sum(self.last) + sum(self.raw)


class Stamps(Forgetful):
    """An array of a type that no state holds, beside a list."""

    def make(self) -> None:
        self.day, self.days = np.array(["2020-01-01"], "M8[D]"), [0]

    def change(self) -> float:
        self.days.append(len(self.days))
        return float(len(self.days))


class Recent(Forgetful):
    """A dict whose order counts, and one with keys of several parts."""

    def make(self) -> None:
        self.arms = {"a": 1.0, "b": 2.0, "c": 3.0}
        self.visits = {(0, 0): 1.0, (0, 1): 2.0}

    def change(self) -> float:
        first = next(iter(self.arms))
        self.arms[first] = self.arms.pop(first)
        self.visits[len(self.visits), 7] = self.visits.pop(next(iter(self.visits)))
        return next(iter(self.arms.values())) + next(iter(self.visits.values()))


class DrawingLoad(Forgetful):
    """Draws where it loads, and draws for the first time in a late step."""

    def make(self) -> None:
        np.random.seed(5)

    def change(self) -> float:
        return float(np.random.random()) if self.x > 3 else 0.5

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        np.random.normal(size=3)


class Generators(Forgetful):
    def make(self) -> None:
        self.rng, self.torch = np.random.default_rng(1), torch.Generator().manual_seed(1)

    def change(self) -> float:
        return float(self.rng.random() + torch.rand(1, generator=self.torch))


class Iterators(Forgetful):
    def make(self) -> None:
        self.rows, self.letters, self.numbers = (
            iter((1.0, 2.0) * 5),
            iter("abcdefgh"),
            iter(range(9)),
        )
        self.ended = iter([1.0])

    def change(self) -> float:
        return next(self.rows) + ord(next(self.letters)) + next(self.numbers) + next(self.ended, 5)


class Box:
    def __init__(self) -> None:
        self.n, self.inner = 0, SimpleNamespace()


class InObjects(Forgetful):
    def make(self) -> None:
        self.boxes = [Box(), Box()]

    def change(self) -> float:
        self.boxes[1].n += 3
        return float(self.boxes[1].n)


class OfModules(Forgetful):
    def make(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.0))
        for parameter in self.model.parameters():
            torch.nn.init.ones_(parameter)

    def change(self) -> float:
        self.model[1].p += 0.125  # type: ignore[operator]
        return float(self.model[1].p)  # type: ignore[arg-type]


class Global(Forgetful):
    def change(self) -> float:
        COUNT["n"] += 1
        return COUNT["n"]


class OfModule(Forgetful):
    def change(self) -> float:
        SHARED.count += 1
        return float(SHARED.count)


class OfClass(Forgetful):
    total = 0

    def change(self) -> float:
        OfClass.total += 1
        return OfClass.total


KEPT_KINDS = (
    *(Best, Momentum, LateAverage, Containers, Generators, Iterators, InObjects, OfModules),
    *(Stamps, Recent, DrawingLoad),
    *(Global, OfClass),
)


@pytest.fixture(autouse=True)
def clean() -> None:
    COUNT["n"] = OfClass.total = 0


def trained(run: TrainerRun, steps: int) -> TrainerRun:
    for _ in range(steps):
        run.advance({})
    return run


def started(kind: type) -> TrainerRun:
    return TrainerRun.start(kind, {}, config={}, seed=0, proving=Proving())


def resumed(kind: type, run: TrainerRun) -> TrainerRun:
    """Return a new trainer with the state of another one, in a process that is set back."""
    state = run.state()
    snapshot, proof = encode(state), unpacked(packed(run.proof(state)))
    clean_again()
    return TrainerRun.resume(
        kind,
        step=run.step,
        first_values={},
        last_values={},
        state=decode(snapshot.document, snapshot.data),
        config={},
        seed=0,
        proving=Proving(proof=proof),
    )


def clean_again() -> None:
    COUNT["n"] = OfClass.total = 0


@pytest.mark.parametrize("kind", KEPT_KINDS)
def test_what_a_state_lacks_is_set_after_loading(kind: type) -> None:
    whole = trained(started(kind), 6).evaluate()
    clean_again()
    run = trained(started(kind), 2)
    run = trained(resumed(kind, run), 1)
    run = trained(resumed(kind, run), 3)
    assert run.evaluate() == whole


class Aliased(Forgetful):
    """Two lists in one: a state that has one of them separates them."""

    def make(self) -> None:
        self.losses: list[float] = []
        self.shown = self.losses

    def change(self) -> float:
        self.losses.append(self.x)
        return float(len(self.shown))


class AliasedInState(Aliased):
    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "losses": self.losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.losses = state["x"], list(state["losses"])
        self.shown = list(self.losses)


class TiedArrays(Forgetful):
    def make(self) -> None:
        self.weights = np.zeros(3)
        self.best = self.weights

    def change(self) -> float:
        self.weights += 1
        return float(self.best.sum())

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.weights = state["x"], state["weights"]
        self.best = self.weights.copy()


class ViewOfState(Forgetful):
    """A view of an array that the state has; loading gives the array other memory."""

    def make(self) -> None:
        self.weights = np.zeros(4)
        self.head = self.weights[:2]

    def change(self) -> float:
        self.weights += 1
        return float(self.head.sum())

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.weights = state["x"], state["weights"]


class OfLibrary(Forgetful):
    """A number in an object of a library, which may have noted it elsewhere."""

    def make(self) -> None:
        self.sampler = torch.utils.data.SequentialSampler([1, 2])  # type: ignore[type-var]
        self.sampler.epoch = 0  # type: ignore[attr-defined]

    def change(self) -> float:
        self.sampler.epoch += 1  # type: ignore[attr-defined]
        return float(self.sampler.epoch)  # type: ignore[attr-defined]


class Unlike(Forgetful):
    """Loads an array with another order of its axes."""

    def make(self) -> None:
        self.weights = np.asfortranarray(np.ones((2, 3)))

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.weights = state["x"], np.ascontiguousarray(state["weights"])


class Iterating(Forgetful):
    def make(self) -> None:
        self.rows = (row for row in [1.0, 2.0, 3.0])

    def change(self) -> float:
        return next(self.rows)


class BestWeights(Forgetful):
    """Means to keep the best weights, and keeps those of now: `state_dict` of torch copies none."""

    def make(self) -> None:
        torch.manual_seed(0)
        self.model, self.best = torch.nn.Linear(1, 1), None

    def change(self) -> float:
        with torch.no_grad():
            self.model.weight += 1
        if self.best is None:
            self.best = self.model.state_dict()
        return float(self.best["weight"])

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "model": self.model.state_dict(), "best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.best = state["x"], state["best"]
        self.model.load_state_dict(state["model"])


class LateView(BestWeights):
    """Makes a view for NumPy of a tensor in the last step before the state."""

    def change(self) -> float:
        with torch.no_grad():
            self.model.weight += 1
        if self.x > 1:
            self.best = self.model.weight.detach().numpy()
        return 1.0


class Rest(Forgetful):
    """Saves what is left of its rows, and begins there where it loads."""

    def make(self) -> None:
        self.rows, self.at = [1.0, 2.0, 3.0, 4.0, 5.0], 0

    def change(self) -> float:
        self.at += 1
        return self.rows[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "rest": self.rows[self.at :]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.rows, self.at = state["x"], state["rest"], 0


class Scanning(Iterating):
    def make(self) -> None:
        self.rows = map(float, np.arange(5.0).flat)


class Position(Iterating):
    def make(self) -> None:
        self.rows = np.arange(5.0).flat


class Lines(Forgetful):
    """A file whose lines a loop reads: its position is not told."""

    def make(self) -> None:
        self.file = io.TextIOWrapper(io.BytesIO(b"1\n2\n3\n"))

    def change(self) -> float:
        return float(next(self.file))


class OwnIterator:
    """An iterator of own code, with a position that is no number."""

    def __init__(self) -> None:
        self.rows = (float(row) for row in range(5))

    def __iter__(self) -> Iterator[float]:
        return self

    def __next__(self) -> float:
        return next(self.rows)


class Own(Iterating):
    def make(self) -> None:
        self.rows = OwnIterator()  # type: ignore[assignment]


class Text(Forgetful):
    def make(self) -> None:
        self.text = io.StringIO("1\n2\n3\n")

    def change(self) -> float:
        return float(self.text.readline())


class Large(Forgetful):
    """More than a commit should hold."""

    def make(self) -> None:
        self.momentum = np.zeros(20_000)

    def change(self) -> float:
        self.momentum += 1
        return float(self.momentum[0])


NAMED = {
    Aliased: "trainer.losses[0]: is missing after loading",
    AliasedInState: "trainer.shown: is trainer.losses no more",
    TiedArrays: "trainer.weights: is trainer.best no more",
    ViewOfState: "trainer.head: is not what it was",
    OfLibrary: "trainer.sampler.epoch: is 0 after loading, and was 2",
    Unlike: "trainer.weights: lies in memory with another order",
    Iterating: "trainer.rows",
    Large: "trainer.momentum: is not what it was",
    BestWeights: "trainer.model['weight']: is trainer.best['weight'] no more",
    LateView: "trainer.model['weight']: is trainer.best no more",
    Rest: "trainer.at: is 0 after loading, and was 2",
    Scanning: "trainer.rows",
    Position: "trainer.rows (an iterator): is 0 after loading, and was 2",
    Lines: "trainer.file.tell(): is a TextIOWrapper, into which nobody can look",
    Own: "trainer.rows.rows (a generator)",
    Text: "trainer.text.tell(): is 0 after loading, and was 4",
}


@pytest.mark.parametrize("kind", NAMED)
def test_what_cannot_be_set_is_named(kind: type) -> None:
    with pytest.raises(ResumeError) as raised:
        resumed(kind, trained(started(kind), 2))
    assert str(raised.value).startswith(f"- {NAMED[kind]}"), raised.value


def test_what_the_trainer_calls_harmless_is_neither_kept_nor_set() -> None:
    kind = type("Called", (Best,), {"harmless_differences": ("trainer.best", "trainer.name")})
    run = trained(started(kind), 2)
    assert resumed(kind, run).trainer.best == float("inf")


def test_what_the_state_has_is_not_kept() -> None:
    class Whole(Momentum):
        def state_dict(self) -> dict[str, Any]:
            return {"x": self.x, "m": self.momentum, "t": self.tensor}

    run = trained(started(Whole), 2)
    proof = run.proof(run.state())
    assert KEPT not in proof, proof[KEPT]


@pytest.mark.parametrize(
    ("trainer", "name"),
    [(Global, r"COUNT\['n'\]"), (OfModule, r"SHARED\.count")],
)
def test_global_variables_stay_where_others_train_in_the_process(
    trainer: type[Forgetful], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COUNT, "n", 0)
    monkeypatch.setattr(SHARED, "count", 0, raising=False)
    run = TrainerRun.start(trainer, {}, config={}, seed=0, proving=Proving(owns_process=False))
    trained(run, 1)
    proof = run.proof(run.state())
    COUNT["n"] = SHARED.count = 7
    with pytest.raises(ResumeError, match=rf"global {name}: is 7 after loading, and was 1"):
        TrainerRun.resume(
            trainer,
            step=1,
            first_values={},
            last_values={},
            state={"x": 1.0},
            config={},
            seed=0,
            proving=Proving(owns_process=False, proof=proof),
        )
    assert (COUNT["n"], SHARED.count) == (7, 7)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary()
)
KEYS = st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.text(max_size=2))
VALUES = st.recursive(
    SCALARS | st.sets(st.integers()) | st.lists(st.floats(), max_size=3).map(np.array),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=8,
)


def shown(value: Any) -> Any:
    """Return a value as texts that are equal for equal types and bits."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, value.tobytes()]
    if isinstance(value, Mapping):
        return [type(value), *((repr(key), shown(item)) for key, item in value.items())]
    if isinstance(value, (list, tuple, deque)):
        return [type(value), *map(shown, value)]
    return sorted(map(repr, value)) if isinstance(value, set) else repr(value)


@given(VALUES)
def test_a_plain_value_is_kept_as_it_was(value: Any) -> None:
    keeper = Keeper(())
    keeper.add("trainer.x", value)
    nodes = nodes_of(keeper.text)
    assert shown(value_of(nodes["trainer.x"], None, "cpu")) == shown(value)


def test_containers_keep_their_identity() -> None:
    losses: list[float] = [1.0]
    keeper = Keeper(())
    keeper.add("trainer.losses", [1.0, 2.0])
    assert value_of(nodes_of(keeper.text)["trainer.losses"], losses, "cpu") is losses
    assert losses == [1.0, 2.0]


MAKERS: list[Callable[[], Any]] = [object, lambda: [object()], lambda: {1: print}, lambda: {(1,)}]


@pytest.mark.parametrize("make", MAKERS)
def test_other_values_are_not_kept(make: Callable[[], Any]) -> None:
    keeper = Keeper(())
    keeper.add("trainer.x", make())
    assert keeper.text == ""
