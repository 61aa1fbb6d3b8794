"""An API server that holds Leases, for tests of who acts and who serves."""

from eldr_operator.errors import ApiError, ApiUnavailableError

AWAY = ApiUnavailableError("away")


class Server:
    """Holds a Lease in each namespace; refuses a write over another version than it holds, and everything while it has an error."""

    def __init__(self):
        self.leases, self.version, self.error, self.asked = {}, 0, None, []
        self.answer = self.at_once

    async def at_once(self):
        pass

    async def get(self, kind, namespace, name):
        assert kind == "Lease"
        await self._answers("GET")
        return self.leases.get(namespace)

    async def request(self, method, url, *, body):
        await self._answers(method)
        metadata = body["metadata"]
        known = self.leases.get(metadata["namespace"], {}).get("metadata", {}).get("resourceVersion")
        if metadata.get("resourceVersion") != known:
            raise ApiError(409, "Conflict", "it has changed")
        self.hold(metadata.get("annotations"), metadata["namespace"], **body["spec"])
        return self.leases[metadata["namespace"]]

    async def _answers(self, method):
        self.asked.append(method)
        await self.answer()
        if self.error:
            raise self.error

    def hold(self, annotations=None, namespace="ns", **spec):
        self.version += 1
        metadata = {"namespace": namespace, "resourceVersion": str(self.version)}
        self.leases[namespace] = {"metadata": metadata | {"annotations": annotations or {}}, "spec": spec}

    def spec(self, namespace="ns"):
        return self.leases[namespace]["spec"]
