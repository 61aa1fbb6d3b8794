"""The key that tokens of admin ports are derived from."""

import base64

import pytest

from eldr_operator.errors import ApiError, OperatorError
from eldr_operator.kube import tokens


class Server:
    """Holds one Secret; ``rival`` is what another operator makes first."""

    def __init__(self, data=None, rival=None, refusal=None):
        self.live = {"data": data} if data is not None else None
        self.rival, self.refusal = rival, refusal
        self.created = 0

    async def get(self, kind, namespace, name):
        assert (kind, namespace, name) == ("Secret", "system", "key")
        if self.refusal:
            raise ApiError(403, "Forbidden", self.refusal)
        return self.live

    async def create(self, manifest):
        if self.rival is not None:
            self.live = {"data": self.rival}
            raise ApiError(409, "AlreadyExists", "it exists")
        self.created += 1
        self.live = manifest
        return manifest


def encoded(key):
    return {"key": base64.b64encode(key).decode()}


async def load(server):
    return await tokens.load(server, "system", "key")


async def test_a_key_is_made_once_and_read_from_then_on():
    server = Server()
    first, again = await load(server), await load(server)
    assert server.created == 1
    assert first.of("ns", "x") == again.of("ns", "x")
    assert (await load(Server())).of("ns", "x") != first.of("ns", "x"), "another key"
    assert len(base64.urlsafe_b64decode(first.of("ns", "x") + "=")) == 32


async def test_each_deployment_has_a_token_of_its_own():
    made = await load(Server(encoded(b"k" * 32)))
    assert len({made.of("ns", "x"), made.of("ns", "y"), made.of("other", "x"), made.of("ns", "x-y")}) == 4


async def test_of_two_operators_the_second_takes_the_key_of_the_first():
    theirs = encoded(b"first" * 8)
    assert (await load(Server(rival=theirs))).of("ns", "x") == (await load(Server(theirs))).of("ns", "x")


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Server({}), "nothing readable under key; delete it"),
        (Server({"key": "%"}), "nothing readable under key"),
        (Server({"key": ""}), "nothing readable under key"),
        (Server(refusal="you may not"), "Secret system/key, the operator's own key: you may not"),
    ],
)
async def test_a_key_that_cannot_be_used_is_told(server, message):
    with pytest.raises(OperatorError, match=message):
        await load(server)
