//! Requests from one member to another.

use database_core::Sql;

/// All of them.
pub const ALL: &[&Sql] = &[&INSERT, &TAKE, &ANSWER, &POLL, &DISCARD, &READDRESS, &PRUNE];

/// Takes kind, asker, addressee and payload; gives the id.
pub static INSERT: Sql = Sql::new(
    "request.insert",
    "INSERT INTO request (kind, asker, addressee, payload, created_at) VALUES ($1, $2, $3, $4, clock_timestamp()) \
     RETURNING id",
    "INSERT INTO request (kind, asker, addressee, payload, created_at) \
     VALUES ($1, $2, $3, $4, CAST(unixepoch('subsec') * 1000 AS INTEGER)) RETURNING id",
);

/// Takes the own id, the ids of requests that are in hand, and how many at most; gives id, kind, asker and payload, the oldest
/// first. What was taken before and is not in hand is given again: its answer was lost.
pub static TAKE: Sql = Sql::new(
    "request.take",
    "WITH mine AS (SELECT id FROM request WHERE addressee = $1 AND done_at IS NULL AND id <> ALL ($2) ORDER BY id LIMIT $3 \
     FOR UPDATE SKIP LOCKED), \
     taken AS (UPDATE request SET taken_at = clock_timestamp() FROM mine \
     WHERE request.id = mine.id AND addressee = $1 AND done_at IS NULL \
     RETURNING request.id, kind, asker, payload) SELECT id, kind, asker, payload FROM taken ORDER BY id",
    "UPDATE request SET taken_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE id IN (SELECT id FROM request \
     WHERE addressee = $1 AND done_at IS NULL AND id NOT IN (SELECT value FROM json_each($2)) ORDER BY id LIMIT $3) \
     RETURNING id, kind, asker, payload",
);

/// Written in the transaction of the effect. Takes id, own id and answer. No row changed: somebody else has it.
pub static ANSWER: Sql = Sql::new(
    "request.answer",
    "UPDATE request SET done_at = clock_timestamp(), answer = $3 WHERE id = $1 AND addressee = $2 AND done_at IS NULL",
    "UPDATE request SET done_at = CAST(unixepoch('subsec') * 1000 AS INTEGER), answer = $3 \
     WHERE id = $1 AND addressee = $2 AND done_at IS NULL",
);

/// Takes ids; gives id and answer of those that are done, and id and NULL of those that are not. One that is missing was
/// discarded.
pub static POLL: Sql = Sql::new(
    "request.poll",
    "SELECT id, answer FROM request WHERE id = ANY ($1) ORDER BY id",
    "SELECT id, answer FROM request WHERE id IN (SELECT value FROM json_each($1)) ORDER BY id",
);

/// Takes ids of members that are dead.
pub static DISCARD: Sql = Sql::new(
    "request.discard",
    "DELETE FROM request WHERE addressee = ANY ($1) AND done_at IS NULL",
    "DELETE FROM request WHERE addressee IN (SELECT value FROM json_each($1)) AND done_at IS NULL",
);

/// Takes ids of one's own retired identities, and the present one.
pub static READDRESS: Sql = Sql::new(
    "request.readdress",
    "UPDATE request SET addressee = $2, taken_at = NULL WHERE addressee = ANY ($1) AND done_at IS NULL",
    "UPDATE request SET addressee = $2, taken_at = NULL \
     WHERE addressee IN (SELECT value FROM json_each($1)) AND done_at IS NULL",
);

/// Deletes old requests, taken or not. Takes an age in ms, and how many at most.
pub static PRUNE: Sql = Sql::new(
    "request.prune",
    "DELETE FROM request WHERE id IN (SELECT id FROM request \
     WHERE created_at < clock_timestamp() - $1 * interval '1 millisecond' ORDER BY created_at LIMIT $2)",
    "DELETE FROM request WHERE id IN (SELECT id FROM request \
     WHERE created_at < CAST(unixepoch('subsec') * 1000 AS INTEGER) - $1 ORDER BY created_at LIMIT $2)",
);
