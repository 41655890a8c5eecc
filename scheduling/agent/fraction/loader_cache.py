"""The dynamic linker's cache, read, and written anew with libraries of ours in it.

In a workload's view a changed copy lies over /etc/ld.so.cache, so that `libcuda.so.1` is found by
everybody: with an empty environment, after `su`, by static programs. Only the format that glibc
has written since 2.2 ("glibc-ld.so.cache1.1") is known. Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cmp_to_key
from pathlib import Path

CACHE = Path("/etc/ld.so.cache")
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("=20sIIB3xI12x")
_ENTRY = struct.Struct("=iIIIQ")
# Little endian, as the format's flags say (2) or leave open (0).
_LITTLE_ENDIAN = 2


class CacheError(Exception):
    """The file is not what this module knows."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One library.

    Attributes:
        flags: Kind of machine and C library.
        is_ordinary: Whether it is for any processor; others are variants for better ones.
    """

    name: str
    path: str
    flags: int
    is_ordinary: bool


def read(path: Path = CACHE) -> list[Entry]:
    """All entries.

    Raises:
        CacheError: see there.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    # Older systems put the same contents in an older form before it.
    start = data.find(_MAGIC)
    if start < 0 or len(data) < start + _HEADER.size:
        raise CacheError(f"{path}: no {_MAGIC.decode()}")
    _, count, _, _, _ = _HEADER.unpack_from(data, start)
    entries = []
    try:
        for number in range(count):
            flags, key, value, _, hwcap = _ENTRY.unpack_from(
                data, start + _HEADER.size + number * _ENTRY.size
            )
            entries.append(
                Entry(_text(data, start + key), _text(data, start + value), flags, hwcap == 0)
            )
    except (struct.error, ValueError) as error:
        raise CacheError(f"{path}: cut short") from error
    return entries


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode(errors="surrogateescape")


def find(name: str, path: Path = CACHE) -> Path | None:
    """The file that a program of this machine's own kind gets by a library's name."""
    entries = read(path)
    flags = _own_flags(entries)
    for entry in entries:
        if entry.name == name and entry.flags == flags and entry.is_ordinary:
            return Path(entry.path)
    return None


def _own_flags(entries: list[Entry]) -> int:
    for entry in entries:
        if entry.name == "libc.so.6" and entry.is_ordinary and "32" not in entry.path:
            return entry.flags
    raise CacheError("libc.so.6 is not in it")


def with_libraries(libraries: Mapping[str, str], path: Path = CACHE) -> bytes:
    """The cache with these libraries (name to path) before any others of their names.

    Variants for better processors are left out: each has an ordinary one beside it.
    """
    entries = [entry for entry in read(path) if entry.is_ordinary]
    flags = _own_flags(entries)
    kept = [entry for entry in entries if entry.name not in libraries or entry.flags != flags]
    added = [Entry(name, place, flags, True) for name, place in libraries.items()]
    return _written([*kept, *added])


def _written(entries: list[Entry]) -> bytes:
    """Sorted as the linker searches: descending, digits by their number."""
    by_name = cmp_to_key(_compare)
    ordered = sorted(entries, key=lambda entry: by_name(entry.name), reverse=True)
    strings, offsets = bytearray(), {}
    start = _HEADER.size + len(ordered) * _ENTRY.size
    for entry in ordered:
        for text in (entry.name, entry.path):
            if text not in offsets:
                offsets[text] = start + len(strings)
                strings += text.encode(errors="surrogateescape") + b"\0"
    table = b"".join(
        _ENTRY.pack(entry.flags, offsets[entry.name], offsets[entry.path], 0, 0)
        for entry in ordered
    )
    head = _HEADER.pack(_MAGIC, len(ordered), len(strings), _LITTLE_ENDIAN, 0)
    return head + table + bytes(strings)


def _compare(one: str, two: str) -> int:
    """glibc's `_dl_cache_libcmp`: runs of digits compare as numbers, and are above the rest."""
    i = j = 0
    while i < len(one):
        a, b = one[i], two[j] if j < len(two) else ""
        if a.isdigit() and b.isdigit():
            end_i, end_j = _digits(one, i), _digits(two, j)
            difference = int(one[i:end_i]) - int(two[j:end_j])
            if difference:
                return difference
            i, j = end_i, end_j
        elif a.isdigit():
            return 1
        elif b.isdigit():
            return -1
        elif a != b:
            return ord(a) - (ord(b) if b else 0)
        else:
            i, j = i + 1, j + 1
    return -1 if j < len(two) else 0


def _digits(text: str, start: int) -> int:
    end = start
    while end < len(text) and text[end].isdigit():
        end += 1
    return end
