"""The supervisor of a run on one node: run folder, launcher process, signals, exit code, summary. No torch."""
