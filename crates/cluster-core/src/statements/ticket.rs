//! Tickets: permits and lanes. Whoever gives or frees one holds the lock of its key's row.

use database_core::Sql;

/// All of them.
pub const ALL: &[&Sql] = &[
    &LOCK_KEY,
    &FIND_KEY,
    &COUNT,
    &INSERT,
    &WAIT,
    &FREE,
    &LEAVE,
    &NEXT,
    &GIVE,
    &OF_HOLDERS,
    &HOLDERS,
    &LOCK_IDLE,
    &DELETE_IDLE,
];

/// Makes the key's row or sets its limit, and locks it. Takes kind, key and limit.
pub static LOCK_KEY: Sql = Sql::same(
    "ticket.lock_key",
    "INSERT INTO ticket_key (kind, key, lim) VALUES ($1, $2, $3) ON CONFLICT (kind, key) DO UPDATE SET lim = excluded.lim",
);

/// Locks the key's row if there is one, and gives its limit. Takes kind and key.
pub static FIND_KEY: Sql = Sql::new(
    "ticket.find_key",
    "SELECT lim FROM ticket_key WHERE kind = $1 AND key = $2 FOR UPDATE",
    "SELECT lim FROM ticket_key WHERE kind = $1 AND key = $2",
);

/// Takes kind, key, holder kind and holder; gives how many tickets are out, how many wait, how many of the tickets and of
/// the waits are this holder's.
pub static COUNT: Sql = Sql::same(
    "ticket.count",
    "SELECT (SELECT count(*) FROM ticket WHERE kind = $1 AND key = $2), \
     (SELECT count(*) FROM ticket_wait WHERE kind = $1 AND key = $2), \
     (SELECT count(*) FROM ticket WHERE kind = $1 AND key = $2 AND holder_kind = $3 AND holder = $4), \
     (SELECT count(*) FROM ticket_wait WHERE kind = $1 AND key = $2 AND holder_kind = $3 AND holder = $4)",
);

/// Takes kind, key, holder kind and holder.
pub static INSERT: Sql = Sql::new(
    "ticket.insert",
    "INSERT INTO ticket (kind, key, holder_kind, holder, since) VALUES ($1, $2, $3, $4, clock_timestamp())",
    "INSERT INTO ticket (kind, key, holder_kind, holder, since) \
     VALUES ($1, $2, $3, $4, CAST(unixepoch('subsec') * 1000 AS INTEGER))",
);

/// Takes kind, key, holder kind and holder.
pub static WAIT: Sql = Sql::new(
    "ticket.wait",
    "INSERT INTO ticket_wait (kind, key, holder_kind, holder, since) VALUES ($1, $2, $3, $4, clock_timestamp())",
    "INSERT INTO ticket_wait (kind, key, holder_kind, holder, since) \
     VALUES ($1, $2, $3, $4, CAST(unixepoch('subsec') * 1000 AS INTEGER))",
);

/// Takes kind, key, holder kind and holder.
pub static FREE: Sql =
    Sql::same("ticket.free", "DELETE FROM ticket WHERE kind = $1 AND key = $2 AND holder_kind = $3 AND holder = $4");

/// Takes kind, key, holder kind and holder.
pub static LEAVE: Sql = Sql::same(
    "ticket.leave",
    "DELETE FROM ticket_wait WHERE kind = $1 AND key = $2 AND holder_kind = $3 AND holder = $4",
);

/// Who waits longest. Takes kind and key; gives holder kind and holder.
pub static NEXT: Sql = Sql::same(
    "ticket.next",
    "SELECT holder_kind, holder FROM ticket_wait WHERE kind = $1 AND key = $2 ORDER BY no LIMIT 1",
);

/// Removes a wait that is to become a ticket. Takes kind, key, holder kind and holder. An alias of [`LEAVE`] by its text, but a
/// step of its own in traces.
pub static GIVE: Sql = Sql::same(
    "ticket.give",
    "DELETE FROM ticket_wait WHERE kind = $1 AND key = $2 AND holder_kind = $3 AND holder = $4",
);

/// Keys in which holders have tickets or wait. Takes holder kind and holders; gives kind, key and holder, ordered by kind,
/// key and holder: the order in which keys are locked.
pub static OF_HOLDERS: Sql = Sql::new(
    "ticket.of_holders",
    "SELECT kind, key, holder FROM ticket WHERE holder_kind = $1 AND holder = ANY ($2) \
     UNION SELECT kind, key, holder FROM ticket_wait WHERE holder_kind = $1 AND holder = ANY ($2) ORDER BY 1, 2, 3",
    "SELECT kind, key, holder FROM ticket WHERE holder_kind = $1 AND holder IN (SELECT value FROM json_each($2)) \
     UNION SELECT kind, key, holder FROM ticket_wait WHERE holder_kind = $1 \
     AND holder IN (SELECT value FROM json_each($2)) ORDER BY 1, 2, 3",
);

/// Who holds tickets or waits for some. Takes the holder kind and how many at most; gives holders.
pub static HOLDERS: Sql = Sql::same(
    "ticket.holders",
    "SELECT holder FROM ticket WHERE holder_kind = $1 UNION SELECT holder FROM ticket_wait WHERE holder_kind = $1 \
     ORDER BY 1 LIMIT $2",
);

/// Locks keys without tickets and waits. Takes how many at most; gives kind and key.
pub static LOCK_IDLE: Sql = Sql::new(
    "ticket.lock_idle",
    "SELECT kind, key FROM ticket_key AS k \
     WHERE NOT EXISTS (SELECT 1 FROM ticket AS t WHERE t.kind = k.kind AND t.key = k.key) \
     AND NOT EXISTS (SELECT 1 FROM ticket_wait AS w WHERE w.kind = k.kind AND w.key = k.key) \
     ORDER BY kind, key LIMIT $1 FOR UPDATE OF k SKIP LOCKED",
    "SELECT kind, key FROM ticket_key AS k \
     WHERE NOT EXISTS (SELECT 1 FROM ticket AS t WHERE t.kind = k.kind AND t.key = k.key) \
     AND NOT EXISTS (SELECT 1 FROM ticket_wait AS w WHERE w.kind = k.kind AND w.key = k.key) \
     ORDER BY kind, key LIMIT $1",
);

/// Removes a key that [`LOCK_IDLE`] locked. Takes kind and key. It looks again, with a snapshot of its own: a ticket may have
/// been given between that statement's snapshot and its lock.
pub static DELETE_IDLE: Sql = Sql::same(
    "ticket.delete_idle",
    "DELETE FROM ticket_key WHERE kind = $1 AND key = $2 \
     AND NOT EXISTS (SELECT 1 FROM ticket AS t WHERE t.kind = $1 AND t.key = $2) \
     AND NOT EXISTS (SELECT 1 FROM ticket_wait AS w WHERE w.kind = $1 AND w.key = $2)",
);
