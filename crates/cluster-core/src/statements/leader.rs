//! Leadership: a row per name, seeded with the schema, so there is no race to insert it.

use database_core::Sql;

/// All of them.
pub const ALL: &[&Sql] = &[&CONTEST, &SEIZE, &RELEASE, &GIVE_UP, &GUARD];

/// Renews what is held and takes what is free, for all names at once. Takes the own id, names, for each the epoch in which
/// it is held (0: it is to be taken), lease ms, and the lowest epoch that may be given (timeline times 2³²).
///
/// Gives for each name: name, `renewed`, `taken` or `other`, epoch, holder or NULL, ms left (NULL: given up).
/// `other` shows the row as it was: somebody else's, or locked by a guarded transaction of the former holder, or held by the
/// caller in an epoch it does not know of, after a take whose answer was lost. Never waits for a guarded transaction.
///
/// Whoever takes has its registration locked as [`super::member::GUARD`] does. Without that, a take that had begun before
/// the registration was ended could commit after it, and a leadership would be held by nobody that lives.
pub static CONTEST: Sql = Sql::new(
    "leader.contest",
    "WITH want AS (SELECT name, epoch FROM unnest($2::text[], $3::bigint[]) AS w (name, epoch)), \
     renewed AS (UPDATE leader SET lease_until = clock_timestamp() + $4 * interval '1 millisecond' FROM want \
     WHERE leader.name = want.name AND leader.epoch = want.epoch AND leader.holder = $1 \
     AND leader.lease_until >= clock_timestamp() RETURNING leader.name, leader.epoch, \
     floor(extract(epoch FROM leader.lease_until - clock_timestamp()) * 1000)::bigint AS left_ms), \
     me AS (SELECT 1 FROM member WHERE id = $1 AND lease_until >= clock_timestamp() FOR KEY SHARE), \
     free AS (SELECT leader.name FROM leader JOIN want ON leader.name = want.name AND want.epoch = 0 \
     WHERE (holder IS NULL OR lease_until < clock_timestamp()) AND EXISTS (SELECT 1 FROM me) \
     FOR UPDATE OF leader SKIP LOCKED), \
     taken AS (UPDATE leader SET epoch = GREATEST(leader.epoch + 1, $5), holder = $1, \
     lease_until = clock_timestamp() + $4 * interval '1 millisecond' FROM free \
     WHERE leader.name = free.name AND (leader.holder IS NULL OR leader.lease_until < clock_timestamp()) \
     RETURNING leader.name, leader.epoch, \
     floor(extract(epoch FROM leader.lease_until - clock_timestamp()) * 1000)::bigint AS left_ms) \
     SELECT name, 'renewed', epoch, $1::uuid, left_ms FROM renewed \
     UNION ALL SELECT name, 'taken', epoch, $1::uuid, left_ms FROM taken \
     UNION ALL SELECT leader.name, 'other', leader.epoch, leader.holder, CASE WHEN isfinite(lease_until) \
     THEN floor(extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint END \
     FROM leader JOIN want ON leader.name = want.name \
     WHERE leader.name NOT IN (SELECT name FROM renewed UNION ALL SELECT name FROM taken)",
    "",
);

/// The only process of a SQLite file leads, in a higher epoch at each start. Takes the own id and names; gives name, epoch.
pub static SEIZE: Sql = Sql::new(
    "leader.seize",
    "",
    "UPDATE leader SET epoch = epoch + 1, holder = $1, lease_until = 0 WHERE name IN (SELECT value FROM json_each($2)) \
     RETURNING name, epoch",
);

/// Takes name, own id and epoch.
pub static RELEASE: Sql = Sql::new(
    "leader.release",
    "UPDATE leader SET holder = NULL, lease_until = '-infinity' WHERE name = $1 AND holder = $2 AND epoch = $3",
    "UPDATE leader SET holder = NULL, lease_until = 0 WHERE name = $1 AND holder = $2 AND epoch = $3",
);

/// Gives up what dead or retired identities lead. Takes their ids; gives the names.
pub static GIVE_UP: Sql = Sql::new(
    "leader.give_up",
    "UPDATE leader SET holder = NULL, lease_until = '-infinity' WHERE holder = ANY ($1) RETURNING name",
    "UPDATE leader SET holder = NULL, lease_until = 0 WHERE holder IN (SELECT value FROM json_each($1)) RETURNING name",
);

/// Stands at the beginning of each transaction of a leader. Takes name, own id and epoch. No row: not the leader, or dead.
/// It is the guard of the member too: a reap gives the leadership up without waiting for this transaction.
pub static GUARD: Sql = Sql::new(
    "leader.guard",
    "SELECT 1 FROM leader JOIN member ON member.id = leader.holder WHERE name = $1 AND holder = $2 AND epoch = $3 \
     AND leader.lease_until >= clock_timestamp() AND member.lease_until >= clock_timestamp() FOR KEY SHARE",
    "SELECT 1 FROM leader WHERE name = $1 AND holder = $2 AND epoch = $3",
);
