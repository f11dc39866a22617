"""nvrx-run: one YAML recipe declares a fault-tolerant training run; the runner checks, emits or trains it."""

__version__ = "0.1.0"
