"""One rank's work: worker entry, loop, model, data, sharding, optimiser."""

import warnings

# torch asks for the module pynvml. NVRx depends on the package of that name, which does nothing but warn, at each
# import, that nvidia-ml-py (which is what then answers) should be installed in its place: nothing a user could act on.
# Here, because every process of ours that imports torch imports this first.
warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
