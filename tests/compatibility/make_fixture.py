"""Write ``tests/compatibility/written_before``: what studies leave behind, and what it says.

Run it from the root of the repository::

    python tests/compatibility/make_fixture.py

It was run once, with the version whose files later versions must read. Running it again is
right only after a deliberate change of a format, beside a fixture of the version before.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from distributed import Client, LocalCluster  # noqa: E402

import dasktune as dt  # noqa: E402
from dasktune._engine.engine import Engine  # noqa: E402
from dasktune._study.folder import running_file  # noqa: E402
from dasktune.graph.keys import Chain, root_key  # noqa: E402
from dasktune.storage import CheckpointStore, encode  # noqa: E402
from dasktune.testing import Game  # noqa: E402
from dasktune.trainer import fingerprint  # noqa: E402
from tests.compatibility import cases, small_net, walk  # noqa: E402

OUT = Path(__file__).parent / "written_before"
CALLS = 60
"""Most calls of a tuner that are kept."""

STUDIES: dict[str, tuple[str, float]] = {
    "finished": ("finished", 1.0),
    "interrupted": ("interrupted", 2.0),
    "population": ("population", 3.0),
    "pop": ("pop", 1.5),
    "early-term": ("early-term", 2.5),
}
"""By name the tuner that runs it, and where its trainer starts."""


@contextmanager
def one_worker() -> Iterator[Client]:
    """Give a client of one worker in this process: everything comes in one order."""
    options: dict[str, Any] = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    options |= {"processes": False, "n_workers": 1, "threads_per_worker": 1}
    with LocalCluster(protocol="tcp://", **options) as cluster, Client(cluster) as client:
        yield client


def results(study: dt.Study) -> dict[str, Any]:
    """Return the results of a study as JSON."""
    return {
        "best": study.best_trial.number,
        "trials": [
            {
                "number": trial.number,
                "state": trial.state.value,
                "steps": trial.steps,
                "value": trial.value,
                "values": {str(step): dict(one) for step, one in trial.metrics.items()},
                "sequences": {name: one.to_json() for name, one in trial.sequences.items()},
            }
            for trial in study.trials
        ],
        "steps_executed": study.summary()["steps_executed"],
        "steps_repeated": study.summary()["steps_repeated"],
        "limit": study.limit,
        "tuners": list(study.tuners),
        "log": [
            [record["kind"] for record in study.decisions_of(place)]
            for place in range(len(study.tuners))
        ],
        "state_digests": {
            str(trial.number): encode(study.trial_state(trial.number)).digest
            for trial in study.trials
            if study.limit is None
        },
    }


def write_studies(client: Client) -> dict[str, Any]:
    """Run all studies in the current folder; return what they have come to."""
    found: dict[str, Any] = {}
    limits = {
        "interrupted": dt.Limits(steps=13),
        "population": dt.Limits(steps=17),
        "pop": dt.Limits(steps=15),
    }
    for name, (tuner, start) in STUDIES.items():
        study = walk.study(name=name, start=start)
        for make in cases.STUDY_TUNERS[tuner]:
            study.optimize(
                make(), client=client, limits=limits.get(name), progress=False, last_line=False
            )
        found[name] = results(study)
        if name == "finished":
            study.set_user_attr("note", {"by": "make_fixture"})
            study.record_check(True, "exact")
            study.trace().save(OUT / "trace.zarr")
        study.close()
    return found


def uninterrupted(client: Client) -> dict[str, Any]:
    """Return the results of the interrupted study, run without interruption."""
    study = walk.study(name="interrupted", storage="whole", start=STUDIES["interrupted"][1])
    for make in cases.STUDY_TUNERS["interrupted"]:
        study.optimize(make(), client=client, progress=False, last_line=False)
    found = results(study)
    study.close()
    return found


def simulated() -> dict[str, Any]:
    """Return the results of a simulation of the trace."""
    from dasktune.simulate import Trace

    trace = Trace.load(OUT / "trace.zarr")
    tuner = dt.algos.SHA(trace.space(), trials=8, max_steps=trace.steps, eta=2)
    found = dt.simulate(tuner, trace, workers=2)
    assert found.best_trial is not None
    return {
        "best": found.best_trial.number,
        "value": found.best_trial.value,
        "steps_executed": found.steps_executed,
        "seconds": found.seconds,
        "metrics": list(trace.metrics),
        "shape": list(trace.values.shape),
        "sum": float(trace.values[trace.values == trace.values].sum()),
    }


def keys() -> dict[str, Any]:
    """Return state keys by configuration and step."""
    root = root_key("0" * 32, 7)
    return {
        name: {
            str(step): Chain(root).advance(sequences, 0, step).key
            for step in cases.KEY_STEPS
            if all(one.end is None or step <= one.end for one in sequences.values())
        }
        for name, sequences in cases.CONFIGURATIONS.items()
    }


def fingerprints() -> dict[str, Any]:
    """Return the fingerprints of both trainers, with their parts."""
    chosen = {
        "Walk": fingerprint(walk.Walk, {"start": 1.0, "label": "any"}),
        "SmallNet": fingerprint(small_net.SmallNet, {}),
        "SmallNet with more": fingerprint(
            small_net.SmallNet, {"a": [1, 2.5]}, depends_on=[small_net.SPACE, cases.define]
        ),
    }
    return {
        name: {"digest": one.digest, "parts": dict(one.parts), "gaps": dict(one.gaps)}
        for name, one in chosen.items()
    }


def sequences() -> dict[str, Any]:
    """Return each sequence as JSON and as text, with its first values."""
    return {
        name: {
            "json": one.to_json(),
            "text": repr(one),
            "values": one.values(0, min(one.end or 12, 12)),
        }
        for name, one in cases.SEQUENCES.items()
    }


def calls_of(game: Game, first: int, last: int) -> list[dict[str, Any]]:
    """Return some calls of a game as JSON."""
    found = []
    for call in game.calls[first:last]:
        cause = call.cause
        document: dict[str, Any] = {"call": type(cause).__name__}
        for field in ("capacity", "trial", "seconds"):
            if hasattr(cause, field):
                document[field] = getattr(cause, field)
        if hasattr(cause, "report"):
            report = cause.report
            now = None if report.now is None else report.now.to_json()
            document |= {"trial": report.trial, "step": report.step}
            document |= {"loss": report.loss, "now": now}
        if hasattr(cause, "prediction"):
            given = cause.prediction
            document["prediction"] = None if given is None else given.to_json()
        document["proposals"] = list(call.proposals)
        document["decisions"] = [cases.decision_to_json(one) for one in call.decisions]
        found.append(document)
    return json.loads(json.dumps(found))


def tuners() -> dict[str, Any]:
    """Return for each tuner its identity, calls with their decisions, and a snapshot between."""
    found: dict[str, Any] = {}
    for number, (name, make) in enumerate(cases.TUNERS.items()):
        whole = Game(make(), seed=number, loss=cases.loss_of, failures=0.02).run()
        length = min(len(whole.calls), CALLS)
        half = length // 2
        game = Game(make(), seed=number, loss=cases.loss_of, failures=0.02).run(half)
        snapshot = json.loads(game.snapshot())
        found[name] = {
            "identity": make().identity(),
            "inputs": dict(game.inputs),
            "before": calls_of(whole, 0, half),
            "snapshot": snapshot,
            "after": calls_of(whole, half, length),
            "ended": length == len(whole.calls),
        }
    for name, make in cases.IDENTITIES_ONLY.items():
        found[name] = {"identity": make().identity()}
    return json.loads(json.dumps(found))


def commits(store: str) -> dict[str, Any]:
    """Return digest, step and bytes of each checkpoint of a store."""
    opened = CheckpointStore(store)
    known = {key: opened.load(key)[1] for key in opened.keys()}  # noqa: SIM118
    return {
        key: {"digest": one.digest, "step": one.step, "nbytes": one.nbytes}
        for key, one in sorted(known.items())
    }


def write_json(name: str, document: Mapping[str, Any]) -> None:
    """Write one of the files of expected values."""
    (OUT / name).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def pack_folder(folder: Path, target: Path) -> None:
    """Pack a folder, the same files always into the same bytes."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(target, "w:xz") as archive:
        archive.add(folder, arcname=folder.name, filter=plain)


def main() -> None:
    """Write everything."""
    for name in ("expected.json", "tuners.json.xz", "store.tar.xz", "trace.tar.xz"):
        (OUT / name).unlink(missing_ok=True)
    # Else a study needs 1,000 records until it keeps a snapshot of its tuner.
    Engine.__init__.__kwdefaults__["snapshot_every"] = 8
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with running_file(Path(folder) / "cases.py"), one_worker() as client:
            studies = write_studies(client)
            whole = uninterrupted(client)
        expected = {
            "version": dt.__version__,
            "studies": studies,
            "uninterrupted": whole,
            "commits": commits("store"),
            "simulated": simulated(),
            "keys": keys(),
            "fingerprints": fingerprints(),
            "sequences": sequences(),
        }
        assert not any(math.isnan(one["value"] or 0) for one in whole["trials"])
        write_json("expected.json", expected)
        text = json.dumps(tuners(), sort_keys=True)
        (OUT / "tuners.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))
        pack_folder(Path("store"), OUT / "store.tar.xz")
        os.chdir(ROOT)
    pack_folder(OUT / "trace.zarr", OUT / "trace.tar.xz")
    shutil.rmtree(OUT / "trace.zarr")


if __name__ == "__main__":
    main()
