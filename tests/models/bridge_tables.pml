/* Tables by key in the rounds of several boxes: marks, cuts, changes and the last cut (docs/protocols.md, bridge.T1 to bridge.T9).
 *
 * Two boxes, and a third one that has no work, never dies, and is in each group: it remembers the anchor of each round, and
 * what it has prepared of the next one. So a group may have one of the two boxes or both, and bridge.pml shows that the
 * rounds of all groups are one chain. The job of each box pushes to keys of its choice and evicts rows at any moment: what it
 * does until the bridge looks at a row next is done just before that. Bridges are killed at any step DEATHS times, which also
 * stands for an error of a collective. Groups are formed HASTES times before all have come. With END, the jobs of these boxes
 * end at any moment. With JOIN, box 1 has no state, and rows from an earlier one. With FIRST, no box has an anchor. A key may
 * be of another table as well as of the same one: a change has as many steps.
 *
 * A row begins with INITIAL, and a push of box b adds UNIT(b). So that a mark does not need a number, a new ticket makes NOW
 * OLD. Of the numbers of dumps there are two bits for each row: whether it has changed since the last cut that was
 * counted, and since the last dump.
 *
 * Checked: a round has one anchor; each cut is counted at most once, and has of each row what was pushed to this very row and
 * counted by no round; the row in which a bridge was killed, and nothing else, is dropped, and what an eviction takes with it.
 * Once nothing happens any more, all boxes come to the same round, which has all keys and all that was pushed, and so have
 * the rows.
 *
 * Not in the model: several elements of a row, what a transfer dtype loses, parts of an exchange, values that are not finite.
 * That a bridge evicts no row to make one (bridge.T3) is about which rows stay, not about what is counted.
 *
 * Broken on purpose, one at a time:
 *   REPLACES     a key for which there is no room takes the place of another one (bridge.T1)
 *   NO_ROOM      a key for which there is no room is in the sum (bridge.T5)
 *   UNMARKED     a row that was made again counts as one that has the anchor (bridge.T2)
 *   LATE_ODD     the mark is changed once, behind the addition (bridge.T3)
 *   EARLY_EVEN   before it (bridge.T3)
 *   DOUBT_KEPT   a row in doubt is left as it is (bridge.T3)
 *   LATE_MARK    a row that the bridge makes has mark 0 at first (bridge.T3)
 *   UNGIVEN      a cut has rows with mark 0 that have not got the anchor (bridge.T4)
 *   NOT_READ     it has such a row as it was before (bridge.T4)
 *   BOTH_ROWS    it has a key twice, if the walk over the rows has met an evicted row and its successor (bridge.T4)
 *   EARLY_START  the cut after it begins there, counted or not (bridge.T4)
 *   STEP_TWICE   the step adds to A in place of the base (bridge.T5)
 *   LATE_BASE    the base is made behind the header (bridge.T5)
 *   ONLY_BASE    W lacks what the cut has (bridge.T6)
 *   CUT_ADDED    W has a cut that was not counted (bridge.T6)
 *   LIKE_OTHERS  a row with mark 0 gets A - W (bridge.T6)
 *   NEXT_ROUND   another round begins before the rows have got what they lack (bridge.T6)
 *   NEXT_SUM     another sum is received before (bridge.T6)
 *   COPY_FIRST   the first anchor's rows are copied before they are marked (bridge.T7)
 *   KNOWN_ONLY   in phase `assign`, rows keep their values if the anchor does not have their keys (bridge.T7)
 *   LAST_ANEW    the last cut is made again in another group (bridge.T8)
 *   LAST_LATE    none is made where the job ends within the change before another round; with NEXT_SUM (bridge.T8)
 *   LAST_PLAIN   it takes no look at the marks (bridge.T8)
 *   LAST_DOUBT   it has rows in doubt (bridge.T8)
 *   NO_BASE      an anchor is taken from others without a new base (bridge.T9)
 *   BASE_AGAIN   with a new base also in phase `counted` (bridge.T9)
 */
#ifndef KEYS
#define KEYS 1
#endif
#ifndef MOST
#define MOST KEYS /* of the keys that the anchor may have */
#endif
#ifndef PUSHES0
#define PUSHES0 1
#endif
#ifndef PUSHES1
#define PUSHES1 1
#endif
#ifndef EVICTIONS
#define EVICTIONS 0
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef HASTES
#define HASTES 1
#endif
#ifndef END
#define END 0 /* a bit for each box */
#endif

#define ROUNDS 8
#define BOTH 3
#define INITIAL 100
#define UNIT(b) ((b) * 9 + 1)

