/* The life of a job's names: create, create_shard, add_task and remove_job in src/shm/segment/job_segments.cpp, open_job,
 * join_tasks, Server::Impl::end and ~Server in src/server/server.cpp, Worker::Impl::join in src/worker/joining.cpp,
 * try_join and leave in src/shm/steps/worker_table.cpp, try_change_live in src/shm/segment/live_settings.cpp.
 *
 * A job has a control segment and two shards, one for each ps task. At the same moment CREATORS ps for task 0 start
 * (each adopts the job that has lost its task 0, else creates one), and ADDERS for task 1, WORKERS workers, SETTERS
 * that change the live settings, and REMOVERS launchers that clear up; all may find the remains of an older job: START
 * 0 nothing, 1 a dead job with all its names, 2 a dead job whose removal was cut short, 3 a live one whose task 0 has
 * died. At most KILLS processes are killed, at any step. A ps ends at any time: it was asked to, or has looked.
 *
 * Checked
 *   - whoever serves or works does so in the job that the names lead to, with all its shards, until it has let go:
 *     no live job loses a name, no two ps serve one task of one name, nobody is left on an orphan
 *   - no name comes back that blocks a live job: naming a shard never fails
 *   - a ps is refused only where somebody is alive
 *   - a worker without a ps has been told that the job is over, and no ps takes such a job over
 *   - once all are gone, the next ps gets the name with everything; if nobody was killed, no live job has left a name
 * Left out
 *   - gradient segments, which are named and removed as shard 1 is, while a rank's byte is held
 *   - --keep, inspect_shm rm --force, forks (locks.L1, locks.L2), time-outs: who waits may also give up at any time
 *
 * Broken on purpose, one at a time
 *   NO_LINK_CHECK    who has taken a byte does not look whether the name has been unlinked meanwhile (names.N3)
 *   CONTROL_ONLY     it looks at the control segment alone, though a removal may have been cut short behind the
 *                    shards (names.N3)
 *   LATE_CHECK       a task names its shard before it looks (names.N3)
 *   NO_RANGE_LOCK    unlinking without a lock on the whole range, when nobody seems alive (names.N2)
 *   NO_NAME_CHECK    unlinking without looking whether the name still leads to it (names.N2)
 *   CONTROL_FIRST    unlinking the control segment before the shards (names.N2)
 *   NAME_FIRST       the control segment is named, then locked (names.N1)
 *   LOCK_IS_LIFE     a ps is refused where any byte is held, also by who is removing the job
 *   SILENT_END       a ps that sees no worker any more ends without a word (names.N7)
 *   LATE_WORD        a ps says that it ends when it has given its bytes back (names.N9)
 *   ADOPT_ENDED      a ps takes over a job that was ended (names.N5)
 *   PS_CLEARS_UP     only the ps removes a job that was ended, not the last one out (names.N9)
 */
#ifndef CREATORS
#define CREATORS 2
#endif
#ifndef ADDERS
#define ADDERS 0
#endif
#ifndef WORKERS
#define WORKERS 1
#endif
#ifndef REMOVERS
#define REMOVERS 0
#endif
#ifndef SETTERS
#define SETTERS 0
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef START
#define START 1
#endif

/* Processes have numbers from 1 on, and so have control segments: those of the creators are theirs, OLD is the older
 * job's, and LAST is of the ps that comes when all are gone. */
#define OLD (CREATORS + 1)
#define LAST (CREATORS + 2)
#define JOBS (LAST + 1)
#define CROWD (CREATORS + ADDERS + WORKERS + REMOVERS + SETTERS + (START == 3 -> 1 : 0))
#define PROCESSES (LAST + ADDERS + WORKERS + REMOVERS + SETTERS + 2)

/* What the three names lead to: the control segment's job, 0 for nothing; a shard is file {job, copy}. */
#define SHARD(job, copy) ((job) + 16 * (copy))
#define JOB_OF(shard) ((shard) % 16)
byte name, shard[2];

/* Of each control segment: its version, 0 while it is being created, whether its ps has ended it, and who holds its
 * lock bytes. */
#define TASK0 0
#define TASK1 1
#define RANK 2
#define REMOVER 3
#define SETTER 4
#define BYTES 5
bool published[JOBS], ended[JOBS];
byte lock[JOBS * BYTES];

/* Not in the segments: the job that each process serves or works in, its mappings, and how far the run is. */
byte serves[PROCESSES], mapped[PROCESSES * 2], copies[JOBS * 2];
bool killed[PROCESSES], over[PROCESSES];
byte kills, done;

