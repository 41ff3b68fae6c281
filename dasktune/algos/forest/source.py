"""The forest as a source of configurations: draws a model, then asks the model's own sampler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dasktune.algos.base import Proposal
from dasktune.algos.forest import extra
from dasktune.algos.forest.complexity import complexity_of
from dasktune.algos.forest.models import (
    MOST_MODELS,
    Domains,
    Model,
    ModelSpace,
    Splitting,
    models_of,
    without,
)
from dasktune.algos.forest.priority import (
    LEAST_POINTS,
    Priority,
    PriorityQuestion,
    clipped_deviation,
    in_unit_cube,
    spread,
    standardised,
)
from dasktune.algos.forest.ranks import ModelWeight, mean_ranks, weights
from dasktune.algos.samplers import Sampler, Source
from dasktune.algos.sources import source_of
from dasktune.errors import ConfigurationError, InternalError, refuse
from dasktune.space import Configuration, Drawing, Space
from dasktune.space.define_by_run import DefinedByRun, SpaceLike
from dasktune.space.drawing import PointChooser
from dasktune.types import Step, Value

GROWTH: Final = 1.25
"""By this factor the losses of a model must grow in number before its next question."""

DEVIATION: Final = "deviation"
"""The priority that is a deviation of losses, in place of the paper's."""

_STREAM: Final = 0x6D6F64656C
"""Sets the draws of models apart from those of coordinates, which have the same seed."""


class Forest(Sampler):
    """A sampler that searches each model of a space on its own, and draws some models more often.

    The space is split at its choices between subtrees, and each of the trees is a *model*:
    see `dasktune.algos.forest.models`. The forest draws a model first; then the model's own
    sampler proposes values. The tuner compares the trials of all models with each other.

    Parameters
    ----------
    sampler
        Proposes the values of a model: any sampler of Optuna. Each model has a copy of it. None
        draws at random.
    complexity
        Whether models with larger search spaces are drawn more often.
    priority
        Whether models whose losses vary more are drawn more often, and models with too few
        losses to tell. With True workers compute the priority of the paper beside the training,
        from the losses at one step; driver and workers need the extra ``forest``. With
        ``"deviation"`` it is the standard deviation of those losses, where losses worse than the
        median of all models count as the median; it needs neither workers nor the extra. Models
        are weighted by their mean rank in both heuristics. If both are off, the models take turns.
    choices
        The coordinates of the choices that tell models apart, such as ``["kernel"]``. None
        takes all choices with an option that is a domain; in a space that is defined by
        running, it takes all categorical suggestions.

    Raises
    ------
    ConfigurationError
        If the sampler has a space of its own, such as ``"grid"``, or an argument has a wrong
        type: all problems at once. If `priority` is True and scikit-learn is missing. When a
        tuner gives the forest a space: see `models_of`.

    References
    ----------
    Kinnison et al., "SHADHO: Massively Scalable Hardware-Aware Distributed Hyperparameter
    Optimization", sections 3 and 4.

    Examples
    --------
    >>> from dasktune.algos import Random
    >>> from dasktune.space import Branch, Float
    >>> space = Space(kernel=[Branch("rbf", Space(gamma=Float(0.0, 10.0))), "linear"])
    >>> tuner = Random(space, trials=9, max_steps=3, sampler=Forest(priority=False))
    >>> for model in tuner.source.model_weights:
    ...     print(model)
    kernel=rbf: weight 0.667, rank 1.00, complexity 11.9, priority unknown, 0 trials
    kernel=linear: weight 0.333, rank 0.00, complexity 0, priority 0, 0 trials
    """

    def __init__(
        self,
        sampler: object = None,
        *,
        complexity: bool = True,
        priority: bool | str = True,
        choices: Iterable[str] | None = None,
    ) -> None:
        names = choices if choices is None or isinstance(choices, str) else tuple(choices)
        refuse(_problems(sampler, names, complexity, priority))
        if priority is True:
            extra.require()
        self.sampler = sampler
        self.complexity = complexity
        self.priority: bool | str = priority
        self.rule = Splitting(choices=None if names is None else frozenset(names))

    def source(self, space: SpaceLike, seed: int) -> ForestSource:
        """Return a source for a space, of which it finds the models."""
        return ForestSource(space, self, seed)


