"""Answers held against the JSON Schemas in docs/schema."""

import json
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator

SCHEMAS: Final = Path(__file__).parents[3] / "docs" / "schema"


def problems(name: str, answer: Any) -> list[str]:
    """What is wrong with an answer by its schema."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    plain = json.loads(json.dumps(answer))
    found = Draft202012Validator(schema).iter_errors(plain)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]
