"""Small language models in the published layout, for any test that needs one."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

GOLDEN = Path(__file__).parent / "golden"
TRANSFORMER_XL = GOLDEN / "transfo_xl_k1"
WORDS = ["[PAD]", "[UNK]", *(f"word{index}" for index in range(28))]


def tiny_bert_folder(folder: Path, n_layer: int = 2, n_positions: int = 12) -> Path:
    """Write a random BERT of width 24 with 3 heads into the folder and return it."""
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": 24,
        "num_attention_heads": 3,
        "num_hidden_layers": n_layer,
        "intermediate_size": 40,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": n_positions,
        "type_vocab_size": 2,
        "vocab_size": len(WORDS),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    save_file(_bert_weights(n_layer, n_positions), folder / "model.safetensors")
    return folder


def tiny_sentence_encoder(folder: Path) -> Path:
    """Write the same BERT with a tokenizer.json of a few of BabyAI's words; return the folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = ["[UNK]", "go", "to", "the", "a", "red", "green", "blue", "purple", "yellow", "grey"]
    known += ["ball", "box", "key", "door"]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(known)}, "[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tiny_bert_folder(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _bert_weights(n_layer: int, n_positions: int) -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS), 24),
        "embeddings.position_embeddings.weight": (n_positions, 24),
        "embeddings.token_type_embeddings.weight": (2, 24),
    }
    linears: dict[str, tuple[int, ...]] = {
        "attention.self.query": (24, 24),
        "attention.self.key": (24, 24),
        "attention.self.value": (24, 24),
        "attention.output.dense": (24, 24),
        "intermediate.dense": (40, 24),
        "output.dense": (24, 40),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(n_layer):
        prefix = f"encoder.layer.{layer}."
        shapes |= {f"{prefix}{name}.weight": shape for name, shape in linears.items()}
        shapes |= {f"{prefix}{name}.bias": shape[:1] for name, shape in linears.items()}
        norms += [f"{prefix}attention.output.LayerNorm", f"{prefix}output.LayerNorm"]
    generator = torch.Generator().manual_seed(5)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()
    }
    for name in norms:
        weights[f"{name}.weight"] = 1 + 0.1 * torch.randn(24, generator=generator)
        weights[f"{name}.bias"] = 0.1 * torch.randn(24, generator=generator)
    return weights
