//! Forged histories of an owner: each kind of broken promise is caught, and the honest ones pass.

use tubes_link::{Link, Outcome, Reader, ToOwner, Writer};

use super::{Context, Judge, Said, Who};
use crate::model::{Model, Moment};

const MS: u64 = 1_000_000;
const A: Who = (0, 1);
const B: Who = (1, 1);
const C: Who = (1, 2);

/// An owner of which only the messages are known.
struct Play {
    judge: Judge,
    now: Moment,
    next_count: u64,
    is_draining: bool,
    /// Where its log puts jobs.
    segment: Option<u32>,
}

fn raw(message: &ToOwner<'_>) -> (u8, Vec<u8>) {
    let link = Link { own_slot: 0, own_generation: 1, peer_slot: 0, peer_generation: 1 };
    let mut writer = Writer::new(link);
    message.write(1, &mut writer);
    writer.end_turn(None);
    let mut reader = Reader::new(link);
    reader.push(writer.sendable());
    let (head, payload) = reader.next().expect("a message").expect("a whole message");
    (head.kind, payload.to_vec())
}

fn reply(bytes: &str) -> Said {
    let outcome = if bytes == "NOT_FOUND\r\n" { Outcome::NotFound } else { Outcome::Done };
    Said::Reply { outcome, bytes: bytes.into() }
}

impl Play {
    fn new() -> Play {
        let judge = Judge::new(Model::of_owner(1_000, true));
        let now = Moment { boot_ns: 1_000 * MS, wall_ms: 1_000 };
        Play { judge, now, next_count: 1, is_draining: false, segment: None }
    }

    fn says(&mut self, who: Who, message: &ToOwner<'_>, said: &[(Who, Said)]) -> Result<(), String> {
        let mut context = Context { is_draining: self.is_draining, ..Context::default() };
        if matches!(message, ToOwner::Put { .. }) {
            context.id_counts.push_back(self.next_count);
            if let Some(segment) = self.segment {
                context.space = Some([true].into());
                context.placed.push_back((self.next_id(), segment));
            }
            self.next_count += 1;
        }
        let (kind, payload) = raw(message);
        self.judge.message(self.now, who, (kind, &payload), said.to_vec(), &mut context)
    }

    fn next_id(&self) -> u64 {
        self.next_count * 64 + tubes_core::partition_of(b"default") as u64
    }

    fn line(&mut self, who: Who, line: &str, answer: &str) {
        self.says(who, &ToOwner::Line(line.as_bytes()), &[(who, reply(answer))]).expect("an honest line");
    }

    /// Puts a job into `default`; its id.
    fn put(&mut self, who: Who, pri: u32, others: &[(Who, Said)]) -> Result<u64, String> {
        self.says(who, &ToOwner::Announce(b"use default"), &[])?;
        let id = self.next_id();
        let mut said = vec![(who, reply(&format!("INSERTED {id}\r\n")))];
        said.extend_from_slice(others);
        let put = ToOwner::Put { pri, delay_s: 0, ttr_s: 10, body: b"body" };
        self.says(who, &put, &said)?;
        Ok(id)
    }

    fn watches(&mut self, who: Who) {
        self.says(who, &ToOwner::Announce(b"watch default"), &[]).expect("an honest announcement");
    }

    fn reserved(&self, id: u64) -> (Outcome, Vec<u8>) {
        let outcome = Outcome::Held { id, deadline_ns: self.now.boot_ns + 10_000 * MS };
        (outcome, format!("RESERVED {id} 4\r\nbody\r\n").into_bytes())
    }

    fn served(&self, who: Who, wait: u32, id: u64) -> (Who, Said) {
        let (outcome, bytes) = self.reserved(id);
        (who, Said::Served { wait, outcome, bytes })
    }

    fn passes(&mut self, ms: u64, said: &[(Who, Said)]) -> Result<(), String> {
        self.now.boot_ns += ms * MS;
        self.now.wall_ms += ms;
        self.judge.tick(self.now);
        self.judge.rest(self.now, said.to_vec().into(), &mut Context::default())
    }

    /// A and B watch, one job is there and offered to A.
    fn with_offer() -> (Play, u64) {
        let mut play = Play::new();
        play.watches(A);
        play.watches(B);
        let id = play.put(C, 5, &[]).expect("an honest put");
        let offer = (A, Said::Offer { wait: 0, offer: 1, pri: 5, id });
        play.says(A, &ask(0, false), &[offer]).expect("an honest offer");
        (play, id)
    }
}

fn ask(wait: u32, is_poll: bool) -> ToOwner<'static> {
    ToOwner::Ask { wait, in_margin: false, is_poll }
}

fn poll(wait: u32) -> ToOwner<'static> {
    ToOwner::Reserve { wait, in_margin: false, is_poll: true }
}

