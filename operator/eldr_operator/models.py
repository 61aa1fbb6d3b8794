"""The custom resources as typed, frozen values; JSON is parsed here, on the way in, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)

from eldr import contract
from eldr_operator import clock, parsing
from eldr_operator.camel import CamelModel
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.errors import InvalidResourceError, Problem
from eldr_operator.records import Name

Object = dict[str, Any]


class SecretKey(CamelModel):
    """``spec.model.tokenSecret``."""

    name: str
    key: str = "token"


class Claim(CamelModel):
    """``spec.model.cache`` and ``spec.model.source``."""

    claim_name: str


class ModelSpec(CamelModel):
    """``spec.model``."""

    uri: str
    name: str | None = None
    revision: str | None = None
    token_secret: SecretKey | None = None
    source: Claim | None = None
    cache: Claim | None = None
    download: Literal["Auto", "Never"] = "Auto"


class EngineSpec(CamelModel):
    """``spec.engine``."""

    type: Literal["vLLM", "Simulator"] = "vLLM"
    image: str | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    args: tuple[str, ...] = ()
    env: tuple[Object, ...] = ()
    lease_seconds: int = 300


class RoleSpec(CamelModel):
    """What ``spec.prefill`` and ``spec.decode`` have in common."""

    replicas: int = 1
    gpus: int = 1
    args: tuple[str, ...] = ()
    env: tuple[Object, ...] = ()
    resources: Object = Field(default_factory=dict)
    drain_seconds: int = 30
    pod_template: Object = Field(default_factory=dict)


class RolloutSpec(CamelModel):
    """What ``spec.prefill.rollout`` and ``spec.decode.rollout`` have in common."""

    pause: Literal["Enabled", "Disabled"] = "Disabled"
    revision: str = ""
    on_failure: Literal["RollBack", "Wait"] = "RollBack"
    progress_deadline_seconds: int | None = None
    min_ready_seconds: int | None = None


class PrefillRolloutSpec(RolloutSpec):
    """``spec.prefill.rollout``."""

    max_surge: int | Literal["Auto"] = "Auto"
    max_unavailable: int = 0


class DecodeRolloutSpec(RolloutSpec):
    """``spec.decode.rollout``."""

    partition: int = 0


class PrefillSpec(RoleSpec):
    """``spec.prefill``."""

    rollout: PrefillRolloutSpec = PrefillRolloutSpec()


class ParallelismSpec(CamelModel):
    """``spec.decode.parallelism``."""

    tensor: int | None = None
    data: int = 1
    expert: Literal["Disabled", "Enabled"] = "Disabled"
    redundant_experts: int = 0
    balance: Literal["Tokens", "Activations"] = "Tokens"


class DecodeSpec(RoleSpec):
    """``spec.decode``."""

    replicas: int = 2
    drain_seconds: int = 300
    parallelism: ParallelismSpec = ParallelismSpec()
    rollout: DecodeRolloutSpec = DecodeRolloutSpec()


class AcceleratorSpec(CamelModel):
    """``spec.accelerator``."""

    resource_name: str = "amd.com/gpu"


def _known_policy(policy: str) -> str:
    if policy not in contract.POLICIES:
        raise ValueError(f"should be one of {', '.join(contract.POLICIES)}")
    return policy


class DomainSpec(CamelModel):
    """An item of ``spec.router.domains``."""

    name: str
    share: int = 1


class AdminTlsSpec(CamelModel):
    """``spec.router.adminTLS``."""

    secret_name: str
    authority_config_map: str


class RouterSpec(CamelModel):
    """``spec.router``."""

    placement: Literal["Sidecar", "Deployment"] = "Sidecar"
    replicas: int | None = None
    image: str | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    policy: Annotated[str, AfterValidator(_known_policy)] = contract.POLICY_DEFAULT
    tau: float = 0.1
    min_candidates: int = 1
    max_load: float | None = None
    domains: tuple[DomainSpec, ...] = ()
    api_keys_secret: str | None = None
    tls_secret: str | None = None
    admin_tls: AdminTlsSpec | None = Field(default=None, alias="adminTLS")
    max_in_flight_per_decode: int = 256
    min_prefill_tokens: int = 0
    max_waiting: int | None = None
    max_wait_seconds: int | None = None
    args: tuple[str, ...] = ()
    env: tuple[Object, ...] = ()
    resources: Object = Field(default_factory=dict)
    drain_seconds: int = 300
    pod_template: Object = Field(default_factory=dict)


class SignaturesSpec(CamelModel):
    """``spec.signatures``."""

    sample_percent: int = 10
    retention_mebibytes: int = 64
    retention_hours: int = 24


class RefitSpec(CamelModel):
    """``spec.refit``."""

    schedule: str = ""
    time_zone: str = "Etc/UTC"
    suspend: Literal["Enabled", "Disabled"] = "Disabled"
    min_samples: int = 1000
    history_limit: int = 10
    active_deadline_seconds: int = 600
    resources: Object = Field(default_factory=dict)
    pod_template: Object = Field(default_factory=dict)
    drift: DriftSpec = DriftSpec()


class CentroidsSpec(CamelModel):
    """``spec.centroids``."""

    pin: str | None = None
    ack_timeout_seconds: int = 30


class ServiceSpec(CamelModel):
    """``spec.service``."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    annotations: dict[str, str] = Field(default_factory=dict)
    load_balancer_class: str | None = None


