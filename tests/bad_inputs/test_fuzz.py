"""A few hostile inputs of every kind, the same in every run; `--examples 1000` for other ones."""

import itertools
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.bad_inputs.gallery import (
    BERT,
    CLIP,
    EPISODES,
    GOOD,
    HELM,
    HELM_GOOD,
    HELM_UNFINISHED,
    HELM_V2,
    PICTURES,
    PREPARED,
    SHELM,
    SHELM_GOOD,
    SHELM_UNFINISHED,
    TINY,
    WORDS,
    XL,
)
from tests.bad_inputs.harness import PROGRAMS, TRACE, run_forked, settings
from tests.bad_inputs.spoiling import Trial, trials
from utils.settings import all_settings

FIELDS = all_settings()
COSTLY = ("n_steps", "n_envs", "n_rollout_steps", "n_epochs", "n_batches", "mem_len")
# Words of a command line. None may name a place outside of the copy by accident: no slash comes
# from chance, and those below lead nowhere.
PATHS = (
    *("", ".", "nowhere", "nowhere/x", GOOD, CLIP, WORDS, XL, BERT, PICTURES, EPISODES),
    *(HELM_GOOD, HELM_UNFINISHED, "experiments", "models", f"{HELM_GOOD}/ckpt_last.pt"),
    *(f"{PICTURES}/00.png", "/dev/null", "/dev/null/x", "/dev/full", "/proc/self/mem", "/dev/zero"),
    *("-", "--", "~", "$HOME", "*", "x" * 300, "x/" * 3000, "a\nb", "\ud800", "\udcff"),
    *("a.png", "a.png/b.png", "good.json/x", "folder/", "é/é", "\u202ex", "\x1b[31mx", "x.npz"),
)
NUMBERS = (
    *("0", "1", "2", "-1", "1.5", "-0", "+1", "1e3", "1e999", "1e-400", "nan", "-inf", "NaN"),
    *("Infinity", "null", "None", "true", "True", "0x10", "1_000", "１", "9" * 400, "9" * 5000),
    *(" 1", "1\n", str(2**31), str(2**32), str(2**63), "[1]", "{}", '"1"', "[" * 9999, "inf"),
)
plain_text = st.text(max_size=30).filter(lambda text: not re.search(r"/|\.\.|~|\0", text))
words = st.sampled_from(PATHS) | st.sampled_from(NUMBERS) | plain_text
PREPARE = ("prepare", *PREPARED)
OPTIONS = {
    "main": "config var seed run-id resume deterministic list-configs print-config help",
    "eval": "ckpt-path seed device deterministic random report var",
    "prepare": "suite clip-encoder clip-pretrained language-model device data-folder=folder",
    "plot": "by metric axis statistic threshold output",
    "sweep": "config var seeds name cpus gpus output address retries dry-run",
    "analysis": "config var seed output beta most",
    "benchmarks": "only threads json",
}
COMMANDS = [
    ("main", *settings(**TINY)),
    ("main", *settings(**HELM)),
    ("main", "--config", GOOD),
    ("main", "--resume", HELM_UNFINISHED),
    ("eval", "--ckpt-path", HELM_GOOD, "--n-episodes=1"),
    PREPARE,
    ("plot", HELM_GOOD),
    ("plot", "experiments", "--by=model,seed"),
    ("sweep", *settings(**TINY), "--dry-run"),
    ("sweep", "--config", GOOD, "--seeds=2", "--dry-run"),
    ("analysis", "words", EPISODES, *settings(**SHELM)),
    ("analysis", "words", SHELM_GOOD, "--n-episodes=1"),
    ("analysis", "distances", EPISODES),
    ("analysis", "attention", HELM_GOOD, EPISODES),
    ("analysis", "layers", HELM_GOOD, "--n-episodes=1"),
    ("benchmarks", "--only=nothing"),
]


def command_lines(gallery):
    """Return a strategy of one to three odd words behind a good command, options or not."""

    def behind(command):
        option = st.sampled_from([f"--{name}" for name in OPTIONS[command[0]].split()])
        more = st.one_of(
            st.builds(lambda name, word: [f"{name}={word}"], option, words),
            st.builds(lambda name, word: [name, word], option, words),
            st.builds(lambda word: [word], words | option),
        )
        return st.lists(more, min_size=1, max_size=3).map(
            lambda lists: Trial((*command, *itertools.chain(*lists)), [])
        )

    return st.sampled_from(COMMANDS).flatmap(behind)


