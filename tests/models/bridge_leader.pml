/* Which bridge the leader of the groups leaves out (docs/protocols.md, bridge.G4).
 *
 * Box 0 keeps the store and leads. Box BAD reaches the store, but no other bridge, until it heals: a group with it fails. Any
 * group fails ERRORS times without a reason. A bridge is started again RESTARTS times. A leave ends at any moment. What the
 * rounds of such groups are, bridge.pml shows: any box may be missing in a group there.
 *
 * Checked: a group has more than half of the boxes; nobody is left out before two groups of the same bridges have failed, or one
 * if some box was left out before; in turns, so that after each of the others has been tried once a round is made; once a
 * box has healed and its leave is over, it takes part again.
 *
 * Not in the model: two boxes that others do not reach. The leader leaves out one more only after a round, so there are no
 * rounds then.
 *
 * Broken on purpose, one at a time:
 *   NO_TURNS    it is always the same box that is tried
 *   TOO_FEW     it is left out although the others are not enough
 *   NO_RESET    failures of bridges that have been started again since count
 *   FOR_EVER    a leave does not end
 *   ONLY_KNOWN  once a box was left out, no other one is
 *   KEPT_OUT    who was left out before is left out again without a failure
 */
#ifndef BOXES
#define BOXES 3
#endif
#ifndef BAD
#define BAD 2
#endif
#ifndef ERRORS
#define ERRORS 1
#endif
#ifndef RESTARTS
#define RESTARTS 1
#endif

#ifndef LATE
#define LATE false /* does BAD become unreachable later? */
#endif

#define ALL ((1 << BOXES) - 1)
#define HAS(mask, b) (((mask) >> (b)) & 1)

byte failed, left_out, was_out;    /* what the leader knows; `was_out`: for how long they are left out the next time */
bool came = true, bad = !LATE, turns_bad = LATE;      /* whether the same bridges are here as the last time; whether BAD is unreachable */
byte errors, restarts, returned;
byte failures, in_turn;            /* of the same bridges, seen by nobody in the model; without an error */
hidden byte b, k, count, here, suspect;

inline number_of(mask) {
  count = 0; b = 0;
  do
  :: b < BOXES -> count = count + HAS(mask, b); b++
  :: else -> break
  od;
  b = 0
}

/* The box number k, from 0, of those in the mask. */
inline choose(mask) {
  suspect = 0;
  do
  :: suspect < BOXES && HAS(mask, suspect) && k == 0 -> break
  :: suspect < BOXES && HAS(mask, suspect) && k > 0 -> k--; suspect++
  :: suspect < BOXES && !HAS(mask, suspect) -> suspect++
  :: else -> break
  od;
  k = 0
}

active proctype leader() {
  byte group, out;
  do
  :: d_step {
       here = ALL & ~left_out;
       number_of(here & ~1);
       if
#ifndef NO_RESET
       :: !came -> failed = 0
#endif
       :: else
       fi;
       came = true; out = BOXES; group = here;
       if
#ifdef KEPT_OUT
       :: (was_out & here) != 0 || failed >= 2 ->
#else
       :: failed >= ((was_out & here & ~1) != 0 -> 1 : 2) ->
#endif
          number_of(here & ~1);
          k = (failed - ((was_out & here & ~1) != 0 -> 1 : 2)) % count;
#ifdef NO_TURNS
          k = 0;
#endif
#ifdef KEPT_OUT
          k = 0;
#endif
          /* First those that were left out before. */
          number_of(was_out & here & ~1);
          suspect = here; here = suspect & was_out & ~1;
          if
#ifdef ONLY_KNOWN
          :: count > 0 -> k = 0
#else
          :: k >= count -> k = k - count; here = suspect & ~was_out & ~1
#endif
          :: else
          fi;
          choose(here);
          out = suspect; group = group & ~(1 << out);
          number_of(group);
          if
#ifndef TOO_FEW
          :: 2 * count <= BOXES -> group = group | (1 << out); out = BOXES
#endif
          :: else
          fi
       :: else
       fi;
       here = 0;
       number_of(group);
       assert(2 * count > BOXES);
       assert(out == BOXES || failures >= (was_out != 0 -> 1 : 2));
       count = 0; suspect = 0
     }
     if
     :: d_step { bad && HAS(group, BAD) -> failed++; failures++; in_turn = in_turn + (left_out == 0); assert(in_turn <= BOXES + 1) }
     :: d_step { !(bad && HAS(group, BAD)) && errors < ERRORS -> errors++; failed++; failures++; in_turn = 0 }
     :: d_step { !(bad && HAS(group, BAD)) ->
          failed = 0; failures = 0; in_turn = 0;
          if
          :: out != BOXES -> left_out = left_out | (1 << out); was_out = was_out | (1 << out)
          :: else
          fi;
          assert(bad || left_out != 0 || group == ALL) }
        if
        :: !bad && !turns_bad && errors == ERRORS && restarts == RESTARTS ->
#ifndef FOR_EVER
           left_out = 0;
#endif
           returned++
        :: else
        fi
     fi;
     assert(returned < 2 || group == ALL);
     if
     :: returned >= 2 -> break
     :: else
     fi;
     if
     :: d_step { left_out != 0 -> left_out = 0; came = false; failures = 0; in_turn = 0 }
     :: bad -> bad = false
     :: d_step { turns_bad -> turns_bad = false; bad = true; in_turn = 0 }
     :: d_step { restarts < RESTARTS -> restarts++; came = false; failures = 0; in_turn = 0 }
     :: true
     fi
  od
}
