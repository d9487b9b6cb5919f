"""The card of a published run: what a hub shows of it, and its search reads."""

import html
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.run_data import Table, markdown
from settings import Config, all_settings, read_settings
from utils.errors import printable

LIBRARY = "helm"
TASK = "reinforcement-learning"


class Facts(NamedTuple):
    """What a card tells.

    Attributes:
        config: The settings, as they are published.
        weights: sha256 of the pretrained parts, by the setting that names them.
        env_steps: Environment steps behind the agent.
        description: run.json, as it is published.
        evaluations: What eval.py wrote, the one that counts first.
        repository: Where it is published, such as "someone/model"; None where nowhere yet.
        curve: The file of the picture beside the card; None without one.
    """

    config: Config
    weights: dict[str, str]
    env_steps: int
    description: dict[str, Any]
    evaluations: Sequence[dict[str, Any]]
    repository: str | None
    curve: str | None


def card(facts: Facts) -> str:
    """Return the text of README.md, what the hub reads of it first."""
    sections = [_head(facts), _scores(facts), _how_to_play(facts), _training(facts)]
    if facts.weights:
        sections.append(_pretrained(facts))
    return "\n".join([f"---\n{_metadata(facts)}\n---\n", *sections, _settings(facts)])


def _metadata(facts: Facts) -> str:
    """Return the YAML: library, tags, and the score of the first evaluation."""
    from huggingface_hub import EvalResult, ModelCardData

    config = facts.config
    env, algorithm, model = map(printable, (config.env, config.algorithm, config.model))
    results = [
        EvalResult(
            task_type=TASK,
            task_name=TASK,
            dataset_type=env,
            dataset_name=env,
            metric_type="mean_reward",
            metric_name="mean_reward",
            metric_value=f"{one['return_mean']:.2f} +/- {one['return_std']:.2f}",
            verified=False,
        )
        for one in facts.evaluations[:1]
    ]
    tags = [TASK, "deep-reinforcement-learning", LIBRARY, env, algorithm, model]
    data = ModelCardData(
        library_name=LIBRARY,
        pipeline_tag=TASK,
        tags=list(dict.fromkeys(tags)),
        model_name=model if results else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def _head(facts: Facts) -> str:
    config = facts.config
    by = "" if config.algorithm in config.model else f", trained by {_escaped(config.algorithm)}"
    lines = [
        f"# {_escaped(config.model)} on {_escaped(config.env)}",
        f"The agent after {facts.env_steps:,} environment steps{by}, seed {config.seed}.",
    ]
    if facts.curve:
        lines.append(f"![Its mean return while it was trained]({facts.curve})")
    return "\n\n".join(lines) + "\n"


def _scores(facts: Facts) -> str:
    """Return the table of evaluations."""
    with_success = any("success_mean" in one for one in facts.evaluations)
    heading = ["mean return", "mean length", *["success"] * with_success]
    table: list[list[object]] = [[*heading, "episodes", "actions", "seed"]]
    for one in facts.evaluations:
        row: list[object] = [
            f"{one[f'{name}_mean']:.3f} ± {one[f'{name}_std']:.3f}" for name in ("return", "length")
        ]
        if with_success:
            row.append(f"{one['success_mean']:.1%}" if "success_mean" in one else "")
        told = "most probable" if one.get("greedy") else "sampled"  # where eval.py did not say
        table.append([*row, one["n_episodes"], one.get("actions", told), one["seed"]])
    return f"## Scores\n\n{_table(table)}"


def _how_to_play(facts: Facts) -> str:
    place = f"hub:{facts.repository}" if facts.repository else "THIS_FOLDER"
    return f"## Play it\n\n```\npython eval.py --ckpt-path {place}\n```\n"


def _training(facts: Facts) -> str:
    """Return the command and the source that it ran."""
    told, description = "", facts.description
    if command := [str(word) for word in description.get("command", [])]:
        program = Path(command[0]).name
        told = f"\n```\n{printable(shlex.join([program, *command[1:]]))}\n```\n"
    commit = description.get("git_commit")
    if commit:
        changed = ", with changes that were not committed" if description.get("git_dirty") else ""
        told += f"\nCommit {_escaped(commit)}{changed}.\n"
    return f"## Train it\n{told}"


def _pretrained(facts: Facts) -> str:
    """Return the parts that are needed and not contained."""
    rows = [
        [name, getattr(facts.config, name, ""), digest]
        for name, digest in sorted(facts.weights.items())
    ]
    table = _table([["setting", "name", "sha256"], *rows])
    return f"## Pretrained parts\n\nThey are not contained, and checked when it plays.\n\n{table}"


def _settings(facts: Facts) -> str:
    config, read = facts.config, read_settings(facts.config)
    rows = [[name, json.dumps(getattr(config, name))] for name in all_settings() if name in read]
    return f"## Settings\n\n{_table([['setting', 'value'], *rows])}"


def _table(table: Table) -> str:
    return markdown([[_escaped(cell) for cell in row] for row in table])


def _escaped(value: object) -> str:
    """Return a value as Markdown that shows it as it is: no HTML, link or line comes of it."""
    return re.sub(r"[\\`*\[\]|~]", r"\\\g<0>", html.escape(printable(str(value)), quote=False))
