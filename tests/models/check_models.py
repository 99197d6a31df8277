"""Searches every state of the protocol models with Spin: what shall hold holds, and what is broken on purpose is found.

usage: check_models.py [MODEL]    PS_SHM_TEST_FULL in the environment: the large cases too
"""
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
HOLDS, FAILS = "holds", "fails"

# model, defines, what is expected, what it shows
CASES = [
    ("slot", "", HOLDS, "two writers, a stale reader, buffers that move between chunks"),
    ("slot", "KILLS=1 PULLS=0 CHUNKS=1", HOLDS, "a dead holder's free buffer is recovered while the other pushes (slot.V6)"),
    ("slot", "NO_RECHECK", FAILS, "slot.R3 is needed"),
    ("slot", "NO_CHUNK", FAILS, "the stamp needs the chunk (slot.V1)"),
    ("slot", "LATE_STAMP", FAILS, "slot.W3 is before slot.W4"),
    ("slot", "NO_VERSION", FAILS, "slot.W6 compares the version"),
    ("slot", "CLEAR_FIRST KILLS=1 PULLS=0 CHUNKS=1", FAILS, "won is one store (slot.V5)"),
    ("slot", "REUSE KILLS=1 PULLS=0", FAILS, "a free buffer in flight is not reused unsettled (slot.V6)"),
    ("slot", "TRUST_FLIGHT RANKS=3 PUSHES=1 KILLS=1 PULLS=0 CHUNKS=1", FAILS, "a record in flight proves nothing (slot.V6)"),
    ("slot", "GUESS KILLS=1 PULLS=0 CHUNKS=1", FAILS, "a fate is never guessed while others live (slot.V6)"),
    ("barrier", "LEAVES=1", HOLDS, "one dies anywhere, one leaves with a gradient published or not"),
    ("barrier", "QUORUM=1", HOLDS, "a backup worker: late gradients are dropped, and counted"),
    ("barrier", "HOLDERS=2 CHUNKS=1", HOLDS, "a new holder adopts what its predecessor has published (barrier.B4)"),
    ("barrier", "PUBLICATION_FIRST", FAILS, "barrier.A2 looks at liveness first (barrier.B2)"),
    ("barrier", "ACTIVE_LAST HOLDERS=2", FAILS, "and at active_from before the publication (barrier.B2)"),
    ("barrier", "NEVER_DEAD", FAILS, "a hang is found"),
    ("barrier", "BACKWARDS QUORUM=1", FAILS, "barrier.A4 never moves backwards (barrier.B3)"),
    ("barrier", "NO_ROUND_CHECK QUORUM=1", FAILS, "barrier.A5 looks at the round behind the proposal (barrier.B6)"),
    ("barrier", "EARLY_OPEN", FAILS, "barrier.A6 once every chunk includes the step (barrier.B6)"),
    ("barrier", "LATE_NOTE QUORUM=1", FAILS, "who was in and is late is noted before the next set is written (barrier.B11)"),
    ("barrier", "NO_ADOPTION HOLDERS=2", FAILS, "a segment that the step needs stays (barrier.B4)"),
    ("barrier", "SAME_SEGMENT HOLDERS=2", FAILS, "a new holder has its own segment (locks.L5)"),
    ("names", "KILLS=0", HOLDS, "two creators find a dead job, a worker joins"),
    ("names", "CREATORS=1 REMOVERS=1", HOLDS, "reclaimed, cleared up and joined at once, with a death"),
    ("names", "CREATORS=2 WORKERS=0 START=2", HOLDS, "two creators find a job half removed, one dies"),
    ("names", "CREATORS=1 ADDERS=1 WORKERS=0 START=3", HOLDS, "adopting while the last task ends, with a death (names.N5)"),
    ("names", "CREATORS=2 WORKERS=0 START=3 KILLS=0", HOLDS, "two adopt the same task"),
    ("names", "CREATORS=2 ADDERS=1 WORKERS=0 START=0 KILLS=0", HOLDS, "a task joins one of two; no name is left"),
    ("names", "NO_LINK_CHECK KILLS=0", FAILS, "the name is looked at after taking a byte (names.N3)"),
    ("names", "CONTROL_ONLY CREATORS=1 REMOVERS=1", FAILS, "also a shard's: the removal may have been cut short (names.N3)"),
    ("names", "LATE_CHECK CREATORS=2 ADDERS=1 WORKERS=0 KILLS=0", FAILS, "and before a shard is named (names.N3)"),
    ("names", "NO_RANGE_LOCK WORKERS=0 KILLS=0", FAILS, "unlinking needs the whole range (names.N2)"),
    ("names", "NO_NAME_CHECK WORKERS=0 KILLS=0", FAILS, "and the name to lead to it (names.N2)"),
    ("names", "CONTROL_FIRST WORKERS=0 KILLS=0", FAILS, "the control segment goes last (names.N2)"),
    ("names", "NAME_FIRST WORKERS=0 KILLS=0", FAILS, "it is locked before it is named (names.N1)"),
    ("names", "LOCK_IS_LIFE WORKERS=0 KILLS=0", FAILS, "who removes a job is not its life"),
    ("names", "CREATORS=1 SETTERS=1 START=0 KILLS=0", HOLDS, "one ends while a worker joins; no name is left (names.N9)"),
    ("names", "SILENT_END CREATORS=1 START=0 KILLS=0", FAILS, "a ps says that it ends the job (names.N7)"),
    ("names", "LATE_WORD CREATORS=1 START=0 KILLS=0", FAILS, "before it gives its bytes back (names.N9)"),
    ("names", "PS_CLEARS_UP CREATORS=1 START=0 KILLS=0", FAILS, "the last one out clears up (names.N9)"),
    ("names", "ADOPT_ENDED START=0 KILLS=0", FAILS, "a job that was ended is not taken over (names.N5)"),
    ("accumulator", "KILLS=0", HOLDS, "one is late, and adds while the sum is applied (barrier.B9)"),
    ("accumulator", "RANKS=2", HOLDS, "a new holder adds once what its predecessor may have added (barrier.B9)"),
    ("accumulator", "NO_LAST_LOOK KILLS=0", FAILS, "the stamp is looked at again behind the sum (barrier.B9)"),
    ("accumulator", "NO_CONTRIBUTORS", FAILS, "who is in does not add again (barrier.B9)"),
    ("accumulator", "NO_STAMP KILLS=0", FAILS, "contributors count under the stamp only (slot.V4)"),
    ("snapshot", "", HOLDS, "two push while a snapshot point is made"),
    ("snapshot", "LATE SNAPS=2", HOLDS, "a variable that comes later is in the second cut (snapshot.C6)"),
    ("snapshot", "COPYING FORCE=1", HOLDS, "a stopped snapshotter is passed by, and makes another cut (snapshot.C11)"),
    ("snapshot", "SPLIT", HOLDS, "a push that does not end splits the snapshot point, and nothing else (snapshot.C8)"),
    ("snapshot", "KILLS=1 CHUNKS=1", HOLDS, "a death of anybody, and a successor who recovers (slot.V6)"),
    ("snapshot", "KILLS=1 HOLDERS=1", HOLDS, "a death of anybody, and nobody follows"),
    ("snapshot_sync", "", HOLDS, "the state between two steps, at once or ordered (snapshot.C10, snapshot.C12)"),
    ("snapshot_sync", "SNAPS=2 KILLS=1 RANKS=1", HOLDS, "with a death, and an order that it leaves (snapshot.C12)"),
    ("snapshot", "NO_DRAIN", FAILS, "the drain is needed (snapshot.C8)"),
    ("snapshot", "NO_RECHECK", FAILS, "a push looks at the snapshot point behind its announcement (snapshot.C3)"),
    ("snapshot", "NO_FENCE", FAILS, "with a fence between (snapshot.C2)"),
    ("snapshot", "FRESH_EPOCH SNAPS=2", FAILS, "it waits for the snapshot point that it has announced (snapshot.C4)"),
    ("snapshot", "ONE_WAITER KILLS=1 CHUNKS=1", FAILS, "waiters end the pause of a dead snapshotter (snapshot.C4)"),
    ("snapshot", "NEVER_DEAD KILLS=1 CHUNKS=1 HOLDERS=1", FAILS, "a dead worker is in no push (snapshot.C8)"),
    ("snapshot", "KEEP_OLD", FAILS, "a push that forks gains the kept buffer (snapshot.C6)"),
    ("snapshot", "DROP_PRE", FAILS, "later pushes carry the fork on (snapshot.C6)"),
    ("snapshot", "EARLY_EPOCH", FAILS, "reserves come before the epoch (snapshot.C6)"),
    ("snapshot", "OLD_GAIN KILLS=1 CHUNKS=1", FAILS, "recovering goes by the gain (slot.V6)"),
    ("snapshot", "NO_HEADERS KILLS=1 CHUNKS=1 HOLDERS=1", FAILS, "and looks into headers (slot.V6)"),
    ("snapshot", "NO_LOOK", FAILS, "an image is found under the stamp's check (snapshot.C9)"),
    ("snapshot", "NO_FORCED FORCE=1", FAILS, "a forced cut is not believed (snapshot.C11)"),
    ("snapshot", "LOWER_FORCED COPYING FORCE=2 SNAPS=2 CHUNKS=1", FAILS, "and nobody takes that word back (snapshot.C11)"),
    ("snapshot_sync", "EARLY_BITS", FAILS, "the epoch moves between two steps (snapshot.C10)"),
    ("snapshot_sync", "DROP_BITS", FAILS, "deciders carry it on (snapshot.C10)"),
    ("snapshot_sync", "CUT_FIRST SNAPS=2 RANKS=1", FAILS, "helpers read the snapshot point behind the decision (snapshot.C10)"),
    ("snapshot_sync", "STALE_ORDER SNAPS=2 KILLS=1 RANKS=1", FAILS, "the order of a dead snapshotter does not count (snapshot.C12)"),
    ("snapshot_sync", "ONE_LOOK SNAPS=2 KILLS=1 RANKS=1", FAILS, "an order is read between two looks at the word (snapshot.C12)"),
    ("publication", "KILLS=0", HOLDS, "a publisher and two readers, two leases each"),
    ("publication", "READERS=1", HOLDS, "a reader and its successor, a publisher and its successor"),
    ("publication", "READERS=1 RECORDS=2", HOLDS, "with fewer records than enough, and a death"),
    ("publication", "READERS=1 KILLS=2", HOLDS, "two deaths"),
    ("publication", "NO_SECOND_LOOK READERS=1 KILLS=0", FAILS, "a lease is taken by a second look (publication.P5)"),
    ("publication", "NO_FENCE READERS=1 KILLS=0", FAILS, "behind a fence (publication.P4)"),
    ("publication", "OLD_LOOK READERS=1 KILLS=0", FAILS, "leases are read after the move before (publication.P1)"),
    ("publication", "EARLY_NAME READERS=1 KILLS=0", FAILS, "the record is whole before it is named (publication.P8)"),
    ("publication", "CLEARS READERS=1", FAILS, "nobody clears the lease of the dead (publication.P2)"),
    ("publication", "REMEMBERS READERS=1", FAILS, "nobody remembers who is dead (publication.P2)"),
    ("publication", "BLIND READERS=1", FAILS, "a new publisher looks at the leases, too (publication.P2)"),
    ("publication", "DEAD_COUNT READERS=1 RECORDS=2", FAILS, "the dead count for nothing (publication.P2)"),
    ("publication", "READERS=1 TRIM", HOLDS, "a publisher that gives memory back (publication.P14)"),
    ("publication", "READERS=1 KILLS=0 TRIM TRIM_OLD_LOOK", FAILS, "by leases that are read after the move (publication.P14)"),
    ("publication", "BYTE_LAST READERS=1", FAILS, "the publisher's byte is looked at first (publication.P13)"),
    ("age", "", HOLDS, "two workers, limit 1: one of them always gets through (steps.D1 to steps.D3)"),
    ("age", "WORKERS=3 STEPS=2", HOLDS, "three workers"),
    ("age", "LIMIT=2", HOLDS, "limit 2"),
    ("age", "LATE_NOTE", FAILS, "the global step is noted before the values are pulled (steps.D1)"),
    ("age", "OWN_STEPS", FAILS, "own steps do not age a gradient (steps.D1)"),
    ("age", "EACH_PUSH", FAILS, "a step is decided once (steps.D2)"),
    ("age", "COUNT_DROPPED", FAILS, "a dropped step is not counted (steps.D3)"),
    ("round", "KILLS=0 ABORTS=2", HOLDS, "two writers of a generation; steps are tried again or given up"),
    ("round", "", HOLDS, "a death of leader or writer"),
    ("round", "WRITERS=3 KILLS=0", HOLDS, "three writers"),
    ("round", "RECORDS=2 STEPS=3", HOLDS, "two records in turns, with a death"),
    ("round", "READERS=1 STEPS=3 LEASES=2 KILLS=0", HOLDS, "a reader beside them"),
    ("round", "READERS=1 STEPS=3 LEASES=2 RECORDS=2 KILLS=0", HOLDS, "for which the leader waits where there are two records"),
    ("round", "FORGETS", FAILS, "a new writer keeps what its predecessor has done (round.R7)"),
    ("round", "EARLY_DONE KILLS=0", FAILS, "done is said behind the writing (round.R3)"),
    ("round", "REREAD KILLS=0", FAILS, "for the attempt that was written (round.R3)"),
    ("round", "SAME_ATTEMPT KILLS=0", FAILS, "each attempt has its number (round.R1)"),
    ("round", "NO_STEP KILLS=0", FAILS, "all write the same step (round.R2)"),
    ("round", "DEAD_DONE", FAILS, "the dead have not done (round.R4)"),
    ("round", "CLOSE_FIRST KILLS=0", FAILS, "a round is closed behind its commit (round.R5)"),
    ("round", "NEWEST_FIRST KILLS=0", FAILS, "a writer reads newest behind the end of its attempt (round.R9)"),
    ("round", "BLIND READERS=1 RECORDS=2 STEPS=3 KILLS=0", FAILS, "a leased record is not written (publication.P2)"),
    ("table", "", HOLDS, "two workers push while rows are evicted"),
    ("table", "VICTIM=1 SECOND=0", HOLDS, "a worker dies beside a hand that evicts and repairs"),
    ("table", "VICTIM=1 CHOICE=false EVICTS=false", HOLDS, "and beside another worker that makes the same row"),
    ("table", "VICTIM=3 SECOND=0 TURNS=2", HOLDS, "a hand dies, and the next one repairs"),
    ("table", "TWO_HANDS TURNS=2", HOLDS, "two hands evict the same row"),
    ("table", "PULL FIRST=2", HOLDS, "a row is used again while it is pulled"),
    ("table", "BUCKET CHOICE=true TURNS=0", HOLDS, "two workers link a bucket"),
    ("table", "BUCKET FIRST=2 SECOND=0", HOLDS, "a bucket is linked while rows beside it are evicted"),
    ("table", "BUCKET VICTIM=1 TURNS=0", HOLDS, "one dies while it links a bucket"),
    ("table", "NO_SCAN SECOND=0", FAILS, "pins are scanned before a row is evicted (table.E3)"),
    ("table", "OLD_DEAD VICTIM=1 SECOND=0", FAILS, "and who is alive is asked behind the seal (table.E3)"),
    ("table", "NO_LOOK", FAILS, "a row is looked at once it is pinned (table.P3)"),
    ("table", "NO_RESCUE SECOND=0", FAILS, "a sealed row is made live again before it is pushed (table.P3)"),
    ("table", "NO_PATH", FAILS, "a search looks at the word before once more (table.F2)"),
    ("table", "NO_NUMBER", FAILS, "words have a number that goes up"),
    ("table", "EARLY_LIVE", FAILS, "a row is live once it is linked (table.I6)"),
    ("table", "BLIND_NEW", FAILS, "a hand leaves a row that somebody is about to link (table.E1)"),
    ("table", "BLIND_FREE", FAILS, "and one that somebody is making (table.E1)"),
    ("table", "LATE_NOTE", FAILS, "the note comes before the claim (table.I1)"),
    ("table", "STORED_CLAIM", FAILS, "a claim is an exchange (table.I2)"),
    ("table", "KEPT_NOTE VICTIM=1", FAILS, "a lane takes its note back (table.I7)"),
    ("table", "NEWER_WORD TWO_HANDS VICTIM=1 TURNS=2 EVICTS=false", FAILS, "a row is freed from the word that was judged (table.E8)"),
    ("table", "LATE_WORD BUCKET CHOICE=true TURNS=0", FAILS, "a bucket's word is read before the search (table.G1)"),
    ("table", "NO_SECOND_WORD PULL FIRST=2", FAILS, "a pull reads the row's word again (table.R3)"),
]

