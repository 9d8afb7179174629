-- +goose Up
-- Times are nanoseconds of Unix time, UTC. user_version repeats the number of
-- the migration, in the same transaction: it stands in the first 100 bytes of
-- the file, where an older program reads it without touching anything.

-- "brth": a database that is not ours is left alone.
PRAGMA application_id = 1651668072;

CREATE TABLE records (
    num             INTEGER PRIMARY KEY, -- order of the beginnings
    kind            TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    revision        INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    schema          INTEGER NOT NULL,
    state           BLOB    NOT NULL,
    owner           TEXT    NOT NULL,    -- JSON of berth.Identity
    idempotency_key TEXT    NOT NULL,
    fingerprint     TEXT    NOT NULL,
    busy_key        TEXT    NOT NULL,
    terminal        INTEGER NOT NULL CHECK (terminal IN (0, 1)),
    created         INTEGER NOT NULL,
    updated         INTEGER NOT NULL,
    UNIQUE (kind, id)
) STRICT;

-- The rules are held here too, should the code above them ever be wrong.
CREATE UNIQUE INDEX records_idempotency ON records (kind, idempotency_key) WHERE idempotency_key <> '';
CREATE UNIQUE INDEX records_busy ON records (busy_key) WHERE busy_key <> '' AND terminal = 0;
CREATE INDEX records_live ON records (kind, num) WHERE terminal = 0;
CREATE INDEX records_kind ON records (kind, num);

CREATE TABLE events (
    seq      INTEGER PRIMARY KEY,
    kind     TEXT    NOT NULL,
    subject  TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    at       INTEGER NOT NULL
) STRICT;

-- A row stays after the lease's end, with principal = '': its epoch must never
-- come again.
CREATE TABLE leases (
    name      TEXT    PRIMARY KEY,
    principal TEXT    NOT NULL,
    label     TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    boot_id   TEXT    NOT NULL,
    until     INTEGER NOT NULL,          -- nanoseconds of CLOCK_BOOTTIME in that boot
    ended     INTEGER NOT NULL           -- 0 while it is taken
) STRICT, WITHOUT ROWID;

CREATE INDEX leases_taken ON leases (name) WHERE principal <> '';

-- event_seq: the newest event's number, also when no event is kept.
-- lease_epoch: the highest epoch of a forgotten name; a new name starts above.
CREATE TABLE counters (
    name  TEXT    PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO counters (name, value) VALUES ('event_seq', 0), ('lease_epoch', 0);

PRAGMA user_version = 1;
