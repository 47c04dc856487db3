//! One router alone, whose owners say what the test says, when it says it.

use super::{ClientId, Router, RouterOptions, Wires};
use crate::message::{Outcome, ToFrontend, ToOwner};
use crate::partition::PartitionMap;
use tubes_protocol::{Command, Line, Reply, parse_line};

const MS: u64 = 1_000_000;
/// The only client.
const ONE: ClientId = ClientId(0);
const SESSION: u64 = 1 << 32;

/// What the router has said.
#[derive(Default)]
struct Recorder {
    to_owners: Vec<(u16, String)>,
    heard: String,
    closed: Vec<ClientId>,
    wakes: usize,
}

impl Wires for Recorder {
    fn has_room(&self, _owner: u16) -> bool {
        true
    }
    fn to_owner(&mut self, owner: u16, _session: u64, message: &ToOwner<'_>) {
        let text = match message {
            ToOwner::Line(line) => String::from_utf8_lossy(line).into_owned(),
            ToOwner::Put { body, .. } => format!("put {}", body.len()),
            ToOwner::Announce(_) => return,
            other => format!("{other:?}").split(' ').next().unwrap_or_default().to_lowercase(),
        };
        self.to_owners.push((owner, text));
    }
    fn to_client(&mut self, _client: ClientId, bytes: &[u8]) {
        self.heard.push_str(&String::from_utf8_lossy(bytes));
    }
    fn stats(&mut self, _client: ClientId) {
        self.heard.push_str("STATS\r\n");
    }
    fn close(&mut self, client: ClientId) {
        self.closed.push(client);
    }
    fn wake(&mut self, _client: ClientId) {
        self.wakes += 1;
    }
}

struct Alone {
    router: Router,
    wires: Recorder,
    now_ns: u64,
}

impl Alone {
    /// A client of a server with two owners; ids below 1000 carry no partition. Of the tubes `default` and `d` lie at
    /// owner 0, `a`, `b` and `c` at owner 1.
    fn new() -> Alone {
        let slots: Vec<u16> = (0..64).map(|partition| partition % 2).collect();
        let map = PartitionMap::new(&slots, 2, 1000).unwrap();
        let options = RouterOptions { owner_wait_ns: 5000 * MS, bodies_max: 4 };
        let mut alone = Alone { router: Router::new(options, map), wires: Recorder::default(), now_ns: 0 };
        for owner in 0..2 {
            alone.router.owner_up(0, owner, &mut alone.wires);
        }
        alone.router.connect(ONE, &mut alone.wires);
        alone
    }

    fn at(&mut self, now_ms: u64) -> &mut Self {
        self.now_ns = now_ms * MS;
        self.router.tick(self.now_ns, &mut self.wires);
        self
    }

    fn say(&mut self, line: &str) -> &mut Self {
        let Ok(Line::Command(command)) = parse_line(line.as_bytes()) else { panic!("{line:?} is no command") };
        self.command(command)
    }

    fn command(&mut self, command: Command<'_>) -> &mut Self {
        assert!(self.router.can_take(ONE), "before {command:?}");
        self.router.command(self.now_ns, ONE, command, &mut self.wires);
        self
    }

    fn put(&mut self) -> &mut Self {
        self.command(Command::Put { pri: 0, delay_s: 0, ttr_s: 60, body: b"x"[..].into() })
    }

    fn hear(&mut self, owner: u16, message: ToFrontend<'_>) -> &mut Self {
        let taken = self.router.from_owner(self.now_ns, owner, SESSION, message, &mut self.wires);
        taken.expect("it answers what was asked");
        self
    }

    fn done(&mut self, owner: u16, bytes: &str) -> &mut Self {
        self.hear(owner, ToFrontend::Reply { outcome: Outcome::Done, bytes: bytes.as_bytes() })
    }

    fn lose(&mut self, owner: u16) -> &mut Self {
        self.router.owner_down(self.now_ns, owner, &mut self.wires);
        self
    }

    fn find(&mut self, owner: u16) -> &mut Self {
        self.router.owner_up(self.now_ns, owner, &mut self.wires);
        self
    }

    /// What has been said to owners since the last look.
    fn told(&mut self) -> Vec<(u16, String)> {
        std::mem::take(&mut self.wires.to_owners)
    }

    fn count_told(&mut self, text: &str) -> usize {
        self.told().iter().filter(|(_, told)| told == text).count()
    }
}

/// What is accepted may be answered by a job: to end the wait before would make the answer that of nobody.
#[test]
fn a_poll_is_not_given_up_while_an_offer_is_being_accepted() {
    let mut one = Alone::new();
    one.say("watch a").done(1, "WATCHING 2\r\n").lose(1).say("reserve-with-timeout 0");
    one.at(4850).hear(0, ToFrontend::Offer { wait: 0, offer: 7, pri: 0, id: 2000 });
    one.told();
    one.at(4950);
    assert_eq!(one.told(), [(0, "accept".into())], "the other owner has had its time");
    one.at(5000);
    let held = Outcome::Held { id: 2000, deadline_ns: 65_000 * MS };
    one.hear(0, ToFrontend::Served { wait: 0, outcome: held, bytes: b"RESERVED 2000 1\r\nx\r\n" });
    assert_eq!(one.wires.heard, "WATCHING 2\r\nRESERVED 2000 1\r\nx\r\n");
    assert!(one.router.is_idle(ONE));
}