#define LOCK(job, which) lock[(job) * BYTES + (which)]
#define HELD(job, which) (LOCK(job, which) != 0 && LOCK(job, which) != p)
#define IS_BEING_REMOVED(job) HELD(job, REMOVER)
#define IS_SERVED(job) (LOCK(job, TASK0) != 0 || LOCK(job, TASK1) != 0)
#define IS_ANY_HELD(job) \
  (HELD(job, TASK0) || HELD(job, TASK1) || HELD(job, RANK) || HELD(job, REMOVER) || HELD(job, SETTER))
#ifdef LOCK_IS_LIFE
#define IS_ALIVE(job) IS_ANY_HELD(job)
#else
/* The whole range is held by nobody else then; one call of the kernel tells both. */
#define IS_ALIVE(job) ((HELD(job, TASK0) || HELD(job, TASK1) || HELD(job, RANK)) && !IS_BEING_REMOVED(job))
#endif

/* Whoever serves or works has all its names. Within a d_step, after each change of a name. */
inline check_the_living() {
  q = 1;
  do
  :: q < PROCESSES ->
     assert(serves[q] == 0 || (name == serves[q] && mapped[q * 2] == shard[0] &&
                               (mapped[q * 2 + 1] == 0 || mapped[q * 2 + 1] == shard[1])));
     q++
  :: else -> break
  od;
  q = 0
}

/* A worker without a ps knows that the job is over, or a ps was killed. */
inline check_the_told(job) {
  assert(LOCK(job, RANK) == 0 || serves[LOCK(job, RANK)] != job || IS_SERVED(job) || ended[job] || kills != 0)
}

inline serve(job) { d_step { serves[p] = job; check_the_living(); check_the_told(job) } }
inline unlink_control() { d_step { name = 0; check_the_living() } }
inline unlink_shard(k) { d_step { shard[k] = 0; check_the_living() } }
inline unlink_parts() { unlink_shard(0); unlink_shard(1) }

inline take(job, which) {
  d_step {
    if
    :: !HELD(job, which) -> LOCK(job, which) = p; taken = 1
    :: else -> taken = 0
    fi
  }
}

/* Also what the kernel does at the end of a process. */
inline release_all(job) {
  q = 0;
  do
  :: q < BYTES -> LOCK(job, q) = (LOCK(job, q) == p -> 0 : LOCK(job, q)); q++
  :: else -> break
  od;
  q = 0
}

inline end_process() {
  serves[p] = 0; mapped[p * 2] = 0; mapped[p * 2 + 1] = 0;
  j = 1;
  do
  :: j < JOBS -> release_all(j); j++
  :: else -> break
  od;
  j = 0
}

/* remove_job, of segment i, whether opened by its name or the process's own. */
inline remove_job() {
  d_step {
    taken = !IS_ANY_HELD(i);
#ifndef NO_RANGE_LOCK
    q = 0;
    do
    :: q < BYTES && taken -> LOCK(i, q) = p; q++
    :: else -> break
    od;
    q = 0
#endif
  }
  if
#ifdef NO_NAME_CHECK
  :: taken ->
#else
  :: taken && name == i ->
#endif
#ifdef CONTROL_FIRST
     unlink_control();
     unlink_parts()
#else
     unlink_parts();
     unlink_control()
#endif
  :: else
  fi;
  if
  :: taken -> taken = 0; atomic { release_all(i) }
  :: else
  fi
}

/* names.N9: by a process that has given a byte back. */
inline clear_up() {
  if
#ifndef PS_CLEARS_UP
  :: ended[i] -> remove_job()
#endif
  :: else
  fi
}

/* Server::Impl::end (names.N7) */
inline end_job() {
  if
#if !defined(SILENT_END) && !defined(LATE_WORD)
  :: ended[i] = 1
#elif defined(SILENT_END)
  :: ended[i] = 1 /* asked to */
  :: !HELD(i, RANK) -> skip
#else
  :: skip
#endif
  fi
}

/* ~Server: bytes first, or of two who end at the same moment each would leave the removal to the other. */
inline release_service() {
  serves[p] = 0;
  atomic {
    orphaned = 0;
    j = (LOCK(i, TASK0) == p || LOCK(i, TASK1) == p);
    release_all(i);
    check_the_told(i)
  }
#ifdef LATE_WORD
  ended[i] = j;
#endif
  if
  :: i != 0 && j -> j = 0; remove_job()
  :: else
  fi
}

