"""A program that holds device memory: lines in, lines out. Standard library only.

    python -S holder.py BYTES

`call` allocates and frees a little, `launch NS` starts a kernel that takes so long (the fake driver
lets its caller go shortly before its end), `hold BYTES` takes more. `ready` comes first; each
answer is the number of the line, which is the program's state, and the driver's result.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_size_t, c_uint64, c_void_p


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def launch(cuda: ctypes.CDLL, num_ns: int) -> int:
    module, function, ns = c_void_p(), c_void_p(), c_uint64(num_ns)
    cuda.cuModuleLoadData(byref(module), b"")
    cuda.cuModuleGetFunction(byref(function), module, b"spin")
    parameters = (c_void_p * 1)(ctypes.addressof(ns))
    result: int = cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
    return result


def main(num_bytes: int) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = c_void_p(), c_uint64()
    results = [
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(byref(pointer), c_size_t(num_bytes)) if num_bytes else 0,
    ]
    say("ready" if not any(results) else f"failed {results}")
    for count, line in enumerate(sys.stdin, 1):
        word, *rest = line.split()
        if word == "call":
            small = c_uint64()
            result = cuda.cuMemAlloc_v2(byref(small), c_size_t(4096)) or cuda.cuMemFree_v2(small)
        elif word == "launch":
            result = launch(cuda, int(rest[0]))
        else:
            result = cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(int(rest[0])))
        say(f"{count} {result}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
