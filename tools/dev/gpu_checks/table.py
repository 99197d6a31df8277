"""The report: checks, figures, and what they come from."""
import json
import os

import decisions

DATA_OF_PART = {1: ["test"], 2: ["memcheck", "racecheck", "synccheck"], 3: ["benchmark"], 4: ["training"],
                5: ["accuracy", "digests", "count", "sharing"], 6: ["soak"], 7: ["pytorch"],
                8: ["jobs", "large_counts"], 9: ["death_in_sync", "mps"]}
MARKS = {True: "ok", False: "FAILED", None: "skipped"}


class Report:
    def __init__(self, data, path=None):
        """path: where it is written."""
        self.data, self.path = data, path
        self.checks, self.figures = [], []
        self.part = 1

    def go_on(self):
        """Goes on with what other parts have written."""
        before = json.loads(self.path.read_text())
        self.checks = before.pop("checks")
        before.pop("no_gpu", None)
        self.data = {**before, **{key: self.data[key] for key in ("cuda", "no_gpu") if self.data.get(key)}}

    def begin_part(self, number, quick):
        """What an earlier run of it has said no longer counts."""
        self.part = number
        self.checks = [check for check in self.checks if check["part"] != number]
        for key in DATA_OF_PART[number]:
            self.data.pop(key, None)
        self.data.setdefault("parts", {})[str(number)] = {"quick": quick}

    def add(self, name, holds, detail):
        """holds: True, False, or None where it was not looked at."""
        self.checks.append({"name": name, "part": self.part, "holds": holds, "detail": detail})

    def figure(self, name, text):
        self.figures.append((name, text))

    def all_hold(self):
        return bool(self.checks) and all(check["holds"] is not False for check in self.checks)

    def write(self):
        """Never half of it: it replaces what was there at once."""
        if self.path is None:
            return
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps({"checks": self.checks, **self.data}, indent=1) + "\n")
        os.replace(part, self.path)

    def as_text(self):
        lines = []
        for gpu in self.data["cuda"].get("gpus", []):
            lines.append(f"GPU {gpu['device']}: {gpu['name']}, {gpu['pci_address']}")
        lines += [f"{MARKS[check['holds']]:8} {check['name']}: {check['detail']}" for check in self.checks]
        lines += [""] + [f"{name}: {text}" for name, text in self.figures + self._of_benchmark()]
        decided = [f"  {name}: {text}" for name, text in decisions.made_of(self.data)]
        lines += ["", "What the figures decide:", *decided, ""] if decided else []
        failed = sum(check["holds"] is False for check in self.checks)
        lines.append(f"{len(self.checks) - failed} checks hold or were skipped, {failed} failed")
        return "\n".join(lines)

    def _of_benchmark(self):
        found, rows = self.data.get("benchmark", {}), []
        for name, one in found.get("registrations", {}).items():
            if isinstance(one, dict) and "register_s_per_GiB" in one:
                rows.append((f"registering, {name}", f"{one['register_s_per_GiB']:.3f} s/GiB"))
        for name, one in found.get("waits", {}).items():
            if isinstance(one, dict) and "median" in one:
                rows.append((name.removesuffix("_us").replace("_", " "), f"{one['median']:.1f} us"))
        for name, one in found.get("tearing", {}).items():
            if isinstance(one, dict) and "words" in one:
                rows.append((f"tearing, {name.replace('_', ' ')}",
                             f"{one['torn_4_bytes']} of 4 bytes, {one['torn_8_bytes']} of 8 bytes, in {one['words']} "
                             f"words; {one['mixed_copies']} of {one['copies']} copies raced"))
        for section in ("adds_with_processors", "adds_of_two_processes"):
            for name, one in found.get(section, {}).items():
                if isinstance(one, dict) and "lost_share" in one:
                    rows.append((f"{section}, {name}".replace("_", " "), f"lost {one['lost_share']:.3%}"))
        for size, ways in found.get("moves", {}).items():
            if isinstance(ways, dict) and size.isdigit():
                is_small = int(size) < 1 << 20
                times = ", ".join(f"{name.replace('_', ' ')} " + (f"{way['us']['median']:.1f}" if is_small else
                                                                  f"{way['GB/s']:.1f}") for name, way in ways.items())
                rows.append((f"{int(size) >> 10} KiB, {'us' if is_small else 'GB/s'}", times))
        death = found.get("death", {})
        if "gone_after_s" in death:
            gone, free = (f"{s:.3f} s" if s is not None else "more than was waited for"
                          for s in (death["gone_after_s"], death["pages_free_after_s"]))
            rows.append(("killed while copying", f"gone after {gone}, pages free after {free}"))
        for case in found.get("links", {}).get("cases", []):
            if "pull" in case:
                rows.append((f"{case['bytes'] >> 20} MiB, {case['mode']}, chunks of {case['chunk_bytes'] >> 10} KiB, "
                             f"{case['threads']} threads" + (", bfloat16" if case["wire"] == "bfloat16" else ""),
                             "; ".join(f"{way} {case[way]['GB/s']:.1f} GB/s of {case[way]['limit']['GB/s']:.1f}"
                                       for way in ("pull", "push"))))
        for case in found.get("rows", {}).get("cases", []):
            rows.append((f"rows of {case['elements']} floats, {case['ids']}, {case['batch']} ids",
                         "; ".join(f"{name.replace('_', ' ')} {case[name]['rows/s'] * 1e-6:.1f}" for name in
                                   ("pull", "processor_gathers_then_copy", "bare_copy", "push",
                                    "copy_then_processor_pushes")) + " M rows/s"))
        return rows
