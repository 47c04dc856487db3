CREATE TABLE api_key (
    id         TEXT    PRIMARY KEY,
    name       TEXT    NOT NULL,
    hash       BLOB    NOT NULL,
    scopes     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    revoked_by TEXT,
    used_at    INTEGER,
    uses       INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX api_key_name ON api_key (name) WHERE revoked_at IS NULL;

CREATE TABLE audit (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    who    TEXT    NOT NULL,
    origin TEXT    NOT NULL,
    action TEXT    NOT NULL,
    target TEXT    NOT NULL,
    status INTEGER NOT NULL
) STRICT;
CREATE INDEX audit_at ON audit (at);

CREATE TABLE config (
    section TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    value   TEXT    NOT NULL,
    who     TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (section, key)
) STRICT;
CREATE TABLE config_change (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    section TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    before  TEXT,
    after   TEXT,
    who     TEXT    NOT NULL,
    at      INTEGER NOT NULL
) STRICT;
