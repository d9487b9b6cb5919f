"""Values of settings: from JSON or a command line, each by what its declaration allows."""

import json
import math
from typing import Any

from settings.declaration import Declaration
from utils.errors import suggestion

LONGEST_SHOWN = 100
KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a JSON object",
    type(None): "null",
}


def from_text(declaration: Declaration | None, text: str) -> Any:
    """Return the JSON value a command-line text stands for; text fields take it as it is.

    Only null is null where a text may be missing; a file of that name is ./null.
    """
    if declaration is None or str in declaration.kinds:
        may_be_missing = declaration is not None and type(None) in declaration.kinds
        return None if text == "null" and may_be_missing else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def checked(declaration: Declaration, value: Any) -> Any:
    """Return a value as its setting's type, or raise ValueError with the line to show."""
    name, limits = declaration.name, declaration.metadata
    value = _as_type(declaration, value)
    if limits["choices"] and value is not None and value not in limits["choices"]:
        hint = suggestion(str(value), limits["choices"])
        raise ValueError(
            f"{name}: '{shortened(value)}' is none of {', '.join(limits['choices'])}.{hint}"
        )
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and not _in_range(value, limits["low"], limits["high"]):
        raise ValueError(f"{name}: {shown(value)} is out of range{range_text(declaration)}")
    return value


def kind_text(declaration: Declaration) -> str:
    """Return in words what a setting may be."""
    return " or ".join(KINDS[kind] for kind in declaration.kinds)


def range_text(declaration: Declaration) -> str:
    """Return a setting's range or choices in parentheses, after a space; nothing without."""
    low, high, choices = (declaration.metadata[name] for name in ("low", "high", "choices"))
    if low is None:
        return f" ({', '.join(choices)})" if choices else ""
    return f" ({low} or more)" if high is None else f" ({low} to {high})"


def shown(value: Any) -> str:
    """Return a value as it would stand in JSON, cut short where it is long."""
    try:
        return shortened(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__}"


def shortened(text: str) -> str:
    """Return a text, cut where it is long."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def _as_type(declaration: Declaration, value: Any) -> Any:
    kinds = declaration.kinds
    if value is None and type(None) in kinds:
        return None
    if isinstance(value, bool):
        if bool in kinds:
            return value
    elif int in kinds and _is_whole(value):
        return int(value)
    elif float in kinds and (_is_whole(value) or _is_fraction(value)):
        return _as_float(value)
    elif dict in kinds and isinstance(value, dict) and _is_finite(value):
        return value
    elif str in kinds and isinstance(value, str) and value:
        if not _is_unicode(value):
            name = declaration.name
            raise ValueError(f"{name}: {shown(value)} is not text in UTF-8. Rename what it names")
        return value
    raise ValueError(f"{declaration.name}: {shown(value)} is not {kind_text(declaration)}")


def _is_finite(value: dict[str, Any]) -> bool:
    """Return whether an object can be written as JSON, which has no NaN and no Infinity."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _is_unicode(text: str) -> bool:
    """Return whether a text can be written into files; a name of other bytes cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _as_float(value: float) -> float:
    """Return a number as a float, infinite where it is beyond all floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _in_range(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)
