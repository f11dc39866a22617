"""A run asks a hub once a node, however many ranks it has and however often they start."""

from __future__ import annotations

from pathlib import Path

from hublab import local_hub
from product import LAYERS, make_run


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """Of a tokenizer of bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(
        models.BPE(vocab={sign: index for index, sign in enumerate([*signs, "<end>"])}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>").save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_neither_ranks_nor_those_that_start_again_ask_the_hub(tmp_path: Path) -> None:
    run = make_run(
        tmp_path,
        {
            "dataset.tokenizer": "me/bytes",
            "training.steps": 3,
            "checkpoint.mode": "sync",
            "recovery": LAYERS["ft_launcher"],
            "faults.at": [{"step": 2, "rank": 1, "type": "sigkill"}],
        },
    )
    with local_hub(tokenizer_files(tmp_path / "made")) as (endpoint, seen):
        run.finish(HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="0")
        assert len(run.events("LifeStarted")) == 4, "two ranks, twice"
    asked = [request.split()[0] for request in seen if request.endswith("/tokenizer.json")]
    assert asked.count("GET") == 1
    assert asked.count("HEAD") <= 2, (
        "one, or one more where no answer came in time; with each rank it were five"
    )
