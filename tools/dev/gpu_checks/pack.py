"""Copies what the checks run, with the libraries that it needs, into a folder for a box that can install and build nothing.

Programs, libraries and modules are compressed: with five Pythons they would take more than may travel.
"""
import json
import lzma
import os
import pathlib
import re
import shutil
import subprocess

import programs

PROGRAMS = ("tools/launch_shm", "tools/ps_shm", "tools/worker_shm", "tools/inspect_shm", "tests/gpu_tests_on_gpu",
            "benches/gpu")
PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "python" / "ps_shm"
FOLDERS = {"tools", "tests", "benches", "python", "lib", "fallback", "meson-info"}  # of a pack
MOST_BYTES = 64 << 20
# A box has its own: the C library goes with its kernel, libcuda with its driver.
OF_THE_BOX = re.compile(r"lib(c|m|dl|rt|pthread|resolv|cuda)\.so|ld-linux|linux-vdso")
# Used only on a box that has none. Debian 12's need glibc 2.36, also if they are linked statically (arc4random), but what
# uses them needs 2.34 only, so that an older box's own serve.
AS_FALLBACK = re.compile(r"lib(stdc\+\+|gcc_s)\.so")


def libraries_of(program):
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return {pathlib.Path(path) for path in re.findall(r"=> (/\S+)", said) if not OF_THE_BOX.search(path)}


def compress(source, target):
    """Writes target.xz, without symbols, with the permissions of the source."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source.resolve(), target)
    subprocess.run(["strip", "--strip-unneeded", target], capture_output=True)  # a script stays as it is
    packed = target.with_name(target.name + ".xz")
    packed.write_bytes(lzma.compress(target.read_bytes(), preset=2))
    shutil.copymode(target, packed)
    target.unlink()


def libraries_not_found(folder):
    """What the programs of a pack lack here. (A Python of its own may find libraries that they do not.)"""
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, [str(folder / "lib"), os.environ.get("LD_LIBRARY_PATH")]))}
    return {name for program in PROGRAMS
            for name in re.findall(r"^\s*(\S+) => not found",
                                   subprocess.run(["ldd", folder / program], capture_output=True, text=True, env=env).stdout, re.MULTILINE)}


def unpack(folder):
    """Makes the programs, libraries and modules of a pack what they were; of a build folder nothing."""
    if (folder / "build.ninja").exists():
        return
    for packed in folder.rglob("*.xz"):
        if packed.parent.name != "fallback":
            unpack_one(packed, packed.with_name(packed.stem))
    fallback = list(folder.glob("fallback/*.xz"))
    missing = libraries_not_found(folder) if fallback else set()
    for packed in fallback:
        if packed.stem in missing:
            unpack_one(packed, folder / "lib" / packed.stem)


def unpack_one(packed, there):
    if there.exists():
        return
    half = there.with_name(there.name + ".half")
    half.write_bytes(lzma.decompress(packed.read_bytes()))
    shutil.copymode(packed, half)
    half.rename(there)


def put_package(folder, modules, put=shutil.copy):
    """The Python package, whose modules are each for one Python, or for all from 3.12 on."""
    package = folder / "python" / "ps_shm"
    shutil.copytree(PACKAGE, package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("meson.build", "*.nb", "__pycache__"))
    for module in modules:
        put(module, package / module.name)


def pack(build, folder, modules):
    """Replaces an earlier pack in the folder. Returns what is wrong, or None."""
    missing = [name for name in PROGRAMS if not (build / name).exists()]
    if missing:
        return f"{build} has no {', '.join(missing)}"
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names and (names - FOLDERS or "meson-info" not in names):
        return f"{folder} has {', '.join(sorted(names))} and is no pack; name another folder"
    half = folder.with_name(folder.name + ".part")
    shutil.rmtree(half, ignore_errors=True)
    fill(half, build, modules)
    total = sum(path.stat().st_size for path in half.rglob("*") if path.is_file())
    if total > MOST_BYTES:
        return f"{half} has {total >> 20} MiB, more than the {MOST_BYTES >> 20} that may travel"
    shutil.rmtree(folder, ignore_errors=True)
    half.rename(folder)
    pythons = ", ".join(sorted(module.name.removeprefix("_core.") for module in modules)) or "none"
    print(f"{folder}: {total >> 20} MiB, Python modules: {pythons}; there: tools/gpu_check --prebuilt DIR")
    return None


def fill(folder, build, modules):
    libraries = set()
    for name in PROGRAMS:
        libraries |= libraries_of(build / name)
        compress(build / name, folder / name)
    if modules:
        put_package(folder, modules, compress)
        libraries |= set().union(*map(libraries_of, modules))
    for library in libraries:
        compress(library, folder / ("fallback" if AS_FALLBACK.match(library.name) else "lib") / library.name)
    info = folder / "meson-info"
    info.mkdir()
    tests = [{"name": name, "suite": ["gpu"], "cmd": command, "timeout": seconds, "env": env}
             for name, command, seconds, env in programs.suite_of(build)]
    (info / "intro-tests.json").write_text(json.dumps(tests))
    (info / "meson-info.json").write_text(json.dumps({"directories": {"build": str(build)}}))
