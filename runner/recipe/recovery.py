"""`recovery`: which layer mends a fault, and how long it may take to notice one."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from runner.recipe.fields import Duration, NonNegativeInt, Patience, PositiveDuration, PositiveInt, Section


class RestartWindow(Section):
    """How many restarts within what time are too many: faults that come so fast are no accidents any more."""

    restarts: PositiveInt
    """Restarts that are put up with within `time`. One more ends the run with exit code 11; of the in-process layer
    under ft_launcher, it hands over to new processes. Below `max_restarts`."""
    time: PositiveDuration
    """How far back restarts count."""


class StragglerSettings(Section):
    """Naming ranks that are slower than the others, in the log and in the summary."""

    every: PositiveInt = 50
    """Steps from one comparison of the ranks to the next."""
    factor: Annotated[float, Field(gt=1)] = 1.5
    """A rank is slow that needs so many times as long for its own work as the median of the others. Waiting for other
    ranks is no work: all ranks take as long as the slowest."""


class InprocessSettings(Section):
    """NVRx in-process restart: the training function starts again inside the living process.

    Mends soft faults: exceptions, hangs in Python, stuck collectives.
    """

    max_restarts: PositiveInt = 20
    """Restarts of a run before it stops with exit code 11."""
    window: RestartWindow | None = None
    """A tighter budget for faults in quick succession. Default: none."""
    startup_backoff: Duration = timedelta(seconds=2)
    """Pause before a restart that follows on a life without a finished step, so that what keeps the run from starting
    (storage, a port) may pass. Doubles with each such life in a row, up to a minute. Other restarts never wait."""
    max_rank_faults: PositiveInt | None = None
    """Faults of one rank before that rank is given up (NVRx FaultCounter). Default: `max_restarts`."""
    health_checks: (
        Annotated[tuple[Literal["cuda", "gpu", "nvlink", "nic"], ...], Field(strict=False)] | None
    ) = None
    """What a rank on a GPU must pass before it begins another life; one that fails is given up like one with too many
    faults. `cuda`: the device answers. Through NVML, with NVRx 0.5 or later: `gpu`, the driver asks for no reset;
    `nvlink`, the links are up (NVRx only logs it); `nic`, the InfiniBand link nearest to the GPU has not gone down.
    Default: all that the NVRx in use has. Without a GPU nothing is checked."""
    min_world_size: PositiveInt | None = None
    """Fewest ranks with which the run goes on. Default: all of them."""
    soft_timeout: PositiveDuration = timedelta(minutes=1)
    """A rank without progress for so long is interrupted. Above the longest step. In the first step of a process, calls
    into native code (kernels are loaded, ranks connect) may take `start_timeout` in all."""
    hard_timeout: PositiveDuration = timedelta(seconds=90)
    """A rank that ignored the interruption is killed. Above `soft_timeout`."""
    barrier_timeout: PositiveDuration = timedelta(minutes=2)
    """Longest wait for the other ranks at a restart. Above `hard_timeout`."""
    completion_timeout: PositiveDuration = timedelta(minutes=2)
    """Longest wait for the other ranks at the end of the run."""
    heartbeat_timeout: PositiveDuration = timedelta(seconds=30)
    """A process whose monitor thread is silent for so long counts as lost. Below `barrier_timeout`."""
    heartbeat_interval: PositiveDuration = timedelta(seconds=1)
    """How often that thread reports."""
    monitor_interval: PositiveDuration = timedelta(milliseconds=50)
    """How often the monitors look for faults. Detection takes about two of these."""
    last_call_wait: Duration = timedelta(milliseconds=50)
    """Time left to further ranks to report their faults before the restart begins."""
    termination_grace: Duration = timedelta(seconds=5)
    """Time between SIGTERM and SIGKILL for a rank that is killed."""


class FtLauncherSettings(Section):
    """NVRx ft_launcher: workers that died or hung are started again on the same nodes.

    Mends hard faults: SIGKILL, out-of-memory kills, hangs in native code.
    """

    max_restarts: NonNegativeInt = 20
    """Restarts of the workers before the launcher gives up (exit code 11)."""
    window: RestartWindow | None = None
    """A tighter budget for faults in quick succession. Default: none."""
    startup_backoff: Duration = timedelta(seconds=2)
    """Pause before workers start again that ended without a finished step, as in `inprocess`. Doubles with each such
    start in a row, up to a minute. Other restarts never wait."""
    rank_heartbeat_timeout: PositiveDuration = timedelta(minutes=5)
    """Longest time between two heartbeats of a rank. Above the longest step; a rank that waits for storage sends some.
    The first step of a process may take `start_timeout` more."""
    initial_rank_heartbeat_timeout: PositiveDuration = timedelta(minutes=25)
    """Longest time from a worker's start to its first heartbeat, which comes when it looks for a state to go on from.
    Above imports, data preparation and the model's construction."""
    workload_check_interval: PositiveDuration = timedelta(milliseconds=500)
    """How often heartbeats are checked."""
    monitor_interval: PositiveDuration = timedelta(milliseconds=100)
    """How often the launcher looks whether its workers live."""
    workers_stop_timeout: Duration = timedelta(seconds=1)
    """Time left to healthy workers to stop by themselves once one has failed."""
    health_check_interval: PositiveDuration = timedelta(seconds=5)
    """How often rank monitors ask NVML whether a GPU needs a reset; its node then leaves the run."""
    nic_monitor: bool = False
    """Whether rank monitors also count, as often, how often the InfiniBand link nearest to each GPU went down."""
    nic_check: bool = False
    """Whether a node looks at its InfiniBand links before it joins the others, at each start of the workers. NVRx 0.6
    or later."""
    term_timeout: PositiveDuration = timedelta(seconds=30)
    """Time between SIGTERM and SIGKILL when the launcher itself is asked to stop. Above one save."""


