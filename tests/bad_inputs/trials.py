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
AGENTS = ("HELM", "SHELM")


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
    *("Infinity", "null", "None", "true", "True", "0x10", "1_000", "１", "9" * 400, "9" * 5000, ""),
    *(" 1", "1 ", "1\n", str(2**31), str(2**32), str(2**63), "[1]", "{}", '"1"', "[" * 9999),
)
plain_text = st.text(max_size=30).filter(lambda text: not re.search(r"/|\.\.|~", text))
words = st.one_of(st.sampled_from(PATHS), st.sampled_from(NUMBERS), plain_text)
words = words.filter(lambda word: "\0" not in word)  # the system hands over no zero byte

OPTIONS: dict[str, tuple[str, ...]] = {
    "main": ("--config", "--var", "--seed", "--run-id", "--resume", "--deterministic"),
    "eval": (
        "--ckpt-path",
        "--seed",
        "--device",
        "--deterministic",
        "--random",
        "--report",
        "--var",
    ),
    "prepare": ("--suite", "--clip-encoder", "--clip-pretrained", "--language-model", "--device"),
    "plot": ("--by", "--metric", "--axis", "--statistic", "--threshold", "--output"),
    "sweep": ("--config", "--var", "--seeds", "--name", "--cpus", "--gpus", "--output"),
    "analysis": ("--config", "--var", "--seed", "--output", "--beta", "--most"),
    "benchmarks": ("--only", "--threads", "--json"),
}
OPTIONS["main"] += ("--list-configs", "--print-config", "--help")
OPTIONS["prepare"] += ("--data-folder=folder",)
OPTIONS["sweep"] += ("--address", "--retries", "--dry-run")
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


