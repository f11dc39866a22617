"""`Recipe`: the whole of what a user declares."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from runner.recipe.checkpoint import CheckpointSection
from runner.recipe.cluster import ClusterSection
from runner.recipe.dataset import DatasetSection
from runner.recipe.faults import FaultsSection
from runner.recipe.fields import Section
from runner.recipe.model import ModelSection
from runner.recipe.output import OutputSection
from runner.recipe.recovery import RecoverySection
from runner.recipe.sharding import ShardingSection
from runner.recipe.training import TrainingSection


class Recipe(Section):
    """One training run."""

    name: Annotated[str, Field(min_length=1, max_length=52, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the run: lower-case letters, digits and dashes. Names the folder, the Job and the Service."""
    model: ModelSection
    """The model."""
    dataset: DatasetSection
    """The text to train on."""
    sharding: ShardingSection
    """How parameters are laid out over the ranks."""
    training: TrainingSection
    """Steps, batches, optimiser."""
    checkpoint: CheckpointSection
    """Snapshots and checkpoints."""
    recovery: RecoverySection
    """Which layer mends a fault."""
    faults: FaultsSection = FaultsSection()
    """Faults injected on purpose."""
    cluster: ClusterSection = ClusterSection()
    """The machines."""
    output: OutputSection = OutputSection()
    """The run's folder and what is shown."""

    @property
    def run_folder(self) -> Path:
        """The run's folder, as written in the recipe or by default."""
        return Path(self.output.folder or f"runs/{self.name}")

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints go."""
        return Path(self.checkpoint.folder) if self.checkpoint.folder else self.run_folder / "checkpoints"
