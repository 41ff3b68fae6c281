"""Files that own code reads by a name in its source or its config count, or are named."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from dasktune.trainer import Fingerprint, fingerprint
from dasktune.trainer.fingerprint import data
from dasktune.trainer.fingerprint.data import data_digest
from tests.study_folder import working_in


class ByName:
    def build(self, hp: Any) -> str:
        return Path("net.yaml").read_text()


class ByConfig:
    config: dict[str, Any]
    ignored_config = ("log",)

    def build(self, hp: Any) -> str:
        with open(self.config["net"]) as file:
            return file.read()

    def train(self) -> None:
        Path(self.config["log"]).open("a").close()


class ByGet:
    config: dict[str, Any]

    def build(self, hp: Any) -> str:
        return Path(self.config.get("net", "net.yaml")).read_text()


class ByLoop:
    config: dict[str, Any]

    def build(self, hp: Any) -> list[str]:
        names = ["net.yaml", *self.config["more"]]
        return [Path(name).read_text() for name in names]


class Identified(ByLoop):
    @classmethod
    def fingerprint_data(cls, config: Any) -> str:
        return "none"


CONFIG: dict[type, dict[str, object]] = {
    ByName: {},
    ByConfig: {"net": "net.yaml", "log": "log.txt"},
    ByGet: {"net": "net.yaml"},
}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Return a function that writes a file of the working directory, always at another time."""
    with working_in(tmp_path):

        def write(name: str, text: str) -> None:
            Path(name).write_text(text)

        write("net.yaml", "width: 1")
        write("log.txt", "")
        yield write


@pytest.mark.parametrize("trainer", CONFIG)
def test_content_of_a_file_counts(trainer: type, write: Callable[[str, str], None]) -> None:
    config = CONFIG[trainer]
    before = fingerprint(trainer, config)
    assert "file net.yaml" in before.parts
    assert set(before.gaps) == {"data"}
    write("log.txt", "one line more")
    assert fingerprint(trainer, config) == before
    write("net.yaml", "width: 2")
    assert fingerprint(trainer, config).digest != before.digest
    write("net.yaml", "width: 1")
    assert fingerprint(trainer, config) == before
    Path("net.yaml").unlink()
    missing = fingerprint(trainer, config)
    assert "file net.yaml" not in missing.parts


def test_file_that_an_unknown_call_may_read_is_a_gap(write: Callable[[str, str], None]) -> None:
    config = {"more": ["log.txt", "missing.txt"]}
    gaps = fingerprint(ByLoop, config).gaps
    assert set(gaps) == {"data", "file log.txt", "file net.yaml"}
    assert "fingerprint_data" in gaps["file log.txt"]
    assert fingerprint(Identified, config).gaps == {}


def test_large_file_is_a_gap(write: Callable[[str, str], None]) -> None:
    write("net.yaml", "x" * ((1 << 20) + 1))
    found = fingerprint(ByName, {})
    assert "larger than 1 MiB" in found.gaps["file net.yaml"]
    assert not any(name.startswith("file") for name in found.parts)


def test_unread_files_leave_the_fingerprint(write: Callable[[str, str], None]) -> None:
    def taken() -> Fingerprint:
        class Plain:
            def build(self, hp: Any) -> int:
                return len("net.yaml")

        return fingerprint(Plain, {"net": "net.yaml"})

    before = taken()
    write("net.yaml", "width: 2")
    assert taken() == before
    assert set(before.gaps) == {"data"}


def test_settled_file_is_read_once(
    write: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []

    def counted(**options: Any) -> Any:
        reads.append(options)
        return blake3(**options)

    monkeypatch.setattr(data, "blake3", counted)
    digests = {data_digest("net.yaml") for _ in range(2)}
    assert len(reads) == 2, "a change at this moment might leave the times as they are"
    later = time.time_ns() + 10 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    digests |= {data_digest("net.yaml") for _ in range(3)}
    assert len(reads) == 3
    write("net.yaml", "width: 22")
    assert data_digest("net.yaml") not in digests
    assert len(digests) == 1
