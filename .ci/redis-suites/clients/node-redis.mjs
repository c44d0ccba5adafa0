// @redis/client: every type, a pipeline, MULTI, a WATCH that fails, and a gateway that is killed. PORT and PROTOCOL are in the
// environment.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { createClient, WatchError } from "@redis/client";

const options = { socket: { port: Number(process.env.PORT) }, RESP: Number(process.env.PROTOCOL) };
const [db, other] = [createClient(options), createClient(options)];
for (const client of [db, other]) client.on("error", () => {});
await Promise.all([db.connect(), other.connect()]);
await db.flushAll();

assert.equal(await db.set("s", "v"), "OK");
assert.equal(await db.get("s"), "v");
assert.equal(await db.hSet("h", { a: 1, b: 2 }), 2);
assert.deepEqual({ ...(await db.hGetAll("h")) }, { a: "1", b: "2" });
assert.equal(await db.rPush("l", ["x", "y"]), 2);
assert.deepEqual(await db.lRange("l", 0, -1), ["x", "y"]);
assert.equal(await db.sAdd("t", ["m", "n"]), 2);
assert.deepEqual([...(await db.sMembers("t"))].sort(), ["m", "n"]);
assert.equal(await db.zAdd("z", [{ score: 1, value: "a" }, { score: 2.5, value: "b" }]), 2);
assert.deepEqual(await db.zRangeWithScores("z", 0, -1), [{ value: "a", score: 1 }, { value: "b", score: 2.5 }]);

// Commands of one turn are one pipeline.
const numbers = await Promise.all(Array.from({ length: 1000 }, () => db.incr("n")));
assert.deepEqual(numbers, Array.from({ length: 1000 }, (_, number) => number + 1));

assert.deepEqual(await db.multi().set("m", 1).incr("m").get("m").exec(), ["OK", 2, "2"]);

await db.watch("m");
await other.set("m", 5);
await assert.rejects(db.multi().set("m", 6).exec(), WatchError);
assert.equal(await db.get("m"), "5");

process.kill(Number(/process_id:(\d+)/.exec(await db.info("server"))[1]), "SIGKILL");
await sleep(100);
assert.equal(await db.get("m"), "5");
assert.equal(await db.incr("m"), 6);
db.destroy();
other.destroy();
