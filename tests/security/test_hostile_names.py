"""Names that mean something elsewhere mean nothing to dasktune: every name goes all the way."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from distributed import Client
from typer.testing import CliRunner

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune.cli.commands import app
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, Piecewise

pytestmark = pytest.mark.cluster

SCRIPT = "window.pwned=(window.pwned||0)+1"

NAMES = {
    "a path up": "../../../pwned/x",
    "an absolute path": "/tmp/dasktune-pwned/x",
    "the folder above": "..",
    "a long one": "x" * 5000,
    "letters that look alike": "\u0430dmin \u202etxt.exe",
    "Windows": "CON:..\\pwned\\NUL",
    "SQL": "'; DROP TABLE dasktune_trials; --",
    "a script": f"</script><script>{SCRIPT}</script>",
    "an image": f"\"'><img src=x onerror='{SCRIPT}'><svg onload={SCRIPT}>",
    "formats": "%s %n %(x)d {0} {name!r} {{7*7}} {% raw %} ${HOME}",
    "a label": 'a"} 1\\n# HELP x\\',
    "a shell": "$(touch pwned)`touch pwned`; touch pwned & |",
    "a Dask key": "('dasktune:stage', 'a1f0', 0)",
    "colours": "[red]x[/red][/] [link=file:///]y",
    "an option": "--json",
    "code": "__import__('os').system('touch pwned')",
}

FOLDERS = {name: f"store-{number}" for number, name in enumerate(NAMES.values())}

REFUSED = {
    "NUL": "a\0b",
    "an escape": "\x1b[31mred",
    "eight bits": "a\x9b31m",
    "two lines": "a\nb",
    "half a pair": "\udc80",
    "nothing": " ",
}


class Named(dt.Trainer):
    """Counts; its metric and a part of its state have the name, and what it fails with is it."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.name, self.steps = self.config["name"], 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.value = hp.get(self.name, None)

    def train(self) -> None:
        self.steps += 1
        if self.value == "fail":
            raise ValueError(self.name)

    def evaluate(self) -> dict[str, float]:
        return {self.name: float(self.steps)}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, self.name: self.name}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_client(1) as made:
        yield made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, client: Client) -> Iterator[Path]:
    """Give a folder far below another one, in which a study of each name was run."""
    folder = tmp_path_factory.mktemp("names") / "a/b/c/d/e/f/g"
    folder.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, storage in FOLDERS.items():
            assert run(name, storage, client).parent == Path(storage)
        yield folder


def command(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def run(name: str, folder: str, client: Client) -> Path:
    """Run a study that has the name everywhere; return its report."""
    study = dt.create_study(
        Named,
        name=name,
        storage=folder,
        metric=name,
        direction="minimize",
        config={"name": name},
    )
    space = dt.Space(
        {name: [Constant(name), Piecewise([name, "b"], boundaries=[1]), Constant("fail")]}
    )
    study.optimize(dt.algos.Grid(space, max_steps=2), client=client, progress=False)
    study.set_user_attr(name, name)
    good, _, failed = study.trials
    assert (good.params, good.value) == ({name: name}, 2.0)
    assert failed.error is not None
    assert failed.error.rstrip().endswith(name)
    assert study.user_attrs == {name: name}
    assert study.trials_dataframe()[name].iloc[0] == name
    assert study.trial_state(0)[name] == name
    assert study.export(0, f"{folder}.npz").exists()
    page = study.report()
    study.close()
    return page


@pytest.mark.parametrize("which", NAMES)
def test_a_name_is_a_name_everywhere(which: str, here: Path) -> None:
    name = NAMES[which]
    folder = FOLDERS[name]
    (found,) = json.loads(command("status", folder, "--json", f"--study={name}"))
    assert (found["study"], found["metric"], found["best"]["value"]) == (name, name, 2.0)
    assert found["trials"] == {"COMPLETE": 2, "FAIL": 1}
    (shelf,) = json.loads(command("ls", folder, "--json", f"--study={name}"))["studies"]
    assert shelf["name"] == name
    for text in (command("status", folder), command("ls", folder, "--checkpoints")):
        assert all(one.isprintable() or one == "\n" for one in text)
    command("gc", folder, "--budget", "1MB", "--grace", "0s")
    command("gc", folder, "--json", "--dry-run")
    command("export", folder, f"--study={name}", "--optuna", "optuna.db")
    snapshot = optuna.load_study(study_name=name, storage="sqlite:///optuna.db")
    assert snapshot.trials[0].params == {name: name}
    assert snapshot.metric_names == [name]
    assert math.isfinite(snapshot.best_value)


def test_nothing_lies_or_happened_elsewhere(here: Path) -> None:
    top = here.parents[6]
    assert [one.name for one in top.iterdir()] == ["a"]
    assert {one.name.partition("-")[0] for one in here.iterdir()} == {"store", "optuna.db"}
    assert not list(top.rglob("pwned*"))
    assert not Path("/tmp/dasktune-pwned").exists()
    for folder in here.glob("store-*/"):
        shown = {one.name.partition("-")[0].partition(".")[0] for one in folder.iterdir()}
        assert shown <= {
            "checkpoints",
            "classes",
            "dasktune",
            "drivers",
            "probes",
            "report",
            "wishes",
        }


@pytest.mark.browser
def test_no_report_runs_a_script(here: Path, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    pages = sorted(here.glob("store-*/report-*.html"))
    assert len(pages) == len(NAMES)
    asked: list[str] = []
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page()
        shown.on("dialog", lambda dialog: asked.append(dialog.message))
        shown.on("request", lambda request: asked.append(request.url))
        for page in pages:
            asked.clear()
            shown.goto(page.as_uri())
            assert shown.evaluate("window.pwned") is None, page
            assert shown.evaluate("document.querySelectorAll('img, iframe, [onload]').length") == 0
            shown.locator("#states").wait_for()
            for part in ("trials", "tree", "failures", "costs", "trial/0"):
                shown.evaluate(f"location.hash = '#/1/{part}'")
                shown.locator("main section").first.wait_for()
            assert shown.evaluate("window.pwned") is None, page
            own = [url for url in asked if not url.startswith(("blob:", "data:"))]
            assert own == [page.as_uri()], "it loads nothing else"
        browser.close()


@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
def test_unprintable_name_is_refused_before_any_write(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="must"):
        dt.create_study(Named, name=name, metric="loss")
    with pytest.raises(ConfigurationError, match="must"):
        dt.create_study(Named, name="ours", metric=name, direction="minimize")
    with pytest.raises(ConfigurationError, match="must"):
        dt.Space({name: [1, 2]})
    assert list(tmp_path.iterdir()) == []
