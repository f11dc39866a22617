"""For each rule across sections, a recipe that breaks exactly it: shown in docs/rules.md and run by the tests.

A case is a shipped recipe and the overrides that break the rule.
"""

from __future__ import annotations

Case = tuple[str, tuple[str, ...]]

QUICK = "recipes/quickstart.yaml"
SYNC = "recipes/llama8b-sync-none.yaml"
ASYNC = "recipes/llama8b-async-none.yaml"
INPROCESS = "recipes/llama8b-async-inprocess.yaml"
FT = "recipes/llama8b-async-ft_launcher.yaml"
BOTH = "recipes/llama8b-async-combined.yaml"
GPT2 = "recipes/gpt2-sync-none.yaml"

_OWN_NODE = "cluster.instance={gpus: 8, gpu_memory: 80GiB, efa: 4, vcpus: 96, memory: 64GiB}"

CASES: dict[str, Case] = {
    "R101": (QUICK, ("recovery.inprocess={soft_timeout: 90s, hard_timeout: 60s}",)),
    "R102": (QUICK, ("recovery.inprocess={hard_timeout: 3m, barrier_timeout: 2m}",)),
    "R103": (INPROCESS, ("recovery.process_group_timeout=60s",)),
    "R104": (QUICK, ("recovery.inprocess.heartbeat_interval=40s",)),
    "R105": (QUICK, ("recovery.inprocess.heartbeat_timeout=3m",)),
    "R106": (QUICK, ("recovery.inprocess={heartbeat_timeout: 2s, monitor_interval: 5s}",)),
    "R107": (QUICK, ("recovery.inprocess.termination_grace=5m",)),
    "R110": (FT, ("recovery.ft_launcher.rank_heartbeat_timeout=40m",)),
    "R111": (BOTH, ("recovery.ft_launcher.rank_heartbeat_timeout=80s",)),
    "R112": (FT, (
        "recovery.ft_launcher={rank_heartbeat_timeout: 5s, workload_check_interval: 10s, term_timeout: 10m}",
    )),
    "R120": (SYNC, ("checkpoint.write_timeout=3m",)),
    "R121": (SYNC, ("checkpoint.load_timeout=200s",)),
    "R122": (INPROCESS, ("checkpoint.mode=sync",)),
    "R123": (FT, ("checkpoint.mode=sync", "recovery.ft_launcher.rank_heartbeat_timeout=2m")),
    "R124": (SYNC, ("recovery.process_group_timeout=60s",)),
    "R125": (FT, (
        "recovery.ft_launcher={rank_heartbeat_timeout: 2m, initial_rank_heartbeat_timeout: 3m, term_timeout: 10m}",
    )),
    "R126": (FT, ("recovery.ft_launcher.term_timeout=30s",)),
    "R128": (FT, ("recovery.ft_launcher.term_timeout=40m", "cluster.kubernetes.grace_period=30m")),
    "R129": (ASYNC, ("recovery.stop_timeout=60s",)),
    "R130": (QUICK, ("checkpoint.mode=sync",)),
    "R131": (INPROCESS, ("training.global_batch_size=3200", "checkpoint.every=10")),
    "R201": (QUICK, ("training.global_batch_size=18",)),
    "R202": (QUICK, ("cluster={accelerator: auto}", "training.global_batch_size=18")),
    "R203": (QUICK, ("training.schedule.warmup_steps=60",)),
    "R204": (QUICK, ("training.schedule.decay_steps=40",)),
    "R205": (QUICK, ("recovery.inprocess.min_world_size=4",)),
    "R206": (QUICK, (
        "dataset={source: hub, name: allenai/c4, tokenizer: bytes, streaming: true}",
        "recovery.inprocess.min_world_size=1",
    )),
    "R207": (QUICK, (
        "cluster.processes_per_node=4", "training={steps: 60, global_batch_size: 4}",
        "recovery.inprocess.min_world_size=3",
    )),
    "R301": (QUICK, ("model={param_dtype: float32}",)),
    "R302": (QUICK, ("model.weights=pretrained",)),
    "R303": (QUICK, ("model.architecture.num_key_value_heads=3",)),
    "R304": (QUICK, ("sharding.wrap={modules: [LamaDecoderLayer]}",)),
    "R305": (QUICK, ("sharding.wrap={min_params: 100000000}",)),
    "R306": (QUICK, ("cluster.processes_per_node=256", "training={steps: 60, global_batch_size: 256}")),
    "R307": (QUICK, ("sharding={strategy: hsdp, replicas: 3}",)),
    "R308": (QUICK, ("sharding={strategy: hsdp, replicas: 2}",)),
    "R309": (GPT2, ("dataset.sequence_length=2048",)),
    "R310": (QUICK, ("model.attention=flash_attention_2",)),
    "R311": (QUICK, ("dataset={source: files, format: text, paths: ['*.txt']}",)),
    "R312": (QUICK, ("model.architecture.vocab_size=200",)),
    "R313": (SYNC, ("model.param_dtype=bfloat16",)),
    "R401": (SYNC, ("cluster.instance={gpus: 8, gpu_memory: 8GiB, efa: 32, vcpus: 192, memory: 2048GiB}",)),
    "R402": (SYNC, ("training.micro_batch_size=4", "training.global_batch_size=64", "checkpoint.every=1000")),
    "R403": (SYNC, (_OWN_NODE, "checkpoint.every=1000")),
    "R404": (SYNC, ("cluster.kubernetes.shm_size=10GiB",)),
    "R405": (SYNC, ("cluster.kubernetes.shm_size=2000GiB",)),
    "R406": (GPT2, ("dataset.workers=16",)),
    "R501": (ASYNC, ("checkpoint.every=20",)),
    "R502": (SYNC, ("checkpoint.keep_last=20", "training.steps=20000")),
    "R503": (QUICK, ("checkpoint.keep_every=30",)),
    "R504": (QUICK, ("cluster={nodes: 2, accelerator: cpu, processes_per_node: 1}", "output.folder=/tmp/run")),
    "R505": (QUICK, ("checkpoint.every=100",)),
    "R506": (QUICK, ("checkpoint.snapshot_every=40",)),
    "R507": (QUICK, ("checkpoint.folder=s3://bucket/run",)),
    "R601": (QUICK, ("faults={count: 99, after_step: 40}", "recovery.inprocess.max_restarts=200")),
    "R602": (QUICK, ("faults={at: [{step: 30, rank: 2, type: exception}]}",)),
    "R603": (QUICK, ("faults.weights=[0.6, 0.4]",)),
    "R604": (QUICK, ("faults.types=[exception, exception]",)),
    "R605": (QUICK, ("cluster.processes_per_node=1",)),
    "R606": (QUICK, ("faults.types=[sigkill]",)),
    "R607": (QUICK, ("faults.count=5", "recovery.inprocess.max_restarts=3")),
    "R608": (QUICK, ("faults={count: 1, types: [hang], hang_duration: 10s}",)),
    "R609": (QUICK, ("faults={types: [hang]}",)),
    "R610": (QUICK, ("faults={at: [{step: 30, rank: 1, type: exception, phase: save}]}",)),
    "R611": (QUICK, ("faults.types=[loader_death]",)),
    "R612": (QUICK, ("recovery.inprocess.window={restarts: 20, time: 5m}",)),
    "R701": (SYNC, ("cluster.instance_type=p5.48xlage", "cluster.processes_per_node=8")),
    "R703": (GPT2, ("cluster.processes_per_node=2",)),
    "R706": (GPT2, ("cluster.nodes=2", "cluster.instance_type=g5.xlarge", "checkpoint.every=1000")),
    "R707": (GPT2, ("name=2-gpt",)),
    "R708": (QUICK, ("cluster.kubernetes={image: 'nvrx-run:0.1.0', storage: {source: claim, claim_name: training}}",)),
    "R709": (SYNC, ("cluster.kubernetes.pod_restarts=1",)),
    "R710": (FT, ("recovery.ft_launcher.max_restarts=0", "faults={}")),
    "R711": (FT, ("recovery.ft_launcher.max_restarts=200",)),
    "R721": (GPT2, ("cluster.processes_per_node=8",)),
    "R722": (SYNC, ("cluster.kubernetes.efa=64",)),
    "R723": (SYNC, ("cluster.kubernetes.env={RANK: '0'}",)),
    "R724": (SYNC, ("cluster.kubernetes.env={HF_API_TOKEN: 'hf_abcdefghijklmnopqrstuvwxyz'}",)),
    "R725": (SYNC, ("cluster.kubernetes.labels={app.kubernetes.io/name: training}",)),
    "R726": (SYNC, ("cluster.kubernetes.tolerations=[{key: dedicated, value: training}]",)),
    "R727": (SYNC, ("cluster.kubernetes.ipc_lock=true",)),
    "R728": (SYNC, ("output.folder=/data/runs",)),
    "R729": (SYNC, ("cluster.kubernetes.local_storage={size: 100GiB, mount_path: /shared}",)),
    "R730": (SYNC, ("cluster.kubernetes.grace_period=5m",)),
    "R731": (SYNC, ("output.live.prometheus_port=29501",)),
    "R732": (SYNC, ("cluster.kubernetes.image=registry.example:443/Team/nvrx-run:0.1.0",)),
    "R733": (SYNC, ("cluster.kubernetes.patches={ConfigMap: {data: {recipe.yaml: 'name: another'}}}",)),
    "R801": (INPROCESS, ("cluster.nvrx_version=0.7.0",)),
    "R803": (FT, ("cluster.nvrx_version=0.4.0",)),
    "R802": (INPROCESS, ("cluster.nccl_version=2.28.5",)),
}  # fmt: skip

