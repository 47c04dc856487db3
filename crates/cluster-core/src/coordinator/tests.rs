//! Scripts of the coordinator: what it is told, and what it says.

use std::time::Duration;

use database_core::{Class, DbError};

use super::{
    Call, CallAnswer, Change, Coordinator, CoordinatorSettings, Input, LeaderSeen, Leadership, MemberSeen, Output,
};
use crate::leadership::{DISPATCH, SCHEDULER};
use crate::scripts::lead::{Contested, Standing};
use crate::scripts::reap::{Reaped, Tidied};
use crate::scripts::request::Request;
use crate::scripts::view::Seen;
use crate::{Boot, MemberId, Mode, Notice, Server, Times};

const ME: MemberId = MemberId(7);
const OTHER: MemberId = MemberId(9);
const SERVER: Server = Server { system: 1, timeline: Some(2) };

struct Play {
    coordinator: Coordinator,
    now_ms: u64,
    said: Vec<Output>,
    calls: Vec<(u64, Call)>,
}

impl Play {
    fn new(mode: Mode) -> Self {
        let settings = CoordinatorSettings {
            times: Times::default(),
            mode,
            known_dead: vec![MemberId(3)],
            listen_wait: Duration::from_secs(5),
        };
        let mut play = Self {
            coordinator: Coordinator::new(settings, [5, 6, 7, 8]),
            now_ms: 1_000_000,
            said: vec![],
            calls: vec![],
        };
        play.tell(Input::MayLead { name: SCHEDULER, is_able: true });
        play
    }

    /// After the start, with the first beat over and nothing led.
    fn started() -> Self {
        let mut play = Self::new(Mode::Shared);
        play.tell(Input::Listening).register(ME, vec![]);
        play.answer("reap", CallAnswer::Reaped(Reaped::default()));
        play.answer("view", CallAnswer::Seen(seen(&[ME, OTHER])));
        play.contest(other(OTHER, 9_000));
        assert!(play.says(|said| matches!(said, Output::Started { others: 1, .. })));
        play
    }

    fn leading(epoch: i64) -> Self {
        let mut play = Self::started();
        play.wait(9_300).answer("view", CallAnswer::Seen(seen(&[ME, OTHER])));
        play.contest(Standing::Taken { epoch, left_ms: 20_000 });
        assert_eq!(play.changes(), [(Change::Gained, epoch)]);
        play
    }

    fn now(&self) -> Boot {
        Boot(self.now_ms * 1_000_000)
    }

    fn tell(&mut self, input: Input) -> &mut Self {
        self.said.clear();
        let now = self.now();
        self.coordinator.handle(now, input, &mut self.said);
        for said in &self.said {
            if let Output::Call { call, what } = said {
                self.calls.push((*call, what.clone()));
            }
        }
        self
    }

    fn register(&mut self, id: MemberId, retired: Vec<MemberId>) -> &mut Self {
        self.tell(Input::Registered { id, no: 1, server: SERVER, retired })
    }

    fn wait(&mut self, ms: u64) -> &mut Self {
        self.now_ms += ms;
        self.tell(Input::Wake)
    }

    fn call(&mut self, name: &str) -> Option<(u64, Call)> {
        let place = self.calls.iter().position(|(_, call)| call.name() == name)?;
        Some(self.calls.remove(place))
    }

    fn answer(&mut self, name: &str, answer: CallAnswer) -> &mut Self {
        let calls = format!("{:?}", self.calls);
        let (call, _) = self.call(name).unwrap_or_else(|| panic!("no {name} under way, but {calls}"));
        self.tell(Input::Done { call, result: Ok(answer) })
    }

    fn fail(&mut self, name: &str) -> &mut Self {
        let (call, _) = self.call(name).expect("a call under way");
        self.tell(Input::Done { call, result: Err(DbError::new(Class::Unavailable, "away")) })
    }

    fn contest(&mut self, is: Standing) -> &mut Self {
        self.answer("contest", CallAnswer::Contested(vec![Contested { name: SCHEDULER.into(), is }]))
    }

    fn changes(&self) -> Vec<(Change, i64)> {
        let change = |said: &Output| match said {
            Output::Leadership { leadership, change } => Some((*change, leadership.epoch)),
            _ => None,
        };
        self.said.iter().filter_map(change).collect()
    }

    fn says(&self, is_it: impl Fn(&Output) -> bool) -> bool {
        self.said.iter().any(is_it)
    }

