"""R8xx: what the versions of NVRx and NCCL can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.layer_settings import ft_launcher, inprocess

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_BAD_NCCL = ((2, 28, 3), (2, 28, 8))


def numbers(version: str) -> tuple[int, ...]:
    """`2.28.9` -> (2, 28, 9); what follows the numbers is left out."""
    parts = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


def nccl_aborts_badly(version: str) -> bool:
    """Whether this is one of the NCCL releases that NVRx says to avoid with in-process restart."""
    return _BAD_NCCL[0] <= numbers(version)[:3] <= _BAD_NCCL[1]


@rule("R801", "warning")
def inprocess_is_deprecated(recipe: Recipe, report: Report) -> None:
    """NVRx deprecates in-process restart from 0.6 on. It is present and works up to 0.7."""
    version = recipe.cluster.nvrx_version
    if version is not None and inprocess(recipe) and numbers(version) >= (0, 6):
        report.add(
            "cluster.nvrx_version",
            f"NVRx {version} deprecates in-process restart, which {recipe.recovery.layer} uses",
            "it works; prefer 0.4.1 in new images, or `recovery.layer: ft_launcher`",
            also="recovery.layer",
        )


@rule("R802")
def nccl_aborts_cleanly(recipe: Recipe, report: Report) -> None:
    """NCCL 2.28.3 to 2.28.8 must not be used with in-process restart.

    NVRx names these releases: aborting a communicator can hang or crash in them, and every restart aborts one. The
    version is `cluster.nccl_version`; where that is not given nothing is checked here, and a run that starts checks the
    NCCL that pip installed.
    """
    version = recipe.cluster.nccl_version
    if version is None or not inprocess(recipe) or report.facts.on_gpus is False:
        return
    if nccl_aborts_badly(version):
        report.add(
            "cluster.nccl_version",
            f"NCCL {version} does not abort cleanly, and {recipe.recovery.layer} aborts it at every restart",
            "use 2.28.9 or later, or 2.28.2 or earlier",
            also="recovery.layer",
        )


@rule("R803")
def nvrx_is_supported(recipe: Recipe, report: Report) -> None:
    """`cluster.nvrx_version` must be 0.4.1 or later: 0.4.0 lacks settings that every recovery layer uses."""
    version = recipe.cluster.nvrx_version
    if version is not None and numbers(version)[:3] == (0, 4, 0):
        report.add("cluster.nvrx_version", f"NVRx {version} is not supported", "use 0.4.1 to 0.7")


@rule("R804")
def health_checks_exist(recipe: Recipe, report: Report) -> None:
    """Health checks must exist in the NVRx that `cluster.nvrx_version` names.

    `gpu`, `nvlink` and `nic` of `recovery.inprocess.health_checks` came with 0.5, `recovery.ft_launcher.nic_check` with
    0.6. Where no version is named, the one that is installed decides when the run starts.
    """
    version = recipe.cluster.nvrx_version
    if version is None:
        return
    soft, launcher = inprocess(recipe), ft_launcher(recipe)
    late = [name for name in (soft.health_checks or ()) if name != "cuda"] if soft else []
    if late and numbers(version) < (0, 5):
        report.add(
            "recovery.inprocess.health_checks",
            f"NVRx {version} has no check of {', '.join(late)}",
            "use 0.5 or later, or leave them out",
            also="cluster.nvrx_version",
        )
    if launcher and launcher.nic_check and numbers(version) < (0, 6):
        report.add(
            "recovery.ft_launcher.nic_check",
            f"NVRx {version} cannot check links before a start",
            "use 0.6 or later, or nic_monitor",
            also="cluster.nvrx_version",
        )


@rule("R805")
def nics_are_near_gpus(recipe: Recipe, report: Report) -> None:
    """`nic_monitor`, `nic_check` and the `nic` health check need GPUs.

    NVRx finds the link of a rank by the PCI distance to its GPU, through NVML; without one the rank monitors fail.
    """
    if report.facts.on_gpus is not False:
        return
    soft, launcher = inprocess(recipe), ft_launcher(recipe)
    asked = [
        f"ft_launcher.{name}" for name in ("nic_monitor", "nic_check") if launcher and getattr(launcher, name)
    ]
    if soft and "nic" in (soft.health_checks or ()):
        asked.append("inprocess.health_checks")
    for path in asked:
        report.add(
            f"recovery.{path}", "the ranks compute on CPUs, and a link is found by its GPU", "leave it out",
            also="cluster.accelerator",
        )  # fmt: skip
