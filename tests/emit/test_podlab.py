"""The emitted Job's own command, environment and recipe, in imitated pods, with the Job's own failure policy.

A few run by default; all of them, about an hour on two cores, as root with
`pytest -m "slow or not slow" tests/emit/test_podlab.py`.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lab_runs import LAYERS, committed, lab_recipe, last_state, run_lab, same
from nvrx_releases import release_path
from podlab import PodLab, why_not

from runner.errors import ExitCode

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
]
State = dict[str, torch.Tensor]
STEPS, JOURNEY = 12, 30
SAVED_IN_A_NEW_LIFE = (
    6  # steps: what is committed so far beyond an earlier commit was trained after the fault
)
SOME = {("ft_launcher+inprocess", 1)}  # faults that the default tests show


@contextmanager
def visible_folder() -> Iterator[Path]:
    """A folder that the pods can see: /tmp is the pods' own."""
    folder = Path(tempfile.mkdtemp(prefix="podlab-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def lab_folder() -> Iterator[Path]:
    """Room for a lab."""
    with visible_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def late() -> Iterator[PodLab]:
    """Two pods with no layer and no fault, whose leader came late: what every other run of two pods must end like."""
    with visible_folder() as folder:
        yield run_lab(folder, lab_recipe("none", 2, checkpoint={"mode": "sync"}), late_leader=4)


@pytest.fixture(scope="session")
def undisturbed(request: pytest.FixtureRequest) -> Callable[..., State]:
    """Final state of the recipe on so many nodes with no layer and no fault; made once."""
    states: dict[tuple[int, int], State] = {}

    def state(nodes: int, *, steps: int = STEPS) -> State:
        if (nodes, steps) not in states:
            if (nodes, steps) == (2, STEPS):
                states[nodes, steps] = last_state(request.getfixturevalue("late"))
            else:
                with visible_folder() as folder:
                    lab = run_lab(folder, lab_recipe("none", nodes, **length(steps)))
                    states[nodes, steps] = last_state(lab, steps=steps)
        return states[nodes, steps]

    return state


def length(steps: int) -> dict[str, object]:
    """The sections of a recipe of so many steps; a long one saves every other step."""
    return (
        {} if steps == STEPS else {"training": {"steps": steps}, "checkpoint": {"every": 2, "keep_last": 30}}
    )


class Acts:
    """Things done to the pods, each once: the first as soon as a checkpoint is committed, each further one when another
    is that was trained after the one before."""

    def __init__(self, *acts: Callable[[PodLab], None]) -> None:
        self._left = list(acts)
        self._at = 1
        self.lives: list[dict[int, int]] = []
        self.codes: set[int] = set()

    def __call__(self, lab: PodLab) -> None:
        """Called ten times a second."""
        self.codes |= {pod.exit_code for pod in lab.pods.values() if pod.exit_code is not None}
        newest = max(committed(lab), default=0)
        if self._left and newest >= self._at:
            assert ExitCode.DONE not in self.codes, "the run had ended before something could happen to it"
            self._at = newest + SAVED_IN_A_NEW_LIFE
            self.lives.append(dict(lab.lives))
            self._left.pop(0)(lab)

    @property
    def done(self) -> bool:
        """Whether everything has happened."""
        return not self._left


def kill(index: int) -> Callable[[PodLab], None]:
    """Kill every process of one pod."""
    return lambda lab: lab.pods[index].signal(signal.SIGKILL)


def switch_off(index: int) -> Callable[[PodLab], None]:
    """The node of one pod loses power: its peers are told nothing, their connections stay open."""

    def act(lab: PodLab) -> None:
        subprocess.run(
            ["ip", "-n", f"{lab.tag}-{index}", "link", "set", "eth0", "down"], check=True, timeout=20
        )
        lab.pods[index].signal(signal.SIGKILL)

    return act


def ask(index: int) -> Callable[[PodLab], None]:
    """SIGTERM to the first process of one pod, as a kubelet sends it."""
    return lambda lab: lab.pods[index].signal(signal.SIGTERM)


def ask_all(lab: PodLab) -> None:
    """SIGTERM to every pod."""
    for index in lab.pods:
        ask(index)(lab)


def test_pods_wait_for_a_late_leader_and_train(late: PodLab) -> None:
    waited_for_the_leader(late)
    assert committed(late)[-1] == STEPS
    assert not list((late.shared / "runs" / "lab").rglob("*.partial"))
    launchers = [path.name for path in (late.shared / "runs" / "lab" / "ledger").glob("launcher-*")]
    assert sorted(name.split("-", 2)[2].rsplit("-", 1)[0] for name in launchers) == [
        f"{late.job['metadata']['name']}-{index}" for index in (0, 1)
    ]


def waited_for_the_leader(lab: PodLab) -> None:
    """Every other pod said that it waits, and nothing had to be replaced."""
    assert set(lab.lives.values()) == {0}
    for index in range(1, lab.nodes):
        log = (lab.folder / f"pod{index}-0.log").read_text()
        assert "the name does not resolve" in log
        assert "can be reached after" in log


@pytest.mark.slow
@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "none"])
def test_every_layer_waits_for_a_late_leader(
    layer: str, lab_folder: Path, undisturbed: Callable[..., State]
) -> None:
    lab = run_lab(lab_folder, lab_recipe(layer, 2), late_leader=4)
    waited_for_the_leader(lab)
    assert same(last_state(lab), undisturbed(2))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_trains_across_pods(
    layer: str, nodes: int, lab_folder: Path, undisturbed: Callable[..., State]
) -> None:
    lab = run_lab(lab_folder, lab_recipe(layer, nodes))
    assert set(lab.lives.values()) == {0}
    assert same(last_state(lab), undisturbed(nodes))


