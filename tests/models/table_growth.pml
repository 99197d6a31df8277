/* Growth of a table by key: buckets are doubled and linked, and unused rows are taken (docs/protocols.md, table).
 *
 * The list has a first bucket, and two more that are linked on first use: bucket 1 is split from the first one, and
 * bucket 3 from bucket 1. Keys LOW, MIDDLE and HIGH belong to the first bucket, to bucket 1 and to bucket 3 if there are
 * four buckets; to the bucket that this one was split from if there are fewer. Processes 1 and 2 are workers, which push
 * FIRST and SECOND times, each time a key of its own choice. Process 3 evicts a row of its choice EVICTIONS times.
 * There are 2^START_BITS buckets at first, with memory. Who takes an unused row may double the number afterwards, whatever
 * the number of rows is. The process VICTIM is killed at any step, or not at all, and followed by the next owner of its
 * rank, who pushes once, or by nobody. When all have come to their end, another worker pushes the low and the high key.
 *
 * What table.pml shows is one step here: a row is claimed, filled and noted; it is pinned, looked at and updated; it is
 * sealed, looked for among the pins and dead; a row that a dead process has claimed is free again. Words are modelled as
 * there: without the number, with a bit in `fresh` for each copy of a word that a process holds.
 *
 * Checked: buckets and rows are read and written where they have memory only; a bucket is LIVE only if it is linked, and
 * who begins a search begins it at a linked one; a push is applied once, or refused if there is no free row; every row
 * that is in use is below rows_next. At the end the list is sorted, has no key twice, and leads to all rows and buckets
 * that were linked; the rows hold what was pushed and not evicted; the last worker gets a row if one is free.
 *
 * Not in the model: memory orders; memory that cannot be had, which leaves everything as it is; bucket 2, which would be
 * another one that is split from the first bucket; buckets that are linked before a key needs them.
 *
 * Broken on purpose, one at a time:
 *   LATE_WORD      the word of a bucket is read after the search for its place (table.G1)
 *   NO_PARENT      a bucket is linked before the one that it was split from (table.G1)
 *   STORED_LIVE    a bucket that was met is made LIVE by a store (table.G1)
 *   NEW_USED       a search begins at a bucket that is NEW (table.G1)
 *   STORED_READY   a bucket's word is made NEW by a store (table.G2)
 *   EARLY_LIVE     a bucket is LIVE before it is linked (table.G2)
 *   LINK_ASSUMED   a bucket is made LIVE without another search (table.G3)
 *   STORED_LINK    the word before the bucket is changed by a store (table.G3)
 *   EARLY_BITS     `bits` goes up before there is memory (table.G4)
 *   ADDED_BITS     it goes up by an addition (table.G4)
 *   EARLY_ROWS     `rows_next` goes up before there is memory (table.A1)
 *   EARLY_BACKED   `rows_backed` goes up before there is memory (table.A1)
 *   STORED_ROWS    `rows_next` is stored (table.A1)
 *   OWNED_ROWS     rows that were taken are only for the thread that took them (table.A1)
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
#ifndef EVICTIONS
#define EVICTIONS 0
#endif
#ifndef START_BITS
#define START_BITS 0
#endif
#ifndef MOST_BITS
#define MOST_BITS 2
#endif
#ifndef START_ROWS
#define START_ROWS 0 /* rows that were taken before, and are free */
#endif
#ifndef CHOICE
#define CHOICE (me == 1) /* may it push the high key, too? */
#endif
#ifndef VICTIM
#define VICTIM 0
#endif

/* In the order of the list; the first bucket has 0. */
#define LOW 1
#define OF_ONE 2
#define MIDDLE 3
#define OF_THREE 4
#define HIGH 5
#define KEYS 6

#define FREE 0
#define NEW 1
#define LIVE 2
#define DEAD 4
#define WORD(state, next) (((state) << 3) | (next))
#define STATE(word) ((word) >> 3)
#define NEXT(word) ((word) & 7)
#define HEAD 0 /* the first bucket; as a successor: none */
#define ONE (ROWS + 1)
#define THREE (ROWS + 2)
#define WORDS (ROWS + 3)

#define P (1 << (3 * me - 3))
#define C (2 << (3 * me - 3))
#define R (4 << (3 * me - 3))

byte word[WORDS];          /* the first bucket; rows; buckets 1 and 3 */
short fresh[WORDS];
byte key[WORDS];
byte bits = START_BITS, rows_next = START_ROWS, rows_backed = START_ROWS;
bool alive[5], struck[5];
byte over;