odd_numbers = st.integers() | st.floats() | st.sampled_from([0, 1, 2, 10**30, -(10**400), 2**63])
odd_values = st.recursive(
    st.none() | st.booleans() | odd_numbers | plain_text | st.sampled_from(PATHS + NUMBERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=5,
)


def _near_bounds(name):
    """Return a strategy of a setting at its bounds, a little beyond, and of any kind."""
    facts = FIELDS[name].metadata
    known = [*(facts["choices"] or ())]
    for bound in (facts["low"], facts["high"]):
        if bound is not None:
            known += [bound, bound - 1, bound + 1, bound * (1 + 1e-9), float(bound), str(bound)]
    value = st.sampled_from(known) | odd_values if known else odd_values
    text = value.map(lambda found: found if isinstance(found, str) else json.dumps(found))
    return text.map(lambda found: f"--var={name}={found}".replace("\0", "\\0"))


def setting_values(gallery):
    """Return a strategy of runs with one to three settings as they come."""
    cheap = st.sampled_from([name for name in FIELDS if name not in COSTLY]).flatmap(_near_bounds)
    any_of_all = st.sampled_from(sorted(FIELDS)).flatmap(_near_bounds)
    bases = [("main", *settings(**base)) for base in (TINY, TINY, HELM, SHELM, HELM_V2)]
    free = [("main", "--print-config"), ("sweep", *settings(**TINY), "--dry-run")]
    return st.one_of(
        st.builds(
            lambda base, more: Trial((*base, *more), []),
            st.sampled_from(commands),
            st.lists(value, min_size=1, max_size=3),
        )
        for commands, value in ((bases, cheap), (free, any_of_all))
    )


def settings_files(gallery):
    """Return a strategy of spoiled settings files."""
    config = ("--config", GOOD)
    commands = [("main", *config), ("main", *config, "--print-config")]
    commands += [("sweep", *config, "--dry-run"), ("analysis", "distances", EPISODES, *config)]
    return trials(gallery, commands, [GOOD, CLIP], [GOOD])


def run_folders(gallery):
    """Return a strategy of spoiled run folders: played, gone on with, drawn, analysed."""
    strategies = []
    for analysis, good, unfinished in (
        ("layers", HELM_GOOD, HELM_UNFINISHED),
        ("words", SHELM_GOOD, SHELM_UNFINISHED),
    ):
        played = [
            ("eval", "--ckpt-path", good, "--n-episodes=1"),
            ("analysis", analysis, good, "--n-episodes=1"),
            ("plot", "experiments", "--by=model,seed"),
        ]
        for commands, folder in ((played, good), ([("main", "--resume", unfinished)], unfinished)):
            files = _below(gallery, folder)
            valued = [path for path in files if path.endswith((".json", ".pt"))]
            strategies.append(trials(gallery, commands, [*files, folder], valued))
    return st.one_of(strategies)


def _below(gallery, folder):
    return [f"{folder}/{path.name}" for path in sorted((gallery / folder).iterdir())]


def episode_files(gallery):
    """Return a strategy of spoiled episodes."""
    files = _below(gallery, EPISODES)
    commands = [
        ("analysis", "words", EPISODES, *settings(**SHELM)),
        ("analysis", "distances", files[0]),
        ("analysis", "attention", HELM_GOOD, files[0]),
        ("analysis", "layers", SHELM_GOOD, files[0]),
    ]
    return trials(gallery, commands, [*files, EPISODES], files)


def pretrained_parts(gallery):
    """Return a strategy of spoiled language models of both kinds, image encoders, embeddings."""
    helm, shelm, bert = (
        ("main", *settings(**values)) for values in (HELM, SHELM, HELM | {"language_model": BERT})
    )
    by_bert = tuple(word.replace(XL, BERT) for word in PREPARE)
    of_xl = [f"{XL}/{name}" for name in ("config.json", "pytorch_model.bin", "vocab.bin")]
    of_bert = [f"{BERT}/{name}" for name in ("config.json", "model.safetensors", "vocab.txt")]
    return st.one_of(
        trials(gallery, [helm, PREPARE], [*of_xl, XL], of_xl),
        trials(gallery, [bert, by_bert], [*of_bert, BERT], of_bert[:2]),
        trials(gallery, [shelm], [WORDS, CLIP], [WORDS]),
        trials(gallery, [shelm, ("main", *settings(**HELM_V2))], [CLIP, WORDS], [CLIP]),
    )


def pictures(gallery):
    """Return a strategy of spoiled pictures to recognise."""
    shown = (
        "main",
        *settings(**(TINY | {"env": "ContinuousRecognition-v0", "recognition_stimuli": PICTURES})),
    )
    return trials(gallery, [shown], [*_below(gallery, PICTURES), PICTURES], most=6)


KINDS = {
    command_lines: 12,
    setting_values: 8,
    settings_files: 8,
    run_folders: 14,
    episode_files: 3,
    pretrained_parts: 10,
    pictures: 3,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_program_fails_on_what_is_generated(kind, gallery, request):
    """Collect violations, each with the shortest trial that shows it."""
    n_examples, found = request.config.getoption("--examples"), {}

    @examples(
        max_examples=n_examples or KINDS[kind],
        deadline=None,
        database=None,
        derandomize=n_examples is None,
        phases=[Phase.generate],  # shrinking a hanging trial would take very long
        suppress_health_check=list(HealthCheck),
    )
    @given(trial=kind(gallery))
    def one(trial):
        outcome = trial.run(gallery)
        for complaint in outcome.complaints():
            shown = f"{trial}\n{outcome.err}"
            found[complaint] = min(shown, found.get(complaint, shown), key=len)

    one()
    assert not found, "\n\n".join(f"{complaint}\n{shown}" for complaint, shown in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("word", ["[" * 20_000, "--" + "x" * 20_000])
def test_a_very_long_word_is_not_shown_whole(word, gallery):
    outcome = Trial(("analysis", "words", EPISODES, word, "--no", word), []).run(gallery)
    assert (outcome.complaints(), outcome.status) == ([], 2)


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        (lambda words: 3, "ended with status 3"),
        (lambda words: int("nine"), "traceback: ValueError: invalid literal"),
        (lambda words: Path(TRACE).touch(), "ran code of a file"),
        (lambda words: 2, "refused in 1 lines, or in empty ones"),
        (lambda words: 2 * bool(os.write(2, b"a\x1b[31m\n")), "in signs that do not print"),
        (lambda words: 2 * Path("new").write_text("1"), "refused, but changed ['new']"),
        (lambda words: 2 * bool(os.write(2, b"gamma: 2 is out of range\n")), ""),
    ],
)
def test_what_no_program_may_do_is_complained_of(program, complaint, monkeypatch, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setitem(PROGRAMS, "function", SimpleNamespace(main=program))
    complaints = run_forked("function", [], place).complaints()
    assert complaint in " ".join(complaints)
    assert complaint or not complaints
