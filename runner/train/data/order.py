"""Which sequences belong to which step: a function of seed, step and global batch size alone."""

from __future__ import annotations

import numpy as np

from runner.errors import InputError


class GlobalOrder:
    """The order in which sequences are consumed.

    Position p of the run (step * global batch + place in the batch) falls into epoch p // n; each epoch is a
    permutation drawn from (seed, epoch). Neither the number of ranks nor restarts change it.

    Args:
        sequences: number of sequences in the dataset.
        global_batch_size: sequences a step.
        seed: seed of the order.
        shuffle: False keeps the dataset's own order.

    Raises:
        InputError: fewer sequences than one global batch.
    """

    def __init__(self, sequences: int, global_batch_size: int, seed: int, *, shuffle: bool) -> None:
        if sequences < global_batch_size:
            raise InputError(
                f"dataset: it packs into {sequences} sequences, fewer than one global batch "
                f"(training.global_batch_size: {global_batch_size}); "
                "use more text, a shorter dataset.sequence_length or a smaller batch"
            )
        self._n, self._batch, self._seed, self._shuffle = sequences, global_batch_size, seed, shuffle
        self._epoch = -1
        self._permutation = np.empty(0, dtype=np.int64)

    def batch(self, step: int) -> np.ndarray:
        """Indices of the sequences of step `step` (1 is the first): int64, shape (global_batch_size,)."""
        positions = np.arange((step - 1) * self._batch, step * self._batch, dtype=np.int64)
        epochs, places = np.divmod(positions, self._n)
        return np.concatenate([self._epoch_order(int(e))[places[epochs == e]] for e in np.unique(epochs)])

    def rank_batch(self, step: int, rank: int, world_size: int) -> np.ndarray:
        """This rank's contiguous part of the global batch: shape (global_batch_size / world_size,)."""
        share = self._batch // world_size
        return self.batch(step)[rank * share : (rank + 1) * share]

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
            self._permutation = generator.permutation(self._n) if self._shuffle else np.arange(self._n)
            self._epoch = epoch
        return self._permutation
