"""What a router tells of itself, for tests of what the operator reads in it."""

from eldr_operator.locality.router_view import RouterPod

POD = RouterPod("r0", "127.0.0.1", None)
STATE = {
    "policy": "JSQ",
    "active": None,
    "staged": None,
    "refused": [],
    "samples": 0,
    "router": "r",
    "counters": {},
}
"""The least that a state has."""
