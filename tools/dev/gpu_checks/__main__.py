"""What tools/gpu_check does once everything is built: runs the checks, prints a table, writes the JSON."""
import argparse
import contextlib
import json
import pathlib
import signal
import sys
import time

import benchmark
import first_light
import jobs
import pack
import peers
import programs
import python_package
import table
import ways

PART_SECONDS = 570  # some boxes are lent for ten minutes at a time
SANITIZE, SOAK = 2, 6


def doctor(tools):
    """What the inspector says of CUDA; its reason where there is no GPU."""
    done = programs.run([tools / "inspect_shm", "doctor", "--json"], 60)
    if done.code not in (0, 3):  # 3: it has found something; the jobs of others may be what they are
        return None, f"inspect_shm doctor fails: {done.last_line()}"
    cuda = json.loads(done.out).get("cuda", {})
    return cuda, None if cuda.get("gpus") else cuda.get("no_gpu") or "inspect_shm doctor shows none"


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
    """What each part does, by its number; of each it is told whether it is quick. All but SOAK take less than ten minutes."""
    tools, mnist = build / "tools", settings.mnist
    return {
        1: [lambda quick: programs.run_suite(report, build)],
        SANITIZE: [lambda quick: programs.sanitize_suite(report, build, quick)],
        3: [lambda quick: benchmark.measure(report, build, quick)],
        4: [lambda quick: jobs.train(report, tools, mnist, quick)],
        5: [lambda quick: jobs.compare_accuracies(report, tools, mnist, quick),
            lambda quick: jobs.compare_digests(report, tools, quick), lambda quick: jobs.count(report, tools, quick),
            lambda quick: jobs.share(report, tools, quick)],
        SOAK: [lambda quick: soak(report, build, settings.soak)],
        7: [lambda quick: python_package.check(report, build, quick)],
        8: [lambda quick: ways.train(report, tools, quick), lambda quick: ways.count(report, tools, quick)],
        9: [lambda quick: peers.time_death(report, tools, quick), lambda quick: peers.share(report, tools, quick)],
    }


def planned(settings, began):
    """Yields, for each part that is to run, its number, whether it is quick, and how many seconds it may take."""
    if settings.first_light:
        for number, until in first_light.CALLS[settings.first_light].items():
            yield number, settings.quick or number in first_light.QUICK_PARTS, began + until - time.monotonic()
        return
    wanted = {SANITIZE: settings.sanitize, SOAK: settings.soak}
    for number in [settings.part] if settings.part else [one for one in table.DATA_OF_PART if wanted.get(one, True)]:
        yield number, settings.quick, PART_SECONDS if number != SOAK else None


def run_parts(report, build, settings, began):
    parts = parts_of(report, build, settings)
    try:
        for number, quick, seconds in planned(settings, began):
            report.begin_part(number, quick)
            programs.allow(seconds)
            for step in parts[number]:
                try:
                    step(quick)
                except programs.Failed as error:
                    report.add(f"part {number} was not finished", False, str(error))
                except Exception as error:  # whatever it is, the others are still looked at
                    report.add(f"part {number}: an unexpected answer", False, f"{type(error).__name__}: {error}")
                report.write()  # as far as it has come, should the next step be the last
    finally:  # as far as it has come, if a signal ends it
        report.data["seconds"] = report.data.get("seconds", 0) + time.monotonic() - began
        report.write()


def begun_report(settings, data):
    """A new one; of a single part or call, one that goes on with what others have written."""
    report = table.Report(data, settings.json)
    if (settings.part or settings.first_light) and settings.json.exists():
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


def read_settings():
    parser = argparse.ArgumentParser(prog="tools/gpu_check")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--pack", type=pathlib.Path)
    parser.add_argument("--module", type=pathlib.Path, action="append", default=[], help="the Python package's, for one Python")
    parser.add_argument("--no-gpu", metavar="WHY", help="what tools/gpu_check has found out")
    parser.add_argument("--mnist", type=pathlib.Path)
    parser.add_argument("--part", type=int, choices=table.DATA_OF_PART)
    parser.add_argument("--first-light", type=int, choices=first_light.CALLS)
    parser.add_argument("--soak", type=float, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sanitize", action="store_true")
    settings = parser.parse_args()
    if settings.part and settings.first_light:
        parser.error("--first-light says which parts it runs; leave --part out")
    if settings.first_light:
        settings.soak = settings.soak or first_light.SOAK_MINUTES
    if settings.part == SOAK and not settings.soak:
        parser.error("--part 6 needs --soak MINUTES")
    return settings


def pack_only(build, settings):
    wrong = pack.pack(build, settings.pack, settings.module)
    if wrong:
        print(f"gpu_check: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


def main():
    began, settings = time.monotonic(), read_settings()
    build = settings.build.resolve()
    if settings.pack:
        return pack_only(build, settings)
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

    report = begun_report(settings, {"began_unix": time.time(), "cuda": cuda})
    kept_open = keep_gpus_open()  # noqa: F841: until the process ends
    if settings.first_light == 1:
        first_light.describe_box(settings.json.with_suffix(".box.txt"))
    run_parts(report, build, settings, began)
    print(report.as_text())
    print(f"all of it: {settings.json}")
    return 0 if report.all_hold() else 1


if __name__ == "__main__":
    sys.exit(main())
