"""What of a run is nobody else's business: where things lie on this machine."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A path that leads out of the working folder, behind nothing, an equals sign or a quotation mark.
PLACE = re.compile(r"""(^|[="'])((?:~|\.\.|/)[^"']*)""")
PUBLIC = {
    *("command", "started", "finished", "python", "packages", "hardware", "weights"),
    *("git_commit", "git_dirty", "source_sha256"),
    *("resumed", "env_steps", "time", "exact", "differences"),
}


def without_places(value: Any) -> Any:
    """Return a JSON value in which every path that leads out of here is its last name alone."""
    if isinstance(value, str):
        return PLACE.sub(lambda found: found[1] + Path(found[2]).name, value)
    if isinstance(value, Mapping):
        return {name: without_places(each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_places(each) for each in value]
    return value


def public_description(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return what run.json says without machine, changed files and places."""
    kept = {name: value for name, value in description.items() if name in PUBLIC}
    match kept.get("resumed"):
        case [*entries] if all(isinstance(entry, dict) for entry in entries):
            kept["resumed"] = [public_description(entry) for entry in entries]
    return without_places(kept)
