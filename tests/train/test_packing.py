"""From text to sequences."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from runner.errors import InputError
from runner.recipe.recipe import Recipe
from runner.train.data.cache import is_prepared
from runner.train.data.packed import PackedTokens, packed_folder, prepare
from runner.train.data.text import documents
from runner.train.data.tokenizer import ByteTokenizer, load_tokenizer

MakeRecipe = Callable[..., Recipe]


def test_every_token_is_in_once_and_each_document_ends_with_end_of_text(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    texts = ["ab", "", "cdé"]
    Dataset.from_dict({"text": texts}).save_to_disk(str(tmp_path / "saved"))
    recipe = make_recipe(
        {"dataset": {"source": "saved", "path": str(tmp_path / "saved"), "sequence_length": 2}}
    )
    packed = PackedTokens(prepare(recipe, ByteTokenizer()), 2)
    flat = [*packed[0][:1], *np.concatenate([packed[i][1:] for i in range(len(packed))])]
    expected = [token for text in texts for token in [*text.encode(), 256]]
    assert flat == expected[: len(flat)]
    assert len(expected) - len(flat) < 2  # only a last piece shorter than a sequence is left out
    assert packed.documents == 3


def test_neighbouring_sequences_share_one_token_so_that_each_is_predicted_once(
    make_recipe: MakeRecipe,
) -> None:
    recipe = make_recipe()
    packed = PackedTokens(prepare(recipe, ByteTokenizer()), 32)
    assert packed[0].shape == (33,)
    assert packed[0][-1] == packed[1][0]


def test_the_embedded_text_is_english_of_some_size(make_recipe: MakeRecipe) -> None:
    text = "\n".join(documents(make_recipe({"dataset": {"source": "embedded"}}).dataset))
    assert len(text) > 400_000
    assert text.lower().count(" the ") > 1000


def test_preparation_is_done_once_and_a_broken_one_leaves_nothing(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    recipe = make_recipe()
    folder = prepare(recipe, load_tokenizer(recipe))
    before = (folder / "tokens.bin").stat()
    assert prepare(recipe, load_tokenizer(recipe)) == folder
    assert (folder / "tokens.bin").stat().st_mtime_ns == before.st_mtime_ns

    class Broken(ByteTokenizer):
        def encode(self, texts):  # type: ignore[no-untyped-def]
            raise OSError("disk full")

    other = make_recipe({"dataset.max_documents": 5})
    with pytest.raises(OSError, match="disk full"):
        prepare(other, Broken())
    assert not is_prepared(packed_folder(other))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_what_a_killed_process_of_the_same_number_left_does_not_hold_preparation_up(
    make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pods processes are counted from 1: the successor of a killed one often has its number."""
    recipe = make_recipe()
    folder = packed_folder(recipe)
    left = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    left.mkdir(parents=True)
    (left / "tokens.bin").write_bytes(b"half")
    assert prepare(recipe, ByteTokenizer()) == folder
    assert is_prepared(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_json_lines_text_and_parquet_files_give_the_same_documents(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    texts = ["first document\nof two lines", "second"]
    Dataset.from_dict({"text": texts}).to_json(str(tmp_path / "a.jsonl"))
    Dataset.from_dict({"text": texts}).to_parquet(str(tmp_path / "a.parquet"))
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.txt").write_text(text)
    for kind, pattern in (("json", "a.jsonl"), ("parquet", "a.parquet"), ("text", "*.txt")):
        dataset = {"source": "files", "format": kind, "paths": [str(tmp_path / pattern)]}
        assert list(documents(make_recipe({"dataset": dataset}).dataset)) == texts, kind


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"source": "saved", "path": "/nowhere"}, r"dataset\.path: /nowhere is not a folder"),
        (
            {"source": "files", "format": "json", "paths": ["/nowhere/*.json"]},
            r"dataset\.paths: /nowhere/\*\.json names no",
        ),
    ],
)
def test_data_that_is_not_there_is_named(
    make_recipe: MakeRecipe, dataset: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        list(documents(make_recipe({"dataset": dataset}).dataset))


def test_a_missing_text_column_is_named_with_those_that_exist(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    Dataset.from_dict({"body": ["x"]}).save_to_disk(str(tmp_path / "saved"))
    recipe = make_recipe({"dataset": {"source": "saved", "path": str(tmp_path / "saved")}})
    with pytest.raises(InputError, match=r"no column 'text'; it has body"):
        list(documents(recipe.dataset))


def test_a_tokenizer_without_padding_token_keeps_rows_of_unequal_length_and_genuine_end_of_text(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({"c": 0, "a": 1, "b": 2, "<eos>": 3, "<unk>": 4}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>").save_pretrained(tmp_path / "tok")
    Dataset.from_dict({"text": ["a b c", "b", "a <eos> b"]}).save_to_disk(str(tmp_path / "saved"))
    recipe = make_recipe(
        {"dataset": {"source": "saved", "path": str(tmp_path / "saved"), "tokenizer": str(tmp_path / "tok")}}
    )
    folder = prepare(recipe, load_tokenizer(recipe))
    packed = PackedTokens(folder, 9)
    assert packed[0].tolist() == [1, 2, 0, 3, 2, 3, 1, 3, 2, 3]
    assert packed.tokens == 10, "no row was made as long as another"