class DeploymentSpec(CamelModel):
    """``spec`` of an EldrDeployment."""

    model: ModelSpec
    engine: EngineSpec = EngineSpec()
    prefill: PrefillSpec = PrefillSpec()
    decode: DecodeSpec = DecodeSpec()
    accelerator: AcceleratorSpec = AcceleratorSpec()
    router: RouterSpec = RouterSpec()
    signatures: SignaturesSpec = SignaturesSpec()
    refit: RefitSpec = RefitSpec()
    centroids: CentroidsSpec = CentroidsSpec()
    update: Literal["Manual", "Window", "Immediate"] = "Manual"
    service: ServiceSpec = ServiceSpec()
    network_policy: Literal["Enabled", "Disabled"] = "Enabled"


class Metadata(CamelModel):
    """What is used of ``metadata``."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    creation_timestamp: datetime
    deletion_timestamp: datetime | None = None
    annotations: Object = Field(default_factory=dict)
    owner_references: list[Object] = Field(default_factory=list)


class EldrDeployment(CamelModel):
    """An EldrDeployment; ``status`` stays JSON, because it is compared and written whole."""

    metadata: Metadata
    spec: DeploymentSpec
    status: Object = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the resource, from which the names of children are made."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the resource and all children."""
        return self.metadata.namespace

    @property
    def served_model(self) -> str:
        """Model name that clients send."""
        return self.spec.model.name or self.name

    @property
    def router_replicas(self) -> int:
        """Routers wanted: one per prefill pod, or as many as the Deployment has."""
        if self.spec.router.placement == "Sidecar":
            return self.spec.prefill.replicas
        return self.spec.router.replicas or 2


class DeploymentRef(CamelModel):
    """``spec.deploymentRef``."""

    name: str


Time = Annotated[AwareDatetime, AfterValidator(clock.usable)]


class FitSpec(CamelModel):
    """``spec`` of an EldrFit."""

    deployment_ref: DeploymentRef
    trigger: str = "Manual"
    k: int | None = None
    lookback_minutes: int | None = None
    since: Time | None = None
    before: Time | None = None


class Shard(CamelModel):
    """One ConfigMap of a centroid set."""

    name: Name
    sha256: Name


class CentroidSet(CamelModel):
    """Pointer to a centroid set, as the routing ConfigMap and reports hold it."""

    fit: Name
    digest: Name
    k: int = Field(ge=1, lt=1 << 31)
    shards: tuple[Shard, ...] = Field(max_length=256)


class EldrFit(CamelModel):
    """An EldrFit."""

    metadata: Metadata
    spec: FitSpec
    status: Object = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the resource, and of its Job."""
        return self.metadata.name

    @property
    def state(self) -> tuple[str, str]:
        """Status and reason of the condition Succeeded."""
        said = self._condition("Succeeded")
        return str(said.get("status", "Unknown")), str(said.get("reason", "Pending"))

    @property
    def blocked(self) -> str:
        """Reason of the condition Blocked; empty while the set may be activated."""
        # until 0.1 it was called Barred
        said = self._condition("Blocked") or self._condition("Barred")
        return str(said["reason"]) if said.get("status") == "True" else ""

    @property
    def harms(self) -> bool:
        """Whether the condition Regresses says that the set harmed when it was active last."""
        return self._condition("Regresses").get("status") == "True"

    @property
    def is_automatic(self) -> bool:
        """Whether the operator made it: its deployment controls it."""
        return any(owner.get("controller") for owner in self.metadata.owner_references)

    @property
    def is_finished(self) -> bool:
        """Whether the run has a result, good or bad."""
        return self.state[0] != "Unknown"

    @property
    def finished_at(self) -> datetime:
        """When the result was seen."""
        return clock.read(self.status.get("finishedAt")) or self.metadata.creation_timestamp

    @property
    def accepted_set(self) -> CentroidSet | None:
        """The set of an accepted run; None where its status does not tell one."""
        if self.state[0] != "True":
            return None
        try:
            return CentroidSet.model_validate({"fit": self.name} | self.status)
        except ValidationError:
            return None

    def _condition(self, name: str) -> Mapping[str, Any]:
        conditions = self.status.get("conditions", ())
        return next((condition for condition in conditions if condition.get("type") == name), {})


Figure = Annotated[float, Field(ge=-1e6, le=1e6)]


class Report(BaseModel):
    """``report.json`` of a fit Job, see :data:`eldr.contract.REPORT_KEY`."""

    model_config = ConfigDict(alias_generator=None, frozen=True, extra="ignore", allow_inf_nan=False)

    verdict: Literal["Accepted", "Rejected", "Regresses", "Failed"]
    reason: str
    message: str
    pointer: CentroidSet | None = Field(default=None, validation_alias=AliasChoices("set"))
    samples: int = Field(default=0, ge=0, le=parsing.MOST_COUNT)
    layers_kept: tuple[int, ...] = ()
    rho: Figure | None = None
    weighting: str = ""
    imbalance: Figure | None = None
    reduction: Figure | None = None
    active_harms: bool | None = None
    active_digest: Name | None = None
    baseline: Any = None


M = TypeVar("M", bound=BaseModel)


def without_spec(body: Mapping[str, Any]) -> EldrDeployment:
    """Read an EldrDeployment whose spec this release cannot read: only its metadata and its status are its own."""
    return parse(EldrDeployment, {**body, "spec": {"model": {"uri": "unreadable"}}})


def parse(kind: type[M], body: Mapping[str, Any]) -> M:
    """Read a JSON object as a model; InvalidResourceError names each field that does not fit."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        problems = tuple(
            Problem(
                "InvalidField",
                ".".join(map(str, detail["loc"])) or kind.__name__,
                detail["input"],
                detail["msg"],
            )
            for detail in error.errors(include_url=False)
        )
        raise InvalidResourceError(problems) from error
