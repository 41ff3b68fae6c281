"""The wheel and the source distribution hold the whole package, and work far from its repository.

The wheel is built from the source distribution, so that both are complete or the test fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

import dasktune

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")

STUDY = """
import numpy as np

import dasktune as dt
from dasktune.sequences import MultiStep


class Falling(dt.Trainer):
    def build(self, hp):
        self.weights = np.ones(3)

    def setup(self, hp):
        self.lr = hp.get("lr", getattr(self, "lr", None))

    def train(self):
        self.weights = self.weights * (1 - self.lr)

    def evaluate(self):
        return {"loss": float(self.weights.sum())}

    def state_dict(self):
        return {"weights": self.weights, "lr": self.lr}

    def load_state_dict(self, state):
        self.weights, self.lr = state["weights"], state["lr"]


space = dt.Space(lr=[0.1, MultiStep(0.1, milestones=[4], gamma=0.5)])


def study():
    return dt.create_study(
        Falling,
        name="falling",
        storage="store",
        metric="loss",
        direction="minimize",
        load_if_exists=True,
    )


def tuner():
    return dt.algos.Grid(space, max_steps=6)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that sees nothing of the repository; return what it printed."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # The borrowed packages are installed ones, also for the fingerprint of the trainer.
    outside["PYTHONUSERBASE"] = sys.prefix
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=outside, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind: str, source: Path, out: Path) -> Path:
    """Build an ``sdist`` or a ``wheel`` with the build backend of pyproject.toml, without pip."""
    program = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    before = set(out.iterdir())
    run(sys.executable, "-W", "ignore", "-c", program, cwd=source)
    (built,) = set(out.iterdir()) - before
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    shutil.copytree(ROOT / "dasktune", source / "dasktune")
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    (folder / "out").mkdir()
    return build("sdist", source, folder / "out")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    (folder / "out").mkdir()
    return build("wheel", source, folder / "out")


def files_of_the_package() -> set[str]:
    """Return the files below ``dasktune/``, byte code left out."""
    files = (path for path in (ROOT / "dasktune").rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}


@pytest.mark.process
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        described = archive.read(metadata).decode()
    assert names == files_of_the_package()
    for needed in (
        "report.html",
        "dashboard.css",
        "main.js",
        "prior_fitted.npz",
        "r0012_baseline.py",
    ):
        assert any(name.endswith(f"/{needed}") for name in names), needed
    assert described.endswith((ROOT / "README.md").read_text())


@pytest.mark.process
def test_the_sdist_holds_the_sources_and_no_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        paths = [member.name for member in archive.getmembers() if member.isfile()]
    files = [path.partition("/")[2] for path in paths]
    assert {name for name in files if name.startswith("dasktune/")} == files_of_the_package()
    assert set(SOURCES) <= set(files)
    assert [name for name in files if name.startswith("tests/")] == []


@pytest.mark.process
def test_the_installed_wheel_tunes_predicts_and_reports(wheel: Path, tmp_path: Path) -> None:
    """The new environment has a dasktune of its own, and borrows the packages of this one."""
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    packages = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    # The lines of a .pth file are folders only: those of the editable install are not read.
    (packages / "site-packages" / "others.pth").write_text(str(Path(np.__file__).parents[1]))
    install = ("-m", "uv", "pip", "install", "--offline", "--no-deps", "--quiet")
    run(sys.executable, *install, "--python", home / "bin" / "python", wheel, cwd=tmp_path)
    command = home / "bin" / "dasktune"

    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "falling.py").write_text(STUDY)
    origin = "import dasktune; print(dasktune.__file__)"
    where = run(home / "bin" / "python", "-c", origin, cwd=folder)
    assert Path(where.strip()).is_relative_to(home)
    assert run(command, "--version", cwd=folder).split()[-1] == dasktune.__version__
    assert "complete" in run(command, "run", "falling.py", "--workers", "1", cwd=folder)
    # The database has all migrations, the prediction reads the network, the page its parts.
    assert "up to date" in run(command, "migrate", "store", cwd=folder)
    predicted = run(command, "predict", "falling.py", "--trial", "0", "--step", "9", cwd=folder)
    assert "9" in [line.split()[0] for line in predicted.splitlines() if line.strip()]
    run(command, "report", "falling.py", "--output", "page.html", cwd=folder)
    assert "</html>" in (folder / "page.html").read_text()
