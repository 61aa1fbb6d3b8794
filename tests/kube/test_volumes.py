"""Volumes: their content, and that it follows its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.space import STAY, Space, config_map, container, pod

pytestmark = pytest.mark.kube

WATCH = 'last=; while :; do now=$(cat {path}); [ "$now" = "$last" ] || echo seen $now; last=$now; sleep 0.05; done'


def test_config_map_updates_reach_running_pods(space: Space):
    main = container(WATCH.format(path="/etc/eldr/value"))
    main["volumeMounts"] = [{"name": "config", "mountPath": "/etc/eldr"}]
    volumes = [{"name": "config", "configMap": {"name": "changing"}}]
    space.apply(config_map("changing", value="one"), pod("follower", main, volumes=volumes))
    space.wait_log("follower", "seen one")
    space.apply(config_map("changing", value="two"))
    log = space.wait_log("follower", "seen two")
    # The swap is atomic: no reader ever saw a missing or an empty file.
    assert log.splitlines() == ["seen one", "seen two"]


def test_items_sub_path_secret_and_read_only(space: Space):
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "hidden"}}
    main = container(
        f"cat /deep/er/renamed /etc/eldr-single.conf /secret/k; touch /deep/er/x || echo refused; "
        f"ls /deep; echo done; {STAY}"
    )
    main["volumeMounts"] = [
        {"name": "picked", "mountPath": "/deep"},
        {"name": "whole", "mountPath": "/etc/eldr-single.conf", "subPath": "b"},
        {"name": "secret", "mountPath": "/secret", "readOnly": True},
    ]
    volumes = [
        {
            "name": "picked",
            "configMap": {"name": "two-keys", "items": [{"key": "a", "path": "er/renamed"}]},
        },
        {"name": "whole", "configMap": {"name": "two-keys"}},
        {"name": "secret", "secret": {"secretName": "s"}},
    ]
    space.apply(secret, config_map("two-keys", a="A\n", b="B\n"), pod("mounts", main, volumes=volumes))
    lines = space.wait_log("mounts", "done").splitlines()
    assert lines[:2] == ["A", "B"]
    assert lines[2].startswith("hidden")
    assert "refused" in lines
    assert lines[-2:] == ["er", "done"]


def test_host_is_left_as_it_was(space: Space):
    main = container(f"echo kept > /eldr-test-volume/deep/file; echo done; {STAY}")
    main["volumeMounts"] = [{"name": "scratch", "mountPath": "/eldr-test-volume/deep"}]
    space.apply(pod("tidy", main, volumes=[{"name": "scratch", "emptyDir": {"medium": "Memory"}}]))
    space.wait_log("tidy", "done")
    assert not Path("/eldr-test-volume").exists()


def test_projected_volume_joins_sources(space: Space):
    main = container(f"cd /all; cat cm labels; echo; cat name; echo; wc -c < token; echo done; {STAY}")
    main["volumeMounts"] = [{"name": "all", "mountPath": "/all"}]
    sources = [
        {"configMap": {"name": "part", "items": [{"key": "k", "path": "cm"}]}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600, "audience": "eldr"}},
        {
            "downwardAPI": {
                "items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                    {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
                ]
            }
        },
    ]
    manifest = pod(
        "joined", main, labels={"a": "b"}, volumes=[{"name": "all", "projected": {"sources": sources}}]
    )
    space.apply(config_map("part", k="from-map\n"), manifest)
    text = space.wait_log("joined", "done")
    assert text.startswith("from-map\n")
    assert 'a="b"' in text
    assert "joined" in text
    assert int(text.split()[-2]) > 100
