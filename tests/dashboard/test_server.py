"""The server: who is answered, what is answered, and what is refused."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from dasktune._dashboard.access import HEADER, Access
from dasktune._dashboard.changes import StudyChanges
from dasktune._dashboard.server import SLOW_THREADS, THREADS, serve
from dasktune._dashboard.studies import NUMBERS, Stores, Studies
from dasktune._dashboard.study_view import StudyView
from dasktune.errors import ConfigurationError
from dasktune.storage.database.database import Database
from tests.holding import wait_until

from .made_study import Made, made_database

TOKEN = "the-right-token"


class Client:
    """Asks a server that runs in a thread of this process."""

    def __init__(self, port: int) -> None:
        self.port = port

    def change(self, name: str, document: object, **headers: str) -> tuple[int, str]:
        """Return the status of the answer to a POST, and its words."""
        host = f"127.0.0.1:{self.port}"
        sent = {HEADER: TOKEN, "Origin": f"http://{host}", **headers}
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("POST", f"/api/change/{name}", json.dumps(document), sent)
            answer = connection.getresponse()
            said = json.loads(answer.read())
            return answer.status, said.get("said") or said["error"]

    def ask(self, path: str, *, host: str = "", token: str | None = TOKEN) -> HTTPResponse:
        """Return the answer to a GET; its body is read."""
        headers = {"Host": host or f"127.0.0.1:{self.port}"}
        if token is not None:
            headers[HEADER] = token
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.body = answer.read()  # type: ignore[attr-defined]
            return answer

    def json(self, path: str) -> Any:
        """Return the document of an answer."""
        return json.loads(self.ask(path).body)  # type: ignore[attr-defined]


@contextmanager
def serving_in_a_thread(file: Path, changes: StudyChanges | None = None) -> Iterator[Client]:
    """Serve a database meanwhile."""
    database = Database(file, create=False, reads_only=True)
    addresses: list[str] = []
    loop = asyncio.new_event_loop()
    studies = Studies(database, changes=changes)
    serving = serve(studies, Access(token=TOKEN), port=0, on_address=addresses.append)
    task = loop.create_task(serving)

    def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: addresses)
    assert addresses[0].startswith("http://127.0.0.1:")
    assert addresses[0].endswith(f"/#token={TOKEN}")
    yield Client(int(addresses[0].split(":")[2].split("/")[0]))
    loop.call_soon_threadsafe(task.cancel)
    thread.join()
    database.close()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("made")
    file = made_database(folder, made=Made(trials=40, fails_every=10, running=2), other=Made())
    with serving_in_a_thread(file) as made:
        yield made


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Client]:
    """Return a client of a server that takes changes."""
    file = made_database(tmp_path, made=Made(trials=20, fails_every=10))
    with serving_in_a_thread(file, StudyChanges(str(file))) as made:
        yield made


STRANGE = ["evil.example", "127.0.0.1.evil.example:80", "127.0.0.1:99999999", "127.0.0.1:x", "["]
DATA = [
    "/api/studies",
    "/api/overview/1",
    "/api/trials/1",
    "/api/curves/1",
]


@pytest.mark.parametrize("path", DATA)
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1]])
def test_data_needs_the_token(client: Client, path: str, token: str | None) -> None:
    answer = client.ask(path, token=token)
    assert answer.status == 401
    assert json.loads(answer.body) == {"error": "the token is missing or wrong"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", STRANGE)
@pytest.mark.parametrize("path", ["/", "/main.js", "/api/studies"])
def test_a_strange_host_is_refused(client: Client, host: str, path: str) -> None:
    assert client.ask(path, host=host).status == 403


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:8000"])
def test_a_tunnel_may_have_another_port(client: Client, host: str) -> None:
    assert client.ask("/api/studies", host=host).status == 200


def test_files_need_no_token_and_hold_no_data(client: Client) -> None:
    for path in ("/", "/main.js", "/dashboard.css", "/marks.css", "/bokeh.min.js"):
        answer = client.ask(path, token=None)
        assert answer.status == 200
        assert b"made" not in answer.body or path == "/bokeh.min.js"  # type: ignore[attr-defined]
        assert "default-src 'none'" in str(answer.getheader("Content-Security-Policy"))
        assert answer.getheader("Access-Control-Allow-Origin") is None


@pytest.mark.parametrize("path", ["/nothing.js", "/../server.py", "/%2e%2e/server.py", "/api/x/1"])
def test_other_paths_are_not_there(client: Client, path: str) -> None:
    assert client.ask(path).status == 404


def test_studies_are_listed(client: Client) -> None:
    listed = client.json("/api/studies")["studies"]
    assert {each["study"]: sum(each["trials"].values()) for each in listed} == {
        "made": 40,
        "other": 40,
    }


def test_overview_has_the_status_and_the_users_line(client: Client) -> None:
    overview = client.json("/api/overview/1")
    assert overview["trials"] == {"COMPLETE": 35, "FAIL": 3, "RUNNING": 2}
    rows = client.json("/api/trials/1")["rows"]
    valued = [cells for cells in rows if cells[3] is not None]
    assert overview["best"]["number"] == min(valued, key=lambda cells: cells[3])[0]
    (failure,) = overview["failures"]
    assert failure["trials"] == [9, 19, 29]
    assert failure["frames"].startswith('File "/home/ann/tune.py", line 12, in train\n')
    assert overview["driver"] is None


def test_trials_are_sent_once(client: Client) -> None:
    trials = client.json("/api/trials/1")
    assert [cells[0] for cells in trials["rows"]] == list(range(40))
    assert trials["columns"][:4] == ["number", "state", "steps", "loss"]
    assert trials["rows"][9][:4] == [9, "FAIL", 20, None]
    assert client.json(f"/api/trials/1?since={trials['version']}")["rows"] == []


def test_a_wrong_question_is_answered_with_what_must_hold(client: Client) -> None:
    for path, text in [
        ("/api/trials/1?since=-1", "since must be a number >= 0, got '-1'"),
        ("/api/curves/1?trials=77", "there is no trial 77"),
        ("/api/curves/1?trials=1,x", "trials must be numbers >= 0 with commas, got '1,x'"),
        (f"/api/trial/1?number={10**20}", "number must be <= 999999999, got 1000"),
        (f"/api/trial/1?number={'9' * 5000}", "number must be <= 999999999, got 9999"),
        ("/api/overview/9", "unknown study '9'; known: 1, 2"),
    ]:
        answer = client.ask(path)
        assert answer.status == 400
        assert text in json.loads(answer.body)["error"]  # type: ignore[attr-defined]


def test_slow_answers_leave_threads_for_others(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, entered = threading.Event(), threading.Semaphore(0)

    def held(self: StudyView) -> dict[str, object]:
        entered.release()
        assert end.wait(60)
        return {}

    monkeypatch.setattr(StudyView, "importance", held)
    paths = ["/api/importance/1"] * (THREADS + 2)
    askers = [threading.Thread(target=client.ask, args=(path,)) for path in paths]
    for asker in askers:
        asker.start()
    try:
        for _ in range(SLOW_THREADS):
            assert entered.acquire(timeout=30)
        assert client.ask("/api/overview/1").status == 200
    finally:
        end.set()
        for asker in askers:
            asker.join()


def test_only_one_study_can_be_shown(tmp_path: Path) -> None:
    file = made_database(tmp_path, first=Made(trials=2), second=Made(trials=3))
    with closing(Database(file, create=False)) as database:
        listed = Studies(database, "second").listing()["studies"]
        assert [each["study"] for each in listed] == ["second"]  # type: ignore[attr-defined]
        with pytest.raises(ConfigurationError, match="unknown study '1'"):
            Studies(database, "second").view(1)
        with pytest.raises(ConfigurationError, match="unknown study 'third'; known: first, second"):
            Studies(database, "third")


def test_studies_of_several_stores_have_numbers_of_their_own(tmp_path: Path) -> None:
    with ExitStack() as stack:
        parts = []
        for place, names in enumerate((["one", "two"], ["two"])):
            folder = tmp_path / str(place)
            folder.mkdir()
            file = made_database(folder, **dict.fromkeys(names, Made(trials=4)))
            database = Database(file, create=False, reads_only=True)
            stack.callback(database.close)
            parts.append(Studies(database, offset=place * NUMBERS))
        stores = Stores(parts)
        listed: Any = stores.listing()["studies"]
        places = {
            (each["id"], each["study"], Path(each["database"]).parent.name) for each in listed
        }
        assert places == {(1, "one", "0"), (2, "two", "0"), (NUMBERS + 1, "two", "1")}
        view = stores.view(NUMBERS + 1)
        assert view.database is parts[1].database
        trial: Any = view.trial(1)
        assert {stage["study_id"] for stage in trial["stages"]} == {NUMBERS + 1}
        shared: Any = view.lineage(1, stores.views())
        assert {user["study_id"] for user in shared["users"]} >= {NUMBERS + 1}
        for number in (NUMBERS + 2, 2 * NUMBERS + 1, 3):
            with pytest.raises(ConfigurationError, match="study"):
                stores.view(number)


def test_the_database_is_only_read(tmp_path: Path) -> None:
    file = made_database(tmp_path, made=Made(trials=4))
    before = file.read_bytes()
    with closing(Database(file, create=False)) as database:
        view = Studies(database).view(1)
        view.overview(), view.curves(""), view.trials(), view.tree()
    assert file.read_bytes() == before


def test_a_page_without_changes_is_read_only(client: Client) -> None:
    status, words = client.change("retry/1", {})
    assert (status, words) == (403, "this page is read-only; --allow-changes starts another")
    assert client.json("/api/pending/1")["is_allowed"] is False


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({HEADER: "wrong"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
    ],
)
def test_changes_of_other_pages_are_refused(
    changing: Client, headers: dict[str, str], status: int
) -> None:
    assert changing.change("retry/1", {}, **headers)[0] == status
    assert changing.json("/api/pending/1")["retry"] == []
    assert changing.ask("/api/change/retry/1").status in (403, 405)


def test_failed_trials_wait_for_the_next_run(changing: Client) -> None:
    status, words = changing.change("retry/1", {"trials": [9]})
    assert (status, words) == (200, "The next run trains 1 failed trial again.")
    assert changing.json("/api/pending/1")["retry"] == [9]
    assert changing.change("retry/1", {})[1] == "The next run trains 2 failed trials again."
    assert changing.json("/api/pending/1")["retry"] == [9, 19]


def test_a_queued_trial_waits_and_can_be_forgotten(changing: Client) -> None:
    assert changing.change("enqueue/1", {"params": {"lr": 0.05, "batch": 64}})[0] == 200
    assert changing.json("/api/pending/1")["queued"] == [{"lr": 0.05, "batch": 64}]
    assert changing.change("unqueue/1", {})[0] == 200
    assert changing.json("/api/pending/1")["queued"] == []


@pytest.mark.parametrize(
    ("name", "document", "words"),
    [
        ("retry/1", {"trials": [3]}, "trial 3 must have failed to be trained again, it is COMPLE"),
        ("retry/1", {"trials": [77]}, "there is no trial 77"),
        ("retry/1", {"trials": "all"}, "trials must be a list of numbers, got 'all'"),
        ("retry/1", {"trial": 9}, "unknown field of retry 'trial'; "),
        ("retry/1", [9], "a change must be a JSON object, got [9]"),
        ("enqueue/1", {"params": {"lrr": 1}}, "unknown coordinate 'lrr'; "),
        ("enqueue/1", {"params": {"lr": 1}}, "lr must be a number from 0.001 to 0.1, got 1"),
        ("enqueue/1", {"params": {"batch": "64"}}, "batch must be one of 16, 32, 64, 128, got '64"),
        ("enqueue/1", {"params": {}}, "a queued trial must have at least one value, got none"),
        ("enqueue/1", {"params": [1]}, "params must be values by name, got [1]"),
        ("stop/1", {}, "study 'made' must run to be stopped; it never did"),
        ("stop/9", {}, "unknown study '9'"),
    ],
)
def test_a_wrong_change_says_what_must_hold(
    changing: Client, name: str, document: object, words: str
) -> None:
    status, said = changing.change(name, document)
    assert status == 400
    assert said.startswith(words)
