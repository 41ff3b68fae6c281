import pytest

from dasktune.errors import TrainerError
from dasktune.trainer.base import METHODS, Trainer, problems_of
from tests.toy_trainers import Adding


def test_a_complete_trainer_has_no_problems():
    assert problems_of(Adding) == ()


def test_class_without_the_base_is_accepted():
    quacks = type("Quacks", (), {name: lambda self, *_: {} for name in METHODS})
    assert problems_of(quacks) == ()


@pytest.mark.parametrize("method", METHODS)
def test_each_missing_method_is_named(method):
    quacks = type("Quacks", (), {name: lambda self, *_: {} for name in METHODS if name != method})
    assert problems_of(quacks) == (f"Quacks must define {method}()",)


def test_inherited_method_counts_as_missing():
    class NoState(Adding):
        state_dict = Trainer.state_dict

    assert problems_of(NoState) == ("NoState must define state_dict()",)


def test_all_problems_are_returned():
    class Bad(Adding):
        train = 3
        evaluate = None
        ignored_config = "data"

        def __init__(self, path, *, extra): ...

    assert problems_of(Bad) == (
        "Bad.train must be a method, got 3",
        "Bad must define evaluate()",
        "Bad.__init__ must take no arguments, got path, extra",
        "Bad.ignored_config must be a tuple of names, got 'data'",
    )


def test_init_with_defaults_is_accepted():
    class Fine(Adding):
        def __init__(self, path="x", *args, **kwargs): ...

    assert problems_of(Fine) == ()


@pytest.mark.parametrize("thing", [3, "Trainer", Adding()])
def test_other_values_than_classes_are_refused(thing):
    (problem,) = problems_of(thing)
    assert problem.startswith("the trainer must be a class or a function, got ")


def test_setup_is_optional():
    quacks = type("Quacks", (), {name: lambda self, *_: {} for name in METHODS})
    assert not hasattr(quacks, "setup")
    assert problems_of(quacks) == ()
    Trainer().setup({})


@pytest.mark.parametrize("method", METHODS)
def test_undefined_method_raises_its_name(method):
    arguments = () if method in ("train", "evaluate", "state_dict") else ({},)
    with pytest.raises(TrainerError, match=rf"Trainer must define {method}\(\)"):
        getattr(Trainer(), method)(*arguments)
