"""Mamba as a memory: a state of fixed size instead of keys and values."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.language import LanguageModel
from models.language.files import ModelFiles
from models.language.kv_cache import EpisodeMemory
from models.language.layers import DenseEmbeddings, below, frozen, linear
from utils.errors import UserError


class RecurrentMemory(EpisodeMemory):
    """The states of every layer, however long the episodes.

    Attributes:
        states: One for each layer.  L times [N, ...]
        after: The states behind the tokens that were read last, which `advance` keeps.
    """

    def __init__(self, states: list[Tensor], ages: Tensor) -> None:
        self.states = self.after = states
        self.ages = ages

    def advance(self, n_new: int, ages: Tensor) -> None:
        super().advance(n_new, ages)
        self.states = self.after

    def copy(self) -> Self:
        return type(self)([state.clone() for state in self.states], self.ages.clone())

    def state_dict(self) -> dict[str, Tensor]:
        return {"states": torch.stack(self.states), "ages": self.ages.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.foreseen = None
        self.states = [*state["states"].to(self.ages.device, copy=True)]
        self.ages = state["ages"].to(self.ages.device, copy=True)


class Mamba(LanguageModel):
    """A frozen Mamba (Gu and Dao 2023, arXiv:2312.00752).

    The state takes the place of the last `mem_len` tokens: it forgets by itself. With fewer layers
    than published the model's last normalisation follows the last one.
    """

    sizes = ("num_hidden_layers", "hidden_size", "vocab_size", None)
    supported: ClassVar = {"hidden_act": ["silu"]}
    has_attention: ClassVar[bool] = False

    def __init__(self, published: ModelFiles, mem_len: int, n_layer: int | None = None) -> None:
        super().__init__(published, mem_len)
        # The first checkpoints have "embedding".
        weights = {
            name.removeprefix("backbone.").replace("embedding.", "embeddings."): tensor
            for name, tensor in published.weights().items()
        }
        self.n_layer = self.config["num_hidden_layers"] if n_layer is None else n_layer
        self.embeddings = DenseEmbeddings(weights["embeddings.weight"])
        self.epsilon = self.config.get("layer_norm_epsilon", 1e-5)
        layers = [
            MambaLayer(below(weights, f"layers.{index}."), self.epsilon)
            for index in range(self.n_layer)
        ]
        self.layers, self.state_sizes = nn.ModuleList(layers), [each.state_size for each in layers]
        self.last_norm = frozen(weights["norm_f.weight"])
        self.eval()

    def initial_memory(self, n_envs: int, n_new: int = 1) -> RecurrentMemory:
        ages = torch.zeros(n_envs, dtype=torch.long, device=self.device)
        states = [torch.zeros(n_envs, *size, device=self.device) for size in self.state_sizes]
        return RecurrentMemory(states, ages)

    def attention(self, tokens: Tensor, memory: Any, is_first: Tensor) -> Tensor:
        raise UserError(f"language model '{self.name}' is recurrent and has no attention to show")

    @torch.no_grad()
    def hidden_states(self, tokens: Tensor, memory: Any, is_first: Tensor) -> Tensor:
        outputs, _ = self._run(tokens, memory, memory.current_ages(is_first))
        return torch.stack(outputs)

    def read_episode(self, tokens: Tensor) -> Tensor:
        memory = self.initial_memory(1)
        outputs, _ = self._run(tokens[None], memory, memory.ages)
        return outputs[-1][0]

    def _hidden(self, tokens: Tensor, memory: RecurrentMemory, ages: Tensor) -> Tensor:
        outputs, memory.after = self._run(tokens, memory, ages)
        return outputs[-1][:, -1]

    def _run(
        self, tokens: Tensor, memory: RecurrentMemory, ages: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return every layer's output [N, K, D] and its state behind the tokens."""
        is_first = (ages == 0)[:, None, None]
        x, outputs, states = tokens, [], []
        for layer, state in zip(self.layers, memory.states, strict=True):
            x, after = layer(x, state.masked_fill(is_first, 0.0))
            outputs.append(x)
            states.append(after)
        outputs[-1] = F.rms_norm(x, self.last_norm.shape, self.last_norm, self.epsilon)
        return outputs, states


class MambaLayer(nn.Module):
    """A short convolution over time, then a state h whose decay depends on the input u.

    h_t = exp(d_t A) h_{t-1} + d_t B_t u_t      y_t = C_t . h_t + D u_t

    Its state has the inputs that the convolution still needs, and h.  [N, E, k-1+S]
    """

    def __init__(self, weights: Mapping[str, Tensor], epsilon: float) -> None:
        super().__init__()
        mixer = below(weights, "mixer.")
        self.in_proj, self.x_proj = linear(mixer, "in_proj"), linear(mixer, "x_proj")
        self.dt_proj, self.out_proj = linear(mixer, "dt_proj"), linear(mixer, "out_proj")
        self.rank = mixer["dt_proj.weight"].shape[1]
        self.norm, self.epsilon = frozen(weights["norm.weight"]), epsilon
        self.kernel = frozen(mixer["conv1d.weight"][:, 0])  # [E, k]
        self.bias = frozen(mixer.get("conv1d.bias", torch.zeros(len(self.kernel))))
        self.decay = frozen(-mixer["A_log"].float().exp())  # A  [E, S]
        self.skip = frozen(mixer["D"])
        self.n_before = self.kernel.shape[1] - 1
        self.state_size = len(self.kernel), self.n_before + self.decay.shape[1]

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Read K tokens; return their outputs [N, K, D] and the state behind the last."""
        n_new, n_states = x.shape[1], self.decay.shape[1]
        normed = F.rms_norm(x, self.norm.shape, self.norm, self.epsilon)
        u, gate = self.in_proj(normed).chunk(2, dim=-1)  # [N, K, E] each
        before, h = state.split([self.n_before, n_states], dim=-1)
        inputs = torch.cat((before, u.mT), dim=-1)  # [N, E, k-1+K]
        windows = inputs.unfold(-1, self.n_before + 1, 1)  # [N, E, K, k]
        u = F.silu((windows * self.kernel[:, None]).sum(-1) + self.bias[:, None]).mT
        step, b, c = self.x_proj(u).split([self.rank, n_states, n_states], dim=-1)
        d = F.softplus(self.dt_proj(step))
        outputs = []
        for t in range(n_new):
            h = (d[:, t, :, None] * self.decay).exp() * h + (d * u)[:, t, :, None] * b[:, t, None]
            outputs.append((h @ c[:, t, :, None]).squeeze(-1))
        y = torch.stack(outputs, dim=1) + self.skip * u
        return x + self.out_proj(y * F.silu(gate)), torch.cat((inputs[..., n_new:], h), dim=-1)
