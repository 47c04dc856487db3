//! Members: registration, renewal, the guard of their writes, the view of the others.

use database_core::Sql;

/// All of them.
pub const ALL: &[&Sql] = &[
    &SETTLE_LEASE,
    &READ_LEASE,
    &LOCK_LEASE,
    &SET_LEASE,
    &REGISTER,
    &RENEW,
    &GUARD,
    &VIEW,
    &LOCK_DEAD,
    &LOCK,
    &DELETE,
    &MISSING,
];

/// Settles the lease's length where no member has yet. Takes lease ms.
pub static SETTLE_LEASE: Sql = Sql::new(
    "member.settle_lease",
    "INSERT INTO cluster_setting (name, value) VALUES ('lease_ms', $1) ON CONFLICT (name) DO NOTHING",
    "INSERT INTO cluster_setting (name, value) VALUES ('lease_ms', $1) ON CONFLICT (name) DO NOTHING",
);

/// The lease's length that all must use, in ms. Held until the registration is in: [`LOCK_LEASE`] waits for it.
pub static READ_LEASE: Sql = Sql::new(
    "member.read_lease",
    "SELECT value FROM cluster_setting WHERE name = 'lease_ms' FOR SHARE",
    "SELECT value FROM cluster_setting WHERE name = 'lease_ms'",
);

/// Waits for registrations under way, and keeps others out. Stands before [`SET_LEASE`], as a statement of its own: one that
/// waited would look for members as of its beginning, and not see who has just registered.
pub static LOCK_LEASE: Sql = Sql::new(
    "member.lock_lease",
    "SELECT value FROM cluster_setting WHERE name = 'lease_ms' FOR UPDATE",
    "SELECT value FROM cluster_setting WHERE name = 'lease_ms'",
);

/// Changes the lease's length while nobody else lives. Takes lease ms and the own id; changes no row if others live.
pub static SET_LEASE: Sql = Sql::new(
    "member.set_lease",
    "UPDATE cluster_setting SET value = $1 WHERE name = 'lease_ms' \
     AND NOT EXISTS (SELECT 1 FROM member WHERE id <> $2 AND lease_until >= clock_timestamp())",
    "UPDATE cluster_setting SET value = $1 WHERE name = 'lease_ms' AND $2 IS NOT NULL",
);

/// A new identity. Takes id, host, boot id, process, program version, schema version, lease ms; gives its number, ms
/// left and the database's time in ms.
pub static REGISTER: Sql = Sql::new(
    "member.register",
    "INSERT INTO member (id, host, boot_id, pid, program, schema_version, lease_until, heartbeat_at) \
     VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp() + $7 * interval '1 millisecond', clock_timestamp()) \
     RETURNING no, floor(extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint, \
     floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    "INSERT INTO member (id, host, boot_id, pid, program, schema_version, lease_until, heartbeat_at) \
     VALUES ($1, $2, $3, $4, $5, $6, CAST(unixepoch('subsec') * 1000 AS INTEGER) + $7, CAST(unixepoch('subsec') * 1000 AS INTEGER)) \
     RETURNING no, $7, CAST(unixepoch('subsec') * 1000 AS INTEGER)",
);

/// Takes the own id, lease ms, and how long ago the last beat was in ms; gives ms left and the database's time in ms.
/// A row of NULLs: expired, and so never again. No row: the registration is missing.
pub static RENEW: Sql = Sql::new(
    "member.renew",
    "WITH renewed AS (UPDATE member SET lease_until = clock_timestamp() + $2 * interval '1 millisecond', \
     heartbeat_at = clock_timestamp() - $3 * interval '1 millisecond' \
     WHERE id = $1 AND lease_until >= clock_timestamp() \
     RETURNING floor(extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint AS left_ms, \
     floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS db_ms) \
     SELECT left_ms, db_ms FROM renewed UNION ALL SELECT NULL, NULL FROM member \
     WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM renewed)",
    "",
);

/// Stands at the beginning of each transaction that writes what a member owns. Takes the own id. No row: write nothing.
/// Renewals pass beside it, the reaper does not.
pub static GUARD: Sql = Sql::new(
    "member.guard",
    "SELECT 1 FROM member WHERE id = $1 AND lease_until >= clock_timestamp() FOR KEY SHARE",
    "SELECT 1 FROM member WHERE id = $1",
);

