"""Prepared data that are damaged: noticed wherever the damage lies, told in one line with file and remedy."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.errors import ExitCode
from runner.recipe.recipe import Recipe
from runner.train.data.batches import PackedBatches
from runner.train.data.cache import (
    BLOCK,
    CacheReader,
    CacheWriter,
    DamagedCacheError,
    UnreadableCacheError,
    check_prepared,
    is_prepared,
)
from runner.train.data.packed import PackedTokens, packed_folder, prepare
from runner.train.data.tokenizer import ByteTokenizer
from runner.train.prepare_data import pack

COUNT = 3 * BLOCK // 2 + 777  # tokens of two bytes: three blocks and a piece


def tokens(count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2**16, count)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of three and a half blocks."""
    folder = tmp_path / "cache"
    folder.mkdir()
    writer = CacheWriter(folder, np.dtype(np.uint16))
    for piece in np.array_split(tokens(), 11):
        writer.write(piece)
    writer.finish(documents=11, tokenizer="bytes")
    return folder


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_what_is_read_is_what_was_written_wherever_it_lies(cache: Path) -> None:
    reader, all_of_it = CacheReader(cache), tokens()
    half = BLOCK // 2  # tokens a block
    for begin, end in ((0, 1), (half - 1, half + 1), (half, 2 * half), (5, COUNT), (COUNT - 1, COUNT)):
        assert reader.read(begin, end).tolist() == all_of_it[begin:end].tolist()
    reader.verify_all()


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 2 * COUNT - 1])
def test_a_flipped_bit_is_noticed_by_whoever_reads_that_block_and_by_nobody_else(
    cache: Path, at: int
) -> None:
    flip(cache / "tokens.bin", at)
    reader, token = CacheReader(cache), at // 2
    with pytest.raises(
        DamagedCacheError, match=r"tokens\.bin: bytes [\d,]+ to [\d,]+ are not what"
    ) as caught:
        reader.read(max(0, token - 3), token + 1)
    assert caught.value.exit_code == ExitCode.BAD_RECIPE
    assert f"remove the folder {cache}: the next run, or nvrx-data RECIPE, makes" in str(caught.value)
    assert "\n" not in str(caught.value)
    healthy = 2 * (BLOCK // 2)
    assert reader.read(healthy, healthy + 9).tolist() == tokens()[healthy : healthy + 9].tolist()
    with pytest.raises(DamagedCacheError):
        check_prepared(cache)  # small enough to be read before it is used


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("index.json", b"", r"index\.json: is empty"),
        ("index.json", b'{"tokens": 9', r"index\.json: is damaged \(JSONDecodeError"),
        ("index.json", b"\xff\x00", r"index\.json: is damaged \(UnicodeDecodeError"),
        ("index.json", b"[]", r"index\.json: is damaged \(TypeError"),
        ("index.json", b"{}", r"index\.json: is damaged \(KeyError: 'dtype'"),
        ("index.json", b'{"tokens": 4, "documents": 1, "dtype": "O", "tokenizer": ""}', "dtype 'O'"),
        ("index.json", Path(), r"index\.json: is a folder"),
        ("index.json", Path("index.json"), r"index\.json: is a link to itself"),
        ("tokens.bin", None, r"tokens\.bin: is missing"),
        ("tokens.bin", b"", r"tokens\.bin: has 0 bytes, index\.json says 198,162"),
        ("blocks.bin", None, r"blocks\.bin: is missing"),
        ("blocks.bin", b"x" * 31, r"blocks\.bin: has 31 bytes, index\.json says 32"),
        ("blocks.bin", b"x" * 32, r"blocks\.bin: does not have the checksum"),
    ],
)
def test_damaged_files_are_named_when_the_cache_is_opened(
    cache: Path, file: str, content: bytes | Path | None, what: str
) -> None:
    if not isinstance(content, bytes):
        (cache / file).unlink()
    if isinstance(content, Path):
        (cache / file).symlink_to(content)
    elif content is not None:
        (cache / file).write_bytes(content)
    with pytest.raises(DamagedCacheError, match=what) as caught:
        CacheReader(cache)
    assert f"remove the folder {cache}" in str(caught.value)


@pytest.mark.parametrize("key", ["tokens", "bytes", "dtype", "blocks_xxh3_128"])
def test_an_index_that_says_something_else_is_noticed(cache: Path, key: str) -> None:
    index = json.loads((cache / "index.json").read_text())
    index[key] = {
        "tokens": COUNT - 1,
        "bytes": 2 * COUNT + 2,
        "dtype": "uint32",
        "blocks_xxh3_128": "0" * 32,
    }[key]
    (cache / "index.json").write_text(json.dumps(index))
    with pytest.raises(DamagedCacheError):
        CacheReader(cache)


