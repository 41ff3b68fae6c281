"""Write the tables of options in docs/options.md: ``python docs/options.py``.

They follow from signatures and docstrings; `tests/test_docs.py` compares them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import dasktune as dt

PAGE = Path(__file__).parent / "options.md"

GUIDES = {
    "trainer": "writing-a-trainer.md",
    "metric": "writing-a-trainer.md",
    "storage": "storage.md",
    "database": "database.md",
    "if_changed": "notebooks.md#while-it-runs",
    "config": "fingerprints.md",
    "report_every": "writing-a-trainer.md#2-what-is-one-step",
    "merge": "concept-stage-tree.md",
    "needs": "clusters.md#needs",
    "scale": "clusters.md#several-workers-for-late-trials",
    "depends_on": "fingerprints.md",
    "reuse": "reuse.md#how-a-state-is-found-again",
    "portable": "clusters.md#numeric-classes",
    "loggers": "loggers.md",
    "budget": "retention.md",
    "keep": "retention.md",
    "audit": "resume-check.md#audits",
    "tuner": "tuners.md#which-tuner",
    "client": "clusters.md",
    "workers": "clusters.md#this-host",
    "limits": "tuners.md#running",
    "check": "resume-check.md#the-check-by-the-first-run",
    "timeouts": "failures.md",
}
"""The page that explains an option of `create_study` or `optimize`, by its name."""

OF_TUNERS = {
    "space": "tuners.md#spaces",
    "sampler": "tuners.md#samplers",
    "predictor": "learning-curves.md",
}
"""The page that explains an option of tuners."""


def tables() -> dict[str, str]:
    """Return the tables of the page by their names."""
    tuners = [
        tuner
        for name in sorted(dt.algos.__all__, key=str.lower)
        for tuner in [getattr(dt.algos, name)]
        if not inspect.isabstract(tuner)
    ]
    return {
        "create_study": options_of(dt.create_study),
        "optimize": options_of(dt.Study.optimize),
        "tuners": "\n".join(["| tuner | options |", "|---|---|", *map(signature_row, tuners)]),
        "options of tuners": shared_options(tuners),
    }


def options_of(function: Callable[..., Any]) -> str:
    """Return the table of a function's options, in the order of its signature."""
    described = sentences(function)
    rows = [
        f"| {linked(name)} | {default(option)} | {described[name]} |"
        for name, option in options(function)
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def signature_row(tuner: type) -> str:
    """Return the row of a tuner: its options, with the defaults of those that need no value."""
    shown = [
        f"`{name}`" if option.default is option.empty else f"`{name}={option.default!r}`"
        for name, option in options(tuner)
    ]
    return f"| `{tuner.__name__}` | {', '.join(shown)} |"


def shared_options(tuners: list[type]) -> str:
    """Return the table of what each option of a tuner means: one row for each meaning."""
    meanings: dict[tuple[str, str], list[str]] = {}
    for tuner in tuners:
        described = sentences(tuner)
        for name, _ in options(tuner):
            meanings.setdefault((name, described[name]), []).append(tuner.__name__)
    rows = [
        f"| {linked(name, OF_TUNERS)} | {meaning} | {those(takers, len(tuners))} |"
        for (name, meaning), takers in sorted(meanings.items(), key=lambda item: item[0][0])
    ]
    return "\n".join(["| option | meaning | tuners |", "|---|---|---|", *rows])


def those(takers: list[str], count: int) -> str:
    """Return the names of tuners, or how many they are if they are nearly all."""
    return (
        f"{len(takers)} of {count}"
        if len(takers) > count / 2
        else ", ".join(f"`{t}`" for t in takers)
    )


def options(function: Callable[..., Any]) -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield the names and parameters of what a caller may give."""
    for name, option in inspect.signature(function).parameters.items():
        if name != "self":
            yield name, option


def default(option: inspect.Parameter) -> str:
    """Return a default as it is written in code, or that there is none."""
    return "must be given" if option.default is option.empty else f"`{option.default!r}`"


def linked(name: str, guides: Mapping[str, str] = GUIDES) -> str:
    """Return the name of an option, with a link to the page that explains it."""
    return f"[`{name}`]({guides[name]})" if name in guides else f"`{name}`"


def sentences(function: Any) -> dict[str, str]:
    """Return the first sentence about each option, in Markdown, from a numpydoc docstring."""
    section = f"{inspect.getdoc(function)}\n".partition("Parameters\n----------\n")[2]
    section = re.split(r"\n\n\w[\w ]*\n-+\n", section)[0]
    described: dict[str, str] = {}
    for names, body in re.findall(r"^(\S.*)\n((?:(?: {4}.*)?\n?)+)", section, re.MULTILINE):
        for name in names.split(", "):
            described[name] = first_sentence(function, name, " ".join(body.split()))
    return described


def first_sentence(function: Any, name: str, body: str) -> str:
    """Return the first sentence of a description, which may be that of another object."""
    if (other := re.match(r"As for `(?:([\w.]+)\.)?(\w+)`", body)) is not None:
        module = import_module(other[1] or function.__module__)
        return sentences(getattr(module, other[2]))[name]
    sentence = re.match(r".*?\.(?= [A-Z`]|$)", body)
    return (sentence[0] if sentence else body).replace("``", "`").replace("|", "\\|")


def page(text: str) -> str:
    """Return the text of the page with its tables as they must be."""
    for name, table in tables().items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = before + begin + table + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
