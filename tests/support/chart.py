"""The Helm chart rendered by the real helm, or a skip that says how to get one."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "goodput-sidecar"
GOLDEN = ROOT / "tests" / "contract" / "chart" / "golden"
COPIES = {  # Helm can only read what lies in the chart: these are kept equal
    ROOT / "configs" / "grafana" / "goodput.json": CHART / "files" / "goodput.json",
    ROOT / "configs" / "prometheus" / "rules.yaml": CHART / "files" / "rules.yaml",
}
HOW = "no helm; for instance: tests/support/get_helm.sh build/helm-35 35"

Doc = dict[str, Any]


def programs(name: str) -> list[str]:
    """Every ``helm`` or ``kubectl`` there is: what get_helm.sh put under build/, else the one on PATH."""
    found = [str(p) for p in sorted((ROOT / "build").glob(f"helm-*/{name}"))]
    on_path = shutil.which(name)
    return found or ([on_path] if on_path else [])


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """A program to its end, output as text."""
    return subprocess.run(
        [str(c) for c in command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def render(helm: str, *args: object) -> list[Doc]:
    """The objects of ``helm template``, as it was told with ``args``."""
    if not helm:
        pytest.skip(HOW)
    return [doc for doc in yaml.safe_load_all(_rendered(helm, args)) if doc]


@cache
def _rendered(helm: str, args: tuple[object, ...]) -> str:
    ran = run(helm, "template", "demo", CHART, "--namespace", "serving", *args)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def of_kind(docs: list[Doc], kind: str) -> Doc:
    """The one object of that kind."""
    (found,) = [d for d in docs if d["kind"] == kind]
    return found


def golden_text(helm: str, values: Path) -> str:
    """The render of one ``ci/`` file, as two helms agree on it: objects by kind and name, keys sorted."""
    docs = sorted(render(helm, "--values", values), key=lambda d: (d["kind"], d["metadata"]["name"]))
    return yaml.safe_dump_all(docs, sort_keys=True, width=110)


if __name__ == "__main__":  # copies and golden renders anew: look at the difference before committing it
    for source, copy in COPIES.items():
        shutil.copyfile(source, copy)
    for file in sorted((CHART / "ci").glob("*-values.yaml")):
        (GOLDEN / f"{file.stem}.yaml").write_text(golden_text(programs("helm")[-1], file), encoding="utf-8")
