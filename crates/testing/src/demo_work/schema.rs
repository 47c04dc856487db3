//! The tables of the demonstration, and its statements.
//!
//! Triggers write into `demo_log` what happens to the cluster's own tables, in the transaction in which it happens. The
//! numbers of that log are given after the locks of what is logged have been taken, so of two transactions that exclude
//! each other the later one has the higher numbers.

use database_core::{Migration, Sql};

/// Places of each permit.
pub const PERMIT_LIMIT: i64 = 3;
/// Permit that only runs hold.
pub const RUNS_KEY: &str = "runs";
/// The cached value.
pub const SETTING: &str = "colour";

/// Steps of the schema: the cluster's own and the demonstration's.
pub const MIGRATIONS: &[Migration] = &[
    Migration::new(1, "cluster", cluster_core::schema::POSTGRES, cluster_core::schema::SQLITE, 1),
    // Its triggers have the word DELETE; it removes nothing.
    Migration::new(2, "demo", POSTGRES, SQLITE, 2).contracting(),
];

const POSTGRES: &str = "\
CREATE TABLE demo_log (
    no      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us   bigint NOT NULL DEFAULT floor(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint,
    kind    text   NOT NULL,
    member  text   NOT NULL,
    subject text   NOT NULL,
    number  bigint NOT NULL,
    extra   text   NOT NULL
);
CREATE TABLE demo_work (
    id      bigint      PRIMARY KEY,
    kind    text        NOT NULL,
    key     text        NOT NULL,
    state   text        NOT NULL DEFAULT 'ready',
    due     timestamptz NOT NULL,
    owner   uuid,
    attempt bigint      NOT NULL DEFAULT 0,
    work_ms bigint      NOT NULL,
    effects bigint      NOT NULL DEFAULT 0
);
CREATE INDEX demo_work_due ON demo_work (due, id) WHERE state = 'ready';
CREATE INDEX demo_work_owner ON demo_work (owner) WHERE owner IS NOT NULL;
CREATE TABLE demo_run (
    id     bigint      PRIMARY KEY,
    state  text        NOT NULL,
    due    timestamptz NOT NULL,
    run_ms bigint      NOT NULL
);
CREATE TABLE demo_setting (name text PRIMARY KEY, value bigint NOT NULL);
INSERT INTO demo_setting VALUES ('colour', 0);

CREATE FUNCTION demo_member_gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO demo_log (kind, member, subject, number, extra)
    VALUES ('gone', replace(OLD.id::text, '-', ''), '', OLD.no, '');
    RETURN NULL;
END $$;
CREATE TRIGGER demo_member_gone AFTER DELETE ON member FOR EACH ROW EXECUTE FUNCTION demo_member_gone();

CREATE FUNCTION demo_leader_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO demo_log (kind, member, subject, number, extra)
    VALUES ('leader', replace(coalesce(NEW.holder::text, ''), '-', ''), NEW.name, NEW.epoch, '');
    RETURN NULL;
END $$;
CREATE TRIGGER demo_leader_changed AFTER UPDATE ON leader FOR EACH ROW
    WHEN (OLD.holder IS DISTINCT FROM NEW.holder OR OLD.epoch <> NEW.epoch) EXECUTE FUNCTION demo_leader_changed();

CREATE FUNCTION demo_ticket_moved() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO demo_log (kind, member, subject, number, extra)
        VALUES ('ticket', NEW.holder, NEW.kind || ' ' || NEW.key, 1, NEW.holder_kind);
    ELSE
        INSERT INTO demo_log (kind, member, subject, number, extra)
        VALUES ('ticket', OLD.holder, OLD.kind || ' ' || OLD.key, -1, OLD.holder_kind);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER demo_ticket_moved AFTER INSERT OR DELETE ON ticket FOR EACH ROW EXECUTE FUNCTION demo_ticket_moved();
";

