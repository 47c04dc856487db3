//! What the clients of a load know together: the fate of every job.
//!
//! Owns: what was put, acknowledged, reserved and deleted, and the judgement in the end.
//! Never: talks to a server.
//!
//! Rules, each checked when the fact is learnt or in the end: an acknowledged put that nobody deleted is there once;
//! one that was refused never is; one whose reply was lost is there at most once; after an acknowledged delete the job
//! is never seen again; no command of a holder succeeds after somebody else has reserved the same job. Jobs of an owner
//! that was lost without a log may be gone, but are not there twice either.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Put {
    Unknown,
    Acknowledged,
    Refused,
}

#[derive(Debug)]
struct Job {
    owner: u16,
    put: Put,
    id: Option<u64>,
    /// The last reservation, by its number.
    reservation: u64,
    deleted: Option<Instant>,
    /// A delete without a reply.
    may_be_deleted: bool,
    /// Its owner was lost without a log.
    may_be_lost: bool,
    found: u32,
}

#[derive(Debug, Default)]
struct Facts {
    jobs: BTreeMap<u64, Job>,
    next: u64,
    reservations: u64,
    acknowledged: u64,
    deletes: u64,
    /// Those that were there and may be lost.
    gone: u64,
    refused: u64,
    unknown: u64,
    /// When the server said that no process accepts a job.
    drained: Option<Instant>,
    wrong: Vec<String>,
}

/// A job in the hands of one client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) body: u64,
    pub(crate) id: u64,
    reservation: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Facts>);

impl Ledger {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A put is about to be sent; the number that its body begins with.
    pub(crate) fn putting(&self, owner: u16) -> u64 {
        let mut facts = self.facts();
        facts.next += 1;
        let body = facts.next;
        let job = Job {
            owner,
            put: Put::Unknown,
            id: None,
            reservation: 0,
            deleted: None,
            may_be_deleted: false,
            may_be_lost: false,
            found: 0,
        };
        facts.jobs.insert(body, job);
        facts.unknown += 1;
        body
    }

    /// The reply to a put that was sent at `sent`.
    pub(crate) fn put_answered(&self, body: u64, id: Option<u64>, sent: Instant) {
        let mut facts = self.facts();
        facts.unknown -= 1;
        match id {
            Some(_) => facts.acknowledged += 1,
            None => facts.refused += 1,
        }
        if id.is_some() && facts.drained.is_some_and(|drained| sent > drained) {
            facts.wrong.push(format!("put {body} was accepted although the server had said that it is drained"));
        }
        let job = facts.jobs.get_mut(&body).expect("it was put");
        job.put = if id.is_some() { Put::Acknowledged } else { Put::Refused };
        if job.id.is_some() && id.is_some() && job.id != id {
            let what = format!("job {body} was reserved as {:?} and acknowledged as {id:?}", job.id);
            facts.wrong.push(what);
        } else if id.is_some() {
            job.id = id;
        }
    }

    /// A reserve that was sent at `sent` gave this job.
    pub(crate) fn reserved(&self, body: u64, id: u64, sent: Instant) -> Held {
        let mut facts = self.facts();
        facts.reservations += 1;
        let reservation = facts.reservations;
        let mut wrong = None;
        match facts.jobs.get_mut(&body) {
            None => wrong = Some(format!("job {id} has a body that nobody put")),
            Some(job) => {
                if job.put == Put::Refused {
                    wrong = Some(format!("job {body} was refused and is there"));
                } else if job.deleted.is_some_and(|deleted| deleted < sent) {
                    wrong = Some(format!("job {body} was deleted and is there again"));
                } else if job.id.is_some_and(|known| known != id) {
                    wrong = Some(format!("job {body} is there as {id} and was {:?}: doubled", job.id));
                }
                job.id = Some(id);
                job.reservation = reservation;
            }
        }
        facts.wrong.extend(wrong);
        Held { body, id, reservation }
    }

    /// Whether nobody else has reserved the job since; asked before a command of its holder is sent.
    pub(crate) fn is_last(&self, held: Held) -> bool {
        self.facts().jobs.get(&held.body).is_some_and(|job| job.reservation == held.reservation)
    }

    /// A command of the holder succeeded. `was_last` is what [`Ledger::is_last`] said before.
    pub(crate) fn holder_succeeded(&self, held: Held, was_last: bool, what: &str) {
        if !was_last {
            self.wrong(format!("{what} of job {} succeeded although another client had it", held.body));
        }
    }

    /// A delete is about to be sent.
    pub(crate) fn deleting(&self, held: Held) {
        if let Some(job) = self.facts().jobs.get_mut(&held.body) {
            job.may_be_deleted = true;
        }
    }

    /// The delete was answered.
    pub(crate) fn delete_answered(&self, held: Held, is_deleted: bool) {
        let mut facts = self.facts();
        let mut wrong = None;
        if let Some(job) = facts.jobs.get_mut(&held.body) {
            job.may_be_deleted = false;
            if is_deleted {
                if job.deleted.is_some() {
                    wrong = Some(format!("job {} was deleted twice", held.body));
                }
                job.deleted = Some(Instant::now());
            }
        }
        facts.deletes += u64::from(is_deleted);
        facts.wrong.extend(wrong);
    }

    /// From now on no put may be accepted.
    pub(crate) fn drained(&self) {
        self.facts().drained.get_or_insert(Instant::now());
    }

    /// What this owner has had so far may be gone: it was lost without a log.
    pub(crate) fn may_be_lost(&self, owner: u16) {
        let mut facts = self.facts();
        let mut gone = 0;
        for job in facts.jobs.values_mut().filter(|job| job.owner == owner && !job.may_be_lost) {
            job.may_be_lost = true;
            gone += u64::from(job.put == Put::Acknowledged && job.deleted.is_none());
        }
        facts.gone += gone;
    }

