"""JSON that every reader takes: what a file or the report's page gets, whatever a policy,
a judge or a tool put into it."""

import json
from math import isfinite
from typing import Any


def to_json(value: Any, **options: Any) -> str:
    """`json.dumps` without what JSON does not have: `null` stands for NaN and the infinities, as in JavaScript.

    >>> to_json({"x": [1.5, float("nan")], "y": json.loads("1e999")})
    '{"x": [1.5, null], "y": null}'
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