    fn says_call(&self, name: &str) -> bool {
        self.says(|said| matches!(said, Output::Call { what, .. } if what.name() == name))
    }
}

fn seen(members: &[MemberId]) -> Seen {
    let member = |id: &MemberId| MemberSeen {
        id: *id,
        host: "h".into(),
        no: 1,
        left_ms: 20_000,
        beat_age_ms: 0,
        pid: 1,
        schema_version: 1,
    };
    let leaders = vec![LeaderSeen { name: SCHEDULER.into(), epoch: 1, holder: None, left_ms: None }];
    Seen { members: members.iter().map(member).collect(), leaders, open_from: 40, ..Seen::default() }
}

fn other(holder: MemberId, left_ms: i64) -> Standing {
    Standing::Other { epoch: 3, holder: Some(holder), left_ms: Some(left_ms) }
}

#[test]
fn a_start_listens_reaps_looks_and_contests_in_this_order() {
    let mut play = Play::new(Mode::Shared);
    play.register(ME, vec![]);
    assert!(play.calls.is_empty(), "waits for notices to be heard");
    play.tell(Input::Listening);
    assert!(matches!(&play.calls[..], [(_, Call::Reap { known_dead, .. })] if *known_dead == [MemberId(3)]));
    play.answer("reap", CallAnswer::Reaped(Reaped::default()));
    assert!(matches!(&play.calls[..], [(_, Call::View { open_from: 0, .. })]));
    play.answer("view", CallAnswer::Seen(seen(&[ME, OTHER])));
    assert!(
        play.says(|said| matches!(said, Output::DropAllCaches)),
        "what was cached before the first look is not known"
    );
    let expected = vec![(SCHEDULER, 0)];
    let floor = 2 << 32;
    assert!(matches!(
        &play.calls[..],
        [(_, Call::Contest { wanted, epoch_min, .. })] if *wanted == expected && *epoch_min == floor
    ));
    play.contest(Standing::Taken { epoch: 4, left_ms: 20_000 });
    assert!(play.says(|said| matches!(said, Output::Started { others: 1, .. })));
}

#[test]
fn a_start_waits_five_seconds_for_notices_and_no_longer() {
    let mut play = Play::new(Mode::Shared);
    play.register(ME, vec![]);
    assert!(play.wait(4_999).calls.is_empty());
    assert!(play.wait(1).says_call("reap"));
    // A reap that fails does not end the start, and is done later.
    play.fail("reap");
    assert!(play.says_call("view"));
    play.answer("view", CallAnswer::Seen(seen(&[ME])));
    play.contest(other(OTHER, 20_000));
    assert!(play.wait(5_000).says_call("reap"), "though it does not lead");
}

#[test]
fn each_step_of_a_beat_fails_alone() {
    let mut play = Play::started();
    play.wait(5_000).fail("view");
    assert!(play.says(|said| matches!(said, Output::RunPeriodic)));
    assert!(play.says_call("contest"));
    play.fail("contest");
    assert!(play.says(|said| matches!(said, Output::BeatDone)));
    let next = play.coordinator.next_deadline().expect("the next beat");
    assert!(next <= play.now().plus(Duration::from_secs(5)), "without backoff");
}

#[test]
fn a_stand_by_contests_when_the_holders_lease_ends() {
    let mut play = Play::started();
    // 9 s were left; the next beat would be at 10 s or later.
    for _ in 0..2 {
        play.wait(4_400);
        if play.says_call("view") {
            play.answer("view", CallAnswer::Seen(seen(&[ME, OTHER])));
            let left = 9_000 - (play.now_ms as i64 - 1_000_000);
            play.contest(other(OTHER, left));
        }
    }
    play.wait(400);
    assert!(play.says_call("contest"), "9.2 s after the look");
    // Locked by a guarded transaction of its holder: soon again.
    play.contest(other(OTHER, -10));
    play.wait(200);
    assert!(play.says_call("contest"));
}

