-- Keys of the HTTP API. A key is never deleted: the audit log names it.
CREATE TABLE api_key (
    id         text        PRIMARY KEY,
    name       text        NOT NULL,
    hash       bytea       NOT NULL,
    scopes     text        NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text        NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    revoked_by text,
    used_at    timestamptz,
    uses       bigint      NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX api_key_name ON api_key (name) WHERE revoked_at IS NULL;

CREATE TABLE audit (
    id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL,
    who    text        NOT NULL,
    origin text        NOT NULL,
    action text        NOT NULL,
    target text        NOT NULL,
    status bigint      NOT NULL
);
CREATE INDEX audit_at ON audit (at);

-- Options that are set in the database, over those of the file.
CREATE TABLE config (
    section text        NOT NULL,
    key     text        NOT NULL,
    value   text        NOT NULL,
    who     text        NOT NULL,
    at      timestamptz NOT NULL,
    PRIMARY KEY (section, key)
);
-- The newest row's id is the version of the table above.
CREATE TABLE config_change (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    section text        NOT NULL,
    key     text        NOT NULL,
    before  text,
    after   text,
    who     text        NOT NULL,
    at      timestamptz NOT NULL
);
