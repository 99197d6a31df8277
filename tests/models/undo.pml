/* Updates in place: src/shm/slots/single_writer_chunk.hpp, src/shm/base/undo_log.hpp, src/shm/slots/recovery.cpp.
 *
 * The only writer pushes to CHUNKS chunks of BLOCKS blocks, in place or by a swap, at choice, with two free buffers in
 * turn, while a reader pulls. At most KILLS holders of the rank are killed, at any step, and the next one recovers.
 *
 * Checked
 *   - slot.V13: what a reader gets is the state of its chunk at one moment of the pull, where a state has the blocks that
 *     are changed and those that are still to be; if its version is that of the word, it is the state of that version
 *   - slot.V10 to slot.V12, slot.V14: a killed writer's block is old or new, never half of both, and the version that
 *     its successor completes has the blocks that were changed
 *   - at the end each word's buffer has the stamp of that word, so no reader would wait, and each buffer is named once
 * Left out
 *   - memory orders: steps are sequentially consistent; the weak-memory scenes "in place" search for these
 *   - snapshots, which make a push swap (slot.V9): here each push may
 *   - several threads of the writer, each with a free buffer in flight, on chunks of their own
 *   - optimizer slots, whose arrays are kept and taken back like the values; the rank and step in a buffer's header
 *   - that readers need not wait (slot.V13): a search for safety does not see it; tests/faults do
 *   - several classes and shards; more free buffers; version wrap, and that a changing stamp has 14 bits of the version
 *
 * Broken on purpose, one at a time
 *   NO_UNCHANGED     a push does not mark the log as unchanged (slot.V10)
 *   STAMP_FIRST      the chunk's stamp names the log before that is marked (slot.V10)
 *   LOG_FIRST        the first block's old values are in the log before its mark (slot.V10)
 *   MARK_LATE        a block is changed before it is marked (slot.V11)
 *   ONE_HALF         the log has room for one block (slot.V11)
 *   ONE_MARK         "changed" and "unchanged" are the same mark (slot.V12)
 *   WORD_LAST        the chunk's stamp has the next version before the word does (slot.V12)
 *   NO_RECHECK       a reader does not look at the mark again (slot.V13)
 *   NO_WORD          a reader does not tell one push's stamp from the next one's (slot.V13)
 *   NEW_VERSION      what a reader gets from a chunk that is changing counts as the word's version (slot.V13)
 *   NO_COMPLETION    the next holder recovers free buffers alone (slot.V14)
 *   NO_TAKING_BACK   it completes the version without taking the marked block back (slot.V14)
 *   LATE_COMPLETION  it completes the version after it has recovered the free buffer (slot.V14)
 */
#ifndef CHUNKS
#define CHUNKS 1
#endif
#ifndef BLOCKS
#define BLOCKS 3
#endif
#ifndef PUSHES
#define PUSHES 3 /* all holders together */
#endif
#ifndef PULLS
#define PULLS 1
#endif
#ifndef KILLS
#define KILLS 0
#endif

#define RECORDS 2
#define BUFFERS (CHUNKS + RECORDS)
#define STATES (PUSHES * BLOCKS + 1)
#define HALF_WRITTEN 255
#define AT(buffer, block) ((buffer) * BLOCKS + (block))
/* What a block holds: whose it is, and how many updates it has. */
#define BYTES(chunk, block, updates) ((chunk) * 64 + (block) * 16 + (updates))
#ifdef ONE_HALF
#define HALF(block) 0
#else
#define HALF(block) ((block) % 2)
#endif

/* Chunk words {version, buffer}. */
byte version[CHUNKS], buffer[CHUNKS];

/* Buffers: their stamp, and blocks, of which a log's two halves are the first. */
mtype = { building, of_chunk, changing, mark };
mtype stamp[BUFFERS];
byte stamp_of[BUFFERS];      /* of_chunk: the chunk; changing: the log; mark: the block or one of these: */
byte stamp_version[BUFFERS]; /* of_chunk, changing */
#define UNCHANGED 14
#ifdef ONE_MARK
#define CHANGED UNCHANGED
#else
#define CHANGED 15
#endif
byte bytes[BUFFERS * BLOCKS];