@pytest.mark.parametrize(
    ("layer", "victim"),
    [
        pytest.param(layer, victim, marks=[] if (layer, victim) in SOME else [pytest.mark.slow])
        for layer in LAYERS
        for victim in (1, 0)
    ],
)
def test_a_lost_pod_is_replaced_and_the_run_ends_as_if_nothing_had_happened(
    layer: str, victim: int, lab_folder: Path, undisturbed: Callable[..., State]
) -> None:
    acts = Acts(kill(victim))
    lab = run_lab(lab_folder, lab_recipe(layer, 2), each_tick=acts, timeout=600)
    assert acts.done
    stays = (
        "ft_launcher" in layer and victim == 1
    )  # the other launcher waits, unless it was its rendezvous that is gone
    assert lab.lives == {victim: 1, 1 - victim: 0 if stays else 1}
    assert lab.failures == (1 if stays else 2)
    assert same(last_state(lab), undisturbed(2))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_node_that_loses_power_is_missed(
    layer: str, victim: int, lab_folder: Path, undisturbed: Callable[..., State]
) -> None:
    """No connection is closed: only timeouts tell."""
    acts = Acts(switch_off(victim))
    lab = run_lab(lab_folder, lab_recipe(layer, 2), each_tick=acts, timeout=800)
    assert acts.done
    assert lab.lives[victim] >= 1
    assert same(last_state(lab), undisturbed(2))


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["all", "one"])
@pytest.mark.parametrize("layer", LAYERS)
def test_pods_that_are_asked_to_leave_save_and_their_successors_go_on(
    layer: str, asked: str, lab_folder: Path, undisturbed: Callable[..., State]
) -> None:
    """One of them is enough, as when a node is drained: the ranks of all pods stop after the same step."""
    acts = Acts(ask_all if asked == "all" else ask(1))
    lab = run_lab(lab_folder, lab_recipe(layer, 2), each_tick=acts)
    assert acts.done
    assert acts.codes == {ExitCode.DONE, ExitCode.PREEMPTED}
    assert lab.failures == 0
    assert set(lab.lives.values()) == {1}
    assert same(last_state(lab), undisturbed(2))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("layer", LAYERS)
def test_four_pods_live_through_everything(
    layer: str, lab_folder: Path, undisturbed: Callable[..., State]
) -> None:
    """A late leader, the loss of pod 1, that of pod 0, a request to one to leave, and to all."""
    acts = Acts(kill(1), kill(0), ask(2), ask_all)
    recipe = lab_recipe(layer, 4, **length(JOURNEY))
    lab = run_lab(lab_folder, recipe, each_tick=acts, late_leader=4, timeout=1200)
    assert acts.done
    for index in (1, 2, 3):
        assert "the name does not resolve" in (lab_folder / f"pod{index}-0.log").read_text()
    late, lost_one, lost_leader, one_asked = acts.lives
    assert set(late.values()) == {0}
    stays = "ft_launcher" in layer  # launchers outlive the loss of a peer that is not their leader
    assert lost_one == {index: 0 if stays and index != 1 else 1 for index in range(4)}
    assert all(lost_leader[index] > lost_one[index] for index in range(4))
    assert all(one_asked[index] == lost_leader[index] + 1 for index in range(4))
    assert all(lab.lives[index] == one_asked[index] + 1 for index in range(4))
    assert same(last_state(lab, steps=JOURNEY), undisturbed(4, steps=JOURNEY))


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.6.0", "0.7.0"])
def test_image_with_another_release_of_nvrx_recovers_alike(
    version: str, lab_folder: Path, undisturbed: Callable[..., State]
) -> None:
    """The Job is the same: the pod follows the release that it finds."""
    acts = Acts(kill(1), ask(1))
    recipe = lab_recipe("ft_launcher+inprocess", 2, **length(JOURNEY))
    paths = tuple(release_path(version))
    lab = run_lab(lab_folder, recipe, each_tick=acts, late_leader=4, extra_path=paths, timeout=800)
    assert acts.done
    found = [line for path in lab.shared.rglob("launcher-*.jsonl") for line in path.read_text().splitlines()]
    assert any(f'"{version}' in line for line in found), found[0]
    assert lab.failures == 1
    assert same(last_state(lab, steps=JOURNEY), undisturbed(2, steps=JOURNEY))


@pytest.mark.slow
def test_a_wrong_recipe_fails_the_job_at_once(lab_folder: Path) -> None:
    recipe = lab_recipe("none", 2, model={"architecture": None, "name": "/mnt/shared/no-such-model"})
    lab = run_lab(lab_folder, recipe, expected="Failed")
    assert any(pod.exit_code == ExitCode.BAD_RECIPE for pod in lab.pods.values()), lab.logs()
    assert set(lab.lives.values()) == {0}
