"""What tools/gpu_check does once everything is built: runs the checks, prints a table, writes the JSON."""
import argparse
import contextlib
import json
import pathlib
import signal
import sys
import time

import jobs
import pack
import programs
import python_package
import table

PART_SECONDS = 570  # some boxes are lent for ten minutes at a time
SANITIZE, SOAK = 2, 6


def doctor(tools):
    """What the inspector says of CUDA; its reason where there is no GPU."""
    done = programs.run([tools / "inspect_shm", "doctor", "--json"], 60)
    if done.code not in (0, 3):  # 3: it has found something; the jobs of others may be what they are
        return None, f"inspect_shm doctor fails: {done.last_line()}"
    cuda = json.loads(done.out).get("cuda", {})
    return cuda, None if cuda.get("gpus") else cuda.get("no_gpu") or "inspect_shm doctor shows none"


def check_benchmark(report, build, quick):
    done = programs.run([build / "benches" / "gpu", *(["--quick"] if quick else [])], 400)
    try:
        found = json.loads(done.out)
    except ValueError:
        return report.add("benchmark", False, f"exit code {done.code}: {done.last_line()}")
    report.data["benchmark"] = found
    report.add("benchmark", done.code == 0, f"{found.get('seconds', 0):.0f} s" if done.code == 0 else
               f"exit code {done.code}: " + "; ".join(programs.errors_in(found)))

    # What the library relies on, against what was measured.
    adds = found.get("adds_with_processors", {})
    if "one_by_one" in adds:
        bits = [gpu["host_atomics"]["float_add"] for gpu in found["facts"]["gpus"][:1]]
        native = isinstance(bits[0], int) and bool(bits[0] & 8)
        exact, verdict = adds["one_by_one"]["is_exact"], "native" if native else "not native"
        report.add("adds of GPU and CPUs", exact or not native,
                   f"lost {adds['one_by_one']['lost_share']:.3%}; the driver says they are {verdict}")
        report.add("adds of CPUs alone", adds["processors_alone"]["is_exact"],
                   f"lost {adds['processors_alone']['lost_share']:.3%}")
    torn = {name: seen for name, seen in found.get("tearing", {}).items() if isinstance(seen, dict) and "words" in seen}
    kernel = [seen for name, seen in torn.items() if name.startswith("kernel")]
    if kernel:
        count, words = (sum(seen[key] for seen in kernel) for key in ("torn_4_bytes", "words"))
        report.add("a kernel's reads of floats", count == 0, f"{count} torn of {words} words")
    warnings = [line for case in found.get("links", {}).get("cases", []) for line in case.get("warnings", [])]
    if "cases" in found.get("links", {}):
        report.add("shards are registered", not warnings, warnings[0] if warnings else "no warning")
    rows = found.get("rows", {})
    if "cases" in rows:
        wrong = sum(not case["is_right"] for case in rows["cases"])
        report.add("rows that a kernel pulls", wrong == 0 and not rows["warnings"],
                   (rows["warnings"] + [f"{wrong} of {len(rows['cases'])} pulls were not the processor's"])[0])


def soak(report, build, minutes):
    """The seqlock on the GPU's own loads of host memory, and the link under load, round after round."""
    found = report.data["soak"] = {"minutes": minutes, "rounds": 0, "failures": []}
    cases = "--test-case=pull: while somebody pushes*,gpu link: pulled chunks are whole*,gpu link: no update of two*"
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end and not found["failures"]:
        done = programs.run([build / "tests" / "gpu_tests_on_gpu", cases], 300, {"PS_SHM_TEST_ROUNDS": "1000"})
        found["rounds"] += 1
        if done.code != 0:
            found["failures"].append((done.out + done.err)[-4000:])
    report.add("soak", not found["failures"], f"{found['rounds']} rounds in {minutes:g} minutes")


