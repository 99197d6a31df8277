/* Tables by key: rows that are found, made, pushed, pulled and evicted, and used again (docs/protocols.md, table).
 *
 * Lanes 1 and 2 are workers, lane 3 is a clock sweep. ROWS rows lie in one chain, for two keys. The workers push FIRST and
 * SECOND times: worker 1 either key, worker 2 the low one. A push that finds no free row is refused. The sweep goes to a
 * row of its choice TURNS times, and evicts it or repairs what it finds there. The lane VICTIM is killed at any step, or
 * not at all, and followed by the next owner of its rank, who pushes once, or by nobody. When all have come to their end,
 * another sweep goes around once and only repairs.
 *
 * The number in a word goes up with each change, so a compare-exchange succeeds if and only if the word has not changed
 * since it was read. Words are therefore modelled without the number: `fresh` has a bit for each copy of a word that a
 * process holds, and a change clears the bits of its word. P, C and R are a lane's three copies.
 *
 * Checked: nobody updates or evicts a row whose elements belong to another key; a live row is in the chain, a free one is
 * not; the copy of a row that is evicted is what it held; a push is acknowledged once it was applied once, and refused if
 * it was not applied at all; a pull returns elements of its key alone. At the end the chain is sorted and has no key
 * twice, the rows hold what was pushed and not evicted, each row is in the chain or free, and all come to their end.
 *
 * With BUCKET a second way into the chain lies between the two keys, and is linked on first use. With PULL lane 2 is one who
 * pulls the low key: a walk without a look at its path may lead it to any row. With TWO_SWEEPS lane 2 is another sweep.
 *
 * Not in the model: memory orders, but for what tests/scenes shows; rows that share a fence and a scan of pins; admission
 * and scores; growth, which table_growth.pml has; numbers that come round again.
 *
 * Broken on purpose, one at a time:
 *   NO_SCAN      the sweep looks at no pins (table.E3, table.E4)
 *   OLD_DEAD     it looks who is alive before it seals the row (table.E3)
 *   NO_LOOK      a push does not look at the row that it has pinned (table.P3)
 *   NO_RESCUE    it goes on with a sealed row (table.P3)
 *   NO_PATH      a search does not look again at the word that led to a row (table.F2)
 *   NO_NUMBER    words have no number that goes up with each change
 *   EARLY_LIVE   a row is live before it is linked (table.I4)
 *   BLIND_NEW    the sweep looks at no note where a row is complete (table.E1)
 *   BLIND_FREE   nor where it is claimed (table.E1)
 *   LATE_NOTE    a row is claimed before it is noted (table.I1)
 *   STORED_CLAIM a row is claimed by a look and a store (table.I2)
 *   KEPT_NOTE    a lane that finds no free row leaves its note (table.I7)
 *   NEWER_WORD   the sweep gives a row back from a word that it reads after its looks (table.E8)
 *   LATE_WORD    the word of a bucket is read after the search (table.G1)
 *   NO_SECOND_WORD  a pull does not look at the row's word again (table.R3)
 */
#ifndef ROWS
#define ROWS 2
#endif
#ifndef FIRST
#define FIRST 1 /* pushes of worker 1 */
#endif
#ifndef SECOND
#define SECOND 1 /* pushes of worker 2 */
#endif
#ifndef TURNS
#define TURNS 1
#endif
#ifndef EVICTS
#define EVICTS true /* or the sweep only repairs */
#endif
#ifndef VICTIM
#define VICTIM 0
#endif
#define LOW 1
#define MIDDLE 2 /* of the bucket */
#define HIGH 3
#ifndef CHOICE
#define CHOICE (me == 1) /* may it push the high key? */
#endif

#define FREE 0
#define NEW 1
#define LIVE 2
#define SEALED 3
#define DEAD 4
#define WORD(state, next) (((state) << 3) | (next))
#define STATE(word) ((word) >> 3)
#define NEXT(word) ((word) & 7)
#define HEAD 0
#define WAY (ROWS + 1)
#define WORDS (ROWS + 2)