def _problems(sampler: object, choices: object, complexity: object, priority: object) -> list[str]:
    problems = []
    if isinstance(sampler, str | Source | Sampler):
        problems.append(f"sampler must be one that any space can be given to, got {sampler!r}")
    if not isinstance(complexity, bool):
        problems.append(f"complexity must be True or False, got {complexity!r}")
    if not isinstance(priority, bool) and priority != DEVIATION:
        problems.append(f"priority must be True, False or {DEVIATION!r}, got {priority!r}")
    names = () if choices is None else choices
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        problems.append(f"choices must be a list of names, got {choices!r}")
    return [f"Forest: {problem}" for problem in problems]


@dataclass(slots=True, kw_only=True)
class _Tree:
    """A model with its sampler; `domains` are those of the coordinates seen so far.

    For priorities it keeps the `points` of its trials, and their finite `losses` by step and
    trial. `asked` is the step of the last question, and the number of losses in it.
    """

    model: Model
    domains: dict[str, Mapping[str, object]]
    source: Source
    complexity: float
    trials: int = 0
    points: dict[int, Mapping[str, Value]] = field(default_factory=dict)
    losses: dict[Step, dict[int, float]] = field(default_factory=dict)
    asked: tuple[Step, int] = (0, 0)
    measured: Priority | None = None

    @property
    def priority(self) -> float | None:
        """The priority, None before it is known; it is 0 where there is nothing to search."""
        if not self.domains:
            return 0.0
        return None if self.measured is None else self.measured.value

    @property
    def rung(self) -> Step | None:
        """The largest step with enough finite losses to compare: a rung."""
        enough = max(LEAST_POINTS, len(self.domains) + 2)
        return max((step for step, by in self.losses.items() if len(by) >= enough), default=None)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON, without what follows from its domains."""
        losses = [
            [step, [[trial, loss] for trial, loss in by.items()]]
            for step, by in self.losses.items()
        ]
        return {
            "options": [list(option) for option in self.model.options],
            "domains": {name: dict(domain) for name, domain in self.domains.items()},
            "trials": self.trials,
            "points": [[trial, dict(point)] for trial, point in self.points.items()],
            "losses": losses,
            "asked": list(self.asked),
            "priority": None if self.measured is None else self.measured.to_json(),
            "source": self.source.snapshot(),
        }

    def restore(self, document: Mapping[str, Any]) -> None:
        """Continue with the observations of a document of `to_json`."""
        self.trials = document["trials"]
        self.points = dict(document["points"])
        self.losses = {step: dict(by) for step, by in document["losses"]}
        step, count = document["asked"]
        self.asked = step, count
        priority = document["priority"]
        self.measured = None if priority is None else Priority.from_json(priority)
        self.source.restore(document["source"])

    def is_due(self) -> bool:
        """Return whether the model's priority must be computed anew; it is under way from then on.

        That is so on a higher rung, and when there are a quarter more losses: often at first,
        and rarely later.
        """
        rung = self.rung
        if rung is None or not self.domains:
            return False
        step, count = self.asked
        if rung == step and len(self.losses[rung]) < GROWTH * count:
            return False
        self.asked = rung, len(self.losses[rung])
        return True


class ForestSource(Source):
    """The source of a `Forest` for one space.

    A proposal has the whole point, the options of its model included, and the notes of the
    model's sampler.

    Parameters
    ----------
    space
        The space.
    forest
        The arguments.
    seed
        Decides the draws.

    Raises
    ------
    ConfigurationError
        As `models_of` does, or if the sampler is none.
    """

    def __init__(self, space: SpaceLike, forest: Forest, seed: int) -> None:
        if not isinstance(space, Space | DefinedByRun):
            raise ConfigurationError(f"a forest needs a space, got {space!r}")
        self._space, self._forest, self._seed = space, forest, seed
        self._objectives: int | None = None
        self._begin()
        for model, domains in models_of(space, forest.rule).items():
            self._add(model, domains)
        self.learns = bool(forest.priority) or any(tree.source.learns for tree in self._trees)

    def _begin(self) -> None:
        self._trees: list[_Tree] = []
        self._places: dict[Model, int] = {}
        self._of: dict[int, int] = {}
        self._due: list[int] = []
        self._known_weights: list[tuple[float, float | None]] | None = None

    def _priorities(self) -> list[float | None]:
        """Return the priority of each model, None where too little is known of it."""
        if self._forest.priority != DEVIATION:
            return [tree.priority for tree in self._trees]
        return [self._deviation(tree) for tree in self._trees]

    def _deviation(self, tree: _Tree) -> float | None:
        """Return the deviation of a model's losses at its rung; 0 without hyper-parameters."""
        rung = tree.rung
        if rung is None or not tree.domains:
            return None if tree.domains else 0.0
        return clipped_deviation(tree.losses[rung].values(), self._losses_at(rung))

    def _losses_at(self, rung: Step) -> list[float]:
        """Return the losses of all models at a rung."""
        return [loss for tree in self._trees for loss in tree.losses.get(rung, {}).values()]

    @property
    def model_weights(self) -> list[ModelWeight]:
        """The models in the order in which they appeared, with their weights."""
        return [
            ModelWeight(
                name=str(tree.model),
                weight=weight,
                complexity=tree.complexity,
                priority=priority,
                trials=tree.trials,
                rank=rank,
            )
            for tree, priority, (weight, rank) in zip(
                self._trees, self._priorities(), self._weights(), strict=True
            )
        ]

    def model_rank(self, trial: int) -> float | None:
        """Return the present rank of the model of a trial; None without heuristics."""
        return self._weights()[self._of[trial]][1]

    def _weights(self) -> list[tuple[float, float | None]]:
        """Return weights and ranks; they are computed when they may have changed."""
        if self._known_weights is None:
            heuristics = []
            if self._forest.complexity:
                heuristics.append([tree.complexity for tree in self._trees])
            if self._forest.priority:
                # A model of which too little is known ranks highest: it must be tried first.
                heuristics.append([math.inf if p is None else p for p in self._priorities()])
            count = len(self._trees)
            ranks: list[float | None] = [None] * count
            if heuristics and count > 1:
                ranks = [*mean_ranks(count, *heuristics)]
            self._known_weights = [*zip(weights(count, *heuristics), ranks, strict=True)]
        return self._known_weights

    # ------------------------------------------------------------------------- proposals

    def propose(self, trial: int) -> Proposal:
        """Return a proposal of the sampler of a drawn model.

        In a space that is defined by running a random point is drawn first. If its path is new,
        it is the proposal: so new models appear as often as in a random search.
        """
        rng = np.random.default_rng((self._seed, trial, _STREAM))
        if isinstance(self._space, DefinedByRun) and len(self._trees) < MOST_MODELS:
            drawn, model = self._forest.rule.pick(self._space, Drawing(rng))
            if model not in self._places:
                return {"point": dict(drawn.point)}
        tree = self._trees[self._drawn(trial, rng)]
        proposal = tree.source.propose(trial)
        point, model = self._whole(_point_of(proposal), tree.model)
        # A function may suggest more choices, or fewer, as a number says. Then the trial belongs
        # to another model, and the notes of this model's sampler are of no use to that one's.
        return {**proposal, "point": point} if model == tree.model else {"point": point}

    def _whole(self, inner: Mapping[str, Value], model: Model) -> tuple[Mapping[str, Value], Model]:
        """Return the whole point of a point inside a model, and the model of its path."""
        if isinstance(self._space, Space):
            return {**dict(model.options), **inner}, model
        configuration, path = self._forest.rule.pick(self._space, PointChooser(inner), model)
        return dict(configuration.point), path

    def _drawn(self, trial: int, rng: np.random.Generator) -> int:
        """Return the place of the next model: drawn, or the next in turn."""
        if not self._forest.complexity and not self._forest.priority:
            return trial % len(self._trees)
        places = np.searchsorted(self._bounds(), rng.random(), side="right")
        return min(int(places), len(self._trees) - 1)

    def _bounds(self) -> list[float]:
        """Return the sums of the weights up to each model."""
        return np.cumsum([weight for weight, _ in self._weights()]).tolist()  # type: ignore[no-any-return]

    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration of a proposal, and give it to the sampler of its model."""
        drawing = Drawing(np.random.default_rng((self._seed, trial)))
        rule = self._forest.rule
        configuration, model = rule.at(self._space, _point_of(proposal), drawing)
        inner = without(configuration, model)
        tree = self._trees[self._place_of(model, inner.domains)]
        tree.trials += 1
        self._of[trial] = self._places[model]
        if self._forest.priority:
            tree.points[trial] = inner.point
        tree.source.accept(trial, {**proposal, "point": dict(inner.point)})
        return configuration

    def _place_of(self, model: Model, domains: Domains) -> int:
        """Return the place of a model, which may be new, and note its coordinates."""
        if model not in self._places:
            self._add(model, domains)
        tree = self._trees[self._places[model]]
        if not domains.keys() <= tree.domains.keys():
            tree.domains.update(domains)
            tree.complexity, self._known_weights = complexity_of(tree.domains), None
        return self._places[model]

    def _add(self, model: Model, domains: Domains) -> None:
        inside = ModelSpace(self._space, model, self._forest.rule)
        source = source_of(inside, self._forest.sampler, self._seed)
        if self._objectives is not None:
            source.expect(self._objectives)
        self._places[model] = len(self._trees)
        complexity = complexity_of(domains)
        tree = _Tree(model=model, domains=dict(domains), source=source, complexity=complexity)
        self._trees.append(tree)
        self._known_weights = None

    # ---------------------------------------------------------------------- observations

    def expect(self, objectives: int) -> None:
        """Pass the number of objectives on to all samplers."""
        self._objectives = objectives
        for tree in self._trees:
            tree.source.expect(objectives)

    def earlier(self, point: Mapping[str, object], step: Step, losses: tuple[float, ...]) -> None:
        """Pass an earlier trial on to the sampler of its model, if it is of this space."""
        try:
            configuration, model = self._forest.rule.at(self._space, point, None)  # type: ignore[arg-type]
        except ConfigurationError:
            return
        inner = without(configuration, model)
        tree = self._trees[self._place_of(model, inner.domains)]
        tree.source.earlier(inner.point, step, losses)

    def observe(self, trial: int, step: Step, losses: tuple[float, ...]) -> None:
        """Pass a report on to the sampler of the trial's model."""
        place = self._of[trial]
        tree = self._trees[place]
        tree.source.observe(trial, step, losses)
        if self._forest.priority and math.isfinite(losses[0]):
            tree.losses.setdefault(step, {})[trial] = losses[0]
            if self._forest.priority == DEVIATION:
                self._known_weights = None
            elif tree.is_due():
                self._due.append(place)

    def fail(self, trial: int) -> None:
        """Pass the failure of a trial on to the sampler of its model."""
        self._source_of(trial).fail(trial)

    def retry(self, trial: int) -> None:
        """Pass on that a failed trial is trained again."""
        self._source_of(trial).retry(trial)

    def _source_of(self, trial: int) -> Source:
        return self._trees[self._of[trial]].source

    # ------------------------------------------------------------------------ priorities

    def due_models(self) -> list[int]:
        """Return the models that have had enough new losses since their last question."""
        due, self._due = self._due, []
        return due

    def model_question(self, model: int) -> PriorityQuestion:
        """Return the losses of a model at one rung, and where they were measured."""
        tree = self._trees[model]
        rung = tree.rung
        if rung is None:
            raise InternalError(f"model {model} has too few losses, {tree.losses}")
        own = tree.losses[rung]
        rows = zip(own, standardised(own.values(), self._losses_at(rung)), strict=True)
        trials, losses = zip(*spread([*rows]), strict=True)
        return PriorityQuestion(
            points=tuple(in_unit_cube(tree.points[trial], tree.domains) for trial in trials),
            losses=losses,
            seed=self._seed,
        )

    def learn_priority(self, model: int, priority: Priority | None) -> None:
        """Receive the priority of a model; it keeps the one before if there is none."""
        if priority is not None:
            self._trees[model].measured, self._known_weights = priority, None

    # ------------------------------------------------------------------ identity and state

    def identity(self) -> object:
        """Return the arguments, and the identity of the sampler in each model."""
        choices = self._forest.rule.choices
        return {
            "forest": self._trees[0].source.identity(),
            "complexity": self._forest.complexity,
            "priority": self._forest.priority,
            "choices": None if choices is None else sorted(choices),
        }

    def snapshot(self) -> object:
        """Return the models that have appeared, with the states of their samplers."""
        return {
            "objectives": self._objectives,
            "models": [tree.to_json() for tree in self._trees],
            "trials": [list(pair) for pair in self._of.items()],
        }

    def restore(self, snapshot: object) -> None:
        """Continue with the models and samplers of a snapshot."""
        match snapshot:
            case {
                "objectives": int() | None as objectives,
                "models": list(models),
                "trials": list(trials),
            }:
                self._objectives = objectives
                self._begin()
                for document in models:
                    self._restore(document)
                self._of = dict(trials)
            case _:
                raise ConfigurationError(f"not a snapshot of this source: {snapshot!r}")

    def _restore(self, document: Any) -> None:
        options = tuple((name, label) for name, label in document["options"])
        self._add(Model(options), document["domains"])
        self._trees[-1].restore(document)


def _point_of(proposal: Proposal) -> Mapping[str, Value]:
    point = proposal["point"]
    if not isinstance(point, Mapping):
        raise ConfigurationError(f"a proposal must have a point, got {proposal!r}")
    return point
