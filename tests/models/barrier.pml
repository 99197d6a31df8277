/* The barrier of a sync step: src/shm/steps/barrier.hpp and barrier.cpp, joining in src/shm/steps/worker_table.cpp, taking a
 * rank over in src/worker/joining.cpp, gradient segments in src/worker/gradients.cpp, applying in
 * src/worker/sync_work.cpp.
 *
 * RANKS workers train STEPS steps: pull, push, arrive (barrier.A1), decide (barrier.A2 to barrier.A4), apply with helping
 * (barrier.A5), open (barrier.A6). At most KILLS of them are killed, at any step, and LEAVES leave, also while they wait
 * with a gradient published. A rank that is free may be taken by a new holder, until it has had HOLDERS. QUORUM 0 waits
 * for all the living.
 *
 * Checked
 *   - the living never hang (no state without a next step), and the last step is reached if anybody stays
 *   - barrier.A4 never moves backwards, and never decides an empty set; each step is decided once
 *   - each chunk gets each step exactly once, with exactly the gradients of the decided set: none torn or of another
 *     step or holder; nobody who needs a gradient finds its segment gone
 *   - barrier.A6: every chunk includes the step by then
 *   - was_in(): a holder is told truly whether its gradient was in, so that a late one counts as dropped, once
 *   - quorum 0: a rank that takes part in a step and publishes it is in its set, whatever the timing of deaths and
 *     leaving (barrier.B2)
 * Left out
 *   - the versioned slot under each chunk (slot_scenes.cpp): reading a chunk is one step here, and so is its swap
 *   - memory orders, futex words and time-outs: a wait is a guard, so a missed wake-up would not show
 *   - live settings in the proposal (barrier.B8), Worker::barrier(), accumulators (tests/scenes/slot_scenes.cpp)
 *   - holders who die before they have joined for the first time: round 0 waits for someone else then, by design
 *
 * Broken on purpose, one at a time
 *   PUBLICATION_FIRST  barrier.A2 looks at the publication first, then at liveness (barrier.B2)
 *   NEVER_DEAD         barrier.A2 does not look at the locks
 *   ACTIVE_LAST        barrier.A2 looks at `active_from` behind the publication: one that comes between, whose holder dies
 *                      and is replaced at once, is lost (barrier.B2)
 *   BACKWARDS          barrier.A4 swaps from whatever the decision is (barrier.B3)
 *   NO_ROUND_CHECK     barrier.A5 does not look at the round again behind the proposal (barrier.B6)
 *   EARLY_OPEN         barrier.A6 by who has seen one chunk applied (barrier.B6)
 *   LATE_NOTE          `included` is raised behind the proposal (barrier.B11)
 *   NO_ADOPTION        a new holder makes its own gradient segment at once (barrier.B4)
 *   SAME_SEGMENT       it even writes into its predecessor's (locks.L5)
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef QUORUM
#define QUORUM 0
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef LEAVES
#define LEAVES 0
#endif
#ifndef HOLDERS
#define HOLDERS 1
#endif

#define BIT(rank) (1 << (rank))
#define HAS(set, rank) ((set) & BIT(rank))
#define SUCCEEDED(rank) (holders[rank] > 1)
#define GRADIENT(step, rank, holder) (((step) * HOLDERS + (holder)) << (3 * (rank)))
#define SEGMENT(rank, holder) ((rank) * HOLDERS + (holder) - 1)

/* BarrierShm. The decision is one word {step + 1, proposer}. */
byte step, decision, proposer;

/* BarrierEntryShm and WorkerShm of each rank, and its lock byte. */
byte active_from[RANKS], published[RANKS], generation[RANKS], proposal[RANKS], proposed[RANKS], included[RANKS];
byte holders[RANKS];
bool has_left[RANKS], lock[RANKS], killed[RANKS];

/* A gradient segment per rank and holder: its name, the step + 1 it holds, and the gradient, chunk by chunk. */
bool named[RANKS * HOLDERS];
byte pushed[RANKS * HOLDERS];
short gradient[RANKS * HOLDERS * CHUNKS];

