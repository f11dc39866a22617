"""What the lives of one process leave to those after them."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from runner.recovery.life import ProcessLife


def test_restarts_in_process_do_not_wrap_the_hook_for_exceptions_once_more_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    hooks = []
    for number in range(3):
        store = HashStore()
        unused: Any = None
        life = ProcessLife(
            rank=0,
            world_size=1,
            facts=SimpleNamespace(local_rank=0, local_world_size=1),  # type: ignore[arg-type]
            attempt=f"life-{number}",
            in_process=number > 0,
            connections=SimpleNamespace(control=store, group=store),  # type: ignore[arg-type]
            group_timeout=timedelta(seconds=30),
            ledger=unused,
            layer="inprocess",
            presence=unused,
            start_watch=unused,
            first_step=timedelta(seconds=1),
            heartbeats=None,
        )
        life.join(torch.device("cpu"))
        hooks.append(sys.excepthook)
        life.leave()
    assert hooks[0] is hooks[1] is hooks[2]