FILE_CODES: dict[str, str] = {
    "Y100": "The file cannot be opened.",
    "Y101": "The file is not UTF-8. A byte-order mark is fine.",
    "Y102": "A control character, or another that YAML does not allow.",
    "Y103": "The file is empty, or all comment.",
    "Y104": "The file holds several documents.",
    "Y105": "The top level is a list or a single value, not a mapping of sections.",
    "Y106": "Not YAML: a tab as indentation, an unclosed quote or bracket, an alias without its anchor.",
    "Y107": "Nested deeper than any recipe needs.",
    "Y108": "Larger than any recipe, in bytes or in values; aliases count each time they are used.",
    "Y109": "A tag. Types follow from the setting; only `!replace` before a mapping means something.",
    "Y110": "`${NAME}` names a variable that is not set and has no default.",
    "Y111": "`${` starts no variable.",
    "Y112": "A key is given twice in one mapping.",
    "Y113": "A key is a list or a mapping.",
    "Y114": "`<<` merges something that is no mapping.",
    "Y120": "`--set` is not `section.key=value`, or the value is not one YAML value.",
    "Y121": "`extends` is not the path of one recipe.",
    "Y122": "Recipes extend each other in a cycle, or in more than ten layers.",
    "Y123": "The recipe that is extended is not there.",
    "T201": "A key that the section does not have; the nearest one that it has, or the section where it belongs.",
    "T202": "A required setting is missing.",
    "T203": "A value of another type, or an unquoted one that YAML readers disagree about: `no`, `0755`, `1:30`.",
    "T204": "A value out of range, too long, or of the wrong form.",
    "T205": "A value that is none of the choices.",
}
"""What is said about the file itself and about single settings."""
