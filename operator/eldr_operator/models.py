"""The custom resources as typed, frozen values; JSON is parsed here, at the border, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from eldr import contract
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.errors import InvalidResourceError, Problem

Object = dict[str, Any]


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class ModelSpec(_Model):
    """``spec.model``."""

    uri: str
    name: str | None = None


class EngineSpec(_Model):
    """``spec.engine``."""

    type: Literal["vLLM", "Simulator"] = "vLLM"
    image: str | None = None
    image_pull_policy: str = "IfNotPresent"
    args: tuple[str, ...] = ()
    env: tuple[Object, ...] = ()
    lease_seconds: int = 300
    model_runner: Literal["V1", "V2"] = "V1"


class RoleSpec(_Model):
    """``spec.prefill``, and what ``spec.decode`` has in common with it."""

    replicas: int = 1
    gpus: int = 1
    args: tuple[str, ...] = ()
    env: tuple[Object, ...] = ()
    resources: Object = {}
    drain_seconds: int = 30
    pod_template: Object = {}


class DecodeSpec(RoleSpec):
    """``spec.decode``."""

    replicas: int = 2
    drain_seconds: int = 300


class AcceleratorSpec(_Model):
    """``spec.accelerator``."""

    resource_name: str = "amd.com/gpu"


class DomainSpec(_Model):
    """An item of ``spec.router.domains``."""

    name: str
    share: int = 1


class RouterSpec(_Model):
    """``spec.router``."""

    placement: Literal["Sidecar", "Deployment"] = "Sidecar"
    replicas: int | None = None
    image: str | None = None
    image_pull_policy: str = "IfNotPresent"
    policy: str = contract.POLICY_DEFAULT
    tau: float = 0.1
    min_candidates: int = 1
    max_load: float | None = None
    domains: tuple[DomainSpec, ...] = ()
    max_in_flight_per_decode: int = 256
    args: tuple[str, ...] = ()
    env: tuple[Object, ...] = ()
    resources: Object = {}
    drain_seconds: int = 300


class SignaturesSpec(_Model):
    """``spec.signatures``."""

    sample_percent: int = 10
    retention_mebibytes: int = 64
    retention_hours: int = 24


class RefitSpec(_Model):
    """``spec.refit``."""

    schedule: str = ""
    time_zone: str = "Etc/UTC"
    suspend: Literal["Enabled", "Disabled"] = "Disabled"
    min_samples: int = 1000
    history_limit: int = 10
    active_deadline_seconds: int = 600
    resources: Object = {}
    drift: DriftSpec = DriftSpec()


class CentroidsSpec(_Model):
    """``spec.centroids``."""

    pin: str | None = None
    ack_timeout_seconds: int = 30


class DeploymentSpec(_Model):
    """``spec`` of an EldrDeployment."""

    model: ModelSpec
    engine: EngineSpec = EngineSpec()
    prefill: RoleSpec = RoleSpec()
    decode: DecodeSpec = DecodeSpec()
    accelerator: AcceleratorSpec = AcceleratorSpec()
    router: RouterSpec = RouterSpec()
    signatures: SignaturesSpec = SignaturesSpec()
    refit: RefitSpec = RefitSpec()
    centroids: CentroidsSpec = CentroidsSpec()


class Metadata(_Model):
    """What is used of ``metadata``."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    creation_timestamp: datetime
    deletion_timestamp: datetime | None = None


class EldrDeployment(_Model):
    """An EldrDeployment; ``status`` stays JSON, because it is compared and written whole."""

    metadata: Metadata
    spec: DeploymentSpec
    status: Object = {}

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


class DeploymentRef(_Model):
    """``spec.deploymentRef``."""

    name: str


class FitSpec(_Model):
    """``spec`` of an EldrFit."""

    deployment_ref: DeploymentRef
    trigger: str = "Manual"
    k: int | None = None
    lookback_minutes: int | None = None
    since: datetime | None = None


class Shard(_Model):
    """One ConfigMap of a centroid set."""

    name: str
    sha256: str


class CentroidSet(_Model):
    """Pointer to a centroid set, as the routing ConfigMap and reports hold it."""

    fit: str
    digest: str
    k: int
    shards: tuple[Shard, ...]


class EldrFit(_Model):
    """An EldrFit."""

    metadata: Metadata
    spec: FitSpec
    status: Object = {}

    @property
    def name(self) -> str:
        """Name of the resource, and of its Job."""
        return self.metadata.name

    @property
    def state(self) -> tuple[str, str]:
        """Status and reason of the condition Succeeded."""
        for condition in self.status.get("conditions", ()):
            if condition.get("type") == "Succeeded":
                return condition["status"], condition["reason"]
        return "Unknown", "Pending"

    @property
    def is_finished(self) -> bool:
        """Whether the run has a result, good or bad."""
        return self.state[0] != "Unknown"

    @property
    def finished_at(self) -> datetime:
        """When the result was seen."""
        stamp = self.status.get("finishedAt")
        return datetime.fromisoformat(stamp) if stamp else self.metadata.creation_timestamp

    @property
    def accepted_set(self) -> CentroidSet | None:
        """The set of an accepted run."""
        if self.state[0] != "True":
            return None
        return CentroidSet.model_validate({"fit": self.name} | self.status)


class Report(_Model):
    """``report.json`` of a fit Job, see :data:`eldr.contract.REPORT_KEY`."""

    model_config = ConfigDict(alias_generator=None, frozen=True, extra="ignore")

    verdict: Literal["Accepted", "Rejected", "Failed"]
    reason: str
    message: str
    pointer: CentroidSet | None = Field(default=None, validation_alias=AliasChoices("set"))
    samples: int = 0
    layers_kept: tuple[int, ...] = ()
    rho: float | None = None
    weighting: str = ""
    imbalance: float | None = None
    reduction: float | None = None
    active_harms: bool | None = None
    baseline: Object | None = None


M = TypeVar("M", bound=BaseModel)


def parse(kind: type[M], body: Mapping[str, Any]) -> M:
    """Read a JSON object as a model.

    Raises
    ------
    InvalidResourceError
        Naming each field that does not fit.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        problems = tuple(
            Problem(
                "InvalidField",
                ".".join(map(str, found["loc"])) or kind.__name__,
                found["input"],
                found["msg"],
            )
            for found in error.errors(include_url=False)
        )
        raise InvalidResourceError(problems) from error