/// What a beat reads, in one statement. Takes the own id and the oldest transaction that may have been open at the read
/// before (see [`super::cache`]).
///
/// Gives rows of: kind, a UUID, a text, and five integers.
/// `member`: id, host, number, ms left, ms since the last beat, process, schema version.
/// `leader`: holder or NULL, name, epoch, ms left (below 0: expired; NULL: given up), and three zeros.
/// `request`: NULL, NULL, how many wait for this member, and four zeros; always there.
/// `cache`: NULL, name, and five zeros. `snapshot`: NULL, NULL, the transaction to give next time, the database's
/// time in ms, and three zeros; always there.
pub static VIEW: Sql = Sql::new(
    "member.view",
    "SELECT 'member', id, host, no, floor(extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint, \
     floor(extract(epoch FROM clock_timestamp() - heartbeat_at) * 1000)::bigint, pid, schema_version FROM member \
     UNION ALL SELECT 'leader', holder, name, epoch, \
     CASE WHEN isfinite(lease_until) \
     THEN floor(extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint END, 0, 0, 0 FROM leader \
     UNION ALL SELECT 'request', NULL, NULL, count(*), 0, 0, 0, 0 FROM request WHERE addressee = $1 AND done_at IS NULL \
     UNION ALL SELECT DISTINCT 'cache', NULL::uuid, name, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint \
     FROM cache_change WHERE xid >= $2::bigint::text::xid8 \
     UNION ALL SELECT 'snapshot', NULL, NULL, pg_snapshot_xmin(pg_current_snapshot())::text::bigint, \
     floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, 0, 0, 0",
    "SELECT 'member', id, host, no, lease_until - CAST(unixepoch('subsec') * 1000 AS INTEGER), \
     CAST(unixepoch('subsec') * 1000 AS INTEGER) - heartbeat_at, pid, schema_version FROM member \
     UNION ALL SELECT 'leader', holder, name, epoch, \
     CASE WHEN holder IS NOT NULL THEN lease_until - CAST(unixepoch('subsec') * 1000 AS INTEGER) END, 0, 0, 0 FROM leader \
     UNION ALL SELECT 'request', NULL, NULL, count(*), 0, 0, 0, 0 FROM request WHERE addressee = $1 AND done_at IS NULL \
     UNION ALL SELECT 'snapshot', NULL, NULL, CASE WHEN $2 IS NULL THEN 0 ELSE 0 END, \
     CAST(unixepoch('subsec') * 1000 AS INTEGER), 0, 0, 0",
);

/// Locks up to 50 members that are dead, and gives their ids. Takes the ids that are known to be dead whatever their
/// lease says. Whoever is in a guarded transaction, or just renewed, is passed over.
pub static LOCK_DEAD: Sql = Sql::new(
    "member.lock_dead",
    "SELECT id FROM member WHERE lease_until < clock_timestamp() OR id = ANY ($1) ORDER BY id LIMIT 50 \
     FOR UPDATE SKIP LOCKED",
    "SELECT id FROM member WHERE id IN (SELECT value FROM json_each($1)) ORDER BY id LIMIT 50",
);

/// Locks registrations, one's own retired ones, and waits for transactions that are behind their guard. Takes ids; gives
/// those that are there.
pub static LOCK: Sql = Sql::new(
    "member.lock",
    "SELECT id FROM member WHERE id = ANY ($1) ORDER BY id FOR UPDATE",
    "SELECT id FROM member WHERE id IN (SELECT value FROM json_each($1)) ORDER BY id",
);

/// Ends registrations. Takes ids.
pub static DELETE: Sql = Sql::new(
    "member.delete",
    "DELETE FROM member WHERE id = ANY ($1)",
    "DELETE FROM member WHERE id IN (SELECT value FROM json_each($1))",
);

/// Takes ids; gives those that are not registered. Identities are never used again, so they never will be.
pub static MISSING: Sql = Sql::new(
    "member.missing",
    "SELECT id FROM unnest($1::uuid[]) AS owner (id) WHERE NOT EXISTS (SELECT 1 FROM member WHERE member.id = owner.id)",
    "SELECT value FROM json_each($1) WHERE value NOT IN (SELECT id FROM member)",
);
