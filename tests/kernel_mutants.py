#!/usr/bin/env python3
"""Breaks the kernels on purpose, one place at a time, and checks that the tests on the CPU notice.

    tests/kernel_mutants.py BUILD            all of them; some minutes
    tests/kernel_mutants.py BUILD --sample   a few
    tests/kernel_mutants.py BUILD --only N   one, by number

BUILD is a build folder with tests/gpu_tests_on_cpu and tests/unit_tests. Nothing in it is changed: a mutant's library
lies in a folder of its own, which the programs are told of. Exits with 0 if every mutant is noticed, but for those that
are listed with the reason why they cannot be.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = "tests/support/cuda_on_cpu/libcuda_on_cpu.so"

# file, original text (occurs once), replacement
MUTANTS = [
    # The seqlock of pull_pieces: its barriers, fence, orders, checks and bounds.
    ("pull_pieces", "found.version = load_acquire_system(piece.word);", "found.version = load_relaxed_system(piece.word);"),
    ("pull_pieces", "piece.word);  // (inplace.P3) pairs with inplace.P2\n  __syncthreads();", "piece.word);"),
    ("pull_pieces", "const std::uint64_t word = load_acquire_system(piece.word);",
     "const std::uint64_t word = load_relaxed_system(piece.word);"),
    ("pull_pieces", "find_buffer(piece, format, found);\n    __syncthreads();", "find_buffer(piece, format, found);"),
    ("pull_pieces", "    fence_system();                 // (slot.R3)\n", ""),
    ("pull_pieces", "// (slot.R3)\n    __syncthreads();", "// (slot.R3)\n"),
    ("pull_pieces", "found.version);\n    }\n    __syncthreads();", "found.version);\n    }\n"),
    ("pull_pieces", "found.whole = stamp == (piece.stamp | found.version);", "found.whole = true;"),
    ("pull_pieces", "stamp == (piece.stamp | found.version)", "stamp >= piece.stamp"),
    ("pull_pieces", "stamp == (piece.stamp | found.version)", "(stamp & 0xffffffff) == found.version"),
    ("pull_pieces", "if (found.buffer == nullptr) return kPullTorn;", ""),
    ("pull_pieces", "if (found.whole) return found.version;", "return found.version;"),
    ("pull_pieces", "attempt < kPullAttempts", "attempt < 1"),
    ("pull_pieces", "attempt < kPullAttempts", "attempt <= kPullAttempts"),
    ("pull_pieces", "offset > piece.shard_bytes ||", ""),
    ("pull_pieces", "piece.shard_bytes - offset < bytes", "piece.shard_bytes - offset <= bytes"),
    ("pull_pieces", "const std::uint64_t bytes = format.header_bytes + ", "const std::uint64_t bytes = "),
    ("pull_pieces", "offset >> format.region_bits", "0"),
    ("pull_pieces", "found.buffer + format.header_bytes", "found.buffer"),
    ("pull_pieces", "[threadIdx.x];\n    __syncthreads();", "[threadIdx.x];"),
    ("pull_pieces", "the barrier no thread reads `piece` any more.\n    __syncthreads();", "the barrier no thread reads `piece` any more.\n"),
    ("pull_pieces", "store_release_system(results + i, result);", "store_relaxed_system(results + i, result);"),
    ("pull_pieces", "i < vectors; i += 4 * kPullThreads", "i + 3 * kPullThreads < vectors; i += 4 * kPullThreads"),
    ("pull_pieces", "i < vectors; i += 4 * kPullThreads", "i < vectors; i += 3 * kPullThreads + 1"),
    ("pull_pieces", "begin = vectors * 4;", "begin = vectors * 4 + 4;"),
    # Sending.
    ("send_pieces", "    __syncthreads();", ""),
    ("send_pieces", "if (gate != nullptr && __syncthreads_or", "if (false && __syncthreads_or"),
    ("send_pieces", "== kGateCancelled", "== kGateOpen"),
    ("send_pieces", "store_release_system(arrived + i, 1)", "store_release_system(arrived, 1)"),
    ("send_pieces", "begin = count / 4 * 4;", "begin = count / 4 * 4 + 1;"),
    ("bfloat16.cuh", "0x7fffU + (bits >> 16 & 1U)", "0x8000U"),
    ("bfloat16.cuh", "low(v.x), high(v.x)", "high(v.x), low(v.x)"),
    ("bfloat16.cuh", "high(v.w));\n    }\n    begin = count / 8 * 8;", "high(v.w));\n    }\n    begin = count / 8 * 8 + 1;"),
    ("bfloat16.cuh", "__uint_as_float(static_cast<std::uint32_t>(from[i]) << 16)", "static_cast<float>(from[i])"),
    ("widen_pieces", "i < count; i += gridDim.x", "i < count; i += count"),
    ("send_rows", "    __syncthreads();  // (gpu.G2)\n", ""),
    ("send_rows", "half /= 2) {\n      __syncthreads();", "half /= 2) {"),
    ("send_rows", "to[c] = shared[at];\n    __syncthreads();", "to[c] = shared[at];"),
    ("send_rows", "1 + (end - begin)", "end - begin"),
    ("send_rows", "span.begin + threadIdx.y, span.end", "span.begin + threadIdx.y, span.end - 1"),
    ("sort_rows", "(rows - 1) >> bits != 0", "(rows - 1) >> bits > 1"),
    # Rows, adds and the models' kernels.
    ("pull_rows", "if (row < table.rows)", "if (row <= table.rows)"),
    ("table_values.cuh", "offset & ((std::uint64_t{1} << region_bits) - 1)", "offset"),
    ("add_pieces", "(4 - past) % 4", "(3 - past) % 4"),
    ("softmax_cross_entropy", "apart = kWarp / 2; apart != 0; apart /= 2)\n    row.largest",
     "apart = kWarp / 2; apart > 1; apart /= 2)\n    row.largest"),
    ("softmax_cross_entropy", "sums[warp] = sum;\n  __syncthreads();", "sums[warp] = sum;"),
    ("softmax_cross_entropy", "if (kWithGradient) overwrite(values, row, label, columns, share);", ""),
    ("softmax_cross_entropy", "label % kWarp == threadIdx.x % kWarp ? logits[label] : 0.0F", "logits[label]"),
    ("softmax_cross_entropy", "return values[column] + bias[column];", "return values[column];"),
    ("softmax_cross_entropy", "first < static_cast<unsigned>(columns); first += kSumColumns", "first < kSumColumns; first += kSumColumns"),
    ("sum_rows.cuh", "  sums[warp][lane] = sum;\n  __syncthreads();\n", "  sums[warp][lane] = sum;\n"),
    ("sum_rows.cuh", "  __syncthreads();  // before the next columns' sums\n", ""),
    ("sum_rows.cuh", "rows, columns, blockIdx.x * kSumColumns", "rows, columns, blockIdx.x"),
    ("sum_rows.cuh", "for (unsigned k = 1; k < kSumWarps; ++k)", "for (unsigned k = 1; k + 1 < kSumWarps; ++k)"),
    ("relu_gradient", "activation <= 0 ?", "activation < 0 ?"),
    ("relu_gradient", "return gradient[i] = rectified(gradient[i]", "return rectified(gradient[i]"),
    ("relu_gradient", "           blockIdx.x * kSumColumns", "           blockIdx.x"),
    ("sgd_step", "l2 == 0 && decay == 0", "l2 == 0"),
    # Rows by key: the search and its path, what it stops at, the copy between two looks at the word, and the bounds.
    ("pull_keys", "std::uint64_t word = load_acquire_system(previous);",
     "std::uint64_t word = load_relaxed_system(previous);"),
    ("pull_keys", "its_word = load_acquire_system(there);  // (table.R1), (table.F1)",
     "its_word = load_relaxed_system(there);"),
    ("pull_keys", "    fence_system();                                                     // (table.F1)\n", ""),
    ("pull_keys", "    if (load_relaxed_system(previous) != word) return outcome(kAgain);  // (table.F2)\n", ""),
    ("pull_keys", "if (found.row != kAgain) return found;", "return found;"),
    ("pull_keys", "i < kMaxSearches", "i >= 0"),
    ("pull_keys", "step < kMaxSteps", "step >= 0"),
    ("pull_keys", "state != kNew && state != kLive && state != kSealed",
     "state != kNew && state != kLive && state < kSealed"),
    ("pull_keys", "its_key == key && (state", "(state"),
    ("pull_keys", "if (its_key == key) return found;", "if (false) return found;"),
    ("pull_keys", "if (index >= part.row_count) return outcome(kUndecidedRow);", ""),
    ("pull_keys", "(std::uint64_t{1} << part.bits) - 1", "(std::uint32_t{1} << part.bits) - 1"),
    ("pull_keys", "if (__brevll(index) >= order)", "if (__brevll(index) >= 0)"),
    ("pull_keys", "while (bucket != 0 && ", "while (false && "),
    ("pull_keys", "fence_system();  // (table.R3) of each thread, behind its own loads", ""),
    ("pull_keys", "load_relaxed_system(word_at(table, table.parts[place.part], place.row)) != place.word", "false"),
    ("pull_keys", "if (!is_decided) store_relaxed_system(undecided, 1);", ""),
    ("pull_keys", "mixed(table.of_seed ^ row_id(keys, i))", "mixed(table.of_seed)"),
    ("sort_rows", "rows != 0 && row >= rows", "row >= rows"),
    # Sparse models.
    ("sparse_gradient", "apart = kWarp / 2; apart != 0;", "apart = kWarp / 2; apart > 1;"),
    ("sparse_gradient", "e < batch.examples; e += stride", "e + 1 < batch.examples; e += stride"),
    ("sparse_gradient", "rows + begin * form.width", "rows"),
    ("sparse_gradient", "- of.squares", ""),
    ("sparse_gradient", "else if (example.count == 2)", "else"),
    ("sparse_gradient", "(1 - i) * width", "i * width"),
    ("sparse_gradient", "(sum - example.rows[i * width + column] * x)", "sum"),
    ("sparse_gradient", "column == 0 ? batch.l2_first : batch.l2_factors", "batch.l2_first"),
    ("sparse_gradient", "form.mean + score", "score"),
]

# Mutants that no test can notice, with the reason.
EQUIVALENT = {
    35: "a piece's stores all lie before __syncthreads_or, or before the barrier that ends sum_together",
}

SAMPLE = (5, 20, 22)  # two barriers of the seqlock, and the bound of its loop


def mutate(text, old, new, where):
    if text.count(old) != 1:
        raise SystemExit(f"kernel_mutants: '{old}' stands {text.count(old)} times in {where}, not once")
    return text.replace(old, new)


class Build:
    def __init__(self, folder):
        self.folder = folder.resolve()
        commands = json.loads((self.folder / "compile_commands.json").read_text())
        self.compiles = {}
        self.objects = []
        for one in commands:
            if LIBRARY + ".p/" in one["output"]:
                self.objects.append(one["output"])
                if one["file"].startswith("tests/support/cuda_on_cpu/"):
                    self.compiles[pathlib.Path(one["file"]).stem] = one

    def library_with(self, files, into):
        """Compiles a library with these kernel texts into folder `into`; returns the compiler's errors if it does not
        compile."""
        objects = list(self.objects)
        for name, text in files.items():
            path = into / f"{name}.cpp"
            path.write_text(f'#line 1 "{name}.cu"\n{text}')
            one = self.compiles[name]
            made = into / f"{name}.o"
            words = shlex.split(one["command"])
            for option in ("-MQ", "-MF", "-o", "-c"):  # and their arguments
                at = words.index(option)
                del words[at:at + 2]
            words.remove("-MD")
            command = [*words, "-iquote", into, "-w", "-O1", "-c", path, "-o", made]
            done = subprocess.run(command, cwd=self.folder, text=True, capture_output=True)
            if done.returncode != 0:
                return done.stderr
            objects[objects.index(one["output"])] = str(made)
        sanitizers = [word for word in words if word.startswith("-fsanitize=")]
        done = subprocess.run(["c++", "-shared", *sanitizers, "-o", into / "libcuda_on_cpu.so", *objects, "-lopenblas",
                               "-pthread"], cwd=self.folder, text=True, capture_output=True)
        return done.stderr if done.returncode != 0 else None

    def users_of(self, name):
        """The kernels that include a changed file."""
        if not name.endswith(".cuh"):
            return [name]
        return [stem for stem in self.compiles if f'#include "{name}"' in (SOURCE / "kernels" / f"{stem}.cu").read_text()]


def runs_for(name, build, quick):
    """The test programs with their orders of turns; the fast ones first."""
    gpu, unit = build.folder / "tests" / "gpu_tests_on_cpu", build.folder / "tests" / "unit_tests"
    of_kernels = {"pull_rows": "test_row_kernels", "send_rows": "test_row_kernels", "sort_rows": "test_row_kernels",
                  "table_values.cuh": "test_row_kernels", "pull_keys": "test_gpu_table",
                  "pull_pieces": "test_transfer_kernels", "send_pieces": "test_transfer_kernels",
                  "add_pieces": "test_transfer_kernels", "sparse_gradient": "test_sparse_kernels",
                  "bfloat16.cuh": "test_bfloat16", "widen_pieces": "test_bfloat16"}.get(name, "test_kernels")
    if name in ("pull_pieces", "send_pieces", "send_rows"):
        yield [unit, "--source-file=*/kernels/test_kernel_protocols.cpp"], "0"
    if name in ("pull_keys", "sort_rows"):
        yield [unit, "--source-file=*/device/test_gpu_table.cpp"], "0"
    if not quick:
        for order in ("0", "1", "2"):
            yield [gpu, f"--source-file=*/gpu/{of_kernels}.cpp"], order


def try_mutant(build, number, quick):
    """Returns a line about the mutant, and whether the outcome is as expected."""
    name, old, new = MUTANTS[number]
    file = name if name.endswith(".cuh") else f"{name}.cu"
    title = f"{number:2} {file}: {' '.join(old.split())[:60]!r} -> {' '.join(new.split())[:60]!r}"
    with tempfile.TemporaryDirectory() as folder:
        into = pathlib.Path(folder)
        changed = mutate((SOURCE / "kernels" / file).read_text(), old, new, file)
        if file.endswith(".cuh"):
            (into / file).write_text(changed)
        files = {stem: (SOURCE / "kernels" / f"{stem}.cu").read_text() for stem in build.users_of(name)}
        files.update({} if file.endswith(".cuh") else {name: changed})
        if error := build.library_with(files, into):
            return f"{title}: does not compile\n{error[:2000]}", False
        for command, order in runs_for(name, build, quick):
            environment = {**os.environ, "LD_LIBRARY_PATH": folder, "PS_SHM_CUDA_ON_CPU_ORDER": order}
            try:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
            except subprocess.TimeoutExpired:
                return f"{title}: noticed, by a hang", True
            if done.returncode != 0:
                said = [line for line in (done.stderr + done.stdout).splitlines()
                        if line.startswith("kernel fault") or "TEST CASE: " in line]
                why = said[0].replace("TEST CASE:", "").strip() if said else f"exit code {done.returncode}"
                return f"{title}: noticed, order {order}: {why}", number not in EQUIVALENT
    if number in EQUIVALENT:
        return f"{title}: equivalent: {EQUIVALENT[number]}", True
    return f"{title}: NOT NOTICED", False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--only", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    settings = parser.parse_args()
    build = Build(settings.build)
    for command, order in runs_for("pull_pieces", build, True):
        if subprocess.run(command, env={**os.environ, "PS_SHM_CUDA_ON_CPU_ORDER": order}, capture_output=True).returncode:
            raise SystemExit("kernel_mutants: the tests fail without any mutant")
    wanted = [settings.only] if settings.only is not None else SAMPLE if settings.sample else range(len(MUTANTS))
    with concurrent.futures.ThreadPoolExecutor(settings.jobs) as pool:
        good = 0
        for line, is_good in pool.map(lambda number: try_mutant(build, number, settings.sample), wanted):
            print(line, flush=True)
            good += is_good
    print(f"{good} of {len(wanted)} are noticed, or cannot be")
    sys.exit(good != len(wanted))


if __name__ == "__main__":
    main()
