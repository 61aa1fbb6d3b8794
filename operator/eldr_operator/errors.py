"""What can go wrong, in the words of the person who reads the condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """A field of a resource that cannot be used as it stands.

    Parameters
    ----------
    reason : str
        CamelCase word for the condition.
    field : str
        Path of the field, for example ``spec.refit.schedule``.
    remedy : str
        What is wrong with it and what to write instead.
    """

    reason: str
    field: str
    value: Any
    remedy: str

    def __str__(self) -> str:
        shown = repr(self.value)
        return f"{self.field}: {shown if len(shown) <= 120 else shown[:117] + '...'}: {self.remedy}"


class OperatorError(Exception):
    """Base of this package's errors."""


class LeaseLostError(OperatorError):
    """Another operator acts, or soon will."""


class InvalidResourceError(OperatorError):
    """A custom resource that the API server let pass but this operator cannot read."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


class ApiError(OperatorError):
    """The API server refused a request.

    Parameters
    ----------
    reason, message : str
        Of the Status object in the answer.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class ApiUnavailableError(OperatorError):
    """The API server could not be reached, or asked for a pause; the same request may succeed later."""


class NoAnswerError(ApiUnavailableError):
    """The API server took a request and did not answer in time, as where an admission webhook hangs."""


class UnreadableError(ApiUnavailableError):
    """The API server answers what cannot be read here; somebody may fix it."""


class RequestFailedError(ApiUnavailableError):
    """The API server answered that it could not carry out this one request, as when an admission webhook is down.

    Others may succeed: unlike any other :class:`ApiUnavailableError`, it need not end a pass.

    Parameters
    ----------
    message : str
        Of the Status object in the answer.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.message = message or f"{status} {reason}"


class NoClusterError(OperatorError):
    """Neither a service account nor a kubeconfig leads to an API server."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"no cluster: {reason}; set KUBECONFIG to your cluster's, or run in a pod with a service account"
        )


class ConflictError(OperatorError):
    """An object has changed since it was read: what was decided by it must be decided anew."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} has changed since it was read")


class OwnedElsewhereError(OperatorError):
    """An object of the wanted name exists and belongs to something else.

    Parameters
    ----------
    is_leftover : bool
        Whether the owner is an earlier EldrDeployment of the same name: its children are about to be collected.
    """

    def __init__(self, kind: str, name: str, owner: str, *, is_leftover: bool = False) -> None:
        remedy = (
            "it is being deleted, and will then be made again"
            if is_leftover
            else "delete or rename it, or rename the EldrDeployment"
        )
        super().__init__(f"{kind} {name} exists and belongs to {owner}; {remedy}")


class ForeignConflictError(OperatorError):
    """Others change again and again what was restored; it is left as they set it until the next attempt.

    Parameters
    ----------
    what : str
        Fields, and who has set them.
    seconds : float
        Until the next attempt.
    """

    def __init__(self, kind: str, name: str, what: str, seconds: float) -> None:
        super().__init__(
            f"{kind} {name}: {what} changes again and again; the operator restores it at growing intervals, up to an hour. "
            "Keep the other writer off this object: set it in the EldrDeployment, and replicas on its EldrScaler"
        )
        self.seconds = seconds
