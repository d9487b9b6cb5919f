"""Trials: a program, its command line, and what is changed in a folder of good files before it."""

import contextlib
import itertools
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from settings.parts import all_settings
from tests.bad_inputs import spoiling
from tests.bad_inputs.forked import Outcome, run_forked
from tests.bad_inputs.gallery import (
    BERT,
    CLIP,
    EPISODES,
    GOOD,
    HELM,
    HELM_V2,
    PICTURES,
    SHELM,
    TINY,
    WORDS,
    XL,
    run_folder,
)
from tests.bad_inputs.harness import settings
from tests.bad_inputs.spoiling import Change

FIELDS = all_settings()

COSTLY = ("n_steps", "n_envs", "n_rollout_steps", "n_epochs", "n_batches", "mem_len")
AGENTS = {"HELM": "layers", "SHELM": "words"}  # and an analysis of each


class Trial(NamedTuple):
    """A program on spoiled files, or with a command line of odd words."""

    program: str
    command: list[str]
    changes: list[Change]

    def run(self, gallery: Path) -> Outcome:
        """Run the program on a copy of the good files, changed."""
        with _copied(gallery) as place:
            for change in self.changes:
                change.apply(place)
            return run_forked(self.program, self.command, place)

    def __str__(self) -> str:
        changes = "".join(f"\n    {change}" for change in self.changes)
        return f"{self.program} {shlex.join(self.command)[:600]}{changes}"


