"""The settings of agents, encoders, memories and language models."""

# Apart from the code that reads them: a program shows its help and refuses a wrong setting without
# waiting for PyTorch.

from dataclasses import dataclass

from utils.settings import Config, Part, setting

DEFAULT_ENCODER = "all-MiniLM-L6-v2"
LANGUAGE_MODELS = (DEFAULT_ENCODER, "SmolLM2-135M-Instruct", "transfo-xl-wt103")


@dataclass(frozen=True)
class OffPolicyNetworkSettings(Part):
    title = "DQN, SAC and TD3: networks"

    observation_embedding: int = setting(
        "width of an embedded observation", low=1, high=16_384, default=64
    )
    action_embedding: int = setting(
        "width of the embedded last action; 0: it is no input", low=0, high=16_384, default=64
    )
    head_width: int = setting(
        "width of both hidden layers of a head", low=1, high=16_384, default=256
    )


@dataclass(frozen=True)
class ClipSettings(Config):
    title = "CLIP"

    clip_encoder: str = setting(
        "images to language: grid-clip, or of open_clip: ViT-B-16, RN50", default="grid-clip"
    )
    clip_pretrained: str = setting(
        "its weights: a tag of open_clip (openai, openai@REVISION), or a local file",
        safe=("openai",),
        default="openai",
    )


@dataclass(frozen=True)
class TextSettings(Part):
    title = "language model"

    text_reader: str = setting(
        "readers of texts: trained networks (observation), the language model (memory), or both",
        choices=("observation", "memory", "both"),
        default="observation",
    )
    text_tokens: int = setting(
        "tokens that a sentence becomes where the language model reads it",
        low=1,
        high=512,
        default=1,
    )


@dataclass(frozen=True)
class MemoryLengthSettings(Part):
    title = "memory length"

    mem_len: int = setting(
        "tokens a language model remembers, or steps a GPT", low=1, high=16_384, default=511
    )


@dataclass(frozen=True)
class LanguageModelSettings(MemoryLengthSettings, Config):
    title = "language model"

    language_model: str = setting(
        "frozen memory: all-MiniLM-L6-v2, SmolLM2-135M-Instruct, transfo-xl-wt103, hub name (a/b, "
        "a/b@REVISION), folder, GGUF file",
        safe=LANGUAGE_MODELS,
        default="all-MiniLM-L6-v2",
    )
    n_layer: int | None = setting(
        "keep the language model's first n layers; null keeps all", low=1, high=1000, default=None
    )
    frozen_dtype: str = setting(
        "type of the language model's weights and products",
        choices=("float32", "bfloat16"),
        default="float32",
    )


@dataclass(frozen=True)
class SequenceSettings(Part):
    """Of agents that PPO trains by whole sequences."""

    title, learners = "PPO", ("PPO",)

    sequences_per_batch: int = setting(
        "sequences per minibatch (agents with a trained memory)", low=1, high=2**24, default=16
    )


@dataclass(frozen=True)
class NetworkSettings(SequenceSettings):
    title = "trained memory"

    memory_width: int = setting("width of the memory", low=1, high=16_384, default=256)
    memory_layers: int = setting("layers of the memory", low=1, high=128, default=1)


@dataclass(frozen=True)
class HeadSettings(NetworkSettings):
    memory_heads: int = setting("heads of the memory", low=1, high=256, default=4)


@dataclass(frozen=True)
class GptSettings(HeadSettings, MemoryLengthSettings):
    title = "GPT and GTrXL"

    memory_dropout: float = setting("share of the numbers dropped", low=0, high=0.9, default=0.0)
    memory_positions: str = setting(
        "positional embeddings", choices=("sinusoidal", "learned"), default="sinusoidal"
    )
    memory_feature_scale: bool = setting(
        "features are multiplied by the root of memory_width before positions are added",
        default=False,
    )


@dataclass(frozen=True)
class ConvolutionSettings(HeadSettings):
    title = "mLSTM, Gated DeltaNet and Mamba-2"

    memory_convolution: int = setting(
        "steps of the causal convolution of a cell's inputs; 1: none", low=1, high=64, default=4
    )


@dataclass(frozen=True)
class FfmSettings(NetworkSettings):
    ffm_periods: str = setting(
        "FFM: periods of its traces in steps, between commas; inf: one that does not turn",
        default="1,342,683,1024",
    )


@dataclass(frozen=True)
class NormalizationSettings(Part):
    title = "encoders"

    normalize_observations: bool = setting(
        "numbers of observations are shifted and scaled to mean 0 and deviation 1, those of all "
        "steps so far; images, texts and one-hot numbers stay as they are",
        default=False,
    )


