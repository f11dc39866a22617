"""The pods of an emitted Job, imitated on one Linux machine, and the Job controller that replaces them.

Each pod is a set of namespaces: a network with its own address on a bridge, a host name, /etc/hosts with the names that
the headless Service would give, process ids, mounts (recipe, storage, /dev/shm, scratch, read-only root) and the user
of the manifest. The container's own command runs in it with the container's own environment. Needs root, iproute2 and
util-linux (`why_not` says what is missing).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_INIT = Path(__file__).with_name("pod_init.py")
_SHM = "512m"
_LABS = itertools.count()  # a namespace that was deleted keeps its links' names for a moment


def why_not() -> str | None:
    """What this machine lacks for imitated pods, or None."""
    if os.geteuid() != 0:
        return "imitated pods need root"
    missing = [tool for tool in ("ip", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"imitated pods need {' and '.join(missing)} (iproute2, util-linux)"
    done = _try("unshare", "-m", "-u", "-i", "-p", "-n", "-f", "true")
    return None if done.returncode == 0 else f"namespaces cannot be made here: {done.stderr.strip()}"


def _try(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _ip(*arguments: str) -> None:
    done = _try("ip", *arguments)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _rewrite(path: Path, text: str) -> None:
    """New content for a file that is mounted, hence cannot be replaced; at no moment is it empty."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(file, text.encode(), 0)
        os.ftruncate(file, len(text))
    finally:
        os.close(file)


@dataclass
class Pod:
    """One life of one index."""

    index: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def exit_code(self) -> int | None:
        """As the kubelet reports it: 128 + signal for a killed first process."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def first_process(self) -> int | None:
        """Process id, on this machine, of the container's first process; None once it is gone."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with contextlib.suppress(OSError):
            children = path.read_text().split()
            return int(children[0]) if children else None
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the container's first process; SIGKILL ends every process of the pod."""
        first = self.first_process()
        if first is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, number)


