"""Checks that every exchange of 16 bytes compares with the value from which its new value was computed (inplace.P1): on
each path to it, each half of its target is loaded at most once, and as a whole. Given a plain load, a compiler may load
some of the values again. Reads the object code of the library, and of small updates that the installed compilers make
from the header."""
import collections
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

objdump, compiler, source, library = sys.argv[1], shlex.split(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4]

LEVELS = ("-O1", "-O2", "-O3")
SHAPES = """
#include <cmath>
#include "shm/slots/inplace_slot.hpp"
using namespace ps_shm::shm;
struct Add {
  float operator()(float value, float gradient) const { return value + 2.0F * gradient; }
};
struct Two {
  static constexpr std::size_t kFloats = 2;
  float momentum, rate;
  void operator()(float* x, float g) const { x[1] = momentum * x[1] + g, x[0] -= rate * x[1]; }
};
struct TwoFixed {
  static constexpr std::size_t kFloats = 2;
  void operator()(float* x, float g) const { x[1] = 0.5F * x[1] + g, x[0] -= 0.25F * x[1]; }
};
struct Four {
  static constexpr std::size_t kFloats = 4;
  float momentum, rate;
  void operator()(float* x, float g) const {
    x[1] = momentum * x[1] + g, x[2] = momentum * x[2] + g * g, x[3] += 1, x[0] -= rate * x[1] / std::sqrt(x[2]);
  }
};
void add(float* t, const float* g) { update_16_bytes(t, g, Add{}); }
void two(float* t, const float* g, float m, float r) { update_16_bytes(t, g, Two{m, r}); }
void two_fixed(float* t, const float* g) { update_16_bytes(t, g, TwoFixed{}); }
void four(float* t, const float* g, float m, float r) { update_16_bytes(t, g, Four{m, r}); }
void many(float* t, const float* g, std::size_t n, float m, float r) { update_exact(t, g, n, Two{m, r}); }
void one_of(float* t, float x, unsigned k) { update_some_of_16_bytes(t, [&](float* f) { f[k & 3] += x; }); }
void first_two(float* t, float x) { update_some_of_16_bytes(t, [&](float* f) { f[0] += x, f[1] += x; }); }
"""
# Examples that the check must report, whatever compilers make of the above. Each loads the halves first.
HALVES = "mov (%rdi),%rax; mov 0x8(%rdi),%rdx; "
EXCHANGE = "lock cmpxchg16b (%rdi); "
WRONG = {
    "a value is loaded again": ".Lagain: movss 0x4(%rdi),%xmm0; movq %xmm0,%rbx; " + EXCHANGE + "jne .Lagain",
    "a value is loaded by what computes": "mulss 0xc(%rdi),%xmm0; movq %xmm0,%rbx; " + EXCHANGE,
    "all are loaded once more": "movups (%rdi),%xmm0; movq %xmm0,%rbx; " + EXCHANGE,
    "a half is loaded twice": "mov (%rdi),%rbx; " + EXCHANGE,
    "a half is loaded twice on one way of two": "test %rcx,%rcx; je .Lon; mov 0x8(%rdi),%rcx; .Lon: " + EXCHANGE,
    "through a copy of the address": "movss 0x4(%rdi),%xmm0; mov %rdi,%r8; lock cmpxchg16b (%r8)",
    "at another distance": "movss 0x4(%rdi),%xmm0; add $0x10,%rdi; lock cmpxchg16b -0x10(%rdi)",
}
RIGHT = {
    "each half once": ".Lagain: movq %rax,%xmm0; addss (%rsi),%xmm0; movq %xmm0,%rbx; " + EXCHANGE + "jne .Lagain",
    "other places": "movss 0x10(%rdi),%xmm0; movss -0x4(%rdi),%xmm1; " + EXCHANGE,
    "the place before": "add $0x10,%rdi; " + HALVES + EXCHANGE,
    "stores and requests": "prefetchw (%rdi); lea 0x4(%rdi),%rcx; " + EXCHANGE + "movss %xmm0,0x4(%rdi)",
}

