"""Paths in a store: which file is what, and no name leads out of its folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dasktune.errors import ConfigurationError
from dasktune.storage import layout
from dasktune.storage.layout import CheckpointFile

KEY, ATTEMPT = "abc1", "0-77"
HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("path", "file"),
    [
        (layout.commit_path(KEY), CheckpointFile(KEY)),
        (f"{layout.state_folder(KEY, ATTEMPT, 0)}/c.0", CheckpointFile(KEY, ATTEMPT, 0)),
        (f"{layout.key_folder(KEY)}/commit.{HEX}", CheckpointFile(KEY, is_leftover=True)),
        (f"{layout.key_folder(KEY)}/commit.{HEX[1:]}", None),
        (f"{layout.key_folder(KEY)}/commit.x", None),
        (f"{layout.key_folder(KEY)}/other", None),
        (f"{layout.key_folder(KEY)}/{ATTEMPT}/step-x/c.0", None),
        (f"{layout.key_folder(KEY)}/{ATTEMPT}/step-1{'0' * 18}/c.0", None),
        (f"{layout.key_folder(KEY)}/0_77/step-1/c.0", None),
        (f"{layout.key_folder(KEY)}/{ATTEMPT}/step-1/c/0", None),
        ("other/ab/abc1/commit", None),
        (f"other/ab/abc1/commit.{HEX}", None),
        ("other/ab/abc1/0-77/step-1/c.0", None),
        ("checkpoints/aa/abc1/commit", None),
        (f"checkpoints/aa/abc1/commit.{HEX}", None),
        ("checkpoints/aa/abc1/0-77/step-1/c.0", None),
        ("checkpoints/AB/ABC1/commit", None),
        ("commit", None),
    ],
)
def test_path_of_a_checkpoint_is_parsed(path: str, file: CheckpointFile | None) -> None:
    assert layout.parse_path(path) == file


@pytest.mark.parametrize(
    "path",
    [
        layout.key_folder,
        layout.commit_path,
        lambda name: layout.attempt_folder(name, ATTEMPT),
        lambda name: layout.attempt_folder(KEY, name),
        lambda name: layout.state_folder(KEY, name, 1),
        layout.verdict_folder,
        lambda name: layout.verdict_path(name, "cpu"),
        lambda name: layout.verdict_path(KEY, name),
        layout.probe_folder,
    ],
)
@pytest.mark.parametrize("name", ["", "a", "..", "../etc", "a/b", "-a", "Ab", "a" * 129, "a_b", 7])
def test_name_that_leads_elsewhere_is_refused(path: Callable[[str], str], name: str) -> None:
    with pytest.raises(ConfigurationError, match="must be 2 to 128 digits, lower-case letters"):
        path(name)


@pytest.mark.parametrize("name", ["ab", "0-", "a" * 128])
def test_names_of_all_lengths_are_paths(name: str) -> None:
    assert layout.key_folder(name) == f"checkpoints/{name[:2]}/{name}"
    assert layout.verdict_path(name, name) == f"{layout.VERDICTS}/{name}/{name}"
    assert layout.save_request_path(name) == f"{layout.SAVE_REQUESTS}/{name}"
    assert layout.probe_folder(name) == f"{layout.PROBES}/{name}"


def test_every_wrong_name_is_a_problem() -> None:
    problems = layout.problems_of(key="..", attempt="0-1", root=None)
    assert [problem.partition(" ")[0] for problem in problems] == ["key", "root"]


def test_driver_with_a_hostile_name_stays_in_its_folder() -> None:
    assert layout.driver_path("host-1_a") == f"{layout.DRIVERS}/host-1_a"
    assert layout.driver_path("../a/b") == f"{layout.DRIVERS}/...a.b"
    assert layout.driver_path("a" * 251) == f"{layout.DRIVERS}/{'a' * 250}"


@pytest.mark.parametrize(
    ("name", "slug"), [("a-b_C9", "a-b_C9"), ("a b/é.", "a-b-é-"), ("n" * 61, "n" * 60)]
)
def test_slug_keeps_letters_digits_and_dashes(name: str, slug: str) -> None:
    assert layout.slug(name) == slug
