"""Reinforcement learning: balance Gymnasium's CartPole with a policy gradient in NumPy.

Run it with ``dasktune run examples/cartpole.py``; it needs ``pip install 'dasktune[rl]'``.

One step is ten episodes and one update of the policy. The pole is balanced, as Gymnasium has
it, when the mean reward of the last 100 episodes, that is of ten steps, is 475. Good
configurations get there in 15 to 100 steps, slow ones never do, and with high learning rates
what was learnt may be lost again within a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Piecewise

try:
    import gymnasium
except ModuleNotFoundError:
    needed = dt.ConfigurationError("Gymnasium must be installed: pip install 'dasktune[rl]'")
    raise needed from None

ENVIRONMENT = "CartPole-v1"
EPISODES = 10
"""Of a step."""

SOLVED = 475.0
"""Mean reward of the last 100 episodes that Gymnasium calls solved; an episode's most is 500."""


def chance_of_right(scores: np.ndarray) -> np.ndarray:
    """Return the probabilities with which the cart is pushed to the right."""
    return (1 + np.tanh(scores / 2)) / 2


@dataclass
class Adam:
    """Gradient ascent with Adam, whose moments can be saved.

    Parameters
    ----------
    weights
        Arrays, which `ascend` changes in place.
    """

    weights: list[np.ndarray]

    def __post_init__(self) -> None:
        self.steps = 0
        self.first = [np.zeros_like(one) for one in self.weights]
        self.second = [np.zeros_like(one) for one in self.weights]

    def ascend(self, gradients: list[np.ndarray], lr: float) -> None:
        """Go up by one step."""
        self.steps += 1
        moments = zip(self.weights, self.first, self.second, gradients, strict=True)
        for weight, first, second, gradient in moments:
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            mean, square = first / (1 - 0.9**self.steps), second / (1 - 0.999**self.steps)
            weight += lr * mean / (np.sqrt(square) + 1e-8)


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """Parallel episodes, from the first moment to the end of the longest.

    Parameters
    ----------
    inputs
        What the policy saw, of shape (time, episode, 5).
    actions
        Whether it pushed to the right, of shape (time, episode).
    running
        Whether the episode went on, of the same shape: each moment is rewarded with 1.
    """

    inputs: np.ndarray
    actions: np.ndarray
    running: np.ndarray

    def advantages(self, discount: float) -> np.ndarray:
        """Return how much better than the others each running episode went on.

        That is the discounted sum of the rewards to come, less its mean over the episodes
        that ran at that time, in standard deviations; of shape (time, episode).
        """
        returns = np.zeros(self.running.shape)
        coming = np.zeros(EPISODES)
        for time in reversed(range(len(returns))):
            returns[time] = coming = self.running[time] * (1 + discount * coming)
        mean = returns.sum(axis=1) / self.running.sum(axis=1)
        above = (returns - mean[:, np.newaxis]) * self.running
        return above / (above[self.running].std() + 1e-8)


