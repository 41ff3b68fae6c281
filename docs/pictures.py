"""Draw the pictures of the pages about concepts: ``python docs/pictures.py`` writes them all.

Each picture is made from what it shows: sequences are evaluated, keys are hashed, and trees,
tuners and drivers are those of the package. `tests/test_docs.py` compares the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import dasktune as dt
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan, shared_until
from dasktune.report.axes import AxisScale, bottom_axis, left_axis
from dasktune.report.svg import Svg, line, line_legend, tag, text
from dasktune.sequences import Constant, MultiStep, Sequence, Warmup

FOLDER = Path(__file__).parent
WIDTH, LEFT, ROW, BAR = 860.0, 24.0, 30.0, 14.0

RATES = [
    MultiStep(0.1, milestones=[30], gamma=0.1),
    MultiStep(0.1, milestones=[45], gamma=0.1),
    Warmup(10, 0.1) >> Constant(0.1),
]
STEPS = 60


def sequence() -> Svg:
    """Return the plot of three learning rates, with the steps at which two of them are equal."""
    across = AxisScale(low=0, high=STEPS, start=70, end=WIDTH - LEFT)
    up = AxisScale(low=0, high=0.11, start=250, end=110)
    until = shared_until({"lr": RATES[0]}, {"lr": RATES[1]}, 0, STEPS)
    marks = [
        left_axis(up, 70, WIDTH - LEFT, ""),
        bottom_axis(across, 110, 250, "step"),
        tag("rect", x=across(0), y=94.0, width=across(until) - across(0), height=6.0, class_="s2"),
        text(across(until) + 8, 101, f"the first two are equal up to step {until}", class_="note"),
    ]
    for number, rate in enumerate(RATES):
        points = [
            (across(at + end), up(rate(at)) - 3 * number) for at in range(STEPS) for end in (0, 1)
        ]
        look = f"curve l{number + 1}"
        marks.append(tag("path", d=line(points), class_=look))
        name, _ = line_legend([(look, repr(rate))], 70)
        marks.append(tag("g", name, transform=f"translate(0 {8 + 22 * number})"))
    return Svg(marks="".join(marks), width=WIDTH, height=294, label="Three learning rates by step")


def state_key() -> Svg:
    """Return the keys of three trials after some steps: one box for each key."""
    plan, steps = registered(RATES, STEPS), (0, 10, 30, 45, 60)
    owners: dict[str, int] = {}
    marks = [
        text(LEFT, 28, "The first 8 digits of each key; equal boxes are one state", class_="head")
    ]
    wide, high = 92.0, 26.0
    columns = [130 + index * 150.0 for index in range(len(steps))]
    for step, x in zip(steps, columns, strict=True):
        marks.append(text(x + wide / 2, 58, f"step {step}", class_="name", text_anchor="middle"))
    for trial, rate in enumerate(RATES):
        y = 72 + trial * 62.0
        marks.append(text(LEFT, y + 17, f"trial {trial}"))
        marks.append(text(LEFT, y + 42, repr(rate), class_="note"))
        for before, x in zip((None, *columns), columns, strict=False):
            if before is not None:
                marks.append(
                    tag("path", d=f"M{before + wide:.0f} {y + 13:.0f}H{x:.0f}", class_="link")
                )
        for step, x in zip(steps, columns, strict=True):
            key = key_of(plan, trial, step)
            look = f"l{owners.setdefault(key, trial) + 2}"
            box = {"x": x, "y": y, "width": wide, "height": high, "rx": 5.0}
            marks.append(tag("rect", **box, class_=f"curve {look}"))
            marks.append(text(x + wide / 2, y + 17, key[:8], text_anchor="middle"))
    return Svg(
        marks="".join(marks), width=WIDTH, height=266, label="The state keys of three trials"
    )


def key_of(plan: SearchPlan, trial: int, step: int) -> str:
    """Return the key of a trial's state after some steps."""
    return (
        plan.nodes_of(trial)[0].key_at(0) if step == 0 else plan.node_at(trial, step).key_at(step)
    )


