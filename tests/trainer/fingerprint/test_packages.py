"""With reuse="exact" the packages count to which a trainer refers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dasktune.trainer.fingerprint import Fingerprint, installed, packages
from dasktune.trainer.fingerprint.fingerprint import taken

Install = Callable[..., Fingerprint]

STUDY = """
import own_package
class Net:
    def train(self):
        return own_package.f()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a package and takes a fingerprint with it."""
    site = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(site))

    def forget() -> None:
        for name in ("own_package", "study_of_package"):
            sys.modules.pop(name, None)
        packages.installed_digest.cache_clear()
        packages.distributions_of_packages.cache_clear()
        installed.recorded_files.cache_clear()
        importlib.invalidate_caches()

    def install(
        version: str, body: str, *, is_listed: bool = True, is_exact: bool = True
    ) -> Fingerprint:
        forget()
        for folder in site.glob("*.dist-info"):
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        site.mkdir(exist_ok=True)
        code = f"def f():\n    return {body}\n"
        (site / "own_package.py").write_text(code)
        if is_listed:
            info = site / f"own_package-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Name: own-package\nVersion: {version}\n")
            lines = [f"own_package.py,sha256={hash(code)},1", "../../bin/own,sha256=1,1"]
            lines.append(f"own_package-{version}.dist-info/METADATA,sha256=2,1")
            (info / "RECORD").write_text("\n".join(lines))
            (info / "top_level.txt").write_text("own_package\n")
        (tmp_path / "study_of_package.py").write_text(STUDY)
        study = importlib.import_module("study_of_package")
        found = taken(study.Net, {}, with_packages=is_exact).fingerprint
        assert found.packages == ("own_package",)
        return found

    yield install
    forget()


@pytest.mark.parametrize("is_listed", [True, False])
def test_exact_reuse_tells_packages_apart(install: Install, is_listed: bool) -> None:
    first = install("1.0", "1", is_listed=is_listed)
    assert "package own_package" in first.parts
    assert install("1.0", "1", is_listed=is_listed) == first
    again = install("1.0", "100", is_listed=is_listed)
    assert again.digest != first.digest
    if is_listed:
        later = install("1.1", "1")
        assert later.digest not in (first.digest, again.digest)


def test_reuse_of_code_takes_any_package(install: Install) -> None:
    first = install("1.0", "1", is_exact=False)
    assert first == install("1.1", "100", is_exact=False)


def test_packages_of_the_environment_count_once() -> None:
    assert {"dasktune", "numpy", "torch"} == packages.IN_ENVIRONMENT
    assert packages.installed_digest("pytest") == packages.installed_digest("pytest")
    assert packages.installed_digest("no_such_package") != packages.installed_digest("pytest")
