/* Publication: one publisher writes generations into records, readers lease the newest one (docs/protocols.md, publication).
 *
 * Records hold a generation in two halves, which are written and read one after the other. READERS readers take a lease
 * each, LEASES times, use it and give it back. Of all these, KILLS are killed at any step. A killed publisher is followed
 * by the next one, a killed reader by the next holder of its rank, or by nobody. RECORDS is READERS + 2 unless given: then
 * a publisher always finds a record. With fewer it tries again while living readers have the rest.
 *
 * Checked: a lease that publication.P5 has confirmed names one whole generation, which stays until it is given back;
 * generations go up by one, over all publishers; no reader gets an older one after a newer one; no publisher finds itself
 * without a record where there are enough of them, or where only the dead have the others; all come to their end.
 *
 * With TRIM a publisher may give the memory of all records that nobody has back after each generation: they read as zero.
 *
 * Not in the model: slots (a record stands for its slots: living records name fewer than there are), memory orders but
 * for the two fences, which NO_FENCE undoes by a store that stays in its processor until the look behind it is over.
 *
 * Broken on purpose, one at a time:
 *   NO_SECOND_LOOK  a reader takes the lease for granted (publication.P5)
 *   NO_FENCE        its look at `newest` comes before its lease is seen (publication.P4)
 *   OLD_LOOK        a publisher looks at the leases before it moves `newest` for the generation before (publication.P1)
 *   EARLY_NAME      `newest` moves before the record is whole (publication.P8)
 *   CLEARS          a publisher clears the lease of the dead (publication.P2)
 *   REMEMBERS       it remembers who is dead (publication.P2)
 *   BLIND           the next publisher looks at no lease at first (publication.P2)
 *   DEAD_COUNT      the leases of the dead count for ever (publication.P2); with RECORDS=READERS + 1
 *   TRIM_OLD_LOOK   a publisher trims by the leases that it has looked at before it moved `newest` (publication.P14)
 *   BYTE_LAST       a reader waits for a newer generation, and looks at the publisher's byte after `newest` (publication.P13)
 */
#ifndef READERS
#define READERS 2
#endif
#ifndef RECORDS
#define RECORDS (READERS + 2)
#endif
#ifndef GENERATIONS
#define GENERATIONS 3
#endif
#ifndef LEASES
#define LEASES 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#define NOTHING 14 /* no lease */
#define NOWHERE 15 /* no store under way */

byte newest, newest_record;              /* one word */
byte first_half[RECORDS], second_half[RECORDS];
byte lease[READERS];
byte under_way[READERS];                 /* of NO_FENCE */
bool reader_byte[READERS], publisher_byte;
bool reader_struck[READERS], publisher_struck;
byte kills, readers_over;
bool publisher_over;

/* What must hold, seen by nobody in the model. */
byte confirmed[READERS];
byte seen[READERS];

#ifdef DEAD_COUNT
#define COUNTS(rank) true
#else
#define COUNTS(rank) reader_byte[rank]
#endif

/* publication.P1, publication.P2: the records that are leased. */
inline find_leased() {
  d_step { taken = 0; rank = 0 }
  do
  :: rank < READERS ->
#ifdef REMEMBERS
     if
     :: known_dead & (1 << rank) -> rank++; goto look_on
     :: else
     fi;
#endif
     found = lease[rank];
     if
     :: found == NOTHING
     :: found != NOTHING ->
        if
        :: d_step { COUNTS(rank) -> taken = taken | (1 << found) }
        :: else ->
#ifdef CLEARS
           lease[rank] = NOTHING
#else
#ifdef REMEMBERS
           known_dead = known_dead | (1 << rank)
#else
           skip
#endif
#endif
        fi
     fi;
     rank++;
look_on: skip
  :: else -> break
  od;
  skip
}

inline find_taken() {
  find_leased();
  d_step { if :: newest != 0 -> taken = taken | (1 << newest_record) :: else fi }
}

/* publication.P3: a record that nobody has; RECORDS: there is none. */
inline find_record() {
  find_taken();
  d_step {
    record = 0;
    do
    :: record < RECORDS && (taken & (1 << record)) -> record++
    :: else -> break
    od;
    taken = 0; rank = 0; found = 0
  }
}

