//! The rules of group commit, played with random requests, sizes, culprits and failures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use database_core::batch::{
    BYTES_PER_BATCH_MAX, BYTES_WAITING_MAX, Batches, End, Next, NotAdmitted, Outcome, REPEATS_MAX,
    REQUESTS_PER_BATCH_MAX, REQUESTS_WAITING_MAX, WAIT_MAX,
};
use database_core::{Class, DbError};
use proptest::prelude::*;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn failed(class: Class) -> End {
    End::Failed(DbError::new(class, "test"))
}

#[track_caller]
fn run(batches: &mut Batches, now: Duration) -> (u64, Vec<u64>) {
    match batches.next(now) {
        Next::Run(batch) => (batch.number, batch.requests),
        other => panic!("a batch was expected: {other:?}"),
    }
}

fn admit(batches: &mut Batches, now: Duration, count: usize) -> Vec<u64> {
    (0..count).map(|_| batches.admit(now, 1).unwrap()).collect()
}

#[test]
fn who_comes_when_nothing_is_under_way_does_not_wait() {
    let mut batches = Batches::new(1);
    assert_eq!(batches.next(ms(0)), Next::Idle);
    let first = admit(&mut batches, ms(1), 1);
    assert_eq!(run(&mut batches, ms(1)), (0, first));
    assert_eq!(batches.next(ms(1)), Next::Idle);
}

#[test]
fn what_arrives_meanwhile_goes_together() {
    let mut batches = Batches::new(1);
    admit(&mut batches, ms(0), 1);
    run(&mut batches, ms(0));
    let others = admit(&mut batches, ms(1), 10);
    assert_eq!(batches.next(ms(1)), Next::Idle);
    batches.end(ms(5), 0, End::Done);
    assert_eq!(run(&mut batches, ms(5)), (1, others));
}

#[test]
fn those_who_were_just_answered_are_waited_for_briefly() {
    let mut batches = Batches::new(1);
    admit(&mut batches, ms(0), 3);
    run(&mut batches, ms(0));
    batches.end(ms(1), 0, End::Done);
    // One is back. The commit took 1 ms, so the other two are worth as much.
    admit(&mut batches, ms(1), 1);
    assert_eq!(batches.next(ms(1)), Next::WaitUntil(ms(2)));
    admit(&mut batches, ms(1), 2);
    assert_eq!(run(&mut batches, ms(1)).1.len(), 3);
    // After a long commit too the bound holds; and an answer that is long past is no reason to wait.
    batches.end(ms(101), 1, End::Done);
    admit(&mut batches, ms(101), 1);
    assert_eq!(batches.next(ms(101)), Next::WaitUntil(ms(101) + WAIT_MAX));
    assert_eq!(run(&mut batches, ms(101) + WAIT_MAX).1.len(), 1);
    batches.end(ms(200), 2, End::Done);
    admit(&mut batches, ms(300), 1);
    assert_eq!(run(&mut batches, ms(300)).1.len(), 1);
}

#[test]
fn a_batch_has_512_requests_or_4_mib_and_4096_wait() {
    let mut batches = Batches::new(1);
    admit(&mut batches, ms(0), REQUESTS_WAITING_MAX);
    assert_eq!(batches.admit(ms(0), 1), Err(NotAdmitted::Busy));
    assert_eq!(run(&mut batches, ms(0)).1.len(), REQUESTS_PER_BATCH_MAX);
    admit(&mut batches, ms(0), REQUESTS_PER_BATCH_MAX);
    assert_eq!(batches.admit(ms(0), 1), Err(NotAdmitted::Busy));

    let mut batches = Batches::new(2);
    let error = batches.admit(ms(0), BYTES_PER_BATCH_MAX + 1).unwrap_err();
    assert_eq!(error, NotAdmitted::TooLarge { size: BYTES_PER_BATCH_MAX + 1 });
    for _ in 0..3 {
        batches.admit(ms(0), BYTES_PER_BATCH_MAX / 2).unwrap();
    }
    assert_eq!(run(&mut batches, ms(0)).1.len(), 2);
    assert_eq!(run(&mut batches, ms(0)).1.len(), 1);

    let mut batches = Batches::new(1);
    for _ in 0..BYTES_WAITING_MAX / BYTES_PER_BATCH_MAX {
        batches.admit(ms(0), BYTES_PER_BATCH_MAX).unwrap();
    }
    assert_eq!(batches.admit(ms(0), 1), Err(NotAdmitted::Busy));
}

