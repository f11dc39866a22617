"""`nvrx-run --export RECIPE STEP`: a checkpoint's weights as a Hugging Face folder.

`AutoModelForCausalLM.from_pretrained` loads what is written: safetensors shards, config, generation config and
tokenizer. Tensors stream from the checkpoint's files to the shards one by one, so that host memory holds the largest
tensor, never the model; no GPU and no other rank is needed.
"""

from __future__ import annotations

import copy
import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.arguments import working_folder
from runner.checkpoint.contradiction import same_tensors
from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.record import CommitRecord
from runner.errors import ExitCode, InputError, no_room, storage_error
from runner.recipe.recipe import Recipe
from runner.recipe.resolve import resolve
from runner.streams import write_out
from runner.system.durable import write_durably
from runner.train.building import building, refuse_existing
from runner.train.export_source import find, reading, verified

_PREFIX = "model."
_SHARD_BYTES = 5 << 30
_NAMES = {  # safetensors' names of dtypes
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class _Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def export(recipe: Recipe, step: str, output: str | None) -> int:
    """Write the weights of a committed checkpoint.

    Args:
        step: a step, or `latest`.
        output: folder to make; default `export/step-<N>` in the run's folder.

    Raises:
        InputError: no such checkpoint, or of another model than the recipe's; the folder is there already.
        RunError: NO_LOADABLE_CHECKPOINT where the checkpoint does not verify; SAVE_FAILED where the operating system
            does not give it, or there is no room for what is written.
    """
    recipe = resolve(recipe, cwd=working_folder())
    source = find(CheckpointFolder(recipe.checkpoint_folder), step)
    number = int(source.name.removeprefix("step-"))
    target = Path(output) if output else recipe.run_folder / "export" / f"step-{number}"
    refuse_existing(target)
    record = verified(source, full=recipe.checkpoint.verify == "full")
    config, tokenizer = _declared(recipe)
    _check_model(source, record, recipe, config)
    try:
        with building(target) as folder:
            _write_weights(source, record, folder)
            _write_description(recipe, config, tokenizer, record, folder)
    except OSError as error:
        if no_room(error):
            raise storage_error(error, target) from error
        raise InputError(f"--output: {error.filename or target}: {error.strerror}") from error
    write_out(f"step {number} exported to {target}\n")
    return int(ExitCode.DONE)


def _write_weights(source: Path, record: CommitRecord, target: Path) -> None:
    from runner.checkpoint.layout import DTYPES

    tensors = [
        _Tensor(name, dtype, tuple(shape), math.prod(shape) * DTYPES[dtype].itemsize)
        for name, (dtype, shape) in record.tensors.items()
        if name.startswith(_PREFIX)
    ]
    shards: list[list[_Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.nbytes > _SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.nbytes
    places: dict[str, str] = {}
    for index, shard in enumerate(shards):
        many = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        name = "model.safetensors" if len(shards) == 1 else many
        _write_shard(target / name, shard, source, record)
        places |= {tensor.name.removeprefix(_PREFIX): name for tensor in shard}
    if len(shards) > 1:
        index_file = {"metadata": {"total_size": sum(t.nbytes for t in tensors)}, "weight_map": places}
        write_durably(target / "model.safetensors.index.json", json.dumps(index_file, indent=1))


def _write_shard(path: Path, tensors: list[_Tensor], source: Path, record: CommitRecord) -> None:
    """One safetensors file: header length, header, then the tensors' bytes."""
    from runner.checkpoint import loader
    from runner.checkpoint.layout import Layout, Shard

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for t in tensors:
        place = [at, at + t.nbytes]
        header[t.name.removeprefix(_PREFIX)] = {
            "dtype": _NAMES[t.dtype],
            "shape": list(t.shape),
            "data_offsets": place,
        }
        at += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for t in tensors:
            shard = Shard(t.name, t.dtype, t.shape, (0,) * len(t.shape), t.shape, 0, t.nbytes)
            memory = memoryview(bytearray(t.nbytes))
            layout = Layout((shard,), t.nbytes)
            with reading(source):
                loader.load(source, record, layout, memory, 0, 1, full=False, threads=4, beat=lambda: None)
            stream.write(memory)
        stream.flush()
        os.fsync(stream.fileno())


def _declared(recipe: Recipe) -> tuple[Any, Any]:
    """Configuration and tokenizer of transformers, as the recipe has them."""
    from runner.train.data.tokenizer import tokenizer_name
    from runner.train.model import model_config

    tokenizer = _tokenizer(tokenizer_name(recipe), recipe)
    return model_config(recipe.model, len(tokenizer)), tokenizer


def _check_model(source: Path, record: CommitRecord, recipe: Recipe, config: Any) -> None:
    """Refuse a checkpoint of another model than the recipe's, as a run does; the optimiser is not asked for.

    Raises:
        InputError: names, shapes or formats of the model's tensors differ.
    """
    from runner.train.model import build_on_meta
    from runner.train.setup import persistent_buffers

    module = build_on_meta(
        copy.deepcopy(config), recipe.model
    ).module  # building writes into the configuration
    buffers = {name: module.get_buffer(name) for name in persistent_buffers(module)}
    mine = {
        f"{_PREFIX}{name}": [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        for name, tensor in [*module.named_parameters(), *buffers.items()]
    }
    stored = {name: value for name, value in record.tensors.items() if name.startswith(_PREFIX)}
    same_tensors(source, stored, mine)


def _write_description(
    recipe: Recipe, config: Any, tokenizer: Any, record: CommitRecord, target: Path
) -> None:
    """Config, generation config and tokenizer, which agree on the tokens that begin, end and fill a text."""
    from transformers import GenerationConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    from runner.train.data.tokenizer import tokenizer_name

    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    config.dtype = next(dtype for name, (dtype, _) in record.tensors.items() if name.startswith(_PREFIX))
    config.use_cache = True
    own = tokenizer_name(recipe) == recipe.model.name
    _take_special_tokens(config, tokenizer, own=own)
    if config.get_text_config() is not config:
        _take_special_tokens(config.get_text_config(), tokenizer, own=own)
    generation = _generation_config(recipe) if own else None
    if generation is None:
        generation = GenerationConfig.from_model_config(config)
    _take_special_tokens(generation, tokenizer, own=own)
    config.save_pretrained(target)
    generation.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _take_special_tokens(config: Any, tokenizer: Any, *, own: bool) -> None:
    """Set a config's special tokens to what the text was trained with.

    An architecture's defaults are numbers of the tokenizer of its first publication: in another one's vocabulary they
    are ordinary words, and a text would end at them. A published model with its own tokenizer may name further tokens
    that end a text (the turn of a chat); they stay.

    Args:
        config: a model's or a generation's.
        own: whether the tokenizer is the named model's own.
    """
    config.bos_token_id = tokenizer.bos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    declared = config.eos_token_id
    if not (own and isinstance(declared, list) and tokenizer.eos_token_id in declared):
        config.eos_token_id = tokenizer.eos_token_id


def _generation_config(recipe: Recipe) -> Any:
    """How the named model says that texts be drawn from it; None where it says nothing."""
    from transformers import GenerationConfig
    from transformers.utils import GENERATION_CONFIG_NAME, cached_file

    from runner.train.hub import hub_errors

    name, revision = recipe.model.name, recipe.model.revision
    with hub_errors("model", str(name)):
        found = cached_file(
            name, GENERATION_CONFIG_NAME, revision=revision, _raise_exceptions_for_missing_entries=False
        )
        return found and GenerationConfig.from_pretrained(name, revision=revision)


def _tokenizer(name: str, recipe: Recipe) -> Any:
    """The tokenizer of the recipe's data, as transformers has it."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from runner.train.data.tokenizer import BYTES
    from runner.train.hub import hub_errors

    if name != BYTES:
        revision = recipe.model.revision if name == recipe.model.name else None
        with hub_errors("tokenizer", name):
            return AutoTokenizer.from_pretrained(name, revision=revision)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # Byte b is token b; the library writes bytes as printable characters, those of GPT-2's table.
    printable = [b for b in range(256) if b in {*range(33, 127), *range(161, 173), *range(174, 256)}]
    others = [b for b in range(256) if b not in printable]
    vocabulary = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(["<|endoftext|>"])  # takes the next number, 256
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<|endoftext|>")
