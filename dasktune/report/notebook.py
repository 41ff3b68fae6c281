"""Objects as a notebook shows them: small tables, and the drawings of the report.

Tables have no colours of their own, so that they take those of the notebook, light or dark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape
from typing import Any

from dasktune._engine.trials import Trial
from dasktune._results.state_words import WORDS, state_word, states_text
from dasktune._results.summary import savings_line
from dasktune._words import counted
from dasktune.algos.base import Tuner, options_of
from dasktune.errors import ConfigurationError
from dasktune.graph.cost import Cost, Costs
from dasktune.graph.plan import SearchPlan
from dasktune.graph.tree import StageTree
from dasktune.report.curves import PlottedCurve, draw_curves
from dasktune.report.formats import number
from dasktune.report.sequence_plot import plot_sequence, sparkline
from dasktune.report.status_report import is_driven
from dasktune.report.tree_svg import draw_tree
from dasktune.sequences import Constant, Sequence
from dasktune.space import Branch, Choice, Domain, Space
from dasktune.space.domains import domain_text
from dasktune.types import ValueFunction

MOST_TRIALS = 5
"""Trials that a study shows, the best first."""

MOST_TEXT = 300
"""Most characters of a value in a table."""

SHOWN_STEPS, MOST_SHOWN_STEPS = 60, 1000
"""Least and most steps that are shown of a sequence without an end."""

MOST_PAGE = 4_000_000
"""Most characters of a page within a cell, which is saved with the notebook."""

SPACE_DEPTH = 4
"""Branches within branches that a table follows."""


def page_html(page: str) -> str:
    """Return a whole page as a part of another one; a large page as its size alone."""
    if len(page) > MOST_PAGE:
        return f"<p>a page of {len(page) / 1e6:.1f} MB, to be opened in a browser:</p>"
    # Else the links of the page, which all begin with "#", would lead to the notebook.
    own = page.replace("<head>", '<head><base href="about:srcdoc">', 1)
    return f'<iframe srcdoc="{escape(own)}" width="100%" height="600" style="border:0"></iframe>'


def sequence_html(sequence: Sequence) -> str:
    """Return a sequence with its plot; a constant, or one that overflows, as text alone."""
    words = f"<code>{_cut(repr(sequence))}</code>"
    if isinstance(sequence, Constant):
        return words
    try:
        return f"{words}{_boxed(str(plot_sequence({'': sequence}, _steps_of(sequence))))}"
    except (ConfigurationError, OverflowError):
        return words


def space_html(space: Space) -> str:
    """Return a table of the hyper-parameters with their domains."""
    size = "no grid" if space.size is None else counted(space.size, "grid point")
    title = f"{counted(len(space.dimensions), 'hyper-parameter')}, {size}"
    return _card("Space", title) + _table(
        ("name", "values", "points"), _space_rows(space.dimensions)
    )


def tuner_html(tuner: Tuner) -> str:
    """Return the options of a tuner, and its space."""
    rows = [(name, _cut(number(value))) for name, value in options_of(tuner).items()]
    text = _card(type(tuner).__name__) + _table(("option", "value"), rows)
    return text if tuner.searched_space is None else text + space_html(tuner.searched_space)


def cost_html(cost: Cost | Costs) -> str:
    """Return the sentences of a cost, one a line."""
    return _card(type(cost).__name__) + "".join(
        f"<div>{escape(line)}</div>" for line in str(cost).splitlines()
    )


def stage_tree_html(tree: StageTree) -> str:
    """Return the picture of a stage tree."""
    title = f"{counted(len(tree), 'stage')}, {counted(tree.steps, 'step')}"
    return _card("StageTree", title) + _boxed(str(draw_tree(_plan_of(tree), is_planned=True)))


def trial_html(trial: Trial) -> str:
    """Return a trial's state, its hyper-parameters with their sequences, and its metrics."""
    last = trial.metrics[max(trial.metrics)] if trial.metrics else {}
    title = f"{WORDS[trial.state]}, {counted(trial.steps, 'step')}"
    if trial.value is not None:
        title += f", {trial.metric or 'value'} {number(trial.value)}"
    steps = max([trial.steps, *trial.metrics], default=0)
    rows = [
        (escape(name), _cut(_plain(sequence)), _spark(sequence, steps))
        for name, sequence in trial.sequences.items()
    ]
    text = _card(f"Trial {trial.number}", title)
    text += _table(("hyper-parameter", "value", f"over {counted(steps, 'step')}"), rows)
    text += _table(
        ("metric", f"at step {max(trial.metrics, default=0):,}"),
        [(escape(name), escape(number(value))) for name, value in last.items()],
    )
    curve = tuple(sorted(trial.intermediate_values.items()))
    if len(curve) > 1:
        drawn = PlottedCurve(points=curve, name=f"trial {trial.number}")
        text += _boxed(str(draw_curves([drawn], [], metric=trial.metric)))
    if trial.error is not None:
        text += f"<pre>{escape(trial.error)}</pre>"
    return text


