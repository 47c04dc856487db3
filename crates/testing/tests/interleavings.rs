//! What comes of the cluster's transactions in every order in which sessions can meet, on a real PostgreSQL.
//!
//! Each test shows all results that are possible, and in how many orders each came about: one that must not be possible
//! would stand there. The pitfalls of coordination by rows are among them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use expect_test::{Expect, expect};
use testing::interleave::postgres::PostgresBench;
use testing::interleave::{cases, explore, play};

/// Plays all orders of a case, checks that playing some again gives the same text, and shows the results.
#[track_caller]
fn check(name: &str, expected: &Expect) {
    let (_, case) = cases::ALL.iter().find(|(other, _)| *other == name).expect("a case of this name");
    let case = case();
    let mut bench = PostgresBench::new();
    let mut results: BTreeMap<String, usize> = BTreeMap::new();
    let mut some = Vec::new();
    let mut waits = 0;
    let count = explore(&mut bench, &case, |played| {
        *results.entry(played.results.clone()).or_default() += 1;
        waits += played.waits;
        if some.len() < 3 || played.waits > 0 && some.len() < 6 {
            some.push(played.clone());
        }
    });
    for first in some {
        assert_eq!(play(&mut bench, &case, &first.order), first);
    }
    let mut text = format!("{count} orders, {waits} waits\n");
    for (result, count) in results {
        let _ = writeln!(text, "{count:4}  {result}");
    }
    expected.assert_eq(&text);
}

