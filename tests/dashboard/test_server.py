"""The server: who is answered, what is answered, and what is refused."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from dasktune.dashboard.access import HEADER, Access
from dasktune.dashboard.server import SLOW_THREADS, THREADS, Studies, serve
from dasktune.dashboard.study_view import StudyView
from dasktune.errors import ConfigurationError
from dasktune.storage.database.database import Database
from tests.holding import wait_until

from .made_study import Made, made_database

TOKEN = "the-right-token"


class Client:
    """Asks a server that runs in a thread of this process."""

    def __init__(self, port: int) -> None:
        self.port = port

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


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("made")
    file = made_database(folder, made=Made(trials=40, fails_every=10, running=2), other=Made())
    database = Database(file, create=False)
    addresses: list[str] = []
    loop = asyncio.new_event_loop()
    serving = serve(Studies(database), Access(token=TOKEN), port=0, on_address=addresses.append)
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


DATA = [
    "/api/studies",
    "/api/overview/1",
    "/api/history/1",
    "/api/trials/1",
    "/api/curves/1",
    "/api/csv/1",
]


@pytest.mark.parametrize("path", DATA)
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1]])
def test_data_needs_the_token(client: Client, path: str, token: str | None) -> None:
    answer = client.ask(path, token=token)
    assert answer.status == 401
    assert json.loads(answer.body) == {"error": "the token is missing or wrong"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "["])
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
    first = client.json("/api/trials/1?sort=loss&limit=1")["rows"][0]
    assert overview["best"]["number"] == first[0]
    (failure,) = overview["failures"]
    assert failure["trials"] == [9, 19, 29]
    assert failure["frames"].startswith('File "/home/ann/tune.py", line 12, in train\n')
    assert overview["driver"] is None


def test_history_is_incremental(client: Client) -> None:
    history = client.json("/api/history/1")
    assert history["number"] == list(range(40))
    assert history["values"][0][9] is None
    assert client.json(f"/api/history/1?since={history['version']}")["number"] == []


def test_a_wrong_question_is_answered_with_what_must_hold(client: Client) -> None:
    for path, text in [
        ("/api/trials/1?sort=nothing", "unknown column 'nothing'; known: "),
        ("/api/trials/1?offset=-1", "offset must be a number >= 0, got '-1'"),
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


def test_csv_is_the_filtered_table(client: Client) -> None:
    answer = client.ask("/api/csv/1?filter=state%3DFAIL")
    assert str(answer.getheader("Content-Type")).startswith("text/csv")
    lines = list(csv.reader(io.StringIO(answer.body.decode())))  # type: ignore[attr-defined]
    assert [line[0] for line in lines] == ["number", "9", "19", "29"]


def test_only_one_study_can_be_shown(tmp_path: Path) -> None:
    file = made_database(tmp_path, first=Made(trials=2), second=Made(trials=3))
    with closing(Database(file, create=False)) as database:
        listed = Studies(database, "second").listing()["studies"]
        assert [each["study"] for each in listed] == ["second"]  # type: ignore[attr-defined]
        with pytest.raises(ConfigurationError, match="unknown study '1'"):
            Studies(database, "second").view(1)
        with pytest.raises(ConfigurationError, match="unknown study 'third'; known: first, second"):
            Studies(database, "third")


def test_the_database_is_only_read(tmp_path: Path) -> None:
    file = made_database(tmp_path, made=Made(trials=4))
    before = file.read_bytes()
    with closing(Database(file, create=False)) as database:
        view = Studies(database).view(1)
        view.overview(), view.curves(""), view.trials(), view.csv()
    assert file.read_bytes() == before
