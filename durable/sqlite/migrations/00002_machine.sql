-- +goose Up
-- What a durable.Runner needs beside records: the ledger of effects, the
-- resources that a record owns, the inbox of records that another process owns,
-- and the archive. JSON is kept as text; '' = nothing.

CREATE TABLE effects (
    record    INTEGER NOT NULL REFERENCES records (num) ON DELETE CASCADE,
    revision  INTEGER NOT NULL,          -- of the commit that planned it
    n         INTEGER NOT NULL,          -- its place in that commit, from 1
    kind      TEXT    NOT NULL,
    data      BLOB,                      -- JSON
    status    TEXT    NOT NULL CHECK (status IN ('planned', 'started', 'unknown', 'done', 'failed', 'superseded')),
    performer TEXT    NOT NULL,          -- JSON of berth.Identity; '' = not started
    progress  TEXT    NOT NULL,          -- JSON of berth.Progress; '' = none
    error     TEXT    NOT NULL,
    result    BLOB,                      -- JSON
    PRIMARY KEY (record, revision, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE owned (
    num      INTEGER PRIMARY KEY,        -- order of the owning
    record   INTEGER NOT NULL REFERENCES records (num) ON DELETE CASCADE,
    resource TEXT    NOT NULL,
    UNIQUE (record, resource)
) STRICT;

CREATE TABLE inbox (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT, -- a number never comes again
    record   INTEGER NOT NULL REFERENCES records (num) ON DELETE CASCADE,
    event    BLOB    NOT NULL,           -- JSON
    expected INTEGER NOT NULL,           -- revision; -1 = any
    sender   TEXT    NOT NULL,           -- JSON of berth.Identity
    posted   INTEGER NOT NULL,
    outcome  TEXT    NOT NULL            -- JSON of durable.Outcome; '' = it waits
) STRICT;

CREATE INDEX inbox_waiting ON inbox (record) WHERE outcome = '';
CREATE INDEX inbox_record ON inbox (record);

-- stamp sorts by time. body is JSON: the effects and owned ids.
CREATE TABLE archived (
    stamp           TEXT    NOT NULL,
    num             INTEGER NOT NULL,    -- order of the beginnings
    kind            TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    revision        INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    schema          INTEGER NOT NULL,
    state           BLOB    NOT NULL,
    owner           TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    fingerprint     TEXT    NOT NULL,
    busy_key        TEXT    NOT NULL,
    terminal        INTEGER NOT NULL CHECK (terminal = 1),
    created         INTEGER NOT NULL,
    updated         INTEGER NOT NULL,
    body            TEXT    NOT NULL,
    PRIMARY KEY (kind, stamp, num)
) STRICT;

PRAGMA user_version = 2;
