"""Bridges between boxes: what is written in Python. What the fields mean: tests/mutants/run.py."""

_TABLES, _BOXES = "python_bridge_tables", "python_bridge"
_ROUNDS, _ROWS = "python/ps_shm/bridge/_rounds.py", "python/ps_shm/bridge/_tables.py"
_BOX, _GROUP = "python/ps_shm/bridge/_box.py", "python/ps_shm/bridge/_group.py"


def _mutant(rule, breaks, file, old, new, *tests):
    return {"breaks": breaks, "rule": rule, "tests": list(tests), "file": file, "changes": [(old, new)]}


MUTANTS = {
    "bridges_uncounted_cut_moves_on": _mutant(
        "bridge.T4", "The next cut begins behind one that was not counted.", _ROWS,
        "header.cut_versions if is_counted else header.versions", "header.cut_versions",
        f"{_TABLES} test_a_cut_that_another_round_has_not_counted_is_made_again"),
    "bridges_cut_has_rows_in_doubt": _mutant(
        "bridge.T4", "A cut takes rows in doubt as they are.", _ROWS,
        "is_used & ((marks == 0) | (marks % 2 == 1))", "is_used & (marks == 0)",
        f"{_TABLES} test_a_cut_has_no_row_in_doubt"),
    "bridges_cut_has_fresh_rows": _mutant(
        "bridge.T4", "A cut takes rows that were made again as if they had the anchor.", _ROWS,
        "is_used & ((marks == 0) | (marks % 2 == 1))", "is_used & (marks % 2 == 1)",
        f"{_TABLES} test_an_evicted_row_comes_back_as_the_anchor_and_what_it_has_got_since"),
    "bridges_key_twice_in_a_cut": _mutant(
        "bridge.T4", "A key is in a cut twice if its row was evicted and made again.", _ROWS,
        "            keys, first = np.unique(keys, return_index=True)  # a key is there twice if its row was evicted and made meanwhile\n",
        "            first = np.arange(keys.size)\n",
        f"{_TABLES} test_a_key_whose_row_is_evicted_and_made_again_is_in_a_cut_once"),
    "bridges_base_is_replaced_before_the_change": _mutant(
        "bridge.R6", "The base becomes the anchor though the variables have not got the change before.", _ROUNDS,
        "if not is_counted and not self._lacks_change():", "if not is_counted:",
        f"{_BOXES} test_a_job_that_ends_before_it_has_a_change_counts_no_work_of_others"),
    "bridges_uncounted_cut_is_the_base": _mutant(
        "bridge.R6", "A cut that was not counted stays the base.", _ROUNDS,
        "if not is_counted and not self._lacks_change():", "if False:",
        f"{_BOXES} test_while_another_process_holds_the_snapshot_a_box_has_no_weight"),
    "bridges_counted_cut_is_no_base": _mutant(
        "bridge.R6", "A cut that was counted is given to the job once more.", _ROUNDS,
        "if not is_counted and not self._lacks_change():", "if not self._lacks_change():",
        f"{_BOXES} test_a_variable_that_is_declared_late_is_left_alone"),
    "bridges_second_sum_before_rows": _mutant(
        "bridge.T6", "A sum of another round is received while rows lack what the last one has made.", _ROUNDS,
        "        self._give_before_another()  # while the keys of the last sum are there\n", "",
        f"{_TABLES} test_rows_get_what_one_round_has_made_before_a_bridge_gets_the_sum_of_another"),
    "bridges_second_round_before_rows": {**_mutant(
        "bridge.T6", "A round is decided while rows lack what the last one has made.", _ROUNDS,
        '        """Takes the result that this box has accepted: it is decided. The outer step follows (bridge.S3)."""\n'
        "        self._give_before_another()\n",
        '        """Takes the result that this box has accepted: it is decided. The outer step follows (bridge.S3)."""\n',
        f"{_TABLES} test_a_job_may_end_wherever_its_bridge_can_be_told_of_it"),
        "survives": "a box whose rows lack a change comes to another round only through bridge.A4, which gives it before, or if "
                    "its job is over, when its last cut was taken before"},
    "bridges_base_lacks_the_cut": _mutant(
        "bridge.T6", "Rows get what they have sent once more.", _ROWS,
        "        if header.has_cut:\n", "        if False:\n",
        f"{_TABLES} test_rows_get_to_the_other_boxes"),
    "bridges_step_from_the_anchor": _mutant(
        "bridge.T5", "The base of a round's rows is not kept.", _ROWS,
        "            base[known] = anchor.array(ANCHOR, count)[known]\n", "",
        f"{_TABLES} test_rows_get_to_the_other_boxes"),
    "bridges_new_key_has_base_zero": _mutant(
        "bridge.T5", "A new key's base is not its initial values.", _ROWS,
        "            base[count:] = anchor.table.initial(new)\n", "            base[count:] = 0\n",
        f"{_TABLES} test_an_evicted_row_comes_back_as_the_anchor_and_what_it_has_got_since"),
    "bridges_mean_of_rows_over_all": _mutant(
        "bridge.T5", "An element of a row is averaged over boxes that have not changed it.", _ROWS,
        "np.where(part != 0, np.float32(weight), np.float32(0))", "np.float32(weight)",
        f"{_TABLES} test_a_mean_is_over_the_boxes_that_changed_an_element"),
    "bridges_rows_lose_the_residual": _mutant(
        "bridge.R3", "What the encoding of a row's sum loses is lost.", _ROWS,
        "                total[known] += residual[mine_in_sum[known]]\n", "",
        f"{_TABLES} test_what_the_wire_format_loses_is_sent_later"),
    "bridges_more_keys_than_room": _mutant(
        "bridge.T5", "A sum has new keys for which there is no room.", _ROWS,
        "        too_many = new[table.most - anchor.count :]\n", "        too_many = new[:0]\n",
        f"{_TABLES} test_keys_beyond_the_most_are_left_alone"),
    "bridges_other_rows_stay": _mutant(
        "bridge.T7", "A box that takes the anchor keeps rows that the anchor does not have.", _ROWS,
        "            for some in (anchor.array(KEYS, anchor.count), unknown):\n",
        "            for some in (anchor.array(KEYS, anchor.count),):\n",
        f"{_TABLES} test_rows_get_to_the_other_boxes"),
    "bridges_last_rows_are_cut_twice": _mutant(
        "bridge.T8", "The last cut of a job's rows ignores which of them lack a change.", _ROWS,
        "                bases[lacks] = anchor.bases(keys[lacks])\n", "",
        f"{_TABLES} test_a_job_that_ends_between_the_change_of_its_variables_and_that_of_its_rows_counts_nothing_twice"),
    "bridges_base_of_no_key": _mutant(
        "bridge.T9", "The base is not that of all keys when an anchor is taken.", _ROWS,
        '        return {"based": self._state.header.keys, "due": (ALL,) * len(self.anchors)}\n', "        return {}\n",
        f"{_TABLES} test_a_box_that_was_away_takes_what_it_lacks"),
    "bridges_values_that_are_not_finite": _mutant(
        "bridge.R1", "A box whose values are not finite takes part.", _ROUNDS,
        "        if not is_finite or step <= self.header.counted_step:\n", "        if step <= self.header.counted_step:\n",
        f"{_BOXES} test_a_box_is_healed_also_where_no_other_one_has_work"),
    "bridges_weight_without_work": _mutant(
        "bridge.R1", "A box that has no snapshot sends what it has sent before.", _ROUNDS,
        "            self._lacks_snapshot = True\n            self.state.present[:] = 0\n            return 0.0, True\n",
        "            self._lacks_snapshot = True\n            return 1.0, True\n",
        f"{_BOXES} test_while_another_process_holds_the_snapshot_a_box_has_no_weight"),
    "bridges_restored_job_has_stepped": _mutant(
        "bridge.R1", "A bridge takes what variables a restored job has when it begins.", _BOX,
        'self.view.global_step > int(self.view.settings["first_step"])', "self.view.global_step > 0",
        f"{_BOXES} test_a_bridge_of_a_restored_job_waits_for_its_variables"),
    "bridges_tickets_of_the_clock": _mutant(
        "bridge.C1", "A new state begins at the clock, whatever the last ticket was.", "python/ps_shm/bridge/_state.py",
        "max(int(time.time() * 1000), View(job).guest_ticket)", "int(time.time() * 1000)",
        f"{_BOXES} test_a_new_state_begins_above_the_last_ticket_of_the_jobs_guest"),
    "bridges_second_bridge_stays": _mutant(
        "bridge.G4", "A second bridge of a box makes all others form a group again and again.", _GROUP,
        "            if box in self.members and self._store is not None:\n", "            if False:\n",
        f"{_BOXES} test_a_box_has_one_bridge"),
    "bridges_first_box_is_suspected_again": _mutant(
        "bridge.G4", "A leader leaves out the same box again and again.", _GROUP,
        "others[(self._failed - least) % len(others)]", "others[0]",
        f"{_BOXES} test_the_leader_tries_each_other_box_although_one_was_left_out_before"),
}
