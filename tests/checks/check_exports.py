"""The shared library exports the declarations of include/ps_shm, and no internals; it does not depend on cuBLAS."""
import pathlib
import re
import subprocess
import sys

source, library = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])

# The symbols that a program links: functions of ps itself and of its public classes; of the errors, those that catching
# them needs, and of hooks, those that deriving from them needs.
OF_TYPES = r"(typeinfo|typeinfo name|vtable) for ps_shm::(Error|Interrupted|JobFinished|Timeout|PublisherGone|Hook)$"
HIDDEN = r"ps_shm::[a-z_]+::|::(Impl|State|Pull|Push)\b"

headers = {path.name: path.read_text() for path in sorted((source / "include" / "ps_shm").glob("*.hpp"))}
public = "\n".join(headers.values())
declared = set(re.findall(r"\b(\w+)\(", public)) | set(re.findall(r"\b(operator\S+?)\(", public))
constants = set(re.findall(r"^inline constexpr [\w:]+ (k\w+)", public, re.MULTILINE))  # some compilers emit them
exported = subprocess.run(["nm", "-DC", "--defined-only", library], check=True, capture_output=True,
                          text=True).stdout.splitlines()
faults, functions = [], set()
faults += [f"include/ps_shm/{name} does not export its namespace: namespace PS_SHM_API ps_shm" for name, text in headers.items()
           if re.search(r"^namespace ps_shm\b", text, re.MULTILINE)]
# A function outside of a class, and no template, that is defined elsewhere: the text before its name, and the name.
FREE = r"(?<!>\n)^(?!inline|constexpr|template|using|friend)([A-Za-z][\w:<>*& ]* \*?)(\w+)\([^;]*?\)(?: noexcept)?;"
free = [(name, *found) for name, text in headers.items() for found in re.findall(FREE, text, re.MULTILINE)]
faults += [f"include/ps_shm/{name} does not export {function}: PS_SHM_API {before}{function}" for name, before, function in free
           if not before.startswith("PS_SHM_API ")]
for line in exported:
    symbol = line.split(maxsplit=2)[2]
    if re.match(OF_TYPES, symbol) or symbol.removeprefix("ps_shm::") in constants:
        continue
    named = re.match(r"ps_shm::((?:[A-Z]\w*::)*(~?\w+|operator\S+?))(?:\[abi:\w+\])?\(", symbol)
    if not named or re.search(HIDDEN, symbol.split("(")[0]):
        faults.append(f"exported, but nothing that include/ps_shm declares: {symbol}")
    elif named[2].lstrip("~") not in declared:
        faults.append(f"exported, but in no header of include/ps_shm: {symbol}")
    else:
        functions.add(named[1])
for wanted in ("Server::Server", "Worker::step", "JobView::digest", "JobControl::change", "GpuLink::GpuLink",
               *sorted({function for _, _, function in free})):
    if wanted not in functions:
        faults.append(f"not exported: {wanted}")
if b"cublas" in library.read_bytes().lower():
    faults.append("the library mentions cuBLAS")
print("\n".join(faults) or f"{len(functions)} functions are exported")
sys.exit(bool(faults))
