import pickle
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import main as main_program
from models import script_archive
from models.script_archive import archived_tensors, is_script_archive
from tests.tiny_clip import tiny_settings

TRACE = "code_was_run"


class Parts(nn.Module):
    """Has all that a module of TorchScript may hold."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2).half()
        self.norm = nn.BatchNorm2d(4)
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16)])
        self.tied = self.layers[0]
        self.register_buffer("size", torch.tensor(77))
        self.register_buffer("tail", torch.arange(12.0).view(3, 4)[1:].T)
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.names, self.numbers, self.table = ["a", "b"], [1, 2], {"a": 0.5}
        self.large, self.text, self.missing = 2**40, "hello", None

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.conv(images).float())


class Intruder(nn.Module):
    """Writes a file where it is loaded by `torch.jit.load`."""

    def forward(self, images: Tensor) -> Tensor:
        return images

    @torch.jit.export
    def __getstate__(self) -> tuple[Tensor, bool]:
        return torch.zeros(3), self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[Tensor, bool]):
        written = torch.from_file("code_was_run", shared=True, size=1).fill_(1)
        self.training = state[1] and bool(written.sum() > 0)


@pytest.fixture(autouse=True)
def _without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def scripted(module, path):
    torch.jit.script(module).save(str(path))
    return path


def handmade(path, members):
    """Write an archive of these members; the pickle may be a value."""
    members = {"constants.pkl": b"", **members}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"it/{name}", content)
    return path


def picklish(*operations):
    return b"\x80\x02" + b"".join(operations) + b"."


def text(word):
    return b"X" + len(word).to_bytes(4, "little") + word.encode()


def module(*attributes):
    return b"c__torch__\nM\n)\x81}(" + b"".join(attributes) + b"ub"


def storage(n_elements, key="0", kind="FloatStorage"):
    parts = [text("storage"), f"ctorch\n{kind}\n".encode(), text(key), text("cpu"), n_elements]
    return b"(" + b"".join(parts) + b"tQ"


def tensor(stored, offset, sizes, strides):
    build = b"ctorch._utils\n_rebuild_tensor_v2\n("
    return build + stored + offset + sizes + strides + b"\x89ccollections\nOrderedDict\n)RtR"


def number(value):
    return b"J" + value.to_bytes(4, "little", signed=True)


def numbers(*values):
    return b"(" + b"".join(map(number, values)) + b"t"


THREE = {"data/0": bytes(12)}
ONE_TENSOR = tensor(storage(number(3)), number(1), numbers(2), numbers(1))


def test_the_tensors_are_those_that_torch_would_load(tmp_path):
    path = scripted(Parts(), tmp_path / "parts.pt")
    expected = torch.jit.load(str(path)).state_dict()
    found = archived_tensors(path)
    assert is_script_archive(path)
    assert found.keys() == expected.keys()
    assert {"conv.weight", "layers.1.bias", "tied.weight", "size", "nothing"} <= found.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert torch.equal(found[name], values)


def test_the_tensors_of_a_traced_module_are_read_too(tmp_path):
    torch.jit.trace(nn.Sequential(nn.Linear(2, 2)), torch.zeros(1, 2)).save(str(tmp_path / "t.pt"))
    assert archived_tensors(tmp_path / "t.pt").keys() == {"0.weight", "0.bias"}


def test_code_that_torch_would_run_is_not_run(in_empty_folder):
    path = scripted(nn.Sequential(Intruder()), in_empty_folder / "intruder.pt")
    Path(TRACE).unlink(missing_ok=True)
    with pytest.raises(ValueError, match="only code of its own could restore"):
        archived_tensors(path)
    assert not Path(TRACE).exists()
    torch.jit.load(str(path))
    assert Path(TRACE).exists()


@pytest.mark.parametrize("model", ["HELMv2", "SHELM"])
def test_a_program_takes_such_a_file_for_no_weights_and_leaves_nothing(
    model, in_empty_folder, capsys
):
    weights = scripted(Intruder(), in_empty_folder / "intruder.pt")
    chosen = tiny_settings(model) | {"model": model, "env": "RandomMaze-v0", "device": "cpu"}
    chosen["clip_pretrained"] = str(weights)
    capsys.readouterr()
    assert main_program.main([f"--var={key}={value}" for key, value in chosen.items()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{weights}: these are not the weights of tiny-vit")
    assert list(in_empty_folder.iterdir()) == [weights]


def test_a_tensor_is_a_view_of_its_storage(tmp_path):
    stored = torch.arange(3.0).numpy().tobytes()
    content = picklish(module(text("w"), ONE_TENSOR))
    path = handmade(tmp_path / "a.pt", {"data.pkl": content, "data/0": stored})
    assert archived_tensors(path)["w"].tolist() == [1, 2]


LOOP = b"c__torch__\nM\n)\x81q\x00}(" + text("again") + b"h\x00ub"


def doubling(depth):
    """Return modules each of which holds the one before twice, which makes 2^depth names."""
    content = module(text("w"), ONE_TENSOR) + b"q\x01"
    for _ in range(depth):
        content += module(text("a"), b"h\x01", text("b"), b"h\x01") + b"q\x01"
    return content


HOSTILE = {
    "a function of the system": b"cposix\nsystem\n" + text("touch code_was_run") + b"\x85R",
    "a class of Python": b"cbuiltins\nobject\n)\x81",
    "arguments for a class": b"c__torch__\nM\nK\x01\x85\x81",
    "no module": b"K\x01",
    "nothing": b"",
    "a function of torch": b"ctorch\nload\n" + text("x") + b"\x85R",
    "a tensor of a file": b"ctorch\nfrom_file\n" + text("x") + b"\x85R",
    "an operation TorchScript lacks": b"cposix\nsystem\n" + text("x") + b"\x85\x93",
    "an instance of Python": b"(iposix\nsystem\n",
    "a function as text": text("torch._utils _rebuild_tensor_v2") + b")R",
    "attributes of a number": b"K\x01}b",
    "a state that is no dictionary": b"c__torch__\nM\n)\x81K\x01b",
    "a key that is a tuple": b"}" + b")" + b"\x85" * 100_000 + b"K\x01s",
    "an odd number of keys": b"}(" + text("a") + b"u",
    "more marks than values": b"t",
    "a value that was never kept": b"h\x07",
    "a module in itself": LOOP,
    "names without end": doubling(60),
    "a long name": module(text("n" * 5000), module()),
    "a storage that is not there": module(
        text("w"), tensor(storage(number(3), "9"), number(0), numbers(3), numbers(1))
    ),
    "a storage elsewhere": module(
        text("w"), tensor(storage(number(3), "../data/0"), number(0), numbers(3), numbers(1))
    ),
    "a storage of another kind": module(
        text("w"),
        tensor(storage(number(3), kind="ObjectStorage"), number(0), numbers(3), numbers(1)),
    ),
    "fewer numbers than there are": module(
        text("w"), tensor(storage(number(2)), number(0), numbers(2), numbers(1))
    ),
    "text for a number": module(
        text("w"), tensor(storage(text("3")), number(0), numbers(3), numbers(1))
    ),
    "a tensor beyond its storage": module(
        text("w"), tensor(storage(number(3)), number(2), numbers(2), numbers(1))
    ),
    "a tensor before its storage": module(
        text("w"), tensor(storage(number(3)), number(-1), numbers(2), numbers(1))
    ),
    "a stride backwards": module(
        text("w"), tensor(storage(number(3)), number(2), numbers(2), numbers(-1))
    ),
    "sizes and strides apart": module(
        text("w"), tensor(storage(number(3)), number(0), numbers(2, 1), numbers(1))
    ),
    "a tensor without storage": module(text("w"), tensor(b"N", number(0), numbers(1), numbers(1))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused(name, in_empty_folder):
    content = picklish(HOSTILE[name])
    path = handmade(in_empty_folder / "a.pt", {"data.pkl": content, **THREE})
    with pytest.raises(Exception):  # noqa: B017, PT011 (the kind does not matter)
        archived_tensors(path)
    assert list(in_empty_folder.iterdir()) == [path]


@pytest.mark.parametrize("doubled", ["data.pkl", "data/0"])
def test_a_small_file_cannot_become_a_large_one(doubled, tmp_path):
    content = {"data.pkl": picklish(module(text("w"), ONE_TENSOR)), **THREE}
    path = handmade(tmp_path / "a.pt", content)
    assert archived_tensors(path).keys() == {"w"}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("it/constants.pkl", b"")
        for name, data in content.items():
            kind = zipfile.ZIP_DEFLATED if name == doubled else zipfile.ZIP_STORED
            archive.writestr(f"it/{name}", data, kind)
    with pytest.raises(ValueError, match="compressed or overlap"):
        archived_tensors(path)


def test_a_pickle_of_any_length_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(script_archive, "LARGEST_PICKLE", 10)
    path = handmade(tmp_path / "a.pt", {"data.pkl": picklish(module())})
    with pytest.raises(ValueError, match=r"data\.pkl is larger than 10 bytes"):
        archived_tensors(path)


def test_numbers_in_another_order_are_refused(tmp_path):
    content = {"data.pkl": picklish(module()), "byteorder": b"big"}
    with pytest.raises(ValueError, match="little-endian"):
        archived_tensors(handmade(tmp_path / "a.pt", content))


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_a_damaged_pickle_is_read_or_refused(data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    good = bytearray(picklish(module(text("w"), ONE_TENSOR)))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    path = handmade(folder / "a.pt", {"data.pkl": bytes(good), **THREE})
    try:
        found = archived_tensors(path)
    except Exception:
        return
    assert all(isinstance(value, Tensor) for value in found.values())


def test_a_file_of_torch_save_is_no_such_archive(tmp_path):
    torch.save({"w": torch.zeros(3)}, tmp_path / "saved.pt")
    (tmp_path / "text.pt").write_bytes(pickle.dumps("hello"))
    assert not is_script_archive(tmp_path / "saved.pt")
    assert not is_script_archive(tmp_path / "text.pt")
