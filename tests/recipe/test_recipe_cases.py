"""Recipes that people really wrote, and that must be refused with the reason before anything starts."""

from __future__ import annotations

import pytest
from recipelab import ROOT

from runner.recipe.load import check_file
from runner.recipe.problems import Problem


def errors(recipe: str, *overrides: str) -> dict[str, Problem]:
    """Errors by code."""
    loaded, problems = check_file(ROOT / "recipes" / f"{recipe}.yaml", overrides, {})
    found = {problem.code: problem for problem in problems if problem.severity == "error"}
    assert (loaded is None) == bool(found)
    return found


def test_watchdog_below_the_hard_timeout_is_refused_with_the_order_that_is_needed() -> None:
    found = errors(
        "llama8b-async-inprocess",
        "recovery.process_group_timeout=60",
        "recovery.inprocess={soft_timeout: 300, hard_timeout: 600, barrier_timeout: 900}",
    )
    assert set(found) == {"R103"}
    line = found["R103"].line()
    assert "1m is not above recovery.inprocess.hard_timeout (10m)" in line
    assert "raise recovery.process_group_timeout above 10m" in line


@pytest.mark.parametrize(
    "order",
    ["{soft_timeout: 600, hard_timeout: 300}", "{hard_timeout: 900, soft_timeout: 300, barrier_timeout: 600}",
     "{heartbeat_timeout: 1s, heartbeat_interval: 2s}", "{heartbeat_timeout: 5m}"],
)  # fmt: skip
def test_every_other_disorder_of_the_ladder_is_refused(order: str) -> None:
    assert errors("quickstart", f"recovery.inprocess={order}")


def test_99_faults_in_20_steps_are_refused_with_the_counts() -> None:
    found = errors(
        "quickstart", "training.steps=20", "faults={count: 99}", "recovery.inprocess.max_restarts=200"
    )
    assert set(found) == {"R601"}
    assert "99 faults do not fit the 20 steps" in found["R601"].message


@pytest.mark.parametrize("layer", ["none", "inprocess", "ft_launcher", "ft_launcher+inprocess"])
def test_faults_with_one_process_are_refused_with_the_reason(layer: str) -> None:
    found = errors("quickstart", "cluster.processes_per_node=1", f"recovery={{layer: {layer}}}")
    assert set(found) == {"R605"}
    assert "peers" in found["R605"].message


@pytest.mark.parametrize("key", ["rank_heartbeat_timeout", "initial_rank_heartbeat_timeout"])
@pytest.mark.parametrize("value", ["null", "", "0", "none", "~", "-1", ".inf"])
def test_hang_detection_cannot_be_turned_off(key: str, value: str) -> None:
    found = errors(
        "llama8b-async-ft_launcher",
        f"recovery.ft_launcher.{key}={value}",
        "faults.types=[hang]",
        "faults.weights=null",
    )
    assert {problem.path for problem in found.values()} >= {f"recovery.ft_launcher.{key}"}


@pytest.mark.parametrize(
    "key", ["soft_timeout", "hard_timeout", "barrier_timeout", "heartbeat_timeout", "completion_timeout"]
)
def test_in_process_timeouts_cannot_be_turned_off(key: str) -> None:
    for value in ("null", "0", "0s"):
        found = errors("llama8b-async-inprocess", f"recovery.inprocess.{key}={value}")
        assert {problem.path for problem in found.values()} >= {f"recovery.inprocess.{key}"}


def test_a_save_longer_than_the_heartbeat_survives_and_is_not_refused() -> None:
    """That it does is shown by tests/e2e/test_slow_storage.py."""
    assert not errors(
        "llama8b-async-ft_launcher", "checkpoint.mode=sync", "recovery.ft_launcher.rank_heartbeat_timeout=3m"
    )


def test_save_longer_than_its_own_timeout_is_refused_with_both_values() -> None:
    found = errors("llama8b-async-ft_launcher", "checkpoint.write_timeout=3m")
    assert set(found) == {"R120"}
    assert "3m is not above the write of a checkpoint (241 s)" in found["R120"].message


def test_wrap_policy_that_wraps_nothing_is_refused() -> None:
    assert set(errors("quickstart", "sharding.wrap={modules: [GPT2Block]}")) == {"R304"}
    assert set(errors("quickstart", "sharding.wrap={min_params: 1000000000}")) == {"R305"}
    assert set(errors("quickstart", "sharding.wrap=transformer_blocks")) == {"T203"}


def test_old_restart_policy_has_no_place_in_a_recipe() -> None:
    found = errors("llama8b-async-ft_launcher", "recovery.ft_launcher.restart_policy=min-healthy")
    assert set(found) == {"T201"}


@pytest.mark.parametrize(
    "instance", ["p4de.24xlarg", "p5-48xlarge", "P5.48xlarge", "ml.p5.48xlarge", "p5.48xlarge ", "m5.large"]
)
def test_misspelt_instance_type_is_refused(instance: str) -> None:
    found = errors("llama8b-sync-none", f"cluster.instance_type='{instance}'")
    assert {problem.path for problem in found.values()} == {"cluster.instance_type"}


def test_a_stated_fault_that_the_layer_does_not_survive_is_the_one_to_blame() -> None:
    stated = "[{step: 5, rank: 1, type: hang}, {step: 6, rank: 0, type: exit_1}, {step: 7, rank: 1, type: sigkill}]"
    for count in (0, 1):  # with drawn ones beside them that it does survive
        over = [f"faults={{at: {stated}, count: {count}}}"]
        _, [warning] = check_file(ROOT / "recipes" / "quickstart.yaml", over, {})
        assert (warning.code, warning.path, warning.value) == ("R606", "faults.at[2].type", "`sigkill`")


def test_on_cpus_no_nccl_is_blamed() -> None:
    over = ["recovery.process_group_timeout=10s"]
    _, problems = check_file(ROOT / "recipes" / "quickstart.yaml", over, {})
    (found,) = (problem for problem in problems if problem.code == "R103")
    assert "gloo" in found.message and "NCCL" not in found.message


def test_sigkill_with_in_process_restart_alone_names_the_layer_that_can() -> None:
    _, problems = check_file(ROOT / "recipes" / "quickstart.yaml", ["faults.types=[sigkill]"], {})
    [warning] = problems
    assert (warning.code, warning.severity) == ("R606", "warning")
    assert "ft_launcher" in (warning.hint or "")
