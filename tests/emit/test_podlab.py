"""The emitted Job's own command, environment and recipe, in imitated pods, with the Job's own failure policy."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from lab_runs import LAYERS, committed, lab_recipe, last_state, run_lab, same
from podlab import PodLab, why_not

from runner.errors import ExitCode

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
]
State = dict[str, torch.Tensor]


@pytest.fixture
def lab_folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that the pods can see: /tmp is the pods' own."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="podlab-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def undisturbed() -> Callable[[int], State]:
    """Final state of the recipe on so many nodes with no layer and no fault; made once."""
    states: dict[int, State] = {}

    def state(nodes: int) -> State:
        import shutil
        import tempfile

        if nodes not in states:
            folder = Path(tempfile.mkdtemp(prefix="podlab-", dir="/var/tmp"))
            folder.chmod(0o755)
            states[nodes] = last_state(run_lab(folder, lab_recipe("none", nodes)))
            shutil.rmtree(folder)
        return states[nodes]

    return state


class OnceSaved:
    """Does something to the pods once, as soon as a checkpoint is committed."""

    def __init__(self, act: Callable[[PodLab], None]) -> None:
        self.act = act
        self.done = False

    def __call__(self, lab: PodLab) -> None:
        """Called ten times a second."""
        if not self.done and committed(lab):
            self.done = True
            self.act(lab)


def kill(index: int) -> OnceSaved:
    """Kill every process of one pod, as the loss of its node does."""
    return OnceSaved(lambda lab: lab.pods[index].signal(signal.SIGKILL))


def ask_all(lab: PodLab) -> None:
    """SIGTERM to the first process of every pod, as a kubelet sends it."""
    for pod in lab.pods.values():
        pod.signal(signal.SIGTERM)


def test_pods_wait_for_a_late_leader_and_train(lab_folder: Path) -> None:
    lab = run_lab(lab_folder, lab_recipe("none", 2), late_leader=4)
    log = (lab_folder / "pod1-0.log").read_text()
    assert "the name does not resolve" in log
    assert "can be reached after" in log
    assert committed(lab)[-1] == 12
    assert lab.lives == {0: 0, 1: 0}
    assert not list((lab.shared / "runs" / "lab").rglob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_trains_across_pods(
    layer: str, nodes: int, lab_folder: Path, undisturbed: Callable[[int], State]
) -> None:
    lab = run_lab(lab_folder, lab_recipe(layer, nodes))
    assert set(lab.lives.values()) == {0}
    assert same(last_state(lab), undisturbed(nodes))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_lost_pod_is_replaced_and_the_run_ends_as_if_nothing_had_happened(
    layer: str, victim: int, lab_folder: Path, undisturbed: Callable[[int], State]
) -> None:
    loss = kill(victim)
    lab = run_lab(lab_folder, lab_recipe(layer, 2), each_tick=loss, timeout=600)
    assert loss.done
    assert lab.lives[victim] >= 1
    if layer == "ft_launcher":  # the others wait for the new pod, unless it was their rendezvous that is gone
        assert lab.lives[1 - victim] == (0 if victim == 1 else 1)
    assert same(last_state(lab), undisturbed(2))


@pytest.mark.slow
def test_one_of_four_pods_is_lost_under_both_layers(
    lab_folder: Path, undisturbed: Callable[[int], State]
) -> None:
    loss = kill(2)
    lab = run_lab(lab_folder, lab_recipe("ft_launcher+inprocess", 4), each_tick=loss, timeout=800)
    assert loss.done
    assert same(last_state(lab), undisturbed(4))


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["all", "one"])
@pytest.mark.parametrize("layer", LAYERS)
def test_pods_that_are_asked_to_leave_save_and_their_successors_go_on(
    layer: str, asked: str, lab_folder: Path, undisturbed: Callable[[int], State]
) -> None:
    """One of them is enough, as when a node is drained: the ranks of all pods stop after the same step."""
    codes: list[int] = []

    class Ask(OnceSaved):
        def __call__(self, lab: PodLab) -> None:
            super().__call__(lab)
            codes.extend(pod.exit_code for pod in lab.pods.values() if pod.exit_code is not None)

    ask = Ask(ask_all if asked == "all" else lambda lab: lab.pods[1].signal(signal.SIGTERM))
    lab = run_lab(lab_folder, lab_recipe(layer, 2), each_tick=ask)
    assert ask.done
    assert set(codes) <= {ExitCode.DONE, ExitCode.PREEMPTED}
    assert ExitCode.PREEMPTED in codes
    assert lab.failures == 0
    assert set(lab.lives.values()) == {1}
    assert same(last_state(lab), undisturbed(2))


@pytest.mark.slow
def test_a_wrong_recipe_fails_the_job_at_once(lab_folder: Path) -> None:
    recipe = lab_recipe("none", 2, model={"architecture": None, "name": "/mnt/shared/no-such-model"})
    lab = run_lab(lab_folder, recipe, expected="Failed")
    assert any(pod.exit_code == ExitCode.BAD_RECIPE for pod in lab.pods.values()), lab.logs()
    assert set(lab.lives.values()) == {0}
