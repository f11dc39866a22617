"""`nvrx-data`: the data of a run made ahead of it: the same bytes, once, whatever interrupts it or turns it away."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hublab import Answer, serving

from runner.errors import ExitCode, InputError, RunError
from runner.recipe.load import load_recipe
from runner.recipe.resolve import resolve
from runner.train.data.packed import packed_folder, prepare
from runner.train.data.tokenizer import ByteTokenizer
from runner.train.hub import hub_errors, with_backoff
from runner.train.prepare_data import main, pack

COMMAND = str(Path(sys.executable).with_name("nvrx-data"))


def write_recipe(folder: Path, dataset: dict[str, Any], run: str = "run") -> Path:
    """A recipe whose run folder is below `folder`."""
    data = {
        "name": "tiny",
        "model": {
            "architecture": {
                "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                "num_attention_heads": 4, "num_key_value_heads": 2,
            }
        },
        "dataset": {"sequence_length": 32, "tokenizer": "bytes", **dataset},
        "sharding": {"strategy": "ddp"},
        "training": {"steps": 4, "global_batch_size": 4, "precision": "fp32"},
        "checkpoint": {"every": 2},
        "recovery": {"layer": "none"},
        "cluster": {"accelerator": "cpu", "processes_per_node": 1},
        "output": {"folder": str(folder / run)},
    }  # fmt: skip
    path = folder / f"{run}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def documents_file(folder: Path, count: int) -> Path:
    """JSON lines of text."""
    rng = random.Random(1)
    path = folder / "documents.jsonl"
    with path.open("w") as stream:
        for number in range(count):
            stream.write(json.dumps({"text": f"{number} " + "word " * rng.randrange(1, 60)}) + "\n")
    return path


def command(recipe: Path) -> subprocess.CompletedProcess[str]:
    """`nvrx-data RECIPE`, to its end."""
    return subprocess.run([COMMAND, str(recipe)], capture_output=True, text=True, timeout=120, check=False)


def test_a_run_finds_what_was_prepared_and_a_second_call_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(tmp_path, {"source": "embedded"})
    first = command(path)
    assert first.returncode == 0, first.stderr
    recipe = resolve(load_recipe(path).recipe, cwd=tmp_path)
    folder = packed_folder(recipe)
    files = {item.name: (item.read_bytes(), item.stat().st_mtime_ns) for item in folder.iterdir()}
    assert files.keys() == {"tokens.bin", "blocks.bin", "index.json"}
    assert "prepared already, all of it verified" in command(path).stdout
    assert prepare(recipe, ByteTokenizer()) == folder  # what a run calls: it finds the data
    assert {item.name: (item.read_bytes(), item.stat().st_mtime_ns) for item in folder.iterdir()} == files
    assert [item.name for item in folder.parent.iterdir()] == [folder.name]

    alone = resolve(load_recipe(write_recipe(tmp_path, {"source": "embedded"}, "alone")).recipe, cwd=tmp_path)
    made_by_a_run = prepare(alone, ByteTokenizer())
    for name, (content, _) in files.items():
        assert (made_by_a_run / name).read_bytes() == content

    def refuse(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as unwell:
        unwell.setattr(Path, "read_bytes", refuse)
        assert main([str(path)]) == ExitCode.SAVE_FAILED
    said = capsys.readouterr().err
    assert said.startswith(f"nvrx-data: {folder}/index.json: cannot be read: Input/output error; mend"), said
    assert said.count("\n") == 1

    (folder / "index.json").write_text("{")
    damaged = command(path)
    assert damaged.returncode == ExitCode.BAD_RECIPE
    assert damaged.stderr.startswith(f"nvrx-data: {folder}/index.json: is damaged"), damaged.stderr
    assert damaged.stderr.count("\n") == 1


@pytest.mark.parametrize("note", ["", "[]", '{"documents": "many", "tokens": 1, "dtype": "uint16"}'])
def test_a_damaged_note_of_an_interrupted_preparation_is_named(tmp_path: Path, note: str) -> None:
    recipe = resolve(load_recipe(write_recipe(tmp_path, {"source": "embedded"})).recipe, cwd=tmp_path)
    folder = packed_folder(recipe)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    unfinished.mkdir(parents=True)
    (unfinished / "progress.json").write_text(note)
    with pytest.raises(InputError, match=r"progress\.json: is damaged .*remove the folder .*unfinished"):
        pack(recipe, ByteTokenizer(), folder)


@pytest.mark.timeout(240)
def test_killed_preparation_goes_on_where_it_stopped_and_ends_the_same(tmp_path: Path) -> None:
    source = documents_file(tmp_path, 40_000)
    dataset = {"source": "files", "format": "json", "paths": [str(source)]}
    path = write_recipe(tmp_path, dataset)
    folder = packed_folder(resolve(load_recipe(path).recipe, cwd=tmp_path))
    progress = folder.with_name(f"{folder.name}.unfinished") / "progress.json"
    with subprocess.Popen(
        [COMMAND, str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + 100
        while not progress.exists():
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
    kept = json.loads(progress.read_text())["documents"]
    assert 0 < kept < 40_000
    assert not folder.exists()

    again = command(path)
    assert again.returncode == 0, again.stderr
    assert f"going on after {kept:,} documents" in again.stderr
    other = resolve(load_recipe(write_recipe(tmp_path, dataset, "other")).recipe, cwd=tmp_path)
    whole = prepare(other, ByteTokenizer())
    for name in ("tokens.bin", "blocks.bin", "index.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_two_preparations_of_the_same_data_do_not_mix(tmp_path: Path) -> None:
    recipe = resolve(load_recipe(write_recipe(tmp_path, {"source": "embedded"})).recipe, cwd=tmp_path)
    folder = packed_folder(recipe)

    class Reentrant(ByteTokenizer):
        def encode(self, texts: Any) -> Any:
            with pytest.raises(RunError, match="another nvrx-data prepares this data"):
                pack(recipe, ByteTokenizer(), folder)
            return super().encode(texts)

    assert pack(recipe, Reentrant(), folder).documents > 0


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    done = command(write_recipe(tmp_path, {"source": "files", "format": "text", "paths": ["/no/such/file"]}))
    assert done.returncode == ExitCode.BAD_RECIPE
    assert (
        done.stderr.strip()
        == "nvrx-data: dataset.paths: /no/such/file names no file; correct it, or bring the files there"
    )


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_run_folder_that_cannot_be_made_is_the_recipes_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    recipe = write_recipe(tmp_path, {"source": "embedded"})
    (tmp_path / "file").touch()
    assert main([str(recipe), "--set", f"output.folder={tmp_path / name}"]) == ExitCode.BAD_RECIPE
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"nvrx-data: output.folder: {tmp_path / name}")
    assert said.endswith("Not a directory; name a folder that can be written\n")


def test_a_full_disk_is_one_line_with_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, {"source": "embedded"})

    def full(descriptor: int) -> None:  # where file systems that allocate late say so
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert main([str(recipe)]) == ExitCode.SAVE_FAILED
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith(
        ".unfinished/tokens.bin: No space left on device; make room, then run the same command\n"
    )


@contextmanager
def hub(answers: list[int]) -> Iterator[tuple[str, list[str]]]:
    """A hub that answers each request with the next status, and with the last one from then on."""

    def answer(_path: str) -> Answer:
        status = answers.pop(0) if len(answers) > 1 else answers[0]
        return (200, b'{"model_type": "llama"}', {"ETag": '"1"'}) if status == 200 else (status, b"", {})

    with serving(answer) as served:
        yield served


def fetch(endpoint: str, cache: Path) -> str:
    """What loading from the hub comes down to: one file, by the hub's own client."""
    from huggingface_hub import hf_hub_download

    with hub_errors("model", "me/model"):
        return hf_hub_download("me/model", "config.json", endpoint=endpoint, cache_dir=cache)