class _Recovery(Section):
    process_group_timeout: Patience = timedelta(minutes=10)
    """Timeout of collectives (NCCL's watchdog; on CPUs gloo's own). With in-process restart it must exceed
    `hard_timeout`."""
    start_timeout: Patience = timedelta(minutes=2)
    """Longest time that a rank may take for one part of its start-up: imports, opening the data, building the model.
    A rank that hangs there is stopped, and the layer does with it what it does with any hang. Waiting for other ranks
    does not count; preparing data may take `rendezvous_timeout`, loading a checkpoint `checkpoint.load_timeout`. A rank
    that has said what it ended with must be gone within this time, too."""
    rendezvous_timeout: Patience = timedelta(minutes=15)
    """Longest wait for all nodes to meet; covers image pulls on the slowest node."""
    stop_signals: Annotated[
        tuple[Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"], ...], Field(strict=False, min_length=1)
    ] = ("SIGTERM", "SIGINT", "SIGUSR1")
    """Signals to `nvrx-run` that ask for a stop: the ranks finish the step, save and end with exit code 14. A second
    one stops at once."""
    stop_timeout: Patience = timedelta(minutes=5)
    """Longest such a stop may take before the run is killed. Above one step and one save, below the grace period of
    whatever sends the signal."""
    stragglers: StragglerSettings | None = None
    """Look for slow ranks; `{}` takes the defaults. Slow GPUs are found where NVRx's CUPTI module loads (its CUDA is
    that of torch) and `every` is at least 3; slow hosts always. Default: do not look."""


class NoRecovery(_Recovery):
    """Nothing: a fault ends the run, and the same command resumes it."""

    layer: Literal["none"]


class InprocessRecovery(_Recovery):
    """In-process restart alone."""

    layer: Literal["inprocess"]
    inprocess: InprocessSettings = InprocessSettings()
    """In-process restart settings."""


class FtLauncherRecovery(_Recovery):
    """ft_launcher alone."""

    layer: Literal["ft_launcher"]
    ft_launcher: FtLauncherSettings = FtLauncherSettings()
    """Launcher settings."""


class CombinedRecovery(_Recovery):
    """Soft faults in place, hard faults by respawn."""

    layer: Literal["ft_launcher+inprocess"]
    inprocess: InprocessSettings = InprocessSettings()
    """In-process restart settings."""
    ft_launcher: FtLauncherSettings = FtLauncherSettings()
    """Launcher settings."""


RecoverySection = Annotated[
    NoRecovery | InprocessRecovery | FtLauncherRecovery | CombinedRecovery, Field(discriminator="layer")
]