#[test]
fn a_poll_is_given_up_when_the_offer_that_was_accepted_is_gone() {
    let mut one = Alone::new();
    one.say("watch a").done(1, "WATCHING 2\r\n").lose(1).say("reserve-with-timeout 0");
    one.at(4850).hear(0, ToFrontend::Offer { wait: 0, offer: 7, pri: 0, id: 2000 });
    one.at(4950).at(5000).hear(0, ToFrontend::Gone { wait: 0 }).at(5000);
    assert_eq!(one.wires.heard, "WATCHING 2\r\nINTERNAL_ERROR\r\n");
    assert!(one.router.is_idle(ONE));
}

/// An owner that was away when the command was read is back long before its turn comes.
#[test]
fn a_command_behind_a_reserve_is_not_given_up_for_an_owner_that_is_back() {
    let mut one = Alone::new();
    one.say("use a").done(1, "USING a\r\n").lose(1).say("reserve").put();
    one.at(100).find(1).at(6000).at(7000);
    assert_eq!(one.wires.heard, "USING a\r\n");
    let held = Outcome::Held { id: 2000, deadline_ns: 65_000 * MS };
    one.hear(0, ToFrontend::Served { wait: 0, outcome: held, bytes: b"RESERVED 2000 1\r\nx\r\n" });
    assert!(one.told().contains(&(1, "put 1".into())));
    one.done(1, "INSERTED 2001\r\n");
    assert_eq!(one.wires.heard, "USING a\r\nRESERVED 2000 1\r\nx\r\nINSERTED 2001\r\n");
}

/// Rule 12 of the stop: what was read before is carried out and answered, but for a reserve that waits and what stands
/// behind it.
#[test]
fn a_command_that_waits_for_an_owner_is_unanswered_and_what_is_behind_a_wait_is_not() {
    let mut one = Alone::new();
    one.say("use a").done(1, "USING a\r\n").lose(1).put();
    assert!(one.router.has_unanswered(), "the put is still to be sent");
    one.find(1).done(1, "INSERTED 2001\r\n");
    assert!(!one.router.has_unanswered());
    one.say("reserve").say("touch 2000");
    assert!(!one.router.has_unanswered(), "what waits, or is behind it, is not awaited");
    let mut one = Alone::new();
    one.lose(0).say("reserve");
    assert!(!one.router.has_unanswered(), "a reserve that will wait is not awaited");
}

/// An id without partition is asked of all; the one that has the job may be lost before the last one answers.
#[test]
fn who_was_given_a_job_by_an_owner_that_is_lost_before_the_answer_is_complete_is_closed() {
    let mut one = Alone::new();
    one.say("reserve-job 5");
    let held = Outcome::Held { id: 5, deadline_ns: 60_000 * MS };
    one.hear(0, ToFrontend::Reply { outcome: held, bytes: b"RESERVED 5 1\r\nx\r\n" }).lose(0);
    assert_eq!(one.wires.closed, [ONE]);
}

#[test]
fn of_reserves_in_one_go_only_so_many_are_under_way_as_there_may_be_bodies() {
    let mut one = Alone::new();
    for _ in 0..5 {
        one.say("reserve-with-timeout 0");
    }
    assert!(!one.router.can_take(ONE), "the fifth must wait, and all behind it");
    assert_eq!(one.count_told("reserve"), 4);
    for wait in 0..5 {
        let held = Outcome::Held { id: 2000 + u64::from(wait), deadline_ns: 60_000 * MS };
        one.hear(0, ToFrontend::Served { wait, outcome: held, bytes: b"RESERVED\r\n" });
        assert_eq!(one.count_told("reserve"), usize::from(wait == 0), "after {wait}");
    }
    assert_eq!(one.wires.heard.matches("RESERVED").count(), 5);
    assert!(one.router.is_idle(ONE) && one.router.can_take(ONE));
    // Other bodies count as well.
    one.say("peek-ready").say("reserve-with-timeout 0").say("peek-delayed").say("peek-ready").say("peek-ready");
    assert_eq!(one.told().len(), 4);
    assert!(!one.router.can_take(ONE));
}

#[test]
fn answers_of_the_frontend_behind_a_reserve_are_kept_up_to_a_limit() {
    let mut one = Alone::new();
    one.say("reserve");
    let name = vec![b'x'; 200_000];
    let long = Reply::Using(&name);
    let mut count = 0;
    while one.router.can_take(ONE) {
        one.router.local(ONE, &long, &mut one.wires);
        count += 1;
    }
    assert!((1..=3).contains(&count), "{count} answers of 200 kB are kept for one client");
    one.wires.wakes = 0;
    one.hear(0, ToFrontend::Served { wait: 0, outcome: Outcome::Refused, bytes: b"TIMED_OUT\r\n" });
    assert!(one.router.can_take(ONE) && one.wires.wakes > 0);
    assert_eq!(one.wires.heard.matches("USING").count(), count);
}
