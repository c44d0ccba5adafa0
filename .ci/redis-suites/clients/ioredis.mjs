// ioredis: every type, a pipeline, MULTI, a WATCH that fails, and a gateway that is killed. PORT is in the environment.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";

const port = Number(process.env.PORT);
const db = new Redis({ port, maxRetriesPerRequest: null });
const other = new Redis({ port, maxRetriesPerRequest: null });
for (const client of [db, other]) client.on("error", () => {});
await db.flushall();

assert.equal(await db.set("s", "v"), "OK");
assert.equal(await db.get("s"), "v");
assert.equal(await db.hset("h", { a: 1, b: 2 }), 2);
assert.deepEqual({ ...(await db.hgetall("h")) }, { a: "1", b: "2" });
assert.equal(await db.rpush("l", "x", "y"), 2);
assert.deepEqual(await db.lrange("l", 0, -1), ["x", "y"]);
assert.equal(await db.sadd("t", "m", "n"), 2);
assert.deepEqual([...(await db.smembers("t"))].sort(), ["m", "n"]);
assert.equal(await db.zadd("z", 1, "a", 2.5, "b"), 2);
assert.deepEqual((await db.zrange("z", 0, -1, "WITHSCORES")).flat().map(String), ["a", "1", "b", "2.5"]);

const pipeline = db.pipeline();
for (let number = 0; number < 1000; number++) pipeline.incr("n");
assert.deepEqual((await pipeline.exec()).map(([, value]) => value), Array.from({ length: 1000 }, (_, number) => number + 1));

assert.deepEqual(await db.multi().set("m", 1).incr("m").get("m").exec(), [[null, "OK"], [null, 2], [null, "2"]]);

await db.watch("m");
await other.set("m", 5);
assert.equal(await db.multi().set("m", 6).exec(), null);
assert.equal(await db.get("m"), "5");

process.kill(Number(/process_id:(\d+)/.exec(await db.info("server"))[1]), "SIGKILL");
await sleep(100);
assert.equal(await db.get("m"), "5");
assert.equal(await db.incr("m"), 6);
db.disconnect();
other.disconnect();
