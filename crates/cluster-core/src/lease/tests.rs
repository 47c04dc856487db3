//! Scripts of the agent: what it is told, second by second, and what it says.

use std::time::Duration;

use database_core::{Class, DbError, Step, Value};

use super::{
    Clock, ConnectError, FenceReason, LeaseAgent, LeaseAnswer, LeaseCall, LeaseInput, LeaseOutput, LeaseSettings,
    Process, Refusal,
};
use crate::{Boot, MemberId, Mode, Now, Server, Times};

const SERVER: Server = Server { system: 1, timeline: Some(1) };
const LATER: Server = Server { system: 1, timeline: Some(2) };

/// An agent, the time, and the last numbers that it named.
struct Play {
    agent: LeaseAgent,
    now_ms: u64,
    wall_step_ms: i64,
    call: u64,
    said: Vec<LeaseOutput>,
}

impl Play {
    fn new(mode: Mode) -> Self {
        let process =
            Process { host: "h".into(), boot_id: "b".into(), pid: 7, program: "1.0".into(), schema_version: 3 };
        let settings = LeaseSettings { times: Times::default(), mode, process };
        Self {
            agent: LeaseAgent::new(settings, [1, 2, 3, 4]),
            now_ms: 1_000_000,
            wall_step_ms: 0,
            call: 0,
            said: Vec::new(),
        }
    }

    /// Registered at time zero of the script, with the first renewal due within 5 s.
    fn registered() -> (Self, MemberId) {
        let mut play = Self::new(Mode::Shared);
        play.tell(LeaseInput::Start);
        play.connect(SERVER);
        let id = play.answer_registration();
        (play, id)
    }

    fn tell(&mut self, input: LeaseInput) -> &mut Self {
        let now = Now { boot: Boot(self.now_ms * 1_000_000), wall_ms: self.now_ms as i64 + self.wall_step_ms };
        self.said.clear();
        self.agent.handle(now, input, &mut self.said);
        for said in &self.said {
            if let LeaseOutput::Connect { call } | LeaseOutput::Call { call, .. } = said {
                self.call = *call;
            }
        }
        self
    }

    fn wait(&mut self, ms: u64) -> &mut Self {
        self.now_ms += ms;
        self.tell(LeaseInput::Wake)
    }

    /// Wakes when the agent wants to.
    fn sleep(&mut self) -> &mut Self {
        let deadline = self.agent.next_deadline().expect("a deadline").0;
        self.now_ms = self.now_ms.max(deadline.div_ceil(1_000_000));
        self.tell(LeaseInput::Wake)
    }

    fn connect(&mut self, server: Server) -> &mut Self {
        let call = self.call;
        self.tell(LeaseInput::Connected { call, server })
    }

    fn answer(&mut self, answer: LeaseAnswer) -> &mut Self {
        let call = self.call;
        self.tell(LeaseInput::Done { call, result: Ok(answer) })
    }

    fn fail(&mut self, class: Class) -> &mut Self {
        let call = self.call;
        self.tell(LeaseInput::Done { call, result: Err(DbError::new(class, "no")) })
    }

    fn renewed(&mut self, left_ms: i64) -> &mut Self {
        let db_ms = self.now_ms as i64;
        self.answer(LeaseAnswer::Renewed { left_ms, db_ms })
    }

    fn answer_registration(&mut self) -> MemberId {
        let id = self.registration().expect("a registration");
        let db_ms = self.now_ms as i64;
        self.answer(LeaseAnswer::Registered { no: 1, left_ms: 20_000, db_ms });
        id
    }

    fn registration(&self) -> Option<MemberId> {
        self.said.iter().find_map(|said| match said {
            LeaseOutput::Call { what: LeaseCall::Register { id, .. }, .. } => Some(*id),
            _ => None,
        })
    }

    fn renewal(&self) -> Option<MemberId> {
        self.said.iter().find_map(|said| match said {
            LeaseOutput::Call { what: LeaseCall::Renew { id, .. }, .. } => Some(*id),
            _ => None,
        })
    }

    fn fence(&self) -> Option<(MemberId, MemberId, FenceReason, bool)> {
        self.said.iter().find_map(|said| match said {
            LeaseOutput::Fenced { retired, next, reason, clocks_jumped } => {
                Some((*retired, *next, *reason, *clocks_jumped))
            }
            _ => None,
        })
    }

