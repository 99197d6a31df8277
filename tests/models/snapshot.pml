/* Consistent cuts: src/shm/steps/snapshot_point.hpp and snapshot_point.cpp, on top of src/shm/slots/versioned_slot.hpp and recovery.cpp.
 * Sync mode has its own: snapshot_sync.pml.
 *
 * RANKS workers push PUSHES times each, to chunk 0 and then to chunk 1, each from one spare buffer. Snapshotters, one
 * after the other, make SNAPS cuts and copy their images. At most KILLS of all these are killed, at any step; the next
 * holder of a rank settles what its predecessor had in flight. A process may stop at any step for as long as it likes.
 * The chunks are variables of their own. No chunk has a reserve at first. LATE: the last one gets its reserve for the
 * second cut only, and is in no image before. ALONE: rank 0 pushes to chunk 0 alone, and the others push once.
 * SPLIT: a snapshotter may lose patience with pushes that do not end. FORCE: that often waiters lose patience with a
 * snapshotter. COPYING: there is a variable in place, which is copied under the pause.
 *
 * Checked
 *   - the cut: each push is in all images or in none. It is in exactly if its epoch is below the cut's. What was killed
 *     within the push, or what the cut says that it is split by, may be in some images
 *   - images are whole; nobody overwrites a current buffer or a kept one (slot.W3)
 *   - no lost update; slot.V6: the fate that settling finds is what happened; once all stand still, every fate is found
 *   - conservation: at the end each buffer is named by exactly one word, current header, unused reserve or spare record
 *   - the living never hang, neither on dead workers nor on dead snapshotters
 * Left out
 *   - memory orders, but for the store of snapshot.C2 that may stay behind the load of snapshot.C3
 *   - several spares and settling jointly (slot_scenes.cpp); accumulators; time: patience may end at any moment
 *
 * Broken on purpose, one at a time
 *   NO_DRAIN      pushes of the new epoch do not wait for those of the old one (snapshot.C8)
 *   NO_RECHECK    a push looks at the cut before its announcement, and not again behind it (snapshot.C3)
 *   NO_FENCE      the announcement is still on its way when the push looks at the cut (snapshot.C2)
 *   FRESH_EPOCH   a push waits for another cut than the one that its announcement is about (snapshot.C4)
 *   ONE_WAITER    only the snapshotter ends the pause: a dead one holds everybody up (snapshot.C4)
 *   NEVER_DEAD    the drain does not look at the locks (snapshot.C8)
 *   KEEP_OLD      a push that forks takes the replaced buffer for its own (snapshot.C6)
 *   DROP_PRE      later pushes of the epoch do not carry the kept buffer on (snapshot.C6)
 *   EARLY_EPOCH   reserves are made after the epoch has moved (snapshot.C6)
 *   OLD_GAIN      settling takes the replaced buffer for the gained one (slot.V6)
 *   NO_HEADERS    settling does not look for buffers in headers (slot.V6)
 *   NO_CHECK      a push believes a fork without the stamp's check (snapshot.C5)
 *   NO_LOOK       a snapshotter does so (snapshot.C9)
 *   NO_FORCED     a snapshotter believes a cut that a waiter has forced (snapshot.C11)
 *   LOWER_FORCED  a waiter that has slept takes the word of a later one back (snapshot.C11)
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef PUSHES
#define PUSHES 1
#endif
#ifndef SNAPS
#define SNAPS 1
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef FORCE
#define FORCE 0
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef HOLDERS
#define HOLDERS 2 /* 1: nobody follows who is killed */
#endif
#define BIT(push) (1 << (push))

bool lock[RANKS], killed[RANKS], snap_lock, snap_killed;
byte kills, done, snaps;
bool snap_done;

/* JobStateShm::cut, one word {epoch, state}, and `forced`. */
#define OPEN 0
#define DRAINING 1
#define IS_COPYING 2
byte epoch, state, forced;

/* Buffers from 1 on: first ones, reserves, spares. */
#define FIRST(chunk) (1 + (chunk))
#define RESERVE(chunk) (1 + CHUNKS + (chunk))
#define SPARE(rank) (1 + 2 * CHUNKS + (rank))
#define BUFFERS (1 + 2 * CHUNKS + RANKS)
#define BUILDING 255
#define CHUNK(chunk) ((chunk) << 7) /* in its bytes */

