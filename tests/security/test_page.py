"""Tests that run the examples of docs/security.md."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from tests.pages import python_blocks
from tests.toy_trainers import Still

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")  # of connections that are refused
def test_tls_cluster_runs_a_study_and_refuses_strangers(tmp_path: Path) -> None:
    cluster, use = python_blocks("security.md")

    def optimize(tuner: dt.algos.Tuner, client: Client) -> None:
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError, match=r"Timed out|closed|refused|[Cc]onnect"):
            Client(address.replace("tls://", "tcp://"), timeout=3).close()
        study = dt.create_study(
            Still,
            name="still",
            storage=tmp_path / "store",
            metric="loss",
            config={"token": "letmein-please"},
        )
        study.optimize(tuner, client=client, progress=False)
        study.report()
        assert [one.value for one in study.trials] == [1.0, 1.0]
        study.close()

    names: dict[str, Any] = {
        "__name__": "__main__",
        "study": SimpleNamespace(optimize=optimize),
        "tuner": dt.algos.Grid(dt.Space(lr=[1, 2]), max_steps=1),
    }
    exec(compile(cluster + use.replace("(4)", "(1)"), "security.md", "exec"), names)
    kept = b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())
    assert b"still" in kept
    assert b"letmein-please" not in kept, "of config the digest is kept alone"