/* try_map_shard: one of another job is as good as none (names.N4). */
inline map_shard(k) {
  d_step { mapped[p * 2 + k] = (JOB_OF(shard[k]) == i -> shard[k] : 0) }
}

inline create_shard(job, k) {
  d_step {
    assert(shard[k] == 0); /* "something else has taken the name" */
    copies[(job) * 2 + k]++;
    shard[k] = SHARD(job, copies[(job) * 2 + k]);
    mapped[p * 2 + k] = shard[k];
    check_the_living()
  }
}

/* try_attach_some: i is the job, 0 if there is none yet. */
inline attach() {
  i = name;
  if
  :: i != 0 && !published[i] -> i = 0
  :: i != 0 && published[i] -> map_shard(0); map_shard(1)
  :: i == 0
  fi
}

/* names.N3: while the byte is held nobody removes anything, so what is linked stays. Shard 0 is the first that a removal
 * unlinks. */
#if defined(NO_LINK_CHECK)
#define IS_ORPHANED false
#elif defined(CONTROL_ONLY)
#define IS_ORPHANED (name != i)
#else
#define IS_ORPHANED (name != i || mapped[p * 2] == 0 || mapped[p * 2] != shard[0])
#endif

#ifdef ADOPT_ENDED
#define IS_OVER(job) false
#else
#define IS_OVER(job) ended[job]
#endif

/* add_task, and the rest of join_tasks' turn. */
inline add_task(k) {
  take(i, TASK0 + k);
  if
  :: !taken -> serves[p] = 0; goto leaving /* "served by process ... already" */
  :: else -> taken = 0
  fi;
#ifndef LATE_CHECK
  orphaned = IS_ORPHANED;
#endif
  if
  :: !orphaned && mapped[p * 2 + k] == 0 ->
     map_shard(k);
     if
     :: mapped[p * 2 + k] == 0 -> create_shard(i, k)
     :: else
     fi
  :: else
  fi;
#ifdef LATE_CHECK
  orphaned = IS_ORPHANED;
#endif
  if
  :: orphaned -> orphaned = 0; atomic { release_all(i); i = 0 }
  :: else ->
     assert(CREATORS + ADDERS == 1 || ADDERS != 0 || START == 3 || !ended[i]); /* else another task may end it now */
     serve(i)
  fi
}

inline join_tasks(k) {
  do
  :: serves[p] == 0 ->
     attach();
     if
     :: i != 0 && !IS_BEING_REMOVED(i) ->
        if
        :: IS_ALIVE(i) && !HELD(i, TASK0 + k) -> /* first: who ends the job says so while holding it */
           if
           :: !IS_OVER(i) -> add_task(k)
           :: else -> goto leaving /* or again */
           fi
        :: else -> goto leaving /* or again */
        fi
     :: else -> goto leaving /* or again */
     fi
  :: serves[p] == 0 -> skip
  :: serves[p] != 0 -> break
  od
}

/* JobSegments::create */
inline create() {
#ifndef NAME_FIRST
  take(p, TASK0);
#endif
  do
  :: d_step { /* names.N1 */
       if
       :: name == 0 -> name = p; linked = 1; check_the_living()
       :: else
       fi
     }
     if
     :: linked -> linked = 0; break
     :: else ->
        i = name;
        if
        :: i != 0 && !IS_BEING_REMOVED(i) ->
           d_step {
             taken = IS_ALIVE(i);
             assert(!taken || (p != LAST && !IS_BEING_REMOVED(i))) /* nobody alive would be the reason */
           }
           if
           :: taken -> goto leaving
           :: else -> remove_job()
           fi
        :: else
        fi;
        i = 0
     fi
  od;
  i = p;
#ifdef NAME_FIRST
  take(p, TASK0);
#endif
  taken = 0;
  unlink_parts();
  create_shard(p, 0);
  published[p] = 1
}

/* A ps that is to serve task 0, or all tasks. */
proctype creator(byte p) {
  byte i, j, q;
  bool taken, orphaned, linked;
  {
    if
    :: p != LAST -> /* --task 0: open_job */
       attach();
       if
       :: i != 0 && IS_ALIVE(i) && !HELD(i, TASK0) -> join_tasks(0) /* try_adopt */
       :: else -> d_step { mapped[p * 2] = 0; mapped[p * 2 + 1] = 0 } create(); serve(p)
       fi
    :: true ->
       create();
       serve(p);
       add_task(1)
    fi;
    end_job();
leaving:
    release_service()
  } unless { killed[p] };
  atomic { i = 0; orphaned = 0; linked = 0; taken = 0; end_process(); over[p] = 1; done++ }
}

