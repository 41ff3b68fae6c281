"""Mutants of small sources: every operator, and what stays as it is."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.mutation.__main__ import RECORDED
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.operators import Mutant, draw, mutants_of
from tests.mutation.planted import PLANTED, Planted

ROOT = Path(__file__).parents[2]


def mutants(body: str) -> list[Mutant]:
    """Return all mutants of a function with this body."""
    source = "def f(a, b):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    found = list(mutants_of("package/part/module.py", source, range(1, 100)))
    for mutant in found:
        assert mutant.apply(source) != source
        compile(mutant.apply(source), "module.py", "exec")
    return found


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ("a < b", {("boundary", "(a <= b)"), ("opposite", "(a >= b)")}),
        ("a is not b", {("opposite", "(a is b)")}),
        ("a[7]", {("integer + 1", "(8)"), ("integer - 1", "(6)")}),
        ("a and b", {("and/or", "(a or b)")}),
        ("a - b", {("plus/minus", "(a + b)")}),
        ("not a", {("not dropped", "(a)")}),
        ("a(b)", {("call dropped", "pass")}),
        ("return a", {("return None", "return None")}),
        ("if a:\n    b", {("always true", "True"), ("always false", "False")}),
        ("b if a else a", {("always true", "True"), ("always false", "False")}),
        ("for x in a:\n    break", {("break/continue", "continue")}),
    ],
)
def test_operators_make_each_change(body: str, changes: set[tuple[str, str]]) -> None:
    assert {(mutant.operator, mutant.after) for mutant in mutants(body)} == changes


@pytest.mark.parametrize(
    "body",
    [
        "'Return 1 < 2.'",
        "logger.info('%d', 1)",
        "raise ValueError(a + 1)",
        "f'{a + 1}'",
        "x: tuple[1] = a",
        "return None",
        "True",
    ],
)
def test_what_only_tells_people_has_no_mutants(body: str) -> None:
    assert mutants(body) == []


def test_mutant_names_its_innermost_function() -> None:
    source = "class C:\n    def f(self):\n        def g():\n            return 1\n        g()\n"
    names = {mutant.function for mutant in mutants_of("p/q/m.py", source, range(9))}
    assert names == {"C.f", "C.f.g"}


def test_code_outside_functions_has_no_mutants() -> None:
    assert not list(
        mutants_of("p/q/m.py", "LIMIT = 1 + 2\nif LIMIT > 2:\n    print()\n", {1, 2, 3})
    )


def test_mutants_are_of_the_lines_asked_for() -> None:
    source = "def f(a):\n    a(1)\n    a(2)\n"
    assert {mutant.line for mutant in mutants_of("p/q/m.py", source, {3})} == {3}


def test_change_after_wide_characters_is_in_its_place() -> None:
    source = "def f(a):\n    a('\N{GREEK SMALL LETTER ALPHA}', 1)\n"
    sources = {mutant.apply(source) for mutant in mutants_of("p/q/m.py", source, {2})}
    assert source.replace("1)", "(2))") in sources


def test_draw_of_one_seed_is_the_same_and_of_different_lines() -> None:
    found = mutants("\n".join(f"a(b, {number}) < b + a" for number in range(20)))
    drawn = draw(found, 8, 1)
    assert drawn == draw(found[::-1], 8, 1) != draw(found, 8, 2)
    assert len({mutant.line for mutant in drawn}) == 8


def test_draw_stays_when_other_code_is_added() -> None:
    body = "\n".join(f"a(b, {number}) < b + a" for number in range(20))
    before, after = mutants(body), mutants(f"b\nb\n{body}")
    names = [[mutant.name for mutant in draw(found, 8, 1)] for found in (before, after)]
    assert names[0] == names[1]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_planted_bug_changes_the_code_as_it_is(bug: Planted) -> None:
    source = (ROOT / bug.path).read_text()
    compile(bug.apply(source), bug.path, "exec")
    assert bug.lines(source)


def test_planted_bug_whose_code_is_gone_is_refused() -> None:
    bug = Planted(name="a bug", path="module.py", before="a < b", after="a <= b")
    with pytest.raises(ValueError, match=r"module\.py must contain the code of 'a bug': a < b"):
        bug.apply("a > b")


def test_equivalent_mutants_have_a_reason_and_a_file() -> None:
    for name, reason in EQUIVALENT.items():
        assert (ROOT / name.partition(" ")[0]).is_file(), name
        assert reason.endswith(".")


def test_every_recorded_part_is_a_folder_of_the_package() -> None:
    assert [part for part in RECORDED if not (ROOT / "dasktune" / part).is_dir()] == []


def test_equal_changes_in_one_function_have_names_of_their_own() -> None:
    names = [mutant.name for mutant in mutants("a(1)\na(1)") if mutant.operator == "integer + 1"]
    assert names == [
        "package/part/module.py f: 1 -> (2)",
        "package/part/module.py f: 1 -> (2) (2)",
    ]
