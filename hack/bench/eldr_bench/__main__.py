"""Run benchmarks and write docs/benchmarks/README.md with the machine, medians and spread.

A benchmark is a program beside this one that prints a JSON list of figures
``{"name": str, "unit": str, "aim": float | null, "values": [float, ...]}``; smaller is better.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import click

from eldr_bench.machine import ROOT, load_before, revision
from eldr_bench.page import measured, row, section

OUT = ROOT / "docs" / "benchmarks" / "README.md"
FIGURES = OUT.with_name("figures.json")
BENCHMARKS = {
    "decision": ("decision",),
    "fit": ("fit",),
    "large fit": ("fit", "--large"),
    "router": ("router",),
    "heavy load": ("heavy",),
    "features": ("features",),
    "bodies": ("bodies",),
}
USUAL = ("decision", "fit", "router", "heavy load", "features", "bodies")
INTRODUCTION = """# Benchmarks

`make bench` writes this page; `make bench ONLY=decision` measures one part again, `ONLY="large fit"` fits of 100,000 records. Smaller is
better everywhere. Each program checks in the same run that it measured what its rows name, and gives no figures otherwise. Other programs may have run
beside it: each part says how busy the machine was; trust ratios within one run more than absolute times.

- Parts measured at commit 437560b44e are of a router that mypyc had compiled, but where a row says *in Python*. It is Python alone now.
- A decision is the signature off the wire, similarities, unions, policy and lease, and the leave of another request. Requests differ. *An unsigned request*
  is one of every second.
- MarginalUnion on 8 layers is the default policy.
- Memory is what a fit takes beside its records.
- *Heavy load*: the default policy, without a centroid set and a signature log. Arrivals are by chance, and wait for no answer; a request counts from
  when it was due. The delay without a router is that of the load and the engines.
- *Features*: each router differs from the default in one thing, and serves the same load in the same rounds. The dearest comes first. The default
  has a centroid set, and logs a tenth of its requests.
- [What a request costs](../development/router.md#what-it-costs) says where a router's CPU time goes."""


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
def main(names: tuple[str, ...]) -> None:
    """Run benchmarks, all but the large ones unless named, and write the page; rows of those that are not run stay as they are."""
    known: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for name in names or USUAL:
        print(f"running {name}", file=sys.stderr, flush=True)
        conditions = f"{revision()}, {load_before()}"
        module, *arguments = BENCHMARKS[name]
        command = [sys.executable, "-m", f"eldr_bench.{module}", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: ended with {done.returncode}; its figures on the page stay as they were")
        known[name] = {
            "measured": measured(conditions),
            "rows": [row(figure) for figure in json.loads(done.stdout.splitlines()[-1])],
        }
        FIGURES.write_text(json.dumps(known, indent=1) + "\n")
    text = page({name: known[name] for name in BENCHMARKS if name in known})
    OUT.write_text(text)
    print(text)


def page(known: dict[str, dict[str, Any]]) -> str:
    """Return the page."""
    sections = (section(name, one["measured"], one["rows"]) for name, one in known.items())
    return "\n\n".join((INTRODUCTION, *sections)) + "\n"


if __name__ == "__main__":
    main()