def test_data_that_are_cut_while_they_are_used_are_an_error_and_no_signal(cache: Path) -> None:
    reader = CacheReader(cache)
    with (cache / "tokens.bin").open("r+b") as file:
        file.truncate(BLOCK)
    assert len(reader.read(0, 9)) == 9
    with pytest.raises(DamagedCacheError, match=r"ends at byte 65,536, it was cut while it was in use"):
        reader.read(0, COUNT)


def test_storage_that_fails_is_named_and_may_be_tried_again(cache: Path) -> None:
    reader = CacheReader(cache)
    reader._file.close()
    reader._file = (cache / "tokens.bin").open("ab", buffering=0)  # the kernel refuses to read from it
    with pytest.raises(UnreadableCacheError, match=r"tokens\.bin: cannot be read: Bad file descriptor"):
        reader.read(0, 9)


@pytest.mark.parametrize("name", ["index.json", "blocks.bin", "tokens.bin"])
@pytest.mark.parametrize("what", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_storage_that_fails_when_a_cache_is_opened_says_nothing_about_the_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: int
) -> None:
    for method in ("stat", "open", "read_bytes"):  # each alone
        with monkeypatch.context() as sick:
            refuse(sick, method, name, what)
            if method == "read_bytes" and name == "tokens.bin":  # never read as a whole
                CacheReader(cache)
                continue
            with pytest.raises(UnreadableCacheError) as caught:
                assert is_prepared(cache)
                check_prepared(cache)
        assert str(caught.value) == f"{cache / name}: cannot be read: {os.strerror(what)}"
    CacheReader(cache).verify_all()


def refuse(monkeypatch: pytest.MonkeyPatch, method: str, name: str, what: int) -> None:
    """Let the operating system refuse one method of `Path` for files of this name."""
    real = getattr(Path, method)

    def refusing(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == name:
            raise OSError(what, os.strerror(what), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, method, refusing)


def test_a_cache_of_an_earlier_version_is_used_and_known_to_have_no_checksums(cache: Path) -> None:
    old = {"tokens": COUNT, "documents": 11, "dtype": "uint16", "tokenizer": "bytes"}
    (cache / "index.json").write_text(json.dumps(old))
    (cache / "blocks.bin").unlink()
    packed = PackedTokens(cache, 32)
    assert not packed.has_checksums
    assert packed[0].tolist() == tokens()[:33].tolist()
    with (cache / "tokens.bin").open("ab") as file:
        file.write(b"more")
    with pytest.raises(DamagedCacheError, match=r"tokens\.bin: has 198,166 bytes, index\.json says 198,162"):
        PackedTokens(cache, 32)


def test_a_writer_goes_on_after_what_was_flushed_and_ends_with_the_same_files(
    cache: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    kept = BLOCK // 2 + 55
    first = CacheWriter(other, np.dtype(np.uint16))
    first.write(tokens()[:kept])
    first.flush()
    first.write(tokens()[: BLOCK * 2])  # what comes after the last note is written again
    first.close()
    second = CacheWriter(other, np.dtype(np.uint16), kept=kept)
    second.write(tokens()[kept:])
    second.finish(documents=11, tokenizer="bytes")
    for name in ("tokens.bin", "blocks.bin", "index.json"):
        assert (other / name).read_bytes() == (cache / name).read_bytes()
    with pytest.raises(DamagedCacheError, match=r"tokens\.bin: has .* bytes where .* were written"):
        CacheWriter(other, np.dtype(np.uint16), kept=COUNT + 1)


def test_preparation_does_not_take_damaged_data_for_prepared_ones(make_recipe: Callable[..., Recipe]) -> None:
    recipe = make_recipe()
    folder = prepare(recipe, ByteTokenizer())
    flip(folder / "tokens.bin", 1000)
    with pytest.raises(DamagedCacheError):
        prepare(recipe, ByteTokenizer())
    (folder / "index.json").unlink()
    for make in (
        lambda: prepare(recipe, ByteTokenizer()),
        lambda: pack(recipe, ByteTokenizer(), packed_folder(recipe)),
    ):
        with pytest.raises(DamagedCacheError, match=r"index\.json: is missing; remove the folder"):
            make()


def test_damage_that_a_data_worker_meets_is_told_in_the_same_line(make_recipe: Callable[..., Recipe]) -> None:
    recipe = make_recipe({"dataset.workers": 2})
    flip(prepare(recipe, ByteTokenizer()) / "tokens.bin", 5)
    batches = PackedBatches(recipe, PackedTokens(packed_folder(recipe), 32), rank=0, world_size=1)
    batches.start(0, {})
    try:
        with pytest.raises(
            DamagedCacheError, match=r"^/\S+/tokens\.bin: bytes 0 to [\d,]+ are not"
        ) as caught:
            for _ in range(recipe.training.steps):
                list(batches.micro_batches())
        assert "\n" not in str(caught.value)
    finally:
        batches.close()