/* Free-buffer records {in flight, buffer}, each with its note {chunk, word}. */
bool in_flight[RECORDS];
byte spare[RECORDS], note_chunk[RECORDS], note_version[RECORDS], note_buffer[RECORDS];

bool lock, killed, done;
byte pushes_left = PUSHES, kills;

/* Not in the segment: the states that each chunk has had, as updates of its blocks, and how many. */
byte states[CHUNKS], history[CHUNKS * STATES * BLOCKS];
byte reached[CHUNKS]; /* the state of the word's version, before any change of the next one */
#define PAST(chunk, state, block) (((chunk) * STATES + (state)) * BLOCKS + (block))

/* From here on a reader finds block `which` of chunk `c` changed; all blocks if it is BLOCKS. */
inline note_state(which) {
  n = 0;
  do
  :: n < BLOCKS ->
     history[PAST(c, states[c] + 1, n)] = history[PAST(c, states[c], n)] + (n == which || which == BLOCKS);
     n++
  :: else -> break
  od;
  n = 0; states[c] = states[c] + 1
}

inline store_mark(log, what) { stamp[log] = mark; stamp_of[log] = what; stamp_version[log] = 0 }

/* slot.U4; `v` and `b` are the word before. */
inline complete() {
  d_step {
    store_mark(s, CHANGED);
    if
    :: is_pusher -> note_state(BLOCKS - 1)
    :: else
    fi
  }
#ifdef WORD_LAST
  d_step { stamp[b] = of_chunk; stamp_of[b] = c; stamp_version[b] = v + 1 }
#endif
  d_step {
    assert(buffer[c] == b && (version[c] == v || (version[c] == v + 1 && !is_pusher)));
    version[c] = v + 1; reached[c] = states[c]
  }
#ifndef WORD_LAST
  d_step { stamp[b] = of_chunk; stamp_of[b] = c; stamp_version[b] = v + 1 }
#endif
}

inline keep_block() {
  bytes[AT(s, HALF(i))] = HALF_WRITTEN;
  d_step { x = bytes[AT(b, i)]; assert(x != HALF_WRITTEN); bytes[AT(s, HALF(i))] = x; x = 0 }
}

inline mark_block() {
  d_step {
    store_mark(s, i);
    if
    :: i > 0 -> note_state(i - 1)
    :: else
    fi
  }
}

inline change_block() {
  d_step { x = bytes[AT(b, i)]; bytes[AT(b, i)] = HALF_WRITTEN }
  d_step { bytes[AT(b, i)] = x + 1; x = 0 }
}

/* SingleWriterChunks::try_push_in_place. */
inline push_in_place() {
#ifdef LOG_FIRST
  keep_block();
#endif
#ifdef STAMP_FIRST
  d_step { stamp[b] = changing; stamp_of[b] = s; stamp_version[b] = v }
#endif
#ifndef NO_UNCHANGED
  d_step { store_mark(s, UNCHANGED) } /* slot.U2 */
#endif
#ifndef STAMP_FIRST
  d_step {
    stamp[b] = changing; stamp_of[b] = s;
#ifndef NO_WORD
    stamp_version[b] = v
#else
    stamp_version[b] = 0
#endif
  }
#endif
  do
  :: i < BLOCKS -> /* slot.U3 */
#ifdef LOG_FIRST
     if
     :: i > 0 -> keep_block()
     :: else
     fi;
#else
     keep_block();
#endif
#ifdef MARK_LATE
     change_block();
     mark_block();
#else
     mark_block();
     change_block();
#endif
     i++
  :: else -> break
  od;
  is_pusher = 1;
  complete();
  d_step { is_pusher = 0; pushes_left--; in_flight[k] = 0 } /* slot.S2 */
}

