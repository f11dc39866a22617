"""The CUDA context of a worker, made beside its first meeting with the others.

Finding the GPUs and making a context takes a good part of a second of a new process's start, and nothing before the
model needs either. Not before NVRx has forked its monitor process: an open context would be inherited by it, and the
driver would free nothing of a dead worker's while the monitor lives.
"""

from __future__ import annotations

import ctypes
import threading


def wake_gpu(local_rank: int) -> None:
    """Begin to make the context of GPU `local_rank` in a thread.

    What fails here fails again in the first use of the GPU, which reports it.
    """
    threading.Thread(target=_make_context, args=(local_rank,), name="wake-gpu", daemon=True).start()


def _make_context(index: int) -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")  # called without the interpreter's lock, as torch would not
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
