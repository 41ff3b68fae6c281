"""Stores of every kind keep their data, also over a bad connection."""

from __future__ import annotations

import collections
import itertools
import logging
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.checkpoints import CHECK_PATIENCE, CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.files.base import Unreadable
from dasktune.storage.files.local import LocalFiles
from dasktune.storage.files.objects import ObjectFiles, modified_of, open_files, options_of
from dasktune.storage.files.retry import Patience
from tests.holding import PATIENCE
from tests.storage.conftest import SERVERS
from tests.storage.proxy import SLOW_DOWN, answer

KEY = "a1b2c3"
KINDS = ("path", "memory", *SERVERS)


@pytest.fixture(params=KINDS)
def url(request, tmp_path):
    match request.param:
        case "path":
            return str(tmp_path / "store")
        case "memory":
            return f"memory://{tmp_path.name}"
    server = request.getfixturevalue(request.param)
    request.getfixturevalue("point_at")(server)
    return f"s3://{server.create_bucket()}/tuning"


@pytest.fixture
def store(url):
    return CheckpointStore(url)


@pytest.fixture
def bucket(server):
    return server.create_bucket()


@pytest.fixture
def remote(bucket):
    return CheckpointStore(f"s3://{bucket}/tuning")


def other_process(server, bucket):
    """Return files of the same bucket whose requests do not pass through the proxy."""
    system = fsspec.filesystem(
        "s3",
        endpoint_url=server.environment()["AWS_ENDPOINT_URL"],
        key=server.key,
        secret=server.secret,
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    return ObjectFiles(system, f"{bucket}/tuning")


def state_of(number, size=1000):
    weights = np.random.default_rng(number).standard_normal(size).astype(np.float32)
    return {"who": number, "weights": weights}


def save(store, number, *, key=KEY, attempt=None, size=1000):
    attempt = attempt or f"{number}-aa"
    return store.save(encode(state_of(number, size)), key=key, attempt=attempt, step=7)


def is_same(state, number, size=1000):
    expected = state_of(number, size)
    return state["who"] == number and np.array_equal(state["weights"], expected["weights"])


def paths(store, folder="checkpoints"):
    return {entry.path for entry in open_files(store.url).entries(folder)}


def key_of(number):
    return f"{number % 256:02x}{number:06x}"


# The contract, on every kind of store.


def test_saved_state_is_loaded_until_discarded(store):
    name = store.check()
    assert store.check() == name
    save(store, 3)
    again = CheckpointStore(store.url)
    state, commit = again.load(KEY)
    assert is_same(state, 3)
    assert (commit.attempt, commit.step, commit.nbytes) == ("3-aa", 7, 4000)
    assert again.discard(KEY)
    assert not again.discard(KEY)
    assert store.commit_of(KEY) is None
    assert paths(store) == set()


def test_concurrent_saves_of_one_key_keep_one_attempt(store):
    barrier = threading.Barrier(16, timeout=60)

    def race(number):
        barrier.wait()
        return save(store, number).attempt

    with ThreadPoolExecutor(16) as pool:
        (winner,) = set(pool.map(race, range(16)))
    state, commit = store.load(KEY)
    assert commit.attempt == winner == f"{state['who']}-aa"
    assert is_same(state, state["who"])
    assert {path.split("/")[3] for path in paths(store)} == {"commit"}


def test_inventory_lists_keys_steps_and_sizes(store):
    for number in range(5):
        save(store, number, key=key_of(number))
    files = open_files(store.url)
    orphan = f"checkpoints/ff/{key_of(255)}/9-dd/step-3"
    files.write(orphan, {"c.0": [np.zeros(10, np.uint8)]})
    found = {one.key: one for one in store.inventory()}
    assert set(store.keys()) == {key_of(number) for number in range(5)}
    assert {one.step for one in found.values() if one.is_committed} == {7}
    assert found[key_of(255)].attempts["9-dd"][0] == found[key_of(255)].nbytes == 10
    assert all(one.nbytes >= 4000 for one in found.values() if one.is_committed)
    commits = store.commits([*found, "abcdef"])
    assert {key: commit.attempt for key, commit in commits.items()} == {
        key_of(number): f"{number}-aa" for number in range(5)
    }
    store.remove_attempt(key_of(255), "9-dd")
    assert key_of(255) not in {one.key for one in store.inventory()}


def test_files_are_created_once_replaced_and_removed(url):
    files = open_files(url)
    assert files.create("leases/x", b"first")
    assert not files.create("leases/x", b"second")
    assert not files.create("leases/x", b"first")
    assert files.read("", ["leases/x", "none"])[0].tobytes() == b"first"
    files.replace("leases/x", b"third")
    assert not files.remove_same("leases/x", b"first")
    assert files.read("leases", ["none", "x"])[0] is None
    assert files.read("leases", ["none", "x"])[1].tobytes() == b"third"
    assert files.remove_same("leases/x", b"third")
    assert not files.remove_same("leases/x", b"third")
    assert list(files.entries("leases")) == []


def test_file_above_its_bound_is_unreadable_an_empty_file_is_not(url):
    files = open_files(url)
    for name, content in (("empty", b""), ("exact", b"12345"), ("large", b"123456")):
        assert files.create(f"a/{name}", content)
    bounds = dict.fromkeys(("empty", "exact", "large"), 5)
    empty, exact, large = files.read("a", list(bounds), most=bounds)
    assert (empty.size, exact.tobytes()) == (0, b"12345")
    assert large == Unreadable.large(5, b"123456")
    assert files.read("a", ["large"])[0].tobytes() == b"123456"
    assert not files.remove_same("a/large", large), "with its usual bound it can be read"


def test_many_files_are_written_read_and_removed(url):
    files = open_files(url)
    content = {f"{number:03}": [np.full(number, number, np.uint8)] * 2 for number in range(1, 90)}
    files.write("a/b", content)
    read = files.read("a/b", list(content))
    assert [one.tobytes() for one in read] == [bytes([n]) * 2 * n for n in range(1, 90)]
    sizes = {entry.path: entry.nbytes for entry in files.entries("a")}
    assert sizes == {f"a/b/{number:03}": 2 * number for number in range(1, 90)}
    assert all(abs(entry.modified - time.time()) < 300 for entry in files.entries("a"))
    files.remove_files(["a/b/none", *(f"a/b/{number:03}" for number in range(2, 90))])
    assert [entry.path for entry in files.entries("a")] == ["a/b/001"]
    files.remove("a/b")
    files.remove("a/b")
    assert list(files.entries("a")) == []


class Interleaved(dict):
    """Files in memory; after the first one, a listing of them lets another thread write."""

    def __init__(self, files, write):
        super().__init__(files)
        self._writes = [write]

    def items(self):
        return self._interrupted(super().items())

    def __iter__(self):
        return self._interrupted(super().__iter__())

    def _interrupted(self, files):
        for file in files:
            yield file
            if self._writes:
                self._writes.pop()()


class AnnouncingLock:
    """A lock that announces a thread that must wait for it."""

    def __init__(self):
        self._lock = threading.RLock()
        self.announced = threading.Event()

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self.announced.set()
            self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


@pytest.mark.parametrize("operation", ["write", "create", "replace", "remove"])
def test_memory_listing_while_others_write_is_whole(operation):
    system = MemoryFileSystem(skip_instance_cache=True)
    system.store, system.pseudo_dirs = {}, [""]
    files = ObjectFiles(system, "/store")
    lock = files.alone = AnnouncingLock()
    for name in ("a", "b", "c"):
        files.replace(f"old/{name}", b"1")
    change = {
        "write": lambda: files.write("new", {"d": [np.zeros(1, np.uint8)]}),
        "create": lambda: files.create("new/d", b"1"),
        "replace": lambda: files.replace("new/d", b"1"),
        "remove": lambda: files.remove_files(["old/c"]),
    }[operation]

    def changed():
        change()
        lock.announced.set()  # it did not wait

    other = threading.Thread(target=changed)

    def write():
        other.start()
        assert lock.announced.wait(PATIENCE)

    system.store = Interleaved(system.store, write)
    assert [entry.path for entry in files.entries("old")] == ["old/a", "old/b", "old/c"]
    other.join(PATIENCE)
    system.store = dict(system.store)
    after = {"old/a", "old/b"} | ({"old/c"} if operation != "remove" else set())
    assert {entry.path for entry in files.entries("old")} == after


class Remote(MemoryFileSystem):
    """A store that is not in memory, as far as `ObjectFiles` can tell."""

    protocol = "remote"
    cachable = False

    def __init__(self):
        super().__init__()
        self.store, self.pseudo_dirs = {}, [""]
        self.meeting = None
        self.listed = []

    def find(self, path, **options):
        """List the files below a folder, and note the folder."""
        self.listed.append(path)
        return super().find(path, **options)

    def cat_file(self, path, **options):
        """Read a file; wait until another thread reads one, too, if they are to meet."""
        if self.meeting is not None:
            self.meeting.wait(PATIENCE)
        return super().cat_file(path, **options)


def test_files_of_a_remote_store_are_read_at_a_time():
    system = Remote()
    files = ObjectFiles(system, "/store")
    files.replace("a/1", b"x")
    files.replace("a/2", b"y")
    system.meeting = threading.Barrier(2)
    assert [one.tobytes() for one in files.read("a", ["1", "2"])] == [b"x", b"y"]


@pytest.mark.parametrize(
    ("page", "folders", "together"),
    [(6, 3, True), (5, 3, False)],
)
def test_large_folders_are_listed_one_by_one(page, folders, together):
    system = Remote()
    files = ObjectFiles(system, "/store", threads=2, page=page)
    names = [f"a/{part}/{number}" for part in range(folders) for number in range(3)]
    for name in names:
        files.replace(name, b"")
    assert sorted(entry.path for entry in files.entries("a")) == names
    one_by_one = [f"/store/a/{part}" for part in range(folders)]
    assert sorted(system.listed) == (["/store/a", "/store/a/0"] if together else one_by_one)


@pytest.mark.parametrize("folders", [0, 1, 2])
def test_few_folders_are_listed_together(folders):
    system = Remote()
    files = ObjectFiles(system, "/store", threads=2, page=0)
    names = [f"a/{part}/1" for part in range(folders)] or ["a/1"]
    for name in names:
        files.replace(name, b"")
    assert sorted(entry.path for entry in files.entries("a")) == names
    once = ["/store/a"] if folders else []
    assert system.listed == once, "without folders the first look is all"


# What only servers have.


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("url", [one for one in KINDS if one != "memory"], indirect=True)
def test_forked_process_uses_open_and_new_stores(store):
    save(store, 1)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def use():
        save(CheckpointStore(store.url), 2, key="f0aa")
        answers.put(store.load(KEY)[0]["who"])

    child = context.Process(target=use)
    child.start()
    assert answers.get(timeout=60) == 1
    child.join(60)
    assert child.exitcode == 0
    assert is_same(store.load("f0aa")[0], 2)


def test_save_find_and_load_need_no_listing(proxy, remote):
    commits = {}
    for number in range(3):
        save(remote, number, key=key_of(number))
        remote.load(key_of(number))
    commits = remote.commits([key_of(number) for number in range(6)])
    assert len(commits) == 3
    assert remote.commit_of(key_of(5)) is None
    assert not [request for request in proxy.requests if request.is_listing]
    assert not [request for request in proxy.requests if request.method == "HEAD"]


def test_remove_folder_takes_two_requests(proxy, remote):
    files = open_files(remote.url)
    files.write("a/b", {str(number): [np.zeros(1, np.uint8)] for number in range(40)})
    before = len(proxy.requests)
    files.remove("a")
    assert [request.method for request in proxy.requests[before:]] == ["GET", "POST"]
    assert list(files.entries("a")) == []


def test_large_store_is_listed_folder_by_folder(proxy, bucket):
    place = fsspec.url_to_fs(f"s3://{bucket}/tuning", use_listings_cache=False)
    files = ObjectFiles(*place, threads=4)
    names = {f"checkpoints/{part:02x}/{number}" for part in range(6) for number in range(3)}
    files.write("", {name: [np.zeros(1, np.uint8)] for name in names})
    before = len(proxy.requests)
    assert {entry.path for entry in files.entries("checkpoints")} == names
    assert len(proxy.requests) - before <= 3  # small: two looks, and one listing of all
    large, before = ObjectFiles(*place, threads=4, page=4), len(proxy.requests)
    assert {entry.path for entry in large.entries("checkpoints")} == names
    assert len(proxy.requests) - before == 7  # the list of folders, then each of them


# The connection to the server.

FAILURES = (SLOW_DOWN, "is reset", "is cut", "loses its answer", "is torn")


def test_checkpoints_survive_a_bad_connection(proxy, bucket):
    """Every eighth request fails, each time in another way."""
    met = collections.Counter()

    def fate(request):
        if request.number % 8:
            return "passes"
        met[request.number // 8 % len(FAILURES)] += 1
        return FAILURES[request.number // 8 % len(FAILURES)]

    proxy.fate = fate
    url = f"s3://{bucket}/tuning"
    store, other = (CheckpointStore(url, Patience(first=0.01)) for _ in range(2))
    keys = [key_of(number) for number in range(10)]

    def save_and_look(number):
        """Another client sees no half checkpoint of the next writers meanwhile."""
        commit = save(store, number, key=keys[number], size=20_000)
        for later, key in enumerate(keys[number:], number):
            if other.commit_of(key) is not None:
                assert is_same(other.load(key)[0], later, 20_000)
        return commit.attempt

    with ThreadPoolExecutor(5) as pool:
        saved = list(pool.map(save_and_look, range(10)))
        loaded = list(pool.map(store.load, keys))
    assert saved == [f"{number}-aa" for number in range(10)]
    assert all(is_same(state, number, 20_000) for number, (state, _) in enumerate(loaded))
    inventory = list(store.inventory())
    assert {stored.key for stored in inventory if stored.is_committed} == set(keys)
    assert all(len(stored.attempts) == 1 for stored in inventory)
    assert len(met) == len(FAILURES)


@pytest.mark.parametrize("fate", ["is cut", "is reset", "loses its answer", SLOW_DOWN], ids=str)
def test_failed_upload_is_repeated(proxy, remote, fate):
    size = 2_000_000
    failed = []

    def fail_the_first(request):
        if request.nbytes > 1_000_000 and not failed:
            failed.append(request)
            return fate
        return "passes"

    proxy.fate = fail_the_first
    save(remote, 1, size=size)
    assert failed
    assert is_same(remote.load(KEY)[0], 1, size)


def test_torn_download_is_repeated(proxy, remote):
    size = 2_000_000
    save(remote, 1, size=size)
    before, torn = len(proxy.requests), []

    def tear_each_once(request):
        if request.target in torn:
            return "passes"
        torn.append(request.target)
        return "is torn"

    proxy.fate = tear_each_once
    assert is_same(remote.load(KEY)[0], 1, size)
    assert len(torn) >= 3
    assert len(proxy.requests) - before == 2 * len(torn)


def test_create_with_lost_answer_returns_true(proxy, bucket):
    files = open_files(f"s3://{bucket}/tuning")
    proxy.fate = lambda request: "loses its answer" if request.number == 0 else "passes"
    assert files.create("commit", b"ours")
    assert [request.method for request in proxy.requests] == ["PUT", "PUT", "HEAD"]
    assert not files.create("commit", b"ours")
    assert not files.create("commit", b"theirs")


def test_create_retried_after_another_returns_false(proxy, bucket):
    files = open_files(f"s3://{bucket}/tuning")
    assert files.create("commit", b"theirs")
    proxy.fate = lambda request: "is reset" if request.number == 1 else "passes"
    assert not files.create("commit", b"ours")
    assert files.read("", ["commit"])[0].tobytes() == b"theirs"


def test_remove_same_with_lost_answer_returns_true(proxy, bucket):
    files = open_files(f"s3://{bucket}/tuning")
    files.create("commit", b"ours")
    seen = []

    def lose_one(request):
        if request.method == "DELETE" and request.target.endswith("commit") and not seen:
            seen.append(request)
            return "loses its answer"
        return "passes"

    proxy.fate = lose_one
    assert files.remove_same("commit", b"ours")
    assert files.read("", ["commit"]) == [None]


@pytest.mark.parametrize("ignores_conditions", [False, True])
def test_remove_same_keeps_a_newer_file(proxy, bucket, server, ignores_conditions):
    files = open_files(f"s3://{bucket}/tuning")
    if ignores_conditions:
        files.removes_conditionally = lambda: False
    files.create("key/commit", b"old")
    others = other_process(server, bucket)
    if ignores_conditions:
        others.removes_conditionally = lambda: False
    seen = []

    def interleave(request):
        """Remove the version that another process has replaced just before."""
        if request.method == "DELETE" and request.target.endswith("key/commit") and not seen:
            seen.append(others.remove_same("key/commit", b"old"))
            seen.append(others.create("key/commit", b"new"))
        return "passes"

    proxy.fate = interleave
    files.remove_same("key/commit", b"old")
    assert seen, "the files must be removed by a request of its own"
    kept = files.read("key", ["commit"])[0]
    assert seen[1] == (kept is not None), "a file whose creation succeeded is there"


@pytest.mark.parametrize(
    "refusal",
    [answer(500, "InternalError"), answer(429, "TooManyRequests"), answer(502, ""), "is reset"],
    ids=lambda fate: str(fate)[:20],
)
def test_passing_failures_are_retried(proxy, bucket, refusal):
    files = open_files(f"s3://{bucket}/tuning")
    proxy.fate = lambda request: refusal if request.number < 3 else "passes"
    files.replace("file", b"content")
    assert len(proxy.requests) == 4


LASTING = {
    "denied": (answer(403, "AccessDenied"), r"access to bucket '\S+' is denied"),
    "expired": (answer(400, "ExpiredToken"), "the credentials have expired"),
    "region": (
        answer(400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"),
        r"bucket '\S+' is in region eu-west-1: set AWS_DEFAULT_REGION=eu-west-1",
    ),
    "redirect": (
        answer(301, "PermanentRedirect", "", "x-amz-bucket-region: eu-north-1"),
        r"bucket '\S+' is in region eu-north-1: set AWS_DEFAULT_REGION=eu-north-1",
    ),
    "clock": (answer(403, "RequestTimeTooSkewed"), "the clock of this machine"),
}


@pytest.mark.parametrize(("refusal", "message"), LASTING.values(), ids=LASTING)
def test_lasting_failures_are_errors_at_once(proxy, remote, refusal, message):
    proxy.fate = lambda request: refusal
    with pytest.raises(StorageError, match=f"cannot write to {remote.url}: {message}"):
        remote.check()
    # One request; two more where botocore looks for the region by itself.
    assert len(proxy.requests) <= 3
    with pytest.raises(StorageError, match=message):
        remote.commit_of(KEY)


def test_missing_bucket_is_an_error_of_every_operation(server):
    store = CheckpointStore("s3://no-such-bucket-here/tuning")
    uses = [
        store.check,
        lambda: save(store, 1),
        lambda: store.load(KEY),
        lambda: list(store.keys()),
    ]
    uses += [lambda: store.discard(KEY), lambda: store.remove_attempt(KEY, "1-aa")]
    for use in uses:
        with pytest.raises(StorageError, match="bucket 'no-such-bucket-here' does not exist"):
            use()


@pytest.mark.ceph
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("AWS_ACCESS_KEY_ID", "the access key is not known to the store"),
        ("AWS_SECRET_ACCESS_KEY", "the secret key does not belong to the access key"),
    ],
)
def test_wrong_credentials_are_an_error_and_hidden(ceph, point_at, name, message):
    point_at(ceph, **{name: "wrong-and-not-to-be-seen"})
    with pytest.raises(StorageError, match=message) as caught:
        CheckpointStore(f"s3://{ceph.create_bucket()}/tuning").check()
    assert "not-to-be-seen" not in str(caught.value)


@pytest.mark.s3
def test_missing_credentials_are_an_error(moto, point_at):
    point_at(moto, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    with pytest.raises(StorageError, match="no credentials were found for it"):
        CheckpointStore("s3://bucket/tuning").check()


@pytest.mark.parametrize("server", SERVERS[:1], indirect=True)
def test_silent_store_is_an_error_in_time(proxy, remote):
    hasty = replace(CHECK_PATIENCE, seconds=1.0, request=1.0)
    proxy.fate = lambda request: "is swallowed"
    with pytest.raises(StorageError, match=f"cannot write to {remote.url}: the store did not answ"):
        remote.check(patience=hasty)
    # No request, if the time was over before the first was sent.
    assert len(proxy.requests) <= 1, "there is no retry after the time of one request"


@pytest.mark.parametrize("server", SERVERS[:1], indirect=True)
def test_unreachable_store_is_an_error_in_time(server, point_at, remote):
    slept = []
    patience = replace(CHECK_PATIENCE, clock=lambda: sum(slept), sleep=slept.append)
    point_at(server, 1)
    with pytest.raises(StorageError, match="Could not connect to the endpoint"):
        CheckpointStore(remote.url).check(patience=patience)
    assert 0 < sum(slept) < 10


def test_store_that_overwrites_on_create_is_refused(proxy, remote):
    created = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    proxy.fate = lambda request: created if request.target.endswith("/once") else "passes"
    with pytest.raises(StorageError, match="it does not refuse to create a file that exists"):
        remote.check()
    proxy.fate = proxy.PASSES
    assert paths(remote) == set()


# Without a server.


def test_url_with_one_slash_is_refused():
    with pytest.raises(ConfigurationError, match=r"a URL such as s3://\.\.\., got s3:/\.\.\.$"):
        open_files("s3:/key:letmein-please@bucket/x")
    assert isinstance(open_files("runs:/x"), LocalFiles)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:letmein-please@bucket/tuning",
        "s3://AKIAKEY:let/me/in-please@bucket/tuning",
        "s3://letmein-please@bucket",
        "abfs://ann:letmein-please@account/container",
        "memory://ann:letmein-please@x",
    ],
)
def test_url_with_password_is_refused_and_hidden(url):
    with pytest.raises(ConfigurationError, match="storage must not name a user or password") as it:
        CheckpointStore(url)
    assert "letmein" not in str(it.value)
    assert "in-please" not in str(it.value)
    assert "AWS_SECRET_ACCESS_KEY" in str(it.value)


class LooksFirst(fsspec.AbstractFileSystem):
    """Creates files only as its base class does: it looks, then writes."""

    protocol = "looks-first"


def test_protocol_without_create_if_absent_is_refused():
    fsspec.register_implementation("looks-first", LooksFirst, clobber=True)
    message = "looks-first cannot create a file only if it is absent"
    with pytest.raises(StorageError, match=message):
        open_files("looks-first://place/tuning")


@pytest.mark.parametrize("url", ["simplecache::s3://bucket/x", "zip://x::s3://bucket/y.zip"])
def test_a_cache_before_a_store_is_refused(url):
    with pytest.raises(StorageError, match="a cache or archive before a store shows old files"):
        open_files(url)


def test_user_configuration_of_s3_comes_first(monkeypatch):
    chosen = {"config_kwargs": {"read_timeout": 99}, "max_concurrency": 7}
    monkeypatch.setitem(fsspec.config.conf, "s3", chosen)
    system = open_files("s3://bucket/tuning").system
    assert system.config_kwargs["read_timeout"] == 99
    assert system.config_kwargs["connect_timeout"] == 5
    assert system.max_concurrency == 7


def test_only_s3_gets_options(monkeypatch):
    monkeypatch.setattr(fsspec.config, "conf", {"s3": {"anon": True}, "gs": {"token": "anon"}})
    assert options_of("gs") == options_of("abfs") == {}
    for protocol in ("s3", "s3a"):
        options = options_of(protocol)
        assert (options["anon"], options["max_concurrency"]) == (True, 1)
        assert options["config_kwargs"]["retries"]["total_max_attempts"] == 1


@pytest.mark.parametrize(
    ("item", "modified"),
    [
        ({"LastModified": datetime.fromtimestamp(5.5, UTC), "mtime": 7.0}, 5.5),
        ({"LastModified": None, "mtime": 7}, 7.0),
        ({"updated": "yesterday", "last_modified": datetime.fromtimestamp(8, UTC)}, 8.0),
        ({"created": 9.0}, 9.0),
        ({"name": "x"}, 0.0),
    ],
)
def test_time_of_a_file_is_found_under_each_name(item, modified):
    assert modified_of(item) == modified


class Gateway(fsspec.AbstractFileSystem):
    """Refuses as one S3 gateway does: by a bare OSError with a cause."""

    protocol = "gateway"

    def __init__(self, code):
        super().__init__()
        self.code = code

    def pipe_file(self, path, value, mode="overwrite", **options):
        refused = OSError(22, "refused")
        refused.__cause__ = RuntimeError()
        refused.__cause__.response = {"Error": {"Code": self.code}}
        raise refused


class OwnRetries(Gateway):
    """Has an attribute of the name that s3fs has, with its own meaning."""

    retries = 6


class OwnRetriesOfS3(OwnRetries):
    def call_s3(self):
        """Mark this as s3fs."""


def test_only_retries_of_s3fs_are_switched_off():
    assert ObjectFiles(OwnRetries("SlowDown"), "bucket").system.retries == 6
    assert ObjectFiles(OwnRetriesOfS3("SlowDown"), "bucket").system.retries == 1


class Asynchronous(fsspec.AbstractFileSystem):
    """Keeps the time limit of each request."""

    protocol = "asynchronous"
    cachable = False
    async_impl = True

    def __init__(self):
        super().__init__()
        self.limits = []

    def pipe_file(self, path, value, mode="overwrite", timeout=None):
        self.limits.append(timeout)


@pytest.mark.parametrize(("request_seconds", "limit"), [(None, 30.0), (3.0, 3.0)])
def test_each_request_has_a_time_limit(request_seconds, limit):
    system = Asynchronous()
    files = ObjectFiles(system, "bucket", patience=Patience(request=request_seconds))
    files.replace("commit", b"")
    files.create("commit", b"")
    assert system.limits == [limit, limit]


def test_create_understands_the_refusal_of_gateways():
    assert ObjectFiles(Gateway("PreconditionFailed"), "bucket").create("commit", b"") is False
    with pytest.raises(OSError, match="access to bucket 'bucket' is denied"):
        ObjectFiles(Gateway("AccessDenied"), "bucket").create("commit", b"")


def test_retries_are_logged_at_info(caplog):
    caplog.set_level(logging.INFO, "dasktune.storage.retrying")
    patience = Patience(seconds=5, sleep=lambda seconds: None, clock=itertools.count().__next__)
    with pytest.raises(OSError, match="refused"):
        ObjectFiles(Gateway("SlowDown"), "bucket", patience=patience).replace("commit", b"")
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert "store failed, next try in" in caplog.text