/* WorkerShm::pushing: epoch + 1 of the push under way, or 0. */
byte pushing[RANKS];
#ifdef NO_FENCE
byte buffered[RANKS]; /* not yet seen by others; 255: nothing */
#endif

/* Chunk words {version, buffer}, and whether the chunk has a reserve. */
byte version[CHUNKS], buffer[CHUNKS];
bool reserve[CHUNKS];

/* Headers, with the fork {epoch, buffer}; bytes in two halves: the set of pushes that are in. */
byte stamp_chunk[BUFFERS], stamp_version[BUFFERS], fork_epoch[BUFFERS], fork_buffer[BUFFERS];
byte low[BUFFERS], high[BUFFERS];

/* A variable in place. */
byte inplace;

/* Spare records {in flight, buffer}, each with its note {chunk, word, gain}. */
bool in_flight[RANKS];
byte spare[RANKS], note_chunk[RANKS], note_version[RANKS], note_buffer[RANKS], note_gain[RANKS];

/* Not in the segment: what has really happened, and how far the run is. Sets of pushes. */
bool swapped[RANKS];
byte now[RANKS]; /* number of the push under way + 1 */
byte started, ended, in_cut, excused, forces;

#ifdef ALONE
#define PUSHES_OF(r) ((r) == 0 -> PUSHES : 1)
#define LAST(r) ((r) == 0 -> 1 : CHUNKS)
#define PUSHED_TO(c) ((c) == 0 -> 255 : 255 - BIT(PUSHES) + 1)
#else
#define PUSHES_OF(r) PUSHES
#define LAST(r) CHUNKS
#define PUSHED_TO(c) 255
#endif

#define KEPT(c, q) ((q) != 0 -> (q) : (reserve[c] -> RESERVE(c) : 0))

#ifdef NEVER_DEAD
#define IS_DEAD(k) false
#else
#define IS_DEAD(k) (!lock[k])
#endif
/* Whether rank k is in no push of an epoch before e; whether it is, since before the cut before. */
#define IS_OUT(k, e) (pushing[k] == 0 || pushing[k] > (e) || IS_DEAD(k))
#define IS_STUCK(k, e) (pushing[k] < (e))
#if RANKS == 2
#define OTHERS_OUT(e) (IS_OUT(1 - r, e))
#define NONE_OLD(e) ((IS_OUT(0, e) || IS_STUCK(0, e)) && (IS_OUT(1, e) || IS_STUCK(1, e)))
#else
#define OTHERS_OUT(e) (IS_OUT((r + 1) % 3, e) && IS_OUT((r + 2) % 3, e))
#define NONE_OLD(e) ((IS_OUT(0, e) || IS_STUCK(0, e)) && (IS_OUT(1, e) || IS_STUCK(1, e)) && (IS_OUT(2, e) || IS_STUCK(2, e)))
#endif

#ifdef COPYING
#define BEHIND IS_COPYING
#else
#define BEHIND OPEN
#endif

/* Looks for a word, a current header or a settled record that names buffer `it`. What it finds proves something, what it
 * does not find proves nothing. A header counts under the check of its stamp, of a word that was read before. */
inline find_name(it) {
  named = 0; i = 0;
  do
  :: i < CHUNKS && !named ->
     d_step { v = version[i]; b = buffer[i]; named = (b == it) }
#ifndef NO_HEADERS
     d_step {
       named = named || (stamp_chunk[b] == i && stamp_version[b] == v && KEPT(i, fork_buffer[b]) == it)
     }
#endif
     d_step { i++; v = 0; b = 0 }
  :: i >= CHUNKS && i < CHUNKS + RANKS && !named ->
     d_step { named = (!in_flight[i - CHUNKS] && spare[i - CHUNKS] == it); i++ }
  :: else -> break
  od;
  i = 0
}

#ifdef OLD_GAIN
#define GAIN(k) note_buffer[k]
#else
#define GAIN(k) note_gain[k]
#endif