#[test]
fn a_leader_that_cannot_renew_is_suspended_resumes_or_loses_by_its_own_clock() {
    let mut play = Play::leading(5);
    let gained = play.now_ms;
    play.answer("reap", CallAnswer::Reaped(Reaped::default()));
    play.wait(5_000).answer("view", CallAnswer::Seen(seen(&[ME])));
    play.fail("contest");
    assert_eq!(play.changes(), [(Change::Suspended, 5)]);
    assert_eq!(play.coordinator.leads(SCHEDULER, play.now()), None);
    play.wait(5_000).answer("view", CallAnswer::Seen(seen(&[ME])));
    let (_, Call::Contest { wanted, .. }) = play.calls.last().cloned().expect("a contest") else { panic!() };
    assert_eq!(wanted, [(SCHEDULER, 5)]);
    play.contest(Standing::Renewed { left_ms: 20_000 });
    assert_eq!(play.changes(), [(Change::Resumed, 5)]);
    let renewed = play.now_ms;
    assert!(renewed > gained);
    loop {
        let deadline = play.coordinator.next_deadline().expect("a deadline");
        play.now_ms = deadline.0.div_ceil(1_000_000);
        play.tell(Input::Wake);
        if play.call("view").is_some() {
            // No answer: the limit ends it.
        }
        if !play.changes().is_empty() {
            break;
        }
    }
    assert_eq!(play.changes(), [(Change::Suspended, 5)]);
    while play.changes() != [(Change::Lost, 5)] {
        let deadline = play.coordinator.next_deadline().expect("a deadline");
        play.now_ms = deadline.0.div_ceil(1_000_000);
        play.tell(Input::Wake);
    }
    assert_eq!(play.now_ms, renewed + 17_000, "a margin before the lease ends");
}

#[test]
fn a_leadership_that_is_anothers_is_lost_and_contested_anew() {
    let mut play = Play::leading(5);
    play.answer("reap", CallAnswer::Reaped(Reaped::default()));
    play.wait(5_000).answer("view", CallAnswer::Seen(seen(&[ME])));
    play.contest(other(OTHER, 15_000));
    assert_eq!(play.changes(), [(Change::Lost, 5)]);
    // Expired by the database, and nobody's yet: taken anew at once.
    let mut play = Play::leading(5);
    play.answer("reap", CallAnswer::Reaped(Reaped::default()));
    play.wait(5_000).answer("view", CallAnswer::Seen(seen(&[ME])));
    play.contest(Standing::Other { epoch: 5, holder: Some(ME), left_ms: Some(-1) });
    assert_eq!(play.changes(), [(Change::Lost, 5)]);
    assert!(play.wait(0).says_call("contest") || play.calls.iter().any(|(_, call)| call.name() == "contest"));
}

#[test]
fn a_take_whose_answer_was_lost_is_found_again_in_its_epoch() {
    let mut play = Play::started();
    play.wait(9_300).fail("contest");
    play.wait(5_000);
    if play.says_call("view") {
        play.answer("view", CallAnswer::Seen(seen(&[ME, OTHER])));
    }
    play.contest(Standing::Other { epoch: 6, holder: Some(ME), left_ms: Some(15_000) });
    assert_eq!(play.changes(), []);
    play.wait(0);
    let (_, Call::Contest { wanted, .. }) = play.calls.last().cloned().expect("a contest at once") else { panic!() };
    assert_eq!(wanted, [(SCHEDULER, 6)]);
    play.contest(Standing::Renewed { left_ms: 20_000 });
    assert_eq!(play.changes(), [(Change::Gained, 6)]);
}

#[test]
fn a_leadership_is_not_believed_for_longer_than_the_identity() {
    let mut play = Play::leading(5);
    let until = play.now().plus(Duration::from_secs(2));
    play.tell(Input::Valid { until });
    assert!(play.coordinator.leads(SCHEDULER, play.now()).is_some());
    assert_eq!(play.coordinator.next_deadline(), Some(until));
    assert_eq!(play.coordinator.leads(SCHEDULER, until), None);
    assert_eq!(play.wait(2_000).changes(), [(Change::Lost, 5)]);
}

#[test]
fn the_leader_reaps_at_its_gain_and_when_somebody_vanishes_or_leaves() {
    let mut play = Play::leading(5);
    assert!(play.says_call("reap"));
    play.answer("reap", CallAnswer::Reaped(Reaped::default()));
    play.tell(Input::Notice(Notice::gone(OTHER)));
    assert!(play.says_call("reap") && play.says_call("view"), "and a beat at once");
    play.answer("reap", CallAnswer::Reaped(Reaped { has_more: true, ..Reaped::default() }));
    assert!(play.says_call("reap"), "there are more");
    play.answer("reap", CallAnswer::Reaped(Reaped::default()));
    play.answer("view", CallAnswer::Seen(seen(&[ME])));
    assert!(play.says(|said| matches!(said, Output::Vanished(ids) if *ids == [OTHER])));
    assert!(play.says_call("reap"));
    // One that does not lead leaves it alone.
    let mut play = Play::started();
    play.tell(Input::Notice(Notice::gone(OTHER)));
    assert!(!play.says_call("reap") && play.says_call("contest") && play.says_call("view"));
}

