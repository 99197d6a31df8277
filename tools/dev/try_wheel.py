"""Tries what a wheel has installed into this environment: programs, libraries and the package. tools/wheel calls it.

    try_wheel.py [--hide]     --hide: covers the system's libraries that the wheel has itself, in this namespace of mounts
"""
import glob
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import uuid

# What manylinux_2_34 says that every system has, as far as it is used here.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2", "libstdc++.so.6",
          "libgcc_s.so.1", "libz.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
PROGRAMS = ("ps_shm", "worker_shm", "launch_shm", "inspect_shm")
PLACE = pathlib.Path(sysconfig.get_path("platlib"))
WORKER = """
import numpy, ps_shm
with ps_shm.Worker() as worker:
    v = worker.variable("v", numpy.zeros(4, "float32"))
    worker.wait_for_workers()
    while not worker.finished:
        v.push(numpy.ones(4, "float32"))
        worker.step()
"""
PUBLICATION = """
import numpy, ps_shm, sys
with ps_shm.Publisher(sys.argv[1], {"w": ("float32", (3,))}) as publisher, ps_shm.Subscriber(sys.argv[1]) as subscriber:
    publisher.publish({"w": numpy.arange(3, dtype="float32")})
    print(subscriber.read()["w"].tolist())
"""


def run(*command, code=0):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    if done.returncode != code:
        sys.exit(f"try_wheel: {' '.join(command[:5])} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def expect(pattern, text):
    if not re.search(pattern, text, re.M):
        sys.exit(f"try_wheel: there is no {pattern!r} in:\n{text}")


def libraries_of(paths):
    """{name: path} of what the dynamic linker loads for these files."""
    found = {}
    for line in run("ldd", *map(str, paths)).splitlines():
        if (said := re.match(r"\s+(\S+) => (\S+)", line)) is not None:
            found[said[1]] = said[2]
    return found


def installed():
    """The files of machine code that the wheel has brought."""
    files = [path for folder in PLACE.glob("ps_shm*") for path in folder.rglob("*") if path.is_file()]
    files += [pathlib.Path(sysconfig.get_path("scripts"), name) for name in PROGRAMS]
    return [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]


def hide(names):
    """Covers each library of such a name that the system has, unless this Python or the shell that runs ldd needs it."""
    modules = glob.glob(f"{sysconfig.get_path('platstdlib')}/lib-dynload/*.so")
    needed = libraries_of([os.path.realpath(sys.executable), "/bin/bash", shutil.which("mount"), *modules]).values()
    needed = set(map(os.path.realpath, needed))
    paths = {os.path.realpath(path) for path in re.findall(r" => (\S+)$", run("ldconfig", "-p"), re.M)}
    hidden = sorted(path for path in paths - needed if os.path.basename(path) in names)
    for path in hidden:
        run("mount", "--bind", "/dev/null", path)
    return hidden


def main():
    files = installed()
    brought = {re.sub(r"-[0-9a-f]{8}(?=\.)", "", path.name) for path in PLACE.glob("ps_shm.libs/*")}
    hidden = hide(brought) if "--hide" in sys.argv else []
    for name, path in libraries_of(files).items():
        if not path.startswith(str(PLACE)) and name not in SYSTEM:
            sys.exit(f"try_wheel: {name} is not the wheel's but {path}")
    version = run("inspect_shm", "--version").split()[1]
    for program in PROGRAMS:
        said = run(program, "--version")
        expect(rf"^{program} {re.escape(version)}\b", said)
        notice = pathlib.Path(said.rstrip().rpartition("\n")[2].removeprefix("notice").strip())
        if not notice.is_file() or "CC BY 4.0" not in notice.read_text():
            sys.exit(f"try_wheel: {program} --version says that the licences are in {notice}")
    job = f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    expect(r"^  \d+ steps", run("launch_shm", "--job", f"{job}-digits", "--workers", "2", "--steps", "50"))
    expect(r"^  20\d steps", run("launch_shm", "--job", f"{job}-python", "--workers", "2", "--steps", "200", "--optimizer", "add",
                                 "--", "python", "-c", WORKER))
    expect(r"\[0\.0, 1\.0, 2\.0\]", run(sys.executable, "-c", PUBLICATION, f"{job}-publication"))
    with tempfile.NamedTemporaryFile() as packed:
        packed.write(b"BZh91AY")
        packed.flush()
        expect("this build does not read bzip2", run("launch_shm", "--job", f"{job}-packed", "--model", "logistic", "--data",
                                                     packed.name, code=1))
    plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
    if [one.value for one in plugins] != ["ps_shm.engines.vllm:register"]:
        sys.exit(f"try_wheel: vLLM finds no plugin: {plugins}")
    print(f"{version} works with Python {sys.version.split()[0]}: {len(files)} files of machine code, {len(brought)} of them "
          f"libraries; of the system's, {len(hidden)} were hidden")


os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
for variable in [name for name in os.environ if name.startswith("PS_SHM_") or name == "PYTHONPATH"]:
    del os.environ[variable]
main()
