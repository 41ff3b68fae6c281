BEGIN TRANSACTION;
CREATE TABLE dasktune_checkpoints (
 "key" VARCHAR(128) NOT NULL,
 root VARCHAR(128) NOT NULL,
 step BIGINT NOT NULL,
 attempt VARCHAR(128) NOT NULL,
 digest VARCHAR(64) NOT NULL,
 nbytes BIGINT NOT NULL,
 seconds DOUBLE NOT NULL,
 PRIMARY KEY ("key")
);
INSERT INTO "dasktune_checkpoints" VALUES('a1','r0',3,'1-aa','dd',1099511627776,0.1);
CREATE TABLE dasktune_events (
 study_id INTEGER NOT NULL,
 number BIGINT NOT NULL,
 payload TEXT NOT NULL,
 PRIMARY KEY (study_id, number)
);
INSERT INTO "dasktune_events" VALUES(1,0,'{"kind":"tuner","place":0,"identity":{"tuner":"Grid"},"inputs":{},"decisions":[]}');
INSERT INTO "dasktune_events" VALUES(1,1,'{"kind":"ask","place":0,"capacity":2,"decisions":[{"do":"extend","trial":0,"until":9,"priority":0.0}]}');
INSERT INTO "dasktune_events" VALUES(1,2,'{"kind":"tell","place":0,"trial":0,"step":3,"metrics":{"loss":NaN},"decisions":[]}');
INSERT INTO "dasktune_events" VALUES(1,3,'{"kind":"snapshot","place":0,"state":{"finished":false},"decisions":[]}');
INSERT INTO "dasktune_events" VALUES(1,4,'{"kind":"added","place":-1,"trials":[1],"decisions":[]}');
CREATE TABLE dasktune_meta (
 name VARCHAR(32) NOT NULL,
 number INTEGER NOT NULL,
 PRIMARY KEY (name)
);
INSERT INTO "dasktune_meta" VALUES('version',2);
CREATE TABLE dasktune_metrics (
 "key" VARCHAR(128) NOT NULL,
 root VARCHAR(128) NOT NULL,
 step BIGINT NOT NULL,
 "values" TEXT NOT NULL,
 PRIMARY KEY ("key")
);
INSERT INTO "dasktune_metrics" VALUES('a1','r0',3,'{"loss":0.25,"rate":"inf"}');
CREATE TABLE dasktune_notes (
 number INTEGER NOT NULL,
 study_id INTEGER NOT NULL,
 payload TEXT NOT NULL,
 PRIMARY KEY (number)
);
INSERT INTO "dasktune_notes" VALUES(1,1,'{"kind":"user_attr","name":"why","value":"to know"}');
CREATE TABLE dasktune_stages (
 study_id INTEGER NOT NULL,
 attempt VARCHAR(128) NOT NULL,
 "key" VARCHAR(128) NOT NULL,
 start BIGINT NOT NULL,
 stop BIGINT NOT NULL,
 worker TEXT NOT NULL,
 status VARCHAR(32) NOT NULL,
 started DOUBLE NOT NULL,
 ended DOUBLE,
 steps BIGINT NOT NULL,
 repeated BIGINT NOT NULL,
 PRIMARY KEY (study_id, attempt)
);
INSERT INTO "dasktune_stages" VALUES(1,'1-aa','a1',0,9,'tcp://w:1','trained',1.5,2.5,3,1);
CREATE TABLE dasktune_studies (
 id INTEGER NOT NULL,
 name TEXT NOT NULL,
 root VARCHAR(128) NOT NULL,
 spec TEXT NOT NULL,
 created DOUBLE NOT NULL,
 PRIMARY KEY (id),
 UNIQUE (name)
);
INSERT INTO "dasktune_studies" VALUES(1,'digits','r0','{"metric":"loss","direction":"minimize","seed":0,"merge":true,"fingerprint":"f","trainer":"Digits"}',1722.25);
CREATE TABLE dasktune_trials (
 study_id INTEGER NOT NULL,
 number BIGINT NOT NULL,
 state VARCHAR(16) NOT NULL,
 steps BIGINT NOT NULL,
 value TEXT,
 record TEXT NOT NULL,
 PRIMARY KEY (study_id, number)
);
INSERT INTO "dasktune_trials" VALUES(1,0,'RUNNING',3,'0.25','{"tuner":0,"local":0,"params":{"lr":0.1},"until":9}');
INSERT INTO "dasktune_trials" VALUES(1,1,'COMPLETE',3,'nan','{"tuner":0,"local":1,"params":{"lr":0.1},"until":null}');
INSERT INTO "dasktune_trials" VALUES(1,2,'PAUSED',3,NULL,'{"tuner":0,"local":2,"params":{"lr":0.1},"until":null}');
INSERT INTO "dasktune_trials" VALUES(1,3,'FAIL',3,'-inf','{"tuner":0,"local":3,"params":{"lr":0.1},"until":null}');
CREATE INDEX dasktune_checkpoints_root ON dasktune_checkpoints (root, "key");
CREATE INDEX dasktune_metrics_root ON dasktune_metrics (root, "key");
CREATE INDEX dasktune_notes_study ON dasktune_notes (study_id, number);
COMMIT;