    pub(crate) fn wrong(&self, what: String) {
        self.facts().wrong.push(what);
    }

    /// Puts acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.facts().acknowledged
    }

    /// Jobs that are there, as far as replies tell.
    pub(crate) fn live(&self) -> u64 {
        let facts = self.facts();
        facts.acknowledged.saturating_sub(facts.deletes + facts.gone)
    }

    /// A job that is there in the end.
    pub(crate) fn found(&self, body: u64, id: u64, sent: Instant) {
        self.reserved(body, id, sent);
        if let Some(job) = self.facts().jobs.get_mut(&body) {
            job.found += 1;
        }
    }

    /// The judgement, when all that is there has been found.
    ///
    /// # Errors
    ///
    /// What was wrong, some of it.
    pub(crate) fn judge(&self) -> Result<String, String> {
        let mut facts = self.facts();
        let mut wrong = std::mem::take(&mut facts.wrong);
        for (body, job) in &facts.jobs {
            if job.found > 1 {
                wrong.push(format!("job {body} is there {} times", job.found));
            }
            if job.found > 0 && job.deleted.is_some() {
                wrong.push(format!("job {body} was deleted and is there in the end"));
            }
            let must_be_there =
                job.put == Put::Acknowledged && job.deleted.is_none() && !job.may_be_deleted && !job.may_be_lost;
            if must_be_there && job.found == 0 {
                wrong.push(format!("job {body} (id {:?}, owner {}) was acknowledged and is lost", job.id, job.owner));
            }
        }
        if wrong.is_empty() {
            let (put, deleted, refused) = (facts.acknowledged, facts.deletes, facts.refused);
            return Ok(format!("{put} put, {deleted} deleted, {refused} refused, {} unknown", facts.unknown));
        }
        wrong.truncate(5);
        Err(wrong.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job that was put and acknowledged, of owner 0, as its first holder has it.
    fn held(ledger: &Ledger) -> Held {
        let body = ledger.putting(0);
        ledger.put_answered(body, Some(64), Instant::now());
        ledger.reserved(body, 64, Instant::now())
    }

    #[track_caller]
    fn check_wrong(ledger: &Ledger, word: &str) {
        let what = ledger.judge().expect_err(word);
        assert!(what.contains(word), "{what:?} does not say {word:?}");
    }

    #[test]
    fn a_history_in_order_is_judged_so() {
        let ledger = Ledger::default();
        let job = held(&ledger);
        assert!(ledger.is_last(job));
        ledger.deleting(job);
        ledger.delete_answered(job, true);
        // Without a reply: there or not.
        ledger.putting(1);
        // Refused, and not there.
        let refused = ledger.putting(1);
        ledger.put_answered(refused, None, Instant::now());
        let kept = ledger.putting(1);
        ledger.put_answered(kept, Some(65), Instant::now());
        ledger.found(kept, 65, Instant::now());
        assert_eq!(ledger.judge().unwrap(), "2 put, 1 deleted, 1 refused, 1 unknown");
    }

    #[test]
    fn each_broken_promise_is_found() {
        let ledger = Ledger::default();
        held(&ledger);
        check_wrong(&ledger, "is lost");

        let ledger = Ledger::default();
        let job = held(&ledger);
        ledger.found(job.body, 64, Instant::now());
        ledger.found(job.body, 64, Instant::now());
        check_wrong(&ledger, "is there 2 times");

        let ledger = Ledger::default();
        let job = held(&ledger);
        ledger.reserved(job.body, 128, Instant::now());
        check_wrong(&ledger, "doubled");

        let ledger = Ledger::default();
        let job = held(&ledger);
        ledger.delete_answered(job, true);
        ledger.delete_answered(job, true);
        check_wrong(&ledger, "deleted twice");

        let ledger = Ledger::default();
        let job = held(&ledger);
        ledger.delete_answered(job, true);
        ledger.found(job.body, 64, Instant::now());
        check_wrong(&ledger, "there again");

        let ledger = Ledger::default();
        let refused = ledger.putting(0);
        ledger.put_answered(refused, None, Instant::now());
        ledger.found(refused, 64, Instant::now());
        check_wrong(&ledger, "was refused and is there");

        let ledger = Ledger::default();
        ledger.found(77, 64, Instant::now());
        check_wrong(&ledger, "nobody put");

        let ledger = Ledger::default();
        let job = held(&ledger);
        ledger.reserved(job.body, 64, Instant::now());
        ledger.holder_succeeded(job, ledger.is_last(job), "a touch");
        check_wrong(&ledger, "although another client had it");

        let ledger = Ledger::default();
        ledger.drained();
        let late = ledger.putting(0);
        ledger.put_answered(late, Some(64), Instant::now());
        check_wrong(&ledger, "drained");
    }

    #[test]
    fn what_an_owner_without_a_log_had_may_be_lost_and_not_doubled() {
        let ledger = Ledger::default();
        let job = held(&ledger);
        ledger.may_be_lost(0);
        assert_eq!(ledger.live(), 0);
        ledger.judge().unwrap();
        ledger.found(job.body, 64, Instant::now());
        ledger.judge().unwrap();
        ledger.found(job.body, 64, Instant::now());
        check_wrong(&ledger, "is there 2 times");
        ledger.may_be_lost(0);
        let of_the_other = ledger.putting(1);
        ledger.put_answered(of_the_other, Some(65), Instant::now());
        ledger.may_be_lost(0);
        check_wrong(&ledger, "is lost");
    }
}