@contextlib.contextmanager
def _copied(gallery: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(shutil.copytree(gallery, Path(folder) / "a" / "b" / "place"))


# Words of a command line. None may name a place outside of the copy by accident: no slash comes
# from chance, and those below lead nowhere.
PATHS = (
    *("", ".", "nowhere", "nowhere/x", GOOD, CLIP, WORDS, XL, BERT, PICTURES, EPISODES),
    *(run_folder("HELM", "good"), run_folder("HELM", "unfinished"), "experiments", "models"),
    *(f"{run_folder('HELM', 'good')}/{name}" for name in ("ckpt_last.pt", "metrics.csv", "lock")),
    *(f"{PICTURES}/00.png", "/dev/null", "/dev/null/x", "/dev/full", "/proc/self/mem", "/dev/zero"),
    *("-", "--", "~", "$HOME", "*", "x" * 300, "x/" * 3000, "a\nb", "a\0b", "\ud800", "\udcff"),
    *("a.png", "a.png/b.png", "good.json/x", "folder/", "é/é", "\u202ex", "\x1b[31mx", "x.npz"),
)
NUMBERS = (
    *(
        "0",
        "1",
        "2",
        "-1",
        "1.5",
        "-0",
        "+1",
        "1e3",
        "1e999",
        "1e-400",
        "nan",
        "-inf",
        "NaN",
        "inf",
    ),
    *("Infinity", "null", "None", "true", "True", "0x10", "1_000", "１", "9" * 400, "9" * 5000),
    *(
        " 1",
        "1 ",
        "1\n",
        str(2**31),
        str(2**32),
        str(2**63),
        "[1]",
        "{}",
        '"1"',
        "[" * 9999,
        "",
        "inf",
    ),
)
plain_text = st.text(max_size=30).filter(lambda text: not re.search(r"/|\.\.|~", text))
words = st.one_of(st.sampled_from(PATHS), st.sampled_from(NUMBERS), plain_text)
words = words.filter(lambda word: "\0" not in word)  # the system hands over no zero byte

OPTIONS = {
    "main": "config var seed run-id resume deterministic list-configs print-config help",
    "eval": "ckpt-path seed device deterministic random report var",
    "prepare": "suite clip-encoder clip-pretrained language-model device data-folder=folder",
    "plot": "by metric axis statistic threshold output",
    "sweep": "config var seeds name cpus gpus output address retries dry-run",
    "analysis": "config var seed output beta most",
    "benchmarks": "only threads json",
}
GOOD_COMMANDS: dict[str, list[list[str]]] = {
    "main": [
        settings(**TINY),
        settings(**HELM),
        ["--config", GOOD],
        ["--resume", run_folder("HELM", "unfinished")],
    ],
    "eval": [["--ckpt-path", run_folder("HELM", "good"), "--n-episodes=1"]],
    "prepare": [
        [
            *("--clip-encoder=tiny-vit", f"--clip-pretrained={CLIP}", f"--language-model={XL}"),
            *("--data-folder=folder", "--device=cpu"),
        ]
    ],
    "plot": [[run_folder("HELM", "good")], ["experiments", "--by=model,seed"]],
    "sweep": [[*settings(**TINY), "--dry-run"], ["--config", GOOD, "--seeds=2", "--dry-run"]],
    "analysis": [
        ["words", EPISODES, *settings(**SHELM)],
        ["words", run_folder("SHELM", "good"), "--n-episodes=1"],
        ["distances", EPISODES],
        ["attention", run_folder("HELM", "good"), EPISODES],
        ["layers", run_folder("HELM", "good"), "--n-episodes=1"],
    ],
    "benchmarks": [["--only=nothing"]],
}


def _with_words(command: list[str], options: str) -> st.SearchStrategy[list[str]]:
    """Return a strategy of a good command with one to three words more, options or not."""
    option = st.sampled_from([f"--{name}" for name in options.split()])
    more = st.one_of(
        st.tuples(option, words).map(lambda pair: [f"{pair[0]}={pair[1]}"]),
        st.tuples(option, words).map(list),
        words.map(lambda word: [word]),
        option.map(lambda name: [name]),
    )
    return st.lists(more, min_size=1, max_size=3).map(
        lambda lists: [*command, *itertools.chain(*lists)]
    )


def command_lines(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of odd words behind the good command lines of all programs."""
    return st.one_of(
        [
            st.builds(Trial, st.just(program), _with_words(command, OPTIONS[program]), st.just([]))
            for program, commands in GOOD_COMMANDS.items()
            for command in commands
        ]
    )


odd_numbers = st.integers() | st.floats() | st.sampled_from([0, 1, 2, 10**30, -(10**400), 2**63])
odd_values = st.recursive(
    st.none() | st.booleans() | odd_numbers | plain_text | st.sampled_from(PATHS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=5,
)


def _near_bounds(name: str) -> st.SearchStrategy[object]:
    """Return a strategy of values of a setting at its bounds, a little beyond, and of any kind."""
    facts = FIELDS[name].metadata
    known = [*(facts["choices"] or ())]
    for bound in (facts["low"], facts["high"]):
        if bound is not None:
            known += [bound, bound - 1, bound + 1, bound * (1 + 1e-9), float(bound), str(bound)]
    return st.sampled_from(known) | odd_values if known else odd_values


def _one_setting(names: list[str]) -> st.SearchStrategy[tuple[str, object]]:
    return st.sampled_from(names).flatmap(
        lambda name: _near_bounds(name).map(lambda value: (name, value))
    )


def setting_values(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of runs with one to three settings as they come."""
    cheap = [name for name in FIELDS if name not in COSTLY]
    base = st.sampled_from([TINY, TINY, HELM, SHELM, HELM_V2])
    trained = st.tuples(base, st.lists(_one_setting(cheap), min_size=1, max_size=3)).map(
        lambda drawn: [*settings(**drawn[0]), *(_as_word(*pair) for pair in drawn[1])]
    )
    shown = st.lists(_one_setting(sorted(FIELDS)), min_size=1, max_size=3).map(
        lambda pairs: [*(_as_word(*pair) for pair in pairs), "--print-config"]
    )
    swept = st.lists(_one_setting(sorted(FIELDS)), min_size=1, max_size=3).map(
        lambda pairs: [*settings(**TINY), *(_as_word(*pair) for pair in pairs), "--dry-run"]
    )
    main = st.builds(Trial, st.just("main"), trained | trained | shown, st.just([]))
    return main | st.builds(Trial, st.just("sweep"), swept, st.just([]))


def _as_word(name: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"--var={name}={text}".replace("\0", "\\0")


EVERYTHING = [
    GOOD,
    CLIP,
    WORDS,
    f"{XL}/vocab.bin",
    f"{BERT}/model.safetensors",
    f"{PICTURES}/00.png",
]
EVERYTHING += [f"{run_folder('HELM', 'good')}/{name}" for name in ("ckpt_last.pt", "metrics.csv")]
EVERYTHING += [f"{run_folder('SHELM', 'good')}/{name}" for name in ("ckpt_best.pt", "run.json")]


def _spoilt(
    gallery: Path,
    commands: list[tuple[str, list[str]]],
    paths: list[str],
    with_values: list[str],
    most: int = 2,
) -> st.SearchStrategy[Trial]:
    """Return a strategy of commands after some changes of files, most often one.

    Args:
        gallery: The good files.
        commands: Programs and their words.
        paths: Files and folders to spoil.
        with_values: Those of them whose values can be changed one by one.
        most: Changes.
    """
    kinds = [
        spoiling.other_bytes(paths),
        spoiling.other_places(paths),
        spoiling.other_files(paths, [*paths, *EVERYTHING]),
    ]
    if with_values:
        kinds += [spoiling.other_values(gallery, with_values)] * 2
    return _on(commands, st.lists(st.one_of(kinds), min_size=1, max_size=most))


def _on(
    commands: list[tuple[str, list[str]]], changes: st.SearchStrategy[list[Change]]
) -> st.SearchStrategy[Trial]:
    return st.builds(
        lambda command, changed: Trial(command[0], command[1], changed),
        st.sampled_from(commands),
        changes,
    )


def settings_files(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoilt settings files."""
    config = ["--config", GOOD]
    commands = [("main", config), ("main", [*config, "--print-config"])]
    commands += [("sweep", [*config, "--dry-run"]), ("analysis", ["distances", EPISODES, *config])]
    return _spoilt(gallery, commands, [GOOD], [GOOD])


def run_folders(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoilt run folders: read, played, gone on with, drawn, analysed."""
    strategies = []
    for agent, analysis in AGENTS.items():
        good, unfinished = run_folder(agent, "good"), run_folder(agent, "unfinished")
        commands = [
            ("main", ["--resume", unfinished]),
            ("main", ["--resume", unfinished]),
            ("eval", ["--ckpt-path", good, "--n-episodes=1"]),
            ("plot", ["experiments", "--by=model,seed"]),
            ("analysis", [analysis, good, "--n-episodes=1"]),
            ("sweep", [*settings(**TINY), "--dry-run"]),
        ]
        files = [*_below(gallery, good), *_below(gallery, unfinished)]
        tables = [path for path in files if path.endswith(("config.json", "run.json"))]
        strategies.append(_spoilt(gallery, commands, [*files, good, unfinished], tables))
    return st.one_of(strategies)


def _below(gallery: Path, folder: str) -> list[str]:
    return [f"{folder}/{path.name}" for path in sorted((gallery / folder).iterdir())]


def checkpoints(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of checkpoints that are well-formed and hold what none holds."""
    strategies = []
    for agent, analysis in AGENTS.items():
        good, unfinished = (
            f"{run_folder(agent, 'good')}/ckpt_best.pt",
            run_folder(agent, "unfinished"),
        )
        episode = ["--ckpt-path", good, "--n-episodes=1"]
        played = [("eval", episode), ("eval", [*episode, "--random"])]
        played.append(("analysis", [analysis, good, "--n-episodes=1"]))
        resumed = [("main", ["--resume", unfinished])]
        for commands, path in ((played, good), *[(resumed, f"{unfinished}/ckpt_last.pt")] * 2):
            changes = spoiling.other_values(gallery, [path])
            strategies.append(_on(commands, st.lists(changes, min_size=1, max_size=2)))
    return st.one_of(strategies)


def episode_files(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoilt episodes."""
    files = _below(gallery, EPISODES)
    commands = [
        ["words", EPISODES, *settings(**SHELM)],
        ["words", EPISODES],
        ["distances", EPISODES],
        ["distances", files[0]],
        ["attention", run_folder("HELM", "good"), files[0]],
        ["layers", run_folder("SHELM", "good"), files[0]],
    ]
    analyses = [("analysis", command) for command in commands]
    return _spoilt(gallery, analyses, [*files, EPISODES], files)


def pretrained_parts(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoilt language models of both kinds, image encoders and embeddings."""
    helm, bert = settings(**HELM), settings(**(HELM | {"language_model": BERT}))
    shelm, helm_v2 = ("main", settings(**SHELM)), ("main", settings(**HELM_V2))
    prepare = GOOD_COMMANDS["prepare"][0]
    by_bert = [word.replace(XL, BERT) for word in prepare]
    of_xl = [f"{XL}/{name}" for name in ("config.json", "pytorch_model.bin", "vocab.bin")]
    of_bert = [f"{BERT}/{name}" for name in ("config.json", "model.safetensors", "vocab.txt")]
    return st.one_of(
        _spoilt(gallery, [("main", helm), ("prepare", prepare)], [*of_xl, XL], of_xl),
        _spoilt(gallery, [("main", bert), ("prepare", by_bert)], [*of_bert, BERT], of_bert[:2]),
        _spoilt(gallery, [shelm], [WORDS], [WORDS]),
        _spoilt(gallery, [shelm, helm_v2], [CLIP], [CLIP]),
    )


def pictures(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoilt pictures to recognise."""
    shown = settings(**(TINY | {"env": "ContinuousRecognition-v0", "stimuli": PICTURES}))
    files = _below(gallery, PICTURES)
    return _spoilt(gallery, [("main", shown)], [*files, PICTURES], [], most=6)


KINDS = {
    "command lines": command_lines,
    "setting values": setting_values,
    "settings files": settings_files,
    "run folders": run_folders,
    "checkpoints": checkpoints,
    "episodes": episode_files,
    "pretrained parts": pretrained_parts,
    "pictures": pictures,
}
