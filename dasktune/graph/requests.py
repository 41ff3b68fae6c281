"""The requests of trials: the nodes at which each trial waits for metrics, and the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dasktune.graph.events import Deliver, FailTrial
from dasktune.graph.frontier import Failure, Frontier
from dasktune.graph.plan import Node
from dasktune.types import Report


class Requests:
    """Holds what trials wait for, in the order of steps, and answers it once it is known."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier
        self.waiting: dict[int, tuple[Node, ...]] = {}
        """The nodes that each trial with an open request waits for, in the order of steps."""

    def ask(self, trial: int, nodes: tuple[Node, ...], priority: float) -> Iterator[Deliver]:
        """Note the request of a trial for metrics at nodes; yield the answers that are known."""
        self.waiting[trial] = nodes
        for node in nodes:
            if node.stop not in node.metrics:
                self._frontier.request(node, trial, priority)
        yield from self._answers(trial)

    def rank(self, trial: int, priority: float) -> None:
        """Change the priority of the request of a trial, if it has one."""
        nodes = [node for node in self.waiting.get(trial, ()) if trial in node.requests]
        self._frontier.rank(nodes, trial, priority)

    def withdraw(self, trial: int) -> Node | None:
        """Withdraw the request of a trial, if it has one; return its last node."""
        nodes = self.waiting.pop(trial, None)
        if not nodes:
            return None
        for node in nodes:
            if trial in node.requests:
                self._frontier.withdraw(node, trial)
        return nodes[-1]

    def answer(self, nodes: Iterable[Node]) -> Iterator[Deliver]:
        """Yield the answers at nodes, in the order of steps, whose metrics are known now."""
        asking: dict[int, None] = {}
        for node in nodes:
            for trial in list(node.requests):
                self._frontier.withdraw(node, trial)
                asking[trial] = None
        for trial in asking:
            yield from self._answers(trial)

    def fail(self, trial: int, failure: Failure) -> FailTrial:
        """Withdraw the request of a trial that needs a step which cannot be trained."""
        self.withdraw(trial)
        return FailTrial(
            trial=trial,
            step=failure.step,
            message=failure.message,
            traceback=failure.traceback,
        )

    def _answers(self, trial: int) -> Iterator[Deliver]:
        """Yield what is known of the request of a trial; later steps wait for earlier ones."""
        nodes = self.waiting[trial]
        known = 0
        while known < len(nodes) and nodes[known].stop in nodes[known].metrics:
            node = nodes[known]
            report = Report(trial=trial, step=node.stop, metrics=node.metrics[node.stop])
            yield Deliver(report=report)
            known += 1
        if known == len(nodes):
            del self.waiting[trial]
        elif known:
            self.waiting[trial] = nodes[known:]