fn timed_out(who: Who, wait: u32) -> (Who, Said) {
    (who, Said::Served { wait, outcome: Outcome::Refused, bytes: b"TIMED_OUT\r\n".to_vec() })
}

#[track_caller]
fn caught(result: Result<(), String>, by: &str) {
    let what = result.expect_err("the forgery passes");
    assert!(what.contains(by), "caught as {what:?}");
}

#[test]
fn an_honest_life_of_offers_passes() {
    let (mut play, id) = Play::with_offer();
    let served = play.served(A, 0, id);
    play.says(A, &ToOwner::Accept { wait: 0, offer: 1 }, &[served]).expect("an honest accept");
    play.says(B, &poll(0), &[timed_out(B, 0)]).expect("nothing is left");
    play.line(A, &format!("delete {id}"), "DELETED\r\n");
    assert_eq!((play.judge.seen.offers, play.judge.seen.accepted), (1, 1));
}

#[test]
fn an_offer_that_is_over_is_honoured() {
    let (mut play, id) = Play::with_offer();
    play.passes(250, &[(A, Said::Offer { wait: 0, offer: 2, pri: 5, id })]).expect("it is offered again");
    let served = play.served(A, 0, id);
    caught(play.says(A, &ToOwner::Accept { wait: 0, offer: 1 }, &[served]), "is no more");
}

#[test]
fn an_offer_of_another_session_is_honoured() {
    let (mut play, id) = Play::with_offer();
    play.says(B, &ask(0, false), &[(B, Said::Nothing { wait: 0, is_soon: false })]).expect("nothing else is there");
    let served = play.served(B, 0, id);
    caught(play.says(B, &ToOwner::Accept { wait: 0, offer: 1 }, &[served]), "is no more");
}

#[test]
fn an_offer_that_stands_is_refused() {
    let (mut play, _) = Play::with_offer();
    caught(play.says(A, &ToOwner::Accept { wait: 0, offer: 1 }, &[(A, Said::Gone { wait: 0 })]), "is accepted");
}

#[test]
fn a_job_that_is_offered_to_one_is_handed_to_another() {
    let (mut play, id) = Play::with_offer();
    let served = play.served(B, 0, id);
    caught(play.says(B, &poll(0), &[served]), "by the rules");
}

#[test]
fn a_job_that_one_holds_is_handed_to_another() {
    let (mut play, id) = Play::with_offer();
    let served = play.served(A, 0, id);
    play.says(A, &ToOwner::Accept { wait: 0, offer: 1 }, &[served]).expect("an honest accept");
    let served = play.served(B, 0, id);
    caught(play.says(B, &poll(0), &[served]), "by the rules");
}

#[test]
fn a_poll_hears_timed_out_while_an_offer_is_out() {
    let (mut play, _) = Play::with_offer();
    caught(play.says(B, &poll(0), &[timed_out(B, 0)]), "who could have");
}

#[test]
fn a_poll_over_several_owners_hears_nothing_while_a_job_is_free() {
    let mut play = Play::new();
    play.watches(A);
    play.put(C, 5, &[]).expect("an honest put");
    caught(play.says(A, &ask(0, true), &[(A, Said::Nothing { wait: 0, is_soon: false })]), "there is nothing");
}

#[test]
fn the_worse_job_is_offered() {
    let mut play = Play::new();
    play.watches(A);
    let worse = play.put(C, 5, &[]).expect("an honest put");
    play.put(C, 1, &[]).expect("an honest put");
    let offer = (A, Said::Offer { wait: 0, offer: 1, pri: 5, id: worse });
    caught(play.says(A, &ask(0, false), &[offer]), "by the rules");
}

#[test]
fn a_wait_that_was_withdrawn_is_served() {
    let mut play = Play::new();
    play.watches(A);
    play.says(A, &ask(0, false), &[(A, Said::Nothing { wait: 0, is_soon: false })]).expect("nothing is there");
    play.says(A, &ToOwner::Withdraw { wait: 0 }, &[(A, Said::Withdrawn { wait: 0 })]).expect("an honest end");
    let id = play.next_count * 64 + tubes_core::partition_of(b"default") as u64;
    let offer = (A, Said::Offer { wait: 0, offer: 1, pri: 5, id });
    caught(play.put(C, 5, &[offer]).map(|_| ()), "asked for nothing");
}

#[test]
fn somebody_waits_although_a_job_is_free() {
    let mut play = Play::new();
    play.watches(A);
    play.says(A, &ask(0, false), &[(A, Said::Nothing { wait: 0, is_soon: false })]).expect("nothing is there");
    caught(play.put(C, 5, &[]).map(|_| ()), "although job");
}

