"""Planted bugs: each a place in the source, what it becomes, and the test or campaign that has to notice.

A recipe names a piece of text that is there exactly once. `caught_by` is a test (pytest's way of naming it), or a campaign with
its arguments, as in "campaign zombie --count 6".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LUA = "coordinator/store/lua/"
PROMISES, POISON = "tests/e2e/test_promises.py", "tests/e2e/test_poison.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    path: str
    old: str
    new: str
    caught_by: str
    promise: int = 0  # of those in the README: the line that is changed is one that it stands on

    def applied(self, text: str) -> str:
        """The source with the bug; ValueError where the recipe does not apply any more."""
        if text.count(self.old) != 1:
            raise ValueError(f"mutant {self.name!r}: its text is {text.count(self.old)} times in {self.path}, not once")
        return text.replace(self.old, self.new)

    def plant(self, root: Path) -> None:
        path = root / self.path
        path.write_text(self.applied(path.read_text()))


MUTANTS = [
    # -- the last words of an attempt
    Mutant(
        "the last note of an attempt is not stored",
        "workers/attempt/recorder.py",
        "            await self._send_last_note(attempt, outcome)\n",
        "",
        "tests/integration/worker/test_worker_last_words.py::test_last_note_of_an_attempt_is_stored",
    ),
    Mutant(
        "a result that cannot be stored is recorded as empty",
        "workers/attempt/recorder.py",
        '        return Fail(error), b""\n',
        "        return outcome, first_line(error).encode()[:0]\n",
        "tests/integration/worker/test_worker_last_words.py::test_failure_is_logged_once_with_its_traceback",
    ),
    Mutant(
        "a failure is logged without its traceback",
        "workers/attempt/recorder.py",
        'logger.error("run %s failed: %s", attempt.id, first_line(error), exc_info=error)',
        'logger.error("run %s failed: %s", attempt.id, first_line(error))',
        "tests/integration/worker/test_worker_last_words.py::test_failure_is_logged_once_with_its_traceback",
    ),
    # -- handlers that do not stop
    Mutant(
        "the hung handler of a lost run keeps its slot",
        "workers/process/stops.py",
        "            self._replace_process(attempt)\n            await asyncio.wait({cancelling})\n",
        "            await asyncio.wait({cancelling})\n",
        "tests/e2e/test_stuck_handlers.py::test_process_of_a_hung_handler_is_replaced_when_its_run_is_over",
    ),
    Mutant(
        "a hung handler is not reported to the supervisor",
        "workers/program/child.py",
        '    worker.on_stuck = lambda run: report(f"stuck {run}")\n',
        "",
        "tests/e2e/test_stuck_handlers.py::test_process_of_a_hung_handler_is_replaced_when_its_run_is_over",
    ),
    # -- a drain inside a turn
    Mutant(
        "a drain stops a turn that cannot be resumed",
        "workers/attempt/lifecycle.py",
        "if stopping is None or self.delivered or self.defers_drain(may_drain):",
        "if stopping is None or self.delivered:",
        "tests/e2e/test_drain.py::test_a_deploy_repeats_no_turn_of_a_handler_that_flushes_at_the_end_of_each_turn",
    ),
    Mutant(
        "a changed state does not keep a drain out of the turn",
        "workers/handlers/draft.py",
        "same_messages and self._packed_state() == state",
        "same_messages",
        "tests/unit/handlers/test_drain_in_turn.py::test_a_drain_repeats_no_turn",
    ),
    Mutant(
        "a replaced transcript of the same length does not keep a drain out of the turn",
        "workers/handlers/draft.py",
        "self.messages.generation == generation and len(",
        "len(",
        "tests/unit/handlers/test_drain_in_turn.py::test_a_drain_repeats_no_turn",
    ),
    Mutant(
        "a flush with a deferred drain hears no later stop",
        "workers/attempt/attempt.py",
        "self.loop.create_task(self._stop_changed.wait())",
        "self.loop.create_task(asyncio.Event().wait())",
        "tests/unit/attempt/test_attempt.py::test_a_flush_that_defers_a_drain_is_ended_by_a_stop_that_may_not_wait",
    ),
    # -- signals
    Mutant(
        "a forked process keeps the signal handlers of the worker",
        "workers/program/stray_signals.py",
        "after_in_child=restore)",
        "after_in_child=unblock)",
        "tests/e2e/test_forking.py::test_a_handler_that_ends_its_own_child_does_not_drain_its_worker",
    ),
    Mutant(
        "a signal that the supervisor did not order drains the worker",
        "workers/program/child.py",
        "    if takes_orders:\n",
        "    if not takes_orders:\n",
        "tests/e2e/test_forking.py::test_a_handler_that_ends_its_own_child_does_not_drain_its_worker",
    ),
    Mutant(
        "a worker says nothing about a signal that it ignores",
        "workers/program/stray_signals.py",
        "        if not self._worker.stopping:\n",
        "        if False:\n",
        "tests/e2e/test_forking.py::test_a_worker_names_the_likely_cause_of_a_signal_that_its_supervisor_did_not_order",
    ),
    # -- the token
    Mutant(
        "a save needs no token",
        LUA + "attempts/checkpoint.lua",
        "if owner_token ~= token then",
        "if owner_token == nil then",
        "tests/lua/attempts/test_checkpoint.py::test_fenced_worker_cannot_checkpoint",
    ),
    Mutant(
        "an ending needs no token",
        LUA + "shared/run.lua",
        "if run.token and run.token == token then",
        "if run.token then",
        "tests/lua/attempts/test_complete.py::test_only_the_owner_completes",
    ),
    Mutant(
        "loading a page needs no token",
        LUA + "attempts/load.lua",
        "if owner_token ~= token then",
        "if owner_token == nil then",
        "tests/lua/attempts/test_load.py::test_only_the_owner_loads_a_checkpoint",
    ),
    Mutant(
        "a claim's epoch follows a clock that went back",
        LUA + "attempts/claim.lua",
        "math.max(tonumber(epoch) + 1, clock)",
        "clock",
        "tests/lua/attempts/test_claim.py::test_epoch_grows_even_if_the_clock_went_back",
    ),
    Mutant(
        "a recovery's epoch follows a clock that went back",
        LUA + "shared/endings.lua",
        "counters.epoch = math.max(counters.epoch + 1, now)",
        "counters.epoch = now",
        "tests/lua/coordinators/test_recover.py::test_epoch_grows_even_if_the_clock_went_back",
    ),
    # -- saves
    Mutant(
        "a save ignores the sequence number",
        LUA + "shared/checkpoint.lua",
        "  if head and seq < head.seq then return nil, 'old' end\n",
        "",
        "tests/lua/attempts/test_checkpoint.py::test_late_save_changes_nothing",
    ),
    Mutant(
        "a save ignores the base",
        LUA + "shared/checkpoint.lua",
        "  if not fresh and (base > head.length or (acked == 0 and base > 0)) then return nil, 'gap' end\n",
        "",
        "tests/lua/attempts/test_checkpoint.py::test_gap_is_reported_and_nothing_is_written",
    ),
    Mutant(
        "a server that was restored from older data is not noticed",
        LUA + "shared/checkpoint.lua",
        "  if acked > (head and head.seq or 0) then return nil, 'gap' end\n",
        "",
        "tests/integration/saves/test_saves_fallback.py::test_owner_resends_everything_to_a_server_with_an_old_file",
    ),
    Mutant(
        "the throttle drops the newest save",
        "workers/attempt/saver.py",
        "        self._newest = cut\n        self._offered += 1\n",
        "        if self._throttle.wait(self._clock.monotonic()) > 0:\n            return\n"
        "        self._newest = cut\n        self._offered += 1\n",
        "tests/unit/attempt/test_saver.py::test_first_save_is_immediate_and_only_the_newest_follows_in_the_window",
    ),
    Mutant(
        "a failed save advances the throttle's clock",
        "workers/attempt/saver.py",
        "            word = await self._save(number, cut)\n",
        "            word = await self._save(number, cut)\n            self._saved = number\n",
        "tests/unit/attempt/test_saver.py::test_failed_save_is_retried_with_the_newest_cut_and_a_new_seq",
    ),
    Mutant(
        "after an unconfirmed save, the state counts as saved",
        "workers/attempt/saver.py",
        "whole or self._unsure or cut.state",
        "whole or cut.state",
        "tests/unit/attempt/test_saver.py::test_unchanged_state_is_sent_again_after_an_unconfirmed_save",
    ),
    Mutant(
        "a phase belongs to its attempt instead of its turn",
        "workers/handlers/draft.py",
        "f\"phase:{'-' if self.turn is None else self.turn}:{name}\"",
        'f"phase:-:{name}"',
        "tests/unit/handlers/test_draft.py::test_phases_inside_a_turn_belong_to_the_turn",
    ),
    # -- endings and releases
    Mutant(
        "a release omits the newest state",
        "workers/attempt/recorder.py",
        "plan(attempt.saver.last_delta(unfinished))",
        'plan(b"")',
        "tests/integration/worker/test_worker_outcomes.py::test_stop_at_any_cut_releases_the_run_with_its_saved_state",
    ),
    Mutant(
        "after a gap, a release omits the new messages",
        "workers/attempt/recorder.py",
        "plan(attempt.saver.whole_delta(unfinished))",
        'plan(b"")',
        "tests/integration/saves/test_saves_fallback.py",
    ),
    Mutant(
        "a released run is queued and still owned",
        LUA + "shared/endings.lua",
        "  remember_owner(id, token)\n  remove_owner(id, run)\n",
        "  remember_owner(id, token)\n",
        "tests/lua/attempts/test_release.py::test_stopping_release_keeps_the_position_without_a_strike",
    ),
    Mutant(
        "a repeated release is not recognised",
        LUA + "attempts/release.lua",
        "  remember_call(id, token, 'release', 'ok')\n",
        "",
        "tests/lua/attempts/test_release.py::test_repeated_release_requeues_once",
    ),
    Mutant(
        "a release by a stopping worker is a strike",
        LUA + "attempts/release.lua",
        "  counters.releases = counters.releases + 1\n",
        "  strike(counters, progress)\n",
        "tests/lua/attempts/test_release.py::test_hundred_deploys_cause_no_strike",
    ),
    Mutant(
        "progress does not remove strikes",
        LUA + "shared/endings.lua",
        "  if progress > counters.struck then\n    counters.struck = progress\n",
        "  if false then\n    counters.struck = progress\n",
        "tests/lua/attempts/test_release.py::test_unrequested_release_with_progress_is_not_a_strike",
    ),
    Mutant(
        "a release forgets a requested cancel",
        LUA + "attempts/release.lua",
        "local ended = end_if_requested(id, run, counters, clock, 'cancelled')",
        "local ended = false",
        "tests/lua/attempts/test_release.py::test_requested_cancel_wins",
    ),
    Mutant(
        "a completed run keeps its checkpoint",
        LUA + "shared/endings.lua",
        "if status == COMPLETED or kept <= 0 then",
        "if kept <= 0 then",
        "tests/lua/attempts/test_complete.py::test_completed_run_ends_and_its_checkpoint_is_removed",
    ),
    Mutant(
        "an exception after a stop counts as a failure",
        "coordinator/model/outcome.py",
        "(stop.delivered or (isinstance(ending, Raised) and ending.stop))",
        "(isinstance(ending, Raised) and ending.stop)",
        "tests/unit/attempt/test_outcome.py::test_any_result_after_the_stop_was_delivered_counts_as_that_stop",
    ),
    Mutant(
        "a swallowed stop is a success",
        "coordinator/model/outcome.py",
        "    if isinstance(ending, Returned):\n        return Release(\n",
        "    if isinstance(ending, Returned):\n        return Complete(ending.value)\n        return Release(\n",
        "tests/unit/attempt/test_outcome.py::test_swallowed_stop_is_never_a_success",
    ),
    # -- claims
    Mutant(
        "a repeated claim gets different runs",
        LUA + "attempts/claim.lua",
        "if number == last_claim then",
        "if false then",
        "tests/lua/attempts/test_claim.py::test_claim_number_is_answered_once_and_repeated_with_the_same_answer",
    ),
    Mutant(
        "a late claim takes runs",
        LUA + "attempts/claim.lua",
        "if tonumber(number) < tonumber(last_claim) or tonumber(number)",
        "if tonumber(number)",
        "tests/lua/attempts/test_claim.py::test_claim_with_a_lower_number_takes_nothing",
    ),
    Mutant(
        "an abandoned claim takes runs",
        LUA + "attempts/claim.lua",
        " or tonumber(number) <= tonumber(floor or 0) then",
        " then",
        "tests/lua/attempts/test_claim.py::test_claim_with_a_number_up_to_the_floor_takes_nothing",
    ),
    Mutant(
        "a worker with an expired lease claims",
        LUA + "attempts/claim.lua",
        "if clock >= tonumber(deadline) then return { 'expired' } end",
        "",
        "tests/lua/attempts/test_claim.py::test_expired_worker_claims_nothing_until_a_heartbeat",
    ),
    Mutant(
        "a recovered worker claims",
        LUA + "attempts/claim.lua",
        "if condemned or not last_claim or not deadline",
        "if not last_claim or not deadline",
        "tests/lua/attempts/test_claim.py::test_removed_worker_claims_nothing",
    ),
    Mutant(
        "a suspect is not alone in its process",
        LUA + "attempts/claim.lua",
        " and redis.call('SCARD', owned_key(worker)) == 0 then",
        " then",
        "tests/lua/attempts/test_claim.py::test_suspect_is_never_given_to_a_worker_that_owns_a_run",
    ),
    Mutant(
        "a run is released as unknown while its claim is still in progress",
        "workers/process/beat_results.py",
        "if not known and claim_number(token) <= floor:",
        "if not known:",
        "tests/integration/worker/test_worker_replies.py",
    ),
    # -- leases and recovery
    Mutant(
        "a recovered worker's lease is renewed",
        LUA + "workers/heartbeat.lua",
        "if condemned or not redis.call",
        "if not redis.call",
        "tests/lua/workers/test_heartbeat.py::test_removed_worker_is_not_renewed",
    ),
    Mutant(
        "a late join brings a swept worker back",
        LUA + "workers/join.lua",
        "if condemned or (known_lease and not listed) then return { 'gone' } end\n",
        "",
        "tests/lua/workers/test_join.py::test_join_of_a_removed_worker_is_refused",
    ),
    Mutant(
        "recover does not check the lease again",
        LUA + "coordinators/recover.lua",
        "  if tonumber(deadline) > clock then return { 'alive' } end\n",
        "",
        "tests/lua/coordinators/test_recover.py::test_worker_with_a_valid_lease_is_left_alone",
    ),
    Mutant(
        "recover takes a run that another worker owns",
        LUA + "shared/recover.lua",
        "  if not run.token or worker_of(run.token) ~= lost.worker then return 'stale' end\n",
        "",
        "tests/lua/coordinators/test_recover.py::test_run_owned_by_another_worker_is_not_taken",
    ),
    Mutant(
        "recover needs no lock",
        LUA + "coordinators/recover.lua",
        "if redis.call('GET', lock_key(lock)) ~= token then return { 'unlocked' } end\n",
        "",
        "tests/lua/coordinators/test_recover.py::test_without_the_lock_nothing_is_recovered",
    ),
    Mutant(
        "recovery does not pause after an outage",
        LUA + "coordinators/recover.lua",
        "  if is_spared(worker, deadline, clock, hold_until) then return { 'held' } end\n",
        "",
        "tests/lua/coordinators/test_recover.py::test_runs_are_not_recovered_during_a_hold_and_afterwards_without_a_strike",
    ),
    Mutant(
        "the inputs do not count in the budget of a claim",
        LUA + "attempts/claim.lua",
        "  budget_used = budget_used + #spec\n",
        "",
        "tests/lua/attempts/test_claim.py::test_specs_count_in_the_budget_of_a_claim",
    ),
    Mutant(
        "a claim does not take a run that is larger than its budget",
        LUA + "attempts/claim.lua",
        "if #ids > 0 and budget_used + #spec > tonumber(budget)",
        "if budget_used + #spec > tonumber(budget)",
        "tests/lua/attempts/test_claim.py::test_a_claim_takes_at_least_one_run_whatever_its_size",
    ),
    Mutant(
        "a trip is given up although its answer still arrives",
        "coordinator/store/transport/connections/silence.py",
        "            self._timeout.reschedule(loop.time() + self._seconds)\n",
        "            pass\n",
        "tests/integration/transport/test_slow_lines.py::test_an_answer_that_keeps_arriving_is_not_given_up",
    ),
    Mutant(
        "a thread gives up a large request that is still being sent",
        "coordinator/store/transport/connections/exchange.py",
        "        if len(pieces) > 1:\n",
        "        if False:\n",
        "tests/integration/transport/test_slow_lines.py::test_a_thread_sends_a_large_request_over_a_slow_line",
    ),
    Mutant(
        "a load that fails again and again is silent",
        "workers/attempt/loader.py",
        "        if self._failures.bit_count() == 1:",
        "        if False:",
        "tests/integration/transport/test_slow_lines.py::test_a_load_that_fails_is_logged_and_repeated",
    ),
    Mutant(
        "a run completes although its cancel was requested",
        LUA + "attempts/complete.lua",
        "if caller == 'owner' and run.cancel then",
        "if false then",
        "tests/contract/test_tree.py::test_a_parent_that_ends_because_its_children_were_cancelled_is_cancelled_too",
    ),
    Mutant(
        "a run fails although its cancel was requested",
        LUA + "attempts/fail.lua",
        "if run.cancel then",
        "if false then",
        "tests/contract/test_tree.py::test_a_parent_that_ends_because_its_children_were_cancelled_is_cancelled_too",
    ),
    Mutant(
        "a cancelled run that started before gets more children",
        "coordinator/store/plans/trees.py",
        "if node.started or node.status is Status.RUNNING",
        "if node.status is Status.RUNNING",
        "tests/contract/test_tree.py::test_a_run_that_started_and_waits_for_its_next_attempt_gets_no_more_children",
    ),
    Mutant(
        "losses add up although the run makes progress",
        LUA + "shared/endings.lua",
        "count = progress > tonumber(before or 0) and 0 or tonumber(count or 0) + 1",
        "count = tonumber(count or 0) + 1",
        "tests/lua/coordinators/test_recover.py::test_run_that_makes_progress_before_each_loss_is_never_dead",
    ),
    Mutant(
        "an outage counts as a loss",
        LUA + "shared/recover.lua",
        "lost.excused and 0 or count_loss(id, progress)",
        "count_loss(id, progress)",
        "tests/lua/coordinators/test_recover.py::test_excused_recovery_is_not_a_loss",
    ),
    Mutant(
        "every pause of recovery protects a lost worker again",
        LUA + "shared/judge.lua",
        "  return not till or now < till\n",
        "  return true\n",
        "tests/lua/coordinators/test_judge.py::test_a_lost_workers_runs_are_back_within_three_leases_although_the_coordinator_stutters",
    ),
    Mutant(
        "every gap prolongs the protection of a lost worker",
        LUA + "shared/judge.lua",
        "after_gap and prolonged == '0' and till < last_chance",
        "after_gap and till < last_chance",
        "tests/lua/coordinators/test_judge.py::test_a_lost_workers_runs_are_back_within_three_leases_although_the_coordinator_stutters",
    ),
    Mutant(
        "a second outage leaves no time to renew a lease",
        LUA + "shared/judge.lua",
        "elseif after_gap and prolonged == '0' and till < last_chance then",
        "elseif false then",
        "tests/lua/coordinators/test_judge.py::test_a_second_outage_leaves_a_worker_a_third_of_a_lease_to_renew_its_lease",
    ),
    Mutant(
        "the pause of an earlier expiry counts for the next one",
        LUA + "shared/judge.lua",
        "  if of == int(tonumber(deadline)) then return",
        "  if of then return",
        "tests/lua/coordinators/test_judge.py::test_each_expiry_of_a_lease_is_protected_by_a_pause_of_its_own",
    ),
    Mutant(
        "an outage is a strike",
        LUA + "coordinators/recover.lua",
        "condemned == 'excused', blame",
        "false, blame",
        "tests/lua/coordinators/test_recover.py::test_missing_strike_after_a_hold_applies_to_all_batches",
    ),
    Mutant(
        "a clock that was ahead keeps a lease alive for ever",
        LUA + "shared/judge.lua",
        "if tonumber(deadline) > furthest then",
        "if false then",
        "tests/lua/coordinators/test_judge.py::test_deadline_that_is_too_far_away_is_limited_to_the_workers_own_lease",
    ),
    Mutant(
        "a leaving worker does not release its runs",
        LUA + "workers/leave.lua",
        "  if #owned > 0 or redis.call('SCARD', owned_key(worker)) > 0 then return { 'owns', owned } end\n",
        "",
        "tests/lua/workers/test_leave.py::test_worker_that_still_owns_runs_gets_their_list_instead",
    ),
    Mutant(
        "a lease is counted from the reply of its heartbeat",
        "workers/liveness/lease.py",
        "self._beat_at = max(self._beat_at, sent_at)",
        "self._beat_at = self._clock.monotonic()",
        "tests/unit/process/test_lease.py::test_lease_counts_from_when_the_last_successful_heartbeat_was_sent",
    ),
    Mutant(
        "a handler starts while the lease is in doubt",
        "workers/attempt/executor.py",
        "            await attempt.wait_until_confirmed()\n",
        "",
        "tests/integration/worker/test_worker_doubt.py::test_run_claimed_in_doubt_starts_only_after_the_doubt",
    ),
    # -- producers and operators
    Mutant(
        "an enqueue with a key does not find the existing run",
        LUA + "runs/enqueue.lua",
        "local answer = once ~= '' and find_by_key(id, once_of(route, once), digest) or nil",
        "local answer = nil",
        "tests/lua/runs/test_enqueue.py::test_key_finds_its_run",
    ),
    Mutant(
        "a late cancel affects a later life",
        LUA + "runs/cancel.lua",
        "if life ~= '' and tonumber(life) ~= counters.life then return { 'changed' } end\n",
        "",
        "tests/lua/runs/test_cancel.py::test_late_cancel_does_not_affect_another_life",
    ),
    Mutant(
        "a due run is moved again and again",
        LUA + "coordinators/due.lua",
        "  redis.call('ZREM', delayed_key(), id)\n  if not counters or run.status",
        "  if not counters or run.status",
        "tests/lua/coordinators/test_due.py::test_repeated_due_moves_once",
    ),
    # -- seen by the judge of a campaign, and not by a test of the guard itself
    Mutant(
        "a zombie saves",
        LUA + "attempts/checkpoint.lua",
        "if owner_token ~= token then",
        "if owner_token == nil then",
        "campaign zombie --count 5",
    ),
    Mutant(
        "a roll loses the newest state",
        "workers/attempt/recorder.py",
        "plan(attempt.saver.last_delta(unfinished))",
        'plan(b"")',
        "campaign roll --count 6",
    ),
    Mutant(
        "completed runs leak their checkpoints",
        LUA + "shared/endings.lua",
        "if status == COMPLETED or kept <= 0 then",
        "if kept <= 0 then",
        "campaign server --count 1",
    ),
    # -- the wire
    Mutant(
        "a call that may have been executed is reported as not sent",
        "coordinator/store/transport/error_mapping.py",
        "    if error.sent:\n        return Unconfirmed(",
        "    if False:\n        return Unconfirmed(",
        "tests/integration/transport/test_wire.py::test_request_without_an_answer_is_unconfirmed",
    ),
    Mutant(
        "two calls of one run share a trip",
        "coordinator/store/transport/packets.py",
        "            if request.run in runs:\n                return index\n",
        "",
        "tests/unit/transport/test_packets.py::test_packet_never_contains_two_calls_about_one_run",
    ),
    Mutant(
        "an unexpected error is taken for an outage",
        "coordinator/store/transport/error_mapping.py",
        "    return _unexpected(error, text, where)\n",
        "    return TransientError(text, sent=sent, rediscover=True)\n",
        "tests/unit/transport/test_error_mapping.py::test_programming_error_is_reported_at_once_with_its_type_and_its_traceback",
    ),
    Mutant(
        "a connection that uvloop closed is not tried again",
        "coordinator/store/transport/error_mapping.py",
        'isinstance(error, RuntimeError) and "the handler is closed" in text',
        "False",
        "tests/unit/transport/test_error_mapping.py::test_connection_closed_with_an_unusual_error_is_retried",
    ),
    Mutant(
        "fakeredis without Lua is used",
        "coordinator/store/transport/connections/memory.py",
        "        import lupa  # noqa: F401",
        "        #",
        "tests/unit/transport/test_optional_packages.py::test_missing_memory_extra_is_reported_at_once",
    ),
    Mutant(
        "parts of redis-py that are missing are not noticed",
        "coordinator/store/transport/connections/redis_parts.py",
        "if not hasattr(holder, name)",
        "if False",
        "tests/unit/transport/test_optional_packages.py::test_redis_py_without_a_private_part_is_refused_at_import",
    ),
    Mutant(
        "an embedded server has no watcher",
        "coordinator/store/transport/connections/embedded_server.py",
        "valkey_process.start(directory, clock)\n                ensure_watcher(directory)\n",
        "valkey_process.start(directory, clock)\n",
        "tests/integration/client/test_embedded.py::test_a_last_user_that_ends_by_a_signal_leaves_no_server_behind",
    ),
    Mutant(
        "a closed client stays attached to its embedded server",
        "coordinator/store/transport/connections/embedded_connection.py",
        "            if shared.pools == 0:\n",
        "            if shared.pools < 0:\n",
        "tests/integration/client/test_embedded.py::test_the_last_client_of_a_process_that_closes_stops_the_server",
    ),
    Mutant(
        "a forked child uses the attachment of its parent",
        "coordinator/store/transport/connections/embedded_connection.py",
        "os.register_at_fork(after_in_child=_forget_in_child)\n",
        "",
        "tests/integration/client/test_embedded.py::test_a_forked_child_that_uses_the_server_is_a_user_of_its_own",
    ),
    Mutant(
        "the watcher stops a server that is in use",
        "coordinator/store/transport/connections/last_user_watcher.py",
        'fcntl.flock(files["users.lock"], fcntl.LOCK_EX | fcntl.LOCK_NB)',
        "pass",
        "tests/integration/client/test_embedded.py::test_the_watcher_leaves_a_server_alone_that_an_older_release_uses",
    ),
    Mutant(
        "other users can read the files of an embedded server",
        "coordinator/store/transport/connections/valkey_process.py",
        "umask=0o077, ",
        "",
        "tests/integration/client/test_embedded.py::test_only_this_user_can_read_the_files_of_a_directory_that_existed_before",
    ),
    Mutant(
        "an AsyncClient's session outlives its event loop",
        "coordinator/client/async_client.py",
        "            self._until_end.__anext__().send(None)\n",
        "            raise StopIteration\n",
        "tests/integration/client/test_async_client_loops.py::test_fifty_event_loops_leave_no_connection_and_no_file_behind",
    ),
    Mutant(
        "an AsyncClient closes only the session of its own loop",
        "coordinator/client/async_client.py",
        "            session.close_soon()\n",
        "            pass\n",
        "tests/integration/client/test_async_client_loops.py::test_closing_a_client_closes_its_sessions_in_other_loops",
    ),
    Mutant(
        "check runs no scripts",
        "coordinator/store/role_checks.py",
        "    if refusals and not roles:\n",
        "    if False:\n",
        "tests/integration/transport/test_check.py::test_check_finds_a_forbidden_command_that_every_call_needs[evalsha]",
    ),
    Mutant(
        "check accepts a namespace of another format",
        "coordinator/store/server_checks.py",
        "        namespace_plans.check_format(namespace, known)\n",
        "        pass\n",
        "tests/integration/transport/test_check.py::test_check_refuses_a_namespace_of_another_format",
    ),
    Mutant(
        "a remedy says CONFIG SET where CONFIG is not allowed",
        "coordinator/store/server_checks.py",
        "    if can_configure:\n",
        "    if True:\n",
        "tests/unit/client/test_client_checks.py::test_where_config_is_not_allowed_no_remedy_is_config_set",
    ),
    Mutant(
        "a full connection table looks like a server that is away",
        "coordinator/store/transport/error_mapping.py",
        'if "max number of clients" in text:',
        "if False:",
        "tests/integration/transport/test_check.py::test_a_server_without_a_free_connection_says_maxclients",
    ),
    Mutant(
        "a crowd of silent connections keeps a probe out",
        "coordinator/services/health.py",
        "            self._close_oldest()\n        task =",
        "            writer.transport.abort()\n            return\n        task =",
        "tests/integration/services/test_health.py::test_silent_connections_do_not_starve_a_probe",
    ),
    Mutant(
        "a connection that has begun its request is closed before silent ones",
        "coordinator/services/health.py",
        "next(iter(self._silent or self._open))",
        "next(iter(self._open))",
        "tests/integration/services/test_health.py::test_a_connection_that_begins_a_request_is_kept_while_silent_ones_are_closed",
    ),
    Mutant(
        "a silent connection has the time of a whole request",
        "coordinator/services/health.py",
        "async with asyncio.timeout(SECONDS_FOR_FIRST_BYTE):",
        "async with asyncio.timeout(SECONDS_PER_REQUEST):",
        "tests/integration/services/test_health.py::test_a_connection_without_a_first_byte_is_closed_early",
    ),
    # -- several servers
    Mutant(
        "a client ignores MOVED and keeps asking the old node",
        "coordinator/store/transport/lane.py",
        "self.topology.moved(answer.slot, answer.node)",
        "continue",
        "tests/integration/transport/test_topologies.py::test_cluster_failover_is_followed[async]",
    ),
    Mutant(
        "a client treats ASK like MOVED",
        "coordinator/store/transport/connections/exchange.py",
        "                replies.append(await connection.read_response())\n            except ErrorReply as error:\n"
        "                replies.append(error)\n",
        "                replies.append(await connection.read_response())\n            except ErrorReply as error:\n"
        "                import redis.asyncio\n"
        "                if isinstance(error, redis.exceptions.AskError):\n"
        "                    async with redis.asyncio.Redis(host=error.host, port=error.port, protocol=2).client() as other:\n"
        "                        await other.execute_command('ASKING')\n"
        "                        try:\n"
        "                            replies.append(await other.execute_command(*commands[len(replies)]))\n"
        "                        except ErrorReply as refused:\n"
        "                            replies.append(refused)\n"
        "                    continue\n"
        "                replies.append(error)\n",
        "tests/integration/transport/test_topologies.py::"
        "test_no_script_sees_half_of_its_keys_while_a_hash_slot_moves[valkey-key by key]",
    ),
    Mutant(
        "the number of confirming replicas is ignored",
        "coordinator/store/transport/trip.py",
        "if self._lane.replicas and self._confirmed < self._lane.replicas:",
        "if False:",
        "tests/integration/transport/test_durability.py::test_enqueue_is_unconfirmed_until_a_replica_has_it",
    ),
    Mutant(
        "a client stays with a master that became a replica",
        "coordinator/store/transport/error_mapping.py",
        "if isinstance(error, foreign.ReadOnlyError):",
        "if False:",
        "tests/unit/transport/test_trip.py::test_call_that_was_not_executed_may_be_sent_elsewhere",
    ),
    Mutant(
        "a call to a master that is then demoted is reported as not sent",
        "coordinator/store/transport/trip.py",
        "return judged if isinstance(judged, NotConfigured) else TransientError(str(judged), sent=True, rediscover=True)",
        "return judged",
        "tests/unit/transport/test_trip.py::test_call_is_unconfirmed_if_its_node_was_demoted_afterwards",
    ),
    Mutant(
        "a node that is cut off is believed",
        "coordinator/store/transport/topology/cluster.py",
        "if doubted.isdisjoint(found):",
        "if True:",
        "tests/unit/transport/test_topology.py::test_isolated_node_is_not_trusted_forever",
    ),
    Mutant(
        "sentinels are not asked again",
        "coordinator/store/transport/topology/sentinel.py",
        "        if node == self._master:\n            self._master, self.stale = None, True\n",
        "        return\n",
        "tests/unit/transport/test_topology.py::test_master_named_by_sentinels_must_confirm_its_role",
    ),
    Mutant(
        "a sentinel that is cut off with its master is believed",
        "coordinator/store/transport/topology/sentinel.py",
        "if 2 * len(named[master]) > len(self._sentinels) and master not in roles:",
        "if master not in roles:",
        "tests/unit/transport/test_topology.py::test_sentinel_isolated_together_with_its_master_is_not_trusted",
    ),
    Mutant(
        "a master of an older epoch is accepted",
        "coordinator/store/transport/topology/sentinel.py",
        "if epochs[master] == max(epochs.values())]",
        "]",
        "tests/unit/transport/test_topology.py::test_master_of_an_older_epoch_is_not_used_when_the_latest_is_unreachable",
    ),
    Mutant(
        "a client without replica confirmation stays with a replaced master",
        "coordinator/store/transport/topology/sentinel.py",
        "        self._topology.recheck()\n        return True\n",
        "        return True\n",
        "tests/unit/transport/test_topology.py::test_only_the_master_of_a_sentinel_group_is_checked_again_and_only_occasionally",
    ),
    Mutant(
        "nodes are served one after the other",
        "coordinator/store/transport/sync_wire.py",
        "list(self._threads().map(carry, lanes.keys(), lanes.values()))",
        "list(map(carry, lanes.keys(), lanes.values()))",
        "tests/integration/transport/test_hung_nodes.py::test_requests_to_other_nodes_are_sent_while_one_node_hangs",
    ),
    Mutant(
        "an unreachable partition stops a bell for all partitions",
        "coordinator/store/transport/async_bell.py",
        "elif (token := task.result()) is not None:",
        "elif error is None and (token := task.result()) is not None:",
        "tests/integration/transport/test_hung_nodes.py::test_bell_returns_tokens_of_reachable_partitions[async]",
    ),
    Mutant(
        "a checkpoint store ignores the namespace's durability",
        "workers/durable/owned_records.py",
        "self.keys = space.keys(0)",
        "pass",
        "tests/integration/transport/test_durability.py::test_checkpoint_without_a_replica_is_unconfirmed",
    ),
    # -- the promises: for each test of one, with real processes, a line that it can't do without
    Mutant(
        "only the first run of a lost worker is requeued",
        LUA + "shared/recover.lua",
        "    redis.call('ZADD', ready_key(run.route), int(counters.score), id)\n  else\n",
        "  else\n",
        f"{PROMISES}::test_acknowledged_work_survives_kills_of_every_process",
        promise=1,
    ),
    Mutant(
        "a claim does not return the checkpoint",
        LUA + "attempts/claim.lua",
        "  return { redis.call('HGETALL', ckpt_key(id)), messages }\n",
        "  return false\n",
        f"{PROMISES}::test_resumed_run_sees_at_least_the_last_acknowledged_checkpoint",
        promise=2,
    ),
    Mutant(
        "a checkpoint of a process that slept past its lease is saved",
        LUA + "attempts/checkpoint.lua",
        "if owner_token ~= token then",
        "if owner_token == nil then",
        f"{PROMISES}::test_saves_of_a_worker_that_continues_after_its_lease_are_refused",
        promise=3,
    ),
    Mutant(
        "a result of a process that slept past its lease is accepted",
        LUA + "shared/run.lua",
        "if run.token and run.token == token then",
        "if run.token then",
        f"{PROMISES}::test_results_of_a_worker_that_continues_after_its_lease_are_refused",
        promise=3,
    ),
    Mutant(
        "a deploy is a strike",
        LUA + "attempts/release.lua",
        "  counters.releases = counters.releases + 1\n",
        "  counters.releases = counters.releases + 1\n  strike(counters, progress)\n",
        f"{PROMISES}::test_graceful_release_repeats_nothing_and_gives_no_strike",
        promise=4,
    ),
    Mutant(
        "a deploy costs the last step",
        "workers/attempt/recorder.py",
        "plan(attempt.saver.last_delta(unfinished))",
        'plan(b"")',
        f"{PROMISES}::test_graceful_release_repeats_nothing_and_gives_no_strike",
        promise=4,
    ),
    Mutant(
        "a supervisor does not abandon a dead child's runs",
        "workers/supervisor/child_pool.py",
        "await asyncio.gather(*(self.abandon(*known, blame) for known in child.worker_ids))",
        "await asyncio.gather()",
        f"{PROMISES}::test_crash_is_noticed_immediately_and_repeats_only_unsaved_work",
        promise=5,
    ),
    Mutant(
        "a poison run kills other runs of its process",
        LUA + "coordinators/due.lua",
        "  if counters.strikes >= SUSPECT_STRIKES then\n    add_to_suspect(",
        "  if false then\n    add_to_suspect(",
        f"{POISON}::test_only_the_poison_run_is_dead[12]",
        promise=6,
    ),
    Mutant(
        "a run that cannot start never gets a strike",
        LUA + "attempts/reject.lua",
        "if proven == '1' then add_strike(counters, progress) end\n",
        "",
        f"{POISON}::test_malformed_runs_do_not_stop_other_runs",
        promise=6,
    ),
    Mutant(
        "a pause of recovery prolongs itself",
        LUA + "shared/judge.lua",
        "if unwatched or most then",
        "if unwatched or most or now < hold_until then",
        f"{POISON}::test_most_workers_killed_at_once_are_recovered_after_one_pause",
        promise=6,
    ),
    Mutant(
        "no process is started for a suspect",
        "workers/supervisor/supervisor.py",
        "if waiting > 2 and len(self._extras)",
        "if waiting > 2 and False and len(self._extras)",
        f"{POISON}::test_suspect_gets_its_attempt_although_no_process_is_empty",
        promise=6,
    ),
    Mutant(
        "each save sends the whole transcript",
        "workers/attempt/saver.py",
        "base = 0 if whole or generation != self._generation else self._base\n",
        "base = 0\n",
        "tests/integration/saves/test_saves_growth.py::test_size_of_a_save_does_not_grow_with_the_transcript",
        promise=7,
    ),
    Mutant(
        "each save sends an unchanged state",
        "workers/attempt/saver.py",
        "state = cut.state if whole or self._unsure or cut.state != self._state else None",
        "state = cut.state",
        "tests/integration/saves/test_saves_growth.py::test_size_of_a_save_does_not_grow_with_the_transcript",
        promise=7,
    ),
    Mutant(
        "a client that waits for a run does not register with it",
        LUA + "runs/wait.lua",
        "redis.call('HSET', run_key(id), 'waited', '1')",
        "",
        "tests/lua/runs/test_wait.py::test_every_ending_wakes_waiting_clients",
    ),
    Mutant(
        "an ended run has no TTL",
        LUA + "shared/endings.lua",
        "    redis.call('PEXPIRE', key, int(kept))\n",
        "",
        f"{PROMISES}::test_ended_run_leaves_no_data_after_its_retention",
        promise=8,
    ),
    Mutant(
        "a completed run leaves its checkpoint behind",
        LUA + "shared/endings.lua",
        "if status == COMPLETED or kept <= 0 then return drop_checkpoint(id) end",
        "if status == COMPLETED or kept <= 0 then return end",
        f"{PROMISES}::test_ended_run_leaves_no_data_after_its_retention",
        promise=8,
    ),
    Mutant(
        "an outage of the server counts as the death of its workers",
        LUA + "shared/judge.lua",
        "if unwatched or most then hold_until = now + longest_lease() end\n",
        "",
        "tests/e2e/test_outages.py::test_outage_of_three_leases_gives_no_strike[killed]",
        promise=5,
    ),
]
