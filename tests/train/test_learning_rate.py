"""The learning rate as a function of the step."""

import pytest

from runner.recipe.training import OptimizerSettings, ScheduleSettings, TrainingSection
from runner.train.optimizer import learning_rate


def training(kind: str, **schedule: object) -> TrainingSection:
    return TrainingSection(
        steps=100,
        global_batch_size=1,
        optimizer=OptimizerSettings(lr=1.0),
        schedule=ScheduleSettings(kind=kind, warmup_steps=10, **schedule),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_warm_up_rises_in_a_line_to_the_peak(kind: str) -> None:
    assert [learning_rate(step, training(kind)) for step in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])


@pytest.mark.parametrize(
    ("kind", "middle", "end"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1, 1)]
)
def test_the_curve_ends_at_the_stated_share_of_the_peak(kind: str, middle: float, end: float) -> None:
    assert learning_rate(55, training(kind)) == pytest.approx(middle)
    assert learning_rate(100, training(kind)) == pytest.approx(end)


def test_a_run_prolonged_beyond_decay_steps_stays_at_the_floor() -> None:
    assert learning_rate(90, training("cosine", decay_steps=50)) == pytest.approx(0.1)
