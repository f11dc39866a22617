"""Recovery layers: each hands out a `Life` to the training function and mends what it can."""

from runner.recovery.run import run_with_recovery

__all__ = ["run_with_recovery"]
