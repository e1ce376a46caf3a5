-- Who is refused although its token is good: a token by its id (jti), a client, or a user, until a time in milliseconds.
-- Only adds: nodes that do not know it refuse nobody.
SET LOCAL lock_timeout = '2s';

CREATE TABLE unisono.revocations (
    kind  text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    until bigint           NOT NULL,
    PRIMARY KEY (kind, name)
);

-- Whoever could add events can note these, too.
DO $$
DECLARE
    writer name;
BEGIN
    FOR writer IN
        SELECT DISTINCT roles.rolname FROM pg_class
        CROSS JOIN LATERAL aclexplode(pg_class.relacl) AS granted
        JOIN pg_roles AS roles ON roles.oid = granted.grantee
        WHERE pg_class.oid = 'unisono.events'::regclass AND granted.privilege_type = 'INSERT'
          AND granted.grantee <> pg_class.relowner
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON unisono.revocations TO %I', writer);
    END LOOP;
END
$$;