/* VersionedVariable::push_chunk, without another writer. */
inline push_by_swap() {
  d_step { stamp[s] = building; stamp_of[s] = 0; stamp_version[s] = 0 } /* slot.W3 */
  do
  :: i < BLOCKS -> d_step { assert(bytes[AT(b, i)] != HALF_WRITTEN); bytes[AT(s, i)] = bytes[AT(b, i)] + 1; i++ } /* slot.W4 */
  :: else -> break
  od;
  i = 0;
  d_step { stamp[s] = of_chunk; stamp_of[s] = c; stamp_version[s] = v + 1 } /* slot.W5 */
  d_step { version[c] = v + 1; buffer[c] = s; note_state(BLOCKS); reached[c] = states[c] } /* slot.W6 */
  d_step { pushes_left--; spare[k] = b; in_flight[k] = 0 } /* slot.S2 */
}

inline push() {
  if
  :: c = 0
#if CHUNKS > 1
  :: c = 1
#endif
  fi;
  d_step {
    v = version[c]; b = buffer[c]; k = next; next = 1 - next; s = spare[k];
    assert(!in_flight[0] && !in_flight[1] && stamp[b] == of_chunk && stamp_of[b] == c && stamp_version[b] == v)
  }
  d_step { note_chunk[k] = c; note_version[k] = v; note_buffer[k] = b }
  in_flight[k] = 1; /* slot.S1 */
  if
  :: push_in_place()
  :: push_by_swap()
  fi;
  atomic { c = 0; v = 0; b = 0; s = 0; k = 0; i = 0 }
}

/* SingleWriterChunks::complete_in_place, for record k: slot.U6. */
inline complete_in_place() {
  d_step { c = note_chunk[k]; v = note_version[k]; b = note_buffer[k]; s = spare[k]; x = 0 }
  if
#ifdef NO_WORD
  :: stamp[b] == changing && stamp_of[b] == s ->
#else
  :: stamp[b] == changing && stamp_of[b] == s && stamp_version[b] == v ->
#endif
#ifndef NO_TAKING_BACK
     i = stamp_of[s];
     if
     :: i < BLOCKS ->
        bytes[AT(b, i)] = HALF_WRITTEN;
        bytes[AT(b, i)] = bytes[AT(s, HALF(i))]
     :: else
     fi;
     i = 0;
#endif
     complete()
  :: else
  fi;
  atomic { c = 0; v = 0; b = 0; s = 0 }
}

/* ClassCensus::fate_of: whether the word is the noted one, or a word names the free buffer. One store. */
inline recover_record() {
  d_step {
    s = 0; c = 0;
    do
    :: c < CHUNKS -> s = s || buffer[c] == spare[k]; c++
    :: else -> break
    od;
    c = note_chunk[k];
    if
    :: s && !(version[c] == note_version[k] && buffer[c] == note_buffer[k]) -> spare[k] = note_buffer[k]
    :: else
    fi;
    in_flight[k] = 0; pushes_left = (pushes_left > 0 -> pushes_left - 1 : 0);
    c = 0; s = 0
  }
}

inline recover() {
  do
  :: k < RECORDS && in_flight[k] ->
#if defined(NO_COMPLETION)
     recover_record();
#elif defined(LATE_COMPLETION)
     recover_record();
     complete_in_place();
#else
     complete_in_place();
     recover_record();
#endif
     k++
  :: k < RECORDS && !in_flight[k] -> k++
  :: else -> break
  od;
  k = 0
}

/* The holders of the rank, one after the other. */
proctype writer() {
  byte c, v, b, s, k, i, n, x, next;
  bool is_pusher;

join:
  {
    lock = 1;
    recover();
    do
    :: pushes_left > 0 -> push()
    :: else -> break
    od
  } unless { killed };
  atomic { c = 0; v = 0; b = 0; s = 0; k = 0; i = 0; n = 0; x = 0; next = 0; is_pusher = 0 }
  if
  :: killed -> killed = 0; goto join
  :: else -> d_step { done = 1; lock = 0 }
  fi
}

/* The blocks of buffer `b`, one read at a time. */
inline copy_blocks() {
  i = 0;
  do
  :: i < BLOCKS -> d_step { copy[i] = bytes[AT(b, i)]; i++ }
  :: else -> break
  od;
  i = 0
}