mtype = { new, idle, cut, counted, assign };
mtype = { none, again, nothing, sum, finish };
mtype = { nobody, of_sum, all_keys }; /* whose rows are due */

/* Marks. */
#define GONE 0 /* there is no row */
#define FRESH 1
#define OLD 2
#define NOW 3
#define DOING 4

/* Collectives. */
#define AGREE 0
#define CARRY 1
#define HEADS 2
#define VOTE 3

#define HAS(mask, b) (((mask) >> (b)) & 1)
#define AT(b, k) ((b) * KEYS + (k))

/* The jobs' tables. */
short row[2 * KEYS];
byte mark[2 * KEYS];
byte changed[2], lately[2];        /* of each row: since the cut that was counted last, and since the last dump */
bool over[2];
byte left[2], evictions = EVICTIONS, may_end = END;

/* What outlives a bridge. */
mtype phase[2] = idle;
byte round[2];
bool whole[2] = true, stepping[2], has_cut[2], has_last[2], is_last[2], is_counted[2];
mtype due[2] = nobody;
byte known[2], based[2];           /* keys */
short A[2 * KEYS], base[2 * KEYS], cut_row[2 * KEYS], last_row[2 * KEYS], sum_row[2 * KEYS];
byte sum_keys[2], sum_boxes[2], ready[2];

/* What the third box has: the anchor, the sum that led there, and the one that it has prepared. */
bool begun = true;
byte top, top_keys, counted_cuts;  /* whose last cut the anchor has */
short top_A[KEYS];
byte was_keys, was_boxes; short was_row[KEYS];
byte kept, kept_keys, kept_boxes; short kept_row[KEYS];

/* Groups. */
byte waiting, members[2], number[2], numbers;
byte arrived, ended, broken;
mtype outcome[2] = none;
byte got_keys[2], got_boxes[2]; short got_row[2 * KEYS];
byte deaths, hastes;
bool is_over, keeps;

/* What must hold, seen by nobody in the model. */
short known_A[(ROUNDS + 1) * KEYS];
byte own[2 * KEYS];                /* pushes to this row that no round has counted */
byte in_cut[2 * KEYS];             /* those of them that the cut has */

hidden byte c, q, best, number_of;
hidden byte has_weight, has_work;

#define SET(mask, b, on) mask = (mask & ~(1 << (b))) | ((on) << (b))
#define ANCHOR(k) (HAS(known[me], k) -> A[AT(me, k)] : INITIAL)
#define IN_CUT(k) (has_cut[me] -> cut_row[AT(me, k)] : 0)
#define IS_DUE(k) ((due[me] == of_sum && HAS(sum_keys[me], k)) || (due[me] == all_keys && HAS(known[me], k)))
#ifdef ONLY_BASE
#define W(k) (HAS(based[me], k) -> base[AT(me, k)] : INITIAL)
#elif defined(CUT_ADDED)
#define W(k) ((HAS(based[me], k) -> base[AT(me, k)] : INITIAL) + cut_row[AT(me, k)])
#else
#define W(k) ((HAS(based[me], k) -> base[AT(me, k)] : INITIAL) + IN_CUT(k))
#endif

#if KEYS == 1
#define NUMBER(keys) (keys)
#define IS_EMPTY(b) (last_row[AT(b, 0)] == 0)
#else
#define NUMBER(keys) (HAS(keys, 0) + HAS(keys, 1))
#define IS_EMPTY(b) (last_row[AT(b, 0)] == 0 && last_row[AT(b, 1)] == 0)
#endif

#ifdef REPLACES
#define IS_IN(keys, k) true
#else
#define IS_IN(keys, k) (HAS(keys, k) || NUMBER(keys) < MOST)
#endif

inline leave(b) {
  if
  :: !HAS(broken, b) -> broken = broken | members[b]
  :: else
  fi;
  waiting = waiting & ~(1 << b); broken = broken & ~(1 << b); arrived = arrived & ~(1 << b); ended = ended & ~(1 << b);
  members[b] = 0; number[b] = 0; outcome[b] = none;
  clear_got(b)
}
inline clear_got(b) {
  got_keys[b] = 0; got_boxes[b] = 0; q = 0;
  do
  :: q < KEYS -> got_row[AT(b, q)] = 0; q++
  :: else -> break
  od;
  q = 0
}

inline may_die() {
  if
  :: true
  :: deaths < DEATHS && !is_over -> goto dying
  fi
}

/* ---- The job, before the bridge looks at row k. A row that it has pinned is not evicted. */

