/* Rounds of the bridges of several boxes: anchors, cuts, votes and groups (docs/protocols.md, bridge).
 *
 * Three boxes. The job of box b does UNITSb units of work, each of which adds 4^b to the job, so that a number shows
 * how many units of which box an anchor has. The rule of the anchor is a sum. Bridges are killed at any step DEATHS
 * times, which also stands for an error of a collective: then the bridge begins again with the state that it has
 * stored. LOSSES times a box vanishes with its job and its state and comes back new; GONES times a box never comes back.
 * With FIRST, all boxes are new.
 *
 * Between two collectives nobody else looks at the state of a box, so its steps there are one atomic sequence, in which
 * it may die behind each of them. The last member to come completes a collective for all. Once a member has left a group,
 * each of the others has the result of the last complete collective, or an error. A group is formed at once, of all
 * bridges that wait for one, whichever box keeps the store; HASTES times before all have come.
 *
 * Checked: a round has one anchor, on all boxes and for ever; in each box the job is the anchor and the units that no
 * round has counted, each once; no set that is half written counts as prepared; once the bridges die no more, all boxes come
 * to the same round, which has all units. A search that ends shows that groups are not formed for ever, since each has a
 * new number.
 *
 * Not in the model: what a transfer dtype loses, momentum and other rules, the parts of an exchange, jobs that end at
 * different times, values that are not finite.
 *
 * Broken on purpose, one at a time:
 *   EARLY_FLIP    a bridge goes to the next anchor before the vote (bridge.R5)
 *   FLIP_ALONE    it goes to a set that an earlier group has prepared without another vote (bridge.A4)
 *   OLD_STAMP     such a set keeps the number of the group that prepared it first (bridge.A4)
 *   LOWEST        of several prepared sets, the one of the lowest group is taken (bridge.A3)
 *   VOID_READY    a new group drops what is prepared (bridge.A3)
 *   DROPS_FIRST   a bridge that is behind drops its prepared set although it is the next anchor (bridge.A2)
 *   OVERWRITES    a set is overwritten while the header says that it is prepared (bridge.S2)
 *   NEW_CUT       a cut is replaced when a new group forms (bridge.R2)
 *   SHORT_LAST    `last` has the cuts of its own round only (bridge.S4)
 *   SPLIT_FLIP    the header moves to the next anchor before it moves to the next `last` (bridge.S3)
 *   KEEPS_CUT     W keeps a cut that the round has not counted (bridge.R6)
 *   LEAST=1       a group of half of the boxes or fewer (bridge.G1)
 *   NEW_COUNTS    a box without a state counts for the majority (bridge.G1)
 *   NO_PROMISE    the number of a group is not stored (bridge.G3)
 *   OWN_NUMBER    a group's number is one above the number of its first member (bridge.G2)
 *   NO_TICKET     a change of the job is made again without a ticket (bridge.C1)
 *   LATE_CHANGE   a bridge that begins again does not finish the change of the job (bridge.C2)
 */
#ifndef UNITS0
#define UNITS0 1
#endif
#ifndef UNITS1
#define UNITS1 1
#endif
#ifndef UNITS2
#define UNITS2 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef GONES
#define GONES 0
#endif
#ifndef HASTES
#define HASTES 1
#endif
#ifndef LEAST
#define LEAST 2
#endif

#define BOXES 3
#define ALL 7
#define TORN 255 /* half written */
#define ROUNDS 8

mtype = { new, idle, cut, counted, assign };
mtype = { none, boot, fresh, carry, again, nothing, sum, finish }; /* what a collective leads to */
#ifdef OLD_STAMP
byte stamp[BOXES];
#define STAMP (stamp[me] -> stamp[me] : number[me])
#else
#define STAMP number[me]
#endif

#define VOTE 0
#define AGREE 1
#define HEADS 2

