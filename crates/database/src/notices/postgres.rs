//! Notices over PostgreSQL: NOTIFY and LISTEN.
//!
//! One connection, outside of the pool and never in a transaction for longer than one NOTIFY, listens and sends. Everybody
//! listens to one channel of the server; what is said there is, in one line:
//!
//! | text | meaning |
//! |---|---|
//! | `SENDER CHANNEL PAYLOAD` | a notice; CHANNEL is a word, PAYLOAD goes to the end |
//! | `SENDER * ` | there was more than could be kept |
//! | `SENDER ? NUMBER` | a nonce of the sender to itself |
//!
//! A connection can look well and be dead: half open, or broken by something in between. So every process sends itself a
//! nonce over the pool at each beat, and begins to listen anew if it does not hear it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use database_core::{Class, DbError, Script, Sql, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{CHANNELS, Event, Notice, Notices, Owner, Shared, Unsent, random};
use crate::postgres::{Connector, Pool};

/// Time between two NOTIFY of one process. Commits that notify wait for each other in the whole server, so what comes
/// in between goes out together at the end of this time.
const SEND_INTERVAL: Duration = Duration::from_millis(10);
/// Shortest and longest pause before listening is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

const LISTEN: &str = "LISTEN tenure";
static NOTIFY: Sql = Sql::new(
    "notices.send",
    "SELECT pg_notify('tenure', line) FROM unnest($1::text[]) line",
    "SELECT NULL WHERE $1 IS NULL AND 0",
);

/// What a nonce needs.
#[derive(Debug, Clone)]
pub(super) struct Probe {
    pool: Pool,
    nonce: Arc<AtomicU64>,
    /// The number of the session that did not hear.
    deaf: watch::Sender<u64>,
}

impl Notices {
    /// Begins to listen, and goes on for as long as there is a clone.
    pub(crate) fn over_postgres(direct: Connector, pool: Pool, beat: Duration) -> Self {
        let shared = Arc::new(Shared::new());
        let probe = Probe { pool, nonce: Arc::default(), deaf: watch::Sender::new(0) };
        let listener = Listener { shared: Arc::clone(&shared), connector: direct, deaf: probe.deaf.subscribe() };
        let tasks = vec![
            tokio::spawn(listener.run()).abort_handle(),
            tokio::spawn(probe.clone().at_each_beat(Arc::clone(&shared), beat)).abort_handle(),
        ];
        Self(Arc::new(Owner { shared, remote: Some(probe), tasks }))
    }
}

impl Probe {
    async fn at_each_beat(self, shared: Arc<Shared>, beat: Duration) {
        loop {
            // Between 0.8 and 1 of a beat, so that members do not go in step.
            sleep(beat.mul_f64(1.0 - 0.2 * fraction())).await;
            if *shared.is_listening.borrow()
                && let Err(error) = self.run(&shared, beat).await
            {
                tracing::debug!(%error, "no nonce could be sent");
            }
        }
    }

    pub(super) async fn run(&self, shared: &Shared, limit: Duration) -> Result<bool, DbError> {
        let session = shared.figures.connected.load(Ordering::Relaxed);
        let nonce = self.nonce.fetch_add(1, Ordering::Relaxed) + 1;
        let mut heard = shared.nonce_heard.subscribe();
        let line = format!("{} ? {nonce}", shared.sender);
        self.pool.get().await?.connection.run_once(notify(vec![line])).await?;
        let is_heard = timeout(limit, heard.wait_for(|heard| *heard >= nonce)).await.is_ok();
        if !is_heard {
            self.deaf.send_replace(session);
        }
        Ok(is_heard)
    }
}

fn notify(lines: Vec<String>) -> Script<()> {
    Script::statement(&NOTIFY, [Value::Texts(lines)], |_| Ok(()))
}

/// At least 0 and less than 1.
fn fraction() -> f64 {
    f64::from(random() as u32) / f64::from(u32::MAX)
}

/// Listens and sends.
struct Listener {
    shared: Arc<Shared>,
    connector: Connector,
    deaf: watch::Receiver<u64>,
}