# The same with more processes, steps or deaths.
LARGE_CASES = [
    ("slot", "KILLS=1 CHUNKS=1", HOLDS, "a death, recovering and a stale reader at once"),
    ("slot", "KILLS=2 PULLS=0 CHUNKS=1", HOLDS, "two deaths, of both or of a successor; recovering jointly"),
    ("slot", "RANKS=3 PUSHES=1 KILLS=1 PULLS=0 CHUNKS=1", HOLDS, "recovering while two others push"),
    ("slot", "PULLS=2", HOLDS, "two pulls"),
    ("barrier", "HOLDERS=2", HOLDS, "a new holder, two chunks"),
    ("barrier", "HOLDERS=2 QUORUM=1 CHUNKS=1", HOLDS, "backup worker and new holder"),
    ("barrier", "KILLS=2 HOLDERS=2 CHUNKS=1 STEPS=1", HOLDS, "the successor dies too"),
    ("barrier", "STEPS=3", HOLDS, "three steps"),
    ("names", "", HOLDS, "two creators and a worker, with a death"),
    ("names", "CREATORS=1 ADDERS=1 START=3 KILLS=0", HOLDS, "adopting or adding while a worker joins"),
    ("names", "CREATORS=2 WORKERS=0 START=3", HOLDS, "two adopt the same task, with a death"),
    ("names", "ADDERS=1 WORKERS=0 START=0", HOLDS, "a task joins one of two, with a death"),
    ("accumulator", "KILLS=1", HOLDS, "a death among three"),
    ("snapshot", "COPYING FORCE=2", HOLDS, "two waiters lose patience"),
    ("snapshot", "COPYING SPLIT FORCE=1", HOLDS, "a snapshotter loses patience, and so does a waiter"),
    ("snapshot", "NO_CHECK ALONE PUSHES=2 SPLIT KILLS=1 HOLDERS=1", FAILS, "a fork counts under the stamp's check (snapshot.C5)"),
    ("snapshot", "LATE SNAPS=2 CHUNKS=1 KILLS=1", HOLDS, "a death while a reserve comes for the second cut"),
    ("publication", "LEASES=1", HOLDS, "two readers, and a death"),
    ("publication", "LEASES=1 RECORDS=2", HOLDS, "with two records"),
    ("publication", "LEASES=1 TRIM", HOLDS, "with memory that is given back"),
    ("publication", "READERS=1 KILLS=3 GENERATIONS=4", HOLDS, "three deaths"),
    ("round", "ABORTS=2", HOLDS, "a death, and two that give up or try again"),
    ("round", "KILLS=2 RECORDS=2", HOLDS, "two deaths"),
    ("round", "READERS=1 RECORDS=2 STEPS=3 ABORTS=0", HOLDS, "a death beside a reader"),
    ("table", "VICTIM=1 SECOND=0 TURNS=2", HOLDS, "a death, two evictions and repairs"),
    ("table", "VICTIM=1 EVICTS=false", HOLDS, "a death beside another worker, with two keys"),
    ("table", "TWO_HANDS FIRST=2 TURNS=2", HOLDS, "two hands, and a row that is used again"),
    ("table", "BUCKET VICTIM=1 CHOICE=true TURNS=0", HOLDS, "a death while two link a bucket"),
]