/* What outlives a bridge. A header changes at once (bridge.S1). */
mtype phase[BOXES] = idle;
byte round[BOXES], half[BOXES], nonce[BOXES], group[BOXES];
byte ready[BOXES];                 /* the group that prepared the other set; 0: it is not prepared */
short A[2 * BOXES], W[BOXES];
short last[2 * BOXES];             /* of each box the nonce of its last counted cut: three bits each */
#ifdef SPLIT_FLIP
byte last_half[BOXES];
#define LAST_HALF(b) last_half[b]
#else
#define LAST_HALF(b) half[b]
#endif

/* The jobs. */
short job[BOXES];
byte ticket[BOXES], left[BOXES];

/* Groups. */
byte waiting, alive = ALL;
byte members[BOXES], number[BOXES];
byte arrived, ended, broken;       /* of the collective; who has its result; whose group has lost a member */
mtype outcome[BOXES] = none;
byte got_round[BOXES]; short got_A[BOXES], got_last[BOXES];   /* from the source */
short record_A[BOXES], record_last[BOXES];
byte deaths, losses, gones, hastes;
bool is_over;

/* What must hold, seen by nobody in the model. */
bool known[ROUNDS]; short known_A[ROUNDS], known_last[ROUNDS];
byte done[BOXES];                  /* units that are in anchor and job of the box */
bool was_lost[BOXES];
byte cuts[BOXES];                  /* so far: a nonce is used once */

hidden byte c, top, source, best, all;
hidden byte has_cut, has_work;
hidden mtype result;
hidden short sum_A, sum_last;

#define BIT(b) (1 << (b))
#define HAS(mask, b) (((mask) >> (b)) & 1)
#define COUNT(mask) (HAS(mask, 0) + HAS(mask, 1) + HAS(mask, 2))
#define CURRENT(b) (2 * (b) + half[b])
#define OTHER(b) (2 * (b) + 1 - half[b])
#define NEWEST_LAST(b) last[2 * (b) + LAST_HALF(b)]
#define UNIT(b) (1 << (2 * (b)))
#define UNITS(b, anchor) (((anchor) >> (2 * (b))) & 3)
#define EVERYTHING (UNITS0 * UNIT(0) + UNITS1 * UNIT(1) + UNITS2 * UNIT(2))
#define CUT_OF(b, lasts) (((lasts) >> (3 * (b))) & 7)
#define IS_COUNTED (phase[me] == cut && CUT_OF(me, last[OTHER(me)]) == nonce[me])
#define HAS_PREPARED(anchor, lasts) (phase[me] != new && ready[me] != 0 && A[OTHER(me)] == anchor && last[OTHER(me)] == lasts)
#ifdef NEW_COUNTS
#define KNOWING(mask) COUNT(mask)
#else
#define KNOWING(mask) (HAS(mask, 0) * (phase[0] != new) + HAS(mask, 1) * (phase[1] != new) + HAS(mask, 2) * (phase[2] != new))
#endif
#define MAY_FORM ((KNOWING(waiting) >= LEAST || waiting == ALL) && (waiting == alive || hastes < HASTES))  /* bridge.G1 */

/* b is in no group any more. */
inline leave(b) {
  if
  :: !HAS(broken, b) -> broken = broken | members[b]
  :: else
  fi;
  waiting = waiting & ~BIT(b); broken = broken & ~BIT(b); arrived = arrived & ~BIT(b); ended = ended & ~BIT(b);
#ifdef OLD_STAMP
  stamp[b] = 0;
#endif
  members[b] = 0; number[b] = 0; outcome[b] = none;
  got_round[b] = 0; got_A[b] = 0; got_last[b] = 0; record_A[b] = 0; record_last[b] = 0
}

