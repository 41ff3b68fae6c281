"""JAX: exact continuation, merging, and refused states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune.errors import ConfigurationError, StateError
from dasktune.integrations.jax import JaxTrainer, Trees
from dasktune.sequences import MultiStep
from dasktune.trainer import run_alone
from tests.forked import fork_for_resume_checks
from tests.integrations.exact import assert_resumes
from tests.integrations.test_boosting_examples import imported

pytestmark = pytest.mark.framework("jax", "optax", "flax")
EXAMPLE = Path(__file__).parents[2] / "examples" / "jax_decay.py"


def test_the_example_resumes_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_for_resume_checks(monkeypatch)
    module = imported(EXAMPLE, monkeypatch)
    hp = {"lr": MultiStep(0.01, milestones=[2], gamma=0.1)}
    report = dt.check_resume(module.Digits, hp, split=1, total=3)
    assert report.ok, report.differences


def test_the_example_merges_as_if_alone(
    two_threads: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = imported(EXAMPLE, monkeypatch)
    study = module.study()
    study.optimize(module.tuner(), client=two_threads, check=False, progress=False)
    assert study.summary()["steps_executed"] == 8 + 4 + 2
    for trial in study.trials:
        assert run_alone(module.Digits, trial.sequences, 8).metrics == trial.metrics
    study.close()


class Kinds(JaxTrainer):
    """Leaves of all kinds, and a module of Flax."""

    state_names = ("params", "model")

    def build(self, hp: Any) -> None:
        import jax
        import jax.numpy as jnp
        from flax import nnx

        self.params = (jnp.ones(3, jnp.bfloat16), jax.random.key(1), np.arange(2), 3, 0.5, None)
        self.model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    def setup(self, hp: Any) -> None:
        self.rate = hp["lr"]

    def train(self) -> None:
        import jax

        half, key, numbers, count, number, none = self.params
        self.params = (
            half * 2 + 1,
            jax.random.split(key)[0],
            numbers + 1,
            count + 1,
            number / 3,
            none,
        )
        self.model = jax.tree.map(
            lambda leaf: leaf * 2 if leaf.dtype == "float32" else leaf, self.model
        )

    def evaluate(self) -> dict[str, float]:
        import jax

        total = jax.random.uniform(self.params[1]) + self.params[0].sum() + self.params[4]
        return {"total": float(total + self.model.kernel[...].sum() + self.params[3])}


def test_leaves_of_all_kinds_resume_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_for_resume_checks(monkeypatch)
    report = dt.check_resume(Kinds, {"lr": 0.1}, split=1, total=3)
    assert report.ok, report.differences


def test_another_shape_is_refused() -> None:
    state = run_alone(Kinds, {"lr": 0.1}, 1, states_at=[1]).states[1]
    trainer = Kinds()
    trainer.build({})
    with pytest.raises(StateError, match=r"state\['params'\].*must have 4 leaves, got 5"):
        trainer.load_state_dict({**state, "params": state["params"][:4]})
    with pytest.raises(StateError, match=r"an array of int64 \(1,\), got int64 \(2,\)"):
        trainer.load_state_dict(
            {**state, "params": [*state["params"][:2], np.arange(1), *state["params"][3:]]}
        )


def test_a_name_that_build_does_not_set_is_refused() -> None:
    class Wrong(Kinds):
        state_names = ("params", "momentum")

    with pytest.raises(ConfigurationError, match=r"must set self.momentum, or state_names"):
        run_alone(Wrong, {"lr": 0.1}, 1, states_at=[1])


def descend(run: Any, rate: Any = 0.5) -> None:
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = optax.chain(optax.clip(1.0), optax.inject_hyperparams(optax.sgd)(rate))
    params = {"w": jnp.arange(3.0)}
    trees = run.track(Trees(params=params, opt_state=optimizer.init(params)))
    for _ in run.steps():
        updates, trees.opt_state = optimizer.update({"w": jnp.ones(3)}, trees.opt_state)
        trees.params = optax.apply_updates(trees.params, updates)
        run.report(loss=jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, trees.params)))


def test_options_of_optax_have_the_values_of_the_step() -> None:
    rate = {"learning_rate": MultiStep(0.25, milestones=[2], gamma=0.5)}
    losses = [values["loss"] for values in run_alone(descend, rate, 3).metrics.values()]
    # Each of three weights falls by the rate.
    assert np.diff([3.0, *losses]).tolist() == [-0.75, -0.75, -0.375]
    assert_resumes(descend, rate, 4)


def test_a_rate_that_a_schedule_sets_is_refused() -> None:
    def scheduled(run: Any) -> None:
        import optax

        descend(run, optax.linear_schedule(0.1, 0.0, 3))

    with pytest.raises(ConfigurationError, match="a schedule of optax sets 'learning_rate', too"):
        run_alone(scheduled, {"learning_rate": 0.1}, 1)
