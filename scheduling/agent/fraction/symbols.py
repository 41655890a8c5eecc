"""Reads the lists of hooked symbols (`native/*.symbols`) and makes C of them.

One list a library gives its hooks, the rows by which `cuGetProcAddress` is answered, the names that
are exported, and what the tests walk through; nothing is written twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
PASSES_ON, REFUSES = "-", "!"
_NAME = re.compile(r"(\w+)\s*$")


@dataclass(frozen=True, slots=True)
class Hook:
    """One exported function.

    Attributes:
        kind: `gate`, `launch` or `plain`; see cuda.symbols.
        rule: The C function that decides, or one of the two signs.
        version: That introduced it, as in CUDA's headers; 0 if it is never asked by name.
        parameters: C declarations.
    """

    kind: str
    rule: str
    base: str
    symbol: str
    version: int
    parameters: tuple[str, ...]

    @property
    def is_per_thread(self) -> bool:
        """Whether it is the twin for per-thread default streams."""
        return self.symbol.endswith(("_ptsz", "_ptds"))

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(_NAME.findall(each)[0] for each in self.parameters)

    @property
    def declaration(self) -> str:
        """Of the parameters, as in a prototype."""
        return ", ".join(self.parameters) or "void"


def read(library: str) -> tuple[Hook, ...]:
    """All hooks of `cuda` or `nvml`."""
    lines = (NATIVE / f"{library}.symbols").read_text().splitlines()
    return tuple(
        hook for line in lines if line.strip() and not line.startswith("#") for hook in _line(line)
    )


def _line(line: str) -> Iterator[Hook]:
    kind, rule, base, variants, declared = (part.strip() for part in line.split("|"))
    parameters = () if declared == "void" else tuple(declared.split(", "))
    for variant in variants.split():
        version, _, suffix = variant.partition(":")
        yield Hook(kind, rule, base, base + suffix, int(version), parameters)


# Type of a result; "there is no such function"; "not supported".
_RESULTS = {
    "cuda": ("CUresult", "CUDA_ERROR_NOT_FOUND", "CUDA_ERROR_NOT_SUPPORTED"),
    "nvml": ("nvmlReturn_t", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_NOT_SUPPORTED"),
}


def rules_header(library: str) -> str:
    """Types and prototypes of the rules: the real function first, then the parameters."""
    result = _RESULTS[library][0]
    lines = [f"#ifndef ALLOT_RULES_{library}", f"#define ALLOT_RULES_{library}",
             f'#include "{library}_abi.h"']  # fmt: skip
    seen: dict[str, str] = {}
    for hook in read(library):
        if hook.rule in (PASSES_ON, REFUSES) or hook.rule in seen:
            if seen.get(hook.rule, hook.declaration) != hook.declaration:
                raise ValueError(f"{hook.rule}: two lists of parameters")
            continue
        seen[hook.rule] = hook.declaration
        first = f"{hook.rule}_fn real" + ("" if not hook.parameters else ", ")
        lines += [
            f"typedef {result} (*{hook.rule}_fn)({hook.declaration});",
            f"{result} {hook.rule}({first}{', '.join(hook.parameters)});",
        ]
    return "\n".join([*lines, "#endif", ""])


def hooks_source(library: str) -> str:
    """The exported functions, and the table of them."""
    result, missing, refused = _RESULTS[library]
    hooks = read(library)
    lines = [f'#include "rules_{library}.h"', '#include "hooks.h"', ""]
    for place, hook in enumerate(hooks):
        lines += _function(hook, place, result, (missing, refused), library)
    lines += [f"allot_hook allot_{library}_hooks[] = {{"]
    for hook in hooks:
        lines.append(
            f'    {{"{hook.base}", "{hook.symbol}", {hook.version}, {int(hook.is_per_thread)}, '
            f"(void *){hook.symbol}, 0, 0}},"
        )
    lines += ["};", f"const unsigned allot_{library}_num_hooks = {len(hooks)};", ""]
    return "\n".join(lines)


def _function(
    hook: Hook, place: int, result: str, errors: tuple[str, str], library: str
) -> list[str]:
    head = f"ALLOT_EXPORT {result} {hook.symbol}({hook.declaration})"
    if hook.rule == REFUSES:
        unused = [f"    (void){name};" for name in hook.arguments]
        return [head, "{", *unused, f"    return {errors[1]};", "}", ""]
    named = hook.rule if hook.rule != PASSES_ON else "real"
    arguments = ", ".join((["real"] if hook.rule != PASSES_ON else []) + list(hook.arguments))
    kind = f"{result} (*real)({hook.declaration})"
    body = [
        f"    {kind} = ({result} (*)({hook.declaration}))allot_real_{library}({place});",
        "    if (!real)",
        f"        return {errors[0]};",
    ]
    passed_on = f"        return real({', '.join(hook.arguments)});"
    if hook.rule != PASSES_ON or hook.kind != "plain":
        # The driver may call its own public names: what it does for us is counted once.
        body += ["    if (allot_is_inside())", passed_on]
    if hook.kind != "plain":
        body += ["    int held = allot_gate();", "    if (held)", "        return held;"]
    if hook.kind == "launch":
        streams = {"config": "config ? config->hStream : 0", "stream": "stream"}
        stream = next((streams[name] for name in hook.arguments if name in streams), "0")
        body.append(f"    allot_take_turn({stream});")
    if hook.rule == PASSES_ON:
        return [head, "{", *body, passed_on[4:], "}", ""]
    return [
        head, "{", *body, "    allot_enter();",
        f"    {result} outcome = {named}({arguments});",
        "    allot_leave();", "    return outcome;", "}", "",
    ]  # fmt: skip


def exports(library: str) -> str:
    """A linker's version script: the hooked names and nothing else."""
    names = "".join(f"    {hook.symbol};\n" for hook in read(library))
    return f"{{\n  global:\n{names}  local: *;\n}};\n"