inline make_group() {
  c = 0; top = 0;
  do
  :: c < BOXES ->
     if
     :: HAS(waiting, c) && group[c] > top -> top = group[c]  /* bridge.G2 */
     :: else
     fi;
     c++
  :: else -> break
  od;
#ifdef OWN_NUMBER
  top = (HAS(waiting, 0) -> group[0] : group[1]);
#endif
  c = 0;
  do
  :: c < BOXES ->
     if
     :: HAS(waiting, c) -> number[c] = top + 1; members[c] = waiting
     :: else
     fi;
     c++
  :: else -> break
  od;
  hastes = hastes + (waiting != alive);
  waiting = 0
}

/* From what all members have said: the highest round, and the set that is prepared for the one after it. */
inline agree(b) {
  c = 0; top = 0; source = BOXES; best = BOXES;
  do
  :: c < BOXES ->
     if
     :: HAS(members[b], c) && phase[c] != new && (source == BOXES || round[c] > top) -> source = c; top = round[c]
     :: else
     fi;
     c++
  :: else -> break
  od;
  c = 0;
  do
  :: c < BOXES ->
     if
     :: HAS(members[b], c) && phase[c] != new && round[c] == top && ready[c] != 0 ->
        if
#ifdef LOWEST
        :: best == BOXES || ready[c] < ready[best] -> best = c
#else
        :: best == BOXES || ready[c] > ready[best] -> best = c  /* bridge.A3 */
#endif
        :: else
        fi
     :: else
     fi;
     c++
  :: else -> break
  od;
#ifdef VOID_READY
  best = BOXES;
#endif
  c = 0;
  do
  :: c < BOXES ->
     if
     :: HAS(members[b], c) && source == BOXES -> outcome[c] = boot
     :: HAS(members[b], c) && source != BOXES ->
        got_round[c] = top; got_A[c] = A[CURRENT(source)]; got_last[c] = NEWEST_LAST(source);
        if
        :: best != BOXES ->
           assert(A[OTHER(best)] != TORN);
#ifdef OLD_STAMP
           stamp[c] = ready[best];
#endif
           outcome[c] = carry; record_A[c] = A[OTHER(best)]; record_last[c] = last[OTHER(best)]
        :: else -> outcome[c] = fresh
        fi
     :: else
     fi;
     c++
  :: else -> break
  od
}

/* The sum of the cuts, of which all members get the same bits (bridge.R3). */
inline exchange(b) {
  has_cut = false; has_work = false; c = 0;
  record_A[b] = A[CURRENT(b)]; record_last[b] = NEWEST_LAST(b);
#ifdef SHORT_LAST
  record_last[b] = 0;
#endif
  do
  :: c < BOXES ->
     if
     :: HAS(members[b], c) ->
        assert(round[c] == round[b] && A[CURRENT(c)] == A[CURRENT(b)]);
        has_work = has_work || left[c] > 0;
        if
        :: phase[c] == cut ->
           has_cut = true;
           record_A[b] = record_A[b] + W[c] - A[CURRENT(c)];
           record_last[b] = (record_last[b] & ~(7 << (3 * c))) | (nonce[c] << (3 * c))
        :: else -> assert(W[c] == A[CURRENT(c)])
        fi
     :: else
     fi;
     c++
  :: else -> break
  od;
  result = (waiting != 0 -> again : (has_cut -> sum : (has_work || members[b] != alive -> nothing : finish)));
  is_over = (result == finish);
  all = members[b]; sum_A = record_A[b]; sum_last = record_last[b];
  assert(!is_over || alive != ALL || losses > 0 || sum_A == EVERYTHING);
  record_A[b] = 0; record_last[b] = 0; c = 0;
  do
  :: c < BOXES ->
     if
     :: HAS(all, c) ->
        outcome[c] = result;
        if
        :: result == sum -> record_A[c] = sum_A; record_last[c] = sum_last
        :: else
        fi
     :: else
     fi;
     c++
  :: else -> break
  od
}

inline may_die() {
  if
  :: true
  :: d_step { deaths < DEATHS && !is_over -> deaths++; leave(me) } goto begin
  fi
}

