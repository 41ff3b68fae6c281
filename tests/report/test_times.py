"""Pictures of times to a target: boxes; orders that never reached it are left out."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from dasktune.report.times import Times, draw_times

SVG = "{http://www.w3.org/2000/svg}"


def marks(*found: Times) -> list[ET.Element]:
    return list(ET.fromstring(str(draw_times(found, target="accuracy 0.77"))).iter())


def words(*found: Times) -> list[str]:
    return [mark.text for mark in marks(*found) if mark.tag == f"{SVG}text" and mark.text]


def times(name: str, workers: int, *seconds: float | None) -> Times:
    return Times(name=name, workers=workers, seconds=seconds)


def boxes(*found: Times) -> list[ET.Element]:
    return [mark for mark in marks(*found) if mark.get("fill-opacity")]


def test_a_box_has_its_mean_and_how_many_reached_the_target() -> None:
    shown = words(times("a", 2, 10.0, 20.0, 30.0), times("b", 2, 40.0))
    assert {"20", "40", "3 of 3", "1 of 1", "2 workers", "a", "b"} <= set(shown)


def test_boxes_reach_from_quartile_to_quartile() -> None:
    (box,) = boxes(times("a", 1, 0.0, 10.0, 20.0, 30.0, 100.0))
    (wide,) = boxes(times("a", 1, 0.0, 10.0, 20.0, 70.0, 100.0))
    assert float(wide.get("height", 0)) == pytest.approx(3 * float(box.get("height", 0)), abs=0.05)


def test_a_tuner_has_its_colour_in_every_picture() -> None:
    found = [times(name, workers, 5.0, 6.0) for workers in (1, 4, 2) for name in ("x", "y")]
    looks = Counter(mark.get("class") for mark in marks(*found))
    assert looks["k1"] == looks["k2"] > 0
    assert looks["curve l1"] == looks["curve l2"] == 3, "a median in each box"
    assert {"1 worker", "4 workers", "2 workers"} <= set(words(*found))


def test_what_was_never_reached_is_told_and_not_drawn() -> None:
    found = [times("a", 1, 5.0, None, None), times("b", 1, None, None, None)]
    assert len(boxes(*found)) == 1
    assert {"1 of 3", "0 of 3"} <= set(words(*found))
    assert boxes(times("b", 1, None)) == []


def test_a_picture_says_what_it_shows_and_names_are_escaped() -> None:
    drawn = str(draw_times([times("a<b", 1, 1.0)], target="loss <0.1"))
    title = ET.fromstring(drawn).find(f"{SVG}title")
    assert title is not None
    assert title.text == "time to loss <0.1"
    assert "a<b" in words(times("a<b", 1, 1.0))
