"""The conformance suite for tuners: what the engine, the log and the user rely on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import ClassVar, NoReturn

import numpy as np

from dasktune.algos.base import Inputs, Tuner
from dasktune.testing.calls import Call, ConformanceError, Tell, perform
from dasktune.testing.oracle import Answers
from dasktune.testing.play import MOST_CALLS, Game, Loss, replay
from dasktune.testing.rules import Trial
from dasktune.types import Decision, Register, Report, Sequences, Step

_CAPACITIES = (1, 3, 8, 1000)
_ANSWERS: tuple[Answers, ...] = ("at once", "last", "never")
_PACES = (0.0, 1e-3, 1e6)


class TunerConformance:
    """Tests that a tuner keeps the protocol of `dasktune.algos.base`.

    Subclass it in a file of tests, under a name that pytest collects, and say how the tuner
    is made. It needs nothing but what runs the tests, such as pytest. Every test plays whole
    games with tuners made anew, each game with a seed that its message names.

    The tuner should be small: some 10 to 30 trials of some 10 to 100 steps make thorough
    tests of a second.

    Attributes
    ----------
    seeds
        What games are played with.
    most_calls
        Within how many calls a game must end.
    ranks
        Whether it decides by comparing single trials who goes on. False leaves out the tests
        of that, for a tuner that goes by something else or by groups of trials.
    promotes
        Whether a trial goes on only because it is good. True adds that it never does so
        after an infinite loss; a tuner that stops or replaces the bad may have no one better.

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
        """Return a new tuner whose randomness, if it has any, is decided by `seed`."""
        raise NotImplementedError(f"{type(self).__name__} must define make(self, seed)")

    def make_wider(self, seed: int) -> Tuner | None:
        """Return the tuner of `make` with more trials; None if it cannot be widened."""
        return None

    def make_mirrored(self, seed: int) -> Tuner:
        """Return the tuner of `make` for the metric with its sign changed.

        It is another one only if it is given values of the metric, such as a target or bounds.
        """
        return self.make(seed)

    def rivals(self, tuner: Tuner, trial: int) -> object:
        """Return what is equal for trials that are ranked with each other, such as a bracket.

        Only those of them are compared that have reported at the same steps. The tuner has
        finished.
        """
        return None

    # ----------------------------------------------------------------------- the rules

    def test_it_ends_in_any_order_of_reports(self) -> None:
        """Reports come in any order between trials; the tuner breaks no rule, and finishes."""
        for seed in self.seeds:
            self._game(seed).run()

    def test_it_goes_on_when_trials_fail(self) -> None:
        """A failed trial is never extended, and the tuner finishes without it."""
        for seed in self.seeds:
            self._game(seed, failures=0.1 + 0.1 * (seed % 5)).run()

    def test_it_ends_when_every_trial_fails(self) -> None:
        """Failures alone bring the tuner to its end."""
        for seed in self.seeds:
            self._game(seed, failures=1.0).run()

    def test_it_ends_however_predictions_come(self) -> None:
        """What it asks its predictor comes at once, when nothing is trained any more, or never."""
        for seed in self.seeds:
            for answers in _ANSWERS:
                game = self._game(seed, failures=0.1, answers=answers).run()
                if not any(call.questions for call in game.calls):
                    break

    def test_it_ends_at_any_pace_of_the_clock(self) -> None:
        """The clock stands still, creeps or races; what is due is told when it is."""
        for seed in self.seeds:
            tuner = self.make(seed)
            if tuner.timed or tuner.due_seconds is not None:
                for pace in _PACES:
                    self._game(seed, failures=0.1, pace=pace).run()

    def test_an_empty_ask_changes_nothing(self) -> None:
        """It is asked after every call; where nothing follows, the state stays as it was."""
        for seed in self.seeds:
            self._game(seed, capacity=10**6, in_turn=True).run()

    def test_it_tries_what_it_announced(self) -> None:
        """The first trials are `Tuner.configurations`, where those are known."""
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
        """Points that a user queued are those of the first trials, where trials have points."""
        for seed in self.seeds:
            inputs = _inputs_from(self._game(seed).run())
            game = self._game(seed, inputs=inputs).run()
            queued = inputs["queued"]
            tried = _points(game)[: len(queued)]
            if tried != queued:
                _refuse(f"the first trials must be as queued, {queued}, got {tried}", seed)

    # -------------------------------------------------------- the same again and again

    def test_the_same_calls_give_the_same_decisions(self) -> None:
        """Nothing but arguments and calls decides: no clock, no global random generator."""
        for seed in self.seeds:
            game = self._game(seed, failures=0.1).run()
            replay(game, self.make(seed), f"for the same seed and calls (seed {seed})")

    def test_the_identity_is_stable_json(self) -> None:
        """Equal for tuners of equal arguments, and the same at the end as at the start."""
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
        """A new tuner that takes over the state, after any call, decides what the old one would.

        The state goes through JSON; the new tuner was prepared, or was not. Every other game
        begins with queued points and earlier trials, if the tuner's trials have points.
        """
        for seed in self.seeds:
            inputs = _inputs_from(self._game(seed).run()) if seed % 2 else {}
            game = self._game(seed, failures=0.1, inputs=inputs).run()
            renew = self._restorer(seed, game.inputs if seed % 4 < 2 else None)
            replay(game, self.make(seed), f"after restoring snapshots (seed {seed})", renew=renew)

    def test_a_replay_of_its_log_gives_the_same_decisions(self) -> None:
        """Given what its sampler proposed the first time, the tuner decides as it did.

        It takes what it is given even where its own sampler would propose something else.
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
                    f"what is registered must be what is fed, {list(first.proposals)}, "
                    f"got {[one.params for one in registered]}",
                    seed,
                )

    # ------------------------------------------------------------------ what is better

    def test_maximizing_mirrors_minimizing(self) -> None:
        """A metric with its sign changed, and maximised, gives the same decisions."""
        for seed in self.seeds:
            game = self._game(seed, failures=0.1, loss=_gaps(_curves(seed), seed % 5)).run()
            why = f"when the negated metric is maximised (seed {seed})"
            replay(game, self.make_mirrored(seed), why, mirror=True)

    def test_it_ends_when_every_loss_is_infinite(self) -> None:
        """A metric that is never finite is no failure, and the tuner finishes all the same."""
        for seed in self.seeds:
            self._game(seed, loss=_always(math.nan)).run()

    def test_an_infinite_loss_is_ranked_last(self) -> None:
        """One trial's losses are infinite: it does not go on where a finite one had to stay.

        Checked between trials that have reported at the same steps, and where the finite loss
        came before: one that comes after may be too late for a tuner that decides at once.
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
        """Few trials have finite losses: the others stay where they are all the same."""
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
        """All losses are equal: where only one of two trials goes on, it is the elder one.

        Checked between trials that have reported at the same steps, the elder one first.
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
        """Widened at its end, or half-way, it registers more trials and finishes again."""
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
        """Return what exchanges a tuner for a new one with its state."""
        before: tuple[object, str] = (None, "null")

        def renew(tuner: Tuner) -> Tuner:
            nonlocal before
            if json.dumps(before[0], sort_keys=True) != before[1]:
                raise ConformanceError(
                    f"a snapshot must stay as it was when the tuner goes on, {before[1]}"
                )
            state = json.dumps(tuner.snapshot(), sort_keys=True)
            found = self.make(seed)
            if inputs is not None:
                found.prepare(inputs)
            found.restore(json.loads(state))
            again = found.snapshot()
            restored = json.dumps(again, sort_keys=True)
            if restored != state:
                raise ConformanceError(f"the state {state} was restored as {restored}")
            before = again, restored
            return found

        return renew

    def _overtakings(self, game: Game) -> Iterator[tuple[Step, Trial, Trial]]:
        """Yield each step at which a trial went on though another one stayed.

        They are rivals and have reported at the same steps so far, and that which stayed
        came first.
        """
        arrived: dict[tuple[object, tuple[Step, ...]], list[Trial]] = {}
        for report in _reports(game):
            trial = game.trials[report.trial]
            history = tuple(step for step in trial.told if step <= report.step)
            group = self.rivals(game.tuner, report.trial)
            arrived.setdefault((group, history), []).append(trial)
        for (_, (*_, step)), trials in arrived.items():
            stayed: Trial | None = None
            for trial in trials:
                if trial.reach > step and stayed is not None:
                    yield step, stayed, trial
                elif trial.reach <= step < trial.registered.max_steps and stayed is None:
                    stayed = trial

    def _widened(self, wider: Tuner, game: Game) -> Game:
        """Return the game with a tuner that may try as many trials as the wider one."""
        identity, trials = json.loads(_identity(game.tuner)), wider.identity()["trials"]
        taken = wider.widened_from(identity)
        if taken is None or not isinstance(trials, int):
            raise ConformanceError(f"make_wider's tuner must know its narrower self, {identity}")
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
    """Return losses without a pattern; every other seed has many that are equal."""
    digits = 1 if seed % 2 else 6

    def loss(trial: int, step: Step, sequences: Sequences) -> float:
        return round(float(np.random.default_rng((seed, trial, step)).random()), digits)

    return loss


def _always(value: float) -> Loss:
    def loss(trial: int, step: Step, sequences: Sequences) -> float:
        return value

    return loss


def _gaps(curves: Loss, trial_without: int) -> Loss:
    """Return the same losses, of which those of one trial are not finite."""

    def loss(trial: int, step: Step, sequences: Sequences) -> float:
        if trial == trial_without:
            return (math.nan, math.inf, -math.inf)[step % 3]
        return curves(trial, step, sequences)

    return loss


def _mostly_gaps(curves: Loss, remainder: int) -> Loss:
    """Return the same losses, of which only those of every fourth trial are finite."""

    def loss(trial: int, step: Step, sequences: Sequences) -> float:
        return curves(trial, step, sequences) if trial % 4 == remainder else math.nan

    return loss


def _registered(decisions: Iterable[Decision]) -> list[Register]:
    return [one for one in decisions if isinstance(one, Register)]


def _reports(game: Game) -> Iterator[Report]:
    return (call.cause.report for call in game.calls if isinstance(call.cause, Tell))


def _points(game: Game) -> list[object]:
    """Return the points of the trials in order, each once that comes again at once."""
    points = (dict(trial.registered.point) for trial in game.trials if trial.registered.point)
    return [point for point, _ in groupby(points)]


def _inputs_from(game: Game) -> dict[str, list[object]]:
    """Return what a tuner could be given that comes after this game."""
    last = {report.trial: report for report in _reports(game)}
    tried = [trial.registered for trial in game.trials if trial.registered.point]
    return {
        "queued": _points(game)[: min(2, game.tuner.most_queued)][::-1],
        "earlier": [
            {
                "point": dict(one.point),
                "step": last[one.trial].step,
                "losses": list(last[one.trial].losses),
            }
            for one in tried
            if one.trial in last
        ],
    }
