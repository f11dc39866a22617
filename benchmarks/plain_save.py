"""What a synchronous save costs without the product: `torch.distributed.checkpoint.save` of the same state.

    torchrun --nproc-per-node 2 benchmarks/plain_save.py --folder /tmp/plain --saves 6

The workload of `checkpoint_stall.py`: the same Llama under FSDP2 in bf16 with AdamW, a step, a save by every rank with
torch's default writer (it syncs its files), the folder removed before the next save. Prints the seconds of each save,
from the call on the first rank to the return on the last. `checkpoint_stall.py --cases plain` runs it.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint_stall import SHAPES
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM


def build(shape: dict[str, Any], device: torch.device) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The model with every block sharded, and its optimiser after one step, so that it has state."""
    architecture = dict(shape["architecture"])
    config = AutoConfig.for_model(architecture.pop("model_type"), **architecture)
    with device:
        model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(1, shape["sequence_length"], dtype=torch.long, device=device)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    return model, optimizer


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="synchronous saves without the product")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="reference")
    parser.add_argument("--saves", type=int, default=6)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    dist.init_process_group("nccl" if shape["accelerator"] == "cuda" else "gloo")
    device = torch.device("cpu")
    if shape["accelerator"] == "cuda":
        device = torch.device("cuda", dist.get_rank())
        torch.cuda.set_device(device)
    model, optimizer = build(shape, device)
    for number in range(args.saves):
        state = {
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, optimizer),
        }
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.monotonic()
        dcp.save(state, checkpoint_id=args.folder / str(number))
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"saved {time.monotonic() - begin:.3f}", flush=True)
            shutil.rmtree(args.folder / str(number))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
