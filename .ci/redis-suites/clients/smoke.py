"""redis-py: every type, a pipeline, MULTI, a WATCH that fails, and a gateway that is killed. PORT and PROTOCOL are in the
environment."""

import os
import signal
import time

import redis

db = redis.Redis(port=int(os.environ["PORT"]), protocol=int(os.environ["PROTOCOL"]), decode_responses=True)
db.flushall()

assert db.set("s", "v") and db.get("s") == "v"
assert db.hset("h", mapping={"a": 1, "b": 2}) == 2 and db.hgetall("h") == {"a": "1", "b": "2"}
assert db.rpush("l", "x", "y") == 2 and db.lrange("l", 0, -1) == ["x", "y"]
assert db.sadd("t", "m", "n") == 2 and db.smembers("t") == {"m", "n"}
assert db.zadd("z", {"a": 1, "b": 2.5}) == 2
scores = db.zrange("z", 0, -1, withscores=True)
assert [tuple(pair) for pair in scores] == [("a", 1.0), ("b", 2.5)], scores

pipeline = db.pipeline(transaction=False)
for number in range(1000):
    pipeline.incr("n")
assert pipeline.execute() == list(range(1, 1001))

transaction = db.pipeline(transaction=True)
transaction.set("m", 1).incr("m").get("m")
assert transaction.execute() == [True, 2, "2"]

with db.pipeline() as watching:
    watching.watch("m")
    db.set("m", 5)
    watching.multi()
    watching.set("m", 6)
    try:
        watching.execute()
        raise AssertionError("EXEC did not see the change")
    except redis.WatchError:
        pass
assert db.get("m") == "5"

os.kill(db.info("server")["process_id"], signal.SIGKILL)
for _ in range(200):
    try:
        assert db.get("m") == "5" and db.incr("m") == 6
        break
    except redis.ConnectionError:
        time.sleep(0.05)
else:
    raise AssertionError("no gateway is back")
