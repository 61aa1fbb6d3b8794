"""Options and variables of routers that are refused, and those that are not."""

import pytest

from eldr_operator.validation.spec import blocked_roles, problems
from eldr_operator.workloads import router
from eldr_router.cli import command
from tests.unit.operator.builders import make_cr

OPTIONS = sorted(name for parameter in command.params for name in parameter.opts)
TRACES = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}
USERS = {
    *("--prefill-timeout-seconds", "--decode-idle-timeout-seconds", "--connect-timeout-seconds"),
    *("--max-body-mebibytes", "--max-bodies-mebibytes", "--access-log", "--log-level", "--loopback"),
    *("--max-waiting", "--max-wait-seconds", "--client-idle-timeout-seconds"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_the_users_or_refused_in_both_spellings(option):
    def is_refused(**router):
        return bool(problems(make_cr(router=router)))

    wanted = option not in USERS
    assert is_refused(args=["--access-log", f"{option}=1"]) is wanted
    assert is_refused(args=[option, "1"]) is wanted
    variable = "ELDR_ROUTER_" + option.removeprefix("--").upper().replace("-", "_")
    assert is_refused(env=[{"name": variable, "value": "1"}]) is wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"args": ["--log-level=debug", "--port=1"]},
            "spec.router.args[1]: '--port=1': remove it: the operator",
        ),
        (
            {"env": [{"name": "A"}, {"name": "ELDR_ROUTER_ADMIN_HOST", "value": "::1"}]},
            "spec.router.env[1]: 'ELDR_ROUTER_ADMIN_HOST': remove it: the operator sets it",
        ),
        (
            {"env": [{"name": "POD_IP", "value": "::1"}]},
            "spec.router.env[0]: 'POD_IP': remove it: it is the pod's",
        ),
    ],
)
def test_refused_and_only_the_routers_workload_stays_as_it_is(given, message):
    for placement, role in (("Sidecar", "prefill"), ("Deployment", "router")):
        cr = make_cr(router={"placement": placement} | given)
        (found,) = problems(cr)
        assert str(found).startswith(message)
        assert blocked_roles(cr, [found]) == {role}


@pytest.mark.parametrize(
    "given",
    [
        {"args": ["--access-log", "--log-level", "debug", "--max-body-mebibytes=8"]},
        {"env": [{"name": "ELDR_ROUTER_LOG_LEVEL", "value": "debug"}, {"name": "PORT", "value": "1"}]},
        {"env": [TRACES, {"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "k8s.pod.name=$(POD_NAME)"}]},
    ],
)
def test_let_pass(given):
    assert problems(make_cr(router=given)) == []


def test_variables_of_traces_reach_the_container_after_those_that_they_name():
    own = {"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "k8s.pod.name=$(POD_NAME)"}
    given = router.container(make_cr(router={"env": [TRACES, own]}), "image")["env"]
    names = [variable["name"] for variable in given]
    assert {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_RESOURCE_ATTRIBUTES"} <= set(names)
    assert names.index("POD_NAME") < names.index("OTEL_RESOURCE_ATTRIBUTES")