/* One look of settling at rank k's record: ClassCensus::fate_of and note_fate. */
inline look_at_fate(k) {
  d_step {
    fate = (version[note_chunk[k]] == note_version[k] && buffer[note_chunk[k]] == note_buffer[k] -> 1 : 0)
  }
  if
  :: fate == 0 ->
     find_name(spare[k]);
     if
     :: named -> fate = 2
     :: else ->
        find_name(GAIN(k));
        if
        :: named -> fate = 1
        :: else
        fi
     fi
  :: else
  fi;
  d_step {
    if
    :: fate != 0 ->
       assert((fate == 2) == swapped[k]);
       spare[k] = (fate == 2 -> GAIN(k) : spare[k]); in_flight[k] = 0; swapped[k] = 0
    :: else
    fi;
    fate = 0; named = 0
  }
}

/* VersionedVariable::push_chunk and try_swap, of chunk c. */
inline push_chunk() {
  do
  :: d_step { v = version[c]; b = buffer[c] } /* slot.W1 */
     d_step { t = fork_epoch[b]; q = fork_buffer[b] } /* snapshot.C5 */
     d_step {
       whole = (t >= e || (stamp_chunk[b] == c && stamp_version[b] == v));
#ifdef NO_CHECK
       whole = 1
#endif
     }
     if
     :: !whole -> goto again
     :: else
     fi;
     d_step { /* snapshot.C6 */
       g = b;
       if
       :: t < e && KEPT(c, q) != 0 ->
#ifndef KEEP_OLD
          g = KEPT(c, q);
#endif
          t = e; q = b
       :: else
#ifdef DROP_PRE
          if
          :: q != 0 -> g = q; q = b
          :: else
          fi
#endif
       fi;
       note_chunk[r] = c; note_version[r] = v; note_buffer[r] = b; note_gain[r] = g
     }
     d_step { in_flight[r] = 1; s = spare[r] } /* slot.W2 */
     d_step { stamp_chunk[s] = BUILDING; stamp_version[s] = BUILDING } /* slot.W3 */
     d_step {
       do
       :: i < CHUNKS -> assert(buffer[i] != s && KEPT(i, fork_buffer[buffer[i]]) != s); i++
       :: else -> break
       od;
       i = 0;
       low[s] = low[b] | BIT(p) /* slot.W4 */
     }
     d_step { high[s] = high[b] | BIT(p) }
     d_step { fork_epoch[s] = t; fork_buffer[s] = q } /* snapshot.C6 */
     d_step { stamp_chunk[s] = c; stamp_version[s] = v + 1 } /* slot.W5 */
     d_step { /* slot.W6 */
       if
       :: version[c] == v && buffer[c] == b ->
          assert(low[s] == high[s] && low[s] == (low[b] | BIT(p)));
          version[c] = v + 1; buffer[c] = s; swapped[r] = 1; won = 1
       :: else
       fi
     }
     if
     :: won -> d_step { spare[r] = g; in_flight[r] = 0; swapped[r] = 0; won = 0 }; break /* slot.S2 */
     :: else -> in_flight[r] = 0
     fi;
again:
     atomic { v = 0; b = 0; s = 0; t = 0; q = 0; g = 0; whole = 0 }
  od;
  atomic { v = 0; b = 0; s = 0; t = 0; q = 0; g = 0; whole = 0 }
}

/* Ends the pause of the cut {w, x}, which was read before. */
#define MOVE_ON(w, x, to) d_step { \
    if \
    :: epoch == w && state == x -> state = to \
    :: else \
    fi \
  }

/* wait_until_open, for epoch w. */
inline wait_until_open() {
  do
  :: d_step { epoch != w || state == OPEN -> w = 0; x = 0 }; break
#ifndef ONE_WAITER
  :: d_step { epoch == w && state == DRAINING && OTHERS_OUT(w) -> x = state }
     MOVE_ON(w, x, BEHIND)
  :: d_step { epoch == w && state != OPEN && (!snap_lock || forces < FORCE) ->
              x = state; forces = (snap_lock -> forces + 1 : forces) }
     d_step { /* snapshot.C11 */
#ifdef LOWER_FORCED
       forced = w
#else
       forced = (forced < w -> w : forced)
#endif
     }
     MOVE_ON(w, x, OPEN)
#endif
  od
}

#define BEGUN() now[r] = p + 1; started = started | BIT(p); in_cut = (e < epoch -> in_cut | BIT(p) : in_cut)

