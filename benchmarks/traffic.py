"""Traffic: what a trial that does nothing costs in syncs, objects, messages and submits.

And what a small state costs that is stored: most last states of such trials are not.

Counts, which no noise of the machine moves: all workers are in this process, where each call is
counted. Times are in `overhead.py`.

Where boto3, flask, moto and s3fs are installed, whole studies run on an S3 server in this process,
and each HTTP request is counted by its kind. A driver lists leases and save requests from time to
time, so a longer run has more requests of the kind LIST.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import distributed
import sqlalchemy as sa
from figures import Figure, main
from pairs import released
from spaces import STEPS, all_different, hippo_144
from threads import client_of_threads
from trainers import Counting, Nothing

import dasktune as dt
from dasktune.cluster.local import LOCAL_SETTINGS
from dasktune.storage import CheckpointStore, encode

TRIALS, SHORT_TRIALS = 500, 100
WORKERS = 2

BOUNDS = {
    "syncs": 0.2,
    "objects": 0.3,
    "messages from workers to the driver": 1.2,
    "graphs sent to the scheduler": None,
    "transactions": None,
}
"""What is counted a trial, and how much of it there may be."""

STORED_BOUNDS = {"syncs": 3.1, "objects": 1.0}
"""What is counted a small state that is stored."""

SERVER_PACKAGES = ("boto3", "flask", "moto", "s3fs")
"""What the S3 server and its clients need."""

MOST_OBJECTS, MOST_REQUESTS = 36, 100
"""On S3, of 500 trials that do nothing: a few dozen, where an object for each would be 500."""

WORTH_STORING_SECONDS = 0.05
"""Of a step that takes longer than storing its state on this server, so that it is stored."""

RELEASED = Path(__file__).with_name("traffic.json")
"""The figures of the last release."""


def measure(short: bool) -> list[Figure]:
    """Count while trials run that have nothing in common."""
    trials = SHORT_TRIALS if short else TRIALS
    counts = counts_of(trials)
    before = released(RELEASED)
    figures = []
    for name, bound in BOUNDS.items():
        title = f"{name} of a no-op trial"
        note = f"{counts[name]:,} in {trials} trials"
        if title in before:
            note += f"; the last release had {before[title]:.3g}"
        value = counts[name] / trials
        figures.append(Figure(name=title, value=value, at_most=bound, note=note))
    stored = counts_of_stored(SHORT_TRIALS)
    for name, bound in STORED_BOUNDS.items():
        title = f"{name} of a small state that is stored"
        figures.append(Figure(name=title, value=stored[name] / SHORT_TRIALS, at_most=bound))
    if all(map(importlib.util.find_spec, SERVER_PACKAGES)):
        figures += on_s3(short, before)
    return figures


def on_s3(short: bool, before: Mapping[str, float]) -> Iterator[Figure]:
    """Yield the objects and the requests of whole studies on S3."""
    trials = SHORT_TRIALS if short else TRIALS
    idle = dt.algos.Random(all_different(), trials=trials, max_steps=1)
    tree = dt.algos.Grid(hippo_144(), max_steps=STEPS)
    slow = dt.algos.Random(all_different(), trials=SHORT_TRIALS, max_steps=1)
    seconds = WORTH_STORING_SECONDS
    states = dt.preview(hippo_144(), max_steps=STEPS).checkpoints
    with s3_server():
        works = [(f"{trials} no-op trials", idle, 0.0, (MOST_OBJECTS, MOST_REQUESTS), "")]
        if not short:
            note = f"{states} states lie at ends and where trials part"
            works += [
                ("144 no-op schedules", tree, 0.0, (None, None), note),
                (f"100 trials of a {seconds * 1e3:.0f} ms step", slow, seconds, (None, None), ""),
            ]
        for name, tuner, step_seconds, bounds, note in works:
            counts = counts_on_s3(tuner, step_seconds)
            objects = counts.pop("objects")
            kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
            for what, value, bound, words in (
                ("objects", objects, bounds[0], note),
                ("requests", counts.total(), bounds[1], kinds),
            ):
                title = f"{what} of {name} on S3"
                last = f"the last release had {before[title]:.0f}" if title in before else ""
                yield Figure(
                    name=title,
                    value=value,
                    at_most=bound,
                    note="; ".join(filter(None, (words, last))),
                )


@contextmanager
def s3_server() -> Iterator[None]:
    """Run an S3 server in this process, to which all clients of S3 in it go."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    try:
        yield
    finally:
        server.stop()