/* A ps that is to serve task 1, or has served it since before. */
proctype adder(byte p) {
  byte i, j, q;
  bool taken, orphaned;
  {
    if
    :: serves[p] != 0 -> i = serves[p]
    :: else -> join_tasks(1)
    fi;
    end_job();
leaving:
    release_service()
  } unless { killed[p] };
  atomic { i = 0; orphaned = 0; taken = 0; end_process(); over[p] = 1; done++ }
}

/* Worker::Impl::join, and what follows until it leaves. */
proctype worker(byte p) {
  byte i, j, q;
  bool taken, orphaned;
  {
    do
    :: attach();
       if
       :: i != 0 && mapped[p * 2] != 0 && mapped[p * 2 + 1] != 0 && IS_ANY_HELD(i) ->
          if /* try_join */
          :: IS_BEING_REMOVED(i)
          :: ended[i] -> goto leaving
          :: else ->
             take(i, RANK);
             if
             :: taken ->
                taken = 0;
                orphaned = IS_ORPHANED;
                if
                :: !orphaned -> serve(i); break
                :: else -> orphaned = 0; atomic { release_all(i) }
                fi
             :: else
             fi
          fi
       :: else
       fi
    :: goto leaving
    od;
    serves[p] = 0;
    atomic { release_all(i) }
    clear_up();
leaving:
    skip
  } unless { killed[p] };
  atomic { i = 0; orphaned = 0; taken = 0; end_process(); over[p] = 1; done++ }
}

/* try_change_live: neither the job's life, nor in need of its shards. */
proctype setter(byte p) {
  byte i, j, q;
  bool taken;
  {
    i = name;
    if
    :: i != 0 && published[i] && !ended[i] ->
       take(i, SETTER);
       if
       :: taken -> taken = 0; atomic { release_all(i) } clear_up()
       :: else
       fi
    :: else
    fi
  } unless { killed[p] };
  atomic { i = 0; taken = 0; end_process(); over[p] = 1; done++ }
}

/* launch_shm, whose ps was killed. */
proctype remover(byte p) {
  byte i, j, q;
  bool taken;
  {
    i = name;
    if
    :: i != 0 -> remove_job()
    :: else
    fi
  } unless { killed[p] };
  atomic { i = 0; taken = 0; end_process(); over[p] = 1; done++ }
}

active proctype killer() {
  byte p = 1, q, j;
end:
  do
  :: atomic {
       kills < KILLS && done < CROWD -> kills++;
       do
       :: p < PROCESSES - 1 -> p++
       :: break
       od;
       if
       :: !over[p] && p != OLD && p != LAST -> killed[p] = 1; end_process()
       :: else
       fi;
       p = 1
     }
  od
}

init {
  byte p = LAST + 1, k;
  atomic {
#if START > 0
    name = OLD; published[OLD] = 1;
    copies[OLD * 2] = 1; copies[OLD * 2 + 1] = 1;
    shard[0] = (START == 2 -> 0 : SHARD(OLD, 1)); shard[1] = SHARD(OLD, 1);
#endif
#if START == 3
    LOCK(OLD, TASK1) = p; serves[p] = OLD;
    mapped[p * 2] = shard[0]; mapped[p * 2 + 1] = shard[1];
    run adder(p); p++;
#endif
    do
    :: k < CREATORS -> k++; run creator(k)
    :: else -> break
    od;
    k = 0;
    do
    :: k < ADDERS -> run adder(p); p++; k++
    :: else -> break
    od;
    k = 0;
    do
    :: k < WORKERS -> run worker(p); p++; k++
    :: else -> break
    od;
    k = 0;
    do
    :: k < REMOVERS -> run remover(p); p++; k++
    :: else -> break
    od;
    k = 0;
    do
    :: k < SETTERS -> run setter(p); p++; k++
    :: else -> break
    od
  }
  done == CROWD;
  assert(START == 1 || START == 2 || kills != 0 || (name == 0 && shard[0] == 0 && shard[1] == 0));
  run creator(LAST);
  done == CROWD + 1;
  assert(name == 0 && shard[0] == 0 && shard[1] == 0)
}
