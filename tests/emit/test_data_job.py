"""The data step as a Job: valid, small, and what it makes is what the run's pods find."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import yaml
from lab_runs import lab_recipe
from podlab import PodLab, why_not
from recipes_for_tests import on_cluster
from strict_schemas import strict
from test_manifest import EVERYTHING, FSX

from runner.emit.data_job import data_job_objects, emit_data_job
from runner.emit.manifest import manifest_objects
from runner.recipe.load import load_recipe
from runner.train.data.cache import is_prepared


@pytest.mark.parametrize("kubernetes", [{}, {**EVERYTHING, "storage": FSX}], ids=["least", "most"])
def test_every_bundled_schema_takes_the_data_job(kubernetes: dict) -> None:
    recipe = on_cluster(nodes=4, cluster={"kubernetes": kubernetes})
    objects = list(yaml.safe_load_all(emit_data_job(recipe)))
    strict(objects)
    job = objects[-1]
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["nvrx-data", "/etc/nvrx/recipe.yaml"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert "node.kubernetes.io/instance-type" not in job["spec"]["template"]["spec"].get("nodeSelector", {})


def test_it_reads_and_writes_where_the_run_does() -> None:
    recipe = on_cluster(nodes=2, cluster={"kubernetes": {"storage": FSX}})
    data, run = data_job_objects(recipe), manifest_objects(recipe)
    assert data[-1]["metadata"]["name"] != run[-1]["metadata"]["name"]
    assert len(data[-1]["metadata"]["name"] + "-0") <= 63
    texts = [item["data"] for objects in (data, run) for item in objects if item["kind"] == "ConfigMap"]
    assert texts[0] == texts[1]
    specs = [objects[-1]["spec"]["template"]["spec"] for objects in (data, run)]
    claims = [[item for item in spec["volumes"] if item["name"] == "storage"] for spec in specs]
    homes = [[item for item in spec["containers"][0]["env"] if item["name"] == "HF_HOME"] for spec in specs]
    assert claims[0] == claims[1]
    assert homes[0] == homes[1]


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_imitated_pod_prepares_the_data_that_the_run_looks_for() -> None:
    folder = Path(tempfile.mkdtemp(prefix="podlab-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        objects = data_job_objects(lab_recipe("none", 2))
        lab = PodLab(objects, folder)
        with lab.network():
            assert lab.run_job(timeout=150) == "Complete", lab.logs()
        (prepared,) = (lab.shared / "runs" / "lab" / "data").iterdir()
        assert is_prepared(prepared)
        (folder / "recipe.yaml").write_text(
            manifest_objects(lab_recipe("none", 2))[-3]["data"]["recipe.yaml"]
        )
        from runner.train.data.packed import fingerprint

        assert prepared.name == fingerprint(load_recipe(folder / "recipe.yaml").recipe)
    finally:
        shutil.rmtree(folder)