inline others(k, is_pinned) {
  do
  :: d_step { left[me] > 0 && !over[me] ->
       left[me]--;
       if
       :: mark[AT(me, k)] == GONE -> mark[AT(me, k)] = FRESH; row[AT(me, k)] = INITIAL
       :: else
       fi;
       row[AT(me, k)] = row[AT(me, k)] + UNIT(me); own[AT(me, k)]++;
       SET(changed[me], k, 1); SET(lately[me], k, 1) }
  :: d_step { evictions > 0 && !over[me] && !(is_pinned) && mark[AT(me, k)] != GONE ->
       evictions--;
       mark[AT(me, k)] = GONE; row[AT(me, k)] = 0; own[AT(me, k)] = 0; in_cut[AT(me, k)] = 0;
       SET(changed[me], k, 0); SET(lately[me], k, 0) }
  :: d_step { HAS(may_end, me) && !over[me] -> over[me] = true }
  :: true -> break
  od;
  skip
}

/* ---- The bridge and its job. */

inline new_ticket() {
  d_step {
    q = 0;
    do
    :: q < KEYS ->
       if
       :: mark[AT(me, q)] == NOW -> mark[AT(me, q)] = OLD
       :: else
       fi;
       q++
    :: else -> break
    od;
    q = 0
  }
}

inline set_row(k, value) { row[AT(me, k)] = value; own[AT(me, k)] = 0; in_cut[AT(me, k)] = 0 }

/* The cut of a job that is over (bridge.T8). */
inline take_last() {
  if
#ifdef LAST_ANEW
  :: phase[me] == idle || phase[me] == counted ->
#else
  :: !has_last[me] && (phase[me] == idle || phase[me] == counted) ->
#endif
     may_die();
     d_step {
       q = 0;
       do
       :: q < KEYS ->
          last_row[AT(me, q)] = 0;
          if
          :: mark[AT(me, q)] == GONE
#ifndef LAST_DOUBT
          :: mark[AT(me, q)] == DOING -> own[AT(me, q)] = 0
          :: mark[AT(me, q)] != GONE && mark[AT(me, q)] != DOING ->
#else
          :: mark[AT(me, q)] != GONE ->
#endif
             lacks = ANCHOR(q);
             if
#ifndef LAST_PLAIN
             :: mark[AT(me, q)] == FRESH -> lacks = INITIAL
             :: mark[AT(me, q)] != FRESH && mark[AT(me, q)] != NOW && phase[me] == counted && IS_DUE(q) -> lacks = W(q)
#endif
             :: else
             fi;
             last_row[AT(me, q)] = row[AT(me, q)] - lacks;
             lacks = 0;
             assert(last_row[AT(me, q)] == own[AT(me, q)] * UNIT(me))
          fi;
          q++
       :: else -> break
       od;
       has_last[me] = true
     }
     may_die()
  :: else
  fi
}

/* bridge.R6. Without a step that others see. */
inline advance(counts) {
  if
  :: phase[me] == counted
  :: phase[me] != counted ->
     has_cut[me] = (phase[me] == cut && counts);
     if
#ifdef EARLY_START
     :: phase[me] == cut -> changed[me] = lately[me]
#else
     :: phase[me] == cut && counts -> changed[me] = lately[me]
#endif
     :: else
     fi
  fi;
  q = 0;
  do
  :: q < KEYS ->
     if
     :: phase[me] == cut && counts ->
        assert(own[AT(me, q)] >= in_cut[AT(me, q)]);
        own[AT(me, q)] = own[AT(me, q)] - in_cut[AT(me, q)]
     :: else
     fi;
     in_cut[AT(me, q)] = 0;
     if
     :: mark[AT(me, q)] == NOW -> mark[AT(me, q)] = OLD
     :: else
     fi;
     q++
  :: else -> break
  od;
  is_counted[me] = is_counted[me] || counts;
  ready[me] = 0;
  phase[me] = (phase[me] == new || phase[me] == assign -> assign : counted)
}

inline make_base() {
  q = 0;
  do
  :: q < KEYS ->
     if
     :: HAS(sum_keys[me], q) -> base[AT(me, q)] = ANCHOR(q)
     :: else
     fi;
     q++
  :: else -> break
  od;
  q = 0
}

/* ---- Groups. The last member to come completes a collective for all. */

#define HAS_WEIGHT(b) (phase[b] == cut || (over[b] && has_last[b] && is_last[b] && !is_counted[b] && !IS_EMPTY(b)))
#define SENT(b, k) (phase[b] == cut -> cut_row[AT(b, k)] : last_row[AT(b, k)])

