"""The schema of the agent's journal, as migrations, and the statements that read and write it."""

MIGRATIONS = (
    """
    CREATE TABLE claims (
        consumer TEXT NOT NULL PRIMARY KEY,
        state TEXT NOT NULL CHECK (state IN ('claiming', 'claimed', 'releasing')),
        request TEXT NOT NULL,      -- as the local API takes it
        allocations TEXT NOT NULL,  -- {provider uuid: {class: amount}}
        units TEXT NOT NULL,        -- {provider uuid: {class: [exact unit, ...]}}
        since REAL NOT NULL,
        adopted INTEGER NOT NULL CHECK (adopted IN (0, 1))
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE facts (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE history (
        id INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        consumer TEXT NOT NULL,
        event TEXT NOT NULL,
        detail TEXT NOT NULL
    ) STRICT;
    """,
    """
    CREATE TABLE moves (
        migration TEXT NOT NULL PRIMARY KEY,
        since REAL NOT NULL,
        ended INTEGER NOT NULL CHECK (ended IN (0, 1)),
        move TEXT NOT NULL          -- the migration context: agent.claims.claim
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE reshapes (
        id TEXT NOT NULL PRIMARY KEY,
        at REAL NOT NULL,
        done INTEGER NOT NULL CHECK (done IN (0, 1)),
        receipt TEXT NOT NULL       -- agent.reshape.receipt
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE claims ADD COLUMN cells TEXT NOT NULL DEFAULT '[]';  -- the guest's topology as it was chosen
    """,
    """
    ALTER TABLE claims ADD COLUMN makings TEXT NOT NULL DEFAULT '{}';  -- {unit that was not there: making}
    """,
    """
    ALTER TABLE history ADD COLUMN uid INTEGER;  -- who asked for it; null: the agent did it by itself
    ALTER TABLE history ADD COLUMN pid INTEGER;
    """,
    """
    CREATE TABLE doubts (
        id TEXT NOT NULL PRIMARY KEY,
        since REAL NOT NULL,
        doubt TEXT NOT NULL         -- agent.claims.doubt
    ) STRICT, WITHOUT ROWID;
    """,
    """
    -- {suffix: {class: [exact unit, ...]}}
    ALTER TABLE claims ADD COLUMN group_units TEXT NOT NULL DEFAULT '{}';
    """,
    """
    -- the name that each consumer had last; it outlives the claim as long as the history has an event of it
    CREATE TABLE names (consumer TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL) STRICT, WITHOUT ROWID;
    INSERT INTO names
        SELECT consumer, json_extract(request, '$.name') FROM claims
        WHERE CASE WHEN json_valid(request) THEN json_type(request, '$.name') = 'text' ELSE 0 END;
    """,
)

PUT_CLAIM = """
    INSERT OR REPLACE INTO claims
    (consumer, state, request, allocations, units, since, adopted, cells, makings, group_units)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SELECT_CLAIMS = """
    SELECT consumer, state, request, allocations, units, since, adopted, cells, makings, group_units
    FROM claims ORDER BY consumer
"""
PUT_MOVE = "INSERT OR REPLACE INTO moves (migration, since, ended, move) VALUES (?, ?, ?, ?)"
DELETE_OLD_MOVES = """
    DELETE FROM moves WHERE ended = 1 AND migration NOT IN
        (SELECT migration FROM moves WHERE ended = 1 ORDER BY since DESC, migration DESC LIMIT ?)
"""
PUT_RESHAPE = "INSERT OR REPLACE INTO reshapes (id, at, done, receipt) VALUES (?, ?, ?, ?)"
DELETE_OLD_RESHAPES = """
    DELETE FROM reshapes WHERE done = 1 AND id NOT IN
        (SELECT id FROM reshapes WHERE done = 1 ORDER BY at DESC, id DESC LIMIT ?)
"""
PUT_FACT = "INSERT OR REPLACE INTO facts VALUES (?, ?)"
PUT_DOUBT = "INSERT OR REPLACE INTO doubts (id, since, doubt) VALUES (?, ?, ?)"
SET_CLAIM_STATE = "UPDATE claims SET state = ? WHERE consumer = ?"
INSERT_EVENT = "INSERT INTO history (at, consumer, event, detail, uid, pid) VALUES (?, ?, ?, ?, ?, ?)"
SELECT_EVENTS = """
    SELECT at, consumer, event, detail, uid, pid, ifnull(name, '')
    FROM history LEFT JOIN names USING (consumer)
    WHERE at >= ? AND consumer = ifnull(?, consumer) ORDER BY id DESC LIMIT ?
"""
SELECT_LAST_EVENTS = """
    SELECT at, consumer, event, detail, uid, pid, ifnull(name, '')
    FROM history LEFT JOIN names USING (consumer)
    WHERE id IN (SELECT max(id) FROM history WHERE consumer != '' GROUP BY consumer)
        AND (name = ?1 OR substr(consumer, 1, length(?2)) = ?2)
    ORDER BY id DESC
"""
PUT_NAME = "INSERT OR REPLACE INTO names (consumer, name) VALUES (?, ?)"
DELETE_OLD_NAMES = "DELETE FROM names WHERE consumer NOT IN (SELECT consumer FROM history)"
DELETE_OLD_EVENTS = "DELETE FROM history WHERE id <= (SELECT max(id) FROM history) - ?"