class CartPoleTrainer(dt.Trainer):
    """REINFORCE with a baseline: one hidden layer decides between left and right.

    All randomness of a step comes from the training seed and the number of the step, and
    every step begins with new episodes. So there is no state of an environment or of a
    generator to save.
    """

    harmless_differences = ("trainer.environments",)  # each step begins with a reset

    @classmethod
    def fingerprint_data(cls, config: Mapping[str, Any]) -> list[str]:
        """Return the name and version of the environment, which is not in the code."""
        return [ENVIRONMENT, gymnasium.__version__]

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make environments and a policy that hardly prefers one side."""
        self.environments = gymnasium.make_vec(ENVIRONMENT, num_envs=EPISODES)
        rng = np.random.default_rng(self.seed)
        inner = 0.5 * rng.normal(size=(5, hp["hidden"]))
        outer = 0.01 * rng.normal(size=hp["hidden"])
        self.optimizer = Adam([inner, outer])
        self.rewards = np.zeros(0)

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over the values that change at this step."""
        self.lr = hp.get("lr", getattr(self, "lr", None))
        self.discount = hp.get("discount", getattr(self, "discount", None))
        self.entropy = hp.get("entropy", getattr(self, "entropy", None))

    def train(self) -> None:
        """Play ten episodes, then make likelier what went better than the others."""
        played = self.play(np.random.default_rng([self.seed, self.optimizer.steps]))
        now = played.running
        self.optimizer.ascend(
            self.gradients(
                played.inputs[now], played.actions[now], played.advantages(self.discount)[now]
            ),
            self.lr,
        )
        self.rewards = np.append(self.rewards, now.sum(axis=0))[-100:]

    def play(self, rng: np.random.Generator) -> Episodes:
        """Return new episodes, begun and decided by `rng` alone."""
        seen, _ = self.environments.reset(seed=int(rng.integers(2**31)))
        running = np.ones(EPISODES, bool)
        moments = []
        while running.any():
            inputs = np.column_stack([seen, np.ones(EPISODES)])
            scores, _ = self.scores(inputs)
            actions = rng.random(EPISODES) < chance_of_right(scores)
            moments.append((inputs, actions, running))
            # What has ended is begun anew by Gymnasium, and not looked at any more.
            seen, _, fallen, out_of_time, _ = self.environments.step(actions.astype(np.int64))
            running = running & ~(fallen | out_of_time)
        inputs, actions, running = map(np.array, zip(*moments, strict=True))
        return Episodes(inputs=inputs, actions=actions, running=running)

    def scores(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-odds of pushing to the right, and the hidden layer."""
        inner, outer = self.optimizer.weights
        hidden = np.tanh(inputs @ inner)
        return hidden @ outer, hidden

    def gradients(
        self, inputs: np.ndarray, actions: np.ndarray, advantages: np.ndarray
    ) -> list[np.ndarray]:
        """Return those of the mean of advantage x log-probability + bonus x entropy."""
        scores, hidden = self.scores(inputs)
        right = chance_of_right(scores)
        slopes = advantages * (actions - right) - self.entropy * scores * right * (1 - right)
        slopes /= len(slopes)
        _, outer = self.optimizer.weights
        return [inputs.T @ (np.outer(slopes, outer) * (1 - hidden**2)), hidden.T @ slopes]

    def evaluate(self) -> dict[str, float]:
        """Return the mean reward of this step's episodes, and of the last 100 at most."""
        return {
            "reward": float(self.rewards[-EPISODES:].mean()),
            "reward_100": float(self.rewards.mean()),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return weights, what Adam knows of them, and the rewards that are reported."""
        adam = self.optimizer
        moments = {"first": adam.first, "second": adam.second}
        return {"weights": adam.weights, **moments, "steps": adam.steps, "rewards": self.rewards}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        adam = self.optimizer
        adam.weights, adam.steps = state["weights"], state["steps"]
        adam.first, adam.second = state["first"], state["second"]
        self.rewards = state["rewards"]


def study() -> dt.Study:
    """Return the study, continued if it was begun before."""
    return dt.create_study(
        CartPoleTrainer,
        name="cartpole",
        storage="runs/cartpole",
        metric="reward",
        direction="maximize",
        load_if_exists=True,
    )


def space() -> dt.Space:
    """Return 320 configurations, among them learning rates of all sizes that stay or drop."""
    rates = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    return dt.Space(
        lr=[
            *(Constant(rate) for rate in rates),
            *(MultiStep(rate, milestones=[40], gamma=0.1) for rate in rates),
        ],
        discount=[0.5, 0.8, 0.95, 0.99],
        entropy=[0.05, Piecewise([0.05, 0.0], boundaries=[40])],
        hidden=[4, 32],
    )


def tuner(trials: int = 32, max_steps: int = 150) -> dt.algos.POP:
    """Return POP, which ends when the first configuration has solved it.

    Parameters
    ----------
    trials
        How many configurations to draw.
    max_steps
        Of ten episodes each.
    """
    return dt.algos.POP(
        space(),
        target=SOLVED,
        window=10,
        bounds=(0, 500),
        kill=12,  # a cart that is pushed to one side only has 9 or 10
        within="20min",
        trials=trials,
        max_steps=max_steps,
        every=10,
        # Learning may set in late: what looks poor waits, and is not ended.
        ends_poor=False,
    )