FAKE_CUDA = Path(__file__).parent / "fake" / "cuda.symbols"


def fake_source() -> str:
    """The fake driver's table of functions, and what it does not implement itself.

    A per-thread twin is its ordinary function; the rest is "not supported". Both are weak, so that
    a definition in the fake's own sources replaces them. Each has another way in that is not
    exported, which a driver may hand out instead.
    """
    lines = [line for line in FAKE_CUDA.read_text().splitlines() if line and line[0] != "#"]
    hooks = (*read("cuda"), *(hook for line in lines for hook in _line(line)))
    out = ['#include "libcuda.h"', ""]
    for hook in hooks:
        out.append(f"FAKE_EXPORT __attribute__((weak)) CUresult {hook.symbol}({hook.declaration});")
    for hook in hooks:
        twin = hook.symbol.removesuffix("_ptsz").removesuffix("_ptds")
        unused = " ".join(f"(void){name};" for name in hook.arguments)
        body = f"{unused} return CUDA_ERROR_NOT_SUPPORTED;"
        if twin != hook.symbol:
            body = f"return {twin}({', '.join(hook.arguments)});"
        out.append(f"CUresult {hook.symbol}({hook.declaration}) {{ {body} }}")
        out.append(
            f"static CUresult hidden_{hook.symbol}({hook.declaration}) "
            f"{{ return {hook.symbol}({', '.join(hook.arguments)}); }}"
        )
    out.append("const fake_row fake_rows[] = {")
    out += [
        f'    {{"{hook.base}", "{hook.symbol}", {hook.version}, {int(hook.is_per_thread)}, '
        f"(void *){hook.symbol}, (void *)hidden_{hook.symbol}}},"
        for hook in hooks
    ]
    # From CUDA 12 on the plain name is answered with this one.
    out.append(
        '    {"cuGraphInstantiate", "cuGraphInstantiateWithFlags", 12000, 0, '
        "(void *)cuGraphInstantiateWithFlags, (void *)hidden_cuGraphInstantiateWithFlags},"
    )
    out += ["};", f"const unsigned fake_num_rows = {len(hooks) + 1};", ""]
    return "\n".join(out)
