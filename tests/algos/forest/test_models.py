"""The forest of models: splitting a space by its exclusive and optional choices."""

from __future__ import annotations

import numpy as np
import pytest

from dasktune.algos.forest.models import MOST_MODELS, Model, ModelSpace, Splitting, models_of
from dasktune.errors import ConfigurationError
from dasktune.sequences import MultiStep
from dasktune.space import Branch, Choice, DefinedByRun, Drawing, Family, Float, Int, Space
from dasktune.space.drawing import PointChooser

ALL = Splitting()


def kernels() -> Space:
    """Return the tree of figure 2: an optional part A and an exclusive part B."""
    return Space(
        C=Float(0.1, 15.0),
        A=[Branch("scale", Space(low=Float(0.0, 1.0), high=Float(1.0, 2.0))), None],
        B=[Branch("rbf", Space(gamma=Float(1.0, 9.0))), Branch("poly", Space(degree=Int(1, 15)))],
    )


def by_run(trial):  # type: ignore[no-untyped-def]
    """Suggest as many layers as a number says, each with an activation."""
    layers = trial.suggest_int("layers", 1, 2)
    names = [trial.suggest_categorical(f"act{at}", ["relu", "tanh"]) for at in range(layers)]
    return {"names": "-".join(names)}


def test_models_are_the_product_of_all_choices() -> None:
    models = models_of(kernels(), ALL)
    assert [str(model) for model in models] == [
        "A=scale, B=rbf",
        "A=scale, B=poly",
        "A=null, B=rbf",
        "A=null, B=poly",
    ]


def test_shared_dimensions_are_in_every_model() -> None:
    coordinates = [set(domains) for domains in models_of(kernels(), ALL).values()]
    assert coordinates == [
        {"C", "A.scale.low", "A.scale.high", "B.rbf.gamma"},
        {"C", "A.scale.low", "A.scale.high", "B.poly.degree"},
        {"C", "B.rbf.gamma"},
        {"C", "B.poly.degree"},
    ]


def test_a_choice_of_plain_values_splits_nothing() -> None:
    assert list(models_of(Space(batch_size=[64, 128]), ALL)) == [Model(())]


def test_a_choice_between_families_splits() -> None:
    families = [Family(MultiStep, init=Float(0.1, 1.0), milestones=[9], gamma=0.1), 0.5]
    models = models_of(Space(lr=families), ALL)
    assert [list(domains) for domains in models.values()] == [["lr.MultiStep.init"], []]


def test_nested_choices_are_models_of_their_branch_only() -> None:
    inner = Space(rule=[Branch("nesterov", Space(m=Float(0.0, 1.0))), "plain"])
    models = models_of(Space(optimizer=[Branch("sgd", inner), "adam"]), ALL)
    assert [str(model) for model in models] == [
        "optimizer=sgd, optimizer.sgd.rule=nesterov",
        "optimizer=sgd, optimizer.sgd.rule=plain",
        "optimizer=adam",
    ]


def test_named_choices_alone_split() -> None:
    rule = Splitting(choices=frozenset({"B"}))
    assert [str(model) for model in models_of(kernels(), rule)] == ["B=rbf", "B=poly"]
    plain = Splitting(choices=frozenset({"kernel"}))
    models = models_of(Space(kernel=["rbf", "poly"], C=Float(0.1, 1.0)), plain)
    assert [(str(model), *domains) for model, domains in models.items()] == [
        ("kernel=rbf", "C"),
        ("kernel=poly", "C"),
    ]


def test_an_unknown_choice_is_refused_with_those_known() -> None:
    with pytest.raises(ConfigurationError, match="unknown choice 'D'; known: A, B"):
        models_of(kernels(), Splitting(choices=frozenset({"D"})))
    with pytest.raises(ConfigurationError, match="unknown choice 'D'; known: act0, act1"):
        models_of(DefinedByRun(by_run), Splitting(choices=frozenset({"act0", "act1", "D"})))


def test_a_choice_needs_the_choice_around_it() -> None:
    inner = Space(rule=[Branch("nesterov", Space(m=Float(0.0, 1.0))), "plain"])
    space = Space(optimizer=[Branch("sgd", inner), "adam"])
    with pytest.raises(ConfigurationError, match="choices must name 'optimizer', too"):
        models_of(space, Splitting(choices=frozenset({"optimizer.sgd.rule"})))


def test_a_million_models_are_refused_unbuilt() -> None:
    picks: list[object] = []

    class Counted(Space):
        def pick(self, chooser):  # type: ignore[no-untyped-def]
            picks.append(chooser)
            return super().pick(chooser)

    named = {
        f"part{at:02}": [Branch("in", Space({f"x{at}": Float(0.0, 1.0)})), None] for at in range(20)
    }
    with pytest.raises(ConfigurationError) as caught:
        models_of(Counted(named), ALL)
    text = str(caught.value)
    assert f"at most {MOST_MODELS:,} models, got 1,048,576, by the choices 'part00' (2 opt" in text
    assert "and 14 more" in text
    assert not picks


def test_paths_of_a_function_are_models() -> None:
    models = models_of(DefinedByRun(by_run), ALL)
    assert {str(model) for model in models} == {
        "act0=relu",
        "act0=tanh",
        *(f"act0={a}, act1={b}" for a in ("relu", "tanh") for b in ("relu", "tanh")),
    }


def test_a_function_of_too_many_models_is_refused() -> None:
    def wide(trial):  # type: ignore[no-untyped-def]
        return {f"a{at}": trial.suggest_categorical(f"a{at}", [0, 1, 2]) for at in range(12)}

    with pytest.raises(ConfigurationError, match="got at least 501, by the choices 'a0'"):
        models_of(DefinedByRun(wide), ALL)


def test_each_point_belongs_to_exactly_one_model() -> None:
    for space in (kernels(), DefinedByRun(by_run)):
        models = models_of(space, ALL)
        for seed in range(50):
            drawn = space.sample(np.random.default_rng(seed))
            configuration, model = ALL.at(space, drawn.point, None)
            assert configuration == drawn
            assert [model] == [each for each in models if each == model]


def test_a_model_space_has_the_options_of_its_model() -> None:
    space = kernels()
    for model, domains in models_of(space, ALL).items():
        inside = ModelSpace(space, model, ALL)
        drawn = inside.pick(Drawing(np.random.default_rng(1)))
        assert drawn.point.keys() == domains.keys()
        assert (drawn.params["A"], drawn.params["B"]) == tuple(dict(model.options).values())
        assert inside.at(drawn.point) == drawn


def test_a_model_space_refuses_coordinates_of_others() -> None:
    space = kernels()
    poly = ModelSpace(space, Model((("A", None), ("B", "poly"))), ALL)
    with pytest.raises(ConfigurationError, match=r"unknown coordinate 'B\.rbf\.gamma'"):
        poly.at({"C": 1.0, "B.poly.degree": 3, "B.rbf.gamma": 2.0})


def test_labels_that_look_alike_have_different_names() -> None:
    models = models_of(Space(a=Choice(["1", 1, Branch("b", Space(x=1))])), ALL)
    assert len({str(model) for model in models}) == 3


def test_an_option_that_a_function_lacks_is_chosen_anew() -> None:
    model = Model((("act0", "gelu"),))
    chooser = PointChooser({"layers": 1, "act0": "tanh"})
    _, chosen = ALL.pick(DefinedByRun(by_run), chooser, model)
    assert chosen == Model((("act0", "tanh"),))