/* The chunks: {version}, and of the current buffer the sum of all gradients so far, and the steps it includes. */
byte version[CHUNKS], includes[CHUNKS];
short sum[CHUNKS];

/* Not in the segment: what was decided, and how far the run is. */
byte decided[STEPS];
short decided_sum[STEPS];
byte kills, leaves, done;

/* Looks at others that find nothing decided yet: one at any time, the others when there is something to decide.
 * Others may move meanwhile, but only so often: who is left without a look hangs. */
#define LOOKS 4

/* Whether the round could be decided at this moment. Deciding itself looks at one thing after the other. */
#define IS_IN(k) (published[k] == t + 1)
#define IS_MISSED(k) (holders[k] != 0 && !IS_IN(k) && !has_left[k] && lock[k] && active_from[k] <= t)
#if RANKS == 2
#define ARRIVED (IS_IN(0) + IS_IN(1))
#define MISSED (IS_MISSED(0) || IS_MISSED(1))
#define JOINED ((holders[0] != 0) + (holders[1] != 0))
#else
#define ARRIVED (IS_IN(0) + IS_IN(1) + IS_IN(2))
#define MISSED (IS_MISSED(0) || IS_MISSED(1) || IS_MISSED(2))
#define JOINED ((holders[0] != 0) + (holders[1] != 0) + (holders[2] != 0))
#endif
#define HAS_QUORUM(arrived) (QUORUM != 0 && (arrived) >= QUORUM)
#define MAY_DECIDE (ARRIVED != 0 && (t != 0 || JOINED == RANKS) && (!MISSED || HAS_QUORUM(ARRIVED)))

#ifdef NEVER_DEAD
#define IS_DEAD(k) false
#else
#define IS_DEAD(k) (!lock[k])
#endif

inline look_at_liveness() {
  gone = has_left[k] || known_dead[k] == h;
  if
  :: !gone && k != r -> d_step { gone = IS_DEAD(k); known_dead[k] = (gone -> h : known_dead[k]) }
  :: else
  fi
}

/* Barrier::note_left_behind: the set of the round before is looked at rank by rank, while others may overwrite it */
inline note_left_behind() {
  atomic { is_in = (decision == t); h = proposer }
  do
  :: k < RANKS && is_in && HAS(proposed[h], k) && !HAS(set, k) ->
     d_step { included[k] = (included[k] < t -> t : included[k]); k++ }
  :: k < RANKS && !(is_in && HAS(proposed[h], k) && !HAS(set, k)) -> k++
  :: else -> break
  od;
  atomic { k = 0; h = 0; is_in = 0 }
}

inline try_decide() {
  do
  :: k < RANKS ->
     h = holders[k];
     if
     :: h != 0 ->
        joined++;
#ifdef PUBLICATION_FIRST
        is_in = (published[k] == t + 1);
        look_at_liveness();
        counts = (active_from[k] <= t);
#else
        look_at_liveness(); /* barrier.A2 */
#ifdef ACTIVE_LAST
        is_in = (published[k] == t + 1);
        counts = (active_from[k] <= t);
#else
        counts = (active_from[k] <= t);
        is_in = (published[k] == t + 1);
#endif
#endif
        d_step {
          if
          :: is_in -> set = set | BIT(k); arrived++
          :: else -> missing = missing || (!gone && counts)
          fi;
          is_in = 0; gone = 0; counts = 0; h = 0
        }
     :: else
     fi;
     k++
  :: else -> break
  od;
  k = 0;
  if
  :: arrived == 0 || (t == 0 && joined < RANKS) || (missing && !HAS_QUORUM(arrived))
  :: else ->
#ifndef LATE_NOTE
     if
     :: arrived != joined -> note_left_behind() /* barrier.B11 */
     :: else
     fi;
#endif
     if
     :: proposal[r] != t + 1 -> proposed[r] = set; proposal[r] = t + 1 /* barrier.A3 */
     :: else
     fi;
#ifdef LATE_NOTE
     if
     :: arrived != joined -> note_left_behind()
     :: else
     fi;
#endif
     atomic { /* barrier.A4 */
       if
#ifdef BACKWARDS
       :: decision != t + 1 ->
#else
       :: decision <= t ->
#endif
          assert(decision == t && step == t && proposed[r] != 0);
          decision = t + 1; proposer = r; decided[t] = proposed[r];
          do
          :: k < RANKS && HAS(decided[t], k) ->
             assert(pushed[SEGMENT(k, generation[k])] == t + 1);
             decided_sum[t] = decided_sum[t] + gradient[SEGMENT(k, generation[k]) * CHUNKS];
             k++
          :: k < RANKS && !HAS(decided[t], k) -> k++
          :: else -> break
          od;
          k = 0;
          do
          :: k < RANKS ->
             assert(QUORUM != 0 || SUCCEEDED(k) || !IS_IN(k) || HAS(decided[t], k)); /* barrier.B2 */
             k++
          :: else -> break
          od;
          k = 0
       :: else
       fi
     }
  fi;
  atomic { set = 0; arrived = 0; joined = 0; missing = 0 }
}

