"""How often to save: the interval that maximises goodput, for one level of checkpoints or for two.

A save costs `c` seconds of training every `tau`; a fault, `M` seconds apart on average, costs the work since the last
save, `tau / 2` on average. The sum is least at

    tau = sqrt(2 c M)                                              Young, CACM 17(9), 1974
    tau = sqrt(2 c M) (1 + sqrt(c / 2M) / 3 + (c / 2M) / 9) - c    Daly, FGCS 22(3), 2006 (where c < 2M, else M)

Two levels (Vaidya, IEEE Trans. Computers 47(8), 1998; Di, Robert, Vivien, Cappello, IEEE TPDS 28(1), 2017): snapshots
in memory mend the faults that leave the node's memory alive, durable checkpoints the others. To first order the two
intervals decouple: each level sees its own cost and the mean time between *its* faults.

Two bounds of asynchronous saves. A write of `w` seconds cannot be repeated more often than it takes. And a checkpoint
counts from its commit, not from its beginning, so that a hard fault costs `tau / 2 + w`; that shifts the goodput, not
the optimum. No interval is shorter than a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GPU_HOURS_BETWEEN_FAULTS = 54 * 24 * 16_384 / 419
"""Where nothing is known: the Llama 3 pre-training saw 419 unexpected interruptions in 54 days on 16,384 H100
(Grattafiori et al., The Llama 3 Herd of Models, 2024, section 3.3.4): one in about 50,700 GPU hours."""


@dataclass(frozen=True)
class Costs:
    """What a run pays, in seconds.

    Attributes:
        step: an undisturbed step.
        save: what training waits for one durable save.
        write: from the hand-over of a save to its commit (0 for a blocking save, which is all in `save`).
        snapshot: what training waits for one snapshot in memory.
        soft_recovery: fault to training again, from memory.
        hard_recovery: fault to training again, from storage.
    """

    step: float
    save: float
    write: float
    snapshot: float
    soft_recovery: float
    hard_recovery: float

    def __post_init__(self) -> None:
        for name, value in self.__dict__.items():
            if not (value >= 0 and math.isfinite(value)) or (name == "step" and value == 0):
                raise ValueError(f"costs.{name}: {value} is not a number of seconds; measure it or give 0")


@dataclass(frozen=True)
class FaultRates:
    """Mean time between faults of the whole job, seconds; infinite where there are none.

    `soft` ones leave memory alive and are mended from snapshots, `hard` ones need storage.
    """

    soft: float
    hard: float

    @staticmethod
    def of_fleet(devices: int, *, soft_share: float = 0.5) -> FaultRates:
        """The rate that the Llama 3 fleet saw, for `devices` GPUs; which part of it is soft is your assumption."""
        between = GPU_HOURS_BETWEEN_FAULTS * 3600 / devices
        return FaultRates(
            soft=between / soft_share if soft_share else math.inf,
            hard=between / (1 - soft_share) if soft_share < 1 else math.inf,
        )


@dataclass(frozen=True)
class Advice:
    """Steps between durable checkpoints and between snapshots (None: no soft faults to mend), and what to expect.

    `goodput` is the expected share of wall time in useful steps.
    `bound_by_write`: saving more often would pay, but a write takes too long.
    """

    every: int
    snapshot_every: int | None
    goodput: float
    bound_by_write: bool


def young(cost: float, between_faults: float) -> float:
    """Young's interval, seconds."""
    return math.sqrt(2 * cost * between_faults)


def daly(cost: float, between_faults: float) -> float:
    """Daly's interval of useful work between two saves, seconds; infinite where there are no faults."""
    if math.isinf(between_faults):
        return math.inf
    if cost >= 2 * between_faults:
        return between_faults
    ratio = cost / (2 * between_faults)
    return math.sqrt(2 * cost * between_faults) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def advise(costs: Costs, rates: FaultRates, *, longest: int = 100_000, snapshots: bool = True) -> Advice:
    """The intervals that maximise the expected goodput.

    Args:
        longest: steps; what `every` becomes where there are no hard faults.
        snapshots: the recovery layer can restore from memory. Without, every fault is a hard one.
    """
    if not snapshots:
        both = 1 / (1 / rates.soft + 1 / rates.hard) if rates.soft and rates.hard else 0.0
        rates = FaultRates(soft=math.inf, hard=both)
    wanted = daly(costs.save, rates.hard)
    bound = wanted < costs.write
    every = _steps(max(wanted, costs.write), costs.step, longest)
    snapshot_every = None
    if snapshots and not math.isinf(rates.soft):
        snapshot_every = min(every, _steps(daly(costs.snapshot, rates.soft), costs.step, longest))
    return Advice(every, snapshot_every, expected_goodput(costs, rates, every, snapshot_every), bound)


def expected_goodput(costs: Costs, rates: FaultRates, every: int, snapshot_every: int | None) -> float:
    """Expected share of wall time in useful steps (first order in the fault rates; never below 0)."""
    save_seconds = every * costs.step
    snapshot_seconds = (snapshot_every or every) * costs.step
    per_second = costs.save / save_seconds + (costs.snapshot / snapshot_seconds if snapshot_every else 0.0)
    stepping = 1 / (1 + per_second)
    lost = 0.0
    if not math.isinf(rates.soft):
        lost += (snapshot_seconds / 2 + costs.soft_recovery * stepping) / rates.soft
    if not math.isinf(rates.hard):
        lost += (save_seconds / 2 + (costs.write + costs.hard_recovery) * stepping) / rates.hard
    return max(0.0, stepping / (1 + lost / stepping))


def _steps(seconds: float, step: float, longest: int) -> int:
    return longest if math.isinf(seconds) else max(1, min(longest, math.ceil(seconds / step - 1e-9)))