def counts_on_s3(tuner: dt.algos.Tuner, step_seconds: float) -> Counter[str]:
    """Return the requests of a study by kind, and the objects that it leaves in its bucket."""
    from aiobotocore.httpsession import AIOHTTPSession
    from s3fs import S3FileSystem

    counts: Counter[str] = Counter()

    def add(_: object, request: Any) -> None:
        counts[_kind_of(request.method, request.url)] += 1

    system = S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    bucket = f"traffic-{os.urandom(4).hex()}"
    system.call_s3("create_bucket", Bucket=bucket)
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set(LOCAL_SETTINGS),
        client_of_threads(WORKERS) as client,
        _calling(AIOHTTPSession, "send", add),
    ):
        study = dt.create_study(
            Counting if step_seconds else Nothing,
            name="traffic",
            storage=f"s3://{bucket}/store",
            database=Path(folder) / "studies.db",
            metric="value",
            direction="minimize",
            config={"log": str(Path(folder) / "log"), "seconds": step_seconds},
        )
        study.optimize(tuner, client=client, progress=False, check=False)
        study.close()
    return counts + Counter(objects=len(system.find(bucket)))


def _kind_of(method: str, url: str) -> str:
    """Return PUT, GET, HEAD, LIST or DELETE: of S3, a listing is a GET, a bulk removal a POST."""
    if method == "GET" and "list-type=" in url:
        return "LIST"
    return "DELETE" if method == "POST" and url.endswith("?delete") else method


def counts_of_stored(states: int) -> Counter[str]:
    """Return the counts of so many small states, whose keys lie in one folder."""
    counts: Counter[str] = Counter()

    def add(*_: object) -> None:
        counts["syncs"] += 1

    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder)
        with _calling(os, "fsync", add):
            for number in range(states):
                snapshot = encode({"weight": float(number), "more": b"x" * 1000})
                store.save(snapshot, key=f"ab{number:04}", attempt="1-aa", step=1)
        counts["objects"] = sum(path.is_file() for path in Path(folder).rglob("*"))
    return counts


def counts_of(trials: int) -> Counter[str]:
    """Return the counts of a run with so many trials."""
    counts: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set(LOCAL_SETTINGS),
        client_of_threads(WORKERS) as client,
        ExitStack() as stack,
    ):
        store = Path(folder) / "store"
        study = dt.create_study(
            Nothing, name="traffic", storage=store, metric="value", direction="minimize"
        )
        tuner = dt.algos.Random(all_different(), trials=trials, max_steps=1)

        def note(name: str) -> Callable[..., None]:
            def add(*_: object) -> None:
                counts[name] += 1

            return add

        for owner, method, name in (
            (os, "fsync", "syncs"),
            (distributed.Worker, "log_event", "messages from workers to the driver"),
            (distributed.Client, "_graph_to_futures", "graphs sent to the scheduler"),
        ):
            stack.enter_context(_calling(owner, method, note(name)))
        sa.event.listen(sa.Engine, "commit", note("transactions"))
        study.optimize(tuner, client=client, progress=False, check=False)
        study.close()
        counts["objects"] = sum(path.is_file() for path in store.rglob("*"))
    return counts


@contextmanager
def _calling(owner: Any, method: str, also: Callable[..., None]) -> Iterator[None]:
    """Call a function with the arguments of each call of a method."""
    original = getattr(owner, method)

    def both(*arguments: Any, **keywords: Any) -> Any:
        also(*arguments)
        return original(*arguments, **keywords)

    setattr(owner, method, both)
    try:
        yield
    finally:
        setattr(owner, method, original)


if __name__ == "__main__":
    sys.exit(main("traffic", measure))
