PRAGMA application_id = 1347174727;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE claims (
        consumer TEXT NOT NULL PRIMARY KEY,
        state TEXT NOT NULL CHECK (state IN ('claiming', 'claimed', 'releasing')),
        request TEXT NOT NULL,      -- as the local API takes it
        allocations TEXT NOT NULL,  -- {provider uuid: {class: amount}}
        units TEXT NOT NULL,        -- {provider uuid: {class: [exact unit, ...]}}
        since REAL NOT NULL,
        adopted INTEGER NOT NULL CHECK (adopted IN (0, 1))
    ) STRICT, WITHOUT ROWID;
INSERT INTO "claims" VALUES('46af08a3-9132-596d-8e22-639e07acd163','claimed','{"consumer":"46af08a3-9132-596d-8e22-639e07acd163","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2,"PCPU":2}}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"PCPU":["4","5"]}}',1.79525799030925583841e+09,0);
INSERT INTO "claims" VALUES('7f24eabb-1202-579a-97cf-0b122bb1cc86','claiming','{"consumer":"7f24eabb-1202-579a-97cf-0b122bb1cc86","groups":[{"suffix":"","resources":{"SRIOV_NET_VF":1}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"}','{"30c4e734-fca5-50e5-a8c5-a190e526a2d0":{"SRIOV_NET_VF":1}}','{"30c4e734-fca5-50e5-a8c5-a190e526a2d0":{"SRIOV_NET_VF":["0000:41:02.0"]}}',1.79525799031258392335e+09,0);
INSERT INTO "claims" VALUES('a431c3fc-0c10-5e40-8af5-ffbc8d6c0339','releasing','{"consumer":"a431c3fc-0c10-5e40-8af5-ffbc8d6c0339","groups":[{"suffix":"","resources":{"MEMORY_MB":64}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"MEMORY_MB":64}}','{}',1.79525799031790614128e+09,0);
INSERT INTO "claims" VALUES('e4200c9d-eb38-563d-88e0-8c583025819a','claimed','{"consumer":"e4200c9d-eb38-563d-88e0-8c583025819a","groups":[{"suffix":"","resources":{"VCPU":1,"VGPU":1}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":1},"80664a2d-0510-5f94-96c9-4e457c1af98c":{"VGPU":1}}','{}',1.79525799031215023988e+09,1);
CREATE TABLE facts (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO "facts" VALUES('devices','{"0bebdf39-be95-5ded-8346-fa227d20a639":"host"}');
INSERT INTO "facts" VALUES('host_uuid','"93aa17e3-5b90-5ec4-9e80-c933f148ab9f"');
CREATE TABLE history (
        id INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        consumer TEXT NOT NULL,
        event TEXT NOT NULL,
        detail TEXT NOT NULL
    ) STRICT;
INSERT INTO "history" VALUES(1,1.79525799030931138989e+09,'46af08a3-9132-596d-8e22-639e07acd163','begin','');
INSERT INTO "history" VALUES(2,1.79525799031026625637e+09,'46af08a3-9132-596d-8e22-639e07acd163','grant','');
INSERT INTO "history" VALUES(3,1.79525799031125736235e+09,'e4200c9d-eb38-563d-88e0-8c583025819a','begin','');
INSERT INTO "history" VALUES(4,1.79525799031218314177e+09,'e4200c9d-eb38-563d-88e0-8c583025819a','adopt','');
INSERT INTO "history" VALUES(5,1.79525799031261515618e+09,'7f24eabb-1202-579a-97cf-0b122bb1cc86','begin','');
INSERT INTO "history" VALUES(6,1.79525799031795191759e+09,'a431c3fc-0c10-5e40-8af5-ffbc8d6c0339','begin','');
INSERT INTO "history" VALUES(7,1.79525799032099199299e+09,'a431c3fc-0c10-5e40-8af5-ffbc8d6c0339','grant','');
INSERT INTO "history" VALUES(8,1.79525799032214546198e+09,'a431c3fc-0c10-5e40-8af5-ffbc8d6c0339','release','');
COMMIT;