Instruction = collections.namedtuple("Instruction", "name operands target")
MEMORY = r"(?:%\w+:)?(-?0x[0-9a-f]+|)\(([^)]*)\)"
WHOLE = {"rax": "rax eax ax al ah", "rbx": "rbx ebx bx bl bh", "rcx": "rcx ecx cx cl ch", "rdx": "rdx edx dx dl dh",
         "rsi": "rsi esi si sil", "rdi": "rdi edi di dil", "rbp": "rbp ebp bp bpl", "rsp": "rsp esp sp spl"}
WHOLE = {part: name for name, parts in WHOLE.items() for part in parts.split()}
WHOLE |= {f"r{n}{suffix}": f"r{n}" for n in range(8, 16) for suffix in ("", "d", "w", "b")}
FAR = 256  # bytes: at a greater distance a loop has reached other elements
OF_THE_CALLER = {"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"}  # clobbered by a call
NO_LOAD = r"lea|prefetch|nop|clflush|endbr"


def functions_of(path):
    """Yields (name, {address: Instruction in order}) for each function."""
    text = subprocess.run([objdump, "-dC", "--no-show-raw-insn", path], check=True, capture_output=True,
                          text=True).stdout
    for part in re.split(r"\n(?=[0-9a-f]+ <.*>:\n)", text):
        head = re.match(r"[0-9a-f]+ <(.*)>:\n", part)
        if head and "cmpxchg16b" in part:
            code = {}
            for address, line in re.findall(r"^\s+([0-9a-f]+):\t(.*)$", part, re.MULTILINE):
                line = re.sub(r"^((lock|notrack|bnd|cs|ds|data16|rep\w*) )+", "", re.sub(r"\s*[<#].*", "", line))
                name, _, rest = line.partition(" ")
                operands = re.findall(r"[^,(]*\([^)]*\)|[^,]+", rest.replace(" ", ""))
                is_jump = name.startswith("j") and len(operands) == 1 and re.fullmatch(r"[0-9a-f]+", operands[0])
                code[int(address, 16)] = Instruction(name, operands, int(operands[0], 16) if is_jump else None)
            yield head[1], code


def befores(code):
    """address -> the addresses from which control can reach it"""
    found, previous = collections.defaultdict(set), None
    for address, one in code.items():
        if previous is not None and not re.match(r"jmp|ret|ud2|hlt", code[previous].name):
            found[address].add(previous)
        if one.target in code:
            found[one.target].add(address)
        previous = address
    return found


def place_of(operand):
    """(base, rest, distance) of a memory operand, or None."""
    match = re.fullmatch(MEMORY, operand)
    if not match or not re.match(r"%r(?!ip)", match[2]):
        return None
    base, _, rest = match[2].partition(",")
    return WHOLE[base[1:]], rest, int(match[1] or "0", 16)


def written(one):
    """The registers that an instruction may change."""
    if one.name.startswith("call"):
        return OF_THE_CALLER
    if one.name.startswith(("cmpxchg", "mul", "div", "idiv")) and not one.name.endswith(("ss", "ps", "sd", "pd")):
        return {"rax", "rdx"}
    if re.match(r"(cmp|test|bt|comis|ucomis|push)(?!xchg)", one.name) or not one.operands:
        return set()
    names = one.operands if one.name.startswith(("xchg", "xadd")) else one.operands[-1:]
    return {WHOLE[name[1:]] for name in names if name[1:] in WHOLE}


def bytes_of(one):
    """The number of bytes that an instruction loads."""
    registers = [name[1:] for name in one.operands if name.startswith("%")]
    general = [name for name in registers if name in WHOLE]
    if general:
        return 8 if general[0] == WHOLE[general[0]] else 4
    wide = [name for name in registers if name[0] in "yz"]
    if wide:
        return 32 if wide[0][0] == "y" else 64
    if re.search(r"(sd|[hl]ps|2pd|[^p]q)$", one.name):
        return 8
    return 4 if re.search(r"(ss|[^p]d|l)$", one.name) else 16


