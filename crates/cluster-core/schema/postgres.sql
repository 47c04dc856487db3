-- Values that all members must agree on, such as the lease's length in ms.
CREATE TABLE cluster_setting (
    name  text   PRIMARY KEY,
    value bigint NOT NULL
);

-- One row per living identity. Nobody but its own renewal and the reaper updates or locks a row, except FOR KEY SHARE.
CREATE TABLE member (
    id             uuid        PRIMARY KEY,
    no             bigint      GENERATED ALWAYS AS IDENTITY,
    host           text        NOT NULL,
    boot_id        text        NOT NULL,
    pid            bigint      NOT NULL,
    program        text        NOT NULL,
    schema_version bigint      NOT NULL,
    lease_until    timestamptz NOT NULL,
    heartbeat_at   timestamptz NOT NULL
);

-- The unique key on (name, epoch) makes a takeover wait for guarded transactions, and lets a renewal pass beside them.
CREATE TABLE leader (
    name        text        PRIMARY KEY,
    epoch       bigint      NOT NULL,
    holder      uuid,
    lease_until timestamptz NOT NULL,
    UNIQUE (name, epoch)
);
INSERT INTO leader (name, epoch, lease_until) VALUES ('scheduler', 0, '-infinity'), ('dispatch', 0, '-infinity');

-- A key has a row as long as somebody holds a ticket of it or waits for one; whoever gives or frees one locks the row.
CREATE TABLE ticket_key (
    kind text   NOT NULL CHECK (kind IN ('permit', 'lane')),
    key  text   NOT NULL,
    lim  bigint NOT NULL CHECK (lim > 0),
    PRIMARY KEY (kind, key)
);
CREATE TABLE ticket (
    kind        text        NOT NULL,
    key         text        NOT NULL,
    holder_kind text        NOT NULL CHECK (holder_kind IN ('member', 'run')),
    holder      text        NOT NULL,
    since       timestamptz NOT NULL,
    PRIMARY KEY (kind, key, holder_kind, holder),
    FOREIGN KEY (kind, key) REFERENCES ticket_key
);
CREATE INDEX ticket_holder ON ticket (holder_kind, holder);
CREATE TABLE ticket_wait (
    no          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text        NOT NULL,
    key         text        NOT NULL,
    holder_kind text        NOT NULL CHECK (holder_kind IN ('member', 'run')),
    holder      text        NOT NULL,
    since       timestamptz NOT NULL,
    UNIQUE (kind, key, holder_kind, holder),
    FOREIGN KEY (kind, key) REFERENCES ticket_key
);
CREATE INDEX ticket_wait_turn ON ticket_wait (kind, key, no);
CREATE INDEX ticket_wait_holder ON ticket_wait (holder_kind, holder);

CREATE TABLE counter (
    name         text        NOT NULL,
    window_start timestamptz NOT NULL,
    window_end   timestamptz NOT NULL,
    n            bigint      NOT NULL,
    PRIMARY KEY (name, window_start)
);
CREATE INDEX counter_end ON counter (window_end);

-- What must be dropped from caches. The transaction's number tells who can have read past a row that was not there yet.
CREATE TABLE cache_change (
    id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid  xid8        NOT NULL DEFAULT pg_current_xact_id(),
    name text        NOT NULL,
    at   timestamptz NOT NULL
);

CREATE TABLE request (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text        NOT NULL,
    asker      uuid        NOT NULL,
    addressee  uuid        NOT NULL,
    payload    text        NOT NULL,
    created_at timestamptz NOT NULL,
    taken_at   timestamptz,
    done_at    timestamptz,
    answer     text
);
CREATE INDEX request_open ON request (addressee, id) WHERE done_at IS NULL;
CREATE INDEX request_age ON request (created_at);