#[test]
fn a_fence_ends_leadership_and_leaves_beats_only_the_own_work() {
    let mut play = Play::leading(5);
    play.tell(Input::Fenced);
    assert_eq!(play.changes(), [(Change::Lost, 5)]);
    assert!(play.says(|said| matches!(said, Output::DropAllCaches)));
    play.calls.clear();
    play.wait(5_000);
    assert!(play.says(|said| matches!(said, Output::RunPeriodic)) && play.calls.is_empty(), "{:?}", play.calls);
    // What the old identity was told is nobody's.
    play.register(MemberId(8), vec![ME]);
    assert!(matches!(&play.calls[0], (_, Call::Tidy { me: MemberId(8), retired }) if *retired == [ME]));
    play.answer("tidying", CallAnswer::Tidied(Tidied { requests: 1, ..Tidied::default() }));
    assert!(play.says(|said| matches!(said, Output::Send(notice) if *notice == Notice::gone(ME))));
    assert!(play.says(|said| matches!(said, Output::Send(notice) if *notice == Notice::request(MemberId(8)))));
    assert!(play.says_call("taking of requests"));
}

#[test]
fn after_an_outage_the_first_leader_lets_the_others_register_first() {
    let mut play = Play::started();
    play.tell(Input::Fenced);
    play.calls.clear();
    play.register(MemberId(8), vec![]);
    let registered = play.now_ms;
    play.answer("view", CallAnswer::Seen(seen(&[MemberId(8)])));
    play.contest(Standing::Taken { epoch: 9, left_ms: 20_000 });
    assert!(!play.says_call("reap"));
    while !play.says_call("reap") {
        let deadline = play.coordinator.next_deadline().expect("a deadline");
        play.now_ms = play.now_ms.max(deadline.0.div_ceil(1_000_000));
        play.tell(Input::Wake);
        if play.call("view").is_some() {
            // It is still looked at; nobody answers.
        }
    }
    assert_eq!(play.now_ms - registered, 5_000, "a beat");
}

#[test]
fn requests_are_taken_at_once_by_notice_and_carried_out_once() {
    let mut play = Play::started();
    play.tell(Input::Notice(Notice::request(OTHER)));
    assert!(play.calls.is_empty(), "not ours");
    play.tell(Input::Notice(Notice::request(ME)));
    let request = Request { id: 4, kind: "stop".into(), asker: OTHER, payload: "r1".into() };
    play.answer("taking of requests", CallAnswer::Requests(Some(vec![request])));
    assert!(play.says(|said| matches!(said, Output::Requests(requests) if requests.len() == 1)));
    play.tell(Input::Notice(Notice::request(ME)));
    assert!(matches!(&play.calls[..], [(_, Call::TakeRequests { in_hand, .. })] if *in_hand == [4]));
    play.answer("taking of requests", CallAnswer::Requests(Some(vec![])));
    play.tell(Input::RequestDone { id: 4 }).tell(Input::Notice(Notice::request(ME)));
    assert!(matches!(&play.calls[..], [(_, Call::TakeRequests { in_hand, .. })] if in_hand.is_empty()));
}

#[test]
fn cache_changes_are_asked_for_from_the_oldest_open_transaction_of_the_look_before() {
    let mut play = Play::started();
    play.wait(5_000);
    assert!(matches!(&play.calls[..], [(_, Call::View { open_from: 40, .. })]));
    let changed = Seen { cache_changes: vec!["price".into()], open_from: 50, ..seen(&[ME, OTHER]) };
    play.answer("view", CallAnswer::Seen(changed));
    assert!(play.says(|said| matches!(said, Output::DropCaches(names) if *names == ["price"])));
    play.contest(other(OTHER, 20_000));
    // Away for longer than changes are kept.
    play.now_ms += 50_000;
    play.tell(Input::Wake);
    assert!(play.calls.iter().any(|(_, call)| matches!(call, Call::View { open_from: 50, .. })));
    play.answer("view", CallAnswer::Seen(seen(&[ME, OTHER])));
    assert!(play.says(|said| matches!(said, Output::DropAllCaches)));
}

