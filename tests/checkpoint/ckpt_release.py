"""One rank saves asynchronously, twice, and restores: run as a program under some NVRx release."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from importlib import metadata
from pathlib import Path

import torch.distributed as dist
from ckpt_world import Rank, Recorder, Trainer, digest, manager, train, writer_pid

from runner.ledger.events import SaveFailed


def main(folder: Path) -> dict[str, object]:
    """Save, replace a killed writer, save again, restore."""
    os.environ["CKPT_SESSION"] = str(os.getpid())
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    place = Rank(0, 1, store, "release")
    whole = train(
        place, folder=str(folder / "a"), run_id="a", until=4, mode="async", every=2, snapshot_every=1
    )
    dist.destroy_process_group()
    life, recorder = place.life(), Recorder()
    trainer = Trainer(life)
    checkpointer = manager(folder / "b", recorder, "b", mode="async", every=2, on_error="continue")
    checkpointer.attach(life, trainer.state)
    checkpointer.restore()
    writer = writer_pid()
    os.kill(writer, signal.SIGSTOP)
    trainer.step(checkpointer)
    trainer.step(checkpointer)  # the save of step 2 is handed over
    os.kill(writer, signal.SIGKILL)
    for _ in range(5):
        trainer.step(checkpointer)
    checkpointer.finish()
    saved = digest(trainer.full_state())
    checkpointer.close()
    dist.destroy_process_group()
    again = train(place, folder=str(folder / "b"), run_id="b", until=trainer.state.step, mode="async")
    dist.destroy_process_group()
    left = [
        path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(f"nvrx-test{os.getpid()}")
    ]
    return {
        "version": metadata.version("nvidia-resiliency-ext"),
        "committed": whole["committed"],
        "restored": again["digests"][trainer.state.step] == saved,
        "source": again["source"],
        "failed": [event.step for event in recorder.of(SaveFailed)],
        "left": left,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
