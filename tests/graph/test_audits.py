"""Which resumes are audited, and from which state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.graph.audits import (
    ALWAYS,
    AUDIT_STEPS,
    MOST_WAITING,
    SHARE_OF_STEPS,
    SMALL_STUDY,
    Audit,
    AuditCounts,
    AuditDraw,
    Resume,
    Stretch,
    audit_of,
    audit_problems,
    is_drawn,
    measured_on,
    origins_of,
    resting_on,
    splits_of,
    steps_allowed,
    stored_before,
    stored_on,
)
from dasktune.graph.known import Steps
from dasktune.graph.plan import Node, SearchPlan
from dasktune.sequences import Constant, MultiStep
from dasktune.types import Step

STEPS = st.integers(0, 10**6)


def planned(*milestones: int, steps: int = 20) -> SearchPlan:
    """Return trials that leave the first one at these steps."""
    plan = SearchPlan("aa" * 16)
    plan.register(0, {"lr": Constant(0.1)}, steps)
    for number, milestone in enumerate(milestones, start=1):
        plan.register(number, {"lr": MultiStep(0.1, [milestone], gamma=0.5)}, steps)
    return plan


def learn(plan: SearchPlan, trial: int, *stored: int, measured: bool = True) -> Node:
    """Note states of a trial, and the metrics of all its steps; return its last node."""
    leaf = plan.paths[trial].leaf
    for step in range(1, leaf.stop + 1):
        metrics = {"loss": float(step)} if measured else None
        plan.learn(leaf, step, is_stored=step in stored, metrics=metrics)
    return leaf


def test_is_drawn_takes_the_share_of_the_keys() -> None:
    keys = [f"{number:032x}" for number in range(5000)]
    drawn = [key for key in keys if is_drawn(key, 0.02, earlier=ALWAYS)]
    assert 60 <= len(drawn) <= 140
    assert drawn == [key for key in keys if is_drawn(key, 0.02, earlier=10**6)], "not by the time"
    assert set(drawn) <= {key for key in keys if is_drawn(key, 0.5, earlier=ALWAYS)}


def test_is_drawn_takes_the_first_in_any_case() -> None:
    for earlier in range(ALWAYS):
        assert is_drawn("a", 1e-9, earlier=earlier)
        assert not is_drawn("a", 0.0, earlier=earlier)
    assert not is_drawn("a", 1e-9, earlier=ALWAYS)
    assert is_drawn("a", 1e-9, earlier=ALWAYS, is_new=True)
    assert not is_drawn("a", 0.0, earlier=ALWAYS, is_new=True)
    assert is_drawn("a", 1.0, earlier=ALWAYS)


@pytest.mark.parametrize("share", [0, 0.02, 1, 1.0])
def test_audit_problems_of_a_share_are_none(share: float) -> None:
    assert list(audit_problems(share)) == []


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), True, None, "0.5"])
def test_audit_problems_name_what_is_no_share(share: object) -> None:
    assert list(audit_problems(share)) == [f"audit must be a number from 0 to 1, got {share!r}"]


@given(
    trained=STEPS,
    spent=STEPS,
    audits=st.integers(0, 100),
    overhead=st.integers(0, 1000),
    workers=st.integers(0, 100),
)
def test_steps_allowed_stay_in_the_budget(
    trained: int, spent: int, audits: int, overhead: int, workers: int
) -> None:
    allowed = steps_allowed(
        trained=trained, spent=spent, audits=audits, overhead=overhead, workers=workers
    )
    assert allowed >= 0
    if audits and allowed:
        assert allowed >= AUDIT_STEPS
        assert spent + overhead + allowed <= SHARE_OF_STEPS * trained
        assert overhead + allowed <= SHARE_OF_STEPS * trained / max(1, workers)
    elif allowed:
        assert spent + allowed <= max(AUDIT_STEPS, SHARE_OF_STEPS * trained - overhead)


@pytest.mark.parametrize(
    ("trained", "spent", "audits", "allowed"),
    [
        (0, 0, 0, AUDIT_STEPS),
        (SMALL_STUDY, 0, 0, AUDIT_STEPS),
        (SMALL_STUDY, 10, 0, AUDIT_STEPS - 10),
        (SMALL_STUDY, 1, 1, 0),
        (2 * SMALL_STUDY, AUDIT_STEPS, 1, AUDIT_STEPS),
        (2 * SMALL_STUDY, AUDIT_STEPS + 1, 1, 0),
        (10_000, 40, 5, 160),
        (10_000, 201, 5, 0),
    ],
)
def test_steps_allowed_grow_with_the_study(
    trained: int, spent: int, audits: int, allowed: int
) -> None:
    assert steps_allowed(trained=trained, spent=spent, audits=audits) == allowed


def begin(
    draw: AuditDraw, trained: int, *, workers: int = 1, is_last: bool = False
) -> tuple[str, Audit] | None:
    """Begin the best audit, if there is one."""
    possible = draw.possible(trained, workers=workers, is_last=is_last)
    for key, audit in possible:
        draw.begin(key, audit)
        return key, audit
    return None


@given(data=st.data())
def test_audits_of_a_study_stay_in_the_budget(data: st.DataObject) -> None:
    draw, trained, spent = AuditDraw(1.0), 0, 0
    milestones = data.draw(st.lists(st.integers(1, 200), min_size=1, max_size=8, unique=True))
    plan = planned(*milestones, steps=220)
    for number in range(1, len(milestones) + 1):
        leaf = learn(plan, number, milestones[number - 1], 220)
        draw.launched(f"{number}", leaf, leaf.start)
        draw.saved(f"{number}")
        draw.ended(f"{number}", leaf.stop, loaded_at=leaf.start)
        trained += data.draw(st.integers(0, 800))
        while (begun := begin(draw, trained, is_last=True)) is not None:
            key, audit = begun
            assert audit.beyond > 0
            assert audit.way.start <= audit.resume.step
            steps = data.draw(st.integers(0, audit.way.steps))
            spent += steps
            draw.end(key, steps, has_result=data.draw(st.booleans()))
            assert spent <= max(AUDIT_STEPS, SHARE_OF_STEPS * trained)


class CountedStates(Steps):
    """Stored states, which counts how many are looked at."""

    visited = 0

    def __iter__(self) -> Iterator[Step]:
        for step in super().__iter__():
            self.visited += 1
            yield step

    def __contains__(self, step: object) -> bool:
        self.visited += 1
        return super().__contains__(step)


@pytest.mark.parametrize("every", [1, 30])
def test_waiting_audits_look_at_few_of_many_states(every: Step) -> None:
    last, waiting = 20_000, MOST_WAITING
    leaf = planned(steps=last).paths[0].leaf
    states = CountedStates(range(every, last + 1, every))
    leaf.checkpoints = states
    draw = AuditDraw(1.0)
    for number in range(waiting):
        start = last - (waiting - number) * every
        draw.launched(f"{number}", leaf, start)
        draw.saved(f"{number}")
        draw.ended(f"{number}", start + every, loaded_at=start)
    assert draw.waiting == waiting
    states.visited = 0
    assert begin(draw, last, is_last=True) is not None
    assert states.visited < 3 * last, "all of them are looked at for the audit that begins"


@given(data=st.data())
def test_state_before_is_the_last_stored(data: st.DataObject) -> None:
    stored = data.draw(st.sets(st.integers(1, 40)))
    plan = planned(steps=40)
    leaf = learn(plan, 0, *stored)
    plan.register(1, leaf.sequences, data.draw(st.integers(1, 40)))
    step = data.draw(st.integers(1, 40))
    before = max((at for at in stored if at < step), default=0)
    assert stored_before(leaf, step) == before


def test_audit_begins_at_the_stored_state_before() -> None:
    plan = planned(10)
    leaf = learn(plan, 1, 4, 10, 15, 20)
    resumed = Resume(node=leaf, step=10)
    assert stored_before(leaf, 10) == 4
    assert stored_before(leaf, 4) == 0
    audit = audit_of(resumed, None, AUDIT_STEPS)
    way = Stretch(node=leaf, start=4, stop=20)
    assert audit == Audit(resume=resumed, way=way, is_whole=True)
    assert measured_on(audit.way) == list(range(5, 21))
    assert stored_on(audit.way) == [10, 15, 20]


def test_audit_prefers_what_went_on_in_memory() -> None:
    plan = planned(10)
    resumed = Resume(node=learn(plan, 1, 10, 20), step=10)
    beside = learn(plan, 0, 10, 20)
    audit = audit_of(resumed, beside, AUDIT_STEPS)
    assert audit is not None
    assert audit.way == Stretch(node=beside, start=10, stop=20)


def test_audit_that_is_too_long_is_cut_to_what_is_allowed() -> None:
    plan = planned(100, steps=300)
    leaf = learn(plan, 1, 90, 100, 300)
    resumed = Resume(node=leaf, step=100)
    assert audit_of(resumed, None, 10) is None
    audit = audit_of(resumed, None, AUDIT_STEPS)
    assert audit is not None
    assert (audit.way.start, audit.way.stop, audit.beyond) == (90, 90 + AUDIT_STEPS, 20)
    audit = audit_of(resumed, None, 1000)
    assert audit is not None
    assert (audit.way.start, audit.beyond, audit.is_whole) == (90, AUDIT_STEPS, True)


def test_audit_goes_on_along_what_is_trained() -> None:
    plan = planned(4, 8, 12)
    resumed = Resume(node=plan.paths[0].leaf.holder(8), step=4)
    learn(plan, 0, 4, 8, 12, 20)
    audit = audit_of(resumed, None, AUDIT_STEPS)
    assert audit is not None
    assert (audit.way.start, audit.way.stop, audit.is_whole) == (0, 20, True)


def test_audit_that_can_get_longer_is_not_whole() -> None:
    plan = planned(4, 8, 12)
    leaf = plan.paths[0].leaf.holder(8)
    for step in range(1, 9):
        plan.learn(leaf, step, is_stored=step % 4 == 0, metrics={"loss": 0.5})
    audit = audit_of(Resume(node=leaf, step=4), None, AUDIT_STEPS)
    assert audit is not None
    assert (audit.way.start, audit.way.stop, audit.is_whole) == (0, 8, False)


def test_audit_that_cannot_pass_the_resume_is_left_out() -> None:
    plan = planned(100, steps=300)
    resumed = Resume(node=learn(plan, 1, 100, 300), step=100)
    assert audit_of(resumed, None, AUDIT_STEPS) is None, "from step 0, it would not get there"
    assert audit_of(resumed, None, 300) is not None


def test_audit_ends_where_there_is_something_to_compare() -> None:
    plan = planned(10, steps=100)
    leaf = learn(plan, 1, 10, 100, measured=False)
    plan.learn(leaf, 18, metrics={"loss": 0.5})
    audit = audit_of(Resume(node=leaf, step=10), None, AUDIT_STEPS)
    assert audit is not None
    assert (audit.way.start, audit.way.stop) == (0, 18)
    plan = planned(10, steps=100)
    leaf = learn(plan, 1, 10, 100, measured=False)
    assert audit_of(Resume(node=leaf, step=10), None, AUDIT_STEPS) is None


def test_origin_is_where_the_trainer_of_the_study_was_loaded() -> None:
    plan = planned(100, steps=300)
    way = Stretch(node=learn(plan, 0, 30, 60, 90, 120), start=90, stop=120)
    assert origins_of(way, 0, 1000) == [0]
    assert origins_of(way, 60, 1000) == [60]


def test_origins_are_next_and_first_where_it_is_unknown() -> None:
    plan = planned(100, steps=300)
    way = Stretch(node=learn(plan, 0, 30, 60, 90, 120), start=90, stop=120)
    assert origins_of(way, None, 1000) == [90, 60, 0]
    assert origins_of(way, 0, 95) == [90, 60, 30], "0 is too far"
    assert origins_of(way, 40, 1000) == [90, 60, 0], "what was stored at 40 is evicted"
    assert origins_of(way, 0, 30) == [90]
    assert origins_of(Stretch(node=way.node, start=0, stop=30), None, 1000) == [0]


def test_splits_are_where_stages_may_have_resumed() -> None:
    plan = planned(10)
    leaf = learn(plan, 1, 4, 10, 12, 14, 16, 20)
    resumed = Resume(node=leaf, step=10)
    audit = audit_of(resumed, None, AUDIT_STEPS)
    assert audit is not None
    assert splits_of(audit) == [10, 4, 16, 14]
    beside = audit_of(resumed, leaf, AUDIT_STEPS)
    assert beside is not None
    assert splits_of(beside) == [10, 16, 14, 12]


def test_draw_knows_where_trainers_were_loaded() -> None:
    draw, plan = AuditDraw(1.0), planned(10)
    trunk = learn(plan, 0, 3, 5, 10, 20)
    draw.launched("0", trunk, 5)
    draw.ended("0", 20, loaded_at=3)
    draw.saved("0")
    run_through(draw, plan, trial=1, warm=False)
    begun = begin(draw, 40)
    assert begun is not None
    assert (begun[1].way.start, begun[1].origins) == (10, (3,))


def test_draw_remembers_the_last_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dasktune.graph.audits.MOST_STAGES", 1)
    draw, plan = AuditDraw(1.0), planned(10, 12)
    learn(plan, 0, 5, 10, 12, 20)
    for trial in (0, 2):
        run_through(draw, plan, trial=trial, warm=True)
    run_through(draw, plan, trial=1, warm=False)
    begun = begin(draw, 40)
    assert begun is not None
    assert begun[1].way.start == 5, "the trainer that passed step 10 is forgotten"
    leaf = plan.paths[1].leaf
    for attempt in ("a", "b"):
        draw.launched(attempt, leaf, leaf.start)
    draw.ended("a", leaf.stop, loaded_at=leaf.start)
    draw.saved("a")
    assert draw.counts.resumes == 1, "a message of it never came"


def test_resting_trials_are_all_that_go_through_the_stage() -> None:
    plan = planned(10, 15)
    leaf = plan.paths[2].leaf
    assert resting_on(plan, Resume(node=leaf, step=15)) == [2]
    assert resting_on(plan, Resume(node=leaf, step=10)) == [0, 2]
    assert resting_on(plan, Resume(node=leaf, step=4)) == [0, 1, 2]


def run_through(draw: AuditDraw, plan: SearchPlan, *, trial: int, warm: bool, at: str = "") -> None:
    """Run the last stage of a trial, which is saved at its end."""
    leaf = learn(plan, trial, plan.paths[trial].leaf.start, 20)
    attempt = at or f"{trial}"
    draw.launched(attempt, leaf, leaf.start)
    draw.ended(attempt, leaf.stop, loaded_at=0 if warm else leaf.start)
    draw.saved(attempt)


def test_draw_counts_resumes_only() -> None:
    draw, plan = AuditDraw(1.0), planned(10)
    run_through(draw, plan, trial=0, warm=True)
    assert (draw.counts, draw.waiting) == (AuditCounts(), 0)
    assert begin(draw, 35) is None
    run_through(draw, plan, trial=1, warm=False)
    assert (draw.counts, draw.waiting) == (AuditCounts(resumes=1), 1)


def test_draw_takes_states_that_came_before_the_end() -> None:
    draw, plan = AuditDraw(1.0), planned(10)
    leaf = learn(plan, 1, 10, 20)
    draw.launched("1", leaf, leaf.start)
    draw.saved("1")
    assert draw.counts.resumes == 0, "whether it resumed is known at its end"
    draw.ended("1", leaf.stop, loaded_at=leaf.start)
    assert (draw.counts.resumes, draw.waiting) == (1, 1)


def test_draw_gives_a_small_study_one_audit() -> None:
    draw, plan = AuditDraw(1.0), planned(10, 12)
    run_through(draw, plan, trial=1, warm=False)
    run_through(draw, plan, trial=2, warm=False)
    begun = begin(draw, 40)
    assert begun is not None
    assert begin(draw, 40) is None
    draw.end(begun[0], begun[1].way.steps, has_result=True)
    assert begin(draw, SMALL_STUDY) is None
    assert begin(draw, 20 * SMALL_STUDY) is not None
    assert draw.counts == AuditCounts(resumes=2, audits=1, steps=begun[1].way.steps)


def drawn() -> tuple[AuditDraw, tuple[str, Audit]]:
    """Return a draw of several resumes in a study of 0.1 s a step, and its first audit."""
    draw, plan = AuditDraw(1.0), planned(10, 12, 14)
    for trial in (1, 2, 3):
        leaf = learn(plan, trial, plan.paths[trial].leaf.start, 20)
        steps = leaf.stop - leaf.start
        draw.launched(f"{trial}", leaf, leaf.start)
        draw.ended(f"{trial}", leaf.stop, loaded_at=leaf.start, seconds=0.1 * steps)
        draw.saved(f"{trial}")
    begun = begin(draw, 50)
    assert begun is not None, "the first is done whatever it costs"
    return draw, begun


def test_draw_counts_what_starting_a_trainer_costs() -> None:
    draw, (key, audit) = drawn()
    steps = audit.way.steps
    enough = 50 * (steps + AUDIT_STEPS)
    assert begin(draw, enough - 51) is None, "one is under way"
    draw.end(key, steps, has_result=True, seconds=0.1 * steps + 3.0)
    assert draw.counts.seconds == pytest.approx(0.1 * steps + 3.0)
    # It cost 30 steps more than it trained. So will the next, and the stage after that.
    enough = 50 * (steps + 30 + 2 * 30 + AUDIT_STEPS + 1)  # one for rounded figures
    assert begin(draw, enough - 101) is None
    assert begin(draw, enough) is not None


def test_draw_begins_no_audit_that_many_workers_would_wait_for() -> None:
    draw, (key, audit) = drawn()
    draw.end(key, audit.way.steps, has_result=True)
    enough = 50 * (audit.way.steps + AUDIT_STEPS)
    assert begin(draw, enough, workers=8) is None
    assert begin(draw, 8 * enough, workers=8) is not None


def test_draw_waits_for_the_end_with_an_audit_that_is_short() -> None:
    draw, plan = AuditDraw(1.0), planned(15)
    run_through(draw, plan, trial=1, warm=False)
    assert begin(draw, 25) is None
    assert begin(draw, 25, is_last=True) is not None


def test_draw_tries_another_after_one_that_was_dropped() -> None:
    draw, plan = AuditDraw(1.0), planned(10, 12)
    run_through(draw, plan, trial=1, warm=False)
    run_through(draw, plan, trial=2, warm=False)
    first = begin(draw, 40)
    assert first is not None
    draw.end(first[0], 3, has_result=False)
    second = begin(draw, 40)
    assert second is not None
    assert second[0] != first[0]
    assert draw.counts == AuditCounts(resumes=2, audits=0, steps=3)


def test_draw_is_the_same_whatever_came_first() -> None:
    def begun(order: tuple[int, int]) -> Iterator[str]:
        draw, plan = AuditDraw(1.0), planned(10, 12)
        for trial in order:
            run_through(draw, plan, trial=trial, warm=False)
        audit = begin(draw, 40)
        assert audit is not None
        yield audit[0]

    assert list(begun((1, 2))) == list(begun((2, 1)))


def test_draw_forgets_stages_that_were_lost() -> None:
    draw, plan = AuditDraw(1.0), planned(10)
    leaf = learn(plan, 1, 10, 20)
    draw.launched("a", leaf, 10)
    draw.lost("a")
    draw.saved("a")
    draw.ended("a", 20, loaded_at=10)
    assert draw.counts.resumes == 0


def test_draw_keeps_few_that_wait_for_the_budget() -> None:
    steps = MOST_WAITING + 20
    draw, plan = AuditDraw(1.0), planned(*range(1, steps), steps=steps)
    for trial in range(1, steps):
        leaf = learn(plan, trial, steps)
        draw.launched(f"{trial}", leaf, leaf.start)
        draw.ended(f"{trial}", leaf.stop, loaded_at=leaf.start)
        draw.saved(f"{trial}")
    assert draw.counts.resumes > MOST_WAITING
    assert draw.waiting == MOST_WAITING


def test_origins_may_be_as_far_as_the_steps_allow() -> None:
    plan = planned(10)
    leaf = learn(plan, 1, 4, 10, 20)
    way = Stretch(node=leaf, start=10, stop=20)
    assert origins_of(way, 4, 16) == [4], "16 steps to the end"
    assert origins_of(way, 4, 15) == [10], "one step too far"
    assert origins_of(way, None, 16) == [10, 4]
    assert origins_of(way, None, 20) == [10, 4, 0]


def test_steps_of_a_way_are_those_behind_its_start() -> None:
    plan = planned(10)
    leaf = learn(plan, 1, 4, 10, 20)
    assert stored_on(Stretch(node=leaf, start=4, stop=20)) == [10, 20]
    assert measured_on(Stretch(node=leaf, start=8, stop=12)) == [9, 10, 11, 12]
    assert (stored_before(leaf, 5), stored_before(leaf, 11)) == (4, 10)


def test_first_of_equal_stretches_in_memory_stays() -> None:
    draw, plan = AuditDraw(1.0), planned(10, 15)
    trunk = learn(plan, 0, 3, 5, 10, 20)
    for attempt, start in (("a", 3), ("b", 5)):
        draw.launched(attempt, trunk, start)
        draw.ended(attempt, 20, loaded_at=start)
        draw.saved(attempt)
    run_through(draw, plan, trial=1, warm=False)
    begun = [begin(draw, 40, is_last=True)]
    while begun[-1] is not None:
        draw.end(begun[-1][0], 1, has_result=False)
        begun.append(begin(draw, 40, is_last=True))
    audits = [each[1] for each in begun if each is not None]
    assert {audit.origins for audit in audits if audit.way.start == 10} == {(3,)}


def test_stage_from_step_0_is_no_resume() -> None:
    draw, plan = AuditDraw(1.0), planned(10)
    trunk = learn(plan, 0, 10, 20)
    draw.launched("0", trunk, 0)
    draw.saved("0")
    draw.saved("0")
    draw.ended("0", 20, loaded_at=0)
    draw.saved("unknown")
    draw.ended("unknown", 20, loaded_at=0)
    assert (draw.counts.resumes, draw.waiting) == (0, 0)


def test_draw_is_first_until_it_has_had_some() -> None:
    draw, plan = AuditDraw(1.0), planned(10, 12, 14, 16)
    for trial in range(1, 5):
        run_through(draw, plan, trial=trial, warm=False)
    firsts, begun = [draw.is_first], begin(draw, 20 * SMALL_STUDY, is_last=True)
    while begun is not None:
        firsts.append(draw.is_first)
        draw.end(begun[0], 1, has_result=True)
        firsts.append(draw.is_first)
        begun = begin(draw, 20 * SMALL_STUDY, is_last=True)
    assert firsts == [True] * 5 + [False] * 4
    assert AuditDraw(1.0, counts=AuditCounts(audits=ALWAYS)).is_first is False


def test_the_first_resume_of_each_branch_is_drawn() -> None:
    plan = SearchPlan("aa" * 16)
    draw = AuditDraw(1e-9)
    for number in range(12):
        mode = "b" if number == 10 else "a"
        node = plan.register(number, {"mode": Constant(mode), "lr": Constant(0.1 * number)}, 90)
        assert node.stop == 90
        draw.launched(f"a{number}", node, 10)
        draw.saved(f"a{number}")
        draw.ended(f"a{number}", 20, loaded_at=10)
    always = 3
    assert draw.waiting == always + 1


def test_the_first_resume_in_the_last_third_is_drawn() -> None:
    plan = SearchPlan("aa" * 16)
    draw = AuditDraw(1e-9)
    for number in range(12):
        end = plan.register(number, {"lr": Constant(0.1 * number)}, 90)
        node, start = end, 60 if number > 8 else 10
        draw.launched(f"a{number}", node, start)
        draw.saved(f"a{number}")
        draw.ended(f"a{number}", start + 10, loaded_at=start)
    always = 3
    assert draw.waiting == always + 1