/* What must hold, seen by nobody in the model. */
byte bits_backed = START_BITS;
byte memory = (2 << START_ROWS) - 2; /* a bit for each row that has memory */
byte updates[WORDS];       /* how many a row holds */
bool linked[WORDS];
byte held[KEYS];           /* of a key: pushed and not evicted */

#define IS_ROW(i) ((i) >= 1 && (i) <= ROWS)
#define HAS_MEMORY(i) ((i) == HEAD || (IS_ROW(i) && (memory & (1 << (i))) != 0) || \
                       ((i) == ONE && bits_backed >= 1) || ((i) == THREE && bits_backed >= 2))

inline drop(copy) {
  fresh[0] = fresh[0] & ~(copy);
  fresh[1] = fresh[1] & ~(copy);
  fresh[2] = fresh[2] & ~(copy);
  fresh[3] = fresh[3] & ~(copy);
#if WORDS > 5
  fresh[5] = fresh[5] & ~(copy);
#endif
  fresh[4] = fresh[4] & ~(copy)
}
/* `copy` is of word `i` now. */
inline copy_of(copy, i) {
  assert(HAS_MEMORY(i));
  drop(copy);
  fresh[i] = fresh[i] | (copy)
}
#define SAME(copy, i) ((fresh[i] & (copy)) != 0)

/* A change of word `i` by the process whose `copy` is of the new word then. */
inline change(copy, i, desired) {
  word[i] = desired;
  fresh[i] = copy;
  assert(STATE(word[i]) != FREE || !linked[i]);
  assert(STATE(word[i]) != LIVE || linked[i])
}
inline exchange(copy, i, desired) {
  if
  :: SAME(copy, i) -> change(copy, i, desired); done = true
  :: else -> done = false
  fi
}

#define START 7
inline forget() {
  drop(P | C | R); p = 0; c = START; at = 0; before = 0; seen = 0; found = false; done = false
}

/* table.F1 to table.F3: the first row or bucket from `wanted` on, between p and c. */
inline find(wanted) {
  do
  :: d_step { c == START -> assert(linked[from]); p = from; copy_of(P, p); before = word[p]; c = NEXT(before); found = false }
  :: c == 0 -> break
  :: d_step { c != START && c != 0 -> at = word[c]; copy_of(C, c) }
     if
     :: d_step { !SAME(P, p) -> c = START }
     :: d_step { SAME(P, p) && STATE(at) == DEAD ->
          exchange(P, p, WORD(STATE(before), NEXT(at)));  /* table.E6 */
          if
          :: done -> before = word[p]; linked[c] = false
          :: else -> c = START
          fi }
        if
        :: d_step { done -> exchange(C, c, WORD(FREE, 0)); c = NEXT(at) }  /* table.E7 */
        :: else
        fi
     :: d_step { SAME(P, p) && STATE(at) != DEAD && key[c] >= wanted -> found = (key[c] == wanted) }
        break
     :: d_step { SAME(P, p) && STATE(at) != DEAD && key[c] < wanted ->
          if
          :: SAME(C, c) -> copy_of(P, c)
          :: else -> drop(P)
          fi;
          p = c; before = at; c = NEXT(at) }
     fi
  od
}

#ifdef NEW_USED
#define MAY_BEGIN(word) (STATE(word) == LIVE || STATE(word) == NEW)
#else
#define MAY_BEGIN(word) (STATE(word) == LIVE)
#endif
/* table.G1 to table.G3: links the bucket `target`, and first the one that it was split from. */
inline link_bucket() {
  w = target;
  do
  :: w == HEAD -> break
  :: w != HEAD ->
     d_step { seen = word[w]; copy_of(R, w); from = (w == THREE -> ONE : HEAD) }
     if
     :: MAY_BEGIN(seen) && w == target -> break
     :: MAY_BEGIN(seen) && w != target -> w = target
#ifndef NO_PARENT
     :: !MAY_BEGIN(seen) && w == THREE && !MAY_BEGIN(word[ONE]) -> w = ONE
     :: !MAY_BEGIN(seen) && (w != THREE || MAY_BEGIN(word[ONE])) ->
#else
     :: !MAY_BEGIN(seen) ->
#endif
        find(key[w]);
#ifdef LATE_WORD
        skip;
        d_step { seen = word[w]; copy_of(R, w) }
#endif
        if
        :: d_step { found && STATE(seen) != LIVE ->
#ifdef STORED_LIVE
             change(R, w, WORD(LIVE, NEXT(seen)));
             assert(NEXT(seen) == NEXT(at));
#else
             exchange(R, w, WORD(LIVE, NEXT(seen)));
#endif
             c = START }
        :: d_step { found && STATE(seen) == LIVE -> c = START }
        :: d_step { !found ->  /* table.G2 */
#ifdef EARLY_LIVE
             if
             :: SAME(R, w) -> word[w] = WORD(LIVE, c); fresh[w] = R; done = true
             :: else -> done = false
             fi
#elif defined(STORED_READY)
             change(R, w, WORD(NEW, c)); done = true
#else
             exchange(R, w, WORD(NEW, c))
#endif
           }
           if
           :: d_step { done ->  /* table.G3 */
#ifdef STORED_LINK
                if
                :: !linked[w] -> change(P, p, WORD(STATE(before), w)); linked[w] = true
                :: else
                fi;
#else
                exchange(P, p, WORD(STATE(before), w));
                if
                :: done -> assert(!linked[w]); linked[w] = true; assert(NEXT(word[w]) == c)
                :: else
                fi;
#endif
                c = START }
#ifdef LINK_ASSUMED
              d_step { exchange(R, w, WORD(LIVE, NEXT(word[w]))) }
#endif
           :: !done -> c = START
           fi
        fi
     fi
  od
  atomic { forget(); from = target; w = 0; target = 0 }
}

