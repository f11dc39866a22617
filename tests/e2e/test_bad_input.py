"""What a user gets wrong ends in one clear line, at once, with nothing half-written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from product import Run, make_run

from runner.errors import ExitCode
from runner.recipe.load import load_recipe
from runner.train.data.packed import prepare
from runner.train.data.tokenizer import ByteTokenizer


def assert_one_clear_line(
    run: Run, *words: str, code: ExitCode = ExitCode.BAD_RECIPE, **changes: Any
) -> None:
    done = run.command()
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]
    assert run.steps_saved() == []
    assert not list(run.folder.rglob("*partial*"))


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    run = Run(tmp_path / "absent.yaml", tmp_path / "run")
    done = run.command()
    assert done.returncode == ExitCode.BAD_RECIPE
    assert str(run.recipe) in done.stderr
    assert "Traceback" not in done.stderr
    assert not run.folder.exists()


def test_fewer_samples_than_one_batch(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"dataset.max_documents": 1, "training.global_batch_size": 4000})
    assert_one_clear_line(run, "training.global_batch_size: 4000", "sequences")


@pytest.mark.slow  # as the one above: what only a worker finds wrong with a recipe
def test_more_ranks_than_the_wrap_can_shard(tmp_path: Path) -> None:
    shape = {"hidden_size": 4, "intermediate_size": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    run = make_run(tmp_path, {f"model.architecture.{key}": value for key, value in shape.items()})
    assert_one_clear_line(run, "2 ranks", "1 rows")


@pytest.mark.slow
def test_an_unknown_model_while_offline(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"model": {"name": "no-such/model"}})
    assert_one_clear_line(run, "no-such/model")


@pytest.mark.slow
def test_a_dataset_folder_that_is_not_there(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, {"dataset": {"source": "saved", "path": "/no/such/folder", "tokenizer": "bytes"}}
    )
    assert_one_clear_line(run, "dataset.path", "/no/such/folder")


def test_prepared_data_that_are_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    tokens = prepare(load_recipe(run.recipe).recipe, ByteTokenizer()) / "tokens.bin"
    data = bytearray(tokens.read_bytes())
    data[len(data) // 2] ^= 1
    tokens.write_bytes(data)
    assert_one_clear_line(
        run, f"{tokens}: bytes", "not what was written", f"remove the folder {tokens.parent}"
    )


def test_a_checkpoint_folder_that_cannot_be_read(tmp_path: Path) -> None:
    """A file where the folder should be (root reads any folder, so permissions prove nothing here)."""
    (tmp_path / "occupied").write_text("")
    run = make_run(tmp_path, {"checkpoint.folder": str(tmp_path / "occupied")})
    assert_one_clear_line(run, str(tmp_path / "occupied"))


def test_a_run_folder_that_cannot_be_made(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"output.folder": "/proc/run"})
    assert_one_clear_line(run, "/proc/run")
