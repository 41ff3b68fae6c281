"""The web server of the page: static files for everyone, data for requests with the token."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.web import Application, HTTPError, RequestHandler

from dasktune._dashboard.access import HEADER, Access
from dasktune._dashboard.changes import CHANGES
from dasktune._dashboard.connections import LimitedServer, OpenConnections, counted_logs
from dasktune._dashboard.files import KINDS, bokeh_files, page_files
from dasktune._dashboard.studies import Stores, Studies
from dasktune._dashboard.study_view import json_of
from dasktune._dashboard.trial_table import split_numbers
from dasktune._engine.timeouts import PAGE_BODY_SECONDS, PAGE_IDLE_SECONDS
from dasktune.errors import ConfigurationError, DasktuneError
from dasktune.storage.redaction import redacted

logger = logging.getLogger(__name__)

THREADS = 4
"""Threads that read the database for requests."""

QUICK = ("overview", "trials", "curves", "trial", "points", "pending")
"""Answers about a study that take well below a second."""

SLOW = ("importance", "tree", "lineage", "prediction")
"""Answers that may take seconds to compute in a large study."""

SLOW_THREADS = 2
"""Threads of their own for slow answers: however many are asked for, the others have threads."""

MOST_NUMBER = 999_999_999
"""The largest number in a request: larger ones do not fit into the database."""

MOST_NBYTES = 100_000
"""The largest request."""

MOST_HEADER_NBYTES = 16_000
"""The largest headers of a request."""

AN_HOUR = "public, max-age=3600"

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
"""The content security policy: no code from elsewhere, no connection to elsewhere."""


class _Handler(RequestHandler):
    """Checks the name of the host, and sets the headers of every answer."""

    def initialize(self, access: Access, **more: Any) -> None:
        self.access = access
        for name, value in more.items():
            setattr(self, name, value)

    def set_default_headers(self) -> None:
        self.set_header("Server", "dasktune")
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> None:
        if not self.access.is_host_known(self.request.headers.get("Host", "")):
            raise HTTPError(403, reason="this name of the host is not known")

    def write_error(self, status_code: int, **more: Any) -> None:
        error = more.get("exc_info", (None, None, None))[1]
        expected = isinstance(error, DasktuneError)
        text = redacted(str(error)) if expected else self._reason
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"error": text}))

    def log_exception(self, kind: Any, value: Any, trace: Any) -> None:
        if not isinstance(value, HTTPError | DasktuneError):
            logger.error("the page could not be served", exc_info=(kind, value, trace))


class _PageFile(_Handler):
    """A file of the page, for everyone: it is the same for all studies."""

    path_of: Callable[[str], Path | None]

    def get(self, name: str = "index.html") -> None:
        path = self.path_of(name or "index.html")
        if path is None or path.suffix not in KINDS:
            raise HTTPError(404)
        self.set_header("Content-Type", f"{KINDS[path.suffix]}; charset=utf-8")
        if name.startswith("bokeh"):
            self.set_header("Cache-Control", AN_HOUR)
        self.finish(path.read_bytes())


class _Data(_Handler):
    """An answer with data, computed in a thread."""

    studies: Studies | Stores
    pool: ThreadPoolExecutor
    slow_pool: ThreadPoolExecutor

    def prepare(self) -> None:
        super().prepare()
        if not self.access.is_token(self.request.headers.get(HEADER, "")):
            raise HTTPError(401, reason="the token is missing or wrong")
        if isinstance(self.request.connection, HTTP1Connection):
            self.settings["connections"].trust(self.request.connection.stream)

    async def get(self, name: str, study: str = "") -> None:
        await self._finish(self.slow_pool if name in SLOW else self.pool, self._answer, name, study)
        if name == "trials":  # the first part that a reader sees is there now
            self.studies.prepare(self.slow_pool, int(study))

    async def _finish(
        self, pool: ThreadPoolExecutor, work: Callable[..., str], *arguments: str
    ) -> None:
        """Send the JSON document that `work` returns in a thread."""
        try:
            content = await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
        except ConfigurationError as error:
            self.set_status(400)
            content = json.dumps({"error": redacted(str(error))})
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(content)

    def _answer(self, name: str, study: str) -> str:
        """Return the JSON document of an answer."""
        if name == "studies":
            return json_of(self.studies.listing())
        view = self.studies.view(int(study))
        answer: object
        match name:
            case "overview":
                answer = view.overview()
            case "trials":
                answer = view.trials(self._number("since", 0))
            case "curves":
                metric = self.get_query_argument("metric", "")
                answer = view.curves(metric, self._numbers("trials"))
            case "trial":
                answer = view.trial(self._number("number", 0))
            case "lineage":
                answer = view.lineage(self._number("number", 0), self.studies.views())
            case "prediction":
                answer = view.prediction(self._number("number", 0))
            case "tree":
                answer = view.tree()
            case "points":
                answer = view.points()
            case "importance":
                answer = view.importance()
            case "pending":
                is_allowed = self.studies.changes_of(int(study)) is not None
                answer = {"is_allowed": is_allowed, **view.pending()}
            case _:
                raise HTTPError(404)
        return json_of(answer)

    def _number(self, name: str, default: int) -> int:
        text = self.get_query_argument(name, str(default))
        if not text.isdecimal():
            raise ConfigurationError(f"{name} must be a number >= 0, got {text[:20]!r}")
        if len(text) > len(str(MOST_NUMBER)):
            raise ConfigurationError(f"{name} must be <= {MOST_NUMBER}, got {text[:20]}")
        return int(text)

    def _numbers(self, name: str) -> Sequence[int]:
        text = self.get_query_argument(name, "")
        try:
            return split_numbers(text)
        except ValueError:
            problem = f"{name} must be numbers >= 0 with commas, got {text[:20]!r}"
            raise ConfigurationError(problem) from None


class _ChangeHandler(_Data):
    """A change that the page asks for: only from this page itself, and only if allowed."""

    def prepare(self) -> None:
        super().prepare()
        headers = self.request.headers
        if not self.access.is_own_page(headers.get("Origin", ""), headers.get("Host", "")):
            raise HTTPError(403, reason="changes are taken from this page alone")
        if self.studies.changes is None:
            raise HTTPError(403, reason="this page is read-only; --allow-changes starts another")

    async def get(self, name: str, study: str = "") -> None:
        raise HTTPError(405)

    async def post(self, name: str, study: str) -> None:
        await self._finish(self.slow_pool, self._made, name, study)

    def _made(self, name: str, study: str) -> str:
        changes = self.studies.changes_of(int(study))
        if changes is None:
            raise HTTPError(403)
        try:
            document = json.loads(self.request.body or b"{}")
        except (RecursionError, ValueError):
            raise ConfigurationError("a change must be a JSON object") from None
        view = self.studies.view(int(study))
        words = changes.make(name, view.row, document)
        return json_of({"said": words})


def application(studies: Studies | Stores, access: Access) -> Application:
    """Return the application that serves studies."""
    known = page_files() | bokeh_files()
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="page")
    slow_pool = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="slow-page")
    data = {"access": access, "studies": studies, "pool": pool, "slow_pool": slow_pool}
    file = {"access": access, "path_of": known.get}
    numbered = "|".join([*QUICK, *SLOW])
    return Application(
        [
            (r"/api/(studies)", _Data, data),
            (rf"/api/({numbered})/(\d{{1,9}})", _Data, data),
            (rf"/api/change/({'|'.join(CHANGES)})/(\d{{1,9}})", _ChangeHandler, data),
            (r"/([\w.-]*)", _PageFile, file),
        ],
        compress_response=True,
        log_function=lambda handler: None,
        connections=OpenConnections(),
    )


def listen(application: Application, port: int = 0) -> tuple[LimitedServer, int]:
    """Listen on loopback; return the server and its port.

    Parameters
    ----------
    port
        The port; 0 takes any that is free.

    Raises
    ------
    ConfigurationError
        If the port is taken.
    """
    try:
        # Tornado's bind_sockets leaves its socket open where the port is taken.
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigurationError(f"--port {port} cannot be used: {error.strerror}") from None
    server = LimitedServer(
        application,
        max_header_size=MOST_HEADER_NBYTES,
        max_body_size=MOST_NBYTES,
        max_buffer_size=MOST_NBYTES,
        idle_connection_timeout=PAGE_IDLE_SECONDS,
        body_timeout=PAGE_BODY_SECONDS,
    )
    server.connections = application.settings["connections"]
    listener.setblocking(False)
    server.add_socket(listener)
    return server, int(listener.getsockname()[1])


async def serve(
    studies: Studies | Stores, access: Access, *, port: int, on_address: Callable[[str], None]
) -> None:
    """Serve studies until the task is cancelled.

    Parameters
    ----------
    studies, access
        What is served, and to whom.
    port
        The port; 0 takes any that is free.
    """
    server, bound = listen(application(studies, access), port)
    on_address(access.address(bound, studies.first))
    try:
        with counted_logs():
            await asyncio.Event().wait()
    finally:
        server.stop()
        await server.close_all_connections()
