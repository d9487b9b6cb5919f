"""The published experiments: settings files under configs/."""

from pathlib import Path

from utils.config import load_config

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def published_configs() -> list[Path]:
    """Return every settings file under configs/, in alphabetical order."""
    return sorted(CONFIGS.rglob("config.json"))


def published_table() -> str:
    """Return one line for every published experiment, for `main.py --list-configs`."""
    rows = [("settings file", "agent", "environment", "steps")]
    for path in published_configs():
        config = load_config(path)
        place = str(path.relative_to(CONFIGS.parent))
        rows.append((place, config.model, config.env, f"{config.n_steps:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{place:{widths[0]}}  {model:{widths[1]}}  {env:{widths[2]}}  {steps:>{widths[3]}}"
        for place, model, env, steps in rows
    )