const SQLITE: &str = "\
CREATE TABLE demo_log (
    no      INTEGER PRIMARY KEY AUTOINCREMENT,
    at_us   INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    kind    TEXT    NOT NULL,
    member  TEXT    NOT NULL,
    subject TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    extra   TEXT    NOT NULL
) STRICT;
CREATE TABLE demo_work (
    id      INTEGER PRIMARY KEY,
    kind    TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    state   TEXT    NOT NULL DEFAULT 'ready',
    due     INTEGER NOT NULL,
    owner   TEXT,
    attempt INTEGER NOT NULL DEFAULT 0,
    work_ms INTEGER NOT NULL,
    effects INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX demo_work_due ON demo_work (due, id) WHERE state = 'ready';
CREATE INDEX demo_work_owner ON demo_work (owner) WHERE owner IS NOT NULL;
CREATE TABLE demo_run (
    id     INTEGER PRIMARY KEY,
    state  TEXT    NOT NULL,
    due    INTEGER NOT NULL,
    run_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE demo_setting (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO demo_setting VALUES ('colour', 0);

CREATE TRIGGER demo_member_gone AFTER DELETE ON member BEGIN
    INSERT INTO demo_log (kind, member, subject, number, extra) VALUES ('gone', OLD.id, '', OLD.no, '');
END;
CREATE TRIGGER demo_leader_changed AFTER UPDATE ON leader WHEN OLD.holder IS NOT NEW.holder OR OLD.epoch <> NEW.epoch BEGIN
    INSERT INTO demo_log (kind, member, subject, number, extra)
    VALUES ('leader', coalesce(NEW.holder, ''), NEW.name, NEW.epoch, '');
END;
CREATE TRIGGER demo_ticket_given AFTER INSERT ON ticket BEGIN
    INSERT INTO demo_log (kind, member, subject, number, extra)
    VALUES ('ticket', NEW.holder, NEW.kind || ' ' || NEW.key, 1, NEW.holder_kind);
END;
CREATE TRIGGER demo_ticket_freed AFTER DELETE ON ticket BEGIN
    INSERT INTO demo_log (kind, member, subject, number, extra)
    VALUES ('ticket', OLD.holder, OLD.kind || ' ' || OLD.key, -1, OLD.holder_kind);
END;
";

/// Takes kind, member, subject, number and what else there is.
pub(crate) static LOG: Sql =
    Sql::same("demo.log", "INSERT INTO demo_log (kind, member, subject, number, extra) VALUES ($1, $2, $3, $4, $5)");

/// The whole log in its order. Takes the number after which it begins.
pub static READ_LOG: Sql = Sql::same(
    "demo.read_log",
    "SELECT no, at_us, kind, member, subject, number, extra FROM demo_log WHERE no > $1 ORDER BY no LIMIT 10000",
);

/// New work. Takes id, kind, key, ms until it is due, ms that it takes.
pub static ADD: Sql = Sql::new(
    "demo.add",
    "INSERT INTO demo_work (id, kind, key, due, work_ms) \
     VALUES ($1, $2, $3, clock_timestamp() + $4 * interval '1 millisecond', $5)",
    "INSERT INTO demo_work (id, kind, key, due, work_ms) \
     VALUES ($1, $2, $3, CAST(unixepoch('subsec') * 1000 AS INTEGER) + $4, $5)",
);

/// Takes the own id and how many at most; gives id, attempt, kind, key and ms.
pub(crate) static CLAIM: Sql = Sql::new(
    "demo.claim",
    "WITH due AS (SELECT id FROM demo_work WHERE state = 'ready' AND due <= clock_timestamp() ORDER BY due, id LIMIT $2 \
     FOR UPDATE SKIP LOCKED) \
     UPDATE demo_work SET state = 'running', owner = $1, attempt = attempt + 1 FROM due \
     WHERE demo_work.id = due.id AND state = 'ready' \
     RETURNING demo_work.id, attempt, kind, key, work_ms",
    "UPDATE demo_work SET state = 'running', owner = $1, attempt = attempt + 1 WHERE id IN (SELECT id FROM demo_work \
     WHERE state = 'ready' AND due <= CAST(unixepoch('subsec') * 1000 AS INTEGER) ORDER BY due, id LIMIT $2) \
     RETURNING id, attempt, kind, key, work_ms",
);

/// What this member owns, as [`CLAIM`] gave it. Takes the own id.
pub(crate) static MINE: Sql = Sql::same(
    "demo.mine",
    "SELECT id, attempt, kind, key, work_ms FROM demo_work WHERE owner = $1 AND state = 'running' ORDER BY id",
);

/// Takes id, own id and attempt. No row changed: it is somebody else's.
pub(crate) static FINISH: Sql = Sql::same(
    "demo.finish",
    "UPDATE demo_work SET state = 'done', owner = NULL, effects = effects + 1 \
     WHERE id = $1 AND owner = $2 AND attempt = $3 AND state = 'running'",
);

/// Takes owners; gives id and attempt of what was theirs.
pub(crate) static GIVE_UP: Sql = Sql::new(
    "demo.give_up",
    "UPDATE demo_work SET state = 'ready', owner = NULL WHERE owner = ANY ($1) AND state = 'running' RETURNING id, attempt",
    "UPDATE demo_work SET state = 'ready', owner = NULL WHERE owner IN (SELECT value FROM json_each($1)) \
     AND state = 'running' RETURNING id, attempt",
);

/// Takes how many at most.
pub(crate) static OWNERS: Sql =
    Sql::same("demo.owners", "SELECT DISTINCT owner FROM demo_work WHERE owner IS NOT NULL LIMIT $1");

/// Takes id, state and ms that it runs.
pub(crate) static RUN_START: Sql = Sql::new(
    "demo.run_start",
    "INSERT INTO demo_run (id, state, due, run_ms) VALUES ($1, $2, clock_timestamp() + $3 * interval '1 millisecond', $3)",
    "INSERT INTO demo_run (id, state, due, run_ms) VALUES ($1, $2, CAST(unixepoch('subsec') * 1000 AS INTEGER) + $3, $3)",
);

/// Lets runs go that have been given their ticket.
pub(crate) static RUN_WAKE: Sql = Sql::new(
    "demo.run_wake",
    "UPDATE demo_run SET state = 'running', due = clock_timestamp() + run_ms * interval '1 millisecond' \
     WHERE state = 'waiting' AND EXISTS (SELECT 1 FROM ticket WHERE holder_kind = 'run' AND holder = demo_run.id::text)",
    "UPDATE demo_run SET state = 'running', due = CAST(unixepoch('subsec') * 1000 AS INTEGER) + run_ms \
     WHERE state = 'waiting' \
     AND EXISTS (SELECT 1 FROM ticket WHERE holder_kind = 'run' AND holder = CAST(demo_run.id AS TEXT))",
);

/// A run that is to be ended now.
pub(crate) static RUN_DUE: Sql = Sql::new(
    "demo.run_due",
    "SELECT id FROM demo_run WHERE state = 'running' AND due <= clock_timestamp() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED",
    "SELECT id FROM demo_run WHERE state = 'running' AND due <= CAST(unixepoch('subsec') * 1000 AS INTEGER) \
     ORDER BY id LIMIT 1",
);

/// Takes the run.
pub(crate) static RUN_END: Sql =
    Sql::same("demo.run_end", "UPDATE demo_run SET state = 'ended' WHERE id = $1 AND state = 'running'");

/// Takes the name; gives the new value.
pub(crate) static SET: Sql =
    Sql::same("demo.set", "UPDATE demo_setting SET value = value + 1 WHERE name = $1 RETURNING value");

/// Takes the name; gives the value.
pub(crate) static GET: Sql = Sql::same("demo.get", "SELECT value FROM demo_setting WHERE name = $1");

/// Keeps a connection busy. Takes ms.
pub(crate) static SLEEP: Sql =
    Sql::new("demo.sleep", "SELECT pg_sleep($1::bigint / 1000.0) IS NULL", "SELECT $1 IS NULL");

/// What is left: work that is not done, runs that go on, work of owners that are not registered, tickets of such, tickets
/// of runs that have ended, leaderships of such, members whose lease is over.
pub static LEFT: Sql = Sql::new(
    "demo.left",
    "SELECT (SELECT count(*) FROM demo_work WHERE state <> 'done'), \
     (SELECT count(*) FROM demo_run WHERE state <> 'ended'), \
     (SELECT count(*) FROM demo_work WHERE owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM member WHERE member.id = owner)), \
     (SELECT count(*) FROM ticket WHERE holder_kind = 'member' \
      AND NOT EXISTS (SELECT 1 FROM member WHERE replace(member.id::text, '-', '') = holder)), \
     (SELECT count(*) FROM ticket WHERE holder_kind = 'run' \
      AND NOT EXISTS (SELECT 1 FROM demo_run WHERE demo_run.id::text = holder AND state <> 'ended')), \
     (SELECT count(*) FROM leader WHERE holder IS NOT NULL AND NOT EXISTS (SELECT 1 FROM member WHERE member.id = holder)), \
     (SELECT count(*) FROM member WHERE lease_until < clock_timestamp())",
    "SELECT (SELECT count(*) FROM demo_work WHERE state <> 'done'), \
     (SELECT count(*) FROM demo_run WHERE state <> 'ended'), \
     (SELECT count(*) FROM demo_work WHERE owner IS NOT NULL AND owner NOT IN (SELECT id FROM member)), \
     (SELECT count(*) FROM ticket WHERE holder_kind = 'member' AND holder NOT IN (SELECT id FROM member)), \
     (SELECT count(*) FROM ticket WHERE holder_kind = 'run' \
      AND holder NOT IN (SELECT CAST(id AS TEXT) FROM demo_run WHERE state <> 'ended')), \
     (SELECT count(*) FROM leader WHERE holder IS NOT NULL AND holder NOT IN (SELECT id FROM member)), 0",
);