#define P (1 << (3 * me - 3))
#define C (2 << (3 * me - 3))
#define R (4 << (3 * me - 3))

byte word[WORDS];                        /* the first way into the chain; rows; the second way */
short fresh[WORDS];
byte key[WORDS];
byte pin[5], note[5];                    /* of a lane */
bool alive[5], struck[5];
byte turns, over;

/* What must hold, seen by nobody in the model. */
byte first_of[WORDS], second_of[WORDS];  /* elements: whose they are */
byte updates[WORDS];                     /* how many a row holds */
bool linked[WORDS];
byte held[4];                            /* of a key: pushed and not evicted */

/* `copy` is of word `i` now. */
inline copy_of(copy, i) {
  drop(copy);
  fresh[i] = fresh[i] | (copy)
}
inline drop(copy) {
  fresh[0] = fresh[0] & ~(copy);
  fresh[1] = fresh[1] & ~(copy);
  fresh[2] = fresh[2] & ~(copy);
#if WORDS > 4
  fresh[4] = fresh[4] & ~(copy);
#endif
  fresh[3] = fresh[3] & ~(copy)
}

#ifdef NO_NUMBER
#define SAME(copy, i, old) (word[i] == (old))
#else
#define SAME(copy, i, old) ((fresh[i] & (copy)) != 0)
#endif

/* A change of word `i` by the process whose `copy` is of the new word then. */
inline change(copy, i, desired) {
  word[i] = desired;
  fresh[i] = copy;
  assert(STATE(word[i]) != FREE || !linked[i]);
  assert((STATE(word[i]) != LIVE && STATE(word[i]) != SEALED) || linked[i])
}
inline exchange(copy, i, old, desired) {
  if
  :: SAME(copy, i, old) -> change(copy, i, desired); done = true
  :: else -> done = false
  fi
}

#ifdef NO_PATH
#define ON_PATH true
#else
#define ON_PATH SAME(P, p, before)
#endif
#define START 7

/* table.F1 to table.F3: the row of that key, or the place for it between p and c. A row's key is read with the second
   look at the word before: if that is the same, the key has been, too. */
inline find(wanted) {
  do
  :: d_step { c == START -> p = from; copy_of(P, p); before = word[p]; c = NEXT(before); found = false }
  :: c == 0 -> break
  :: d_step { c != START && c != 0 -> at = word[c]; copy_of(C, c) }
     if
     :: d_step { !ON_PATH -> c = START }
     :: d_step { ON_PATH && STATE(at) == DEAD ->
          exchange(P, p, before, WORD(STATE(before), NEXT(at)));  /* table.E6 */
          if
          :: done -> before = word[p]; linked[c] = false
          :: else -> c = START
          fi }
        if
        :: d_step { done -> exchange(C, c, at, WORD(FREE, 0)); c = NEXT(at) }  /* table.E7 */
        :: else
        fi
     :: d_step { ON_PATH && STATE(at) != DEAD && key[c] >= wanted -> found = (key[c] == wanted) }
        break
     :: d_step { ON_PATH && STATE(at) != DEAD && key[c] < wanted ->
          if
          :: (fresh[c] & C) != 0 -> copy_of(P, c)
          :: else -> drop(P)
          fi;
          p = c; before = at; c = NEXT(at) }
     fi
  od
}
inline forget() {
  drop(P | C | R); p = 0; c = START; at = 0; before = 0; seen = 0; found = false; done = false
}

#ifdef BUCKET
/* table.G1 to table.G3 */
inline use_bucket() {
  do
  :: d_step { seen = word[WAY]; copy_of(R, WAY) }
     if
     :: STATE(seen) == LIVE -> break
     :: else
     fi
     find(MIDDLE);
#ifdef LATE_WORD
     skip;
     d_step { seen = word[WAY]; copy_of(R, WAY) }
#endif
     if
     :: d_step { found -> if :: STATE(at) == NEW -> exchange(C, c, at, WORD(LIVE, NEXT(at))) :: else fi; c = START }
     :: d_step { !found -> exchange(R, WAY, seen, WORD(NEW, c)) }  /* table.G2 */
        if
        :: d_step { done ->
             exchange(P, p, before, WORD(STATE(before), WAY));
             if
             :: done -> linked[WAY] = true; assert(NEXT(word[WAY]) == c)
             :: else
             fi;
             c = START }
        :: else -> c = START
        fi
     fi
  od
  atomic { forget(); from = WAY }
}
#endif

