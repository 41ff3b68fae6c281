"""The conformance suite for tuners: the rules on which engine, event log and users rely."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import ClassVar, NoReturn

import numpy as np

from dasktune.algos.base import Inputs, Tuner
from dasktune.testing.calls import Call, ConformanceError, TellCall, perform
from dasktune.testing.oracle import Answers
from dasktune.testing.play import MOST_CALLS, Game, Loss, replay
from dasktune.testing.rules import GameTrial
from dasktune.types import Decision, Register, Report, Sequences, Step

_CAPACITIES = (1, 3, 8, 1000)
_ANSWERS: tuple[Answers, ...] = ("at once", "last", "never")
_PACES = (0.0, 1e-3, 1e6)


class TunerConformance:
    """Tests that a tuner keeps the protocol of `dasktune.algos.base`.

    Subclass it in a test file, under a name that pytest collects, and define `make`. Any test
    runner works. Each test plays whole games with new tuners. An error names the seed of its
    game.

    Make a small tuner: with 10 to 30 trials of 10 to 100 steps the tests are thorough and take
    about a second each.

    Attributes
    ----------
    seeds
        Seeds of the games; one game for each.
    most_calls
        Number of calls within which a game must end.
    ranks
        Whether the tuner compares single trials to decide which of them goes on. False skips
        the tests of this comparison, for tuners with other rules or with groups of trials.
    promotes
        Whether only good trials go on. True adds a test that a trial with an infinite loss is
        not promoted. A tuner that stops or replaces bad trials may lack a better trial.

    Examples
    --------
    >>> from dasktune.algos import Random
    >>> from dasktune.space import Float, Space
    >>> class TestMyTuner(TunerConformance):
    ...     def make(self, seed):
    ...         return Random(Space(lr=Float(0.01, 1.0)), trials=9, max_steps=27, seed=seed)
    ...
    ...     def make_wider(self, seed):
    ...         return Random(Space(lr=Float(0.01, 1.0)), trials=12, max_steps=27, seed=seed)
    >>> TestMyTuner().test_it_ends_in_any_order_of_reports()
    """

    seeds: ClassVar[Sequence[int]] = range(20)
    most_calls: ClassVar[int] = MOST_CALLS
    ranks: ClassVar[bool] = True
    promotes: ClassVar[bool] = False

    # ------------------------------------------------------------------ what users define

    def make(self, seed: int) -> Tuner:
        """Return a new tuner; `seed` decides its random choices, if it makes any."""
        raise NotImplementedError(f"{type(self).__name__} must define make(self, seed)")

    def make_wider(self, seed: int) -> Tuner | None:
        """Return the tuner of `make` with more trials; None if it cannot be widened."""
        return None

    def make_mirrored(self, seed: int) -> Tuner:
        """Return the tuner of `make` for the metric with its sign changed.

        Override it if the arguments contain values of the metric, such as a target or bounds.
        """
        return self.make(seed)

    def rivals(self, tuner: Tuner, trial: int) -> object:
        """Return the group of a trial, such as its bracket: trials of a group are rivals.

        The suite compares rivals that have reported at the same steps. It calls this when the
        tuner has finished.
        """
        return None

    # ----------------------------------------------------------------------- the rules

    def test_it_ends_in_any_order_of_reports(self) -> None:
        """The tuner keeps all rules and finishes, whatever the order of reports between trials."""
        for seed in self.seeds:
            self._game(seed).run()

    def test_it_goes_on_when_trials_fail(self) -> None:
        """After a failure the tuner leaves the trial alone, and finishes with the others."""
        for seed in self.seeds:
            self._game(seed, failures=0.1 + 0.1 * (seed % 5)).run()

    def test_it_ends_when_every_trial_fails(self) -> None:
        """The tuner finishes even if all trials fail."""
        for seed in self.seeds:
            self._game(seed, failures=1.0).run()

    def test_it_ends_however_predictions_come(self) -> None:
        """Predictions come at once, after all training, or not at all; the tuner finishes."""
        for seed in self.seeds:
            for answers in _ANSWERS:
                game = self._game(seed, failures=0.1, answers=answers).run()
                if not any(call.questions for call in game.calls):
                    break

    def test_it_ends_at_any_pace_of_the_clock(self) -> None:
        """The tuner finishes with a clock that stands still, is slow, or is fast."""
        for seed in self.seeds:
            tuner = self.make(seed)
            if tuner.timed or tuner.due_seconds is not None:
                for pace in _PACES:
                    self._game(seed, failures=0.1, pace=pace).run()

    def test_an_empty_ask_changes_nothing(self) -> None:
        """An `ask` without a decision leaves the state as it was; it comes after every call."""
        for seed in self.seeds:
            self._game(seed, capacity=10**6, in_turn=True).run()

    def test_it_tries_what_it_announced(self) -> None:
        """The first trials have the configurations of `Tuner.configurations`, if it has any."""
        for seed in self.seeds:
            announced = self.make(seed).configurations or ()
            game = self._game(seed).run()
            for trial, configuration in zip(game.trials, announced, strict=False):
                if trial.registered.sequences != configuration.sequences:
                    _refuse(
                        f"trial {trial.number} must be as announced, {configuration.sequences}, "
                        f"got {trial.registered.sequences}",
                        seed,
                    )

    def test_queued_points_are_tried_first(self) -> None:
        """The first trials have the points that a user queued, if trials have points."""
        for seed in self.seeds:
            inputs = _inputs_from(self._game(seed).run())
            game = self._game(seed, inputs=inputs).run()
            queued = inputs["queued"]
            tried = _points(game)[: len(queued)]
            if tried != queued:
                _refuse(f"the first trials must be as queued, {queued}, got {tried}", seed)

    # -------------------------------------------------------- the same again and again

    def test_the_same_calls_give_the_same_decisions(self) -> None:
        """Decisions depend on arguments and calls alone, without clock and global generator."""
        for seed in self.seeds:
            game = self._game(seed, failures=0.1).run()
            replay(game, self.make(seed), f"for the same seed and calls (seed {seed})")

    def test_the_identity_is_stable_json(self) -> None:
        """Tuners with equal arguments have equal identities, from start to end."""
        for seed in self.seeds:
            tuner = self.make(seed)
            before = _identity(tuner)
            Game(tuner, seed=seed, loss=_curves(seed), most_calls=self.most_calls).run()
            for what, other in (("at the end", tuner), ("made again", self.make(seed))):
                if _identity(other) != before:
                    _refuse(
                        f"an identity must stay the same, got {before} and, {what}, "
                        f"{_identity(other)}",
                        seed,
                    )

    def test_a_snapshot_holds_all_of_the_state(self) -> None:
        """A tuner that is restored from a snapshot decides as the original does, after any call.

        Snapshots go through JSON. Some restored tuners are prepared, others are not. Every other
        game begins with queued points and earlier trials, if the tuner's trials have points.
        """
        for seed in self.seeds:
            inputs = _inputs_from(self._game(seed).run()) if seed % 2 else {}
            game = self._game(seed, failures=0.1, inputs=inputs).run()
            renew = self._restorer(seed, game.inputs if seed % 4 < 2 else None)
            replay(game, self.make(seed), f"after restoring snapshots (seed {seed})", renew=renew)

    def test_a_replay_of_its_log_gives_the_same_decisions(self) -> None:
        """With the recorded proposals of its sampler the tuner repeats its decisions.

        It uses these proposals even if its own sampler would propose others.
        """
        for seed in self.seeds:
            game = self._game(seed, failures=0.1).run()
            why = f"when proposals are fed from the log (seed {seed})"
            replay(game, self.make(seed), why, feed=True)
            other, first = self.make(seed + 1), game.calls[0]
            other.prepare(game.inputs)
            other.feed_proposals(first.proposals)
            registered = _registered(perform(other, first.cause, ()))
            if first.proposals and registered != _registered(first.decisions):
                _refuse(
                    f"trials must have the recorded proposals, {list(first.proposals)}, "
                    f"got {[trial.params for trial in registered]}",
                    seed,
                )

    # ------------------------------------------------------------------ what is better

    def test_maximizing_mirrors_minimizing(self) -> None:
        """The negated metric, maximised, leads to the same decisions."""
        for seed in self.seeds:
            game = self._game(seed, failures=0.1, loss=_gaps(_curves(seed), seed % 5)).run()
            why = f"when the negated metric is maximised (seed {seed})"
            replay(game, self.make_mirrored(seed), why, mirror=True)

    def test_it_ends_when_every_loss_is_infinite(self) -> None:
        """The tuner finishes even if each value of the metric is NaN."""
        for seed in self.seeds:
            self._game(seed, loss=_always(math.nan)).run()

    def test_an_infinite_loss_is_ranked_last(self) -> None:
        """A trial with infinite losses stays where a rival with finite losses had to stay.

        The test compares trials that have reported at the same steps, and only if the finite
        loss came first: a tuner that decides at once cannot wait for a later one.
        """
        for seed in self.seeds if self.ranks else ():
            infinite = seed % len(self._game(seed).run().trials)
            game = self._game(seed, loss=_gaps(_curves(seed), infinite)).run()
            for step, stayed, went_on in self._overtakings(game):
                if went_on.number == infinite:
                    _refuse(
                        f"trial {infinite} has infinite losses and must not go on beyond step "
                        f"{step} where trial {stayed.number} has to stay",
                        seed,
                        game.calls,
                    )

    def test_an_infinite_loss_is_never_promoted(self) -> None:
        """Trials with infinite losses stay, even if few trials have finite losses."""
        for seed in self.seeds if self.promotes else ():
            game = self._game(seed, loss=_mostly_gaps(_curves(seed), seed % 4)).run()
            for report in _reports(game):
                if math.isinf(report.loss) and game.trials[report.trial].reach > report.step:
                    _refuse(
                        f"trial {report.trial} has infinite losses and must not be promoted, "
                        f"got beyond step {report.step}",
                        seed,
                        game.calls,
                    )

    def test_ties_go_to_the_elder(self) -> None:
        """If two trials have equal losses and one of them goes on, it is the elder.

        The test compares trials that have reported at the same steps, the elder first.
        """
        for seed in self.seeds if self.ranks else ():
            game = self._game(seed, loss=_always(1.0), in_turn=True).run()
            for step, stayed, went_on in self._overtakings(game):
                if stayed.number < went_on.number:
                    _refuse(
                        f"all losses are equal: trial {went_on.number} must not go on beyond "
                        f"step {step} where the elder {stayed.number} has to stay",
                        seed,
                        game.calls,
                    )

    # ----------------------------------------------------------------------- more trials

    def test_it_goes_on_with_more_trials(self) -> None:
        """A tuner that is widened, half-way or at its end, registers more trials and finishes."""
        for seed in self.seeds:
            wider = self.make_wider(seed)
            if wider is None:
                return
            whole = self._game(seed).run()
            for calls in (len(whole.calls), len(whole.calls) // 2):
                game = self._widened(wider, self._game(seed).run(calls)).run()
                if _identity(game.tuner) != _identity(wider):
                    _refuse("a widened tuner must have the wider identity", seed, game.calls)
                if len(game.trials) <= len(whole.trials):
                    _refuse("a widened tuner must register more trials", seed, game.calls)

    # ----------------------------------------------------------------------- how it plays

    def _game(
        self,
        seed: int,
        *,
        loss: Loss | None = None,
        capacity: int = 0,
        failures: float = 0.0,
        in_turn: bool = False,
        inputs: Inputs | None = None,
        answers: Answers = "any",
        pace: float = 1.0,
    ) -> Game:
        return Game(
            self.make(seed),
            seed=seed,
            loss=loss or _curves(seed),
            capacity=capacity or _CAPACITIES[seed % len(_CAPACITIES)],
            failures=failures,
            in_turn=in_turn,
            inputs=inputs,
            most_calls=self.most_calls,
            answers=answers,
            pace=pace,
        )

    def _restorer(self, seed: int, inputs: Inputs | None) -> Callable[[Tuner], Tuner]:
        """Return a function that replaces a tuner by a new one with the same state."""
        before: tuple[object, str] = (None, "null")

        def renew(tuner: Tuner) -> Tuner:
            nonlocal before
            if json.dumps(before[0], sort_keys=True) != before[1]:
                raise ConformanceError(
                    f"a snapshot must stay as it was when the tuner goes on, {before[1]}"
                )
            state = json.dumps(tuner.snapshot(), sort_keys=True)
            restored_tuner = self.make(seed)
            if inputs is not None:
                restored_tuner.prepare(inputs)
            restored_tuner.restore(json.loads(state))
            again = restored_tuner.snapshot()
            restored = json.dumps(again, sort_keys=True)
            if restored != state:
                raise ConformanceError(f"the state {state} was restored as {restored}")
            before = again, restored
            return restored_tuner

        return renew

    def _overtakings(self, game: Game) -> Iterator[tuple[Step, GameTrial, GameTrial]]:
        """Yield `(step, trial that stayed, rival that went on)` for each such pair.

        Both have reported at the same steps so far; the trial that stayed reported first.
        """
        arrived: dict[tuple[object, tuple[Step, ...]], list[GameTrial]] = {}
        for report in _reports(game):
            trial = game.trials[report.trial]
            history = tuple(step for step in trial.reported if step <= report.step)
            group = self.rivals(game.tuner, report.trial)
            arrived.setdefault((group, history), []).append(trial)
        for (_, (*_, step)), trials in arrived.items():
            stayed: GameTrial | None = None
            for trial in trials:
                if trial.reach > step and stayed is not None:
                    yield step, stayed, trial
                elif trial.reach <= step < trial.registered.max_steps and stayed is None:
                    stayed = trial

    def _widened(self, wider: Tuner, game: Game) -> Game:
        """Return the game, continued with as many trials as the wider tuner has."""
        identity, trials = json.loads(_identity(game.tuner)), wider.identity()["trials"]
        taken = wider.widened_from(identity)
        if taken is None or not isinstance(trials, int):
            raise ConformanceError(f"make_wider's tuner must be widened from {identity}")
        taken.prepare(game.inputs)
        taken.restore(json.loads(game.snapshot()))
        game.widen(trials, taken)
        return game


def _refuse(problem: str, seed: int, calls: Iterable[Call] = ()) -> NoReturn:
    raise ConformanceError(f"{problem} (seed {seed})", calls)


def _identity(tuner: Tuner) -> str:
    try:
        return json.dumps(tuner.identity(), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConformanceError(f"an identity must be JSON: {error}") from error


def _curves(seed: int) -> Loss:
    """Return random losses; with every other seed many of them are equal."""
    digits = 1 if seed % 2 else 6

    def loss(trial: int, step: Step, sequences: Sequences) -> float:
        return round(float(np.random.default_rng((seed, trial, step)).random()), digits)

    return loss


def _always(value: float) -> Loss:
    def loss(trial: int, step: Step, sequences: Sequences) -> float:
        return value

    return loss


def _gaps(curves: Loss, trial_without: int) -> Loss:
    """Return these losses, but NaN or infinity for one trial."""

    def loss(trial: int, step: Step, sequences: Sequences) -> float:
        if trial == trial_without:
            return (math.nan, math.inf, -math.inf)[step % 3]
        return curves(trial, step, sequences)

    return loss


def _mostly_gaps(curves: Loss, remainder: int) -> Loss:
    """Return these losses for every fourth trial, and NaN for the others."""

    def loss(trial: int, step: Step, sequences: Sequences) -> float:
        return curves(trial, step, sequences) if trial % 4 == remainder else math.nan

    return loss


def _registered(decisions: Iterable[Decision]) -> list[Register]:
    return [decision for decision in decisions if isinstance(decision, Register)]


def _reports(game: Game) -> Iterator[Report]:
    return (call.cause.report for call in game.calls if isinstance(call.cause, TellCall))


def _points(game: Game) -> list[object]:
    """Return the points of the trials in order, without repeats of the previous point."""
    points = (dict(trial.registered.point) for trial in game.trials if trial.registered.point)
    return [point for point, _ in groupby(points)]


def _inputs_from(game: Game) -> dict[str, list[object]]:
    """Return queued points and earlier trials for a tuner that continues after this game."""
    last = {report.trial: report for report in _reports(game)}
    tried = [trial.registered for trial in game.trials if trial.registered.point]
    return {
        "queued": _points(game)[: min(2, game.tuner.most_queued)][::-1],
        "earlier": [
            {
                "point": dict(trial.point),
                "step": last[trial.trial].step,
                "losses": list(last[trial.trial].losses),
            }
            for trial in tried
            if trial.trial in last
        ],
    }