inline may_vanish() {
  if
  :: true
  :: d_step { losses < LOSSES && !is_over ->
       losses++; leave(me); was_lost[me] = true;
       phase[me] = new; round[me] = 0; half[me] = 0; nonce[me] = 0; group[me] = 0; ready[me] = 0; W[me] = 0;
       A[CURRENT(me)] = 0; A[OTHER(me)] = 0; last[CURRENT(me)] = 0; last[OTHER(me)] = 0;
       job[me] = 0; ticket[me] = 0; done[me] = 0
     }
     goto begin
  :: d_step { gones < GONES && !is_over -> gones++; leave(me); alive = alive & ~BIT(me) }
     goto over
  fi
}

/* The last one to come completes the collective. */
inline meet(kind) {
  d_step {
    arrived = arrived | BIT(me);
    if
    :: !HAS(broken, me) && (arrived & members[me]) == members[me] ->
       arrived = arrived & ~members[me]; ended = ended | members[me];
       if
       :: kind == AGREE -> agree(me)
       :: kind == HEADS -> exchange(me)
       :: else
       fi
    :: else
    fi
  }
  if
  :: d_step { HAS(ended, me) -> ended = ended & ~BIT(me) }
  :: HAS(broken, me) -> goto failed
  fi;
  may_vanish()
}

/* The other set gets what the bridge has received. */
inline write_other(a, l) {
#ifndef OVERWRITES
  ready[me] = 0;  /* bridge.S2 */
  may_die();
#endif
  A[OTHER(me)] = TORN;
  may_die();
  A[OTHER(me)] = a; last[OTHER(me)] = l;
  may_die()
}

inline advance(to) {
  if
  :: phase[me] == idle -> W[me] = A[CURRENT(me)]; may_die()
#ifndef KEEPS_CUT
  :: phase[me] == cut && !IS_COUNTED -> W[me] = A[CURRENT(me)]; may_die()  /* bridge.R6 */
#endif
  :: else
  fi;
  d_step {
    assert(A[OTHER(me)] != TORN);
    /* The cut of a box that has lost its state since may have been counted. */
    if
    :: was_lost[me] && phase[me] != new && CUT_OF(me, last[OTHER(me)]) != CUT_OF(me, last[CURRENT(me)]) && !IS_COUNTED ->
       done[me] = done[me] + UNITS(me, A[OTHER(me)]) - UNITS(me, A[CURRENT(me)])
    :: else
    fi;
    half[me] = 1 - half[me]; round[me] = to; ready[me] = 0;  /* bridge.S3 */
    if
    :: phase[me] == new || phase[me] == assign -> phase[me] = assign
    :: else -> phase[me] = counted
    fi;
    if
    :: known[round[me]] -> assert(known_A[round[me]] == A[CURRENT(me)] && known_last[round[me]] == last[CURRENT(me)])
    :: else -> known[round[me]] = true; known_A[round[me]] = A[CURRENT(me)]; known_last[round[me]] = last[CURRENT(me)]
    fi
  }
  may_die();
#ifdef SPLIT_FLIP
  last_half[me] = half[me];
  may_die()
#endif
}

/* Brings the job to the anchor. */
inline change() {
  if
  :: phase[me] == counted ->
     d_step {  /* bridge.C1 */
#ifdef NO_TICKET
       job[me] = job[me] + A[CURRENT(me)] - W[me]
#else
       if
       :: ticket[me] < round[me] -> ticket[me] = round[me]; job[me] = job[me] + A[CURRENT(me)] - W[me]
       :: else
       fi
#endif
     }
     may_die();
     phase[me] = idle;
     assert(job[me] == A[CURRENT(me)] + (done[me] - UNITS(me, A[CURRENT(me)])) * UNIT(me));
     may_die()
  :: phase[me] == assign ->
     d_step { job[me] = A[CURRENT(me)]; done[me] = UNITS(me, A[CURRENT(me)]) }  /* bridge.C3 */
     may_die();
     phase[me] = idle;
     may_die()
  :: else
  fi
}