impl Listener {
    async fn run(mut self) {
        let mut pause = PAUSES.0;
        loop {
            let Err(error) = self.session().await;
            if self.shared.is_listening.send_replace(false) {
                tracing::warn!(%error, "notices are not heard any more; beats go on, and are slower");
                pause = PAUSES.0;
            } else {
                tracing::debug!(%error, "cannot listen for notices");
            }
            sleep(pause.mul_f64(0.5 + 0.5 * fraction())).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// From one connect to the end of that connection.
    async fn session(&mut self) -> Result<std::convert::Infallible, DbError> {
        let (mut connection, mut heard) = self.connector.connect_listening().await?;
        connection.batch("LISTEN", LISTEN).await?;
        let shared = Arc::clone(&self.shared);
        let number = shared.figures.connected.fetch_add(1, Ordering::Relaxed) + 1;
        shared.is_listening.send_replace(true);
        // First listen, then poll: in the other order something could happen in between.
        shared.tell(Event::Reconnected);
        let mut next_send = Instant::now();
        loop {
            tokio::select! {
                line = heard.recv() => match line {
                    Some(line) => {
                        shared.hear(&line.payload);
                        if connection.take_missed() {
                            shared.tell(Event::Lagged);
                        }
                    }
                    None => return Err(DbError::new(Class::Unavailable, "the connection that listens was lost")),
                },
                () = shared.wait_for_unsent(next_send) => {
                    let unsent = std::mem::take(&mut *shared.unsent());
                    if let Err(error) = connection.run_once(notify(shared.lines(&unsent))).await {
                        // What the server refuses it would refuse for ever.
                        if matches!(error.class, Class::Refused | Class::Broken) {
                            tracing::error!(%error, "notices are dropped");
                        } else {
                            shared.unsent().put_back(unsent);
                        }
                        return Err(error);
                    }
                    shared.sent(&unsent);
                    next_send = Instant::now() + SEND_INTERVAL;
                }
                () = async { drop(self.deaf.wait_for(|deaf| *deaf == number).await) } => {
                    return Err(DbError::new(Class::Unavailable, "a notice to ourselves was sent and not heard"));
                }
            }
        }
    }
}

impl Shared {
    /// Waits until there is something to send and the time for it has come. May be given up.
    async fn wait_for_unsent(&self, time: Instant) {
        while self.unsent().is_empty() {
            self.is_unsent.notified().await;
        }
        sleep_until(time).await;
    }

    fn lines(&self, unsent: &Unsent) -> Vec<String> {
        let sender = &self.sender;
        if unsent.is_overflown {
            return vec![format!("{sender} * ")];
        }
        unsent.notices.iter().map(|Notice { channel, payload }| format!("{sender} {channel} {payload}")).collect()
    }

    fn sent(&self, sent: &Unsent) {
        self.figures.sent.fetch_add(sent.notices.len() as u64, Ordering::Relaxed);
        let unsent = self.unsent();
        if unsent.is_empty() {
            self.is_flushed.send_replace(true);
        }
    }

    /// Takes in what somebody has said.
    fn hear(&self, line: &str) {
        let mut parts = line.splitn(3, ' ');
        let (Some(sender), Some(kind), Some(rest)) = (parts.next(), parts.next(), parts.next()) else { return };
        let is_own = sender == self.sender;
        match kind {
            "?" if is_own => {
                if let Ok(nonce) = rest.parse::<u64>() {
                    self.nonce_heard.send_if_modified(|heard| std::mem::replace(heard, nonce.max(*heard)) < nonce);
                }
            }
            "*" if !is_own => self.tell(Event::Lagged),
            // We were told when we sent it.
            _ if is_own => {}
            kind => {
                if let Some(channel) = CHANNELS.iter().find(|channel| **channel == kind) {
                    self.figures.heard.fetch_add(1, Ordering::Relaxed);
                    self.tell(Event::Notice(Notice { channel, payload: rest.to_owned() }));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_read_as_they_are_written_and_what_is_strange_is_passed_over() {
        let (one, other) = (Shared::new(), Shared::new());
        let mut events = other.events.subscribe();
        let notice = |payload: &str| Notice { channel: "q", payload: payload.into() };
        let mut unsent = Unsent::default();
        unsent.put(notice("a b  c"));
        unsent.put(notice(""));
        for line in one.lines(&unsent) {
            one.hear(&line);
            other.hear(&line);
        }
        for line in ["", "x", "x q", "x unknown 7", "x ? 8"] {
            other.hear(line);
        }
        other.hear(&one.lines(&Unsent { is_overflown: true, ..Unsent::default() })[0]);
        for expected in [Event::Notice(notice("")), Event::Notice(notice("a b  c")), Event::Lagged] {
            assert_eq!(events.try_recv(), Ok(expected));
        }
        assert!(events.try_recv().is_err());
        assert_eq!(*other.nonce_heard.borrow(), 0);
        let nonce = |number: u64| format!("{} ? {number}", other.sender);
        other.hear(&nonce(5));
        other.hear(&nonce(4));
        assert_eq!(*other.nonce_heard.borrow(), 5);
    }
}
