/* Sums of gradients, reduce atomic (barrier.B9): contribute and try_use_sum in src/shm/slots/versioned_slot.hpp,
 * SyncWork::apply_sums in src/worker/sync_work.cpp.
 *
 * RANKS ranks add their gradient of one step to two accumulator chunks. The decision has the first DECIDED of them
 * in it, who have added everything by then; the others may be late and go on adding while a helper reads the sums
 * and applies them. At most KILLS are killed, at any step; the next holder of the rank makes its gradient anew and
 * adds it where its rank is not in yet.
 *
 * Checked
 *   - a sum that is applied is whole: the gradients of those the buffer names as contributors, each once, none torn
 *   - it has all of the decision's contributors
 * Left out
 *   - settling a dead holder's spare (slot.pml): it is done in one step here, and right
 *   - several steps, memory orders, the swap of the parameter chunk, whose version decides between helpers (slot.pml)
 *
 * Broken on purpose, one at a time
 *   NO_LAST_LOOK     the helper does not look at the stamp again behind the sum
 *   NO_CONTRIBUTORS  who adds does not look whether its rank is in already
 *   NO_STAMP         the contributors are read without the stamp behind them (slot.V4)
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef DECIDED
#define DECIDED 2
#endif
#ifndef KILLS
#define KILLS 1
#endif

#define CHUNKS 2
#define BUFFERS (CHUNKS + RANKS)
#define BUILDING 255
#define BIT(rank) (1 << (rank))
#define GRADIENT(chunk, rank) (((chunk) + 1) << (2 * (rank))) /* of chunk 0 and 1: their sums differ in every digit */
#define SUM(chunk, set) ((((set) & 1) + ((set) & 2) * 2 + ((set) & 4) * 4) * ((chunk) + 1))

byte version[CHUNKS], buffer[CHUNKS];
byte stamp_chunk[BUFFERS], stamp_version[BUFFERS], low[BUFFERS], high[BUFFERS], contributors[BUFFERS];
bool summed[BUFFERS]; /* included_steps: whether the buffer sums this step, not the one before */
byte spare[RANKS];

/* Not in the segment. */
bool swapped[RANKS], killed[RANKS], has_all[RANKS];
byte noted[RANKS], kills, done;

proctype contributor(byte r) {
  byte n, c, v, b, s, x, set;
  bool first, again;

join:
  {
    n = 0;
    do
    :: n < CHUNKS ->
       c = (n + r) % CHUNKS;
       atomic { v = version[c]; b = buffer[c]; s = spare[r] }
       first = !summed[b];
       set = contributors[b];
#ifndef NO_STAMP
       if
       :: stamp_chunk[b] == c && stamp_version[b] == v -> skip
       :: else -> goto again_from_the_top
       fi;
#endif
       set = (first -> 0 : set);
       if
#ifndef NO_CONTRIBUTORS
       :: set & BIT(r) -> n++
#endif
       :: else ->
          d_step { stamp_chunk[s] = BUILDING; stamp_version[s] = BUILDING }
          x = (first -> 0 : low[b]);
          d_step { low[s] = x + GRADIENT(c, r); x = 0 }
          x = (first -> 0 : high[b]);
          d_step { high[s] = x + GRADIENT(c, r); x = 0 }
          contributors[s] = set | BIT(r);
          summed[s] = 1;
          d_step { stamp_chunk[s] = c; stamp_version[s] = v + 1 }
          d_step {
            if
            :: version[c] == v && buffer[c] == b ->
               version[c] = v + 1; buffer[c] = s; swapped[r] = 1; noted[r] = b; again = 1
            :: else
            fi
          }
          d_step {
            if
            :: again -> spare[r] = noted[r]; swapped[r] = 0; again = 0; n++
            :: else
            fi
          }
       fi;
again_from_the_top:
       atomic { c = 0; v = 0; b = 0; s = 0; x = 0; set = 0; first = 0 }
    :: else -> break
    od;
    has_all[r] = 1
  } unless { killed[r] };
  atomic {
    n = 0; c = 0; v = 0; b = 0; s = 0; x = 0; set = 0; first = 0; again = 0;
    spare[r] = (swapped[r] -> noted[r] : spare[r]); swapped[r] = 0; noted[r] = 0
  }
  if
  :: killed[r] -> killed[r] = 0; goto join
  :: else -> done++
  fi
}

proctype helper() {
  byte c, v, b, x, y, set;
  bool whole;
  has_all[0] && has_all[DECIDED - 1];
  do
  :: c < CHUNKS ->
     atomic { v = version[c]; b = buffer[c] }
     assert(summed[b]);
     set = contributors[b];
     whole = (stamp_chunk[b] == c && stamp_version[b] == v); /* slot.V4 */
     if
     :: whole ->
        x = low[b];
        y = high[b];
#ifndef NO_LAST_LOOK
        whole = (stamp_chunk[b] == c && stamp_version[b] == v);
#endif
        if
        :: whole -> assert((set & (BIT(DECIDED) - 1)) == BIT(DECIDED) - 1 && x == SUM(c, set) && y == x); c++
        :: else
        fi
     :: else
     fi;
     atomic { v = 0; b = 0; x = 0; y = 0; set = 0; whole = 0 }
  :: else -> break
  od;
  done++
}

active proctype killer() {
end:
  do
  :: d_step { kills < KILLS && !has_all[0] && !killed[0] -> killed[0] = 1; kills++ }
  :: d_step { kills < KILLS && !has_all[RANKS - 1] && !killed[RANKS - 1] -> killed[RANKS - 1] = 1; kills++ }
  od
}

init {
  atomic {
    byte i;
    do
    :: i < CHUNKS -> buffer[i] = i; stamp_chunk[i] = i; low[i] = 77; high[i] = 78; contributors[i] = 7; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < RANKS -> spare[i] = CHUNKS + i; stamp_version[CHUNKS + i] = BUILDING; run contributor(i); i++
    :: else -> break
    od;
    run helper()
  }
  done == RANKS + 1;
  assert(contributors[buffer[0]] == BIT(RANKS) - 1 && contributors[buffer[1]] == BIT(RANKS) - 1)
}
