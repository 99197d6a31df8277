/* The versioned slot and its spare buffers: src/shm/slots/versioned_slot.hpp, src/shm/slots/free_buffers.hpp, src/shm/slots/recovery.cpp.
 *
 * RANKS writers push to CHUNKS chunks, each from SPARES spare buffers, while a reader pulls. At most KILLS writers are
 * killed, at any step; the next holder of the rank settles what its predecessor had in flight and goes on pushing.
 * A process may also stop at any step for as long as it likes: nothing here waits for another's next step.
 *
 * Checked
 *   - no torn read: a reader that passes slot.R3 has the bytes of one version of its own chunk
 *   - no lost update: the buffer that slot.W6 makes current is whole and holds exactly one update more than the one
 *     before
 *   - nobody overwrites a current buffer (slot.W3)
 *   - slot.V6: the fate that settling finds is what happened; once all stand still, every fate can be found
 *   - conservation: at the end each buffer is named by exactly one word or spare record
 * Left out
 *   - memory orders: steps are sequentially consistent, which is what the fences in slot.W3 and slot.R3 provide
 *   - version wrap, lanes, several classes and shards (all alike); with one spare a rank whose only one stays in doubt
 *     stops pushing, where the code has three more
 *
 * Broken on purpose, one at a time
 *   NO_RECHECK      the reader does not look at the stamp behind the bytes (slot.R3)
 *   NO_CHUNK        the stamp has a version but no chunk (slot.V1)
 *   LATE_STAMP      "building" is stored after the bytes (slot.W3 after slot.W4)
 *   NO_VERSION      slot.W6 compares the buffer alone: a buffer that has been away and come back passes
 *   CLEAR_FIRST     "in flight" is cleared before the replaced buffer is noted (slot.V5)
 *   REUSE           the next holder takes a spare in flight for its own, unsettled (slot.V6)
 *   TRUST_FLIGHT    settling believes records that are in flight themselves (slot.V6)
 *   GUESS           a fate that cannot be found is guessed, once all in doubt about the same buffers seem dead (slot.V6)
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef SPARES
#define SPARES 1
#endif
#ifndef PUSHES
#define PUSHES 2 /* of each rank, all its holders together */
#endif
#ifndef PULLS
#define PULLS 1
#endif
#ifndef KILLS
#define KILLS 0
#endif

#define RECORDS (RANKS * SPARES)
#define BUFFERS (CHUNKS + RECORDS)
#define BUILDING 255
#define BYTES(chunk, updates) ((chunk) * 32 + (updates))
#define BIT(record) (1 << (record))

/* Chunk words {version, buffer}. */
byte version[CHUNKS], buffer[CHUNKS];

/* Buffers: the stamp, and bytes in two halves, so that a mixture of two versions shows. */
byte stamp_chunk[BUFFERS], stamp_version[BUFFERS], low[BUFFERS], high[BUFFERS];

/* Spare records {in flight, buffer}, rank r's from r * SPARES on, each with its note {chunk, word}. */
bool in_flight[RECORDS];
byte spare[RECORDS], note_chunk[RECORDS], note_version[RECORDS], note_buffer[RECORDS];

/* Lock bytes: 0, or 1 + the rank whose holder has it. Others' bytes are taken while settling jointly. */
byte lock[RANKS];
bool killed[RANKS];

/* Not in the segment: what has really happened, and how far the run is. */
bool swapped[RECORDS];
byte pushes_left[RANKS], kills, done;

mtype = { not_swapped, has_swapped, unknown };

/* Looks for a word or a settled record that names buffer `it`, one read at a time: what it finds proves something, what
 * it does not find proves nothing. */
inline find_name(it) {
  named = 0; i = 0;
  do
  :: i < CHUNKS + RECORDS && !named ->
     d_step {
       if
       :: i < CHUNKS -> named = (buffer[i] == it)
#ifdef TRUST_FLIGHT
       :: else -> named = (i - CHUNKS != k && spare[i - CHUNKS] == it)
#else
       :: else -> named = (!in_flight[i - CHUNKS] && spare[i - CHUNKS] == it)
#endif
       fi;
       i++
     }
  :: else -> break
  od;
  i = 0
}

/* ClassCensus::fate_of, for record k, whose writer is dead. */
inline find_fate() {
  d_step {
    fate = unknown;
    if
    :: version[note_chunk[k]] == note_version[k] && buffer[note_chunk[k]] == note_buffer[k] -> fate = not_swapped
    :: else
    fi
  }
  if
  :: fate == unknown ->
     find_name(spare[k]);
     if
     :: named -> fate = has_swapped
     :: else ->
        find_name(note_buffer[k]);
        if
        :: named -> fate = not_swapped
        :: else
        fi
     fi
  :: else
  fi
}

/* One store. */
inline note_fate() {
  d_step {
    assert((fate == has_swapped) == swapped[k]);
    if
    :: fate == has_swapped -> spare[k] = note_buffer[k]
    :: else
    fi;
    in_flight[k] = 0; swapped[k] = 0;
    doubts = doubts & ~BIT(k)
  }
}

