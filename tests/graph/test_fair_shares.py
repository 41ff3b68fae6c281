"""Fair shares of workers, and which study is granted which workers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dasktune.errors import ConfigurationError
from dasktune.graph.fair_shares import AwaitedStage, Claim, StudyShares, even_shares
from tests.effort import examples

NAMES = ("a", "b", "c", "d")
CLAIMS = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        Claim, workers=st.integers(0, 40), weight=st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.25])
    ),
)


def lent_of(claims: dict[str, Claim], workers: int) -> dict[str, int]:
    """Return how many workers each study has once all have claimed and given back, all at once."""
    shares = StudyShares(patience_seconds=0.0)
    for number in range(workers):
        shares.join(f"w{number}", 0.0)
    busy = dict.fromkeys(claims, frozenset[str]())
    for _ in range(3):
        for name, claim in claims.items():
            busy[name] = shares.claim(name, claim, 0.0, busy[name])
    return {name: min(len(granted), claims[name].workers) for name, granted in busy.items()}


def test_one_study_gets_all_that_it_can_use() -> None:
    assert lent_of({"first": Claim(workers=32)}, 32) == {"first": 32}


def test_second_study_halves_the_workers_of_the_first() -> None:
    claims = {"first": Claim(workers=32), "second": Claim(workers=64)}
    assert lent_of(claims, 32) == {"first": 16, "second": 16}


def test_small_claim_is_met_and_the_rest_shared_by_weight() -> None:
    claims = {
        "small": Claim(workers=2),
        "light": Claim(workers=99),
        "heavy": Claim(workers=99, weight=2.0),
    }
    assert lent_of(claims, 32) == {"small": 2, "light": 10, "heavy": 20}


@pytest.mark.parametrize("weight", [0, -1.0, math.inf, math.nan, "2", True, 1e-320, 1e308, 10**400])
def test_weight_without_sound_shares_is_refused(weight: object) -> None:
    with pytest.raises(ConfigurationError, match="weight must be a finite number > 0"):
        Claim(workers=1, weight=weight)  # type: ignore[arg-type]


@given(CLAIMS, st.integers(0, 80))
def test_even_shares_are_within_claims(claims: dict[str, Claim], workers: int) -> None:
    shares = even_shares(claims, workers)
    wanted = sum(claim.workers for claim in claims.values())
    assert math.isclose(sum(shares.values()), min(workers, wanted), abs_tol=1e-9)
    assert all(0 <= shares[name] <= claims[name].workers for name in claims)


@given(CLAIMS, st.integers(0, 80))
def test_no_even_share_grows_but_at_one_that_is_smaller(
    claims: dict[str, Claim], workers: int
) -> None:
    shares = even_shares(claims, workers)
    levels = {name: shares[name] / claim.weight for name, claim in claims.items()}
    unmet = [name for name, claim in claims.items() if shares[name] < claim.workers - 1e-9]
    assert all(levels[poor] >= max(levels.values()) - 1e-9 for poor in unmet)


@given(CLAIMS, st.integers(0, 80), st.data())
def test_workers_and_gains_together_are_shared_evenly(
    claims: dict[str, Claim], workers: int, data: st.DataObject
) -> None:
    gains = {name: data.draw(st.integers(-8, 8)) / 2 for name in claims}
    shares = even_shares(claims, workers, gains=gains)
    wanted = sum(claim.workers for claim in claims.values())
    assert math.isclose(sum(shares.values()), min(workers, wanted), abs_tol=1e-9)
    assert all(0 <= shares[name] <= claim.workers for name, claim in claims.items())
    levels = {name: (shares[name] + gains[name]) / claim.weight for name, claim in claims.items()}
    for poor, claim in claims.items():
        if shares[poor] < claim.workers - 1e-9:
            rich = [levels[name] for name in claims if shares[name] > 1e-9]
            assert levels[poor] >= max(rich, default=-math.inf) - 1e-9


def awaiting(*stages: tuple[str, str]) -> frozenset[AwaitedStage]:
    return frozenset(AwaitedStage(*stage) for stage in stages)


def shared_by(shares: StudyShares, awaits: dict[str, frozenset[AwaitedStage]]) -> dict[str, int]:
    """Return how many workers studies have that could use all 12, and train on all they have."""
    for now in range(20):
        for name in awaits:
            busy = frozenset() if now == 0 else shares.granted(name)
            shares.claim(name, Claim(workers=12), float(now), busy, awaits=awaits[name])
    return {name: len(shares.granted(name)) for name in awaits}


def test_stage_of_two_studies_counts_half_for_each() -> None:
    shares = StudyShares(patience_seconds=0.0)
    for number in range(12):
        shares.join(f"w{number}", 0.0)
    four = awaiting(*(("first", f"stage {number}") for number in range(4)))
    assert shared_by(shares, {"first": awaiting(), "second": four}) == {"first": 8, "second": 4}
    assert shares.gains() == {"first": -2.0, "second": 2.0}
    assert shared_by(shares, {"first": awaiting(), "second": awaiting()}) == {
        "first": 6,
        "second": 6,
    }


def test_stage_of_three_studies_counts_a_third_for_each() -> None:
    shares = StudyShares(patience_seconds=0.0)
    for number in range(12):
        shares.join(f"w{number}", 0.0)
    awaits = dict.fromkeys(("first", "second", "third"), awaiting(("first", "trunk")))
    shared_by(shares, awaits)
    assert shares.gains() == pytest.approx({"first": -2 / 3, "second": 1 / 3, "third": 1 / 3})


def test_gains_count_trained_stages_of_other_known_studies_alone() -> None:
    shares = StudyShares()
    shares.join("w0", 0.0)
    own_and_unknown = awaiting(("first", "own"), ("gone", "stage"))
    shares.claim("first", Claim(workers=1), 0.0, frozenset({"w0"}), awaits=own_and_unknown)
    queue = awaiting(("first", "runs"), ("first", "next"))
    shares.claim("second", Claim(workers=1), 0.0, awaits=queue)
    assert shares.gains() == {"first": -0.5, "second": 0.5}, "a worker trains one stage at a time"


@settings(max_examples=examples(50))
@given(CLAIMS, st.integers(0, 20))
def test_lent_workers_are_within_one_of_the_even_share(
    claims: dict[str, Claim], workers: int
) -> None:
    granted, even = lent_of(claims, workers), even_shares(claims, workers)
    assert sum(granted.values()) == min(workers, sum(claim.workers for claim in claims.values()))
    assert all(abs(granted[name] - even[name]) < 1 + 1e-9 for name in claims)


class Cluster(RuleBasedStateMachine):
    """Studies that claim, return what they must, and end; workers that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = StudyShares(patience_seconds=5.0)
        self.now = 0.0
        self.workers: set[str] = set()
        self.held: dict[str, set[str]] = {}
        self.claims: dict[str, Claim] = {}
        self.usable: dict[str, frozenset[str] | None] = {}
        self.wanted: dict[str, frozenset[str] | None] = {}

    @rule(number=st.integers(0, 7))
    def join(self, number: int) -> None:
        self.workers.add(f"w{number}")
        self.shares.join(f"w{number}", self.now)

    @rule(number=st.integers(0, 7))
    def lose(self, number: int) -> None:
        self.workers.discard(f"w{number}")
        for held in self.held.values():
            held.discard(f"w{number}")
        self.shares.lose(f"w{number}", self.now)

    @rule(study=st.sampled_from(NAMES), workers=st.integers(0, 9), weight=st.sampled_from([1, 2]))
    def claim(self, study: str, workers: int, weight: float) -> None:
        self.claims[study] = Claim(workers=workers, weight=weight)
        self._ask(study)

    @rule(
        study=st.sampled_from(NAMES),
        usable=st.none() | st.frozensets(st.sampled_from([f"w{n}" for n in range(8)])),
        wanted=st.none() | st.frozensets(st.sampled_from([f"w{n}" for n in range(8)])),
    )
    def need(
        self, study: str, usable: frozenset[str] | None, wanted: frozenset[str] | None
    ) -> None:
        self.usable[study], self.wanted[study] = usable, wanted

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        study = data.draw(st.sampled_from(sorted(self.claims)))
        del self.claims[study]
        self.held.pop(study, None)
        self.shares.leave(study, self.now)

    @rule(seconds=st.floats(0.1, 20.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def all_studies_return_what_they_must(self) -> None:
        """Some rounds of claims settle it, whatever was before."""
        self.now += 100.0
        for _ in range(10):
            for study in self.claims:
                self._ask(study)
            self.now += 100.0
        granted = {study: self.shares.granted(study) for study in self.claims}
        for poor, claim in self.claims.items():
            usable = self.usable.get(poor)
            assert usable is None or granted[poor] <= usable
            for rich, other in self.claims.items():
                may_move = self._wanted_of(poor, granted[rich])
                if len(self._wanted_of(poor, granted[poor])) >= claim.workers or not may_move:
                    continue
                # None has what it cannot use.
                assert may_move <= self._wanted_of(rich, granted[rich])
                assert len(self._wanted_of(rich, granted[rich])) <= other.workers
                if all(each is None for each in (*self.usable.values(), *self.wanted.values())):
                    # Studies that miss a part of a worker take turns with it; one may be on its
                    # way from one study to another.
                    even = even_shares(self.claims, len(self.workers))
                    assert even[poor] - len(granted[poor]) < 1
                    assert len(granted[rich]) - even[rich] < 1

    def _wanted_of(self, study: str, workers: frozenset[str]) -> frozenset[str]:
        for only in (self.usable.get(study), self.wanted.get(study)):
            workers = workers if only is None else workers & only
        return workers

    def _ask(self, study: str) -> None:
        """Use as many workers as are claimed and granted; what was busy is saved and given up."""
        held = self.held.get(study, set())
        may_use = held & self.shares.granted(study) if held else set()
        busy = frozenset(sorted(may_use)[: self.claims[study].workers])
        granted = self.shares.claim(
            study,
            self.claims[study],
            self.now,
            busy,
            self.usable.get(study),
            wanted=self.wanted.get(study),
        )
        self.held[study] = set(granted | busy)

    @invariant()
    def no_worker_is_used_by_two(self) -> None:
        used = [worker for held in self.held.values() for worker in held]
        assert len(used) == len(set(used))
        granted = [worker for study in self.claims for worker in self.shares.granted(study)]
        assert len(granted) == len(set(granted))
        assert set(granted) <= self.workers


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=examples(60))


def test_busy_worker_is_recalled_after_the_patience_alone() -> None:
    shares = StudyShares(patience_seconds=5.0)
    for worker in ("w0", "w1"):
        shares.join(worker, 0.0)
    busy = frozenset(["w0", "w1"])
    shares.claim("a", Claim(workers=9), 0.0)
    assert shares.claim("a", Claim(workers=9), 0.0, busy) == busy
    assert shares.claim("b", Claim(workers=9), 1.0) == set()
    assert shares.claim("a", Claim(workers=9), 5.9, busy) == busy
    (kept,) = shares.claim("a", Claim(workers=9), 6.0, busy)
    (returned,) = busy - {kept}
    assert shares.claim("b", Claim(workers=9), 7.0) == set()  # it still trains there
    shares.claim("a", Claim(workers=9), 8.0, busy=frozenset([kept]))
    assert shares.granted("b") == {returned}


def test_idle_worker_is_recalled_at_once() -> None:
    shares = StudyShares(patience_seconds=1e9)
    shares.join("w0", 0.0)
    assert shares.claim("a", Claim(workers=0), 0.0) == {"w0"}  # of no use to any study
    assert shares.claim("b", Claim(workers=1), 0.0) == set()
    shares.claim("a", Claim(workers=0), 0.0)
    assert shares.granted("b") == {"w0"}


def test_three_studies_take_turns_on_two_workers() -> None:
    shares = StudyShares(patience_seconds=5.0)
    for worker in ("w0", "w1"):
        shares.join(worker, 0.0)
    claim = Claim(workers=5)
    busy = dict.fromkeys("abc", frozenset[str]())
    seconds = dict.fromkeys("abc", 0)
    for now in range(600):
        for study in "abc":
            busy[study] = shares.claim(study, claim, float(now), busy[study])
            seconds[study] += len(busy[study])
    assert sum(seconds.values()) > 0.98 * 1200
    assert min(seconds.values()) > 0.9 * 400


def test_study_with_workers_of_its_own_leaves_the_others() -> None:
    shares = StudyShares(patience_seconds=0.0)
    for worker in ("gpu0", "gpu1", "cpu0", "cpu1"):
        shares.join(worker, 0.0)
    claim, gpus = Claim(workers=9), frozenset(["gpu0", "gpu1"])
    busy = dict.fromkeys("ab", frozenset[str]())
    for now in range(4):
        busy["a"] = shares.claim("a", claim, float(now), busy["a"])
        busy["b"] = shares.claim("b", claim, float(now), busy["b"], usable=gpus)
    assert busy == {"a": {"cpu0", "cpu1"}, "b": gpus}


def test_studies_take_turns_beside_workers_of_no_use() -> None:
    shares = StudyShares(patience_seconds=5.0)
    for worker in ("gpu0", "cpu0", "cpu1", "cpu2"):
        shares.join(worker, 0.0)
    claim, gpu = Claim(workers=1), frozenset(["gpu0"])
    busy = dict.fromkeys("ab", frozenset[str]())
    seconds = dict.fromkeys("ab", 0)
    for now in range(600):
        for study in "ab":
            busy[study] = shares.claim(study, claim, float(now), busy[study], usable=gpu)
            seconds[study] += len(busy[study])
    assert min(seconds.values()) > 0.4 * 600


def test_light_study_takes_its_turn_on_one_worker() -> None:
    shares = StudyShares(patience_seconds=5.0)
    shares.join("w0", 0.0)
    weights = {"light": 1.0, "heavy": 2.0}
    busy = dict.fromkeys(weights, frozenset[str]())
    seconds = dict.fromkeys(weights, 0)
    for now in range(900):
        for study, weight in weights.items():
            claim = Claim(workers=2, weight=weight)
            busy[study] = shares.claim(study, claim, float(now), busy[study])
            seconds[study] += len(busy[study])
    assert 0.25 * 900 < seconds["light"] < 0.42 * 900
    assert seconds["heavy"] > 0.55 * 900


def test_worker_that_no_study_can_use_is_lent_to_none() -> None:
    shares = StudyShares()
    shares.join("w0", 0.0)
    shares.join("w1", 0.0)
    assert shares.claim("a", Claim(workers=9), 0.0, usable=frozenset(["w1"])) == {"w1"}


def test_worker_that_a_study_cannot_use_now_is_lent_to_another() -> None:
    shares = StudyShares(patience_seconds=1e9)
    for worker in ("gpu", "cpu"):
        shares.join(worker, 0.0)
    claim, wanted = Claim(workers=1), {"a": "gpu", "b": "cpu"}
    first, second = shares.claim("a", claim, 0.0), shares.claim("b", claim, 0.0)
    assert first == {"gpu", "cpu"} - second
    # Each has as many as it claims: whichever they have, they exchange them.
    wanted = wanted if first == {"cpu"} else {"a": "cpu", "b": "gpu"}
    for _ in range(2):
        for study, worker in wanted.items():
            shares.claim(study, claim, 0.0, wanted=frozenset([worker]))
    assert {study: shares.granted(study) for study in wanted} == {
        study: {worker} for study, worker in wanted.items()
    }


def seconds_at_work(claims: dict[str, Claim], workers: int, seconds: int) -> dict[str, int]:
    """Return for how many worker seconds each study trained, in stages of as many as it claims."""
    shares = StudyShares()
    for number in range(workers):
        shares.join(f"w{number}", 0.0)
    busy = dict.fromkeys(claims, frozenset[str]())
    trained = dict.fromkeys(claims, 0)
    for second in range(seconds):
        for name, claim in claims.items():
            granted = shares.claim(name, claim, float(second), busy[name])
            whole = len(granted) - len(granted) % claim.least
            busy[name] = frozenset(sorted(granted)[: min(whole, claim.workers)])
            trained[name] += len(busy[name])
    return trained


def together(workers: int, least: int = 0) -> Claim:
    return Claim(workers=workers, least=least or workers)


@pytest.mark.parametrize(
    ("claims", "workers"),
    [
        ({"a": together(2), "b": together(2)}, 2),
        ({"a": together(2), "b": together(2)}, 3),
        ({"a": together(2), "b": together(2), "c": together(2)}, 2),
        ({"a": together(4), "b": Claim(workers=4)}, 4),
        ({"b": Claim(workers=4), "a": together(4)}, 4),
        ({"a": together(3), "b": together(2, 1), "c": together(2)}, 3),
        ({"a": together(8, 2), "b": together(8, 4), "c": Claim(workers=8)}, 8),
    ],
)
def test_studies_of_gangs_train_in_turn(claims: dict[str, Claim], workers: int) -> None:
    seconds = 600
    trained = seconds_at_work(claims, workers, seconds)
    even = even_shares(claims, workers)
    assert all(trained[name] >= 0.6 * even[name] * seconds for name in claims), trained
    assert sum(trained.values()) <= workers * seconds


def test_gang_of_more_workers_than_there_are_hinders_nobody() -> None:
    trained = seconds_at_work({"a": together(4), "b": Claim(workers=3)}, 3, 60)
    assert trained["a"] == 0
    assert trained["b"] >= 170


def test_least_workers_beyond_the_claim_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="least must be an int from 1 to 4, got 5"):
        Claim(workers=4, least=5)


def test_workers_come_back_in_the_order_of_their_recall() -> None:
    names = [f"w{number}" for number in range(40)]
    shares = StudyShares(patience_seconds=0.0)
    for name in names:
        shares.join(name, 0.0)
    one = Claim(workers=40)
    shares.claim("first", one, 0.0, busy=frozenset(names))
    shares.claim("second", one, 0.0)
    shares.claim("second", one, 1.0)  # it has waited for long enough: 20 are recalled
    shares.claim("first", one, 2.0)  # all of them are idle now
    assert shares.granted("second") == frozenset(names[:20])
    shares.claim("third", one, 3.0)  # the last granted are recalled first
    assert shares.granted("second") == frozenset(names[6:20])