#[test]
fn a_lost_frontends_jobs_stay_held() {
    let (mut play, id) = Play::with_offer();
    let served = play.served(A, 0, id);
    play.says(A, &ToOwner::Accept { wait: 0, offer: 1 }, &[served]).expect("an honest accept");
    play.judge.frontend_gone(play.now, A.0, Vec::new(), &mut Context::default()).expect("an honest end");
    caught(play.says(B, &poll(0), &[timed_out(B, 0)]), "who could have");
}

#[test]
fn a_session_of_a_lost_frontend_is_still_answered() {
    let (mut play, id) = Play::with_offer();
    let served = play.served(A, 0, id);
    caught(play.judge.frontend_gone(play.now, A.0, vec![served], &mut Context::default()), "asked for nothing");
}

#[test]
fn a_job_is_taken_although_the_server_drains() {
    let mut play = Play::new();
    play.is_draining = true;
    caught(play.put(C, 5, &[]).map(|_| ()), "DRAINING");
}

#[test]
fn a_command_behind_a_wait_overtakes_it() {
    let mut play = Play::new();
    play.watches(A);
    let wait = ToOwner::Reserve { wait: 0, in_margin: false, is_poll: false };
    play.says(A, &wait, &[]).expect("it waits");
    caught(play.says(A, &ToOwner::Line(b"peek 64"), &[(A, reply("NOT_FOUND\r\n"))]), "which waits");
}

#[test]
fn a_command_behind_a_wait_is_forgotten() {
    let mut play = Play::new();
    play.watches(A);
    let wait = ToOwner::Reserve { wait: 0, in_margin: false, is_poll: false };
    play.says(A, &wait, &[]).expect("it waits");
    play.says(A, &ToOwner::Line(b"peek 64"), &[]).expect("it is kept");
    let id = play.next_count * 64 + tubes_core::partition_of(b"default") as u64;
    let served = play.served(A, 0, id);
    caught(play.put(C, 5, &[served]).map(|_| ()), "is kept although");
}

#[test]
fn a_list_of_tubes_is_partial() {
    let mut play = Play::new();
    play.line(A, "use other", "USING other\r\n");
    let names = [&0_u64.to_le_bytes()[..], &[7], b"default"].concat();
    caught(play.says(A, &ToOwner::ListTubes, &[(A, Said::Names(names))]), "the tubes are said to be");
}

#[test]
fn an_offer_lasts_too_long() {
    let (mut play, id) = Play::with_offer();
    play.says(B, &ask(0, false), &[(B, Said::Nothing { wait: 0, is_soon: false })]).expect("nothing else is there");
    play.passes(249, &[]).expect("it lasts");
    caught(play.passes(1, &[]), "although job");
    assert!(id > 0);
}

/// The job `id` as its holder A sees it.
fn stats_of_held(id: u64, segment: u32) -> (Who, Said) {
    let text = format!(
        "---\nid: {id}\ntube: \"default\"\nstate: reserved\npri: 5\nage: 0\ndelay: 0\nttr: 10\ntime-left: 10\n\
         file: {segment}\nreserves: 1\ntimeouts: 0\nreleases: 0\nburies: 0\nkicks: 0\n"
    );
    (A, reply(&format!("OK {}\r\n{text}\r\n", text.len())))
}

/// A waits, and asks in the same breath about the job that it will get.
fn asked_ahead(segment: u32) -> (Play, u64) {
    let mut play = Play::new();
    play.segment = Some(segment);
    play.watches(A);
    let id = play.next_id();
    play.says(A, &ToOwner::Reserve { wait: 0, in_margin: false, is_poll: false }, &[]).expect("an honest wait");
    play.says(A, &ToOwner::Line(format!("stats-job {id}").as_bytes()), &[]).expect("it is kept");
    (play, id)
}

#[test]
fn what_was_asked_ahead_tells_the_file_of_the_job_that_the_put_has_made() {
    let (mut play, id) = asked_ahead(3);
    let served = play.served(A, 0, id);
    play.put(B, 5, &[served, stats_of_held(id, 3)]).expect("the log has put it into the third file");
}

#[test]
fn what_was_asked_ahead_tells_another_file() {
    let (mut play, id) = asked_ahead(3);
    let served = play.served(A, 0, id);
    caught(play.put(B, 5, &[served, stats_of_held(id, 0)]).map(drop), "file: 3");
}

#[test]
fn a_put_that_the_log_has_not_placed_is_accepted() {
    let mut play = Play::new();
    play.says(A, &ToOwner::Announce(b"use default"), &[]).expect("an honest announcement");
    let id = play.next_id();
    let mut context = Context { space: Some([true].into()), id_counts: [1].into(), ..Context::default() };
    let (kind, payload) = raw(&ToOwner::Put { pri: 5, delay_s: 0, ttr_s: 10, body: b"body" });
    let said = vec![(A, reply(&format!("INSERTED {id}\r\n")))];
    caught(play.judge.message(play.now, A, (kind, &payload), said, &mut context), "placed None");
}
