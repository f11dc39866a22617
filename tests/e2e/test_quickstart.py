"""What `make quickstart` promises."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from product import Run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    folder = tmp_path_factory.mktemp("quickstart")
    recipe = folder / "quickstart.yaml"
    shutil.copy(ROOT / "recipes" / "quickstart.yaml", recipe)
    for name in ("runner.py", "datasets.py", "logging.py", "torch.py", "random.py"):
        (folder / name).write_text("raise SystemExit('a file of the user shadows a module')\n")
    run = Run(recipe, folder / "runs" / "quickstart")
    return run, run.finish(COLUMNS="160").stdout


def test_the_loss_falls_well_below_the_start(quickstart: tuple[Run, str]) -> None:
    losses = quickstart[0].losses()
    assert len(losses) == 60
    assert losses[60] < 0.6 * losses[1]


def test_one_fault_fires_and_is_mended_in_process(quickstart: tuple[Run, str]) -> None:
    run, _ = quickstart
    assert len(run.events("FaultFired")) == 1
    lives = run.events("LifeStarted")
    assert sorted((life["rank"], life["in_process"]) for life in lives) == [
        (0, False), (0, True), (1, False), (1, True)
    ]  # fmt: skip
    resumed = [event for event in run.events("Loaded") if event["step"] > 0]
    assert {event["source"] for event in resumed} == {"memory"}


def test_the_table_says_what_it_cost_and_sums_to_100_percent(quickstart: tuple[Run, str]) -> None:
    _, output = quickstart
    assert re.search(r"training goodput", output, re.IGNORECASE)
    assert re.search(r"100(\.0+)? ?%", output)
    assert "exception" in output


def test_its_last_checkpoint_is_a_model_of_transformers(quickstart: tuple[Run, str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, _ = quickstart
    target = run.folder.parent / "hf"
    done = run.command("--export", "latest", "-o", str(target))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"step 60 exported to {target}\n", "")
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target)
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == 256
    prompt = tokenizer("The value of ", return_tensors="pt")
    with torch.no_grad():
        loss = model(**prompt, labels=prompt["input_ids"]).loss
    assert loss < 0.8 * math.log(model.config.vocab_size)  # it has learnt: not the loss of random weights
