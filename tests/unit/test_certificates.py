"""Clusters whose certificates name no Authority Key Identifier, as many do: kubectl takes them, Python 3.13 by itself does not."""

from __future__ import annotations

import ssl
import sys
from types import SimpleNamespace

import pytest

from eldr.fit.cluster import Cluster
from eldr.kubeconfig import ApiServer
from eldr_operator.handlers import registry
from eldr_operator.kube import api as operators
from eldr_operator.kube.streams import Watches
from eldr_router.sources import api as routers
from tests.support import kubeconfig

SKIPPED = {"insecure-skip-tls-verify": True}


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """Make contexts as Python 3.13 makes them, and a kubeconfig that all read."""
    usual = ssl.create_default_context

    def create(*arguments, **options):
        context = usual(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create)
    newer = SimpleNamespace(version_info=(3, 13, 0), implementation=sys.implementation)
    monkeypatch.setattr("urllib3.util.ssl_.sys", newer)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    path = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))

    def write(options):
        kubeconfig.write(path, server="https://127.0.0.1:6443", **options)

    write({})
    return write


def is_usual(context: ssl.SSLContext) -> bool:
    return context.verify_mode == ssl.CERT_REQUIRED and not context.verify_flags & ssl.VERIFY_X509_STRICT


async def test_of_the_operator():
    async with operators.connect() as api:
        assert is_usual(api._client.rest_client.ssl_context)


async def test_of_the_operators_watches():
    made = registry(lambda *_, **__: None, Watches([]))
    (login,) = (handler for handler in made._activities.get_all_handlers() if handler.id == "login")
    found = await login.fn()
    assert is_usual(found.as_ssl_context())


async def test_of_a_router():
    client = await routers.connect()
    try:
        assert is_usual(client.rest_client.ssl_context)
    finally:
        await client.close()


def of_the_command_line():
    return ApiServer(rights="")._client


def of_a_fit():
    return Cluster("default", {}, {})._api.api_client


@pytest.mark.parametrize("client", [of_the_command_line, of_a_fit])
@pytest.mark.parametrize(("options", "mode"), [({}, ssl.CERT_REQUIRED), (SKIPPED, ssl.CERT_NONE)])
def test_of_commands(client, options, mode, config):
    config(options)
    pool = client().rest_client.pool_manager.connection_from_url("https://127.0.0.1:6443")
    context = pool._new_conn().ssl_context
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_mode == mode
    assert context.check_hostname == (mode == ssl.CERT_REQUIRED)
    assert context.get_ca_certs(), "authorities of this machine, where the kubeconfig names none"