    fn says(&self, is_it: impl Fn(&LeaseOutput) -> bool) -> bool {
        self.said.iter().any(is_it)
    }

    fn valid_until_ms(&self) -> Option<u64> {
        self.said.iter().find_map(|said| match said {
            LeaseOutput::Valid { until } => Some(until.0 / 1_000_000),
            _ => None,
        })
    }
}

#[test]
fn work_may_start_once_registered_until_a_margin_before_the_lease_ends() {
    let mut play = Play::new(Mode::Shared);
    play.tell(LeaseInput::Start);
    assert!(play.says(|said| matches!(said, LeaseOutput::Connect { .. })));
    play.connect(SERVER);
    let sent = play.now_ms;
    play.now_ms += 1_500;
    let id = play.answer_registration();
    let is_registered = |said: &LeaseOutput| matches!(said, LeaseOutput::Registered { id: it, .. } if *it == id);
    assert!(play.says(is_registered));
    assert_eq!(play.valid_until_ms(), Some(sent + 17_000), "from the sending, not from the answer");
}

#[test]
fn a_second_start_or_stop_does_nothing() {
    let (mut play, _) = Play::registered();
    assert!(play.tell(LeaseInput::Start).said.is_empty());
    play.tell(LeaseInput::Stop);
    assert!(play.says(|said| matches!(said, LeaseOutput::Stopped)));
    assert!(play.tell(LeaseInput::Stop).said.is_empty());
    assert!(play.wait(100_000).said.is_empty() && play.agent.next_deadline().is_none());
}

#[test]
fn renewals_come_within_their_period_and_move_the_deadline_from_their_sending() {
    let (mut play, id) = Play::registered();
    let start = play.now_ms;
    play.sleep();
    assert_eq!(play.renewal(), Some(id));
    assert!((start + 4_000..=start + 5_000).contains(&play.now_ms), "{}", play.now_ms - start);
    let sent = play.now_ms;
    play.now_ms += 900;
    play.renewed(20_000);
    assert_eq!(play.valid_until_ms(), Some(sent + 17_000));
    // The database gave less than asked for.
    play.sleep();
    let sent = play.now_ms;
    play.renewed(12_000);
    assert_eq!(play.valid_until_ms(), Some(sent + 9_000));
}

#[test]
fn a_failed_renewal_drops_the_connection_and_comes_again_at_the_usual_time() {
    let (mut play, id) = Play::registered();
    play.sleep().fail(Class::Unknown);
    assert!(play.says(|said| matches!(said, LeaseOutput::DropConnection)));
    assert!(play.fence().is_none());
    let failed = play.now_ms;
    play.sleep();
    assert!(play.says(|said| matches!(said, LeaseOutput::Connect { .. })));
    assert!((failed + 3_900..=failed + 5_000).contains(&play.now_ms), "no backoff: {}", play.now_ms - failed);
    play.connect(SERVER);
    assert_eq!(play.renewal(), Some(id));
}

#[test]
fn an_answer_that_does_not_come_is_given_up_and_not_read_later() {
    let (mut play, _) = Play::registered();
    play.sleep();
    let call = play.call;
    play.wait(2_000);
    assert!(play.says(|said| matches!(said, LeaseOutput::DropConnection)));
    play.tell(LeaseInput::Done { call, result: Ok(LeaseAnswer::Renewed { left_ms: 20_000, db_ms: 0 }) });
    assert_eq!(play.valid_until_ms(), None);
}

#[test]
fn no_row_and_an_expired_one_fence_at_once_and_say_which_it_was() {
    for (answer, expected) in [
        (LeaseAnswer::Expired, FenceReason::ExpiredByDatabase),
        (LeaseAnswer::Missing, FenceReason::RegistrationMissing),
    ] {
        let (mut play, id) = Play::registered();
        play.sleep().answer(answer);
        let (retired, next, reason, _) = play.fence().expect("a fence");
        assert_eq!((retired, reason), (id, expected));
        assert_ne!(next, id, "a fresh identity");
        // Registered anew at once, over the same connection.
        assert_eq!(play.registration(), Some(next));
    }
}

