"""What is kept of a cluster in which something failed."""

import json

from eldr_kube import left
from eldr_kube.cluster import CommandError


def test_logs_and_events_are_kept(tmp_path):
    pod = {
        "metadata": {"namespace": "default", "name": "p"},
        "spec": {"containers": [{"name": "engine"}, {"name": "odd"}]},
    }

    class Answers:
        def kubectl(self, *arguments):
            if arguments[:3] == ("get", "pods", "-A"):
                return json.dumps({"items": [pod]})
            if "logs" in arguments:
                if "odd" in arguments:
                    raise CommandError("container odd is waiting to start")
                return "\n".join(f"line {n}" for n in range(40))
            return " ".join(arguments)

    said = left.keep(Answers(), tmp_path / "failed")
    assert sorted(path.name for path in (tmp_path / "failed").iterdir()) == [
        "default.p.engine.log",
        "default.p.odd.log",
        "eldr.yaml",
        "events.txt",
        "workloads.yaml",
    ]
    assert "line 39" in said
    assert "line 3\n" not in said
    assert "odd is waiting to start" in said
    assert (tmp_path / "failed" / "eldr.yaml").read_text() == "get -A eldr,ef -o yaml"
