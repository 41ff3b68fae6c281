"""Tests that run the examples of docs/security.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from tests.toy_trainers import Still

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")  # of connections that are refused
def test_tls_cluster_runs_a_study_and_refuses_strangers(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, "security.md", "exec"), names)
    with names["encrypted"](1) as cluster, Client(cluster) as client:
        address = cluster.scheduler_address
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
        study.optimize(
            dt.algos.Grid(dt.Space(lr=[1, 2]), max_steps=1), client=client, progress=False
        )
        study.report()
        assert [one.value for one in study.trials] == [1.0, 1.0]
        study.close()
    kept = b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())
    assert b"still" in kept
    assert b"letmein-please" not in kept, "of config the digest is kept alone"


def test_links_of_the_page_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-")
        for one in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, heading = target.partition("#")
        if file:
            page = (ROOT / "docs" / file).read_text()
            assert not heading or f"# {heading.replace('-', ' ')}" in page.lower()
        else:
            assert heading in headings
