/* Dumps of a table by key: a copy that is kept by dumps is the table (docs/protocols.md, table).
 *
 * One key, which lies in one of two rows or in none. Two lanes push it FIRST and SECOND times, a sweep evicts it TURNS
 * times, and a dumper keeps a copy by DUMPS dumps meanwhile, each from the one before. The lane VICTIM (1, 2: who pushes;
 * 3: the sweep; 4: the dumper) is killed at any step, or not at all, and followed by another one. The next dumper begins
 * with what the last dump that came to its end has left. When all have come to their end there is one more dump.
 *
 * A row has two elements, which a push updates and a dump copies one after the other. A word's number goes up with each
 * change: here a change makes the copies of the word void that others hold (`seal` of the sweep, `same` of the dumper).
 *
 * Checked: at the end the copy has the key's row as it is. Only a row without an update may be missing.
 *
 * Not in the model: how rows are found and linked (table.pml), several keys, what a list forgets, memory orders.
 *
 * Broken on purpose, one at a time:
 *   NO_PINS       a dump looks at no pins (table.D2)
 *   OLD_PINS      it looks at them before it begins (table.D1)
 *   EARLY_EPOCH   a push reads the number of the dump before it pins its row (table.P4)
 *   LATE_CHANGED  a push says that the row has changed when it has unpinned it (table.P4)
 *   LATE_LIST     an eviction is listed once it has happened (table.L1)
 *   ONE_LOOK      an evictor does not look whether a dump has begun since (table.L2)
 *   OLD_LIST      a dump reads the lists before it begins (table.D1)
 *   KEPT_SEAL     a dump leaves a listed row that is sealed as it is (table.D3)
 *   BACK_UNSEEN   a dump does not take the row of a listed key that has one (table.D3)
 *   ROWS_FIRST    a dump copies the rows before it reads the lists (table.D4)
 */
#ifndef FIRST
#define FIRST 1
#endif
#ifndef SECOND
#define SECOND 1
#endif
#ifndef TURNS
#define TURNS 1
#endif
#ifndef DUMPS
#define DUMPS 2
#endif
#ifndef VICTIM
#define VICTIM 0
#endif

#define LIVE 1
#define SEALED 2
#define LISTED 12

byte where;               /* the key's row; 0: none */
byte state[3];
byte first[3], second[3]; /* elements: the updates that they have */
byte changed[3];
byte pin[3];              /* of lanes 1 and 2 */
byte epoch = 1;
byte list[LISTED], listed;
bool seal, same;          /* whether the word is still as the sweep has sealed it, as the dumper has read it */
bool alive[6], struck[6];
byte over;
byte since;               /* the dump that the copy is of */
bool has_copy;
byte copy[2];

#define change() seal = false; same = false
#define raise(word, least) if :: (word) < (least) -> word = least :: else fi

proctype pusher(byte me; byte pushes) {
  byte row, now;
begin:
  {
    d_step { !alive[me] -> alive[me] = true }
    pin[me] = 0;  /* table.P0 */
    do
    :: pushes > 0 ->
#ifdef EARLY_EPOCH
       now = epoch;
#endif
       do
       :: atomic {
            if
            :: where == 0 -> if :: row = 1 :: changed[1] > 0 -> row = 2 fi  /* at first the rows are alike */
               state[row] = LIVE; first[row] = 0; second[row] = 0; where = row; change()
            :: else -> row = where
            fi }
          pin[me] = row;  /* table.P1, table.P2 */
          if
          :: d_step { where == row && state[row] == LIVE -> skip }
             break
          :: d_step { where == row && state[row] == SEALED -> state[row] = LIVE; change() }  /* table.P3 */
             break
          :: d_step { where != row -> pin[me] = 0 }
          fi
       od;
#ifdef EARLY_EPOCH
       skip;
#else
       now = epoch;  /* table.P4 */
#endif
#ifndef LATE_CHANGED
       d_step { raise(changed[row], now) }  /* table.P4 */
#endif
       d_step { assert(where == row); first[row]++ }
       d_step { assert(where == row); second[row]++ }
       pin[me] = 0;  /* table.P5 */
#ifdef LATE_CHANGED
       d_step { raise(changed[row], now) }
#endif
       d_step { pushes--; row = 0; now = 0 }
    :: else -> break
    od
  } unless { struck[me] };
  atomic { row = 0; now = 0 }
  if
  :: struck[me] -> d_step { struck[me] = false; pushes = 1 } goto begin
  :: struck[me] -> d_step { struck[me] = false; over++ }  /* nobody takes the rank */
  :: else -> over++
  fi
}

inline list_it() {
  do
  :: now = epoch;
     list[listed] = now;  /* table.L1 */
     listed++;
#ifndef ONE_LOOK
     if
     :: epoch != now -> skip  /* table.L2 */
     :: else -> break
     fi
#else
     break
#endif
  od
}

