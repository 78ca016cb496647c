PRAGMA application_id = 1347174727;
PRAGMA user_version = 2;
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
INSERT INTO "claims" VALUES('120598b7-91fd-5d51-bc35-65a3cc9800eb','claimed','{"consumer":"120598b7-91fd-5d51-bc35-65a3cc9800eb","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"MIGRATION"}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}}','{}',1.79525806305287504195e+09,0);
INSERT INTO "claims" VALUES('25764d11-3a72-57fe-a3ee-89cc423dcb5d','claimed','{"consumer":"25764d11-3a72-57fe-a3ee-89cc423dcb5d","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"MIGRATION"}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}}','{}',1.79525806305287504195e+09,0);
INSERT INTO "claims" VALUES('4687db44-a59f-5df2-8c22-e907db667c93','claimed','{"consumer":"4687db44-a59f-5df2-8c22-e907db667c93","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}}','{}',1.79525806305287504195e+09,0);
INSERT INTO "claims" VALUES('46af08a3-9132-596d-8e22-639e07acd163','claimed','{"consumer":"46af08a3-9132-596d-8e22-639e07acd163","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2,"PCPU":2}}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"PCPU":["4","5"]}}',1.79525806305287504195e+09,0);
INSERT INTO "claims" VALUES('59734374-3a11-57b9-a7ed-d88248034640','claimed','{"consumer":"59734374-3a11-57b9-a7ed-d88248034640","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}}','{}',1.79525806305287504195e+09,0);
INSERT INTO "claims" VALUES('7f24eabb-1202-579a-97cf-0b122bb1cc86','claiming','{"consumer":"7f24eabb-1202-579a-97cf-0b122bb1cc86","groups":[{"suffix":"","resources":{"SRIOV_NET_VF":1}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"}','{"30c4e734-fca5-50e5-a8c5-a190e526a2d0":{"SRIOV_NET_VF":1}}','{"30c4e734-fca5-50e5-a8c5-a190e526a2d0":{"SRIOV_NET_VF":["0000:41:02.0"]}}',1.79525806306116580968e+09,0);
INSERT INTO "claims" VALUES('a431c3fc-0c10-5e40-8af5-ffbc8d6c0339','releasing','{"consumer":"a431c3fc-0c10-5e40-8af5-ffbc8d6c0339","groups":[{"suffix":"","resources":{"MEMORY_MB":64}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"MEMORY_MB":64}}','{}',1.79525806306206560129e+09,0);
INSERT INTO "claims" VALUES('e5ef0908-ea22-5dae-81ff-187bfacfc667','claimed','{"consumer":"e5ef0908-ea22-5dae-81ff-187bfacfc667","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"}','{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}}','{}',1.79525806305287504195e+09,0);
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
INSERT INTO "history" VALUES(1,1.79525806305292463306e+09,'46af08a3-9132-596d-8e22-639e07acd163','begin','');
INSERT INTO "history" VALUES(2,1.79525806306070375437e+09,'46af08a3-9132-596d-8e22-639e07acd163','grant','');
INSERT INTO "history" VALUES(3,1.79525806306120848656e+09,'7f24eabb-1202-579a-97cf-0b122bb1cc86','begin','');
INSERT INTO "history" VALUES(4,1.79525806306209230423e+09,'a431c3fc-0c10-5e40-8af5-ffbc8d6c0339','begin','');
INSERT INTO "history" VALUES(5,1.79525806306269621851e+09,'a431c3fc-0c10-5e40-8af5-ffbc8d6c0339','grant','');
INSERT INTO "history" VALUES(6,1.795258063065696001e+09,'a431c3fc-0c10-5e40-8af5-ffbc8d6c0339','release','');
INSERT INTO "history" VALUES(7,1.79525806306989431379e+09,'4687db44-a59f-5df2-8c22-e907db667c93','move_begin','migration 25764d11-3a72-57fe-a3ee-89cc423dcb5d, resize, both');
INSERT INTO "history" VALUES(8,1.79525806307278251649e+09,'e3541df1-9105-5860-8dcd-0e74a6c289c9','move_begin','migration 120598b7-91fd-5d51-bc35-65a3cc9800eb, cold_migrate, source');
INSERT INTO "history" VALUES(9,1.79525806307324576381e+09,'59734374-3a11-57b9-a7ed-d88248034640','move_begin','migration 2415e806-5340-5c39-95c2-6718cf826fba, resize, destination');
INSERT INTO "history" VALUES(10,1.79525806307369685177e+09,'e5ef0908-ea22-5dae-81ff-187bfacfc667','move_begin','migration 9f3d35a5-e6bc-5da2-8650-0b1710d74761, resize, both');
CREATE TABLE moves (
        migration TEXT NOT NULL PRIMARY KEY,
        since REAL NOT NULL,
        ended INTEGER NOT NULL CHECK (ended IN (0, 1)),
        move TEXT NOT NULL          -- the migration context: agent.claimjson
    ) STRICT, WITHOUT ROWID;
