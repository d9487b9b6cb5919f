"""The kernels of a language model's layers, run by Triton's interpreter on the CPU."""

import os
import subprocess
import sys

import pytest

# Triton asks for its interpreter when it is imported, which other tests do.
PLAYED = """
import sys

import torch

from models.language import transformer
from models.language.load import load_language_model
from tests.token_streams import N_ENVS

transformer.can_fuse = lambda device: True
folder, mem_len = sys.argv[1], int(sys.argv[2])
model = load_language_model(folder, mem_len=mem_len)
for layer in model.modules():  # as on a GPU: plain weights
    if isinstance(layer, transformer.FrozenLinear) and layer.weight is None:
        layer.weight = torch.nn.Parameter(layer._packed.to_dense(), requires_grad=False)
memory = model.initial_memory(N_ENVS)
memory.open(1)
torch.manual_seed(0)
rings = torch.randn(memory.keys.shape), torch.randn(memory.keys.shape)
graph, worst = model.recorded(rings), 0.0
with torch.no_grad():
    for position, ages in ((0, [0, 0, 0]), (1, [9, 0, 2]), (mem_len - 1, [50, 60, 70])):
        given = torch.randn(N_ENVS, 1, model.width), torch.tensor(ages), torch.tensor(position)
        found = graph.work(*given)
        slots = [ring.clone() for ring in rings]
        expected = graph.plain(*given)
        worst = max(worst, (found - expected).abs().max() / expected.abs().max())
        pairs = zip(slots, rings, strict=True)
        worst = max([worst, *((one - other).abs().max() for one, other in pairs)])
print(f"{worst:.7f}")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mem_len"), [("transfo-xl", 70), ("bert", 6)])
def test_layers_as_kernels_read_and_write_what_plain_ones_do(name, mem_len, decoders):
    pytest.importorskip("triton", reason="no Triton on this system")
    command = [sys.executable, "-c", PLAYED, str(decoders[name]), str(mem_len)]
    settings = os.environ | {"TRITON_INTERPRET": "1"}
    ended = subprocess.run(command, env=settings, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < 1e-5
