#!/bin/bash
# Installs nvrx-run with everything that training needs into a new environment, and checks it.
#   manifests/install.sh PYTHON TARGET      e.g. python3.12 /opt/nvrx
# Run from the root of the repository; the image build and its test both use it.
set -euo pipefail

python=$1 target=$2

"$python" -c 'import sys; assert (3, 10) <= sys.version_info < (3, 13), "NVRx needs Python 3.10 to 3.12, not %s" % sys.version'
"$python" -m venv "$target"
"$target/bin/pip" install --no-cache-dir --disable-pip-version-check --constraint constraints.txt '.[train]'

# What a pod will need, asked as a pod asks it: no shell, the user's folder not on the path.
"$target/bin/pip" check
"$target/bin/nvrx-run" --version
"$target/bin/nvrx-run" --validate recipes/quickstart.yaml
"$target/bin/python" -I -c 'import runner, torch, nvidia_resiliency_ext, transformers, datasets; print("torch", torch.__version__)'
test -x "$target/bin/nvrx-worker"
test -x "$target/bin/torchrun"
test -x "$target/bin/ft_launcher"
