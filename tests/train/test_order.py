"""Which sequences a step consumes."""

import numpy as np
import pytest

from runner.errors import InputError
from runner.train.data.order import GlobalOrder


def test_an_epoch_holds_every_sequence_once_and_the_next_one_differs() -> None:
    order = GlobalOrder(32, 8, seed=3, shuffle=True)
    epochs = [np.concatenate([order.batch(step) for step in range(first, first + 4)]) for first in (1, 5)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(32))
    assert list(epochs[0]) != list(epochs[1])


def test_a_batch_that_crosses_an_epoch_takes_from_both() -> None:
    order = GlobalOrder(10, 4, seed=0, shuffle=False)
    assert list(order.batch(3)) == [8, 9, 0, 1]


def test_a_batch_depends_on_the_step_not_on_what_was_asked_before() -> None:
    one, other = (GlobalOrder(50, 8, seed=1, shuffle=True) for _ in range(2))
    for step in range(1, 20):
        one.batch(step)
    assert list(one.batch(7)) == list(other.batch(7))


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_the_ranks_parts_make_up_the_global_batch_in_order(world_size: int) -> None:
    order = GlobalOrder(100, 16, seed=5, shuffle=True)
    parts = [order.rank_batch(9, rank, world_size) for rank in range(world_size)]
    assert list(np.concatenate(parts)) == list(order.batch(9))


def test_another_seed_is_another_order() -> None:
    batches = [list(GlobalOrder(100, 50, seed=seed, shuffle=True).batch(1)) for seed in (0, 1)]
    assert batches[0] != batches[1]


def test_fewer_sequences_than_a_batch_are_refused_with_the_counts() -> None:
    with pytest.raises(InputError, match=r"packs into 1 sequences.*global_batch_size: 8"):
        GlobalOrder(1, 8, seed=0, shuffle=True)