/* begin_push */
inline begin_push() {
#ifdef NO_RECHECK
  d_step { state == OPEN -> e = epoch; BEGUN() }
  pushing[r] = e + 1;
#else
  e = epoch; /* snapshot.C1 */
  do
  :: /* snapshot.C2 */
#ifdef NO_FENCE
     buffered[r] = e + 1;
#else
     pushing[r] = e + 1;
#endif
     d_step { /* snapshot.C3 */
       w = epoch; x = state;
       if
       :: w == e && x == OPEN -> BEGUN()
       :: else
       fi
     }
     if
     :: w == e && x == OPEN -> break
     :: w == e && x != OPEN -> /* snapshot.C4 */
#ifdef FRESH_EPOCH
        w = epoch;
#endif
        wait_until_open()
     :: w != e -> e = w
     fi
  od;
#endif
#ifdef NO_FENCE
  pushing[r] = buffered[r];
  buffered[r] = 255
#endif
}

/* The holders of rank r, one after the other. */
proctype worker(byte r) {
  byte c, v, b, s, t, q, g, e, p, i, n, w, x, fate;
  bool won, named, whole;

join:
  {
    d_step { !lock[r] -> lock[r] = 1 }
    pushing[r] = 0; /* ranks.J1 */
    do
    :: in_flight[r] -> look_at_fate(r)
    :: else -> break
    od;
    do
    :: n < PUSHES_OF(r) ->
       p = r * PUSHES + n;
       begin_push();
       atomic { c = 0; w = 0; x = 0 }
       do
       :: c < LAST(r) -> push_chunk(); c++
       :: else -> break
       od;
#ifdef COPYING
       inplace = inplace | BIT(p);
#endif
       atomic { now[r] = 0; ended = ended | BIT(p) }
       pushing[r] = 0; /* snapshot.C7 */
       atomic { n++; e = 0; p = 0; c = 0 }
    :: else -> break
    od
  } unless { killed[r] };
  atomic { c = 0; v = 0; b = 0; s = 0; t = 0; q = 0; g = 0; e = 0; i = 0; w = 0; x = 0; fate = 0;
           won = 0; named = 0; whole = 0 }
  if
  :: HOLDERS > 1 && killed[r] -> d_step { killed[r] = 0; n = (started & BIT(p) -> n + 1 : n); p = 0 }; goto join
  :: killed[r] -> d_step { killed[r] = 0; p = 0; n = 0; done++ } /* nobody follows */
  :: else -> d_step { done++; lock[r] = 0; n = 0 }
  fi
}

/* What the cut says that it is split by: who is in a push of an older epoch. */
inline note_split() {
  do
  :: i < RANKS -> excused = (now[i] != 0 && !IS_OUT(i, e) -> excused | BIT(now[i] - 1) : excused); i++
  :: else -> break
  od;
  i = 0
}

inline make_reserves() {
#ifdef LATE
  if
  :: snaps > 0 -> reserve[CHUNKS - 1] = 1
  :: else
  fi
#else
  reserve[CHUNKS - 1] = 1;
#endif
#if CHUNKS > 1
  reserve[0] = 1
#endif
}