#[test]
fn halves_of_a_failed_batch_leave_the_others_their_turn() {
    let mut batches = Batches::new(1);
    let four = admit(&mut batches, ms(0), 4);
    run(&mut batches, ms(0));
    assert_eq!(batches.end(ms(0), 0, failed(Class::Locked)), Outcome::Again);
    let other = admit(&mut batches, ms(0), 1);
    assert_eq!(run(&mut batches, ms(0)), (1, four[..2].to_vec()));
    assert_eq!(batches.end(ms(300), 1, failed(Class::Locked)), Outcome::Again);
    assert_eq!(run(&mut batches, ms(300)), (2, other.clone()));
    assert_eq!(batches.end(ms(301), 2, End::Done), Outcome::Answered(other));
    assert_eq!(run(&mut batches, ms(301)), (3, four[..1].to_vec()));
    let outcome = batches.end(ms(600), 3, failed(Class::Locked));
    assert_eq!(outcome, Outcome::Failed(four[..1].to_vec(), DbError::new(Class::Locked, "test")));
    assert_eq!(run(&mut batches, ms(600)), (4, four[1..2].to_vec()));
    batches.end(ms(600), 4, End::Done);
    assert_eq!(run(&mut batches, ms(600)), (5, four[2..].to_vec()));
}

#[test]
fn an_unknown_commit_is_unknown_for_all_and_is_not_repeated() {
    let mut batches = Batches::new(1);
    let all = admit(&mut batches, ms(0), 5);
    run(&mut batches, ms(0));
    let outcome = batches.end(ms(1), 0, failed(Class::Unknown));
    assert_eq!(outcome, Outcome::Failed(all, DbError::new(Class::Unknown, "test")));
    assert_eq!(batches.next(ms(1)), Next::Idle);
}

#[test]
fn a_database_that_is_away_is_tried_again_a_few_times_and_not_in_halves() {
    for class in [Class::Unavailable, Class::ReadOnly] {
        let mut batches = Batches::new(1);
        let all = admit(&mut batches, ms(0), 5);
        for number in 0..u64::from(REPEATS_MAX) {
            assert_eq!(run(&mut batches, ms(0)), (number, all.clone()));
            assert_eq!(batches.end(ms(1), number, failed(class)), Outcome::Again);
        }
        run(&mut batches, ms(0));
        let outcome = batches.end(ms(1), REPEATS_MAX.into(), failed(class));
        assert_eq!(outcome, Outcome::Failed(all, DbError::new(class, "test")));
    }
    let mut batches = Batches::new(1);
    let all = admit(&mut batches, ms(0), 5);
    run(&mut batches, ms(0));
    let outcome = batches.end(ms(1), 0, failed(Class::Exhausted));
    assert_eq!(outcome, Outcome::Failed(all, DbError::new(Class::Exhausted, "test")));
}

#[test]
fn what_is_not_under_way_can_be_given_up() {
    let mut batches = Batches::new(1);
    let two = admit(&mut batches, ms(0), 2);
    run(&mut batches, ms(0));
    batches.end(ms(0), 0, failed(Class::Refused));
    run(&mut batches, ms(0));
    let third = admit(&mut batches, ms(0), 1);
    assert_eq!(batches.give_up(), [two[1], third[0]]);
    assert_eq!(batches.end(ms(0), 1, End::Done), Outcome::Answered(vec![two[0]]));
    assert_eq!(batches.next(ms(0)), Next::Idle);
}

/// What happens next in a random play.
#[derive(Debug, Clone)]
enum Event {
    /// Requests arrive, of this size; bad ones fail by themselves, with a class that halving finds.
    Arrive { count: usize, size: usize, is_bad: bool },
    /// The oldest batch under way ends; with this failure, if it is given, whatever is in it.
    End(Option<Class>),
    /// Time passes, in µs.
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let size = prop_oneof![1..2_000usize, 1..=BYTES_PER_BATCH_MAX];
    let class = prop_oneof![
        8 => Just(None),
        1 => Just(Some(Class::Unknown)),
        1 => Just(Some(Class::Conflict)),
        1 => Just(Some(Class::Unavailable)),
        1 => Just(Some(Class::Exhausted)),
    ];
    prop_oneof![
        3 => (1..40usize, size, prop::bool::weighted(0.2))
            .prop_map(|(count, size, is_bad)| Event::Arrive { count: if is_bad { 1 } else { count }, size, is_bad }),
        4 => class.prop_map(Event::End),
        2 => (0..3_000u64).prop_map(Event::Wait),
    ]
}

/// The rules beside what is known of each request.
struct Play {
    batches: Batches,
    writers: usize,
    now: Duration,
    /// Each request that was let in: its size and whether it is bad.
    known: BTreeMap<u64, (usize, bool)>,
    /// When each request came that was never in a batch.
    fresh: BTreeMap<u64, Duration>,
    under_way: BTreeMap<u64, Vec<u64>>,
    answered: BTreeSet<u64>,
    /// Failures that no request caused.
    accidents: usize,
}

impl Play {
    fn new(writers: usize) -> Self {
        Self {
            batches: Batches::new(writers),
            writers,
            now: ms(1_000),
            known: BTreeMap::new(),
            fresh: BTreeMap::new(),
            under_way: BTreeMap::new(),
            answered: BTreeSet::new(),
            accidents: 0,
        }
    }

    fn arrive(&mut self, size: usize, is_bad: bool) {
        match self.batches.admit(self.now, size) {
            Ok(request) => {
                assert_eq!(self.known.insert(request, (size, is_bad)), None, "a number was given twice");
                self.fresh.insert(request, self.now);
            }
            Err(error) => {
                assert_eq!(error, NotAdmitted::Busy);
                let bytes: usize = self.fresh.keys().map(|request| self.known[request].0).sum();
                assert!(self.fresh.len() == REQUESTS_WAITING_MAX || bytes + size > BYTES_WAITING_MAX);
            }
        }
    }