@dataclass
class PodLab:
    """A bridge and the pods of one manifest.

    Attributes:
        objects: the manifest.
        folder: for logs, hosts files and what stands in for the shared storage.
        late_leader: seconds for which a pod that already looks for the leader does not find its name.
        extra_path: folders to import from before what is installed, as another image would have them.
        pods: the newest pod of each index; lives: how often each index was replaced; failures: pods that count.
    """

    objects: list[dict[str, Any]]
    folder: Path
    late_leader: float = 0.0
    extra_path: tuple[Path, ...] = ()
    pods: dict[int, Pod] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    failures: int = 0

    def __post_init__(self) -> None:
        self.job = self.objects[-1]
        self.spec = self.job["spec"]["template"]["spec"]
        self.container = self.spec["containers"][0]
        self.nodes: int = self.job["spec"]["completions"]
        self.tag = f"n{os.getpid() % 10000}l{next(_LABS)}"
        self.net = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self.shared = self.folder / "shared"
        self.missed: float | None = None

    # -- machine ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def network(self) -> Iterator[PodLab]:
        """The bridge with one namespace a pod; ends every pod, and leaves nothing behind."""
        self.shared.mkdir(parents=True)
        (config,) = (item for item in self.objects if item["kind"] == "ConfigMap")
        (self.folder / "recipe").mkdir()
        for name, text in config["data"].items():  # once: a pod may be reading it when another starts
            (self.folder / "recipe" / name).write_text(text)
        os.chown(self.shared, self.user, self.spec["securityContext"]["runAsGroup"])
        try:
            _ip("link", "add", f"{self.tag}br", "type", "bridge")
            _ip("addr", "add", f"{self.net}.1/24", "dev", f"{self.tag}br")
            _ip("link", "set", f"{self.tag}br", "up")
            for index in range(self.nodes):
                self._namespace(index)
            self._write_names()
            yield self
        finally:
            for pod in self.pods.values():
                pod.process.kill()
                pod.process.wait(30)
            for index in range(self.nodes):
                _try("ip", "netns", "del", f"{self.tag}-{index}")
            _try("ip", "link", "del", f"{self.tag}br")

    def _namespace(self, index: int) -> None:
        name, link = f"{self.tag}-{index}", f"{self.tag}v{index}"
        _ip("netns", "add", name)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", link, "master", f"{self.tag}br", "up")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def _address(self, index: int) -> str:
        """Each life of an index has another address, as a new pod has."""
        return f"{self.net}.{10 + index + self.nodes * max(0, self.lives.get(index, 0))}"

    @property
    def user(self) -> int:
        """User id of the pods."""
        return int(self.spec["securityContext"]["runAsUser"])

    def _write_names(self) -> None:
        """What DNS would answer, in each pod's hosts file; the file is rewritten in place, since it is mounted."""
        late = self._leader_is_late()
        for index in range(self.nodes):
            lines = ["127.0.0.1 localhost"]
            for other in range(self.nodes):
                if other == 0 and index != 0 and late:
                    continue
                lines.append(f"{self._address(other)} {' '.join(self._names(other, own=other == index))}")
            path, text = self.folder / f"hosts{index}", "\n".join(lines) + "\n"
            if not path.is_file() or path.read_text() != text:
                _rewrite(path, text)

    def _leader_is_late(self) -> bool:
        if self.late_leader and self.missed is None:
            logs = (self.folder / f"pod{index}-0.log" for index in range(1, self.nodes))
            if any(log.is_file() and "does not resolve" in log.read_text(errors="replace") for log in logs):
                self.missed = time.monotonic()
            return True
        return self.missed is not None and time.monotonic() - self.missed < self.late_leader

    def _names(self, index: int, *, own: bool) -> list[str]:
        host, service = f"{self.job['metadata']['name']}-{index}", self.spec.get("subdomain", "none")
        zone = f"{host}.{service}.{self.job['metadata']['namespace']}.svc"
        return [f"{zone}.cluster.local", zone, f"{host}.{service}", *([host] if own else [])]

    # -- pods -------------------------------------------------------------------------------------------------

    def start(self, index: int) -> Pod:
        """A new pod of this index: everything in it is fresh but the shared storage."""
        life = self.lives[index] = self.lives.get(index, -1) + 1
        name = f"{self.tag}-{index}"
        _ip("-n", name, "addr", "flush", "dev", "eth0")
        _ip("-n", name, "addr", "add", f"{self._address(index)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        self._write_names()
        description = self.folder / f"pod{index}-{life}.json"
        description.write_text(json.dumps(self._description(index)))
        (self.folder / f"scratch{index}").mkdir(exist_ok=True)
        log = self.folder / f"pod{index}-{life}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    "ip", "netns", "exec", name, "unshare", "-m", "-u", "-i", "-p", "-f",
                    "--kill-child", "--mount-proc", sys.executable, "-S", str(_INIT), str(description),
                ],
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.pods[index] = Pod(index, process, log)
        return self.pods[index]

    def _description(self, index: int) -> dict[str, Any]:
        recipe = self.folder / "recipe"
        return {
            "hostname": f"{self.job['metadata']['name']}-{index}",
            "hosts": str(self.folder / f"hosts{index}"),
            "scratch": str(self.folder / f"scratch{index}"),
            "mounts": [self._mount(item, recipe) for item in self.container["volumeMounts"]],
            "kept": sorted({str(_INIT.parents[2]), sys.prefix}, key=len),
            "visible": sorted(
                {
                    str(Path(sys.executable)),
                    str(Path(sys.executable).resolve()),
                    str(_INIT),
                    *(str(path / "x") for path in self.extra_path),
                }
            ),
            "user": self.user,
            "group": self.spec["securityContext"]["runAsGroup"],
            "folder": self.container["workingDir"],
            "command": self.container["command"],
            "environment": {
                "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
                "HOSTNAME": f"{self.job['metadata']['name']}-{index}",
                **{item["name"]: item["value"] for item in self.container["env"]},
                "JOB_COMPLETION_INDEX": str(index),
                **({"PYTHONPATH": os.pathsep.join(map(str, self.extra_path))} if self.extra_path else {}),
            },
        }

    def _mount(self, item: dict[str, Any], recipe: Path) -> dict[str, Any]:
        (volume,) = (each for each in self.spec["volumes"] if each["name"] == item["name"])
        if "configMap" in volume:
            return {"target": item["mountPath"], "source": str(recipe), "read_only": True}
        if "persistentVolumeClaim" in volume:
            return {"target": item["mountPath"], "source": str(self.shared), "read_only": False}
        return {"target": item["mountPath"], "size": _SHM}

    # -- the Job controller -----------------------------------------------------------------------------------

    def run_job(
        self,
        *,
        timeout: float,
        replace_after: float = 1.0,
        each_tick: Callable[[PodLab], None] = lambda lab: None,
    ) -> str:
        """Start every pod and do as the Job says until it is `Complete` or `Failed`.

        Args:
            timeout: seconds after which the test has failed.
            replace_after: seconds until a pod is replaced; a real controller takes 10 and more.
            each_tick: called ten times a second, to kill and signal pods.

        Raises:
            TimeoutError: with the end of each pod's log.
        """
        end = time.monotonic() + timeout
        done = set[int]()
        due: dict[int, float] = {}
        for index in range(self.nodes):
            self.start(index)
        while len(done) < self.nodes:
            if time.monotonic() > end:
                raise TimeoutError(f"the Job did not end within {timeout} s\n{self.logs()}")
            time.sleep(0.1)
            self._write_names()
            each_tick(self)
            for index, pod in list(self.pods.items()):
                if index in done or index in due or pod.exit_code is None:
                    continue
                if pod.exit_code == 0:
                    done.add(index)
                    continue
                action = self._action(pod.exit_code)
                self.failures += action == "Count"
                if action == "FailJob" or self.failures > self.job["spec"]["backoffLimit"]:
                    return "Failed"
                due[index] = time.monotonic() + replace_after
            for index in [index for index, at in due.items() if time.monotonic() >= at]:
                del due[index]
                self.start(index)
        return "Complete"

    def _action(self, code: int) -> str:
        """The first rule of the Job's podFailurePolicy that matches an exit code."""
        for rule in self.job["spec"]["podFailurePolicy"]["rules"]:
            if "onExitCodes" in rule and code in rule["onExitCodes"]["values"]:
                return str(rule["action"])
        return "Count"

    def logs(self, lines: int = 25) -> str:
        """The end of every pod's log."""
        parts = []
        for path in sorted(self.folder.glob("pod*.log")):
            text = path.read_text(errors="replace").splitlines()
            parts.append(f"--- {path.name}\n" + "\n".join(text[-lines:]))
        return "\n".join(parts)