#[test]
fn the_own_clock_fences_before_anything_else_is_done() {
    let (mut play, id) = Play::registered();
    // Stopped for an hour; the first code to run is not the timer.
    play.now_ms += 3_600_000;
    play.tell(LeaseInput::Beat);
    assert!(
        matches!(&play.said[0], LeaseOutput::Fenced { retired, reason: FenceReason::LateByOwnClock, .. } if *retired == id)
    );
    assert!(matches!(&play.said[1], LeaseOutput::StopExecutions { retired } if *retired == id));
}

#[test]
fn a_renewal_that_was_accepted_is_of_no_use_after_the_deadline() {
    let (mut play, _) = Play::registered();
    play.sleep();
    // Sent in time; the answer comes when all trust is over.
    play.now_ms += 30_000;
    play.renewed(20_000);
    assert!(matches!(play.fence(), Some((_, _, FenceReason::LateByOwnClock, _))));
}

#[test]
fn nothing_starts_before_what_ran_has_stopped() {
    let (mut play, id) = Play::registered();
    play.sleep().answer(LeaseAnswer::Expired);
    let next = play.answer_registration();
    assert!(!play.says(|said| matches!(said, LeaseOutput::Registered { .. } | LeaseOutput::Valid { .. })));
    // It renews meanwhile, and says when the margin is over.
    play.wait(3_000);
    assert!(play.says(|said| matches!(said, LeaseOutput::StopLate { retired } if *retired == id)));
    play.tell(LeaseInput::ExecutionsStopped { retired: id });
    let said = play.said.iter().find_map(|said| match said {
        LeaseOutput::Registered { id, retired, .. } => Some((*id, retired.clone())),
        _ => None,
    });
    assert_eq!(said, Some((next, vec![id])), "with what is to be tidied");
}

#[test]
fn a_registration_of_unknown_result_is_abandoned_for_another() {
    let mut play = Play::new(Mode::Shared);
    play.tell(LeaseInput::Start).connect(SERVER);
    let first = play.registration().expect("a registration");
    play.fail(Class::Unknown);
    assert!(play.says(|said| matches!(said, LeaseOutput::Abandoned { id, .. } if *id == first)));
    play.sleep().connect(SERVER);
    assert!(play.registration().is_some_and(|second| second != first));
    // Nothing was committed for certain: the identity stays.
    let (mut play, _) = (Play::new(Mode::Shared), ());
    play.tell(LeaseInput::Start).connect(SERVER);
    let first = play.registration();
    play.fail(Class::Locked).sleep().connect(SERVER);
    assert_eq!(play.registration(), first);
}

#[test]
fn registering_anew_backs_off_from_a_beat_to_a_lease() {
    let mut play = Play::new(Mode::Shared);
    play.tell(LeaseInput::Start);
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let call = play.call;
        let error = ConnectError::Database(DbError::new(Class::Unavailable, "refused"));
        play.tell(LeaseInput::NotConnected { call, error });
        let begin = play.now_ms;
        while !play.says(|said| matches!(said, LeaseOutput::Connect { .. })) {
            play.sleep();
        }
        pauses.push((play.now_ms - begin) / 1_000);
    }
    let expected = [(4, 5), (8, 10), (16, 20), (16, 20), (16, 20)];
    for (pause, (low, high)) in pauses.iter().zip(expected) {
        assert!((low..=high).contains(pause), "{pauses:?}");
    }
}

#[test]
fn an_identity_that_is_not_registered_within_a_lease_is_given_up() {
    let mut play = Play::new(Mode::Shared);
    play.tell(LeaseInput::Start);
    let call = play.call;
    let error = ConnectError::Schema("the database's schema 9 is newer than 3, which this program knows".into());
    play.tell(LeaseInput::NotConnected { call, error });
    assert!(play.says(|said| matches!(said, LeaseOutput::Refused { refusal: Refusal::Schema(_), .. })));
    play.wait(20_000);
    assert!(play.says(|said| matches!(said, LeaseOutput::Abandoned { .. })));
}

#[test]
fn another_database_fences_at_the_reconnect() {
    let (mut play, id) = Play::registered();
    // The pool has reached a server that was promoted: the lease's own connection looks.
    play.tell(LeaseInput::ServerSeen(LATER));
    assert!(play.says(|said| matches!(said, LeaseOutput::DropConnection)));
    play.connect(LATER);
    assert!(matches!(play.fence(), Some((retired, _, FenceReason::DatabaseChanged, _)) if retired == id));
    // It was an old one that still answers: nothing happens.
    let (mut play, id) = Play::registered();
    play.tell(LeaseInput::ServerSeen(LATER)).connect(SERVER);
    assert_eq!((play.fence(), play.renewal()), (None, Some(id)));
}