/* table.G4 */
inline double() {
  old = bits;
  if
  :: old < MOST_BITS ->
#ifdef EARLY_BITS
     d_step { if :: bits == old -> bits = old + 1 :: else fi }
     d_step { if :: bits_backed <= old -> bits_backed = old + 1 :: else fi }
#else
     d_step { if :: bits_backed <= old -> bits_backed = old + 1 :: else fi }
#ifdef ADDED_BITS
     bits = bits + 1
#else
     d_step { if :: bits == old -> bits = old + 1 :: else fi }
#endif
#endif
  :: else
  fi
  old = 0
}

#define RAISE(what, least) if :: what < (least) -> what = (least) :: else fi
inline back() {
  if
  :: rows_backed <= old ->
#ifdef EARLY_BACKED
     d_step { RAISE(rows_backed, old + 1) }
     memory = memory | (2 << old)
#else
     memory = memory | (2 << old);
     d_step { RAISE(rows_backed, old + 1) }
#endif
  :: else
  fi
}
/* table.A1: a row that was never used. */
inline take_unused() {
  done = false;
  old = rows_next;
  if
  :: old < ROWS ->
#ifndef EARLY_ROWS
     back();
#endif
     d_step {
#ifdef STORED_ROWS
       rows_next = old + 1; done = true;
#else
       if
       :: rows_next == old -> rows_next = old + 1; done = true
       :: else
       fi;
#endif
       assert(rows_next == ROWS || word[ROWS] == WORD(FREE, 0))
     }
#ifdef EARLY_ROWS
     if
     :: done -> back()
     :: else
     fi
#endif
  :: else
  fi
  d_step {
    if
    :: done -> hint = old + 1
    :: else
    fi;
    old = 0
  }
  if
  :: done -> if :: double() :: true fi
  :: else
  fi
}

#ifdef OWNED_ROWS
#define ANY_FREE 0
#else
#define ANY_FREE rows_next
#endif
/* A row for the key; or `mine` stays 0, and the push is refused. */
inline claim() {
  do
  :: d_step { hint != 0 ->  /* table.I2 */
       assert(HAS_MEMORY(hint));
       if
       :: word[hint] == WORD(FREE, 0) -> mine = hint; fresh[mine] = R; key[mine] = k; updates[mine] = 0;
          word[mine] = WORD(NEW, 0); assert(!linked[mine])
       :: else
       fi;
       hint = 0 }
     if
     :: mine != 0 -> break
     :: else
     fi
  :: hint == 0 && rows_next < ROWS -> take_unused()
  :: d_step { hint == 0 && rows_next >= ROWS ->  /* the sweep */
       done = false; hint = 1;
       do
       :: hint <= ANY_FREE ->
          assert(HAS_MEMORY(hint));
          if
          :: word[hint] == WORD(FREE, 0) -> break
          :: else -> hint++
          fi
       :: else -> hint = 0; break
       od }
     if
     :: hint != 0
     :: else -> is_full = true; break
     fi
  od
}

#define OF(key, bits) ((key) == LOW || bits == 0 -> HEAD : ((key) == MIDDLE || bits == 1 -> ONE : THREE))