def stage_tree() -> Svg:
    """Return four trials as they are asked for, and as they are trained."""
    rates = [Constant(0.1), *RATES]
    plan = registered(rates, STEPS)
    names = list(map(repr, rates))
    asked = AxisScale(low=0, high=STEPS, start=LEFT, end=290)
    trained = AxisScale(low=0, high=STEPS, start=330, end=570)
    unique = sum(node.stop - node.start for node in plan)
    marks = [
        text(LEFT, 28, f"asked for: {len(rates) * STEPS} steps", class_="head"),
        text(330, 28, f"trained: {unique} steps", class_="head"),
        bottom_axis(asked, 46, 176, "step"),
        bottom_axis(trained, 46, 176, "step"),
    ]
    rows = heights(plan)
    order = sorted(range(len(rates)), key=lambda trial: rows[plan.paths[trial].leaf])
    for row, trial in enumerate(order):
        y = 64 + ROW * row
        marks.append(bar(asked, 0, STEPS, y, "s1"))
        marks.append(text(trained(STEPS) + 8, y + 4, names[trial], class_="note"))
    marks += tree_marks(plan, trained, {node: 64 + ROW * at for node, at in rows.items()})
    return Svg(marks="".join(marks), width=WIDTH, height=222, label="Four trials as a stage tree")


def tuner() -> Svg:
    """Return how far ASHA has trained each of 16 trials."""
    space = dt.Space(lr=dt.Float(0.01, 1.0, log=True))
    asha = dt.algos.ASHA(space, trials=16, max_steps=16, brackets="aggressive")
    run = dt.simulate(asha, lambda values, step: abs(values["lr"] - 0.1) + 1 / step, workers=4)
    (bracket,) = asha.layout()
    across = AxisScale(low=0, high=16, start=90, end=560)
    bottom = 48 + 18.0 * len(run.trials)
    trained = sum(trial.steps for trial in run.trials)
    head = f"ASHA, 16 trials of up to 16 steps: {trained} steps in place of {16 * 16}"
    marks = [text(LEFT, 28, head, class_="head"), bottom_axis(across, 44, bottom, "step")]
    for trial in run.trials:
        y = 56 + 18.0 * trial.number
        is_best = run.best_trial is not None and trial.number == run.best_trial.number
        words = f"{trial.state.value}, loss {trial.value:.3f}" + (", the best" if is_best else "")
        marks.append(text(80, y + 4, f"trial {trial.number}", class_="note", text_anchor="end"))
        marks.append(bar(across, 0, trial.steps, y, "s4" if trial.steps == 16 else "s2", 10))
        marks.append(text(across(16) + 14, y + 4, words, class_="note"))
    for step in bracket.steps[:-1]:
        marks.append(tag("path", d=f"M{across(step):.1f} 44V{bottom:.1f}", class_="target"))
    label = "Sixteen trials that ASHA has trained to three rungs"
    return Svg(marks="".join(marks), width=WIDTH, height=bottom + 46, label=label)


def store() -> Svg:
    """Return the steps that a second study trains on the store of a first one."""
    monday = [Constant(0.1), MultiStep(0.1, [6], gamma=0.1)]
    tuesday = [*monday, MultiStep(0.1, [6], gamma=0.5)]
    plan = registered(monday, 12)
    for rate in tuesday:
        plan.register(len(plan.paths), {"lr": rate}, 15)
    old = {node for trial in range(len(monday)) for node in plan.nodes_of(trial)}
    new = sum(node.stop - node.start for node in plan if node not in old)
    across = AxisScale(low=0, high=15, start=LEFT, end=560)
    head = f"Tuesday asks for {15 * len(tuesday)} steps and trains {new}"
    marks = [text(LEFT, 28, head, class_="head"), bottom_axis(across, 68, 168, "step")]
    marks += legend_of(
        [("s2", "trained on Monday, now in the store"), ("k3", "trained on Tuesday")], 42
    )
    rows = {node: 84 + ROW * at for node, at in heights(plan).items()}
    marks += tree_marks(plan, across, rows, look=lambda node: "s2" if node in old else "k3")
    for node in plan:
        circle = {"cx": across(node.stop), "cy": rows[node], "r": 4.5}
        marks.append(tag("circle", **circle, class_="k5"))
    for trial, rate in enumerate(tuesday, start=len(monday)):
        leaf = plan.paths[trial].leaf
        marks.append(text(across(15) + 12, rows[leaf] + 4, repr(rate), class_="note"))
    marks += legend_of([("k5", "checkpoint")], 42, 450)
    return Svg(marks="".join(marks), width=WIDTH, height=214, label="Two studies with one store")


