"""Training functions in a real environment without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
import numpy as np
import dasktune as dt
from dasktune.sequences import Piecewise

def train(run):
    x = np.linspace(-1, 1, 20)
    noise = np.random.default_rng(run.seed)
    run.track(noise)
    loader = run.loader((x, 3 * x), batch_size=run["batch_size"])
    run.state["weight"] = np.zeros(1)
    for step in run.steps():
        for inputs, targets in loader:
            error = run.state["weight"] * inputs - targets + 0.01 * noise.random()
            run.state["weight"] -= run["lr"] * (error * inputs).mean() + 0.001 * np.random.rand()
        run.report(loss=abs(float(run.state["weight"][0]) - 3))

if __name__ == "__main__":
    values = {"lr": Piecewise([0.5, 0.2], [3]), "batch_size": 4}
    report = dt.check_resume(train, values, split=2, total=5)
    assert report.ok, report
    study = dt.create_study(train, name="numpy", metric="loss", storage="runs")
    lrs = [0.5, Piecewise([0.5, 0.2], [3])]
    space = dt.Space(lr=lrs, batch_size=[4, Piecewise([4, 7], [2])])
    study.optimize(dt.algos.Grid(space, max_steps=5), workers=1, progress=False)
    print([trial.state.name for trial in study.trials], study.best_value < 0.1)
    try:
        dt.TorchTrainer
    except ModuleNotFoundError as error:
        print(error)
"""


@pytest.mark.process
def test_a_function_trains_where_there_is_no_torch(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folder = tmp_path / "env" / "lib" / version / "site-packages"
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if (
            not each.name.startswith(("torch", "functorch", "__pycache__"))
            and each.suffix != ".pth"
        ):
            (folder / each.name).symlink_to(each)
    python = tmp_path / "env" / "bin" / "python"
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    missing = subprocess.run([python, "-c", "import torch"], env=variables, capture_output=True)
    assert b"No module named 'torch'" in missing.stderr
    (tmp_path / "study.py").write_text(PROGRAM)
    done = subprocess.run(
        [python, "study.py"], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        f"{['COMPLETE'] * 4} True",
        "dasktune.TorchTrainer needs torch: pip install 'dasktune[torch]'",
    ], done.stderr


PROBE = """
import sys
import dasktune as dt
from dasktune.trainer.proof.reach import Reach

class Place:
    __slots__ = ("step",)

class Plain(dt.Trainer):
    pass

trainer = Plain()
trainer.place, trainer.loader = Place(), dt.ResumableLoader([1, 2], batch_size=1, seed=0)
trainer.place.step = 0
print("trainer.place.step" in dict(Reach(trainer, "cpu").leaves()), "torch" in sys.modules)
"""


@pytest.mark.process
def test_reach_of_a_trainer_without_torch_imports_none() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "True False\n", done.stderr
