"""The report: the live page of a study as one file, with the answers of the server in it.

The file needs no other file and no network. It holds the page's own scripts and styles, BokehJS if
it is installed, and as JSON each answer that the page may ask for. So that the file stays small for
a large study, answers about some trials are left out, and the page says so.
"""

from __future__ import annotations

import gzip
import math
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dasktune._dashboard.attempts import attempt_bars
from dasktune._dashboard.files import bokeh_files, page_files
from dasktune._dashboard.study_view import StudyView, json_of, predicted_document
from dasktune._dashboard.tree_columns import tree_columns
from dasktune._words import counted
from dasktune.errors import ConfigurationError
from dasktune.report.costs import gather, render
from dasktune.report.notebook import page_html
from dasktune.storage.files.private import open_private
from dasktune.storage.layout import slug

SHEETS = ("marks.css", "dashboard.css")
"""The style sheets, in their order."""

PREFIX = "dasktune/"
"""The beginning of the names by which the modules in the file import each other."""

MOST_LISTED = 20_000
"""Most trials in the table and in the stage tree, the best first."""

MOST_PAGES = 200
"""Most trials with a page of their own, the best first."""

MOST_FAILED = 100
"""Most failed trials with a page of their own."""

MOST_METRICS = 20
"""Most metrics with learning curves."""

MOST_LOG = 2_000
"""Most characters of what a stage printed, from its end."""


class ReportPath(type(Path())):  # type: ignore[misc]  # before Python 3.12, Path has no subclasses
    """The path of a report; a notebook shows the page."""

    def _repr_html_(self) -> str:
        return f"{page_html(self.read_text(encoding='utf-8'))}<code>{escape(str(self))}</code>"


def write_report(study: Any, path: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of a study, and return its path.

    Parameters
    ----------
    study
        A `dasktune._study.study.Study`.
    path
        The file to write; a missing folder is created. If None, a file in a local storage, else in
        the current folder.
    """
    target = _default_path(study) if path is None else Path(path)
    # A message may hold half a surrogate pair, for example of a file's name.
    content = report_page(study).encode(errors="backslashreplace")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb", opener=open_private) as file:
            file.write(content)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ConfigurationError(f"the report must be written to a file: {error}") from error
    return ReportPath(target)


def report_page(study: Any) -> str:
    """Return the report of a study as HTML."""
    content = gather(study)
    views = {row.name: StudyView(row, study.database, math.inf) for row in study.database.studies()}
    view = views[study.name]
    predicted = [each.trial for each in content.prospects.predictions]
    answers = answers_of(view, list(views.values()), with_pages=predicted)
    number = view.row.id
    overview = answers[f"overview/{number}"]
    overview |= {name: content.summary[name] for name in ("worker_seconds", "wall_seconds")}
    answers[f"attempts/{number}"] = attempt_bars(content.stages)
    for each in content.prospects.predictions:
        document = predicted_document(each, len(view.table.entries))
        answers[f"prediction/{number}?number={each.trial}"] = document
    written = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return _filled(study.name, answers, render(content, number), written)


def answers_of(
    view: StudyView, others: Sequence[StudyView], *, with_pages: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the answers of the server that the page may ask for, by question.

    `others` are the views of all studies of the database; the trials `with_pages` have a page even
    if others are better.
    """
    study, overview, table = view.row.id, view.overview(), view.table
    ranked = sorted(table.entries.values(), key=table.rank)
    listed = sorted(entry.number for entry in ranked[:MOST_LISTED])
    failed = [entry.number for entry in ranked if entry.state == "FAIL"][:MOST_FAILED]
    best = [entry.number for entry in ranked[:MOST_PAGES]]
    pages = dict.fromkeys([*best, *failed, *with_pages])
    planned = view.planned()
    if len(listed) < len(ranked):
        known = {record.number: record for record in planned.records}
        planned = view.plan_of([known[number] for number in listed])
    answers: dict[str, Any] = {
        "studies": {"studies": [{"id": study, "study": view.row.name}]},
        "left_out": _left_out(len(pages), len(listed), len(ranked)),
        f"overview/{study}": overview,
        f"trials/{study}?since=0": table.changes(numbers=listed),
        f"points/{study}": view.points(),
        f"importance/{study}": view.importance(),
        f"tree/{study}": tree_columns(planned),
        f"pending/{study}": {"is_allowed": False},
    }
    sample: dict[str, Any] = view.curves("")
    metrics = sample["metrics"][:MOST_METRICS]
    for metric in metrics:
        curves = {**view.curves(metric), "metrics": metrics}
        answers[f"curves/{study}?metric={metric}&trials="] = curves
    for number in pages:
        page = view.trial(number)
        for stage in page["stages"]:  # type: ignore[attr-defined]
            stage["log"] = stage["log"][-MOST_LOG:]
        answers[f"trial/{study}?number={number}"] = page
        answers[f"lineage/{study}?number={number}"] = view.lineage(number, others)
        answers[f"prediction/{study}?number={number}"] = {"why": "it is not in this report"}
    return answers


def _left_out(pages: int, listed: int, trials: int) -> str:
    """Return in words which trials the file leaves out; empty if none."""
    texts = []
    if listed < trials:
        texts.append(f"the {listed:,} best of {trials:,} trials are listed")
    if pages < trials:
        have = "has a page" if pages == 1 else "have pages"
        texts.append(
            f"{counted(pages, 'trial')} of {trials:,} {have}, the best and some that failed"
        )
    return (
        f"In this report {' and '.join(texts)}; the command dasktune dashboard shows all."
        if texts
        else ""
    )


def _default_path(study: Any) -> Path:
    """Return the default file of a study's report: in a local storage, or in this folder."""
    folder = Path(study.store.url.removeprefix("file://"))
    name = f"report-{slug(study.name)}.html"
    path = (folder if folder.is_dir() else Path()) / name
    return path.resolve() if ".." in path.parts else path


def _filled(name: str, answers: Mapping[str, Any], costs: str, written: str) -> str:
    """Return the page with all its files, the answers, and what is shown without JavaScript."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in page_files().items()}
    environment = Environment(
        loader=PackageLoader("dasktune._dashboard", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("report.html").render(
        name=name,
        sheets=[texts[sheet] for sheet in SHEETS],
        imports=json_of({"imports": _imports(texts)}),
        answers=json_of(answers).replace("<", "\\u003c"),
        scripts=bokeh_scripts(),
        costs=costs,
        written=written,
        left_out=answers["left_out"],
    )


def _imports(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the page's modules as URLs that hold them, by the names that they import."""
    modules = {
        name: text.replace('from "./', f'from "{PREFIX}')
        for name, text in texts.items()
        if name.endswith(".js")
    }
    start = "data:text/javascript;base64,"
    return {f"{PREFIX}{name}": start + _base64(text.encode()) for name, text in modules.items()}


@cache
def bokeh_scripts() -> dict[str, str]:
    """Return the compressed files of BokehJS, if Bokeh is installed."""
    try:
        known = bokeh_files()
    except ConfigurationError:
        return {}
    return {name: _base64(gzip.compress(path.read_bytes())) for name, path in known.items()}


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")