@pytest.fixture
def impatient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's client asks again by itself a few times; its waits are of no interest here."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.mark.usefixtures("impatient_client")
def test_busy_hub_is_asked_again_later_and_later(tmp_path: Path) -> None:
    pauses: list[float] = []
    with hub([429] * 20 + [200]) as (endpoint, seen):
        path = with_backoff(lambda: fetch(endpoint, tmp_path), sleep=pauses.append)
    assert json.loads(Path(path).read_text()) == {"model_type": "llama"}
    assert len(seen) >= 21
    assert len(pauses) >= 2
    assert all(4 * 2**n <= pause <= 6 * 2**n for n, pause in enumerate(pauses))


@pytest.mark.usefixtures("impatient_client")
def test_hub_that_stays_busy_is_given_up_with_a_code_that_another_try_may_follow(tmp_path: Path) -> None:
    pauses: list[float] = []
    with (
        hub([503]) as (endpoint, _),
        pytest.raises(RunError, match=r"the hub answers 503; .* \(3 attempts\)") as caught,
    ):
        with_backoff(lambda: fetch(endpoint, tmp_path), attempts=3, sleep=pauses.append)
    assert len(pauses) == 2
    assert caught.value.exit_code == ExitCode.CRASHED


def test_what_does_not_exist_is_asked_for_once(tmp_path: Path) -> None:
    with hub([404]) as (endpoint, _), pytest.raises(InputError, match="cannot be loaded"):
        with_backoff(lambda: fetch(endpoint, tmp_path), sleep=lambda pause: pytest.fail("waited"))