/* Settles those of `doubts` that the rules decide, until a round decides nothing. */
inline settle_decided() {
  do
  :: doubts != 0 ->
     k = 0; progress = 0;
     do
     :: k < RECORDS && (doubts & BIT(k)) ->
        find_fate();
        if
        :: fate != unknown -> note_fate(); progress = 1
        :: else
        fi;
        k++
     :: k < RECORDS && !(doubts & BIT(k)) -> k++
     :: else -> break
     od;
     fate = unknown; named = 0; k = 0;
     if
     :: !progress -> break
     :: else -> progress = 0
     fi
  :: else -> break
  od
}

#define OVERLAP(a, b) (spare[a] == spare[b] || spare[a] == note || note_buffer[a] == spare[b] || note_buffer[a] == note)

/* Takes the bytes of the dead that are in doubt about the same buffers, and looks once more with all of them held. */
inline settle_jointly() {
  all_dead = 1; k = 0;
  do
  :: k < RECORDS && all_dead ->
     if
     :: k / SPARES != r && lock[k / SPARES] != 1 + r && in_flight[k] ->
        note = note_buffer[k]; /* of the living it may be another push's by now */
        j = 0;
        do
        :: j < RECORDS && !((doubts & BIT(j)) && OVERLAP(j, k)) -> j++
        :: else -> break
        od;
        if
        :: j < RECORDS ->
           d_step {
             if
             :: lock[k / SPARES] == 0 -> lock[k / SPARES] = 1 + r
             :: else -> all_dead = 0 /* alive: it will note its buffer itself */
             fi
           }
           if
           :: all_dead -> /* all of that rank's, and from the start: they may overlap with those passed over */
              d_step {
                j = k - k % SPARES; i = j + SPARES;
                do
                :: j < i -> doubts = doubts | (in_flight[j] -> BIT(j) : 0); j++
                :: else -> break
                od;
                i = 0; k = 0
              }
           :: else
           fi
        :: else -> k++
        fi
     :: else -> k++
     fi
  :: else -> break
  od;
  atomic { j = 0; k = 0; note = 0 }
  settle_decided();
#ifdef GUESS
  k = 0;
  do
  :: k < RECORDS && all_dead && (doubts & BIT(k)) -> fate = not_swapped; note_fate(); k++
  :: k < RECORDS && !(all_dead && (doubts & BIT(k))) -> k++
  :: else -> break
  od;
#endif
  atomic {
    doubts = 0; fate = unknown; all_dead = 0; k = 0;
    do
    :: k < RANKS -> lock[k] = (k != r && lock[k] == 1 + r -> 0 : lock[k]); k++
    :: else -> break
    od;
    k = 0
  }
}

/* What the new holder of rank r does first; it holds the byte. */
inline settle_spares() {
  d_step {
    k = r * SPARES;
    do
    :: k < (r + 1) * SPARES -> doubts = doubts | (in_flight[k] -> BIT(k) : 0); k++
    :: else -> break
    od;
    k = 0
  }
#ifdef REUSE
  d_step {
    do
    :: k < RECORDS ->
       in_flight[k] = in_flight[k] && !(doubts & BIT(k)); swapped[k] = swapped[k] && in_flight[k]; k++
    :: else -> break
    od;
    k = 0; doubts = 0
  }
#endif
  do
  :: doubts != 0 ->
     settle_decided();
     if
     :: doubts != 0 -> skip /* another look */
     :: doubts != 0 -> settle_jointly(); break
     :: doubts == 0 -> break
     fi
  :: else -> break
  od
}

/* VersionedVariable::push_chunk, of a chunk at choice. */
inline push() {
  if
  :: c = 0
#if CHUNKS > 1
  :: c = 1
#endif
  fi;
  do
  :: d_step { v = version[c]; b = buffer[c] } /* slot.W1 */
     d_step { /* slot.W2: Spares::begin, the next spare in turn that is not in doubt */
       k = r * SPARES + next; next = (next + 1) % SPARES;
       if
       :: in_flight[k] -> k = r * SPARES + next; next = (next + 1) % SPARES
       :: else
       fi
     }
     if
     :: in_flight[k] -> pushes_left[r] = 0; break /* see "left out" */
     :: else
     fi;
     d_step { note_chunk[k] = c; note_version[k] = v; note_buffer[k] = b }
     d_step { in_flight[k] = 1; s = spare[k] }
#ifndef LATE_STAMP
     d_step { stamp_chunk[s] = BUILDING; stamp_version[s] = BUILDING } /* slot.W3 */
#endif
     d_step { i = 0; do :: i < CHUNKS -> assert(buffer[i] != s); i++ :: else -> break od; i = 0 }
     x = low[b]; /* slot.W4 */
     d_step { low[s] = x + 1; x = 0 }
     x = high[b];
     d_step { high[s] = x + 1; x = 0 }
#ifdef LATE_STAMP
     d_step { stamp_chunk[s] = BUILDING; stamp_version[s] = BUILDING }
#endif
     d_step { stamp_chunk[s] = c; stamp_version[s] = v + 1 } /* slot.W5 */
     d_step { /* slot.W6 */
       if
#ifdef NO_VERSION
       :: buffer[c] == b ->
#else
       :: version[c] == v && buffer[c] == b ->
#endif
          assert(low[s] == BYTES(c, version[c] + 1) && high[s] == low[s]);
          version[c] = version[c] + 1; buffer[c] = s;
          swapped[k] = 1; won = 1; pushes_left[r]--
       :: else
       fi
     }
     if
     :: won ->
#ifdef CLEAR_FIRST
        in_flight[k] = 0;
        d_step { spare[k] = b; swapped[k] = 0 }
#else
        d_step { spare[k] = b; in_flight[k] = 0; swapped[k] = 0 }
#endif
        break
     :: else -> in_flight[k] = 0
     fi
  od;
  atomic { c = 0; v = 0; b = 0; s = 0; k = 0; won = 0 }
}

