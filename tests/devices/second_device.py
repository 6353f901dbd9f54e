"""A second device for tests: the CPU's memory and kernels under another device name, which refuses to mix with the CPU.

``load`` compiles ``second_device.cpp`` once for each version of torch and registers the device ``"second"``. It has to
come before the first backward pass of the process: torch starts its backward threads, one a device, only once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

NAME = "second"
SOURCE = Path(__file__).with_name("second_device.cpp")


def load(cache: Path) -> torch.device:
    """Register the device; ``cache`` keeps what was compiled."""
    torch.ops.load_library(compiled(cache))
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, device_module())
    return torch.device(NAME, 0)


def compiler() -> str | None:
    """The C++ compiler's path; none on systems other than Linux, whose flags are not known here."""
    return shutil.which(os.environ.get("CXX", "c++")) if sys.platform == "linux" else None


def compiled(cache: Path) -> Path:
    """The library, compiled unless the cache has it for this source and this torch."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = cache / f"second_device-{key}.so"
    with alone(cache):  # workers that start together would all compile
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                fresh = Path(folder) / library.name
                compile_to(fresh)
                os.replace(fresh, library)  # a run that is stopped leaves no half a file
    return library


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time, of all that use the folder; the system lets go when one ends, however it ends."""
    import fcntl  # absent on Windows, where there is no compiler either

    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compile_to(library: Path) -> None:
    """Run the compiler, without the build tools that `torch.utils.cpp_extension` asks for."""
    folder = Path(torch.__file__).parent
    abi = int(torch.compiled_with_cxx11_abi())
    flags = ["-O0", "-fPIC", "-shared", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{folder / 'include'}"]
    libraries = [f"-L{folder / 'lib'}", "-ltorch_cpu", "-lc10"]
    command = [str(compiler()), *flags, str(SOURCE), "-o", str(library), *libraries]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the second device does not compile:\n{' '.join(command)}\n{done.stderr}")


def device_module() -> types.ModuleType:
    """``torch.second``: what torch asks of the Python module of a device."""
    generator: torch.Generator = torch.ops.second_device.default_generator()
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = torch.ops.second_device.is_available
    module.is_initialized = lambda: True
    module._lazy_init = lambda: None
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.synchronize = lambda device=None: None
    module.default_generators = (generator,)
    module.manual_seed = generator.manual_seed
    module.manual_seed_all = generator.manual_seed
    module.get_rng_state = lambda device=NAME: generator.get_state()
    module.set_rng_state = lambda state, device=NAME: generator.set_state(state)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module


def waits() -> int:
    """How often the program has waited for the device: numbers read, and tensors copied to the CPU."""
    return torch.ops.second_device.waits()


@contextmanager
def no_waits() -> Iterator[None]:
    """Within this block an operator that makes the program wait for the device is an error, where it is called."""
    torch.ops.second_device.refuse_waits(True)
    try:
        yield
    finally:
        torch.ops.second_device.refuse_waits(False)


def set_available(yes: bool) -> None:
    """Whether `torch.accelerator.is_available`: only while a test uses the device."""
    torch.ops.second_device.set_available(yes)
