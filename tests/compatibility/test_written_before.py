"""Files of version 0.1.0 still work: stores, databases, logs, keys, identities, traces.

``written_before`` was written by `make_fixture` with the version before the kernel.
"""

from __future__ import annotations

import json
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from typer.testing import CliRunner

import dasktune as dt
from dasktune._study.folder import running_file
from dasktune.cli import app
from dasktune.graph.keys import Chain, root_key
from dasktune.sequences import sequence_from_json
from dasktune.simulate import Trace
from dasktune.storage import CheckpointStore, encode
from dasktune.trainer import Fingerprint, fingerprint, run_alone
from tests.compatibility import cases, walk

HERE = Path(__file__).parent
WRITTEN = HERE / "written_before"


@cache
def expected(part: str) -> Any:
    return json.loads((WRITTEN / "expected.json").read_text())[part]


@cache
def recorded_tuners() -> dict[str, Any]:
    return json.loads(lzma.decompress((WRITTEN / "tuners.json.xz").read_bytes()))


def as_json(value: object) -> Any:
    return json.loads(json.dumps(value))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of the study file, in which the old store and its database lie."""
    with tarfile.open(WRITTEN / "store.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    with running_file(tmp_path / "cases.py"):
        yield tmp_path


START = {"interrupted": 2.0, "population": 3.0, "pop": 1.5, "early-term": 2.5}


def open_study(name: str) -> dt.Study:
    return walk.study(name=name, start=START.get(name, 1.0))


def trials_of(study: dt.Study) -> list[dict[str, Any]]:
    return as_json(
        [
            {
                "number": trial.number,
                "state": trial.state.value,
                "steps": trial.steps,
                "value": trial.value,
                "values": {str(step): dict(one) for step, one in trial.metrics.items()},
                "sequences": {name: one.to_json() for name, one in trial.sequences.items()},
            }
            for trial in study.trials
        ]
    )


def run(study: dt.Study, client: Client | None = None) -> None:
    for make in cases.STUDY_TUNERS.get(study.name, ()):
        study.optimize(make(), client=client, progress=False, last_line=False)


def call_cli(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


# ------------------------------------------------------------------- keys, names, documents


@pytest.mark.parametrize("name", cases.CONFIGURATIONS)
def test_state_keys_are_unchanged(name: str) -> None:
    root = root_key("0" * 32, 7)
    for step, key in expected("keys")[name].items():
        assert Chain(root).advance(cases.CONFIGURATIONS[name], 0, int(step)).key == key


def test_numpy_trainer_keeps_its_fingerprint() -> None:
    check_fingerprint("Walk", fingerprint(walk.Walk, {"start": 1.0, "label": "other"}))


def test_torch_trainer_keeps_its_fingerprint() -> None:
    from tests.compatibility import small_net

    check_fingerprint("SmallNet", fingerprint(small_net.SmallNet, {}))
    more = fingerprint(
        small_net.SmallNet, {"a": [1, 2.5]}, depends_on=[small_net.SPACE, cases.define]
    )
    check_fingerprint("SmallNet with more", more)


def check_fingerprint(name: str, now: Fingerprint) -> None:
    kept = expected("fingerprints")[name]
    assert dict(now.parts) == kept["parts"]
    assert (now.digest, dict(now.gaps)) == (kept["digest"], kept["gaps"])


@pytest.mark.parametrize("name", cases.SEQUENCES)
def test_sequence_documents_are_unchanged(name: str) -> None:
    kept, sequence = expected("sequences")[name], cases.SEQUENCES[name]
    assert sequence.to_json() == kept["json"]
    assert repr(sequence) == kept["text"], "the event log knows trials by this text"
    read = sequence_from_json(kept["json"])
    assert read == sequence
    assert read.values(0, len(kept["values"])) == kept["values"]


# ------------------------------------------------------------------------------- tuners


@pytest.mark.parametrize("name", [*cases.TUNERS, *cases.IDENTITIES_ONLY])
def test_tuner_identities_are_unchanged(name: str) -> None:
    tuner = {**cases.TUNERS, **cases.IDENTITIES_ONLY}[name]()
    assert as_json(tuner.identity()) == recorded_tuners()[name]["identity"]


def test_every_tuner_is_among_the_cases() -> None:
    classes = {type(make()).__name__ for make in cases.TUNERS.values()}
    assert classes == set(dt.algos.__all__) - {"Tuner", "Auto", "FreezeThaw"}  # newer


@pytest.mark.parametrize("name", cases.TUNERS)
def test_tuner_decides_again_what_it_decided(name: str) -> None:
    kept, tuner = recorded_tuners()[name], cases.TUNERS[name]()
    tuner.prepare(kept["inputs"])
    for call in kept["before"]:
        assert cases.perform(tuner, call) == call["decisions"]
    assert as_json(tuner.snapshot()) == kept["snapshot"]


@pytest.mark.parametrize("name", cases.TUNERS)
def test_tuner_goes_on_from_an_old_snapshot(name: str) -> None:
    kept, tuner = recorded_tuners()[name], cases.TUNERS[name]()
    tuner.prepare(kept["inputs"])
    tuner.restore(kept["snapshot"])
    assert as_json(tuner.snapshot()) == kept["snapshot"]
    for call in kept["after"]:
        assert cases.perform(tuner, call) == call["decisions"]


# ------------------------------------------------------------------- stores and databases


def test_old_checkpoints_load_with_their_digests(folder: Path) -> None:
    store = CheckpointStore("store")
    assert set(store.keys()) == set(expected("commits"))
    for key, kept in expected("commits").items():
        state, commit = store.load(key)
        assert (commit.digest, commit.step, commit.nbytes) == tuple(
            kept[field] for field in ("digest", "step", "nbytes")
        )
        assert encode(state).digest == kept["digest"]


@pytest.mark.parametrize("name", expected("studies"))
def test_old_study_opens_with_its_results(name: str, folder: Path) -> None:
    study, kept = open_study(name), expected("studies")[name]
    assert trials_of(study) == kept["trials"]
    assert study.best_trial.number == kept["best"]
    assert as_json(study.tuners) == kept["tuners"]
    summary = study.summary()
    assert summary["steps_executed"] == kept["steps_executed"]
    assert summary["steps_repeated"] == kept["steps_repeated"]
    for place, kinds in enumerate(kept["log"]):
        assert [record["kind"] for record in study.decisions_of(place)] == kinds
    for number, digest in kept["state_digests"].items():
        assert encode(study.trial_state(int(number))).digest == digest
    study.close()


@pytest.mark.parametrize("name", expected("studies"))
def test_old_log_replays_identically(name: str, folder: Path) -> None:
    study = open_study(name)
    for make in cases.STUDY_TUNERS[name]:
        found = study.replay(make())
        assert found.identical, str(found)
        assert found.calls > 5
    study.close()


def test_finished_tuners_return_at_once(folder: Path) -> None:
    study = open_study("finished")
    assert study.user_attrs == {"note": {"by": "make_fixture"}}
    stages = study.stages()
    run(study)
    assert study.stages() == stages
    assert trials_of(study) == expected("studies")["finished"]["trials"]
    study.close()


@pytest.mark.parametrize("database", ["store/dasktune.db", "other.db"])
def test_new_study_trains_nothing_that_is_stored(
    database: str, folder: Path, two_threads: Client
) -> None:
    study = create_new(database)
    study.optimize(walk.tuner(), client=two_threads, progress=False, last_line=False)
    kept = expected("studies")["finished"]["trials"][:10]
    assert [trial.value for trial in study.trials] == [trial["value"] for trial in kept]
    assert study.summary()["steps_executed"] == 0
    study.close()


def create_new(database: str) -> dt.Study:
    return dt.create_study(
        walk.Walk,
        name="new",
        storage="store",
        database=database,
        metric="loss",
        config={"start": 1.0},
        load_if_exists=True,
    )


def test_interrupted_study_ends_as_an_uninterrupted_one(folder: Path, two_threads: Client) -> None:
    study, whole = open_study("interrupted"), expected("uninterrupted")
    before = study.summary()["steps_executed"]
    assert before == expected("studies")["interrupted"]["steps_executed"]
    run(study, two_threads)
    assert trials_of(study) == whole["trials"]
    assert study.best_trial.number == whole["best"]
    assert before < study.summary()["steps_executed"] == whole["steps_executed"]
    assert study.summary()["steps_repeated"] == 0
    for number, digest in whole["state_digests"].items():
        assert encode(study.trial_state(int(number))).digest == digest
    study.close()


@pytest.mark.parametrize("name", ["population", "pop"])
def test_interrupted_study_goes_on_with_its_tuner(
    name: str, folder: Path, two_threads: Client
) -> None:
    study = open_study(name)
    before = study.summary()["steps_executed"]
    run(study, two_threads)
    assert all(trial.state.is_finished for trial in study.trials)
    assert study.summary()["steps_executed"] > before
    assert study.summary()["steps_repeated"] == 0
    for make in cases.STUDY_TUNERS[name]:
        assert study.replay(make()).identical
    for trial in study.trials:
        alone = run_alone(walk.Walk, trial.sequences, trial.steps, config=study.config)
        assert {step: trial.metrics[step] for step in alone.metrics} == alone.metrics
    study.close()


# ----------------------------------------------------------------- traces, commands, pages


def test_trace_without_classes_is_written_as_before(tmp_path: Path) -> None:
    with tarfile.open(WRITTEN / "trace.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    old = tmp_path / "trace.zarr"
    new = Trace.load(old).save(tmp_path / "new.zarr")
    assert files_of(new) == files_of(old)


def files_of(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_old_trace_is_simulated_with_equal_results(tmp_path: Path) -> None:
    with tarfile.open(WRITTEN / "trace.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    trace, kept = Trace.load(tmp_path / "trace.zarr"), expected("simulated")
    assert list(trace.metrics) == kept["metrics"]
    assert list(trace.values.shape) == kept["shape"]
    tuner = dt.algos.SHA(trace.space(), trials=8, max_steps=trace.steps, eta=2)
    found = dt.simulate(tuner, trace, workers=2)
    assert found.best_trial is not None
    assert found.best_trial.number == kept["best"]
    assert found.best_trial.value == kept["value"]
    assert found.steps_executed == kept["steps_executed"]
    # States are stored where a piecewise value changes, since later trials may part there.
    assert kept["seconds"] <= found.seconds < 1.01 * kept["seconds"]


def test_status_reads_an_old_database(folder: Path) -> None:
    found = json.loads(call_cli("status", "store", "--json"))
    assert {study["study"] for study in found} == set(expected("studies"))


def test_ls_reads_an_old_store(folder: Path) -> None:
    found: Mapping[str, Any] = json.loads(call_cli("ls", "store", "--json"))
    text = json.dumps(found)
    assert all(name in text for name in expected("studies"))
    listed = json.loads(call_cli("ls", "store", "--checkpoints", "--json"))
    assert all(key in json.dumps(listed) for key in expected("commits"))


def test_commands_on_a_study_file_open_an_old_study(folder: Path) -> None:
    file = folder / "walk.py"
    file.write_text((HERE / "walk.py").read_text())
    replayed = json.loads(call_cli("replay", str(file), "--json"))
    assert replayed["identical"] is True
    # It only reads, so it needs the database that the command before has brought up to date.
    report = Path(call_cli("report", str(file)).strip())
    assert "finished" in report.read_text()
    found = json.loads(call_cli("fingerprint", str(file), "--json"))
    (compared,) = found["compared"]
    assert compared["differs"] == []
    call_cli("export", str(file), "--trial", "0", "--out", "model.npz")