/* table.I1 to table.I3: a row for the key, which nobody else uses; or `row` stays 0. */
inline claim() {
  do
  :: d_step {
       mine = 1;
       do
       :: mine <= ROWS && word[mine] != WORD(FREE, 0) -> mine++
       :: else -> break
       od;
       if
       :: mine > ROWS -> mine = 0
       :: else -> copy_of(R, mine)
       fi
     }
     if
     :: d_step { mine == 0 ->
#ifndef KEPT_NOTE
          note[me] = 0;  /* table.I7 */
#endif
          is_full = true; forget() }
        break
     :: else
     fi
#ifndef LATE_NOTE
     note[me] = mine;  /* table.I1 */
#endif
     d_step {  /* table.I2 */
#ifdef STORED_CLAIM
       change(R, mine, WORD(FREE, me)); done = true
#else
       exchange(R, mine, WORD(FREE, 0), WORD(FREE, me))
#endif
     }
     if
     :: done -> break
     :: else
     fi
  od
  if
  :: mine != 0 ->
#ifdef LATE_NOTE
     note[me] = mine;
#endif
     key[mine] = k;  /* table.I3 */
     d_step { first_of[mine] = k; updates[mine] = 0 }
     second_of[mine] = k
  :: else
  fi
}

/* The key's row, found or made; 0: try again, or there is none free. */
inline find_row() {
  find(k);
  if
  :: d_step { found && STATE(at) == NEW -> exchange(C, c, at, WORD(LIVE, NEXT(at))); c = START }  /* table.I6 */
  :: d_step { found && STATE(at) != NEW && mine == 0 -> row = c; forget() }
  :: d_step { found && STATE(at) != NEW && mine != 0 -> change(R, mine, WORD(FREE, 0)); row = c; mine = 0; forget() }
     note[me] = 0
  :: !found ->
     if
     :: mine == 0 -> claim()
     :: else
     fi
     if
     :: d_step { mine != 0 ->
#ifdef EARLY_LIVE
          word[mine] = WORD(LIVE, c); fresh[mine] = R
#else
          change(R, mine, WORD(NEW, c))  /* table.I4 */
#endif
        }
        d_step {
          exchange(P, p, before, WORD(STATE(before), mine));  /* table.I5 */
          if
          :: done -> linked[mine] = true
          :: else -> c = START
          fi
        }
        if
        :: d_step { done -> exchange(R, mine, WORD(NEW, c), WORD(LIVE, c)); row = mine; mine = 0; forget() }  /* table.I6 */
           note[me] = 0  /* table.I7 */
        :: else
        fi
     :: else
     fi
  fi
}

inline push_once() {
  pin[me] = row;  /* table.P1 */
  do  /* table.P3 */
  :: d_step { seen = word[row]; copy_of(R, row) }
     if
#ifdef NO_LOOK
     :: is_pinned = true
#else
     :: d_step { STATE(seen) == LIVE && key[row] == k -> is_pinned = true }
#ifdef NO_RESCUE
     :: STATE(seen) == SEALED && key[row] == k -> is_pinned = true
#else
     :: STATE(seen) == SEALED && key[row] == k ->
        d_step { exchange(R, row, seen, WORD(LIVE, NEXT(seen))); is_pinned = done }
#endif
     :: else -> break
#endif
     fi
     if
     :: is_pinned ->
        d_step {  /* table.P4 */
          assert(key[row] == k && first_of[row] == k && second_of[row] == k);
          assert(STATE(word[row]) == LIVE || STATE(word[row]) == SEALED);
          updates[row]++; held[k]++; times++; is_pinned = false
        }
        break
     :: else
     fi
  od
  atomic { pin[me] = 0; row = 0; forget() }  /* table.P5 */
}