/* apply_ordered_step: the contributors' segments, then chunk by chunk, each worker from a different one on. */
inline apply() {
  do
  :: k < RANKS && HAS(set, k) ->
     from[k] = generation[k];
     if
     :: !named[SEGMENT(k, from[k])] -> assert(step != t); from[k] = 0
     :: else
     fi;
     if
     :: from[k] != 0 && pushed[SEGMENT(k, from[k])] != t + 1 -> from[k] = 0
     :: else
     fi;
     k++
  :: k < RANKS && !HAS(set, k) -> k++
  :: else -> break
  od;
  k = 0; c = 0;
  do
#ifdef EARLY_OPEN
  :: c < 1 ->
#else
  :: c < CHUNKS ->
#endif
     atomic { k = (c + r) % CHUNKS; h = version[k]; is_in = (includes[k] > t); x = sum[k]; k = 0 }
     if
     :: is_in -> c++
     :: else ->
        do
        :: k < RANKS && from[k] != 0 -> x = x + gradient[SEGMENT(k, from[k]) * CHUNKS + (c + r) % CHUNKS]; k++
        :: k < RANKS && from[k] == 0 -> k++
        :: else -> break
        od;
        atomic {
          k = (c + r) % CHUNKS;
          if
          :: version[k] == h ->
             assert(includes[k] == t && x == sum[k] + decided_sum[t]);
             version[k] = h + 1; includes[k] = t + 1; sum[k] = x; c++
          :: else
          fi
        }
     fi;
     atomic { k = 0; h = 0; x = 0; is_in = 0 }
  :: else -> break
  od;
  atomic {
    c = 0;
    do
    :: k < RANKS -> from[k] = 0; k++
    :: else -> break
    od;
    k = 0
  }
}

inline open() {
  d_step { /* barrier.A6 */
    if
    :: step == t ->
       assert(decided[t] != 0);
       do
       :: k < CHUNKS -> assert(includes[k] == t + 1); k++
       :: else -> break
       od;
       k = 0;
       step = t + 1
    :: else
    fi
  }
}

/* Barrier::finish */
inline finish() {
  do
  :: step != t || decision > t -> break
  :: step == t && decision <= t && MAY_DECIDE && looks < LOOKS -> looks++; try_decide()
  :: step == t && decision <= t && !MAY_DECIDE && looks == 0 -> looks++; try_decide()
  :: leaves < LEAVES -> leaves++; goto leaving /* ended, or tired of waiting */
  od;
  atomic { looks = 0; is_in = (decision == t + 1); h = proposer } /* barrier.A5 */
  if
  :: is_in ->
     set = proposed[h];
     h = 0;
#ifndef NO_ROUND_CHECK
     is_in = (step == t);
#endif
     if
     :: is_in ->
        is_in = 0;
        assert(set == decided[t]);
        known = (HAS(set, r) -> 2 : 1);
        apply();
        open()
     :: else
     fi
  :: else
  fi;
  atomic { set = 0; h = 0; is_in = 0 }
}