def load(one, base, rest, distance):
    """0 or 8: the instruction copies that half of the target; -1: it loads another part of it; otherwise None."""
    if re.match(NO_LOAD, one.name):
        return None
    for number, operand in enumerate(one.operands):
        place = place_of(operand)
        if not place or place[:2] != (base, rest):
            continue
        is_last = number == len(one.operands) - 1
        if is_last and number > 0 and re.match(r"v?mov|set|pop|v?p?extr", one.name):
            return None  # a store
        first, size = place[2] - distance, bytes_of(one)
        if first + size > 0 and first < 16:
            return first if one.name in ("mov", "movq") and size == 8 and first in (0, 8) and not is_last else -1
    return None


def moved_back(one, base, distance):
    """(base, distance) of the same place before the instruction, or None if it cannot be traced."""
    if base not in written(one):
        return base, distance
    operand = one.operands[0]
    if one.name == "mov" and operand[1:] in WHOLE:
        return WHOLE[operand[1:]], distance
    if one.name == "lea" and place_of(operand) and not place_of(operand)[1]:
        return place_of(operand)[0], distance + place_of(operand)[2]
    if one.name in ("add", "sub") and operand.startswith("$"):
        return base, distance + int(operand[1:], 16) * (1 if one.name == "add" else -1)
    return None


def fault_before(code, before, exchange):
    """The violation on some path to the exchange, or None."""
    base, rest, begin = place_of(code[exchange].operands[0])
    ways, seen = [(address, base, begin, frozenset()) for address in before[exchange]], set()
    while ways:
        way = address, base, distance, halves = ways.pop()
        if way in seen:
            continue
        seen.add(way)
        one = code[address]
        if one.name == "cmpxchg16b" and place_of(one.operands[0]) == (base, rest, distance):
            if halves:
                return f"{address:x}: loads a half again after a lost exchange"
            continue  # a failed exchange returns the value that it found
        half = load(one, base, rest, distance)
        if half is not None:
            if half < 0 or half in halves:
                return f"{address:x}: {one.name} {','.join(one.operands)} loads its target otherwise, or again"
            halves |= {half}
        moved = moved_back(one, base, distance)
        if moved and abs(moved[1] - begin) < FAR and not any(f"%{name}" in rest for name in written(one)):
            ways += [(earlier, *moved, halves) for earlier in before[address]]
    return None


def check(path):
    """(exchanges, violations) of an object file."""
    exchanges, faults = 0, []
    for name, code in functions_of(path):
        before = befores(code)
        for address, one in code.items():
            if one.name == "cmpxchg16b":
                exchanges += 1
                fault = fault_before(code, before, address)
                faults += [f"{name[:100]}, exchange at {address:x}: {fault}"] if fault else []
    return exchanges, faults


def compiled(folder, command, text, suffix):
    code, result = folder / ("code" + suffix), folder / "code.o"
    code.write_text(text)
    subprocess.run([*command, "-c", code, "-o", result], check=True)
    return result


def main():
    faults, exchanges, objects = [], 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for is_wrong, cases in ((True, WRONG), (False, RIGHT)):
            for case, text in cases.items():
                _, found = check(compiled(folder, compiler, f"f: {HALVES}{text}\nret\n", ".s"))
                if bool(found) != is_wrong:
                    faults.append(f"the check itself: {case}: {found or 'nothing found'}")
        clang = shutil.which("clang++")
        for command in [compiler] + ([[clang]] if clang else []):
            for level in LEVELS:
                flags = ["-std=c++20", level, "-ffp-contract=off", f"-I{source}/include", f"-I{source}/src"]
                count, found = check(compiled(folder, command + flags, SHAPES, ".cpp"))
                exchanges, objects = exchanges + count, objects + 1
                faults += [f"{command[-1]} {level}: {fault}" for fault in found]
                if count < 7:
                    faults.append(f"{command[-1]} {level}: {count} exchanges of 7 found")
    count, found = check(library)
    exchanges, objects = exchanges + count, objects + 1
    faults += found + ([] if count else [f"{library}: no exchange found"])
    print("\n".join(faults) or f"{exchanges} exchanges in {objects} objects compare with what they were computed from")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
