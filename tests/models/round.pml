/* Rounds: several writers fill one generation, each its own slices (docs/protocols.md, round).
 *
 * A leader opens a round, WRITERS writers write a slice each, and the leader commits what all have done. Each of them
 * has a program of STEPS steps, in which it takes part in the round of that step or gives the step up. READERS readers
 * lease the newest generation, LEASES times. Of leader and writers KILLS are killed at any step, and followed by a
 * successor or by nobody. A successor continues behind the newest generation or begins at an older step. ABORTS times
 * somebody gives a step up, or the leader tries it again; and they give up what nobody can continue.
 *
 * Checked: what is committed has every slice, each of the leader's step; nobody writes to a record that is the newest
 * generation or leased; a writer that finds its attempt over knows whether it was committed; a lease that
 * publication.P5 has confirmed names one whole generation; all come to their end.
 *
 * Not in the model: slots (a record stands for its slots), memory orders, deaths of readers
 * (publication_scenes.cpp), and that the leader is one of the writers, which only means that both die at once.
 *
 * Broken on purpose, one at a time:
 *   FORGETS       a new holder of a writer's byte begins with done = 0 (round.R7)
 *   EARLY_DONE    a writer says that it has done before it has written (round.R3)
 *   REREAD        it says so for the attempt that is under way by then (round.R3)
 *   SAME_ATTEMPT  a step is tried again under the number of the attempt before (round.R1)
 *   NO_STEP       a writer takes part in a round of another step (round.R2)
 *   DEAD_DONE     the leader counts the dead as done (round.R4)
 *   CLOSE_FIRST   it closes the round before it commits (round.R5)
 *   NEWEST_FIRST  a writer reads `newest` before it reads that its attempt is over (round.R9)
 *   BLIND         the leader takes a record without regard to leases (publication.P2)
 */
#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef READERS
#define READERS 0
#endif
#ifndef RECORDS
#define RECORDS 3
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef LEASES
#define LEASES 1
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef ABORTS
#define ABORTS 1
#endif
#define NOTHING 14 /* no lease */

byte newest, newest_record;                 /* one word */
byte attempt, round_record; bool open;      /* one word */
byte round_step;
byte done[WRITERS];
bool writer_byte[WRITERS], leader_byte;
bool writer_struck[WRITERS], leader_struck;
byte lease = NOTHING;
byte slices[RECORDS * WRITERS];             /* the step of its content; 0: half written */
byte step_of[RECORDS];
byte kills, aborts, over;

/* What must hold, seen by nobody in the model. */
byte committed;                             /* the attempt of the newest generation */
byte denied;                                /* the attempt that a writer has found to be over without a commit */
byte confirmed = NOTHING;                   /* the record that a reader has */

#if WRITERS > 2
#define ALL(of) (of(0) && of(1) && of(2))
#else
#define ALL(of) (of(0) && of(1))
#endif
#define HELD(w) (writer_byte[w])
#ifdef DEAD_DONE
#define DONE(w) (done[w] == attempt || !writer_byte[w])
#else
#define DONE(w) (done[w] == attempt)
#endif
#define GOOD(w) (slices[record * WRITERS + w] == step)
#define NEWEST_STEP (newest == 0 -> 0 : step_of[newest_record])

/* Its deadline is over: before its time, or as nothing else can happen. */
inline give_up() {
  if
  :: d_step { aborts < ABORTS -> aborts++ }
  :: timeout
  fi;
  step++
}

inline commit() {  /* round.R5 */
  d_step {
    assert(ALL(GOOD) && attempt != denied);
    step_of[record] = step;
    newest++; newest_record = record; committed = attempt; is_committed = true
  }
}

proctype leader() {
  byte record, step;
  bool is_committed;
#ifdef SAME_ATTEMPT
  bool again;
#endif
begin:
  {
    d_step { !leader_byte -> leader_byte = true }
    open = false;  /* round.R8 */
    if
    :: step = NEWEST_STEP + 1
    :: KILLS > 0 && newest != 0 -> step = NEWEST_STEP
    fi;
    do
    :: step <= STEPS ->
       if
       :: d_step { ALL(HELD) ->  /* publication.P1 to publication.P3 */
            record = 0;
            do
#ifdef BLIND
            :: record < RECORDS && newest != 0 && record == newest_record -> record++
#else
            :: record < RECORDS && (newest != 0 && record == newest_record || record == lease) -> record++
#endif
            :: else -> break
            od
          }
       :: give_up(); goto next
       fi;
       if
       :: record == RECORDS -> (READERS > 0 && lease == NOTHING); goto next
       :: else
       fi;
       round_step = step;
#ifdef SAME_ATTEMPT
       d_step { if :: !again -> attempt++ :: else fi; open = true; round_record = record };
#else
       d_step { attempt++; open = true; round_record = record };  /* round.R1 */
#endif
       if  /* round.R4 */
       :: ALL(DONE) ->
#ifdef CLOSE_FIRST
          open = false;
#endif
          commit()
       :: d_step { aborts < ABORTS -> aborts++ }  /* a byte is free, or its deadline is over: it tries again */
       :: give_up()
       fi;
       open = false;  /* round.R6 */
       if
       :: is_committed -> step++
       :: else
       fi;
#ifdef SAME_ATTEMPT
       again = !is_committed;
#endif
       is_committed = false;
next:  skip
    :: else -> break
    od
  } unless { leader_struck };
  atomic { record = 0; step = 0; is_committed = false }
  if
  :: leader_struck -> leader_struck = false; goto begin
  :: leader_struck -> leader_struck = false; over++  /* nobody follows */
  :: else -> d_step { leader_byte = false; over++ }
  fi
}