def parts_of(report, build, settings):
    """Each takes less than ten minutes but SOAK, which takes as many as it is told."""
    tools, mnist, quick = build / "tools", settings.mnist, settings.quick
    return [
        [lambda: programs.run_suite(report, build)],
        [lambda: programs.sanitize_suite(report, build) if settings.sanitize or settings.part == SANITIZE else None],
        [lambda: check_benchmark(report, build, quick)],
        [lambda: jobs.train(report, tools, mnist, quick)],
        [lambda: jobs.compare_accuracies(report, tools, mnist, quick), lambda: jobs.compare_digests(report, tools, quick),
         lambda: jobs.count(report, tools, quick), lambda: jobs.share(report, tools, quick)],
        [lambda: soak(report, build, settings.soak) if settings.soak else None],
        [lambda: python_package.check(report, build, quick)],
    ]


def begun_report(settings, data):
    """A new one; of a single part, one that goes on with what other parts have written."""
    report = table.Report(data, settings.json)
    if settings.part and settings.json.exists():
        report.go_on()
    return report


def say_no_gpu(settings, reason, cuda):
    begun_report(settings, {"began_unix": time.time(), "cuda": cuda, "no_gpu": reason}).write()
    print(f"gpu_check: no GPU: {reason}")
    return 77


def keep_gpus_open():
    """While a process has a GPU open, its driver stays as it is: a program that starts need not wait for it to be set up."""
    opened = []
    for path in sorted(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        with contextlib.suppress(OSError):
            opened.append(open(path, "r+b", buffering=0))
    return opened


def main():
    parser = argparse.ArgumentParser(prog="tools/gpu_check")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--pack", type=pathlib.Path)
    parser.add_argument("--module", type=pathlib.Path, action="append", default=[], help="the Python package's, for one Python")
    parser.add_argument("--no-gpu", metavar="WHY", help="what tools/gpu_check has found out")
    parser.add_argument("--mnist", type=pathlib.Path)
    parser.add_argument("--part", type=int)
    parser.add_argument("--soak", type=float, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sanitize", action="store_true")
    settings = parser.parse_args()
    if settings.part == SOAK and not settings.soak:
        parser.error("--part 6 needs --soak MINUTES")
    build = settings.build.resolve()
    if settings.pack:
        wrong = pack.pack(build, settings.pack, settings.module)
        if wrong:
            print(f"gpu_check: {wrong}", file=sys.stderr)
        return 1 if wrong else 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # ends what runs, too
    pack.unpack(build)
    if settings.module:
        pack.put_package(build, settings.module)
    if settings.no_gpu:
        return say_no_gpu(settings, settings.no_gpu, {})
    for program in ("launch_shm", "inspect_shm"):
        if not (build / "tools" / program).exists():
            print(f"gpu_check: {build} has no tools/{program}", file=sys.stderr)
            return 1

    cuda, reason = doctor(build / "tools")
    if reason and cuda is not None:
        return say_no_gpu(settings, reason, cuda)
    if reason:
        print(f"gpu_check: {reason}")
        return 1

    began = time.time()
    report = begun_report(settings, {"began_unix": began, "cuda": cuda})
    kept_open = keep_gpus_open()  # noqa: F841: until the process ends
    parts = parts_of(report, build, settings)
    if settings.part and not 1 <= settings.part <= len(parts):
        print(f"gpu_check: there are parts 1 to {len(parts)}", file=sys.stderr)
        return 2
    try:
        for number in [settings.part] if settings.part else range(1, len(parts) + 1):
            report.begin_part(number, settings.quick)
            programs.allow(PART_SECONDS if number != SOAK else None)
            for step in parts[number - 1]:
                try:
                    step()
                except programs.Failed as error:
                    report.add(f"part {number} was not finished", False, str(error))
                except Exception as error:  # whatever it is, the others are still looked at
                    report.add(f"part {number}: an unexpected answer", False, f"{type(error).__name__}: {error}")
                report.write()  # as far as it has come, should the next step be the last
    finally:  # as far as it has come, if a signal ends it
        report.data["seconds"] = report.data.get("seconds", 0) + time.time() - began
        report.write()
    print(report.as_text())
    print(f"all of it: {settings.json}")
    return 0 if report.all_hold() else 1


if __name__ == "__main__":
    sys.exit(main())
