"""docs/eks.md, walked: its commands in the order written, in one shell, with recorders in place of the cloud's tools.

`nvrx-run` is the real one. A variable that no earlier step has set, a file that no earlier step has written, a
placeholder that is left in what is applied: each ends the walk or is found in the record.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from data_jobs import fits

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "eks.md"
PLACEHOLDERS = ("fs-0123456789abcdef0", "cr-0123456789abcdef0", "image: nvrx-run:0.1.0")
_UNSUPPORTED = "['use1-az3','usw1-az2','cac1-az3']"
_OTHER_ZONES = f"AvailabilityZones[?ZoneName!='us-east-2b' && !contains({_UNSUPPORTED}, ZoneId)].ZoneName"
ANSWERS = {
    "Account": "111122223333",
    "CapacityBlockOfferings[0].CapacityBlockOfferingId": "cbo-1",
    "CapacityReservation.CapacityReservationId": "cr-0fedcba9876543210",
    "CapacityReservations[0].AvailabilityZone": "us-east-2b",
    "CapacityReservations[0].State": "active",
    f"{_OTHER_ZONES} | [0]": "us-east-2a",
    "Subnets[0].SubnetId": "subnet-1",
    "cluster.resourcesVpcConfig.clusterSecurityGroupId": "sg-1",
    "FileSystem.FileSystemId": "fs-0aaaaaaaaaaaaaaa1",
    "FileSystems[0].DNSName": "fs-0aaaaaaaaaaaaaaa1.fsx.us-east-2.amazonaws.com",
    "FileSystems[0].LustreConfiguration.MountName": "abcd1234",
}
_RECORDER = """#!{python} -S
import json, os, sys, time
here = os.environ["WALK"]
argv = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
files = {{}}
for path in argv:
    if path.endswith(".yaml"):
        with open(path) as file:  # one that is not there ends the walk
            files[path] = file.read()
with open(os.path.join(here, "record"), "a") as record:
    record.write(json.dumps({{"argv": argv, "files": files}}) + "\\n")
if "--password-stdin" in argv or "--from-file=token=/dev/stdin" in argv:
    assert sys.stdin.read().strip(), argv
if argv[0] == "aws":
    query = argv[argv.index("--query") + 1] if "--query" in argv else ""
    if query == "FileSystems[0].Lifecycle":
        with open(os.path.join(here, "record")) as record:
            gone = "delete-file-system" in record.read()
        print("AVAILABLE")
        sys.exit(254 if gone else 0)
    if argv[1:3] == ["ecr", "get-login-password"]:
        print("password")
    if query:
        print({answers}[query])
if argv[:2] == ["kubectl", "diff"]:
    sys.exit(1)  # there are differences
"""


def commands() -> str:
    """The page's commands in order: the indented blocks. Fenced ones are for other clusters."""
    lines, script, fenced = PAGE.read_text().splitlines(), [], False
    for line in lines:
        fenced ^= line.startswith("```")
        if not fenced and line.startswith("    "):
            script.append(line[4:])
    return "\n".join(script) + "\n"