/* The sum of the cuts of the members (bridge.T5). */
inline exchange(b) {
  has_weight = false; has_work = false; c = 0;
  clear_got(b);
  do
  :: c < 2 ->
     if
     :: HAS(members[b], c) ->
        assert(round[c] == top && whole[c]);
        q = 0;
        do
        :: q < KEYS ->
           has_work = has_work || (!over[c] && (left[c] > 0 || (HAS(changed[c], q) && own[AT(c, q)] > 0 && IS_IN(top_keys, q))));
           q++
        :: else -> break
        od;
        if
        :: HAS_WEIGHT(c) ->
           assert(!HAS(counted_cuts, c));
           has_weight = true;
           got_boxes[b] = got_boxes[b] | (1 << c);
           q = 0;
           do
           :: q < KEYS ->
              if
              :: SENT(c, q) != 0 -> got_keys[b] = got_keys[b] | (1 << q); got_row[AT(b, q)] = got_row[AT(b, q)] + SENT(c, q)
              :: else
              fi;
              q++
           :: else -> break
           od
        :: else
        fi
     :: else
     fi;
     c++
  :: else -> break
  od;
#ifndef NO_ROOM
  q = KEYS;
  do
  :: q > 0 ->
     q--;
     if
#ifdef REPLACES
     :: HAS(got_keys[b], q) && NUMBER(got_keys[b]) > MOST ->
#else
     :: HAS(got_keys[b], q) && !HAS(top_keys, q) && NUMBER(top_keys | got_keys[b]) > MOST ->
#endif
        got_keys[b] = got_keys[b] & ~(1 << q); got_row[AT(b, q)] = 0
     :: else
     fi
  :: else -> break
  od;
#endif
  outcome[b] = (waiting != 0 -> again : (has_weight -> sum : (has_work || members[b] != BOTH -> nothing : finish)));
  is_over = (outcome[b] == finish);
  if
  :: outcome[b] != sum -> clear_got(b)
  :: else -> keep(b)
  fi;
  c = 1 - b;
  if
  :: HAS(members[b], c) ->
     outcome[c] = outcome[b]; got_keys[c] = got_keys[b]; got_boxes[c] = got_boxes[b]; q = 0;
     do
     :: q < KEYS -> got_row[AT(c, q)] = got_row[AT(b, q)]; q++
     :: else -> break
     od
  :: else
  fi
}

/* The third box prepares what the members have got, or has not come to that when the group breaks. */
inline keep(b) {
  if
  :: keeps ->
     kept = number[b]; kept_keys = got_keys[b]; kept_boxes = got_boxes[b]; q = 0;
     do
     :: q < KEYS -> kept_row[q] = got_row[AT(b, q)]; q++
     :: else -> break
     od
  :: else
  fi
}

/* The sum that was prepared last, if there is one (bridge.A3). */
inline find_prepared(b) {
  best = 3; number_of = kept; c = 0;
  if
  :: kept != 0 -> best = 2
  :: else
  fi;
  do
  :: c < 2 ->
     if
     :: HAS(members[b], c) && ready[c] > number_of -> best = c; number_of = ready[c]
     :: else
     fi;
     c++
  :: else -> break
  od;
  c = 0;
  do
  :: c < 2 && best != 3 ->
     if
     :: HAS(members[b], c) ->
        outcome[c] = sum;
        got_keys[c] = (best == 2 -> kept_keys : sum_keys[best]);
        got_boxes[c] = (best == 2 -> kept_boxes : sum_boxes[best]);
        q = 0;
        do
        :: q < KEYS -> got_row[AT(c, q)] = (best == 2 -> kept_row[q] : sum_row[AT(best, q)]); q++
        :: else -> break
        od
     :: else
     fi;
     c++
  :: else -> break
  od;
  if
  :: best != 3 -> keep(b)
  :: else
  fi
}

/* All have prepared it: it is decided (bridge.R5). */
inline decide(b) {
  assert(round[b] == top && (counted_cuts & sum_boxes[b]) == 0);
  assert(!HAS(members[b], 1 - b) || (sum_keys[0] == sum_keys[1] && sum_boxes[0] == sum_boxes[1] && ready[0] == ready[1]));
  top++;
  assert(top <= ROUNDS);
#ifdef REPLACES
  if
  :: NUMBER(top_keys | sum_keys[b]) > MOST -> top_keys = 0
  :: else
  fi;
#endif
  top_keys = top_keys | sum_keys[b];
  assert(NUMBER(top_keys) <= MOST);
  counted_cuts = counted_cuts | sum_boxes[b];
  was_keys = sum_keys[b]; was_boxes = sum_boxes[b];
  kept = 0; kept_keys = 0; kept_boxes = 0; q = 0;
  do
  :: q < KEYS ->
     top_A[q] = top_A[q] + (HAS(sum_keys[b], q) -> sum_row[AT(b, q)] : 0);
#ifdef REPLACES
     if
     :: !HAS(top_keys, q) -> top_A[q] = INITIAL
     :: else
     fi;
#endif
     known_A[top * KEYS + q] = top_A[q];
     was_row[q] = (HAS(sum_keys[b], q) -> sum_row[AT(b, q)] : 0); kept_row[q] = 0; q++
  :: else -> break
  od;
  q = 0
}