/* The holders of rank r, one after the other. */
proctype writer(byte r) {
  byte c, v, b, s, x, next, i, j, k, note, doubts;
  bool won, named, progress, all_dead;
  mtype fate = unknown;

join:
  {
    d_step { lock[r] == 0 -> lock[r] = 1 + r }
    settle_spares();
    do
    :: pushes_left[r] > 0 -> push()
    :: else -> break
    od
  } unless { killed[r] };
  atomic { c = 0; v = 0; b = 0; s = 0; x = 0; next = 0; i = 0; j = 0; k = 0; note = 0; doubts = 0;
           won = 0; named = 0; progress = 0; all_dead = 0; fate = unknown }
  if
  :: killed[r] -> killed[r] = 0; goto join
  :: else -> d_step { done++; lock[r] = 0 }
  fi
}

/* VersionedVariable::pull_chunk. */
proctype reader() {
  byte c, v, b, x, y, pulls;
  bool whole;
  do
  :: pulls < PULLS ->
     if
     :: c = 0
#if CHUNKS > 1
     :: c = 1
#endif
     fi;
     do
     :: d_step { v = version[c]; b = buffer[c] } /* slot.R1 */
        x = low[b]; /* slot.R2 */
        y = high[b];
        d_step { /* slot.R3 */
#if defined(NO_RECHECK)
          whole = 1
#elif defined(NO_CHUNK)
          whole = (stamp_version[b] == v)
#else
          whole = (stamp_chunk[b] == c && stamp_version[b] == v)
#endif
        }
        if
        :: whole -> assert(x == BYTES(c, v) && y == x); break
        :: else
        fi
     od;
     atomic { c = 0; v = 0; b = 0; x = 0; y = 0; whole = 0; pulls++ }
  :: else -> break
  od
}

/* The kernel drops the locks of who is killed. */
proctype killer() {
  byte r, i;
  do
  :: kills < KILLS ->
     if
     :: r = 0
     :: r = 1
#if RANKS > 2
     :: r = 2
#endif
     fi;
     d_step {
       if
       :: lock[r] == 1 + r && !killed[r] ->
          killed[r] = 1; kills++;
          do
          :: i < RANKS -> lock[i] = (lock[i] == 1 + r -> 0 : lock[i]); i++
          :: else -> break
          od;
          i = 0
       :: else
       fi;
       r = 0
     }
  :: kills == KILLS -> break
  :: done == RANKS -> break
  od
}

init {
  byte i, k, doubts, r;
  bool named, progress;
  mtype fate = unknown;
  d_step {
    do
    :: i < CHUNKS -> buffer[i] = i; stamp_chunk[i] = i; low[i] = BYTES(i, 0); high[i] = BYTES(i, 0); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < RECORDS -> spare[i] = CHUNKS + i; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < RANKS -> pushes_left[i] = PUSHES; i++
    :: else -> break
    od;
    i = 0
  }
  atomic {
    do
    :: i < RANKS -> run writer(i); i++
    :: else -> break
    od;
    i = 0;
#if PULLS > 0
    run reader();
#endif
#if KILLS > 0
    run killer()
#endif
  }
  done == RANKS;
  /* Everybody has stopped: what is still in doubt can be settled by who comes next. */
  d_step {
    do
    :: i < RECORDS -> doubts = doubts | (in_flight[i] -> BIT(i) : 0); i++
    :: else -> break
    od;
    i = 0
  }
  settle_decided();
  assert(doubts == 0);
  d_step {
    do
    :: i < BUFFERS ->
       r = 0; k = 0;
       do
       :: k < CHUNKS -> r = r + (buffer[k] == i); k++
       :: else -> break
       od;
       k = 0;
       do
       :: k < RECORDS -> r = r + (spare[k] == i); k++
       :: else -> break
       od;
       assert(r == 1);
       i++
    :: else -> break
    od
  }
}