def _with_words(command: list[str], options: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """Return a strategy of a good command with one to three words more, options or not."""
    option = st.sampled_from(options)
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


def settings_files(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoiled settings files."""
    commands = (
        ("main", ["--config", GOOD]),
        ("main", ["--config", GOOD, "--print-config"]),
        ("sweep", ["--config", GOOD, "--dry-run"]),
        ("analysis", ["distances", EPISODES, "--config", GOOD]),
    )
    changes = _spoiled(gallery, [GOOD], [GOOD], EVERYTHING)
    return _on(commands, changes)


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


def _spoiled(
    gallery: Path, paths: list[str], with_values: list[str], others: list[str]
) -> st.SearchStrategy[list[Change]]:
    """Return a strategy of one or two changes of files, most often one."""
    change = st.one_of(
        spoiling.other_bytes(paths),
        spoiling.other_values(gallery, with_values),
        spoiling.other_values(gallery, with_values),
        spoiling.other_places(paths),
        spoiling.other_files(paths, others),
    )
    return st.lists(change, min_size=1, max_size=2)


def _on(
    commands: tuple[tuple[str, list[str]], ...], changes: st.SearchStrategy[list[Change]]
) -> st.SearchStrategy[Trial]:
    return st.tuples(st.sampled_from(commands), changes).map(
        lambda drawn: Trial(*drawn[0], drawn[1])
    )


def run_folders(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoiled run folders: read, played, gone on with, drawn, analysed."""
    return st.one_of([_run_folders(gallery, agent) for agent in AGENTS])


def _run_folders(gallery: Path, agent: str) -> st.SearchStrategy[Trial]:
    good, unfinished = run_folder(agent, "good"), run_folder(agent, "unfinished")
    commands = (
        ("main", ["--resume", unfinished]),
        ("main", ["--resume", unfinished]),
        ("eval", ["--ckpt-path", good, "--n-episodes=1"]),
        ("plot", ["experiments", "--by=model,seed"]),
        ("analysis", ["words" if agent == "SHELM" else "attention", good, "--n-episodes=1"]),
        ("sweep", [*settings(**TINY), "--dry-run"]),
    )
    folders = [gallery / folder for folder in (good, unfinished)]
    files = [_relative(path, gallery) for folder in folders for path in sorted(folder.iterdir())]
    tables_ = [path for path in files if path.endswith(("config.json", "run.json"))]
    changes = _spoiled(gallery, [*files, good, unfinished], tables_, [*files, *EVERYTHING])
    return _on(commands, changes)


def _relative(path: Path, gallery: Path) -> str:
    return str(path.relative_to(gallery))


def checkpoints(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of checkpoints that are well-formed and hold what none holds."""
    return st.one_of([_checkpoints(gallery, agent) for agent in AGENTS])


def _checkpoints(gallery: Path, agent: str) -> st.SearchStrategy[Trial]:
    good, last = f"{run_folder(agent, 'good')}/ckpt_best.pt", "ckpt_last.pt"
    last = f"{run_folder(agent, 'unfinished')}/{last}"
    analysis = "words" if agent == "SHELM" else "layers"
    played = (
        ("eval", ["--ckpt-path", good, "--n-episodes=1"]),
        ("eval", ["--ckpt-path", good, "--n-episodes=1", "--random"]),
        ("analysis", [analysis, good, "--n-episodes=1"]),
    )
    resumed = (("main", ["--resume", run_folder(agent, "unfinished")]),)
    of_played, of_resumed = (spoiling.other_values(gallery, [path]) for path in (good, last))
    played_trials = _on(played, st.lists(of_played, min_size=1, max_size=2))
    resumed_trials = _on(resumed, st.lists(of_resumed, min_size=1, max_size=2))
    return played_trials | resumed_trials | resumed_trials


def episode_files(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoiled episodes."""
    files = [_relative(path, gallery) for path in sorted((gallery / EPISODES).iterdir())]
    commands = (
        ("analysis", ["words", EPISODES, *settings(**SHELM)]),
        ("analysis", ["words", EPISODES]),
        ("analysis", ["distances", EPISODES]),
        ("analysis", ["distances", files[0]]),
        ("analysis", ["attention", run_folder("HELM", "good"), files[0]]),
        ("analysis", ["layers", run_folder("SHELM", "good"), files[0]]),
    )
    return _on(commands, _spoiled(gallery, [*files, EPISODES], files, EVERYTHING))


def language_models(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoiled weights folders of both kinds."""
    helm, bert = settings(**HELM), settings(**(HELM | {"language_model": BERT}))
    prepare = GOOD_COMMANDS["prepare"][0]
    bert_prepared = [word.replace(XL, BERT) for word in prepare]
    xl_files = [f"{XL}/{name}" for name in ("config.json", "pytorch_model.bin", "vocab.bin")]
    bert_files = [f"{BERT}/{name}" for name in ("config.json", "model.safetensors", "vocab.txt")]
    for_xl = _spoiled(gallery, [*xl_files, XL], xl_files, EVERYTHING)
    for_bert = _spoiled(gallery, [*bert_files, BERT], bert_files[:2], EVERYTHING)
    return st.one_of(
        _on((("main", helm), ("main", helm), ("prepare", prepare)), for_xl),
        _on((("main", bert), ("main", bert), ("prepare", bert_prepared)), for_bert),
    )


def embeddings(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoiled embeddings and image encoders."""
    shelm, helm_v2 = settings(**SHELM), settings(**HELM_V2)
    return st.one_of(
        _on((("main", shelm),), _spoiled(gallery, [WORDS], [WORDS], EVERYTHING)),
        _on((("main", helm_v2), ("main", shelm)), _spoiled(gallery, [CLIP], [CLIP], EVERYTHING)),
    )


def pictures(gallery: Path) -> st.SearchStrategy[Trial]:
    """Return a strategy of spoiled pictures to recognise."""
    command = settings(**(TINY | {"env": "ContinuousRecognition-v0", "stimuli": PICTURES}))
    files = [_relative(path, gallery) for path in sorted((gallery / PICTURES).iterdir())]
    change = st.one_of(
        spoiling.other_bytes(files),
        spoiling.other_places([*files, PICTURES]),
        spoiling.other_files(files, EVERYTHING),
    )
    return _on((("main", command),), st.lists(change, min_size=1, max_size=6))


KINDS = {
    "command lines": command_lines,
    "setting values": setting_values,
    "settings files": settings_files,
    "run folders": run_folders,
    "checkpoints": checkpoints,
    "episodes": episode_files,
    "language models": language_models,
    "embeddings": embeddings,
    "pictures": pictures,
}