#[test]
fn clocks_that_jump_are_told_and_do_not_fence_by_themselves() {
    let (mut play, _) = Play::registered();
    play.sleep();
    play.wall_step_ms = -50_000;
    play.renewed(20_000);
    assert!(play.said.iter().any(
        |said| matches!(said, LeaseOutput::ClockWarning { clock: Clock::Wall, by_ms } if (-50_100..-49_900).contains(by_ms))
    ));
    assert!(play.fence().is_none());
    // The database's clock stepped: the fence that follows says so.
    play.sleep();
    let db_ms = play.now_ms as i64 + 30_000;
    play.answer(LeaseAnswer::Renewed { left_ms: 20_000, db_ms });
    assert!(play.says(|said| matches!(said, LeaseOutput::ClockWarning { clock: Clock::Database, .. })));
    play.sleep().answer(LeaseAnswer::Expired);
    assert!(matches!(play.fence(), Some((.., true))));
}

#[test]
fn another_lease_than_the_stored_one_is_refused_and_tried_again() {
    let mut play = Play::new(Mode::Shared);
    play.tell(LeaseInput::Start).connect(SERVER);
    play.answer(LeaseAnswer::LeaseDiffers { stored: Duration::from_secs(30) });
    let text = play.said.iter().find_map(|said| match said {
        LeaseOutput::Refused { refusal, .. } => Some(refusal.to_string()),
        _ => None,
    });
    assert!(text.is_some_and(|text| text.contains("20s") && text.contains("30s")));
    play.sleep();
    assert!(play.registration().is_some());
}

#[test]
fn the_lease_is_changed_while_nobody_else_lives_and_renewed_at_once() {
    let (mut play, _) = Play::registered();
    let refused = |said: &LeaseOutput| matches!(said, LeaseOutput::LeaseSet { result: Err(Refusal::Times(_)), .. });
    assert!(play.tell(LeaseInput::SetLease(Duration::from_secs(2))).says(refused));
    play.tell(LeaseInput::SetLease(Duration::from_secs(60)));
    play.answer(LeaseAnswer::LeaseSet(false));
    assert!(play.says(|said| matches!(said, LeaseOutput::LeaseSet { result: Err(Refusal::OthersLive), .. })));
    play.tell(LeaseInput::SetLease(Duration::from_secs(60)));
    play.answer(LeaseAnswer::LeaseSet(true));
    assert!(play.says(|said| matches!(said, LeaseOutput::LeaseSet { result: Ok(()), .. })));
    assert!(play.renewal().is_some());
    let sent = play.now_ms;
    play.renewed(60_000);
    assert_eq!(play.valid_until_ms(), Some(sent + 57_000));
}

#[test]
fn the_only_process_registers_once_and_for_ever() {
    let mut play = Play::new(Mode::Sole);
    play.tell(LeaseInput::Start).connect(Server::default());
    play.answer_registration();
    assert!(play.says(|said| matches!(said, LeaseOutput::Valid { until } if *until == Boot::NEVER)));
    assert_eq!(play.agent.next_deadline(), None);
    assert!(play.wait(1_000_000_000).said.is_empty());
}

#[test]
fn the_registration_compares_the_stored_lease_before_it_writes() {
    let what = LeaseCall::Register {
        id: MemberId(5),
        process: Process { host: "h".into(), boot_id: "b".into(), pid: 1, program: "p".into(), schema_version: 1 },
        lease: Duration::from_secs(20),
    };
    let mut script = what.script();
    assert!(script.is_transaction());
    let ids = |step: &Step<LeaseAnswer>| match step {
        Step::Query(sql, _) => sql.id,
        Step::Done(_) => "done",
    };
    assert_eq!(ids(&script.step(None)), "member.settle_lease");
    assert_eq!(ids(&script.step(Some(Ok(database_core::Answer::default())))), "member.read_lease");
    let stored = vec![database_core::Row::from(vec![Value::Int(30_000)])];
    let Step::Done(Ok(database_core::Verdict::RollBack(answer))) = script.step(Some(Ok(stored.into()))) else {
        panic!()
    };
    assert_eq!(answer, LeaseAnswer::LeaseDiffers { stored: Duration::from_secs(30) });
}