def study_html(study: Any) -> str:
    """Return the results of a `dasktune.Study`: states, savings and its best trials."""
    records = study.records.values()
    driven = is_driven(study)
    states = Counter(record.state.value for record in records)
    title = f"{counted(len(records), 'trial')}"
    title += f": {states_text(states, is_driven=driven)}" if records else ""
    goals = ", ".join(
        f"{metric} ({towards.value})"
        for metric, towards in zip(study.objective.metrics, study.objective.directions, strict=True)
    )
    text = _card(f"Study {study.name}", title) + f"<div>{escape(goals)}</div>"
    if not records:
        return text
    text += f"<div>{escape(savings_line(study.summary()))}</div>"
    finished = [record for record in records if record.value is not None]
    ranked = sorted(
        finished, key=lambda record: study.objective.losses(record.metrics(study.objective))
    )[:MOST_TRIALS]
    names = list(dict.fromkeys(name for record in ranked for name in record.params))
    rows = [
        (
            str(record.number),
            state_word(record.state, is_driven=driven),
            f"{record.reached:,}",
            escape(number(record.value)),
            *(_cut(number(record.params[name])) if name in record.params else "" for name in names),
        )
        for record in ranked
    ]
    return text + _table(("best trials", "state", "steps", study.metric, *names), rows)


def _space_rows(
    dimensions: Iterable[tuple[str, Domain]], before: str = "", depth: int = 0
) -> Iterable[tuple[str, ...]]:
    """Yield a row for each hyper-parameter, those of branches after their branch."""
    for name, domain in dimensions:
        size = "continuous" if domain.size is None else f"{domain.size:,}"
        shown = _cut(domain_text(domain))
        yield (
            f"{escape(before)}<b>{escape(name)}</b>",
            f"<code>{shown}</code>",
            size,
        )
        options = domain.options if isinstance(domain, Choice) else ()
        for option in options if depth < SPACE_DEPTH else ():
            if isinstance(option, Branch):
                path = f"{before}{name} = {option.name}: "
                yield from _space_rows(option.dimensions, path, depth + 1)


def _plan_of(tree: StageTree) -> SearchPlan:
    """Return a plan whose trials need the stages of a tree, as many as end at each stage."""
    plan, number_of = SearchPlan("00"), 0
    further = Counter[int | None]()
    for stage in tree:
        further[stage.parent] += stage.trials
    for stage in tree:
        for _ in range(stage.trials - further[stage.node]):
            plan.register(number_of, stage.sequences, max(1, stage.stop))
            number_of += 1
    return plan


def _steps_of(sequence: Sequence) -> int:
    """Return how many steps of a sequence are shown: some after its last change."""
    if sequence.end is not None:
        return sequence.end
    changes = sequence.boundaries(0, MOST_SHOWN_STEPS)
    return min(MOST_SHOWN_STEPS, max(SHOWN_STEPS, round(1.25 * max(changes, default=0))))


def _spark(sequence: ValueFunction, steps: int) -> str:
    end = steps if sequence.end is None else min(steps, sequence.end)
    is_plotted = end > 0 and not isinstance(sequence, Constant)
    return str(sparkline(sequence, end)) if is_plotted else ""


def _plain(sequence: ValueFunction) -> str:
    return number(sequence.value) if isinstance(sequence, Constant) else repr(sequence)


def _cut(text: str) -> str:
    """Return a text escaped, without its middle if it is long."""
    if len(text) > MOST_TEXT:
        text = f"{text[: MOST_TEXT - 60]} ... {text[-50:]}"
    return escape(text)


def _card(name: str, more: str = "") -> str:
    return f"<div><b>{escape(name)}</b>{': ' if more else ''}{escape(more)}</div>"


def _table(heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table; the cells are HTML already, the heads are not. Empty without a row."""
    lines = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    if not lines:
        return ""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _boxed(svg: str) -> str:
    """Return a drawing that becomes no wider than its place."""
    return f'<div style="max-width:100%;overflow-x:auto">{svg}</div>'
