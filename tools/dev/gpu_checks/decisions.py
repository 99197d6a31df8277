"""What the figures of a machine decide about the defaults: lines for the end of the table, each where its figures are there."""
import statistics

import benchmark

LARGE = 16 << 20  # bytes: from here on a transfer's rate is the link's
ENOUGH = 0.85  # of the copy engine's rate, since that takes part of a CPU, and its pulls are not enqueued ahead
# Chunks of 256 KiB are what large variables have; each way has to come near one copy of everything.
NEAR = 0.9
WINDOWS = {"copy_engine_pull_256_kib": "the copy engine, for large variables",
           "copy_engine_pull_256_kib_two_streams": "the copy engine, with windows on two streams in turn"}
LARGER_CHUNKS = "the copy engine, with chunks of 512 KiB"


def made_of(data):
    """Pairs of what is decided, and how."""
    decided = {"how the GPU reads host memory": how_to_read, "steps enqueued ahead": how_to_enqueue,
               "workers on one GPU": how_to_share, "huge pages for tables": how_to_map}
    return [(name, text) for name, decide in decided.items() if (text := decide(data))]


def how_to_read(data):
    moves = data.get("benchmark", {}).get("moves", {})
    largest = max((int(size) for size in moves if size.isdigit()), default=0)
    if largest < LARGE:
        return None
    pulls = {name: way["GB/s"] for name, way in moves[str(largest)].items() if "pull" in name}
    engine = pulls["copy_engine_pull"]
    kernel = max((name for name in pulls if not name.startswith("copy_engine")), key=pulls.get)
    if pulls[kernel] >= ENOUGH * engine:
        verdict = "a kernel, whatever the size"
    else:
        verdict = next((text for way, text in WINDOWS.items() if pulls.get(way, 0) >= NEAR * engine), LARGER_CHUNKS)
    figures = [(name.replace("_", " "), pulls[name]) for name in (kernel, *WINDOWS) if name in pulls]
    return f"{verdict} (copy engine {engine:.1f} GB/s, " + ", ".join(f"{name} {rate:.1f}" for name, rate in figures) + ")"


def rates_of(data, mode):
    """Steps/s of three workers on one GPU, by way."""
    ways = data.get("jobs", {}).get(mode, {}).get("3", {})
    return {way: one["steps_per_second"] for way, one in ways.items()}


def how_to_enqueue(data):
    waits = data.get("benchmark", {}).get("waits", {})
    stream, processor = (waits.get(f"word_until_flag_by_{who}_us", {}).get("median") for who in ("stream", "processor"))
    rates = [rates for rates in (rates_of(data, mode) for mode in ("async", "sync")) if {"ahead", "by step"} <= set(rates)]
    reasons = [] if None in (stream, processor) else [f"a word is seen after {stream:.1f} us by the stream, {processor:.1f} by a CPU"]
    reasons += [f"steps/s of 3 workers: {one['ahead']:,.0f} ahead, {one['by step']:,.0f} by step" for one in rates]
    if not reasons:
        return None
    if None not in (stream, processor) and stream > processor:
        verdict = "no"
    else:
        verdict = "not where a GPU is shared" if rates and all(one["ahead"] < one["by step"] for one in rates) else "yes"
    return f"{verdict} ({'; '.join(reasons)})"


def how_to_share(data):
    rates = [rates for rates in (rates_of(data, mode) for mode in ("async", "sync"))
             if {"ahead", "by step", "threads of one process"} <= set(rates)]
    if not rates:
        return None
    pairs = [(one["threads of one process"], max(one["ahead"], one["by step"])) for one in rates]
    verdict = "threads of one process" if all(threads > processes for threads, processes in pairs) else "processes"
    return f"{verdict} (steps/s of 3: " + "; ".join(f"{threads:,.0f} as threads, {processes:,.0f} as processes"
                                                    for threads, processes in pairs) + ")"


def how_to_map(data):
    found = data.get("benchmark", {})
    small, large = ({(case["elements"], case["ids"], case["batch"]): case["pull"]["rows/s"]
                     for case in found.get(name, {}).get("cases", [])} for name in (benchmark.SMALL_TABLE, "rows"))
    both = small.keys() & large.keys()
    if not both:
        return None
    share = statistics.median(large[case] / small[case] for case in both)
    return (f"{'yes' if share < 0.5 else 'no'} (rows of {found['rows']['table_bytes'] >> 20:,} MiB are pulled with {share:.0%} of "
            f"the rate of those of {benchmark.SMALL_TABLE_MIB} MiB)")
