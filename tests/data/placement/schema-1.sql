-- A placement.db of schema 1 as released; every later version must open it.
PRAGMA application_id = 1347178563;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE consumers (
        uuid TEXT NOT NULL PRIMARY KEY,
        project_id TEXT NOT NULL,
        user_id TEXT NOT NULL,
        consumer_type TEXT,
        generation INTEGER NOT NULL,
        allocations TEXT NOT NULL,  -- {provider uuid: {class: amount}}
        updated_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "consumers" VALUES('00000003-0000-4000-8000-000000000000','project','user','INSTANCE',1,'{"00000001-0000-4000-8000-000000000000":{"VCPU":2,"CUSTOM_C":2},"00000002-0000-4000-8000-000000000000":{"VGPU":1}}',1800000000.5);
INSERT INTO "consumers" VALUES('00000004-0000-4000-8000-000000000000','project','user',NULL,1,'{"00000002-0000-4000-8000-000000000000":{"VGPU":1}}',1800000000.5);
CREATE TABLE meta (created_at REAL NOT NULL) STRICT;
INSERT INTO "meta" VALUES(1800000000.0);
CREATE TABLE resource_classes (name TEXT NOT NULL PRIMARY KEY, created_at REAL NOT NULL) STRICT;
INSERT INTO "resource_classes" VALUES('CUSTOM_C',1800000000.5);
CREATE TABLE resource_providers (
        id INTEGER PRIMARY KEY,
        uuid TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        generation INTEGER NOT NULL,
        parent_provider_uuid TEXT,
        root_provider_uuid TEXT NOT NULL,
        inventories TEXT NOT NULL,  -- {class: [total, reserved, min, max, step, ratio, updated_at]}
        traits TEXT NOT NULL,       -- [name, ...]
        aggregates TEXT NOT NULL,   -- [uuid, ...]
        updated_at REAL NOT NULL
    ) STRICT;
INSERT INTO "resource_providers" VALUES(1,'00000001-0000-4000-8000-000000000000','root',3,NULL,'00000001-0000-4000-8000-000000000000','{"VCPU":[8,1,1,2147483647,1,1.5,1800000000.5],"CUSTOM_C":[4,0,2,4,2,1.0,1800000000.5]}','[]','["00000005-0000-4000-8000-000000000000"]',1800000000.5);
INSERT INTO "resource_providers" VALUES(2,'00000002-0000-4000-8000-000000000000','child',4,'00000001-0000-4000-8000-000000000000','00000001-0000-4000-8000-000000000000','{"VGPU":[2,0,1,2147483647,1,1.0,1800000000.5]}','["CUSTOM_T","HW_NUMA_ROOT"]','[]',1800000000.5);
CREATE TABLE traits (name TEXT NOT NULL PRIMARY KEY, created_at REAL NOT NULL) STRICT;
INSERT INTO "traits" VALUES('CUSTOM_T',1800000000.5);
COMMIT;