inline push() {
  target = OF(k, bits);
  link_bucket();
  do
  :: times == 0 && !is_full ->
     find(k);
     if
     :: d_step { found && mine == 0 ->
          if
          :: word[c] == at && SAME(C, c) && STATE(at) == LIVE && key[c] == k ->
             updates[c]++; held[k]++; times++
          :: else
          fi;
          c = START }
     :: d_step { found && mine != 0 -> fresh[mine] = 0; word[mine] = WORD(FREE, 0); hint = mine; mine = 0; c = START }
     :: !found ->
        if
        :: mine == 0 -> claim(); atomic { drop(P | C | R); c = START }
        :: d_step { mine != 0 ->
             fresh[mine] = 0; word[mine] = WORD(NEW, c);  /* table.I4 */
             exchange(P, p, WORD(STATE(before), mine));  /* table.I5 */
             if
             :: done -> linked[mine] = true; fresh[mine] = 0; word[mine] = WORD(LIVE, c); mine = 0
             :: else
             fi;
             c = START }
        fi
     fi
  :: else -> break
  od
}

proctype worker(byte me; byte pushes) {
  byte k, p, c = START, at, before, from, target, w, mine, seen, times, hint, old;
  bool found, done, is_full;
begin:
  {
    d_step { !alive[me] && (me != 4 || over == 3) -> alive[me] = true }
    do
    :: atomic { pushes > 0 -> pushes--;
         if
         :: me == 4 -> k = (pushes == 1 -> LOW : HIGH) /* first the low one */
         :: me != 4 && CHOICE -> k = MIDDLE
         :: me != 4 -> k = HIGH
         fi }
       push();
       skip;
       d_step {
         assert(times + is_full == 1);
         if
         :: me == 4 && is_full ->
            w = 1;
            do
            :: w <= ROWS -> assert(word[w] != WORD(FREE, 0)); w++
            :: else -> break
            od;
            w = 0
         :: else
         fi;
         k = 0; times = 0; is_full = false; from = 0; forget() }
    :: pushes == 0 -> break
    od
  } unless { struck[me] };
  atomic {
    if
    :: mine != 0 -> fresh[mine] = 0; word[mine] = WORD(FREE, 0); mine = 0  /* table.E8 */
    :: else
    fi;
    k = 0; times = 0; is_full = false; from = 0; target = 0; w = 0; hint = 0; old = 0; forget()
  }
  if
  :: struck[me] -> struck[me] = false; pushes = 1; goto begin
  :: struck[me] -> struck[me] = false; over++  /* nobody takes the rank */
  :: !struck[me] && me != 4 -> over++
  :: d_step { !struck[me] && me == 4 ->
       c = NEXT(word[HEAD]); k = 0;
       do
       :: c != 0 ->
          assert(linked[c] && key[c] > k);
          k = key[c];
          if
          :: STATE(word[c]) == LIVE && IS_ROW(c) -> assert(held[k] == updates[c]); held[k] = 0
          :: else
          fi;
          linked[c] = false;
          c = NEXT(word[c])
       :: else -> break
       od;
       assert(held[LOW] == 0 && held[MIDDLE] == 0 && held[HIGH] == 0);
       w = 1;
       do
       :: w < WORDS ->
          assert(!linked[w]);
          assert(!IS_ROW(w) || word[w] == WORD(FREE, 0) || w <= rows_next);
          w++
       :: else -> break
       od;
       w = 0; k = 0; c = START }
  fi
}

/* Evicts rows, of whatever key, by whatever number of buckets there is. */
proctype evictor(byte me; byte evictions) {
  byte k, p, c = START, at, before, from, target, w, seen, row, old;
  bool found, done;
begin:
  {
    d_step { !alive[me] -> alive[me] = true }
    do
    :: atomic { evictions > 0 && rows_next > 0 -> evictions--;
         if
         :: row = 1
         :: rows_next > 1 -> row = rows_next
         fi }
       d_step {
         assert(HAS_MEMORY(row));
         if
         :: STATE(word[row]) == LIVE ->  /* table.E5 */
            k = key[row]; held[k] = held[k] - updates[row];
            fresh[row] = 0; word[row] = WORD(DEAD, NEXT(word[row]))
         :: else
         fi }
       if
       :: k != 0 ->
          target = OF(k, bits);
          link_bucket();
          find(k);  /* table.E6 */
          atomic { k = 0; from = 0; forget() }
       :: else
       fi
       row = 0
    :: true -> evictions = 0; break
    od
  } unless { struck[me] };
  atomic { k = 0; row = 0; from = 0; target = 0; w = 0; old = 0; forget(); struck[me] = false; over++ }
}

proctype killer() {
end:
  d_step { alive[VICTIM] && over < 3 -> struck[VICTIM] = true; alive[VICTIM] = false }
}

init {
  atomic {
    word[HEAD] = WORD(LIVE, 0);
    linked[HEAD] = true;
    key[ONE] = OF_ONE;
    key[THREE] = OF_THREE;
    run worker(1, FIRST);
    run worker(2, SECOND);
    run evictor(3, EVICTIONS);
    run worker(4, 2);
#if VICTIM > 0
    run killer()
#endif
  }
}