/* CutMaker::drain, Snapshot::Impl::take and pull_image. */
proctype snapshotter() {
  byte e, c, v, b, t, q, x, y, i;
  bool whole;

again:
  {
    d_step { !snap_lock -> snap_lock = 1 }
    do
    :: snaps < SNAPS ->
#ifndef EARLY_EPOCH
       make_reserves();
#endif
attempt:
       skip;
       d_step { epoch++; state = DRAINING; e = epoch; in_cut = started } /* snapshot.C8 */
#ifdef EARLY_EPOCH
       make_reserves();
#endif
       do
#ifdef NO_DRAIN
       :: d_step { epoch == e && state == DRAINING -> state = BEHIND }
#else
       :: d_step { epoch == e && state == DRAINING && NONE_OLD(e) -> note_split() }
          MOVE_ON(e, DRAINING, BEHIND)
#ifdef SPLIT
       :: d_step { epoch == e && state == DRAINING && !NONE_OLD(e) -> note_split() }
          MOVE_ON(e, DRAINING, BEHIND)
#endif
#endif
       :: state != DRAINING -> break
       od;
#ifdef COPYING
       x = inplace;
       MOVE_ON(e, IS_COPYING, OPEN)
#endif
#ifndef NO_FORCED
       if
       :: forced == e -> x = 0; goto attempt /* snapshot.C11 */
       :: else
       fi;
#endif
#ifdef COPYING
       skip;
       d_step { assert((x & ~excused) == (in_cut & ~excused)); x = 0 }
#endif
       c = 0;
       do
       :: c < CHUNKS && reserve[c] ->
          do /* snapshot.C9 */
          :: d_step { v = version[c]; b = buffer[c] } /* slot.R1 */
             d_step { t = fork_epoch[b]; q = fork_buffer[b] }
             d_step {
               whole = (stamp_chunk[b] == c && stamp_version[b] == v);
#ifdef NO_LOOK
               whole = 1
#endif
             }
             if
             :: whole && t < e ->
                x = low[b];
                y = high[b];
                d_step { whole = (stamp_chunk[b] == c && stamp_version[b] == v) }
             :: whole && t >= e ->
                x = low[q];
                y = high[q]
             :: else
             fi;
             if
             :: whole -> break
             :: else
             fi
          od;
          v = 0;
          d_step {
            assert(x == y && (x & CHUNK(1)) == CHUNK(c));
            x = x & ~CHUNK(1);
            assert((x & ~excused) == (in_cut & ~excused & PUSHED_TO(c)));
            c++; b = 0; t = 0; q = 0; x = 0; y = 0; whole = 0
          }
       :: c < CHUNKS && !reserve[c] -> c++
       :: else -> break
       od;
       atomic { snaps++; e = 0; c = 0 }
    :: else -> break
    od
  } unless { snap_killed };
  atomic { e = 0; c = 0; v = 0; b = 0; t = 0; q = 0; x = 0; y = 0; i = 0; whole = 0 }
  if
  :: HOLDERS > 1 && snap_killed -> snap_killed = 0; goto again
  :: snap_killed -> snap_killed = 0; snap_done = 1 /* nobody follows */
  :: else -> d_step { snap_done = 1; snap_lock = 0 }
  fi
}

#define KILL(r) d_step { kills < KILLS && lock[r] && !killed[r] -> killed[r] = 1; lock[r] = 0; kills++; \
    excused = (now[r] != 0 -> excused | BIT(now[r] - 1) : excused); now[r] = 0 }

/* The kernel drops the lock of who is killed. */
proctype killer() {
end:
  do
  :: KILL(0)
  :: KILL(1)
#if RANKS > 2
  :: KILL(2)
#endif
  :: d_step { kills < KILLS && snap_lock && !snap_killed -> snap_killed = 1; snap_lock = 0; kills++ }
  od
}

init {
  byte i, k, v, b, n, fate;
  bool named;
  d_step {
    do
    :: i < CHUNKS -> buffer[i] = FIRST(i); stamp_chunk[FIRST(i)] = i; low[FIRST(i)] = CHUNK(i); high[FIRST(i)] = CHUNK(i);
       i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < RANKS ->
       spare[i] = SPARE(i);
#ifdef NO_FENCE
       buffered[i] = 255;
#endif
       i++
    :: else -> break
    od;
    i = 0
  }
  atomic {
    do
    :: i < RANKS ->
       run worker(i); i++
    :: else -> break
    od;
    i = 0;
    run snapshotter();
#if KILLS > 0
    run killer()
#endif
  }
  done == RANKS && snap_done;
  /* Everybody has stopped: what is still in doubt can be settled by who comes next. */
  do
  :: k < RANKS && in_flight[k] -> look_at_fate(k); assert(!in_flight[k])
  :: k < RANKS && !in_flight[k] -> k++
  :: else -> break
  od;
  k = 0;
  d_step {
    do
    :: i < CHUNKS ->
       assert((ended & ~excused & PUSHED_TO(i) & ~low[buffer[i]]) == 0);
       i++
    :: else -> break
    od;
    i = 1;
    do
    :: i < BUFFERS ->
       k = 0; n = 0;
       do
       :: k < CHUNKS ->
          n = n + (buffer[k] == i) + (KEPT(k, fork_buffer[buffer[k]]) == i) + (!reserve[k] && RESERVE(k) == i); k++
       :: else -> break
       od;
       k = 0;
       do
       :: k < RANKS -> n = n + (spare[k] == i); k++
       :: else -> break
       od;
       assert(n == 1);
       i++
    :: else -> break
    od
  }
}
