"""First process of an imitated pod: makes the mounts that the manifest asks for, drops every privilege, becomes the
container's command. Runs as root in namespaces of its own; reads one JSON object from the file it is given."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from pathlib import Path

_MS_RDONLY, _MS_NOSUID, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    if _libc.mount(encoded[0], encoded[1], encoded[2], flags, data.encode() if data else None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """A folder or file of this machine at a place in the pod."""
    mount(source, target, None, _MS_BIND | _MS_REC)
    if read_only:
        mount("none", target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def overlay(target: str, scratch: Path) -> None:
    """This machine's folder, with room for files and a mode of its own."""
    for name in ("upper", "work"):
        (scratch / name).mkdir(parents=True)
    layers = f"lowerdir={target},upperdir={scratch}/upper,workdir={scratch}/work"
    mount("overlay", target, "overlay", 0, layers)


def open_up(path: str, scratch: Path) -> None:
    """Let everybody through to `path`: an image has its interpreter in no private folder, this machine may."""
    for number, folder in enumerate(reversed(Path(path).parents)):
        if not folder.stat().st_mode & 0o001:
            overlay(str(folder), scratch / f"open{number}-{folder.name}")


def scratch_at(target: str, size: int, kept: list[str]) -> None:
    """An empty folder of the pod's own; what of the image lies below it (a checkout in /tmp) stays in its place."""
    below = [(path, os.open(path, os.O_PATH)) for path in kept if Path(path).is_relative_to(target)]
    mount("tmpfs", target, "tmpfs", _MS_NOSUID, f"mode=1777,size={size}")
    for path, handle in below:
        Path(path).mkdir(parents=True, exist_ok=True)
        bind(f"/proc/self/fd/{handle}", path)
        os.close(handle)


def main() -> None:
    """Set up and become the command."""
    pod = json.loads(Path(sys.argv[1]).read_text())
    mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    socket.sethostname(pod["hostname"])
    scratch = Path(pod["scratch"])
    mount("tmpfs", pod["scratch"], "tmpfs", 0)
    overlay("/etc", scratch / "etc")  # a place for /etc/nvrx that this machine need not have
    for path in pod["visible"]:
        open_up(path, scratch)
    bind(pod["hosts"], "/etc/hosts")
    Path("/etc/resolv.conf").unlink(missing_ok=True)
    Path("/etc/resolv.conf").write_text("")
    mount("tmpfs", "/mnt", "tmpfs", 0)
    for item in pod["mounts"]:
        target = item["target"]
        Path(target).mkdir(parents=True, exist_ok=True)
        if "source" in item:
            bind(item["source"], target, read_only=item["read_only"])
        else:
            scratch_at(target, item["size"], pod["kept"])
    mount("none", "/", None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)
    for stream in (1, 2):
        os.fchown(
            stream, pod["user"], pod["group"]
        )  # as the container runtime does: a process may open it anew
    os.setgroups([])
    os.setgid(pod["group"])
    os.setuid(pod["user"])  # from root to another user: every capability is gone
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    os.chdir(pod["folder"])
    os.execvpe(pod["command"][0], pod["command"], pod["environment"])


main()