/* Barrier::was_in, asked by who has finished its own round */
inline was_in() {
  if
  :: known != 0 -> is_in = (known == 2)
  :: else ->
     atomic { is_in = (decision == t + 1); h = proposer }
     if
     :: is_in -> is_in = (HAS(proposed[h], r) != 0)
     :: else
     fi;
     if
     :: !is_in -> is_in = (included[r] == t + 1)
     :: else
     fi
  fi;
  atomic { assert(is_in == (HAS(decided[t], r) != 0)); is_in = 0; h = 0; known = 0 }
}

/* The holders of rank r, one after the other. */
proctype worker(byte r) {
  byte t, set, arrived, joined, looks, h, k, c, known; /* known: 1 or 2 of a decision that it has read, without or with r */
  byte known_dead[RANKS], from[RANKS];
  short x;
  bool gone, counts, is_in, missing;

  goto train; /* the first holders have joined together */

join:
  {
    d_step { !lock[r] -> lock[r] = 1 }
    t = step; /* try_join */
    active_from[r] = (t == 0 -> 0 : t + 1);
    holders[r]++;
    has_left[r] = 0;
#if !defined(NO_ADOPTION) && !defined(SAME_SEGMENT)
    t = step; /* take_over, barrier.B4 */
    if
    :: published[r] == t + 1 -> finish(); known = 0
    :: else
    fi;
#endif
#ifndef SAME_SEGMENT
    h = generation[r]; /* create_own */
    named[SEGMENT(r, holders[r])] = 1;
    generation[r] = holders[r];
    named[SEGMENT(r, h)] = 0;
    h = 0;
#endif
train:
    do
    :: t = step; /* pull */
       if
       :: t >= STEPS -> break
       :: t < STEPS && leaves < LEAVES -> leaves++; break
       :: t < STEPS
       fi;
       if /* push */
       :: step == t ->
          do
          :: c < CHUNKS -> gradient[SEGMENT(r, generation[r]) * CHUNKS + c] = GRADIENT(t, r, holders[r]); c++
          :: else -> break
          od;
          c = 0;
          pushed[SEGMENT(r, generation[r])] = t + 1;
          if /* step */
          :: step == t ->
             d_step {
               published[r] = t + 1; /* barrier.A1 */
               assert(QUORUM != 0 || SUCCEEDED(r) || decision <= t || HAS(decided[t], r))
             }
             finish();
             was_in()
          :: else /* dropped */
          fi
       :: else /* dropped */
       fi
    od;
leaving:
    atomic { set = 0; arrived = 0; joined = 0; h = 0; k = 0; c = 0; x = 0; looks = 0;
             gone = 0; counts = 0; is_in = 0; missing = 0; known = 0 }
    if /* remove_own */
    :: generation[r] == holders[r] && published[r] <= step -> named[SEGMENT(r, generation[r])] = 0
    :: else
    fi;
    has_left[r] = 1;
    lock[r] = 0
  } unless { killed[r] };
  atomic {
    killed[r] = 0; t = 0; set = 0; arrived = 0; joined = 0; h = 0; c = 0; x = 0; looks = 0;
    gone = 0; counts = 0; is_in = 0; missing = 0; known = 0; k = 0;
    do
    :: k < RANKS -> known_dead[k] = 0; from[k] = 0; k++
    :: else -> break
    od;
    k = 0
  }
  if
  :: holders[r] < HOLDERS && step < STEPS -> goto join
  :: done++
  fi
}

/* The kernel drops the lock of who is killed. */
active proctype killer() {
end:
  do
  :: d_step { kills < KILLS && lock[0] && !killed[0] -> killed[0] = 1; lock[0] = 0; kills++ }
  :: d_step { kills < KILLS && lock[1] && !killed[1] -> killed[1] = 1; lock[1] = 0; kills++ }
#if RANKS > 2
  :: d_step { kills < KILLS && lock[2] && !killed[2] -> killed[2] = 1; lock[2] = 0; kills++ }
#endif
  od
}

init {
  atomic {
    byte r;
    do
    :: r < RANKS ->
       lock[r] = 1; holders[r] = 1; generation[r] = 1; named[SEGMENT(r, 1)] = 1;
       run worker(r);
       r++
    :: else -> break
    od
  }
  done == RANKS;
  assert(step == STEPS || kills + leaves > 0)
}
