"""`cluster.kubernetes`: the image, the storage and the policies of the emitted Job."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from runner.recipe.fields import Duration, NonNegativeInt, Section, Size
from runner.recipe.quantity import LARGEST_INT32

_LABEL = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)"
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
DnsLabel = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
DnsName = Annotated[str, Field(max_length=253, pattern=rf"^{_SUBDOMAIN}$")]
LabelKey = Annotated[str, Field(max_length=317, pattern=rf"^({_SUBDOMAIN}/)?{_LABEL}$")]
LabelValue = Annotated[str, Field(max_length=63, pattern=rf"^{_LABEL}?$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^:\n\t]*[^:/\n\t]$")]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")]


class FsxStorage(Section):
    """An FSx for Lustre file system that exists, as a static PersistentVolume with a claim of its own."""

    source: Literal["fsx"]
    file_system_id: Annotated[str, Field(pattern=r"^fs-[0-9a-f]{8,17}$")]
    """Id of the file system."""
    dns_name: DnsName
    """Its DNS name, `<id>.fsx.<region>.amazonaws.com`."""
    mount_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,16}$")]
    """Its mount name, as `aws fsx describe-file-systems` shows it."""
    capacity: Quantity = "1200Gi"
    """Size stated in volume and claim; Lustre does not enforce it."""
    mount_path: AbsolutePath = "/shared"
    """Where the pods see it. Relative paths of the recipe start here."""


class ClaimStorage(Section):
    """A claim that exists in the namespace; it must be ReadWriteMany where there is more than one node."""

    source: Literal["claim"]
    claim_name: DnsName
    """Name of the PersistentVolumeClaim."""
    mount_path: AbsolutePath = "/shared"
    """Where the pods see it. Relative paths of the recipe start here."""


Storage = Annotated[FsxStorage | ClaimStorage, Field(discriminator="source")]


class LocalStorage(Section):
    """Node-local scratch on the instance store (an emptyDir; the node's ephemeral storage must lie on its NVMe)."""

    size: Size
    """Largest size; also requested, so that the pod lands on a node that has it. With 20 GiB for logs and /tmp, at most
    nine tenths of the instance store: a kubelet keeps the last tenth free."""
    mount_path: AbsolutePath = "/local"
    """Where the pods see it."""


class SecretKey(Section):
    """One key of a Secret that exists in the namespace."""

    secret: DnsName
    """Name of the Secret."""
    key: Annotated[str, Field(max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key in it."""


class Toleration(Section):
    """A taint that the pods put up with."""

    key: LabelKey | None = None
    """Key of the taint; leave out, with `Exists`, for every taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """`Exists` matches any value, `Equal` the one in `value`."""
    value: LabelValue | None = None
    """Value of the taint, with `Equal` only."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Default: all."""


class Topology(Section):
    """How close together the nodes must be."""

    label: LabelKey = "topology.k8s.aws/network-node-layer-3"
    """Node label whose value the pods should share. Layer 3 is the switch nearest to the instance."""
    required: bool = False
    """Wait rather than run further apart."""


class PodResources(Section):
    """Overrides what follows from the instance type."""

    cpu: Quantity | None = None
    """CPUs of a pod. Default: 95 % of the vCPUs."""
    memory: Quantity | None = None
    """Memory of a pod. Default: 90 % of what the node can hand out."""


class KubernetesSection(Section):
    """The emitted Job, and what it stands on."""

    image: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^\S+$")]
    """Image with `nvrx-run[train]` installed (manifests/Dockerfile): `[registry[:port]/]path[:tag][@digest]`. Pin a
    tag or a digest."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When the image is pulled."""
    image_pull_secrets: Annotated[tuple[DnsName, ...], Field(strict=False)] = ()
    """Secrets for a private registry."""
    namespace: DnsLabel = "default"
    """Namespace of everything."""
    create_namespace: bool = False
    """Emit the Namespace as well, with `pod_security` enforced. Deleting the manifest then deletes it
    with all that is in it, claims included."""
    pod_security: Literal["restricted", "baseline", "privileged"] = "baseline"
    """Pod Security level of the namespace. The pods satisfy `restricted` unless told otherwise."""

    storage: Storage
    """The shared file system: checkpoints, ledger, data."""
    local_storage: LocalStorage | None = None
    """Node-local scratch, for data caches."""
    shm_size: Size | None = None
    """Size of /dev/shm. Default: the staging buffers of all ranks where the model's size is known, else half of
    the pod's memory; and 1 GiB a data worker besides. It counts toward the pod's memory as it fills."""

    resources: PodResources = PodResources()
    """Overrides of CPU and memory."""
    efa: NonNegativeInt | None = None
    """EFA interfaces a pod. Default: all of the instance where there is more than one node, else none."""
    zone: LabelValue | None = None
    """Availability zone. Default: whichever, the same for all pods."""
    node_group: LabelValue | None = None
    """EKS managed node group."""
    hyperpod: bool = False
    """The nodes belong to SageMaker HyperPod: `ml.` instance label, healthy nodes only."""
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Further node labels."""
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = ()
    """Further taints to put up with; that of GPU nodes is always tolerated."""
    topology: Topology | None = None
    """Placement hint: a Kueue topology request with `kueue_queue`, pod affinity without."""
    priority_class: DnsName | None = None
    """PriorityClass of the pods."""
    kueue_queue: DnsLabel | None = None
    """Kueue LocalQueue that admits the Job."""
    karpenter_do_not_disrupt: bool = True
    """Keep Karpenter from consolidating the nodes under a running pod."""

    service_account: DnsName | None = None
    """ServiceAccount that exists. Default: one of the run's own, with no rights; its token is never mounted."""
    run_as_user: Annotated[int, Field(ge=1, le=LARGEST_INT32)] = 1000
    """User id of the processes; must be able to write to the storage."""
    run_as_group: Annotated[int, Field(ge=1, le=LARGEST_INT32)] = 1000
    """Group id of the processes and of new files."""
    ipc_lock: bool = False
    """Add the IPC_LOCK capability. Only for nodes that limit locked memory; needs `pod_security: privileged`."""

    env: dict[EnvName, str | int | float | bool] = Field(default_factory=dict)
    """Further environment. Credentials do not belong here: see `secret_env`."""
    secret_env: dict[EnvName, SecretKey] = Field(default_factory=dict)
    """Environment from Secrets, e.g. `HF_TOKEN: {secret: hf-token, key: token}`."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Further labels on every object and pod."""
    annotations: dict[LabelKey, str] = Field(default_factory=dict)
    """Further annotations on the Job and its pods."""
    service_account_annotations: dict[LabelKey, str] = Field(default_factory=dict)
    """Annotations of the run's own ServiceAccount, e.g. an IAM role."""
    volumes: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = ()
    """Further volumes, as Kubernetes writes them."""
    volume_mounts: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = ()
    """Further mounts of the training container, as Kubernetes writes them."""

    pod_restarts: Annotated[int, Field(ge=0, le=LARGEST_INT32)] | None = None
    """Pods that may fail, evictions and preemptions aside, before the Job does. Default, a node: 10 for `none`,
    5 for `inprocess`, 3 where ft_launcher restarts workers inside the pod."""
    grace_period: Duration | None = None
    """Time between SIGTERM and SIGKILL of a pod. Default: a minute more than `stop_timeout`, or
    than ft_launcher's `term_timeout` where that is longer."""
    leader_timeout: Annotated[Duration, Field(ge=timedelta(seconds=10))] = timedelta(minutes=30)
    """Longest wait of a pod for the leader's name; covers image pulls and node start-up on the slowest node."""
    active_deadline: Annotated[Duration, Field(ge=timedelta(minutes=1))] | None = None
    """Longest life of the Job. Set it below the end of a Capacity Block, 30 minutes before which nodes go away."""
    ttl_after_finished: Duration | None = timedelta(days=7)
    """When a finished Job and its pods are removed; `null` keeps them."""
    patches: dict[Literal["ConfigMap", "Job", "Namespace", "PersistentVolume", "PersistentVolumeClaim", "Service",
                          "ServiceAccount"], dict[str, Any]] = Field(default_factory=dict)  # fmt: skip
    """Last resort: strategic merge patches by kind. The patched objects are checked like the others; the recipe that
    the pods run cannot be changed here."""