inline work() {
  if
  :: d_step { left[me] > 0 -> left[me]--; done[me]++; job[me] = job[me] + UNIT(me) }
  :: true
  fi
}

proctype bridge(byte me) {
begin:
  atomic {
    assert(ready[me] == 0 || A[OTHER(me)] != TORN);
#ifndef LATE_CHANGE
    change();  /* bridge.C2 */
#endif
    waiting = waiting | BIT(me);
    if
    :: d_step { members[me] == 0 && MAY_FORM -> make_group() }
    :: members[me] != 0
    fi;
    may_vanish();
    may_die();
#ifndef NO_PROMISE
    group[me] = number[me];  /* bridge.G3 */
    may_die();
#endif
    meet(AGREE);
    if
    :: outcome[me] == boot ->
       if
       :: me == 0 -> d_step { A[CURRENT(me)] = job[me]; W[me] = job[me]; phase[me] = idle }  /* bridge.A1 */
       :: else
       fi;
       meet(VOTE);
       goto failed  /* and all agree again */
    :: else
    fi;
    if
    :: phase[me] == new || round[me] < got_round[me] ->
       if
#ifndef DROPS_FIRST
       :: round[me] + 1 == got_round[me] && HAS_PREPARED(got_A[me], got_last[me])  /* bridge.A2 */
#endif
       :: else -> write_other(got_A[me], got_last[me])
       fi;
       advance(got_round[me]);
       change()
    :: else
    fi;
#ifdef LATE_CHANGE
    change();
#endif
    d_step { got_round[me] = 0; got_A[me] = 0; got_last[me] = 0 }
    if
    :: outcome[me] == carry ->
       if
       :: HAS_PREPARED(record_A[me], record_last[me])
       :: else -> write_other(record_A[me], record_last[me])
       fi;
#ifdef FLIP_ALONE
       advance(round[me] + 1);
       change()
#else
       goto prepared
#endif
    :: else
#ifdef VOID_READY
       ready[me] = 0;
#endif
#ifdef NEW_CUT
       d_step {
         if
         :: phase[me] == cut -> phase[me] = idle
         :: else
         fi
       }
#endif
    fi;
    outcome[me] = none;
    do
    :: work();
       if
       :: phase[me] == cut  /* bridge.R2: the same cut again */
       :: phase[me] == idle ->
          W[me] = job[me];  /* bridge.R1 */
          may_die();
          if
          :: W[me] != A[CURRENT(me)] -> d_step { cuts[me]++; nonce[me] = cuts[me]; phase[me] = cut } may_die()
          :: else
          fi
       fi;
       meet(HEADS);
       if
       :: outcome[me] == finish -> break
       :: outcome[me] == again -> goto failed
       :: outcome[me] == nothing ->
          if
          :: members[me] != alive -> (waiting != 0 || HAS(broken, me)); goto failed
          :: else -> outcome[me] = none
          fi
       :: outcome[me] == sum ->
          write_other(record_A[me], record_last[me]);  /* bridge.R4 */
prepared: skip;
          d_step {
            ready[me] = STAMP;  /* bridge.A4, bridge.R4 */
#ifdef OLD_STAMP
            stamp[me] = 0;
#endif
            record_A[me] = 0; record_last[me] = 0; outcome[me] = none
          }
          may_die();
#ifdef EARLY_FLIP
          advance(round[me] + 1);
          meet(VOTE);
#else
          meet(VOTE);
          advance(round[me] + 1);  /* bridge.R5 */
#endif
          change()
       fi
    od;
    goto over;
failed: skip;  /* bridge.G4 */
    d_step { leave(me) }
    goto begin
over:
    skip
  }
}

init {
  atomic {
    left[0] = UNITS0; left[1] = UNITS1; left[2] = UNITS2;
#ifdef FIRST
    phase[0] = new; phase[1] = new; phase[2] = new;
#else
    known[0] = true;
#endif
    run bridge(0); run bridge(1); run bridge(2)
  }
}
