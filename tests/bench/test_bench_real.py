"""`nvrx-bench` with the real `nvrx-run`: a small suite, and (slow) the shipped one for laptops."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "report"))
from browserlab import chromium, look_at  # noqa: E402

SUITE = f"""
name: small
recipe: {ROOT / "recipes" / "quickstart.yaml"}
timeout: 4m
common:
  model: {{architecture: {{hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1}}}}
  training: {{steps: 12, schedule: !replace {{kind: constant}}}}
  checkpoint: {{mode: sync, every: 4, snapshot_every: null}}
experiments:
  - name: run
    axes:
      what:
        kubernetes:
          restart: kubernetes
          recovery: !replace {{layer: none, process_group_timeout: 5s}}
          faults: !replace {{at: [{{step: 7, rank: 1, type: exception}}]}}
"""


def bench(suite: Path, out: Path, timeout: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runner.bench.cli", str(suite), "--out", str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def ledger_of(out: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (out / "run-kubernetes" / "run" / "ledger").iterdir()}


def check_cells(out: Path, expected: dict[str, dict[str, Any]]) -> None:
    accounts = {
        account["name"]: account for account in json.loads((out / "report" / "comparison.json").read_text())
    }
    assert set(accounts) == set(expected)
    for name, wanted in expected.items():
        account = accounts[name]
        assert sum(account["split_s"].values()) == pytest.approx(account["wall_s"], abs=1e-6)
        assert {key: account[key] for key in wanted} == wanted, name


@pytest.mark.timeout(290)
def test_a_suite_runs_restarts_as_a_kubelet_would_resumes_and_reports(tmp_path: Path) -> None:
    suite, out = tmp_path / "small.yaml", tmp_path / "out"
    suite.write_text(SUITE)
    done = bench(suite, out, 280)
    assert done.returncode == 0, done.stdout + done.stderr
    account = json.loads((out / "report" / "run-kubernetes" / "report.json").read_text())
    assert (account["useful_steps"], account["restarts"], account["layer"]) == (
        12,
        {"command": 1},
        "kubernetes",
    )
    assert sum(account["split_s"].values()) == pytest.approx(account["wall_s"], abs=1e-6)
    (recovery,) = account["recoveries"]
    assert recovery["injected"] == [{"fault": 0, "rank": 1, "step": 7, "type": "exception"}]
    # the timeout of 5 s since the fault, then 10 s of back-off
    assert recovery["parts_s"]["idle"] > 10 and recovery["total_s"] > 15
    assert recovery["resumed_after"] == 4 and recovery["source"] == "storage"
    cell, measured = out / "run-kubernetes", ledger_of(out)
    for argument, code, says in (
        ("cluster.nodes=1", 0, "finished already"),
        ("training.steps=20", 2, "closed"),
    ):
        command = [sys.executable, "-m", "runner.cli", str(cell / "recipe.yaml"), "--set", argument]
        by_hand = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert by_hand.returncode == code and says in by_hand.stderr, by_hand.stderr
        assert "nvrx-bench has measured it as a cell of a suite, and its checkpoints" in by_hand.stderr
    assert ledger_of(out) == measured
    again = bench(suite, out, 60)
    assert again.returncode == 0 and again.stdout.count("done before") == 1


@pytest.mark.slow
@pytest.mark.timeout(1700)
@pytest.mark.skipif(chromium() is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_the_laptop_suite_runs_and_its_pages_show_what_happened(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    done = bench(ROOT / "recipes" / "suites" / "laptop.yaml", out, 1600)
    assert done.returncode == 0, done.stdout + done.stderr
    saves = {
        f"saves-{mode}-every{every}": {
            "useful_steps": 40,
            "restarts": {},
            "save_mode": mode,
            "save_every": every,
        }
        for mode in ("sync", "async")
        for every in (5, 20)
    }
    faults: dict[str, dict[str, Any]] = {
        "faults-inprocess": {"useful_steps": 40, "restarts": {"inprocess": 1}},
        "faults-ft-launcher": {"useful_steps": 40, "restarts": {"launcher": 1}},
        "faults-kubernetes": {"useful_steps": 40, "restarts": {"command": 1}},
    }
    check_cells(out, saves | faults)
    seen = look_at(out / "report", tmp_path, "laptop.png")
    assert {figure["id"] for figure in seen["figures"]} == {
        "figure-layers", "figure-efficiency_by_interval", "figure-efficiency_by_scale",
    }  # fmt: skip
    assert seen["overflow"] <= 0 and all(figure["outside"] == 0 for figure in seen["figures"])
    assert all(name in seen["text"] for name in saves | faults)
    pages = [link for link in seen["links"] if "status" in link]
    assert len(pages) == 7 and all(page["status"] == 200 for page in pages)