def driver() -> Svg:
    """Return the stages that a driver has sent to two workers, and the messages that came back."""
    space = dt.Space(lr=[Constant(0.1), *RATES[:2]])
    run = dt.simulate(
        dt.algos.Grid(space, max_steps=STEPS), lambda values, step: 1 / step, workers=2
    )
    workers = sorted({event.worker for event in run.events})
    across = AxisScale(low=0, high=run.seconds, start=110, end=WIDTH - LEFT)
    rows = {name: 120 + 56.0 * index for index, name in enumerate(workers)}
    bottom = max(rows.values()) + 30
    marks = [
        text(LEFT, 28, "Stages go to workers; messages come back to the driver", class_="head"),
        bottom_axis(across, 64, bottom, "seconds, simulated"),
        tag("circle", cx=LEFT + 5, cy=44.0, r=4.0, class_="k3"),
        text(
            LEFT + 16,
            48,
            "a stage has ended: its state is saved, its metrics are reported",
            class_="note",
        ),
        text(LEFT, 84, "driver"),
        *(text(LEFT, y + 4, f"worker {index}") for index, y in enumerate(rows.values())),
    ]
    started = {event.attempt: event for event in run.events if event.kind == "started"}
    for event in run.events:
        x, y = across(event.at), rows[event.worker]
        if event.kind == "started":
            marks.append(tag("path", d=f"M{x:.1f} 80V{y:.1f}", class_="link"))
        if event.kind == "ended":
            begin = started[event.attempt]
            marks.append(bar(across, begin.at, event.at - 0.25, y, "s2"))
            steps = f"steps {begin.step} to {event.step}"
            marks.append(text(across(begin.at) + 6, y - 12, steps, class_="note"))
        if event.kind in ("saved", "ended"):
            marks.append(tag("path", d=f"M{x:.1f} {y:.1f}V80", class_="median"))
            marks.append(tag("circle", cx=x, cy=80.0, r=4.0, class_="k3"))
    return Svg(
        marks="".join(marks), width=WIDTH, height=bottom + 46, label="A driver and two workers"
    )


def registered(rates: Iterable[Sequence], steps: int) -> SearchPlan:
    """Return a plan with one trial for each learning rate."""
    plan = SearchPlan(root_key("code, config and data", seed=0))
    for trial, rate in enumerate(rates):
        plan.register(trial, {"lr": rate}, steps)
    return plan


def heights(plan: SearchPlan) -> dict[Node, float]:
    """Return the row of each node: leaves have one each, others are between their children."""
    placed: dict[Node, float] = {}
    leaves = 0

    def place(node: Node) -> None:
        nonlocal leaves
        children = sorted(node.children.values(), key=lambda child: child.number)
        for child in children:
            place(child)
        rows = [placed[child] for child in children]
        placed[node] = (rows[0] + rows[-1]) / 2 if rows else leaves
        leaves += not rows

    for root in plan.roots:
        place(root)
    return placed


def tree_marks(
    plan: SearchPlan,
    across: AxisScale,
    rows: dict[Node, float],
    look: Callable[[Node], str] = lambda node: f"s{min(4, node.passing)}",
) -> list[str]:
    """Return the nodes of a plan as bars, and the lines that join them."""
    marks = [
        tag("path", d=f"M{across(node.stop):.1f} {rows[node]:.1f}V{rows[child]:.1f}", class_="link")
        for node in plan
        for child in node.children.values()
    ]
    for node in plan:
        marks.append(bar(across, node.start, node.stop, rows[node], look(node)))
    return marks


def bar(
    across: AxisScale, start: float, stop: float, y: float, look: str, high: float = BAR
) -> str:
    """Return a bar around a height."""
    size = {"x": across(start), "width": across(stop) - across(start), "rx": 2.0}
    return tag("rect", **size, y=y - high / 2, height=high, class_=look)


def legend_of(entries: Iterable[tuple[str, str]], y: float, x: float = LEFT) -> list[str]:
    """Return boxes with their meaning."""
    marks = []
    for look, words in entries:
        marks.append(tag("rect", x=x, y=y, width=22.0, height=12.0, rx=2.0, class_=look))
        marks.append(text(x + 28, y + 10, words, class_="tick"))
        x += 48 + 6.3 * len(words)
    return marks


PICTURES = {
    "concept-sequence": sequence,
    "concept-state-key": state_key,
    "concept-stage-tree": stage_tree,
    "concept-tuner": tuner,
    "concept-store": store,
    "concept-driver": driver,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        draw().save(FOLDER / f"{name}.svg")