proctype worker(byte me; byte pushes) {
  byte k, p, c = START, at, before, from, row, mine, seen, times;
  bool found, done, is_pinned, is_full;
begin:
  {
    d_step { !alive[me] -> alive[me] = true }
    pin[me] = 0;  /* table.P0 */
    note[me] = 0;
    do
    :: atomic { pushes > 0 -> pushes--; if :: k = LOW :: CHOICE -> k = HIGH fi }
#ifdef BUCKET
       if
       :: k == HIGH -> use_bucket()
       :: true
       fi
#endif
       do
       :: row == 0 && times == 0 && !is_full -> find_row()
       :: row != 0 -> push_once()
       :: else -> break
       od
       skip;
       d_step { assert(times + is_full == 1); k = 0; times = 0; is_full = false; from = 0 }
    :: pushes == 0 -> break
    od
  } unless { struck[me] };
  atomic { k = 0; row = 0; mine = 0; times = 0; is_pinned = false; is_full = false; from = 0; forget() }
  if
  :: struck[me] -> struck[me] = false; pushes = 1; goto begin
  :: struck[me] -> struck[me] = false; over++  /* nobody takes the rank */
  :: else -> over++
  fi
}

/* A walk without a look at its path may lead anywhere. */
proctype puller(byte me) {
  byte row, seen, one, two;
  atomic { if :: row = 1 :: row = ROWS fi; seen = word[row]; copy_of(R, row) }
  if
  :: atomic { (STATE(seen) == LIVE || STATE(seen) == SEALED) && key[row] == LOW -> one = first_of[row] }  /* table.R1 */
     two = second_of[row];  /* table.R2 */
     atomic {  /* table.R3 */
#ifndef NO_SECOND_WORD
       if
       :: !SAME(R, row, seen) -> one = LOW; two = LOW
       :: else
       fi
#endif
       assert(one == LOW && two == LOW)
     }
  :: else
  fi
  atomic { row = 0; seen = 0; one = 0; two = 0; drop(R); over++ }
}

#ifdef OLD_DEAD
#define LIVES(lane) (where == PINS -> ((living >> (lane)) & 1) : alive[lane])
#else
#define LIVES(lane) alive[lane]
#endif
#define NOTES 0
#define PINS 1
/* Whether a living lane names the row there. */
inline look_for(where) {
  other = 1;
  do
  :: d_step { other < 3 -> stays = ((where == NOTES && note[other] == row) || (where == PINS && pin[other] == row)) }
     if
     :: d_step { stays -> stays = LIVES(other) }
     :: else
     fi
     if
     :: stays -> break
     :: else -> other++
     fi
  :: other == 3 -> break
  od
  other = 0
}

inline give_back() {
#ifdef NEWER_WORD
  if
  :: STATE(word[row]) == STATE(seen) -> change(R, row, WORD(FREE, 0))
  :: else
  fi
#else
  exchange(R, row, seen, WORD(FREE, 0))
#endif
}