/* What the reader has is one of the states since `first`; if its version is the word's, the state of that. */
inline check_copy(its_version) {
  d_step {
    i = first; same = 0;
    do
    :: i <= states[c] && !same ->
       same = 1; n = 0;
       do
       :: n < BLOCKS -> same = same && copy[n] == BYTES(c, n, history[PAST(c, i, n)]); n++
       :: else -> break
       od;
       i++
    :: else -> break
    od;
    assert(same);
    if
    :: version[c] == its_version ->
       n = 0;
       do
       :: n < BLOCKS -> assert(copy[n] == BYTES(c, n, history[PAST(c, reached[c], n)])); n++
       :: else -> break
       od
    :: else
    fi;
    i = 0; n = 0; same = 0
  }
}

inline forget() {
  atomic {
    v = 0; b = 0; s = 0; m = 0; i = 0; n = 0; first = 0; whole = 0;
    do
    :: i < BLOCKS -> copy[i] = 0; i++
    :: else -> break
    od;
    i = 0
  }
}

/* VersionedVariable::pull_chunk and SingleWriterChunks::try_pull_changing. */
proctype reader() {
  byte c, v, b, s, m, i, n, first, pulls;
  byte copy[BLOCKS];
  bool whole, same;
  do
  :: pulls < PULLS ->
     if
     :: c = 0
#if CHUNKS > 1
     :: c = 1
#endif
     fi;
     do
     :: d_step { v = version[c]; b = buffer[c]; first = states[c] } /* slot.R1 */
        copy_blocks(); /* slot.R2 */
        whole = (stamp[b] == of_chunk && stamp_of[b] == c && stamp_version[b] == v); /* slot.R3 */
        if
        :: whole -> check_copy(v); break
        :: else
        fi;
        d_step { whole = (stamp[b] == changing); s = stamp_of[b]; n = stamp_version[b] } /* slot.U5 */
        if
        :: whole ->
           d_step { first = states[c]; whole = (stamp[s] == mark); m = stamp_of[s] }
           if
           :: whole ->
              copy_blocks();
              if
              :: m < BLOCKS -> copy[m] = bytes[AT(s, HALF(m))]
              :: else
              fi;
#ifndef NO_RECHECK
              whole = whole && stamp[s] == mark && stamp_of[s] == m;
#endif
              whole = whole && stamp[b] == changing && stamp_of[b] == s && stamp_version[b] == n;
#ifndef NO_WORD
              whole = whole && version[c] == v && buffer[c] == b;
#endif
              if
              :: whole ->
#ifdef NEW_VERSION
                 check_copy(v);
#else
                 check_copy(v - 1);
#endif
                 break
              :: else
              fi
           :: else
           fi
        :: else
        fi;
        forget()
     od;
     forget();
     atomic { c = 0; pulls++ }
  :: else -> break
  od
}

/* The kernel releases the lock of a killed process. */
proctype killer() {
  do
  :: kills < KILLS ->
     d_step {
       if
       :: lock && !killed -> killed = 1; lock = 0; kills++
       :: else
       fi
     }
  :: kills == KILLS -> break
  :: done -> break
  od
}

init {
  byte i, k, r;
  d_step {
    do
    :: i < CHUNKS ->
       buffer[i] = i; stamp[i] = of_chunk; stamp_of[i] = i; k = 0;
       do
       :: k < BLOCKS -> bytes[AT(i, k)] = BYTES(i, k, 0); k++
       :: else -> break
       od;
       i++
    :: else -> break
    od;
    i = 0; k = 0;
    do
    :: i < RECORDS -> spare[i] = CHUNKS + i; stamp[CHUNKS + i] = building; i++
    :: else -> break
    od;
    i = 0
  }
  atomic {
    run writer();
#if PULLS > 0
    run reader();
#endif
#if KILLS > 0
    run killer()
#endif
  }
  done;
  d_step {
    do
    :: i < CHUNKS ->
       assert(stamp[buffer[i]] == of_chunk && stamp_of[buffer[i]] == i && stamp_version[buffer[i]] == version[i]);
       k = 0;
       do
       :: k < BLOCKS -> assert(bytes[AT(buffer[i], k)] == BYTES(i, k, history[PAST(i, states[i], k)])); k++
       :: else -> break
       od;
       i++
    :: else -> break
    od;
    i = 0;
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