/* Whether this box has prepared what led to the anchor, or what it has got. */
#define OF(was, got) (of_anchor -> was : got)
inline is_same(of_anchor) {
  same = (ready[me] != 0 && sum_keys[me] == OF(was_keys, got_keys[me]) && sum_boxes[me] == OF(was_boxes, got_boxes[me]));
  q = 0;
  do
  :: q < KEYS -> same = same && (!HAS(sum_keys[me], q) || sum_row[AT(me, q)] == OF(was_row[q], got_row[AT(me, q)])); q++
  :: else -> break
  od;
  q = 0
}

inline meet(kind) {
  if
  :: kind == CARRY || kind == HEADS -> keeps = true
  :: keeps = false
  fi;
  d_step {
    arrived = arrived | (1 << me);
    if
    :: !HAS(broken, me) && (arrived & members[me]) == members[me] ->
       arrived = arrived & ~members[me]; ended = ended | members[me];
       if
       :: kind == CARRY -> find_prepared(me)
       :: kind == HEADS -> exchange(me)
       :: kind == VOTE -> decide(me)
       :: else
       fi
    :: else
    fi;
    keeps = false
  }
  if
  :: d_step { HAS(ended, me) -> ended = ended & ~(1 << me) }
  :: HAS(broken, me) && !HAS(ended, me) -> goto failed
  fi
}

/* The third box is in one group at a time. */
#define MAY_FORM (waiting == BOTH || (hastes < HASTES && begun && (members[1 - me] == 0 || HAS(broken, 1 - me))))
inline make_group() {
  numbers++; c = 0;
  do
  :: c < 2 ->
     if
     :: HAS(waiting, c) -> number[c] = numbers; members[c] = waiting
     :: else
     fi;
     c++
  :: else -> break
  od;
  hastes = hastes + (waiting != BOTH);
  waiting = 0
}

/* The arrays of the sum get what the bridge has received. */
inline write_sum() {
  sum_keys[me] = 0; sum_boxes[me] = 0;
  may_die();
  d_step {
    sum_keys[me] = got_keys[me]; sum_boxes[me] = got_boxes[me]; q = 0;
    do
    :: q < KEYS -> sum_row[AT(me, q)] = got_row[AT(me, q)]; q++
    :: else -> break
    od;
    q = 0
  }
  may_die()
}

inline check_end(b) {
  assert(whole[b] && round[b] == top && known[b] == top_keys);
  q = 0;
  do
  :: q < KEYS ->
     assert(!HAS(known[b], q) || A[AT(b, q)] == top_A[q]);
     assert(HAS(top_keys, q) || top_A[q] == INITIAL);
     if
     :: mark[AT(b, q)] == GONE || !IS_IN(top_keys, q)
     :: over[b] && mark[AT(b, q)] != GONE && IS_IN(top_keys, q) -> assert(own[AT(b, q)] == 0 || (is_last[b] && is_counted[b]) || phase[b] == assign)
     :: else -> assert(own[AT(b, q)] == 0 && row[AT(b, q)] == (HAS(known[b], q) -> A[AT(b, q)] : INITIAL))
     fi;
     q++
  :: else -> break
  od;
  q = 0
}

/* What comes behind a change of rows, and behind that of one row. */
mtype = { to_groups, to_anchor, to_sum, to_step, to_carry, to_cut };
mtype = { of_counted, of_assign, of_cut, of_second, of_first };