#[test]
fn no_transaction_of_a_reaped_identity_commits_gc1() {
    check(
        "guard_and_reap",
        &expect![[r#"
        59 orders, 0 waits
           4  member: fenced | reaper: nobody | [1]
          10  member: fenced | reaper: reaped | []
          42  member: wrote | reaper: nobody | [1]
           3  member: wrote | reaper: reaped | []
    "#]],
    );
}

#[test]
fn a_reap_passes_over_who_renews_and_a_renewal_comes_too_late_after_a_reap() {
    check(
        "renewal_and_reap",
        &expect![[r#"
        13 orders, 0 waits
           3  member: "expired" | reaper: nobody | [1]
           3  member: "expired" | reaper: reaped | []
           1  member: "missing" | reaper: reaped | []
           5  member: "renewed, 1000 left" | reaper: nobody | [1]
           1  member: "renewed, 1000 left" | reaper: reaped | []
    "#]],
    );
}

/// Why nobody else may lock the row of a member: the renewal that waited succeeded with a lease that was over.
#[test]
fn a_renewal_that_waited_for_its_row_was_decided_before_it_waited() {
    check(
        "renewal_and_lock",
        &expect![[r#"
        12 orders, 2 waits
           6  member: "expired" | other: held
           1  member: "renewed, -1 left" | other: held
           5  member: "renewed, 1000 left" | other: held
    "#]],
    );
}

#[test]
fn a_renewal_passes_beside_a_guarded_transaction() {
    check(
        "renewal_and_guard",
        &expect![[r#"
        4 orders, 0 waits
           4  agent: "renewed, 1000 left" | member: wrote
    "#]],
    );
}

#[test]
fn of_two_who_contest_one_leads() {
    check(
        "two_contests",
        &expect![[r#"
        6 orders, 0 waits
           3  1: "of 2 in 1", "of 2 in 1" | 2: "taken in 1", "renewed"
           3  1: "taken in 1", "renewed" | 2: "of 1 in 1", "of 1 in 1"
    "#]],
    );
}

#[test]
fn a_takeover_never_meets_a_guarded_transaction_gc2() {
    check(
        "leadership_and_takeover",
        &expect![[r#"
        204 orders, 0 waits
          25  1: led | 2: "expired", "of 1 in 1"
         145  1: led | 2: "renewed, 1000 left", "of 1 in 1"
          19  1: led | 2: "renewed, 1000 left", "taken in 2"
           6  1: not leading | 2: "expired", "of 1 in 1"
           6  1: not leading | 2: "renewed, 1000 left", "of 1 in 1"
           3  1: not leading | 2: "renewed, 1000 left", "taken in 2"
    "#]],
    );
}

#[test]
fn a_leader_renews_beside_its_guarded_transaction() {
    check(
        "leadership_and_renewal",
        &expect![[r#"
        19 orders, 0 waits
           6  agent: "of 1 in 1" | leader: led
           3  agent: "of 1 in 1" | leader: not leading
           9  agent: "renewed" | leader: led
           1  agent: "renewed" | leader: not leading
    "#]],
    );
}

#[test]
fn of_two_who_want_the_last_ticket_one_waits_for_it() {
    check(
        "two_acquire",
        &expect![[r#"
        8 orders, 6 waits
           4  1: Given | 2: Waits | ["1 has 1, waits 0", "2 has 0, waits 1"]
           4  1: Waits | 2: Given | ["1 has 0, waits 1", "2 has 1, waits 0"]
    "#]],
    );
}

#[test]
fn a_ticket_that_is_freed_goes_to_who_waits() {
    check(
        "release_and_acquire",
        &expect![[r#"
        9 orders, 7 waits
           5  1: ["free"] | 2: Given | ["1 has 0, waits 0", "2 has 1, waits 0"]
           4  1: ["to 2"] | 2: Waits | ["1 has 0, waits 0", "2 has 1, waits 0"]
    "#]],
    );
}

/// Why an idle key is locked in one statement and deleted in another.
#[test]
fn no_key_is_removed_under_a_ticket() {
    check(
        "acquire_and_prune",
        &expect![[r#"
        13 orders, 2 waits
          10  1: Given | leader: 0 | ["1 has 1, waits 0", "2 has 0, waits 0"]
           3  1: Given | leader: 1 | ["1 has 1, waits 0", "2 has 0, waits 0"]
    "#]],
    );
}

#[test]
fn a_ticket_of_the_dead_goes_to_who_waits() {
    check(
        "acquire_and_reap",
        &expect![[r#"
        37 orders, 23 waits
          12  2: Given | reaper: (1, ["free"]) | ["1 has 0, waits 0", "2 has 1, waits 0"]
          25  2: Waits | reaper: (1, ["to 2"]) | ["1 has 0, waits 0", "2 has 1, waits 0"]
    "#]],
    );
}

#[test]
fn a_request_is_carried_out_once() {
    check(
        "request_twice",
        &expect![[r#"
            84 orders, 25 waits
              63  1: Some(0), not mine | 2: carried out, Some(0)
               2  1: Some(1), carried out | 2: not mine, Some(0)
              19  1: Some(1), not mine | 2: carried out, Some(0)
        "#]],
    );
}

#[test]
fn a_request_is_carried_out_or_re_addressed() {
    check(
        "request_and_tidying",
        &expect![[r#"
        4 orders, 2 waits
           2  1: carried out | 2: nothing
           2  1: not mine | 2: re-addressed
    "#]],
    );
}

#[test]
fn a_quota_is_not_exceeded() {
    check(
        "two_of_a_quota",
        &expect![[r#"
        4 orders, 2 waits
           2  1: "sum 2" | 2: "used up at 2"
           2  1: "used up at 2" | 2: "sum 2"
    "#]],
    );
}

#[test]
fn a_change_that_commits_late_is_not_missed() {
    check(
        "changes_and_reader",
        &expect![[r#"
            276 orders, 0 waits
             110  1: "changed" | 2: "changed" | reader: 0, 0 | 2
              70  1: "changed" | 2: "changed" | reader: 0, 1 | 2
              46  1: "changed" | 2: "changed" | reader: 0, 2 | 2
              26  1: "changed" | 2: "changed" | reader: 1, 1 | 2
              18  1: "changed" | 2: "changed" | reader: 1, 2 | 2
               6  1: "changed" | 2: "changed" | reader: 2, 2 | 2
        "#]],
    );
}

#[test]
fn a_registration_and_a_change_of_the_lease_do_not_pass_each_other() {
    check(
        "registration_and_lease",
        &expect![[r#"
            11 orders, 7 waits
               8  1: "LeaseDiffers { stored: 2s }" | 2: LeaseSet(true)
               3  1: "registered" | 2: LeaseSet(false)
        "#]],
    );
}

#[test]
fn who_is_at_its_guard_when_it_is_reaped_is_fenced() {
    check(
        "guard_and_start_reap",
        &expect![[r#"
        9 orders, 2 waits
           3  member: fenced | reaper: reaped | []
           5  member: wrote | reaper: nobody | [1]
           1  member: wrote | reaper: reaped | []
    "#]],
    );
}

#[test]
fn tidying_waits_for_guarded_transactions() {
    check(
        "guard_and_tidying",
        &expect![[r#"
        16 orders, 11 waits
           7  old: fenced | new: (false, 1) | [2]
           9  old: wrote | new: (false, 1) | [2]
    "#]],
    );
}

#[test]
fn of_two_reaps_one_takes_each_of_the_dead() {
    check(
        "two_reaps",
        &expect![[r#"
        38 orders, 0 waits
          16  1: nobody | 2: nobody | [1, 2]
          11  1: nobody | 2: reaped | []
          11  1: reaped | 2: nobody | []
    "#]],
    );
}

#[test]
fn a_member_that_stops_while_it_is_reaped_leaves_nothing() {
    check(
        "stop_and_reap",
        &expect![[r#"
            67 orders, 2 waits
              64  member: ["free"] | reaper: nobody | []
               3  member: ["free"] | reaper: reaped | []
        "#]],
    );
}

#[test]
fn a_leadership_that_is_released_can_be_taken_at_once() {
    check(
        "release_and_contest",
        &expect![[r#"
        6 orders, 0 waits
           3  1: "released" | 2: "of 1 in 1", "of 1 in 1"
           2  1: "released" | 2: "of 1 in 1", "taken in 2"
           1  1: "released" | 2: "taken in 2", "of 2 in 2"
    "#]],
    );
}

/// A take that began before the registration was ended must not commit after it.
#[test]
fn a_leadership_is_never_taken_by_who_is_gone_gc1() {
    check(
        "stop_and_contest",
        &expect![[r#"
            7 orders, 5 waits
               6  stop: "gone" | contest: "of 0 in 0" | "led by nobody"
               1  stop: "gone" | contest: "taken in 1" | "led by nobody"
        "#]],
    );
}

#[test]
fn two_who_want_a_ticket_that_is_freed_get_it_in_their_turn() {
    check(
        "three_of_two_tickets",
        &expect![[r#"
        92 orders, 126 waits
          16  1: ["free"] | 2: Given | 3: Waits | ["1 has 0, waits 0", "2 has 1, waits 0"]
          16  1: ["free"] | 2: Waits | 3: Given | ["1 has 0, waits 0", "2 has 0, waits 1"]
          30  1: ["to 2"] | 2: Waits | 3: Waits | ["1 has 0, waits 0", "2 has 1, waits 0"]
          30  1: ["to 3"] | 2: Waits | 3: Waits | ["1 has 0, waits 0", "2 has 0, waits 1"]
    "#]],
    );
}
