"""What a figure depends on beside its settings: the machine, the compiler, the build. And who may report figures."""
import hashlib
import json
import os
import pathlib
import platform
import re
import subprocess

PROGRAMS = ("launch_shm", "ps_shm", "worker_shm")


def cpu_model():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def build_options(tools):
    """What meson was told, by the folder it has built in; empty where that is none."""
    try:
        options = json.loads((tools.parent / "meson-info" / "intro-buildoptions.json").read_text())
    except (OSError, ValueError):
        return {}
    return {option["name"]: option["value"] for option in options}


def refusal(tools):
    """Why these programs' figures would mean nothing, or None."""
    for program in PROGRAMS:
        if not os.access(tools / program, os.X_OK):
            return f"there is no {tools / program}: run benches/staleness_throughput, which builds it, or give --tools"
    options = build_options(tools)
    if not options:
        return f"{tools} lies in no build folder of meson, so nobody knows how it was built; give --tools BUILD/tools"
    sanitize, kind = options.get("b_sanitize", "none"), options.get("buildtype")
    if sanitize not in ("none", []) or kind == "debug" or options.get("optimization") in ("0", "g"):
        return f"a {kind} build with sanitizer {sanitize} measures nothing; configure with -Dbuildtype=release"
    return None


def compiler_of(program):
    """As the compiler has noted it in the file itself."""
    found = re.findall(rb"(?:GCC: \([^)\0]*\) [0-9.]+|[A-Za-z ]*clang version [0-9.]+)", program.read_bytes())
    return ", ".join(sorted({text.decode(errors="replace").strip() for text in found})) or "unknown"


def commit_of(folder):
    done = subprocess.run(
        ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*"],
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def digest_of(tools):
    """Of the programs' bytes: a build that differs is measured anew."""
    digest = hashlib.sha256()
    for name in PROGRAMS:
        digest.update((tools / name).read_bytes())
    return digest.hexdigest()[:12]


def describe(tools):
    allowed, all_cores = sorted(os.sched_getaffinity(0)), os.cpu_count()
    options = build_options(tools)
    return {
        "cpu": cpu_model(),
        "cores": len(allowed),
        "pinning": "none"
        if len(allowed) == all_cores
        else f"cores {','.join(map(str, allowed))} of {all_cores}, inherited",
        "numa_nodes": len(list(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "compiler": compiler_of(tools / "launch_shm"),
        "build": f"{options.get('buildtype')}, -O{options.get('optimization')}, b_ndebug={options.get('b_ndebug')}",
        "commit": commit_of(pathlib.Path(__file__).resolve().parent),
        "programs": digest_of(tools),
        "load_before": round(os.getloadavg()[0], 2),  # what else the machine does: below 0.1 where it is quiet
    }


def key_of(environment):
    """Runs in environments with the same key may stand in one table; another commit may have the same programs."""
    kept = {name: value for name, value in environment.items() if name not in ("commit", "load_before")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]
