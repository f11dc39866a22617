"""Where volumes may be mounted in a pod: what the image and Kubernetes need stays visible."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# Folders of an image that its programs and libraries, or the kernel's interfaces, live in.
_OF_THE_IMAGE = frozenset(
    {
        "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/run", "/sbin", "/usr",
        "/var", "/etc/ld.so.conf.d", "/etc/ssl", "/opt/amazon", "/opt/nvrx", "/opt/nvrx-run", "/usr/bin", "/usr/lib",
        "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/local", "/usr/local/bin", "/usr/local/cuda", "/usr/local/lib",
        "/usr/local/lib64", "/usr/sbin", "/usr/share", "/var/run",
    }
)  # fmt: skip
_OF_THE_KERNEL = ("/proc", "/sys")  # nothing may be mounted below them either
_GIVEN = ("configMap", "secret", "downwardAPI", "projected")  # volumes of files that the cluster hands out
_OF_KUBERNETES = ("/dev/termination-log", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf")


class Mount(NamedTuple):
    """One mount: where, and whether its volume is one in which nothing else can be mounted."""

    path: str
    sealed: bool = False


# The product's own. The recipe's volume is read-only; shared memory is measured, and cleared by name.
OWN = (Mount("/etc/nvrx", sealed=True), Mount("/dev/shm", sealed=True), Mount("/tmp"))

SEALED = frozenset(mount.path for mount in OWN if mount.sealed)


def clean(path: str) -> str:
    """A mount path as the kernel sees it: no doubled or trailing slash, no `.` or `..`."""
    return posixpath.normpath("/" + path.lstrip("/"))


def hides(path: str) -> str | None:
    """What of the image or of Kubernetes a volume at `path` would hide; None where nothing."""
    path = clean(path)
    if any(is_below(path, folder) for folder in _OF_THE_KERNEL):
        return "an interface of the kernel"
    if path in _OF_THE_IMAGE:
        return "the image's own files"
    if path in _OF_KUBERNETES:
        return "a file that Kubernetes puts there"
    return None


def conflicts(mounts: Sequence[Mount]) -> Iterator[tuple[int, str, int | None]]:
    """What is wrong with the mounts of one container: the mount's index, the clause, and the other mount's index."""
    paths = [clean(mount.path) for mount in mounts]
    for index, path in enumerate(paths):
        hidden = hides(path)
        if hidden:
            yield index, f"a volume at {path} would hide {hidden}", None
        elif path in paths[:index]:
            yield index, f"{path} is mounted twice", paths.index(path)
        else:
            outer = innermost(posixpath.dirname(path), paths)
            other = None if outer is None else paths.index(outer)
            if other is not None and mounts[other].sealed:
                yield index, f"{path} lies in {outer}, and nothing can be mounted in that volume", other


def is_below(path: str, folder: str) -> bool:
    """Whether a clean path is a folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def innermost(path: str, mounts: Iterable[str]) -> str | None:
    """The mount, of several clean paths, whose volume holds what is at `path`."""
    return max((mount for mount in mounts if is_below(clean(path), mount)), key=len, default=None)


def sealed_volumes(volumes: Iterable[Mapping[str, Any]]) -> set[str]:
    """Names of the volumes, as Kubernetes writes them, that hold given files alone and are read-only."""
    return {str(item.get("name")) for item in volumes if any(item.get(kind) is not None for kind in _GIVEN)}
