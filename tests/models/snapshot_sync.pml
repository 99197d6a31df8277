/* Consistent cuts of sync mode: try_set_epoch() and epoch_to_decide() of src/shm/steps/epoch.cpp, read_decision() of
 * src/shm/steps/barrier.cpp, SnapshotPointMaker::between_steps() and before_step().
 *
 * RANKS workers apply STEPS steps, each helping with all of it. A step is decided without more ado (barrier.pml). A
 * snapshotter makes SNAPS cuts, each at once or ordered for any step, and looks at their images at any moment until it
 * gives them back. At most KILLS of all these are killed, at any step. A process may also stop at any step for as long
 * as it likes.
 *
 * Checked
 *   - each image of a cut is the chunk's state between the same two steps, until the next cut
 *   - the last step is reached if nobody is killed; the living never hang
 * Left out
 *   - the versioned slot under each chunk (snapshot.pml): a swap with its fork is one step here
 *   - memory orders; who arrives; the epoch has 3 bits in the decision instead of 12
 *
 * Broken on purpose, one at a time
 *   EARLY_BITS  the decision gets the epoch while its step is being applied (snapshot.C10)
 *   DROP_BITS   a decider does not carry on the epoch that it finds (snapshot.C10)
 *   CUT_FIRST   a helper reads the cut before there is a decision (snapshot.C10)
 *   STALE_ORDER a snapshotter leaves the order of a dead one (snapshot.C12)
 *   ONE_LOOK    a decider does not read the cut again behind the order (snapshot.C12)
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef SNAPS
#define SNAPS 1
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef STEPS
#define STEPS 2
#endif
#define CHUNKS 2

bool lock[RANKS], killed[RANKS], snap_lock, snap_killed;
byte kills, done, snaps;
bool snap_done;

/* JobStateShm::cut. */
byte epoch;
byte order; /* at_step */

/* BarrierShm: the step, and the decision, one word {step + 1, epoch's bits}. */
byte step, decided, bits;
#define MASK 7

/* Chunks: the steps that the current buffer includes; the fork {epoch, steps that the kept buffer includes}. */
byte includes[CHUNKS], fork_epoch[CHUNKS], kept[CHUNKS];

inline check_images(e, t) {
  d_step {
    do
    :: i < CHUNKS ->
       assert((fork_epoch[i] >= e -> kept[i] : includes[i]) == t);
       i++
    :: else -> break
    od;
    i = 0
  }
}

/* A worker that helps with each step until it is done, from chunk r on. */
proctype worker(byte r) {
  byte t, e, d, x, i, c;
  {
    do
    :: t = step;
       if
       :: t == STEPS -> break
       :: t < STEPS
       fi;
#ifdef CUT_FIRST
       x = epoch;
#endif
       do /* barrier.A4 */
       :: d_step { e = decided; d = bits; c = bits }
          if
          :: e > t -> break
          :: else
          fi;
#ifndef ONE_LOOK
          i = epoch; /* snapshot.C12 */
#endif
          do
          :: order != t + 1 -> break
          :: else ->
#ifdef ONE_LOOK
             c = epoch & MASK;
             break
#else
             if
             :: epoch == i -> c = i & MASK; break
             :: else -> i = epoch
             fi
#endif
          od;
          i = 0;
#ifdef DROP_BITS
          d_step {
            if
            :: decided == t -> decided = t + 1; bits = c
            :: else
            fi
          }
#else
          d_step {
            if
            :: decided == e && bits == d -> decided = t + 1; bits = c
            :: else
            fi
          }
#endif
       od;
       skip;
       d_step { c = decided; d = bits } /* barrier.A5 */
#ifndef CUT_FIRST
       x = epoch;
#endif
       d_step { e = x - ((x - d) & MASK); x = 0; d = 0 }
       if
       :: c == t + 1 && step == t ->
          c = 0;
          do
          :: c < CHUNKS ->
             d_step {
               i = (c + r) % CHUNKS;
               if
               :: includes[i] == t ->
                  if
                  :: fork_epoch[i] < e -> fork_epoch[i] = e; kept[i] = includes[i]
                  :: else
                  fi;
                  includes[i] = t + 1
               :: else
               fi;
               i = 0; c++
             }
          :: else -> break
          od;
          step = (step == t -> t + 1 : step) /* barrier.A6 */
       :: else
       fi;
       atomic { e = 0; c = 0; t = 0; d = 0 }
    od
  } unless { killed[r] };
  atomic { t = 0; e = 0; d = 0; x = 0; i = 0; c = 0; done++ }
}

/* SnapshotPointMaker::between_steps, and with an order before_step. It may lose patience: then nothing is said about the
 * images. */
proctype snapshotter() {
  byte e, t, d, i, o;

again:
  {
    d_step { !snap_lock -> snap_lock = 1 }
    do
    :: snaps < SNAPS ->
#ifndef STALE_ORDER
       order = 0;
#endif
       d_step { epoch++; e = epoch } /* snapshot.C8 */
       if
       :: o = 0
       :: order = 1; o = 1 /* snapshot.C12 */
       :: order = 2; o = 2
       fi;
       do
       :: o == 0 -> break
       :: else ->
          d_step { t = decided; d = bits }
          if
          :: d == (e & MASK) -> break
          :: d != (e & MASK) && t >= o -> break /* it is too late */
          :: d != (e & MASK) -> break           /* it is given up */
          :: else
          fi
       od;
       if
       :: o != 0 ->
          order = 0;
          d = bits;
          if
          :: d == (e & MASK) ->
             do
             :: check_images(e, o - 1)
             :: break
             od;
             d = 0
          :: else -> /* nothing is said about the images; the bits follow the epoch if they can */
             d_step { t = decided; d = bits }
             if
             :: step == t ->
                d_step {
                  if
                  :: decided == t && bits == d -> bits = e & MASK
                  :: else
                  fi
                }
             :: else
             fi;
             d = 0
          fi
       :: else ->
       do
       :: d_step { t = decided; d = bits } /* snapshot.C10 */
          if
#ifndef EARLY_BITS
          :: step != t -> t = 255
#endif
          :: else ->
             d_step {
               if
               :: decided == t && bits == d -> bits = e & MASK
               :: else -> t = 255
               fi
             }
          fi;
          d = 0;
          if
          :: t != 255 ->
             do
             :: check_images(e, t) /* at any moment until it is given back */
             :: break
             od;
             break
          :: t == 255
          :: t == 255 -> break /* patience */
          fi
       od
       fi;
       atomic { snaps++; e = 0; t = 0; o = 0 }
    :: else -> break
    od
  } unless { snap_killed };
  atomic { e = 0; t = 0; d = 0; i = 0; o = 0 }
  if
  :: snap_killed -> snap_killed = 0; d_step { snaps = (snaps < SNAPS -> snaps + 1 : snaps) }; goto again
  :: else -> d_step { snap_done = 1; snap_lock = 0 }
  fi
}

#define KILL(r) d_step { kills < KILLS && lock[r] && !killed[r] -> killed[r] = 1; lock[r] = 0; kills++ }

/* The kernel drops the lock of who is killed. */
proctype killer() {
end:
  do
  :: KILL(0)
#if RANKS > 1
  :: KILL(1)
#endif
#if RANKS > 2
  :: KILL(2)
#endif
  :: d_step { kills < KILLS && snap_lock && !snap_killed -> snap_killed = 1; snap_lock = 0; kills++ }
  od
}

init {
  byte i;
  atomic {
    do
    :: i < RANKS ->
       lock[i] = 1;
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
  assert(step == STEPS || kills > 0)
}
