//! Giving and freeing tickets: permits (places within a limit) and lanes (one after another).
//!
//! Whoever gives or frees a ticket holds its key's lock to the end of the transaction. A transaction about several keys
//! must take them in the order of [`Key`].

use database_core::{DbError, Row, Tx, Value};

use crate::planted::{Bug, is};
use crate::statements::ticket;
use crate::{MemberId, Notice, channel};

/// Keys of which the idle ones are removed in one transaction, at most.
pub const IDLE_KEYS_MAX: i64 = 1_000;

/// What kind of ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// One at a time.
    Lane,
    /// Up to a limit.
    Permit,
}

impl Kind {
    /// As the database has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::Permit => "permit",
        }
    }
}

/// What a ticket is of. Keys are locked in this order: it is the database's, too.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Lane or permit.
    pub kind: Kind,
    /// Its name. The database compares texts by bytes or by a locale: transactions over several keys use names that both
    /// order alike, or take them in the order that the database gave.
    pub name: String,
}

impl Key {
    /// A lane.
    #[must_use]
    pub fn lane(name: impl Into<String>) -> Self {
        Self { kind: Kind::Lane, name: name.into() }
    }

    /// A permit.
    #[must_use]
    pub fn permit(name: impl Into<String>) -> Self {
        Self { kind: Kind::Permit, name: name.into() }
    }

    fn values(&self) -> [Value; 2] {
        [self.kind.name().into(), self.name.as_str().into()]
    }

    fn at(row: &Row) -> Result<Self, DbError> {
        let kind = if row.text(0)? == Kind::Lane.name() { Kind::Lane } else { Kind::Permit };
        Ok(Self { kind, name: row.text(1)?.to_owned() })
    }
}

/// Who holds a ticket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// Work inside a daemon: freed by the reap, and after a fence.
    Member(MemberId),
    /// A run, by its id: freed in the transaction that ends it, and by nothing else. It outlives daemons.
    Run(String),
}

impl Holder {
    const MEMBER: &str = "member";
    const RUN: &str = "run";

    fn values(&self) -> [Value; 2] {
        match self {
            Self::Member(id) => [Self::MEMBER.into(), id.to_holder().into()],
            Self::Run(id) => [Self::RUN.into(), id.as_str().into()],
        }
    }

    fn of(kind: &str, holder: &str) -> Self {
        match MemberId::from_holder(holder) {
            Some(id) if kind == Self::MEMBER => Self::Member(id),
            _ => Self::Run(holder.to_owned()),
        }
    }
}

/// What became of a request for a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// The holder has it, perhaps since before.
    Given,
    /// The holder waits for its turn; whoever frees a ticket gives it.
    Waits,
}

/// A ticket that went from one to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Of this key.
    pub key: Key,
    /// Who has been given one; `None`: a place is free.
    pub to: Option<Holder>,
}

impl Moved {
    /// What is to be told after the commit.
    #[must_use]
    pub fn notice(&self) -> Notice {
        let channel = match self.key.kind {
            Kind::Lane => channel::LANE,
            Kind::Permit => channel::SLOT,
        };
        Notice { channel, payload: self.key.name.clone() }
    }
}

/// Gives `holder` a ticket if there is a place, else lets it wait; sets the key's limit. Asking again changes nothing.
///
/// A limit that was raised gives places to who waits: `moved` tells.
///
/// # Errors
///
/// What the database says.
pub async fn acquire(
    tx: &mut Tx,
    key: &Key,
    holder: &Holder,
    limit: i64,
    moved: &mut Vec<Moved>,
) -> Result<Acquired, DbError> {
    let [kind, name] = key.values();
    tx.execute(&ticket::LOCK_KEY, [kind, name, limit.into()]).await?;
    let [out, waiting, held, waits] = count(tx, key, holder).await?;
    if held > 0 {
        return Ok(Acquired::Given);
    }
    if out < limit && waiting == 0 {
        tx.execute(&ticket::INSERT, values(key, holder)).await?;
        return Ok(Acquired::Given);
    }
    if waits == 0 {
        tx.execute(&ticket::WAIT, values(key, holder)).await?;
    }
    if out >= limit {
        return Ok(Acquired::Waits);
    }
    let before = moved.len();
    hand_on(tx, key, limit - out, moved).await?;
    let is_given = moved[before..].iter().any(|moved| moved.to.as_ref() == Some(holder));
    Ok(if is_given { Acquired::Given } else { Acquired::Waits })
}

/// Frees what `holder` has of `key`, or its wait, and gives the ticket to whoever waits longest.
///
/// # Errors
///
/// What the database says.
pub async fn release(tx: &mut Tx, key: &Key, holder: &Holder, moved: &mut Vec<Moved>) -> Result<(), DbError> {
    release_all(tx, key, std::slice::from_ref(holder), moved).await
}

