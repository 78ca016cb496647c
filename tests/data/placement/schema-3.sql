-- A placement.db of schema 3 as released; every later version must open it.
PRAGMA application_id = 1347178563;
PRAGMA user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE journal (
        seq INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        changes ANY NOT NULL,   -- [{p, c, t or r: {uuid or name: [...] or null}}, ...]; a blob is its zlib stream
        keys TEXT NOT NULL,     -- {idempotency key: [digest of the write, its answer]}
        size INTEGER NOT NULL   -- characters of changes and keys
    ) STRICT;
INSERT INTO "journal" VALUES(1,1,'[{"t":{"CUSTOM_T":1800000000.5}}]','{}',35);
INSERT INTO "journal" VALUES(2,1,'[{"r":{"CUSTOM_C":1800000000.5}}]','{}',35);
INSERT INTO "journal" VALUES(3,1,'[{"p":{"00000001-0000-4000-8000-000000000000":[3,1800000000.5,"root",null,"00000001-0000-4000-8000-000000000000",{"VCPU":[8,1,1,2147483647,1,1.5,1800000000.5],"CUSTOM_C":[4,0,2,4,2,1.0,1800000000.5]},[],["00000005-0000-4000-8000-000000000000"],null]}}]','{}',254);
INSERT INTO "journal" VALUES(4,1,'[{"p":{"00000002-0000-4000-8000-000000000000":[4,1800000000.5,"child","00000001-0000-4000-8000-000000000000","00000001-0000-4000-8000-000000000000",{"VGPU":[2,0,1,2147483647,1,1.0,1800000000.5]},["CUSTOM_T","HW_NUMA_ROOT"],[],null]}}]','{}',236);
INSERT INTO "journal" VALUES(5,1,'[{"c":{"00000003-0000-4000-8000-000000000000":["project","user","INSTANCE",1,{"00000001-0000-4000-8000-000000000000":{"VCPU":2,"CUSTOM_C":2},"00000002-0000-4000-8000-000000000000":{"VGPU":1}},1800000000.5]}}]','{}',210);
INSERT INTO "journal" VALUES(6,1,'[{"c":{"00000004-0000-4000-8000-000000000000":["project","user",null,1,{"00000002-0000-4000-8000-000000000000":{"VGPU":1}},1800000000.5]}}]','{}',141);
INSERT INTO "journal" VALUES(7,0,'','',0);
CREATE TABLE meta (created_at REAL NOT NULL) STRICT;
INSERT INTO "meta" VALUES(1800000000.0);
COMMIT;