proctype bridge(byte me) {
  byte k, seen, pushes;
  short wanted, before, lacks, value, difference;
  bool is_doubt, is_assigned, is_weighty, same, was_over, is_voted;
  mtype then = to_groups, back = of_counted;
begin:
  skip;  /* for as long as it likes */
  atomic {
    assert(ready[me] == 0 || sum_boxes[me] != 0);
    then = to_groups;
    goto resolving;  /* bridge.C2 */

    /* What the job lacks of the anchor (bridge.T6, bridge.T7). */
give_first: skip;  /* nothing of a round is overwritten before the rows have got it */
#ifndef NEXT_ROUND
    if
    :: phase[me] == counted && whole[me]
    :: else -> goto resolved
    fi;
#else
    goto resolved;
#endif
resolving: skip;
#ifdef LAST_LATE
    was_over = over[me] || then == to_groups || then == to_cut;
#else
    was_over = true;
#endif
    k = 0;
    if
    :: stepping[me] ->
       do
       :: k < KEYS && HAS(sum_keys[me], k) ->
#ifdef STEP_TWICE
          A[AT(me, k)] = A[AT(me, k)] + sum_row[AT(me, k)];
#else
          A[AT(me, k)] = base[AT(me, k)] + sum_row[AT(me, k)];
#endif
          may_die();
          k++
       :: k < KEYS && !HAS(sum_keys[me], k) -> k++
       :: else -> break
       od;
       k = 0;
       d_step {
         stepping[me] = false; q = 0;
         do
         :: q < KEYS -> assert(ANCHOR(q) == known_A[round[me] * KEYS + q]); q++
         :: else -> break
         od;
         q = 0
       }
       may_die()
    :: else
    fi;
    if
    :: then == to_carry -> goto resolved
    :: else
    fi;
    others(0, false);
    if
    :: whole[me] && !over[me] && phase[me] == counted ->
       do
       :: k < KEYS && !over[me] && IS_DUE(k) ->
          wanted = A[AT(me, k)]; before = W(k); back = of_counted;
          goto giving;
given_counted: k++
       :: k < KEYS && !over[me] && !IS_DUE(k) -> k++
       :: else -> break
       od;
       if
       :: !over[me] -> phase[me] = idle; may_die()
       :: else
       fi
    :: whole[me] && !over[me] && phase[me] == assign ->
       lately[me] = 0;
       do
       :: k < KEYS && !over[me] ->
          others(k, false);
          if
#ifdef KNOWN_ONLY
          :: HAS(known[me], k) ->
#else
          :: HAS(known[me], k) || mark[AT(me, k)] != GONE ->
#endif
             wanted = ANCHOR(k); is_assigned = true; back = of_assign;
             goto giving;
given_assign: is_assigned = false
          :: else
          fi;
          k++
       :: else -> break
       od;
       if
       :: !over[me] ->
          changed[me] = lately[me];
          phase[me] = idle;
          may_die()
       :: else
       fi
    :: else
    fi;
    k = 0;
    if
    :: whole[me] && over[me] && was_over -> take_last()
    :: else
    fi;
resolved: was_over = false;
    if
    :: then == to_groups
    :: then == to_anchor -> goto next_anchor
    :: then == to_sum -> goto next_sum
    :: then == to_step -> goto next_step
    :: then == to_carry -> goto carrying
    :: then == to_cut -> goto next_cut
    fi;

    waiting = waiting | (1 << me);
    if
    :: true
    :: hastes < HASTES -> (waiting == BOTH || members[me] != 0)
    fi;
    if
    :: d_step { members[me] == 0 && MAY_FORM -> make_group() }
    :: members[me] != 0
    fi;
    may_die();
    meet(AGREE);
    if
    :: begun
    :: !begun && me == 0 ->  /* bridge.A1, bridge.T7 */
       new_ticket();
       lately[me] = 0; known[me] = 0;
       do
       :: k < KEYS ->
          others(k, false);
          if
          :: mark[AT(me, k)] == DOING -> mark[AT(me, k)] = NOW  /* with the values that it has */
          :: mark[AT(me, k)] != DOING && mark[AT(me, k)] != GONE ->
#ifdef COPY_FIRST
             A[AT(me, k)] = row[AT(me, k)]; known[me] = known[me] | (1 << k); own[AT(me, k)] = 0;
#endif
             wanted = INITIAL; before = INITIAL; back = of_first;
             goto giving;
given_first: skip
          :: else
          fi;
#ifndef COPY_FIRST
          others(k, false);
          if
          :: mark[AT(me, k)] == NOW -> A[AT(me, k)] = row[AT(me, k)]; known[me] = known[me] | (1 << k); own[AT(me, k)] = 0
          :: else
          fi;
#endif
          may_die();
          k++
       :: else -> break
       od;
       k = 0;
       d_step {
         phase[me] = idle; whole[me] = true; changed[me] = lately[me];
         begun = true; top_keys = known[me]; q = 0;
         do
         :: q < KEYS -> top_A[q] = ANCHOR(q); known_A[q] = top_A[q]; q++
         :: else -> break
         od;
         q = 0
       }
       may_die()
    :: !begun && me != 0 -> (begun || HAS(broken, me)); goto failed
    fi;
    if
    :: (whole[me] && phase[me] != new && round[me] == top) -> goto carrying
    :: else -> then = to_anchor; goto give_first
    fi;

    /* This box is behind (bridge.A2). */
next_anchor: skip;
    if
    :: HAS(broken, me) -> goto failed
    :: else
    fi;
    d_step { is_same(true) }
    if
    :: whole[me] && phase[me] != new && round[me] + 1 == top && same -> same = false; is_voted = false; goto next_step
    :: else -> same = false
    fi;
    d_step {  /* bridge.T9 */
#ifndef NO_BASE
      if
#ifdef BASE_AGAIN
      :: true ->
#else
      :: phase[me] != counted ->
#endif
         q = 0;
         do
         :: q < KEYS -> base[AT(me, q)] = A[AT(me, q)]; q++
         :: else -> break
         od
      :: else
      fi;
#endif
      q = 0
    }
    may_die();
    d_step {
      if
      :: phase[me] != counted -> based[me] = known[me]; due[me] = all_keys
      :: else
      fi;
      advance(HAS(counted_cuts, me));
      whole[me] = false
    }
    may_die();
    d_step {
      q = 0;
      do
      :: q < KEYS -> A[AT(me, q)] = top_A[q]; q++
      :: else -> break
      od;
      q = 0
    }
    may_die();
    known[me] = top_keys;
    may_die();
    d_step { round[me] = top; whole[me] = true }
    may_die();

carrying: skip;
    meet(CARRY);
    if
    :: outcome[me] != sum -> then = to_cut; goto resolving
    :: else
    fi;
#ifndef NEXT_SUM
    then = to_sum;
    goto give_first;
#endif
next_sum: skip;
    d_step { is_same(false) }
    if
    :: !same -> ready[me] = 0; may_die(); write_sum()
    :: else
    fi;
    same = false;
    goto prepared;

next_cut: skip;
    if
    :: over[me] && phase[me] != cut && has_last[me] && !is_last[me] ->
       d_step { is_last[me] = true; is_counted[me] = false; SET(counted_cuts, me, 0) }
    :: over[me] && phase[me] != cut && !(has_last[me] && !is_last[me])
    :: phase[me] == cut  /* bridge.R2: the same cut again */
    :: !over[me] && phase[me] == idle ->
       new_ticket();  /* bridge.T4 */
       may_die();
       lately[me] = 0;
       do
       :: k < KEYS && !over[me] ->
          others(k, false);
          d_step {
            cut_row[AT(me, k)] = 0; in_cut[AT(me, k)] = 0;
            if
            :: mark[AT(me, k)] != GONE && HAS(changed[me], k) ->
               seen = mark[AT(me, k)]; value = row[AT(me, k)]; pushes = own[AT(me, k)]; in_cut[AT(me, k)] = pushes
            :: else
            fi
          }
#ifdef BOTH_ROWS
          others(k, false);
          if
          :: (seen == OLD || seen == NOW) && mark[AT(me, k)] == FRESH ->
             wanted = ANCHOR(k); before = wanted; back = of_second;
             goto giving;
given_second: in_cut[AT(me, k)] = own[AT(me, k)]; difference = (mark[AT(me, k)] == NOW -> row[AT(me, k)] - ANCHOR(k) : 0)
          :: else
          fi;
#endif
          if
#ifdef UNGIVEN
          :: seen == DOING ->
#else
          :: seen == FRESH || seen == DOING ->
#endif
             wanted = ANCHOR(k); before = wanted; back = of_cut;
             goto giving;
given_cut:   others(k, false);
#ifdef NOT_READ
             skip
#else
             d_step {
               if
               :: mark[AT(me, k)] == NOW ->
                  value = row[AT(me, k)]; pushes = own[AT(me, k)]; in_cut[AT(me, k)] = pushes
               :: else -> seen = GONE
               fi
             }
#endif
          :: else
          fi;
          d_step {
            if
            :: seen != GONE && IS_IN(known[me], k) ->
               cut_row[AT(me, k)] = value - ANCHOR(k) + difference;
               assert(value - ANCHOR(k) == pushes * UNIT(me));
               is_weighty = is_weighty || cut_row[AT(me, k)] != 0
            :: else -> in_cut[AT(me, k)] = 0
            fi;
            seen = GONE; value = 0; pushes = 0; difference = 0
          }
          k++
       :: else -> break
       od;
       k = 0;
       may_die();
       if
       :: over[me] -> is_weighty = false; then = to_cut; goto resolving
       :: is_weighty && !over[me] ->
          d_step { is_weighty = false; phase[me] = cut; is_counted[me] = false; SET(counted_cuts, me, 0) }
          may_die()
       :: else
       fi
    fi;
    meet(HEADS);
    if
    :: outcome[me] == again -> goto failed
    :: outcome[me] == nothing && members[me] != BOTH -> (waiting != 0 || HAS(broken, me)); goto failed
    :: outcome[me] == nothing && members[me] == BOTH -> outcome[me] = none; then = to_cut; goto resolving
    :: outcome[me] == finish -> goto ended_well
    :: outcome[me] == sum -> write_sum()
    fi;

prepared: skip;
    d_step { ready[me] = number[me]; outcome[me] = none; clear_got(me) }  /* bridge.R4 */
    may_die();
    meet(VOTE);
    is_voted = true; then = to_step;
    goto give_first;

    /* Goes to the anchor that the prepared sum leads to (bridge.S3, bridge.T5). */
next_step: skip;
#ifndef LATE_BASE
    d_step { make_base() }
    may_die();
#endif
    d_step {
      round[me]++;
      advance(HAS(sum_boxes[me], me));
      known[me] = known[me] | sum_keys[me]; based[me] = known[me]; due[me] = of_sum; stepping[me] = true;
#ifdef REPLACES
      known[me] = top_keys;
#endif
      then = (is_voted -> to_cut : to_carry);
      is_voted = false
    }
    may_die();
#ifdef LATE_BASE
    d_step { make_base() }
    may_die();
#endif
    goto resolving;

    /* bridge.T3: row k gets what it lacks of `wanted` above `before`, or it is assigned. */
giving: skip;
    others(k, false);
    if
    :: !over[me] -> SET(changed[me], k, 1); SET(lately[me], k, 1)  /* as each pin does (table.P4) */
    :: else
    fi;
    if
    :: over[me]
    :: !over[me] && mark[AT(me, k)] == GONE ->
       if
       :: true
       :: true ->
#ifdef LATE_MARK
          mark[AT(me, k)] = FRESH; set_row(k, wanted);
          may_die();
#endif
          d_step { mark[AT(me, k)] = NOW; set_row(k, wanted) }
       fi;
       may_die()
    :: !over[me] && mark[AT(me, k)] == NOW
    :: !over[me] && mark[AT(me, k)] != GONE && mark[AT(me, k)] != NOW ->
       is_doubt = (mark[AT(me, k)] == DOING && !is_assigned);
       lacks = wanted - before;
#if !defined(LIKE_OTHERS) && !defined(UNMARKED)
       if
       :: mark[AT(me, k)] == FRESH -> lacks = wanted - INITIAL
       :: else
       fi;
#endif
#ifndef LATE_ODD
       if
       :: is_doubt || is_assigned || lacks != 0 ->
#ifdef EARLY_EVEN
          mark[AT(me, k)] = NOW;
#else
          mark[AT(me, k)] = DOING;
#endif
          may_die()
       :: else
       fi;
#endif
       others(k, true);
       if
       :: is_assigned || is_doubt ->
#ifdef DOUBT_KEPT
          if
          :: is_assigned -> d_step { set_row(k, wanted) }
          :: else
          fi
#else
          d_step { set_row(k, wanted) }
#endif
       :: else -> row[AT(me, k)] = row[AT(me, k)] + lacks
       fi;
       may_die();
       mark[AT(me, k)] = NOW; lacks = 0; is_doubt = false;
       may_die()
    fi;
    wanted = 0; before = 0;
    if
    :: back == of_counted -> goto given_counted
    :: back == of_assign -> back = of_counted; goto given_assign
    :: back == of_cut -> back = of_counted; goto given_cut
#ifdef BOTH_ROWS
    :: back == of_second -> back = of_counted; goto given_second
#endif
    :: back == of_first -> back = of_counted; goto given_first
    fi;

dying: deaths++;
failed: skip;  /* bridge.G4 */
    d_step { leave(me) }
    k = 0; seen = GONE; pushes = 0; wanted = 0; before = 0; lacks = 0; value = 0; difference = 0; is_doubt = false;
    is_assigned = false; is_weighty = false; same = false; was_over = false; is_voted = false; back = of_counted;
    goto begin;
ended_well: skip;
    d_step { check_end(me) }
  }
}

init {
  atomic {
    left[0] = PUSHES0; left[1] = PUSHES1;
    c = 0;
    do
    :: c < KEYS -> top_A[c] = INITIAL; known_A[c] = INITIAL; c++
    :: else -> break
    od;
#ifdef FIRST
    begun = false; phase[0] = new; phase[1] = new; whole[0] = false; whole[1] = false;
#endif
#ifdef JOIN
    phase[1] = new; whole[1] = false;
    row[AT(1, 0)] = 150; mark[AT(1, 0)] = JOIN;
#if KEYS > 1
    row[AT(1, 1)] = 150; mark[AT(1, 1)] = OLD;
#endif
#endif
    run bridge(0); run bridge(1)
  }
}