SECONDS, LARGE_SECONDS = 60, 300
MEGABYTES, LARGE_MEGABYTES = 2000, 6000
DEPTH = 3000000
CUT_SHORT = ("Search not completed", "max search depth too small", "out of memory", "MEMLIM", "hash conflicts too high")


class Trouble(Exception):
    """The search itself went wrong: nothing is shown."""


def run(command, folder, seconds, megabytes):
    """Its exit code and output. The limit is on seconds of the processor, so that a loaded machine changes nothing."""

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    done = subprocess.run(command, cwd=folder, preexec_fn=limit, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if -done.returncode in (signal.SIGXCPU, signal.SIGKILL):
        raise Trouble(f"{command[0]} did not end within {seconds} s")
    return done.returncode, done.stdout


def search(model, defines, optimization, seconds, megabytes):
    """The output of an exhaustive search, up to the first error."""
    with tempfile.TemporaryDirectory(prefix="models_") as folder:
        flags = [f"-D{define}" for define in defines.split()]
        code, output = run(["spin", *flags, "-a", str(HERE / f"{model}.pml")], folder, 30, 1000)
        if code != 0 or "Error" in output or not (pathlib.Path(folder) / "pan.c").exists():
            raise Trouble(f"spin: {output.strip()}")
        compiler = os.environ.get("CC", "cc").split()
        code, output = run([*compiler, optimization, "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048",
                            f"-DMEMLIM={megabytes}", "-o", "pan", "pan.c"], folder, 120, 4000)
        if code != 0:
            raise Trouble(f"{compiler[0]}: {output.strip()}")
        code, output = run(["./pan", f"-m{DEPTH}", "-w22"], folder, seconds, megabytes + 1000)
        if code < 0:
            raise Trouble(f"pan was ended by signal {-code}")
        return output


def judge(output):
    """HOLDS or FAILS. A search that was cut short shows neither, unless it has found an error."""
    errors = re.search(r"errors: (\d+)", output)
    if errors is None:
        raise Trouble(f"no result: {output.strip()[-500:]}")
    found = re.search(r"pan:\d+: (assertion violated|invalid end state)", output)
    if int(errors[1]) > 0:
        if not found:
            raise Trouble(f"an error of another kind: {output.strip()[:500]}")
        return FAILS
    for sign in CUT_SHORT:
        if sign in output:
            raise Trouble(f"cut short: {sign}")
    if not re.search(r"assertion violations\s+\+", output) or not re.search(r"invalid end states\s+\+", output):
        raise Trouble("the search looked for something else")
    return HOLDS


def main():
    if shutil.which("spin") is None:
        print("skip: spin is not installed")
        return 77
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    # Compiling takes longer than most searches.
    cases = [(*case, "-O1" if case[2] == HOLDS else "-O0", SECONDS, MEGABYTES) for case in CASES]
    if os.environ.get("PS_SHM_TEST_FULL"):
        cases += [(*case, "-O2", LARGE_SECONDS, LARGE_MEGABYTES) for case in LARGE_CASES]
    wrong = 0
    for model, defines, expected, shows, *limits in cases:
        if wanted not in (None, model):
            continue
        begin = time.monotonic()
        try:
            output = search(model, defines, *limits)
            found = judge(output)
            states = int(float(re.search(r"([\d.e+]+) states, stored", output)[1]))
        except Trouble as trouble:
            found, states = f"no result ({trouble})", 0
        wrong += found != expected
        verdict = "ok" if found == expected else f"WRONG, it {found}" if states else f"WRONG: {found}"
        print(f"{verdict:5} {model:11} {defines:55} {expected} {states:>10,} states {time.monotonic() - begin:6.1f} s  "
              f"{shows}", flush=True)
    print(f"{wrong} wrong" if wrong else "all as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
