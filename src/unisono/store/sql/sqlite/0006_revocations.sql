-- Who is refused although its token is good: a token by its id (jti), a client, or a user, until a time in milliseconds.
CREATE TABLE revocations (
    kind  TEXT    NOT NULL,
    name  TEXT    NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
