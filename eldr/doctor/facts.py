"""What `eldr doctor` has read of a cluster, and what it says of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Object = dict[str, Any]


class Unseen(NamedTuple):
    """What could not be read, and why: "may not list nodes"."""

    why: str


Listed = tuple[Object, ...] | Unseen


OPERATOR_REMEDY = "check that the operator runs and watches this namespace: kubectl get pods -A -l app.kubernetes.io/name=eldr-operator"


class Finding(NamedTuple):
    """A problem and its remedy.

    Attributes
    ----------
    about : str
        What it is about: a pod, a Secret, a field.
    explains : frozenset of str
        Reasons of the EldrDeployment's conditions that this is the cause of.
    reason : str
        The reason, where it is such a condition.
    is_symptom : bool
        Whether it says what does not work, not why: of no use beside findings that do.
    """

    about: str
    problem: str
    remedy: str
    explains: frozenset[str] = frozenset()
    reason: str = ""
    is_symptom: bool = False


class Skipped(NamedTuple):
    """A check, or a part of one, that could not look."""

    why: str


Said = Iterator[Finding | Skipped]


class Check(NamedTuple):
    """A check by its name."""

    name: str
    look: Callable[[Facts], Said]


class Template(NamedTuple):
    """Pods of a role as they are to be.

    Attributes
    ----------
    spec : dict
        Of the pods.
    labels : mapping
        Of the pods.
    """

    role: str
    replicas: int
    spec: Object
    labels: Mapping[str, str]


class Answer(NamedTuple):
    """What a router answered to a client's request.

    Attributes
    ----------
    status : int or None
        None: it did not answer.
    said : str
        The answer's text, or why there is none.
    """

    pod: str
    status: int | None
    said: str


class Reference(NamedTuple):
    """A Secret, ConfigMap or claim that pods need.

    Attributes
    ----------
    kind : str
        ``Secret``, ``ConfigMap`` or ``PersistentVolumeClaim``.
    key : str
        Empty: no key in particular.
    by : str
        Who refers to it: "env HF_TOKEN of prefill".
    """

    kind: str
    name: str
    key: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read.

    Attributes
    ----------
    templates : tuple of Template
        As the operator has made them, or as the spec says where it has not.
    workloads : Listed
        Deployments and StatefulSets of the deployment, with their ``kind``.
    referred : mapping
        (kind, name) to the object, with ``keys`` instead of data; None where there is none.
    logs : mapping
        Pod to the last lines of an engine that is not ready.
    routers : tuple of Answer or Unseen
        What routers that run answered.
    lease : dict, Unseen or None
        Of the namespace: which release serves it; None where there is none.
    service : dict, Unseen or None
        The Service of clients; None where there is none.
    """

    deployment: Object
    templates: tuple[Template, ...] = ()
    workloads: Listed = ()
    pods: Listed = ()
    nodes: Listed = ()
    quotas: Listed = ()
    limits: Listed = ()
    policies: Listed = ()
    lease: Object | Unseen | None = None
    service: Object | Unseen | None = None
    referred: Mapping[tuple[str, str], Object | Unseen | None] = field(default_factory=dict)
    logs: Mapping[str, str | Unseen] = field(default_factory=dict)
    routers: tuple[Answer, ...] | Unseen = ()

    @property
    def name(self) -> str:
        """The deployment's name."""
        return str(self.deployment["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.deployment["metadata"].get("namespace", ""))