INSERT INTO "moves" VALUES('120598b7-91fd-5d51-bc35-65a3cc9800eb',1700000000.0,0,'{"migration":"120598b7-91fd-5d51-bc35-65a3cc9800eb","instance":"e3541df1-9105-5860-8dcd-0e74a6c289c9","kind":"cold_migrate","role":"source","state":"begun","old":{"consumer":"e3541df1-9105-5860-8dcd-0e74a6c289c9","state":"claimed","request":{"consumer":"e3541df1-9105-5860-8dcd-0e74a6c289c9","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"},"allocations":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"units":{},"since":1795258063.052875,"adopted":false},"new":null,"handed":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"since":1700000000.0,"adopted":false}');
INSERT INTO "moves" VALUES('2415e806-5340-5c39-95c2-6718cf826fba',1700000000.0,0,'{"migration":"2415e806-5340-5c39-95c2-6718cf826fba","instance":"59734374-3a11-57b9-a7ed-d88248034640","kind":"resize","role":"destination","state":"begun","old":{"consumer":"59734374-3a11-57b9-a7ed-d88248034640","state":"claimed","request":{"consumer":"59734374-3a11-57b9-a7ed-d88248034640","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"},"allocations":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"units":{},"since":1795258063.052875,"adopted":false},"new":{"consumer":"59734374-3a11-57b9-a7ed-d88248034640","state":"claimed","request":{"consumer":"59734374-3a11-57b9-a7ed-d88248034640","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"},"allocations":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"units":{},"since":1795258063.052875,"adopted":false},"handed":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"since":1700000000.0,"adopted":false}');
INSERT INTO "moves" VALUES('25764d11-3a72-57fe-a3ee-89cc423dcb5d',1700000000.0,0,'{"migration":"25764d11-3a72-57fe-a3ee-89cc423dcb5d","instance":"4687db44-a59f-5df2-8c22-e907db667c93","kind":"resize","role":"both","state":"begun","old":{"consumer":"4687db44-a59f-5df2-8c22-e907db667c93","state":"claimed","request":{"consumer":"4687db44-a59f-5df2-8c22-e907db667c93","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"},"allocations":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"units":{},"since":1795258063.052875,"adopted":false},"new":{"consumer":"4687db44-a59f-5df2-8c22-e907db667c93","state":"claimed","request":{"consumer":"4687db44-a59f-5df2-8c22-e907db667c93","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"},"allocations":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"units":{},"since":1795258063.052875,"adopted":false},"handed":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"since":1700000000.0,"adopted":false}');
INSERT INTO "moves" VALUES('9f3d35a5-e6bc-5da2-8650-0b1710d74761',1700000000.0,1,'{"migration":"9f3d35a5-e6bc-5da2-8650-0b1710d74761","instance":"e5ef0908-ea22-5dae-81ff-187bfacfc667","kind":"resize","role":"both","state":"reverted","old":{"consumer":"e5ef0908-ea22-5dae-81ff-187bfacfc667","state":"claimed","request":{"consumer":"e5ef0908-ea22-5dae-81ff-187bfacfc667","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"},"allocations":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"units":{},"since":1795258063.052875,"adopted":false},"new":{"consumer":"e5ef0908-ea22-5dae-81ff-187bfacfc667","state":"claimed","request":{"consumer":"e5ef0908-ea22-5dae-81ff-187bfacfc667","name":"web1","groups":[{"suffix":"","resources":{"VCPU":2,"PCPU":2}}],"project_id":"plimsoll","user_id":"plimsoll","consumer_type":"INSTANCE"},"allocations":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"units":{},"since":1795258063.052875,"adopted":false},"handed":{"93aa17e3-5b90-5ec4-9e80-c933f148ab9f":{"VCPU":2}},"since":1700000000.0,"adopted":false}');
COMMIT;