@dataclass(frozen=True)
class SentenceSettings(Part):
    title = "encoders"

    sentence_encoder: str = setting(
        "frozen BERT that reads texts of observations: all-MiniLM-L6-v2, hub name, folder",
        default=DEFAULT_ENCODER,
        safe=(DEFAULT_ENCODER,),
    )


@dataclass(frozen=True)
class EllmSettings(SentenceSettings, NormalizationSettings):
    title = "ELLM"

    frame_stack: int = setting(
        "frames it sees at once, the last ones of its episode", low=1, high=64, default=4
    )
    hidden_dim: int = setting("width of all its layers", low=1, high=16_384, default=512)
    text_encoder_init: str = setting(
        "weights that its sentence encoder reads with: pretrained; or orthogonal, random linear "
        "layers, as an accident made them in the published code",
        choices=("pretrained", "orthogonal"),
        default="pretrained",
    )


def _image_cache() -> int:
    return setting(
        "megabytes for features and language of images seen before",
        low=0,
        high=1_000_000,
        default=256,
    )


@dataclass(frozen=True)
class LanguageCacheSettings(Part):
    """Of frozen language models: what they read of an image never changes."""

    title = "encoders"

    observation_cache_mb: int = _image_cache()


@dataclass(frozen=True)
class PpoEncoderSettings(Part):
    """Of agents that PPO trains: an encoder stays as it is while a rollout is collected."""

    title, learners = "encoders", ("PPO",)

    observation_cache_mb: int = _image_cache()
    state_dependent_std: bool = setting(
        "the deviation of continuous actions depends on the observations (PPO; SAC's always does)",
        default=False,
    )


@dataclass(frozen=True)
class EncoderSettings(SentenceSettings, NormalizationSettings, PpoEncoderSettings):
    title = "encoders"

    last_action_input: bool = setting(
        "the last action is an input beside the observation (PPO; DQN, SAC and TD3 "
        "have action_embedding)",
        default=False,
    )
    last_reward_input: bool = setting(
        "the environment's last reward is an input beside the observation, not scaled or clipped",
        default=False,
    )


@dataclass(frozen=True)
class LanguageMemorySettings(
    LanguageModelSettings, TextSettings, EncoderSettings, LanguageCacheSettings
):
    whiten_memory: bool = setting(
        "whether the language model's hidden state is whitened for the heads, so that what is "
        "faint in it counts as much as what is strong",
        default=False,
    )
    readout_steps: int = setting(
        "steps, the present one among them, whose keys and values in the language model's first "
        "layer a trained query reads, beside the hidden state; 0: none, as published",
        low=0,
        high=16_384,
        default=0,
    )


@dataclass(frozen=True)
class HelmSettings(LanguageMemorySettings):
    title = "HELM"

    beta: float = setting(
        "inverse temperature of HELM's token retrieval", low=0, high=1e6, default=100.0
    )
    retrieval_channels: str = setting(
        "input of HELM's token retrieval for a pixel: the mean of its colours, as published; or "
        "each of them, where red, green and blue must be told apart",
        choices=("mean", "each"),
        default="mean",
    )


@dataclass(frozen=True)
class HelmV2Settings(ClipSettings, LanguageMemorySettings):
    """The settings of HELMv2."""


@dataclass(frozen=True)
class EmbeddingsSettings(ClipSettings, LanguageModelSettings):
    title = "SHELM"

    embeddings: str | None = setting(
        "file of prepare_embeddings.py; null: the one in data/ by its name",
        safe=(None,),
        default=None,
    )


@dataclass(frozen=True)
class ShelmSettings(EmbeddingsSettings, LanguageMemorySettings):
    title = "SHELM"

    topk: int = setting(
        "tokens that are retrieved and read at a step", low=1, high=16_384, default=1
    )


# What each agent reads beside the settings of every run; its class says so, too, for those that
# derive from it.
READS = {
    "CNN": (EncoderSettings,),
    "LSTM": (EncoderSettings, NetworkSettings),
    "GRU": (EncoderSettings, NetworkSettings),
    "MinGRU": (EncoderSettings, NetworkSettings),
    "LRU": (EncoderSettings, NetworkSettings),
    "FFM": (EncoderSettings, FfmSettings),
    "mLSTM": (EncoderSettings, ConvolutionSettings),
    "GatedDeltaNet": (EncoderSettings, ConvolutionSettings),
    "Mamba2": (EncoderSettings, ConvolutionSettings),
    "GPT": (EncoderSettings, GptSettings),
    "GTrXL": (EncoderSettings, GptSettings),
    "HELM": (HelmSettings,),
    "HELMv2": (HelmV2Settings,),
    "SHELM": (ShelmSettings,),
    "ELLM": (EllmSettings,),
}