inline tend() {
#ifdef OLD_DEAD
  living = (alive[1] << 1) | (alive[2] << 2);
#endif
  d_step { seen = word[row]; copy_of(R, row) }  /* table.E1 */
  if
  :: seen == WORD(FREE, 0) || ((STATE(seen) == LIVE || STATE(seen) == SEALED) && !evicts)
  :: d_step { STATE(seen) == FREE && NEXT(seen) != 0 -> stays = (note[NEXT(seen)] == row) }
#ifdef BLIND_FREE
     stays = false;
#endif
     if
     :: d_step { stays -> stays = alive[NEXT(seen)] }
     :: else
     fi
     if
     :: d_step { !stays -> give_back() }  /* table.E8 */
     :: else
     fi
  :: STATE(seen) == NEW ->
#ifndef BLIND_NEW
     look_for(NOTES);
#endif
     if
     :: !stays -> k = key[row]
     :: else
     fi
  :: STATE(seen) == DEAD -> k = key[row]
  :: d_step { (STATE(seen) == LIVE || STATE(seen) == SEALED) && evicts ->
       exchange(R, row, seen, WORD(SEALED, NEXT(seen))) }  /* table.E2 */
     if
     :: done ->
        seen = WORD(SEALED, NEXT(seen));
#ifndef NO_SCAN
        look_for(PINS);  /* table.E3 */
#endif
        if
        :: d_step { stays -> exchange(R, row, seen, WORD(LIVE, NEXT(seen))) }  /* table.E4 */
        :: d_step { !stays -> k = key[row]; other = updates[row] }
           d_step {
             exchange(R, row, seen, WORD(DEAD, NEXT(seen)));  /* table.E5 */
             if
             :: done ->
                assert(updates[row] == other && key[row] == k && first_of[row] == k && second_of[row] == k);
                held[k] = held[k] - other; seen = WORD(DEAD, NEXT(seen))
             :: else -> k = 0
             fi;
             other = 0
           }
        fi
     :: else
     fi
  fi
  if
  :: k != 0 ->
     find(k);
     if
     :: d_step { STATE(seen) == NEW && found && c == row ->
          if
          :: STATE(at) == NEW -> exchange(C, c, at, WORD(LIVE, NEXT(at)))
          :: else
          fi }
     :: d_step { STATE(seen) != NEW || !found || c != row -> give_back() }  /* table.E7, table.E8 */
     fi
  :: else
  fi
  d_step { k = 0; row = 0; stays = false; forget() }
}

#define IS_LAST (me == 4)
/* The clock sweep; or, once all lanes have come to their end, the one that goes around once more. */
proctype sweep(byte me) {
  byte k, p, c = START, at, before, from, row, seen, other, rows, living;
  bool found, done, stays, evicts;
begin:
  {
    d_step { !alive[me] && (!IS_LAST || over == 3) -> alive[me] = true }
    do
    :: atomic { !IS_LAST && turns < TURNS -> turns++; evicts = EVICTS; if :: row = 1 :: row = ROWS fi }
       tend()
    :: atomic { IS_LAST && rows < ROWS -> rows++; row = rows }
       tend()
    :: else -> break
    od
  } unless { struck[me] };
  atomic { k = 0; row = 0; other = 0; living = 0; stays = false; evicts = false; forget() }
  if
  :: struck[me] -> struck[me] = false; goto begin
  :: struck[me] -> struck[me] = false; over++  /* nobody takes the rank */
  :: !struck[me] && !IS_LAST -> d_step { over++; alive[me] = false }
  :: !struck[me] && IS_LAST ->
     d_step {
       c = NEXT(word[HEAD]); k = 0;
       do
       :: c != 0 ->
          assert(linked[c] && key[c] > k);
          k = key[c];
          if
          :: c != WAY ->
             assert(STATE(word[c]) == LIVE || STATE(word[c]) == SEALED);
             assert(held[k] == updates[c]);
             held[k] = 0; linked[c] = false
          :: else
          fi;
          c = NEXT(word[c])
       :: else -> break
       od;
       assert(held[LOW] == 0 && held[HIGH] == 0);
       row = 1;
       do
       :: row <= ROWS ->
          assert(!linked[row]);
          assert(word[row] == WORD(FREE, 0) || STATE(word[row]) == LIVE || STATE(word[row]) == SEALED);
          row++
       :: else -> break
       od;
       row = 0
     }
  fi
}

proctype killer() {
end:
  d_step { alive[VICTIM] && over < 3 -> struck[VICTIM] = true; alive[VICTIM] = false }
}

init {
  atomic {
    word[HEAD] = WORD(LIVE, 0);
    linked[HEAD] = true;
    key[WAY] = MIDDLE;
    run worker(1, FIRST);
#ifdef PULL
    run puller(2);
#elif defined(TWO_SWEEPS)
    run sweep(2);
#else
    run worker(2, SECOND);
#endif
    run sweep(3);
    run sweep(4);
#if VICTIM > 0
    run killer()
#endif
  }
}
