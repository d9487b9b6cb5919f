"""The tensors of a TorchScript archive, read without running the programs in it.

An archive of `torch.jit.save`, which is how OpenAI publishes CLIP, is a zip file of a pickle with
the module's attributes, the tensors' bytes, and code. `torch.jit.load` runs that code. Here the
pickle's operations are taken one by one, only those TorchScript writes: they make plain values,
tensors and modules that hold attributes. No class is looked up, and nothing a file names is called.
"""

import math
import pickletools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

LARGEST_PICKLE = 2**24  # bytes; that of CLIP's largest model has less than a tenth
LONGEST_NAME = 1000
MOST_ATTRIBUTES = 100_000
DTYPES = {
    "torch DoubleStorage": torch.float64,
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
}


def is_script_archive(path: Path) -> bool:
    """Return whether a file is of TorchScript's format."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def archived_tensors(path: Path) -> dict[str, Tensor]:
    """Return every tensor that is an attribute of a module, such as "visual.conv1.weight".

    These are the parameters and buffers, and what else a module holds as a tensor.

    Raises:
        Exception: of about ten kinds, where the archive is damaged or not of this format.
    """
    with zipfile.ZipFile(path) as file:
        archive = _Archive(file, path.stat().st_size)
        return _named_tensors(_Machine(archive.storage).run(archive.pickle()))


class _Global(NamedTuple):
    """The name of a class or function, which stays a name."""

    name: str


class _Module:
    """A module without its code."""

    def __init__(self) -> None:
        self.attributes: dict[Any, Any] = {}


class _Archive:
    """The zip file: its pickle, and its storages, which together are no larger than itself."""

    def __init__(self, file: zipfile.ZipFile, size: int) -> None:
        self._file = file
        self._size_left = size
        (constants,) = (n for n in file.namelist() if n.endswith("/constants.pkl"))
        self._folder = constants.removesuffix("constants.pkl")
        self._storages: dict[tuple[Any, ...], Tensor] = {}

    def pickle(self) -> bytes:
        """Return the pickle of the module."""
        order = f"{self._folder}byteorder"
        if order in self._file.namelist() and self._read(order) != b"little":
            raise ValueError("its numbers are not stored in little-endian order")
        name = f"{self._folder}data.pkl"
        if self._file.getinfo(name).file_size > LARGEST_PICKLE:
            raise ValueError(f"data.pkl is larger than {LARGEST_PICKLE} bytes")
        return self._read(name)

    def storage(self, kind: str, key: str, n_elements: int) -> Tensor:
        """Return the numbers stored under a key.  [n_elements]"""
        if (kind, key) not in self._storages:
            dtype = DTYPES[kind]
            content = self._read(f"{self._folder}data/{key}")
            empty = torch.empty(0, dtype=dtype)
            self._storages[kind, key] = (
                torch.frombuffer(bytearray(content), dtype=dtype) if content else empty
            )
        if len(self._storages[kind, key]) != n_elements:
            raise ValueError(f"data/{key} has not the size that data.pkl says")
        return self._storages[kind, key]

    def _read(self, name: str) -> bytes:
        """Return a member; TorchScript compresses none, so a small file cannot become a large."""
        member = self._file.getinfo(name)
        self._size_left -= member.file_size
        if member.compress_type != zipfile.ZIP_STORED or self._size_left < 0:
            raise ValueError("its members are compressed or overlap")
        return self._file.read(member)


class _Machine:
    """Carries out the operations of a pickle that TorchScript has written.

    Args:
        storage: Returns the numbers [n] of a kind such as "torch HalfStorage" under a key.
    """

    def __init__(self, storage: Callable[[str, str, int], Tensor]) -> None:
        self._storage = storage
        self._stack: list[Any] = []
        self._below_marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self, pickle: bytes) -> Any:
        """Return what the pickle describes."""
        for operation, argument, _ in pickletools.genops(pickle):
            name = operation.name
            if name in LITERALS:
                self._stack.append(LITERALS[name](argument))
            elif name in OPERATIONS:
                OPERATIONS[name](self, argument)
            elif name not in ("PROTO", "STOP"):
                raise ValueError(f"TorchScript writes no operation {name}")
        return self._stack.pop()

    def mark(self, _: None) -> None:
        """Begin a list of values that a later operation takes together."""
        self._below_marks.append(self._stack)
        self._stack = []

    def tuple_since_mark(self, _: None) -> None:
        """Make a tuple of what came since the mark."""
        values = tuple(self._since_mark())
        self._stack.append(values)

    def tuple_of(self, n_values: int) -> None:
        """Make a tuple of the last values."""
        values = [self._stack.pop() for _ in range(n_values)]
        self._stack.append(tuple(reversed(values)))

    def append(self, _: None) -> None:
        """Add the last value to the list below it."""
        value = self._stack.pop()
        _checked(self._stack[-1], list).append(value)

    def extend(self, _: None) -> None:
        """Add what came since the mark to the list below it."""
        values = self._since_mark()
        _checked(self._stack[-1], list).extend(values)

    def set_items(self, _: None) -> None:
        """Put the keys and values since the mark into the dictionary below it."""
        values = self._since_mark()
        into = _checked(self._stack[-1], dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            into[_checked(key, str, int, float)] = value  # others may be nested without end

    def set_item(self, _: None) -> None:
        """Put the last two values as key and value into the dictionary below them."""
        value, key = self._stack.pop(), self._stack.pop()
        _checked(self._stack[-1], dict)[_checked(key, str, int, float)] = value

    def remember(self, number: int) -> None:
        """Keep the last value under a number."""
        self._memo[number] = self._stack[-1]

    def recall(self, number: int) -> None:
        """Take a value that was kept."""
        self._stack.append(self._memo[number])

    def new_module(self, _: None) -> None:
        """Make a module, whatever its class, which is code of the archive."""
        arguments, kind = self._stack.pop(), _checked(self._stack.pop(), _Global)
        if arguments != () or not kind.name.startswith("__torch__"):
            raise ValueError(f"{kind.name[:LONGEST_NAME]} is no module of the archive")
        self._stack.append(_Module())

    def set_attributes(self, _: None) -> None:
        """Give a module its attributes."""
        attributes = self._stack.pop()
        if not isinstance(attributes, dict):
            raise ValueError("it has a module that only code of its own could restore")
        _checked(self._stack[-1], _Module).attributes.update(attributes)

    def call(self, _: None) -> None:
        """Do what the few functions do that TorchScript names."""
        arguments = _checked(self._stack.pop(), tuple)
        function = _checked(self._stack.pop(), _Global).name
        if function == "torch._utils _rebuild_tensor_v2":
            self._stack.append(_strided(*arguments[:4]))
        elif function == "collections OrderedDict" and arguments == ():
            self._stack.append({})
        elif function.startswith("torch.jit._pickle "):  # lists and dictionaries with their types
            self._stack.append(arguments[0])
        else:
            raise ValueError(f"TorchScript writes no call of {function[:LONGEST_NAME]}")

    def load_storage(self, _: None) -> None:
        """Take the numbers that ("storage", kind, key, device, number of elements) names."""
        word, kind, key, _device, n_elements = _checked(self._stack.pop(), tuple)
        if _checked(word, str) != "storage":
            raise ValueError("a reference to something other than a storage")
        names = _checked(kind, _Global).name, _checked(key, str)
        self._stack.append(self._storage(*names, _checked(n_elements, int)))

    def _since_mark(self) -> list[Any]:
        values, self._stack = self._stack, self._below_marks.pop()
        return values


LITERALS: dict[str, Callable[[Any], Any]] = {
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "GLOBAL": _Global,
}
LITERALS |= dict.fromkeys(
    ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
    lambda value: value,
)
OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple_since_mark,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.extend,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "BINPUT": _Machine.remember,
    "LONG_BINPUT": _Machine.remember,
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
    "NEWOBJ": _Machine.new_module,
    "BUILD": _Machine.set_attributes,
    "REDUCE": _Machine.call,
    "BINPERSID": _Machine.load_storage,
}


def _checked(value: Any, *kinds: type) -> Any:
    """Return the value, or raise TypeError where it is of none of the kinds."""
    if type(value) not in kinds:
        expected = " or ".join(kind.__name__.strip("_") for kind in kinds)
        raise TypeError(f"a {type(value).__name__.strip('_')} stands where a {expected} belongs")
    return value


def _strided(storage: Any, offset: Any, sizes: Any, strides: Any) -> Tensor:
    """Return the view of a storage [n] that begins at an offset, [*sizes]."""
    for number in (offset, *_checked(sizes, tuple), *_checked(strides, tuple)):
        if _checked(number, int) < 0:
            raise ValueError("a tensor has a negative size")
    steps = (max(size - 1, 0) * stride for size, stride in zip(sizes, strides, strict=True))
    if math.prod(sizes) and offset + sum(steps) >= len(_checked(storage, Tensor)):
        raise ValueError("a tensor is larger than its storage")
    return torch.as_strided(storage, sizes, strides, offset)


def _named_tensors(root: Any) -> dict[str, Tensor]:
    """Return the tensors of a module and those in it by their names, parts joined by dots."""
    tensors: dict[str, Tensor] = {}
    n_attributes = 0
    left = [("", _checked(root, _Module))]
    while left:
        prefix, module = left.pop()
        n_attributes += len(module.attributes)
        # Modules in a circle, or one in very many places, would have names without end.
        if len(prefix) > LONGEST_NAME or n_attributes > MOST_ATTRIBUTES:
            raise ValueError("its modules are nested too deeply, or too many")
        for name, value in module.attributes.items():
            if isinstance(value, _Module):
                left.append((f"{prefix}{name}.", value))
            elif isinstance(value, Tensor):
                tensors[f"{prefix}{name}"] = value
    return tensors
