"""`output`: the run's folder and what is shown."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.recipe.fields import Section


class WandbSettings(Section):
    """Weights & Biases. The key comes from the environment (WANDB_API_KEY) or from `wandb login`."""

    project: str
    """Project that the run belongs to."""
    entity: str | None = None
    """User or team. Default: the key's own."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes to the run's folder, for `wandb sync` later."""


class MlflowSettings(Section):
    """MLflow. Credentials come from the environment."""

    experiment: str
    """Experiment that the run belongs to; made where it is missing."""
    tracking_uri: str | None = None
    """Server or store. Default: MLFLOW_TRACKING_URI."""


class LiveSettings(Section):
    """Where the run's figures go while it runs. The ledger is always written; a sink never holds training up."""

    tensorboard: bool = False
    """Event files under `tensorboard` in the run's folder. Needs the extra `live`."""
    prometheus_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of a Prometheus endpoint (`/metrics`) on each node."""
    wandb: WandbSettings | None = None
    """Weights & Biases. Needs the extra `live`."""
    mlflow: MlflowSettings | None = None
    """MLflow. Needs the extra `live`."""


class OutputSection(Section):
    """The folder is the run: the same command with the same folder resumes it."""

    folder: str | None = None
    """The run's folder: checkpoints, ledger, logs. Default: `runs/<name>`. Must be seen by all nodes."""
    log_format: Literal["console", "json"] = "console"
    """Format of the log on standard output. The run's folder always gets JSON lines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level shown."""
    progress: Literal["auto", "on", "off"] = "auto"
    """Progress bar. `auto`: on a terminal."""
    live: LiveSettings = LiveSettings()
    """TensorBoard, Prometheus, W&B, MLflow."""