proctype sweep(byte me; byte turns) {
  byte row, now;
begin:
  {
    d_step { !alive[me] -> alive[me] = true }
    do
    :: turns > 0 ->
       turns--;
       if
       :: d_step { where != 0 -> row = where; state[row] = SEALED; change(); seal = true }  /* table.E2 */
#ifndef LATE_LIST
          list_it();
#endif
          now = 0;
          if
          :: d_step { (pin[1] == row && alive[1]) || (pin[2] == row && alive[2]) ->  /* table.E3 */
               if
               :: seal -> state[row] = LIVE; change()  /* table.E4 */
               :: else
               fi }
          :: d_step { !((pin[1] == row && alive[1]) || (pin[2] == row && alive[2])) -> now = 1 }
             d_step {  /* table.E5; another row may be made of it at once */
               if
               :: seal -> state[row] = 0; where = 0; change()
               :: else -> now = 0
               fi }
#ifdef LATE_LIST
             if
             :: now == 1 -> list_it()
             :: else
             fi
#endif
          fi
       :: else
       fi;
       atomic { row = 0; now = 0 }
    :: else -> break
    od
  } unless { struck[me] };
  atomic { row = 0; now = 0 }
  if
  :: struck[me] -> d_step { struck[me] = false; turns = 1 } goto begin
  :: struck[me] -> d_step { struck[me] = false; over++ }
  :: else -> over++
  fi
}

inline read_lists() {
  d_step { at = listed; is_listed = false }
  do
  :: at > 0 && list[at - 1] >= since -> d_step { is_listed = true; at-- }  /* table.D3 */
  :: else -> break
  od;
  at = 0
}

inline look() {
  if
  :: d_step { !is_listed -> skip }
  :: d_step { is_listed && where == 0 -> is_gone = true }
  :: d_step { is_listed && where != 0 ->
       row = where;
#ifndef KEPT_SEAL
       if
       :: state[row] == SEALED -> state[row] = LIVE; change()
       :: else
       fi
#endif
     }
#ifndef BACK_UNSEEN
     d_step { raise(changed[row], since) }
#endif
  fi;
  row = 0
}

inline copy_rows() {
  row = 1;
  do
  :: row < 3 ->
     do
     :: atomic { where == row && changed[row] >= since -> same = true }  /* table.D4 */
        one = first[row];
        two = second[row];
        if
        :: same -> has_row = true
           break
        :: else
        fi
     :: else -> break
     od;
     row++
  :: else -> break
  od;
  row = 0
}

proctype dumper(byte me; byte dumps) {
  byte row, dump, one, two, at;
  bool is_listed, is_gone, has_row, is_last;
begin:
  {
    d_step { !alive[me] -> alive[me] = true }
    do
    :: dumps > 0 || over == 3 ->
       d_step {
         is_last = (dumps == 0);
         if
         :: dumps > 0 -> dumps--
         :: else
         fi }
#ifdef OLD_LIST
       read_lists();
#endif
#ifdef OLD_PINS
       d_step { one = pin[1]; two = pin[2] }
#endif
       d_step { epoch++; dump = epoch }  /* table.D1 */
#ifndef NO_PINS
#ifndef OLD_PINS
       one = pin[1];  /* table.D2 */
#endif
       if
       :: d_step { one != 0 -> raise(changed[one], dump) }
       :: else
       fi;
#ifndef OLD_PINS
       two = pin[2];
#endif
       if
       :: d_step { two != 0 -> raise(changed[two], dump) }
       :: else
       fi;
       d_step { one = 0; two = 0 }
#endif
#ifdef ROWS_FIRST
       copy_rows();
#endif
#ifndef OLD_LIST
       read_lists();
#endif
       look();
#ifndef ROWS_FIRST
       copy_rows();
#endif
       atomic {
         if
         :: is_gone -> has_copy = false; copy[0] = 0; copy[1] = 0
         :: else
         fi;
         if
         :: has_row -> has_copy = true; copy[0] = one; copy[1] = two
         :: else
         fi;
         since = dump;
         if
         :: is_last ->
            assert(!has_copy || (where != 0 && copy[0] == first[where] && copy[1] == second[where]));
            assert(has_copy || where == 0 || (first[where] == 0 && second[where] == 0))
         :: else
         fi;
         is_listed = false; is_gone = false; has_row = false; one = 0; two = 0; dump = 0
       }
       if
       :: is_last -> break
       :: else
       fi
    od
  } unless { struck[me] };
  atomic { row = 0; dump = 0; one = 0; two = 0; at = 0; is_listed = false; is_gone = false; has_row = false }
  if
  :: struck[me] -> struck[me] = false; goto begin
  :: else
  fi
}

proctype killer() {
end:
  d_step { alive[VICTIM] && over < 3 -> struck[VICTIM] = true; alive[VICTIM] = false }
}

init {
  atomic {
    run pusher(1, FIRST);
    run pusher(2, SECOND);
    run sweep(3, TURNS);
    run dumper(4, DUMPS);
#if VICTIM > 0
    run killer()
#endif
  }
}