    /// Begins all batches that the rules want.
    fn begin(&mut self) {
        loop {
            match self.batches.next(self.now) {
                Next::Run(batch) => self.check_batch(batch.number, batch.requests),
                Next::WaitUntil(until) => {
                    assert!(until > self.now && until <= self.now + WAIT_MAX);
                    let oldest = self.fresh.values().min().expect("somebody waits");
                    assert!(until <= *oldest + WAIT_MAX, "a writer is free, and a request waits for long");
                    return;
                }
                Next::Idle => {
                    let is_full = self.under_way.len() == self.writers;
                    assert!(is_full || self.known.len() == self.answered.len() + self.requests_under_way());
                    return;
                }
            }
        }
    }

    fn requests_under_way(&self) -> usize {
        self.under_way.values().map(Vec::len).sum()
    }

    fn check_batch(&mut self, number: u64, requests: Vec<u64>) {
        assert!(!requests.is_empty() && requests.len() <= REQUESTS_PER_BATCH_MAX);
        let bytes: usize = requests.iter().map(|request| self.known[request].0).sum();
        assert!(bytes <= BYTES_PER_BATCH_MAX);
        assert!(requests.is_sorted(), "the order of arrival");
        for request in &requests {
            assert!(!self.answered.contains(request), "an answered request is run again");
            assert!(!self.under_way.values().flatten().any(|other| other == request), "a request runs twice at once");
            self.fresh.remove(request);
        }
        assert!(self.under_way.len() < self.writers);
        assert_eq!(self.under_way.insert(number, requests), None);
    }

    fn end(&mut self, accident: Option<Class>) {
        let Some((number, requests)) = self.under_way.pop_first() else { return };
        let bad = requests.iter().filter(|request| self.known[request].1).count();
        let class = accident.or((bad > 0).then_some(Class::Refused));
        self.accidents += usize::from(accident.is_some());
        let end = class.map_or(End::Done, failed);
        match self.batches.end(self.now, number, end) {
            Outcome::Answered(answered) => {
                assert_eq!((&answered, class), (&requests, None));
                self.answer(&answered);
            }
            Outcome::Failed(answered, error) => {
                assert_eq!((&answered, Some(error.class)), (&requests, class));
                if matches!(error.class, Class::Refused | Class::Conflict) {
                    assert_eq!(answered.len(), 1, "a neighbour got the failure of another request");
                }
                self.answer(&answered);
            }
            Outcome::Again => assert!(class.is_some_and(Class::is_certain)),
        }
    }

    fn answer(&mut self, requests: &[u64]) {
        for request in requests {
            assert!(self.answered.insert(*request), "a request was answered twice");
        }
    }

    /// Ends everything without further accidents, and checks that this takes a bounded number of batches.
    fn finish(&mut self) {
        let bad =
            self.known.iter().filter(|(request, (_, is_bad))| *is_bad && !self.answered.contains(request)).count();
        let open = self.known.len() - self.answered.len();
        // Each culprit costs two parts a halving, of at most 9; each accident a few parts more; sizes and counts the rest.
        let mut steps = 20 * bad + 20 * self.accidents + 2 * open + 10;
        while self.known.len() > self.answered.len() {
            steps = steps.checked_sub(1).expect("it ends");
            self.now += WAIT_MAX;
            self.begin();
            self.end(None);
        }
        assert_eq!(self.batches.next(self.now), Next::Idle);
        assert_eq!((self.batches.waiting(), self.batches.has_work()), (0, false));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each request that is let in gets one answer, its own; no bound is ever exceeded; nobody waits while a writer is
    /// free, but for the 2 ms.
    #[test]
    fn each_request_gets_its_own_answer_once(
        writers in 1..3usize,
        events in prop::collection::vec(event(), 1..200),
    ) {
        let mut play = Play::new(writers);
        for event in events {
            match event {
                Event::Arrive { count, size, is_bad } => (0..count).for_each(|_| play.arrive(size, is_bad)),
                Event::End(class) => play.end(class),
                Event::Wait(us) => play.now += Duration::from_micros(us),
            }
            play.begin();
        }
        play.finish();
    }

    /// One culprit among many costs its neighbours at most two more transactions a halving.
    #[test]
    fn one_culprit_is_found_by_halving(count in 1..=REQUESTS_PER_BATCH_MAX, culprit in any::<prop::sample::Index>()) {
        let mut play = Play::new(1);
        let culprit = culprit.index(count);
        (0..count).for_each(|index| play.arrive(1, index == culprit));
        let mut batches = 0;
        while play.known.len() > play.answered.len() {
            play.begin();
            play.end(None);
            batches += 1;
        }
        let halvings = count.next_power_of_two().ilog2();
        prop_assert!(batches <= 1 + 2 * halvings, "{batches} transactions for {count} requests");
    }
}
