"""Draw the stage tree of a small search: ``python docs/stage_tree.py > docs/stage-tree.svg``.

The tree is what `dasktune.graph.plan` makes of the trials, not a sketch: the bars are its
nodes, and the numbers are counted from them.
"""

from __future__ import annotations

from html import escape
from itertools import product

from dasktune.graph.plan import Node, SearchPlan
from dasktune.sequences import Constant, Exponential, MultiStep, Piecewise, Warmup

STEPS = 60
LR = {
    "0.1": Constant(0.1),
    "0.1, a tenth at 30": MultiStep(0.1, milestones=[30], gamma=0.1),
    "0.1, a tenth at 30 and 45": MultiStep(0.1, milestones=[30, 45], gamma=0.1),
    "warm-up, then decay": Warmup(5, 0.1) >> Exponential(0.1, gamma=0.95),
}
BATCH_SIZE = {"64": Constant(64), "64, 128 from 20": Piecewise([64, 128], boundaries=[20])}

WIDTH, ROW, TOP, LEFT, SCALE = 900, 34, 74, 24, 8.4
SHADES = {8: "#08519c", 6: "#1c6cb1", 4: "#3182bd", 3: "#539ecd", 2: "#89bedc", 1: "#c3d9ec"}
STYLE = "font-family='system-ui, sans-serif' font-size='13' fill='#1a1a1a'"


def plan_of_trials() -> tuple[SearchPlan, list[str]]:
    """Return the plan with every combination registered, and what to call each trial."""
    plan = SearchPlan("picture")
    labels = []
    for (lr, lr_sequence), (size, sizes) in product(LR.items(), BATCH_SIZE.items()):
        sequences = {"lr": lr_sequence, "batch_size": sizes}
        plan.register(len(labels), sequences, STEPS)
        labels.append(f"lr {lr}; batch size {size}")
    return plan, labels


def children(node: Node) -> list[Node]:
    """Return the nodes that go on from a node, oldest trial first."""
    return sorted(node.children.values(), key=lambda child: child.number)


def rows(node: Node, heights: dict[int, float], free: int) -> int:
    """Give every node its height, leaves one by one from row `free`; return the next free one."""
    if not node.children:
        heights[node.number] = TOP + ROW * free
        return free + 1
    for child in children(node):
        free = rows(child, heights, free)
    ys = [heights[child.number] for child in children(node)]
    heights[node.number] = (ys[0] + ys[-1]) / 2
    return free


def draw() -> str:
    """Return the picture as SVG."""
    plan, labels = plan_of_trials()
    heights: dict[int, float] = {}
    rows(plan.roots[0], heights, 0)
    names = {path.leaf.number: labels[trial] for trial, path in plan.paths.items()}
    trained = sum(node.stop - node.start for node in plan)
    asked = len(labels) * STEPS
    height = TOP + ROW * len(labels)
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' {STYLE}>",
        f"<title>The stage tree of {len(labels)} trials</title>",
        f"<rect width='{WIDTH}' height='{height}' rx='8' fill='#ffffff'/>",
        f"<text x='{LEFT}' y='28' font-size='16' font-weight='600'>{len(labels)} trials of {STEPS} "
        f"steps: {asked} asked for, {trained} trained ({100 * trained / asked:.0f}%)</text>",
        f"<text x='{LEFT}' y='48' fill='#555555'>each bar is trained once, "
        "for as many trials as its number says</text>",
    ]
    for node in plan:
        lines += elbows(node, heights)
    for node in plan:
        lines += bar(node, heights[node.number], names.get(node.number, ""))
    return "\n".join([*lines, "</svg>\n"])


def elbows(node: Node, heights: dict[int, float]) -> list[str]:
    """Return the lines that join a node to the nodes that go on from it."""
    x, y = LEFT + SCALE * node.stop, heights[node.number]
    return [
        f"<path d='M{x:g} {y:g}V{heights[child.number]:g}' stroke='#888888' stroke-width='1.5'/>"
        for child in children(node)
    ]


def bar(node: Node, y: float, label: str) -> list[str]:
    """Return a node as a bar that is thicker and darker the more trials share it."""
    thick = 12 + 1.5 * node.passing
    x, length = LEFT + SCALE * node.start, SCALE * (node.stop - node.start)
    ink = "#ffffff" if node.passing >= 3 else "#1a1a1a"
    lines = [
        f"<rect x='{x:g}' y='{y - thick / 2:g}' width='{length:g}' height='{thick:g}' rx='2' "
        f"fill='{SHADES[node.passing]}'/>",
        f"<text x='{x + length / 2:g}' y='{y + 4:g}' text-anchor='middle' font-size='11' "
        f"style='fill:{ink}'>{node.passing}</text>",
    ]
    if label:
        end = LEFT + SCALE * STEPS + 8
        lines.append(f"<text x='{end:g}' y='{y + 4:g}' font-size='12'>{escape(label)}</text>")
    return lines


if __name__ == "__main__":
    print(draw(), end="")
