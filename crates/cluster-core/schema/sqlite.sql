CREATE TABLE cluster_setting (
    name  TEXT    PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;

-- There is one member, which needs no lease: it holds the file's lock for life.
CREATE TABLE member (
    no             INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT    NOT NULL UNIQUE,
    host           TEXT    NOT NULL,
    boot_id        TEXT    NOT NULL,
    pid            INTEGER NOT NULL,
    program        TEXT    NOT NULL,
    schema_version INTEGER NOT NULL,
    lease_until    INTEGER NOT NULL,
    heartbeat_at   INTEGER NOT NULL
) STRICT;

CREATE TABLE leader (
    name        TEXT    PRIMARY KEY,
    epoch       INTEGER NOT NULL,
    holder      TEXT,
    lease_until INTEGER NOT NULL
) STRICT;
INSERT INTO leader (name, epoch, lease_until) VALUES ('scheduler', 0, 0), ('dispatch', 0, 0);

CREATE TABLE ticket_key (
    kind TEXT    NOT NULL CHECK (kind IN ('permit', 'lane')),
    key  TEXT    NOT NULL,
    lim  INTEGER NOT NULL CHECK (lim > 0),
    PRIMARY KEY (kind, key)
) STRICT;
CREATE TABLE ticket (
    kind        TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    holder_kind TEXT    NOT NULL CHECK (holder_kind IN ('member', 'run')),
    holder      TEXT    NOT NULL,
    since       INTEGER NOT NULL,
    PRIMARY KEY (kind, key, holder_kind, holder),
    FOREIGN KEY (kind, key) REFERENCES ticket_key
) STRICT;
CREATE INDEX ticket_holder ON ticket (holder_kind, holder);
CREATE TABLE ticket_wait (
    no          INTEGER PRIMARY KEY AUTOINCREMENT,
    kind        TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    holder_kind TEXT    NOT NULL CHECK (holder_kind IN ('member', 'run')),
    holder      TEXT    NOT NULL,
    since       INTEGER NOT NULL,
    UNIQUE (kind, key, holder_kind, holder),
    FOREIGN KEY (kind, key) REFERENCES ticket_key
) STRICT;
CREATE INDEX ticket_wait_turn ON ticket_wait (kind, key, no);
CREATE INDEX ticket_wait_holder ON ticket_wait (holder_kind, holder);

CREATE TABLE counter (
    name         TEXT    NOT NULL,
    window_start INTEGER NOT NULL,
    window_end   INTEGER NOT NULL,
    n            INTEGER NOT NULL,
    PRIMARY KEY (name, window_start)
) STRICT;
CREATE INDEX counter_end ON counter (window_end);

CREATE TABLE request (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    kind       TEXT    NOT NULL,
    asker      TEXT    NOT NULL,
    addressee  TEXT    NOT NULL,
    payload    TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    taken_at   INTEGER,
    done_at    INTEGER,
    answer     TEXT
) STRICT;
CREATE INDEX request_open ON request (addressee, id) WHERE done_at IS NULL;
CREATE INDEX request_age ON request (created_at);
