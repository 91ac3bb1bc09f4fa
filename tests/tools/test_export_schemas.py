from __future__ import annotations

import pytest

from tools.export_schemas import EXPORTED, FOLDER, schema_text


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_schema_is_current(name: str) -> None:
    exported = (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")
    assert exported == schema_text(EXPORTED[name]), "run python tools/export_schemas.py"
