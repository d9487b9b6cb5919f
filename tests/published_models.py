"""Small random language models in the published layouts, for any test that needs one."""

from pathlib import Path
from typing import Any

import torch

from tests.golden_data import GOLDEN

TRANSFORMER_XL = GOLDEN / "transfo_xl_k1"
N_POSITIONS = 12
WORDS = ["<s>", "</s>", "<unk>", *(f"Ġword{index}" for index in range(27))]
BERT_WORDS = ["[PAD]", "[UNK]", *(f"word{index}" for index in range(28))]
SIZES: dict[str, Any] = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 30},
    **{"intermediate_size": 40, "max_position_embeddings": 64, "bos_token_id": 0},
    **{"eos_token_id": 1, "pad_token_id": None},
}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {
        **{"n_embd": 24, "n_layer": 2, "n_head": 6, "n_inner": 40, "n_positions": N_POSITIONS},
        **{"vocab_size": 30, "bos_token_id": 0, "eos_token_id": 1},
    },
    "llama": GROUPED,
    "qwen3": GROUPED | {"tie_word_embeddings": True},
    "mistral": GROUPED | {"sliding_window": 4},
    "gemma3_text": GROUPED
    | {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
}
# None of these is a `Decoder`.
OTHERS: dict[str, dict[str, Any]] = {
    "bert": SIZES
    | {"num_attention_heads": 3, "max_position_embeddings": N_POSITIONS, "pad_token_id": 0},
    "roberta": SIZES
    | {"max_position_embeddings": N_POSITIONS + 2, "type_vocab_size": 1, "pad_token_id": 1},
    "distilbert": {
        **{"dim": 24, "n_layers": 2, "n_heads": 6, "hidden_dim": 40, "vocab_size": 30},
        "max_position_embeddings": N_POSITIONS,
    },
}


def tiny_model_folder(folder: Path, model_type: str, **options: Any) -> Path:
    """Write a random language model of width 24 into the folder and return it.

    Args:
        folder: Made where missing.
        model_type: A key of DECODERS or OTHERS.
        options: Passed on to the library's `save_pretrained`.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

    torch.manual_seed(6)
    config = AutoConfig.for_model(model_type, **(DECODERS | OTHERS)[model_type])
    encoders = dict.fromkeys(("roberta", "distilbert"), AutoModelForMaskedLM) | {"bert": AutoModel}
    kind: Any = encoders.get(model_type, AutoModelForCausalLM)
    model = kind.from_config(config, **{"add_pooling_layer": False} if kind is AutoModel else {})
    with torch.no_grad():
        for parameter in model.parameters():  # far from 0 and 1, so that all of them count
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder, **options)
    if model_type == "bert":
        (folder / "vocab.txt").write_text("\n".join(BERT_WORDS) + "\n")
    else:
        _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """Write the vocabulary as a byte-level tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.BPE(numbers, [], ignore_merges=True))
    words = pre_tokenizers.Split(" ", "merged_with_next")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(WORDS[:3])
    tokenizer.save(str(folder / "tokenizer.json"))


def tiny_sentence_encoder(folder: Path) -> Path:
    """Write a BERT with a tokenizer.json of a few of BabyAI's words; return the folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = ["[UNK]", "go", "to", "the", "a", "red", "green", "blue", "purple", "yellow", "grey"]
    known += ["ball", "box", "key", "door"]
    numbers = {word: number for number, word in enumerate(known)}
    tokenizer = Tokenizer(models.WordLevel(numbers, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tiny_model_folder(folder, "bert")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_decoder(folder: Path) -> Path:
    """Write a tiny random Llama that reads texts byte by byte, and return its folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: number for number, sign in enumerate(signs)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(signs), **sizes, **heads))
    with torch.no_grad():
        for parameter in model.parameters():  # far from even odds
            parameter.mul_(4)
    model.save_pretrained(folder)
    return folder
