/* The age limit of modes async and ssp (docs/protocols.md, steps.D1 to steps.D3; src/worker/age_limit.hpp,
 * src/worker/free_steps.cpp).
 *
 * WORKERS workers make STEPS steps each. In a step a worker notes the global step and pulls, unless it is one of the
 * steps in which it does not pull; it decides by the global step whether its gradient is LIMIT or more steps of others
 * old, pushes to two variables or to neither, and counts the step if it has pushed.
 *
 * Checked: a gradient that is applied was less than LIMIT counted steps of others old when that was decided; a step is
 * in both variables or in neither; a worker drops a step only if another worker has counted one since its last drop, so
 * two workers never both drop without a counted step in between; the global step is the number of pushes to each variable.
 *
 * Not in the model: memory orders (the note is an acquiring load before the copy), deaths (which leave pushes without a
 * step, as without a limit), chunks (which may be older by then than what was decided on).
 *
 * Broken on purpose, one at a time:
 *   LATE_NOTE      the global step is noted after the values are pulled (steps.D1)
 *   OWN_STEPS      a worker's own steps age its gradient (steps.D1)
 *   EACH_PUSH      each push of a step is decided by itself (steps.D2)
 *   COUNT_DROPPED  a dropped step is counted in the global step (steps.D3)
 */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef STEPS
#define STEPS 3
#endif
#ifndef LIMIT
#define LIMIT 1
#endif

byte global_step;
byte first, second;         /* pushes to the two variables */

/* What must hold, seen by nobody in the model. */
byte counted[WORKERS];      /* steps of each worker */
byte others_since[WORKERS]; /* steps that others have counted since this worker's last pull */
byte since_drop[WORKERS];   /* and since its last drop */

inline count() {
  global_step++;
#ifndef COUNT_DROPPED
  counted[me]++;
#endif
  i = 0;
  do
  :: i < WORKERS ->
     if
     :: i != me -> others_since[i]++; since_drop[i]++
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

inline decide() {
  atomic {
    drops = has_pulled && global_step - noted >= LIMIT;
    assert(drops || others_since[me] < LIMIT || !has_pulled);
  }
}

proctype worker(byte me) {
  byte step, noted, i;
  bool has_pulled, drops, was_dropped;
  do
  :: step < STEPS ->
     if
     :: true ->                            /* it pulls */
#ifdef LATE_NOTE
        others_since[me] = 0;
        noted = global_step;
#else
        noted = global_step;
        others_since[me] = 0;              /* the values are copied here, or later */
#endif
        has_pulled = true
     :: has_pulled && !drops -> skip       /* it uses the values of its last pull again */
     fi;
     decide();
     was_dropped = drops;
     if
     :: !drops -> first++
     :: else
     fi;
#ifdef EACH_PUSH
     decide();
#endif
     assert(drops == was_dropped);
     if
     :: !drops -> second++
     :: else
     fi;
     atomic {
       if
       :: !drops ->
          count();
#ifndef OWN_STEPS
          noted++
#endif
       :: else ->
          assert(since_drop[me] > 0);      /* it drops because another one has come forward */
          since_drop[me] = 0;
#ifdef COUNT_DROPPED
          count()
#endif
       fi
     };
     step++
  :: else -> break
  od
}

init {
  byte i;
  atomic {
    do
    :: i < WORKERS -> run worker(i); i++
    :: else -> break
    od
  };
  _nr_pr == 1;
  assert(first == global_step && second == global_step);
  assert(first > 0)
}