inline write_slice() {
  d_step {
    assert(newest == 0 || record != newest_record);
    assert(record != confirmed);
    slices[record * WRITERS + self] = 0
  }
  d_step {
    assert(newest == 0 || record != newest_record);
    assert(record != confirmed);
    slices[record * WRITERS + self] = step
  }
}

proctype writer(byte self) {
  byte step, record, at, before;
#ifdef NEWEST_FIRST
  byte after;
#endif
begin:
  {
    d_step { !writer_byte[self] -> writer_byte[self] = true }
#ifdef FORGETS
    done[self] = 0;
#endif  /* otherwise round.R7: as it is */
    if
    :: step = NEWEST_STEP + 1
    :: KILLS > 0 && newest != 0 -> step = 1
    fi;
    do
    :: step <= STEPS ->
       if
       :: d_step { open && attempt > done[self] -> at = attempt; record = round_record }  /* round.R2 */
       :: give_up(); goto next
       fi;
#ifndef NO_STEP
       if
       :: round_step == step
       :: round_step != step ->
          if
          :: (attempt != at || !open)
          :: give_up()
          fi;
          goto next
       fi;
#endif
       before = newest;
#ifdef EARLY_DONE
       done[self] = at;
       write_slice();
#else
       write_slice();
#ifdef REREAD
       done[self] = attempt;
#else
       done[self] = at;  /* round.R3 */
#endif
#endif
#ifdef NEWEST_FIRST
       after = newest;
#endif
       if
       :: (attempt != at || !open)  /* round.R9 */
       :: give_up(); goto next
       fi;
#ifdef NEWEST_FIRST
       d_step {
         if
         :: after > before -> assert(committed == at); step++
#else
       d_step {
         if
         :: newest > before -> assert(committed == at); step++
#endif
         :: else -> assert(committed != at); denied = at
         fi
       };
next:  skip;
       d_step {
         at = 0; record = 0; before = 0
#ifdef NEWEST_FIRST
         ; after = 0
#endif
       }
    :: else -> break
    od
  } unless { writer_struck[self] };
  atomic { step = 0; at = 0; record = 0; before = 0 }
  if
  :: writer_struck[self] -> writer_struck[self] = false; goto begin
  :: writer_struck[self] -> writer_struck[self] = false; over++  /* nobody follows */
  :: else -> d_step { writer_byte[self] = false; over++ }
  fi
}

proctype reader() {
  byte generation, record, w, taken;
  do
  :: taken < LEASES ->
     taken++;
     if
     :: newest > generation
     :: over > WRITERS -> break  /* nobody publishes any more */
     fi;
     do
     :: d_step { generation = newest; record = newest_record }  /* publication.P4 */
        lease = record;
        d_step { if :: newest == generation -> confirmed = record :: else fi }
        if
        :: confirmed == record -> break
        :: else
        fi
     od;
     do
     :: w < WRITERS -> assert(slices[record * WRITERS + w] == step_of[record]); w++
     :: else -> break
     od;
     skip;
     d_step { w = 0; confirmed = NOTHING; record = 0 }
     lease = NOTHING
  :: else -> break
  od;
  lease = NOTHING
}

proctype killer() {
  do
  :: kills < KILLS ->
     if
     :: d_step { leader_byte && !leader_struck -> leader_struck = true; leader_byte = false; kills++ }
     :: d_step { writer_byte[0] && !writer_struck[0] -> writer_struck[0] = true; writer_byte[0] = false; kills++ }
     :: d_step { writer_byte[1] && !writer_struck[1] -> writer_struck[1] = true; writer_byte[1] = false; kills++ }
     :: over > WRITERS -> break
     fi
  :: else -> break
  od
}

init {
  byte w;
  atomic {
    run leader();
    do :: w < WRITERS -> run writer(w); w++ :: else -> break od;
#if READERS > 0
    run reader();
#endif
#if KILLS > 0
    run killer()
#endif
  }
}