@dataclass(frozen=True)
class Step:
    """One call of a recorded tool, with the files that it was given."""

    argv: list[str]
    files: dict[str, str]

    def starts(self, text: str) -> bool:
        """Whether the call begins with these words."""
        return self.argv[: len(text.split())] == text.split()


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """The record of the whole page."""
    folder = tmp_path_factory.mktemp("walk")
    for name in ("manifests", "recipes"):
        shutil.copytree(ROOT / name, folder / name)
    bin_dir = folder / "bin"
    bin_dir.mkdir()
    for tool in ("aws", "eksctl", "kubectl", "helm", "docker"):
        path = bin_dir / tool
        path.write_text(_RECORDER.format(python=sys.executable, answers=repr(ANSWERS)))
        path.chmod(0o755)
    run = bin_dir / "nvrx-run"
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from runner.cli import main; sys.exit(main())"
    run.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" {ROOT} "$@"\n')
    run.chmod(0o755)
    sleep = bin_dir / "sleep"
    sleep.write_text("#!/bin/sh\n")
    sleep.chmod(0o755)
    script = "set -eu -o pipefail\n" + commands().replace("us-west-2 CLUSTER=nvrx", "us-east-2 CLUSTER=mine")
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, input="hf_secret\n", capture_output=True, text=True, timeout=120,
        env={"PATH": f"{bin_dir}:/usr/bin:/bin", "WALK": str(folder), "HOME": str(folder)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    assert "hf_secret" not in (folder / "record").read_text()
    return [Step(**json.loads(line)) for line in (folder / "record").read_text().splitlines()]


def test_commands_are_shell() -> None:
    fenced = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert fenced
    for script in (commands(), *fenced):
        done = subprocess.run(
            ["bash", "-n"], input=script, capture_output=True, text=True, timeout=20, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_commands_run_in_the_order_written(walk: list[Step]) -> None:
    wanted = [
        "aws sts get-caller-identity", "aws ec2 purchase-capacity-block", "eksctl create cluster",
        "kubectl -n kube-system patch daemonset aws-efa-k8s-device-plugin-daemonset", "aws fsx create-file-system",
        "kubectl apply -f manifests/cluster/namespace.yaml -f mine/storage.yaml",
        "kubectl apply -f manifests/cluster/storage-owner.yaml", "kubectl -n training create secret generic hf-token",
        "docker build", "docker push", "helm upgrade --install kueue", "kubectl apply -f mine/data-c4.yaml",
        "kubectl apply -f mine/data.yaml", "kubectl apply -f mine/job.yaml", "kubectl delete -f mine/job.yaml",
        "kubectl delete -f mine/storage.yaml", "aws fsx delete-file-system", "eksctl delete cluster",
    ]  # fmt: skip
    places = []
    for text in wanted:
        found = [index for index, step in enumerate(walk) if step.starts(text)]
        assert found, f"{text}: not among the commands"
        places.append(found[0])
    assert places == sorted(places)


def test_values_of_earlier_steps_reach_the_later_ones(walk: list[Step]) -> None:
    for step in walk:
        for path, text in step.files.items():
            for placeholder in PLACEHOLDERS:
                if not path.startswith("manifests/"):
                    assert placeholder not in text, f"{' '.join(step.argv)}: {path}"
    given = {path: text for step in walk for path, text in step.files.items()}
    cluster = yaml.safe_load(given["mine/eksctl.yaml"])
    assert cluster["metadata"] == {"name": "mine", "region": "us-east-2", "version": "1.35"}
    gpus = cluster["managedNodeGroups"][1]
    assert gpus["availabilityZones"] == ["us-east-2b"]
    assert cluster["availabilityZones"] == ["us-east-2b", "us-east-2a"]  # eksctl would draw some
    target = gpus["capacityReservation"]["capacityReservationTarget"]
    assert target == {"capacityReservationId": "cr-0fedcba9876543210"}
    volume, claim = yaml.safe_load_all(given["mine/storage.yaml"])
    assert volume["spec"]["csi"]["volumeHandle"] == "fs-0aaaaaaaaaaaaaaa1"
    assert volume["spec"]["csi"]["volumeAttributes"] == {
        "dnsname": "fs-0aaaaaaaaaaaaaaa1.fsx.us-east-2.amazonaws.com", "mountname": "abcd1234",
    }  # fmt: skip
    image = "111122223333.dkr.ecr.us-east-2.amazonaws.com/nvrx-run:0.1.0"
    for path in ("mine/data-c4.yaml", "mine/data.yaml", "mine/job.yaml"):
        job = list(yaml.safe_load_all(given[path]))[-1]
        pod = job["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == image
        assert job["metadata"]["namespace"] == claim["metadata"]["namespace"]
        claims = [
            item["persistentVolumeClaim"]["claimName"]
            for item in pod["volumes"]
            if "persistentVolumeClaim" in item
        ]
        assert claims == [claim["metadata"]["name"]]


def test_data_jobs_fit_the_system_nodes_and_gpu_pods_the_others(walk: list[Step]) -> None:
    given = {path: text for step in walk for path, text in step.files.items()}
    system, gpus = yaml.safe_load(given["mine/eksctl.yaml"])["managedNodeGroups"]
    assert "taints" not in system
    for path in ("mine/data-c4.yaml", "mine/data.yaml"):
        pod = list(yaml.safe_load_all(given[path]))[-1]["spec"]["template"]["spec"]
        assert "tolerations" not in pod
        assert fits(pod["containers"][0]["resources"]["requests"], system["instanceType"]), path
    pod = list(yaml.safe_load_all(given["mine/job.yaml"]))[-1]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["node.kubernetes.io/instance-type"] == gpus["instanceType"]
    tolerated = {item["key"] for item in pod["tolerations"]}
    assert {taint["key"] for taint in gpus["taints"]} <= tolerated
    (patch,) = (step for step in walk if "patch" in step.argv)
    (change,) = json.loads(patch.argv[-1])
    assert change["value"]["key"] in tolerated  # the EFA plugin goes where the pods go


def test_a_file_system_that_does_not_come_ends_the_walk() -> None:
    """In a shell with `set -e` at once; in a person's own, where the next step needs its name."""
    (wait,) = re.findall(r"^for _ in .*?(?=^sed )", commands(), re.M | re.S)
    wait = wait[wait.index("for _ in $(seq 60); do [") :]
    stubs = "sleep() { :; }; FSX_ID=fs-1; fsx() { echo CREATING; }\n"
    script = f'{stubs}{wait}\necho "s/dns/${{FSX_DNS:?}}/"\necho went on\n'
    for options in ("set -eu", "set +eu"):
        done = subprocess.run(
            ["bash", "-c", f"{options}\n{script}"], capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode != 0
        assert "fs-1 is not AVAILABLE but CREATING" in done.stdout
        assert "went on" not in done.stdout


def test_pods_of_the_run_are_looked_at_without_those_of_the_data_job(walk: list[Step]) -> None:
    given = {path: list(yaml.safe_load_all(text)) for step in walk for path, text in step.files.items()}
    both = {part: given[f"mine/{name}.yaml"] for part, name in (("data", "data"), ("train", "job"))}
    for part, objects in both.items():
        labels = objects[-1]["spec"]["template"]["metadata"]["labels"]
        assert (labels["nvrx-run/run"], labels["nvrx-run/part"]) == ("llama8b", part)
    shared = [item for item in both["train"] if item["kind"] not in ("Job", "Service", "ConfigMap")]
    assert shared and all(item in both["data"] for item in shared)  # applying one leaves the other's alone
    for verb, part in (("get", "train"), ("logs", "train"), ("wait", "data")):
        wanted = f"nvrx-run/run=llama8b,nvrx-run/part={part}"
        assert any(verb in step.argv and wanted in step.argv for step in walk), verb


def test_what_is_applied_is_deleted_in_the_end(walk: list[Step]) -> None:
    def named(verb: str) -> set[str]:
        steps = (step for step in walk if step.argv[:2] == ["kubectl", verb])
        return {path for step in steps for path in step.files}

    kept = {"manifests/cluster/namespace.yaml"}  # goes with the cluster
    assert named("apply") - kept == named("delete")
    for step in walk:
        if step.argv[0] == "kubectl" and "wait" in step.argv:
            assert any(item.startswith("--timeout") for item in step.argv)


def test_queue_of_the_page_is_one_that_the_chart_serves(walk: list[Step]) -> None:
    (install,) = (step for step in walk if step.starts("helm upgrade --install kueue"))
    version = install.argv[install.argv.index("--version") + 1]
    assert tuple(map(int, version.split("."))) >= (0, 15, 0)
    text = (ROOT / "manifests" / "cluster" / "kueue.yaml").read_text()
    assert {item["apiVersion"] for item in yaml.safe_load_all(text)} == {"kueue.x-k8s.io/v1beta2"}


def test_fetching_job_leaves_a_folder_that_the_shipped_recipes_read(tmp_path: Path) -> None:
    """Its own program, on the real library; only the hub is a file here."""
    job = yaml.safe_load((ROOT / "manifests" / "cluster" / "data-c4.yaml").read_text())
    *_, program = job["spec"]["template"]["spec"]["containers"][0]["command"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"text": f"document {index}", "url": "x"}) + "\n" for index in range(5))
    )
    hub = (
        "import datasets\n_load = datasets.load_dataset\n"
        "def load_dataset(name, config, *, split, streaming):\n"
        "    assert (name, config, split, streaming) == ('allenai/c4', 'en', 'train', True)\n"
        f"    return _load('json', data_files={str(rows)!r}, split='train', streaming=True)\n"
        "datasets.load_dataset = load_dataset\n"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "c4-100k.partial").mkdir()  # of a pod that was killed
    env = {**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", hub + program], cwd=tmp_path, env=env, timeout=100, check=True)
    recipe = yaml.safe_load((ROOT / "recipes" / "llama8b-sync-none.yaml").read_text())
    assert recipe["dataset"]["source"] == "saved"
    from datasets import load_from_disk

    saved = load_from_disk(str(tmp_path / recipe["dataset"]["path"]))
    assert saved["text"][:] == [f"document {index}" for index in range(5)]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["c4-100k"]