async fn release_all(tx: &mut Tx, key: &Key, holders: &[Holder], moved: &mut Vec<Moved>) -> Result<(), DbError> {
    let Some(row) = tx.query_opt(&ticket::FIND_KEY, key.values()).await? else { return Ok(()) };
    let limit = row.int(0)?;
    let mut freed = 0;
    for holder in holders {
        freed += tx.execute(&ticket::FREE, values(key, holder)).await?;
        tx.execute(&ticket::LEAVE, values(key, holder)).await?;
    }
    if freed == 0 || is(Bug::TicketNotHandedOn) {
        return Ok(());
    }
    let [out, waiting, ..] = count(tx, key, &holders[0]).await?;
    let places = limit - out;
    if waiting > 0 && places > 0 {
        hand_on(tx, key, places, moved).await?;
    } else if places > 0 {
        moved.push(Moved { key: key.clone(), to: None });
    }
    Ok(())
}

/// Gives up to `places` tickets to those who wait longest.
async fn hand_on(tx: &mut Tx, key: &Key, places: i64, moved: &mut Vec<Moved>) -> Result<(), DbError> {
    for _ in 0..places {
        let Some(row) = tx.query_opt(&ticket::NEXT, key.values()).await? else { break };
        let next = Holder::of(row.text(0)?, row.text(1)?);
        tx.execute(&ticket::GIVE, values(key, &next)).await?;
        tx.execute(&ticket::INSERT, values(key, &next)).await?;
        moved.push(Moved { key: key.clone(), to: Some(next) });
    }
    Ok(())
}

/// Frees all that these members hold or wait for, key by key.
///
/// # Errors
///
/// What the database says.
pub async fn free_of_members(tx: &mut Tx, members: &[MemberId], moved: &mut Vec<Moved>) -> Result<(), DbError> {
    let holders: Vec<Holder> = members.iter().map(|id| Holder::Member(*id)).collect();
    free_of(tx, Holder::MEMBER, &holders, moved).await?;
    if is(Bug::RunTicketsFreed) {
        let rows = tx.query(&ticket::HOLDERS, [Holder::RUN.into(), SWEEP_HOLDERS_MAX.into()]).await?;
        let runs: Result<Vec<Holder>, DbError> =
            rows.iter().map(|row| Ok(Holder::Run(row.text(0)?.to_owned()))).collect();
        free_of(tx, Holder::RUN, &runs?, moved).await?;
    }
    Ok(())
}

/// Frees all that a run holds or waits for. Belongs into the transaction that ends the run.
///
/// # Errors
///
/// What the database says.
pub async fn free_of_run(tx: &mut Tx, run: &str, moved: &mut Vec<Moved>) -> Result<(), DbError> {
    free_of(tx, Holder::RUN, &[Holder::Run(run.to_owned())], moved).await
}

async fn free_of(tx: &mut Tx, kind: &str, holders: &[Holder], moved: &mut Vec<Moved>) -> Result<(), DbError> {
    if holders.is_empty() {
        return Ok(());
    }
    let texts = holders.iter().map(|holder| {
        let [_, Value::Text(text)] = holder.values() else { unreachable!("a holder is a text") };
        text
    });
    let rows = tx.query(&ticket::OF_HOLDERS, [kind.into(), Value::Texts(texts.collect())]).await?;
    let mut rows = rows.iter().peekable();
    while let Some(row) = rows.next() {
        let key = Key::at(row)?;
        let mut here = vec![Holder::of(kind, row.text(2)?)];
        while let Some(next) = rows.peek() {
            if Key::at(next)? != key {
                break;
            }
            here.push(Holder::of(kind, next.text(2)?));
            rows.next();
        }
        release_all(tx, &key, &here, moved).await?;
    }
    Ok(())
}

/// Holders looked at in one sweep, at most.
const SWEEP_HOLDERS_MAX: i64 = 500;

/// Members that hold tickets or wait for some.
pub(super) async fn member_holders(tx: &mut Tx) -> Result<Vec<MemberId>, DbError> {
    let rows = tx.query(&ticket::HOLDERS, [Holder::MEMBER.into(), SWEEP_HOLDERS_MAX.into()]).await?;
    let ids: Result<Vec<Option<MemberId>>, DbError> =
        rows.iter().map(|row| Ok(MemberId::from_holder(row.text(0)?))).collect();
    Ok(ids?.into_iter().flatten().collect())
}

/// Removes keys that nobody holds or waits for; how many.
///
/// # Errors
///
/// What the database says.
pub async fn prune_keys(tx: &mut Tx) -> Result<u64, DbError> {
    let rows = tx.query(&ticket::LOCK_IDLE, [IDLE_KEYS_MAX.into()]).await?;
    let mut removed = 0;
    for row in &rows {
        removed += tx.execute(&ticket::DELETE_IDLE, Key::at(row)?.values()).await?;
    }
    Ok(removed)
}

/// Tickets out, waits, and of both this holder's.
async fn count(tx: &mut Tx, key: &Key, holder: &Holder) -> Result<[i64; 4], DbError> {
    let row = tx.query_opt(&ticket::COUNT, values(key, holder)).await?;
    let row = row.ok_or_else(|| DbError::new(database_core::Class::Broken, "a count gave no row"))?;
    Ok([row.int(0)?, row.int(1)?, row.int(2)?, row.int(3)?])
}

fn values(key: &Key, holder: &Holder) -> [Value; 4] {
    let [kind, name] = key.values();
    let [holder_kind, holder] = holder.values();
    [kind, name, holder_kind, holder]
}