#[test]
fn a_stop_ends_work_releases_deregisters_and_says_so_in_this_order() {
    let mut play = Play::leading(5);
    play.calls.clear();
    play.tell(Input::Stop);
    assert!(matches!(play.said[0], Output::StopRenewal));
    assert_eq!(play.changes(), [(Change::Lost, 5)]);
    assert!(play.calls.is_empty(), "work first");
    play.tell(Input::LeaderWorkStopped);
    let held = Leadership { name: SCHEDULER, holder: ME, epoch: 5 };
    assert!(matches!(&play.calls[..], [(_, Call::Release { held: it })] if *it == [held]));
    // An error in one step does not skip the next.
    play.fail("release of leadership");
    play.fail("end of the registration");
    assert!(
        matches!(&play.said[..], [Output::Failed { .. }, Output::Send(notice), Output::Stopped] if *notice == Notice::gone(ME))
    );
    assert!(play.tell(Input::Stop).said.is_empty());
    assert_eq!(play.coordinator.next_deadline(), None);
}

#[test]
fn no_late_answer_or_tick_leads_after_the_stop() {
    let mut play = Play::started();
    play.wait(9_300);
    let (call, _) = play.call("contest").expect("a contest");
    play.tell(Input::Stop);
    let taken = Contested { name: SCHEDULER.into(), is: Standing::Taken { epoch: 7, left_ms: 20_000 } };
    play.tell(Input::Done { call, result: Ok(CallAnswer::Contested(vec![taken])) });
    assert_eq!(play.changes(), []);
    play.answer("end of the registration", CallAnswer::Deregistered(vec![]));
    assert!(play.says(|said| matches!(said, Output::Stopped)));
    assert!(play.wait(60_000).said.is_empty());
}

#[test]
fn what_a_member_cannot_do_it_neither_contests_nor_keeps() {
    let mut play = Play::leading(5);
    play.calls.clear();
    play.tell(Input::MayLead { name: SCHEDULER, is_able: false });
    assert_eq!(play.changes(), [(Change::Lost, 5)]);
    play.answer("release of leadership", CallAnswer::Released);
    play.wait(5_000).answer("view", CallAnswer::Seen(seen(&[ME])));
    assert!(play.calls.is_empty(), "{:?}", play.calls);
    play.tell(Input::MayLead { name: DISPATCH, is_able: true });
    assert!(matches!(&play.calls[..], [(_, Call::Contest { wanted, .. })] if *wanted == [(DISPATCH, 0)]));
}

#[test]
fn the_only_process_reaps_who_was_before_it_seizes_leadership_and_looks_no_more() {
    let mut play = Play::new(Mode::Sole);
    play.register(ME, vec![]);
    play.answer("view", CallAnswer::Seen(seen(&[ME, OTHER])));
    assert!(matches!(&play.calls[..], [(_, Call::Reap { known_dead, .. })] if *known_dead == [OTHER]));
    play.answer("reap", CallAnswer::Reaped(Reaped::default()));
    play.answer("seizure of leadership", CallAnswer::Seized(vec![(SCHEDULER.into(), 3)]));
    assert_eq!(play.changes(), [(Change::Gained, 3)]);
    play.calls.clear();
    play.wait(1_000_000);
    assert!(play.calls.iter().all(|(_, call)| call.name() == "taking of requests"), "{:?}", play.calls);
    assert!(play.coordinator.leads(SCHEDULER, play.now()).is_some());
}

#[test]
fn without_coordination_a_process_leads_until_it_stops_and_writes_nothing() {
    let mut play = Play::new(Mode::Alone);
    play.register(ME, vec![]);
    assert_eq!(play.changes(), [(Change::Gained, 0)]);
    play.wait(100_000);
    assert!(play.says(|said| matches!(said, Output::RunPeriodic)));
    play.tell(Input::Stop);
    assert_eq!(play.changes(), [(Change::Lost, 0)]);
    play.tell(Input::LeaderWorkStopped);
    assert!(play.says(|said| matches!(said, Output::Stopped)) && play.calls.is_empty());
    assert_eq!(play.coordinator.leads(SCHEDULER, play.now()), None);
}
