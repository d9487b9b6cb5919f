"""The published experiments: settings files under configs/."""

import dataclasses
from pathlib import Path

from settings import Config, load_config, read_settings

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
MEM_LEN_IGNORED_FOR = ("HELM", "HELMv2")
MEM_LEN_RAN = 511
NOTE = (
    f"* The released code ignored mem_len for {' and '.join(MEM_LEN_IGNORED_FOR)} and ran "
    f"{MEM_LEN_RAN}, and so did the\n"
    f"  published results. Here it is read; --var mem_len={MEM_LEN_RAN} or a file named -as-run "
    "runs what they ran.\n  See configs/README.md"
)


def published_configs() -> list[Path]:
    """Return every settings file under configs/, in alphabetical order."""
    return sorted(CONFIGS.rglob("config.json"))


def published_table() -> str:
    """Return one line for every published experiment, for `main.py --list-configs`."""
    rows = [("settings file", "agent", "environment", "steps", "mem_len")]
    for path in published_configs():
        config = load_config(path)
        place = str(path.relative_to(CONFIGS.parent))
        rows.append((place, _agent(config), config.env, f"{config.n_steps:,}", _mem_len(config)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        f"{place:{widths[0]}}  {model:{widths[1]}}  {env:{widths[2]}}  {steps:>{widths[3]}}"
        f"  {mem_len:>{widths[4]}}".rstrip()
        for place, model, env, steps, mem_len in rows
    ]
    return "\n".join([*lines, "", NOTE])


def _agent(config: Config) -> str:
    """Return who learns, and how unless that is by PPO."""
    return config.model if config.algorithm == "PPO" else f"{config.model}, {config.algorithm}"


def _mem_len(config: Config) -> str:
    """Return the tokens an agent remembers, marked where the published run had others."""
    if "mem_len" not in read_settings(config):
        return ""
    mem_len = dataclasses.asdict(config)["mem_len"]
    ran_others = config.model in MEM_LEN_IGNORED_FOR and mem_len != MEM_LEN_RAN
    return f"{mem_len}{'*' if ran_others else ' '}"