proctype publisher() {
  byte record, rank, found, taken;
#ifdef OLD_LOOK
  byte next;
#endif
#ifdef REMEMBERS
  byte known_dead;
#endif
begin:
  {
    d_step { !publisher_byte -> publisher_byte = true }
#ifdef OLD_LOOK
    find_record();
    next = record;
#endif
#ifdef BLIND
    record = (newest_record + 1) % RECORDS;
    goto write;
#endif
    do
    :: newest < GENERATIONS ->
look:  skip;
#ifdef OLD_LOOK
       record = next;
#else
       find_record();
#endif
       if
       :: record < RECORDS
       :: else ->
#if RECORDS >= READERS + 2
          assert(false);  /* enough records are always enough */
#endif
          /* busy: it may try again as soon as a reader gives back, or is dead */
          (lease[0] == NOTHING || lease[0] == newest_record || !COUNTS(0)
#if READERS > 1
           || lease[1] == NOTHING || lease[1] == newest_record || !COUNTS(1)
#endif
          );
          goto look
       fi;
#ifdef BLIND
write: skip;
#endif
       d_step {  /* nobody has it */
         rank = 0;
         do :: rank < READERS -> assert(confirmed[rank] != record); rank++ :: else -> break od;
         rank = 0
       }
#ifdef EARLY_NAME
       d_step { newest++; newest_record = record }
       first_half[record] = newest;
       second_half[record] = newest
#else
       first_half[record] = newest + 1;  /* publication.P6 */
       second_half[record] = newest + 1;
#ifdef OLD_LOOK
       find_record();
       next = record;
       d_step { record = 0; do :: first_half[record] != newest + 1 -> record++ :: else -> break od }
#endif
#ifdef TRIM_OLD_LOOK
       find_leased();
#endif
       d_step {  /* publication.P8 */
         assert(first_half[record] == newest + 1 && second_half[record] == newest + 1);
         newest++; newest_record = record
       }
#endif
#ifdef TRIM
       if
       :: skip
       :: true ->
#ifdef TRIM_OLD_LOOK
          taken = taken | (1 << newest_record);
#else
          find_taken();
#endif
          d_step {  /* publication.P14 */
            record = 0;
            do
            :: record < RECORDS ->
               if
               :: (taken & (1 << record)) == 0 -> first_half[record] = 0; second_half[record] = 0
               :: else
               fi;
               record++
            :: else -> break
            od;
            record = 0; taken = 0; rank = 0; found = 0
          }
       fi
#endif
    :: else -> break
    od
  } unless { publisher_struck };
  atomic { record = 0; rank = 0; found = 0; taken = 0 }
  if
  :: publisher_struck -> publisher_struck = false; goto begin
  :: else -> d_step { publisher_over = true; publisher_byte = false }
  fi
}

proctype reader(byte self) {
  byte generation, record, first, second, taken;
  bool gone;
begin:
  {
    d_step { !reader_byte[self] -> reader_byte[self] = true }
    lease[self] = NOTHING;  /* the predecessor's */
    do
    :: taken < LEASES ->
       taken++;
       /* publication.P13: a newer one, or nobody who would publish it */
#ifdef BYTE_LAST
       do
       :: newest > seen[self] -> break
       :: newest <= seen[self] ->
          if
          :: !publisher_byte -> d_step { assert(newest <= seen[self]); gone = true } break
          :: publisher_byte -> (newest > seen[self] || !publisher_byte)
          fi
       od;
#else
       do
       :: newest > seen[self] -> break
       :: newest <= seen[self] ->
          gone = !publisher_byte;
          if
          :: newest > seen[self] -> gone = false; break
          :: newest <= seen[self] && gone -> break
          :: newest <= seen[self] && !gone -> (newest > seen[self] || !publisher_byte)
          fi
       od;
#endif
       if
       :: gone -> gone = false; goto next_one
       :: else
       fi;
       do
       :: d_step { generation = newest; record = newest_record }  /* publication.P4 */
#ifdef NO_FENCE
          d_step { if :: under_way[self] != NOWHERE -> lease[self] = under_way[self] :: else fi; under_way[self] = record }
#else
          lease[self] = record;
#endif
#ifdef NO_SECOND_LOOK
          confirmed[self] = record;
          break
#else
          d_step { if :: newest == generation && newest_record == record -> confirmed[self] = record :: else fi }
          if
          :: confirmed[self] == record -> break
          :: else
          fi
#endif
       od;
#ifdef NO_FENCE
       skip;
       d_step { lease[self] = under_way[self]; under_way[self] = NOWHERE }
#endif
       assert(generation > seen[self]);
       seen[self] = generation;
       first = first_half[record];
       second = second_half[record];
       assert(first == generation && second == generation);
       d_step {
         assert(first_half[record] == generation && second_half[record] == generation);
         confirmed[self] = NOTHING; first = 0; second = 0
       }
       lease[self] = NOTHING;  /* publication.P12 */
next_one: skip;
       d_step { generation = 0; record = 0 }
    :: else -> break
    od
  } unless { reader_struck[self] };
  atomic { generation = 0; record = 0; first = 0; second = 0; gone = false }
  if
  :: reader_struck[self] -> reader_struck[self] = false; goto begin
  :: reader_struck[self] -> reader_struck[self] = false; readers_over++  /* nobody takes the rank */
  :: else -> d_step { readers_over++; reader_byte[self] = false }
  fi
}

inline strike_reader(self) {
  d_step { reader_byte[self] && !reader_struck[self] ->
    reader_struck[self] = true; reader_byte[self] = false;
    confirmed[self] = NOTHING; seen[self] = 0; under_way[self] = NOWHERE; kills++ }
}

proctype killer() {
  do
  :: kills < KILLS ->
     if
     :: d_step { publisher_byte && !publisher_struck -> publisher_struck = true; publisher_byte = false; kills++ }
     :: strike_reader(0)
#if READERS > 1
     :: strike_reader(1)
#endif
     :: readers_over == READERS && publisher_over -> break
     fi
  :: else -> break
  od
}

init {
  byte i;
  d_step {
    do
    :: i < READERS -> lease[i] = NOTHING; confirmed[i] = NOTHING; under_way[i] = NOWHERE; i++
    :: else -> break
    od;
    i = 0
  }
  atomic {
    run publisher();
    do :: i < READERS -> run reader(i); i++ :: else -> break od;
#if KILLS > 0
    run killer()
#endif
  }
}
