"""Write the JSON schemas of the files that users keep: plans, clusters, hardware profiles.

``python tools/export_schemas.py`` rewrites ``docs/schemas``; a test holds them up to date.
"""

from __future__ import annotations

import json
from pathlib import Path

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import ClusterSpec, Plan, Spec

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
EXPORTED: dict[str, type[Spec]] = {
    "plan": Plan,
    "cluster": ClusterSpec,
    "profile": HardwareProfile,
}


def schema_text(spec: type[Spec]) -> str:
    """The schema of what `Spec.to_json` writes, as canonical text."""
    return json.dumps(spec.model_json_schema(mode="serialization"), indent=2) + "\n"


def main() -> None:
    for name, spec in EXPORTED.items():
        (FOLDER / f"{name}.schema.json").write_text(schema_text(spec), encoding="utf-8")


if __name__ == "__main__":
    main()
