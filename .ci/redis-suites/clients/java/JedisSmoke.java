import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.exceptions.JedisConnectionException;

/** Jedis: every type, a pipeline, MULTI, a WATCH that fails, and a gateway that is killed. PORT is in the environment. */
public class JedisSmoke {
    static void is(Object found, Object expected) {
        if (expected == null ? found != null : !expected.equals(found)) {
            throw new AssertionError("found " + found + ", not " + expected);
        }
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(System.getenv("PORT"));
        try (Jedis db = new Jedis("127.0.0.1", port); Jedis other = new Jedis("127.0.0.1", port)) {
            db.flushAll();
            is(db.set("s", "v"), "OK");
            is(db.get("s"), "v");
            is(db.hset("h", Map.of("a", "1", "b", "2")), 2L);
            is(db.hgetAll("h"), Map.of("a", "1", "b", "2"));
            is(db.rpush("l", "x", "y"), 2L);
            is(db.lrange("l", 0, -1), List.of("x", "y"));
            is(db.sadd("t", "m", "n"), 2L);
            is(db.smembers("t"), Set.of("m", "n"));
            is(db.zadd("z", Map.of("a", 1.0, "b", 2.5)), 2L);
            is(db.zrangeWithScores("z", 0, -1).get(1).getScore(), 2.5);

            var pipeline = db.pipelined();
            for (int number = 0; number < 1000; number++) {
                pipeline.incr("n");
            }
            is(pipeline.syncAndReturnAll().get(999), 1000L);

            var transaction = db.multi();
            transaction.set("m", "1");
            transaction.incr("m");
            is(transaction.exec(), List.of("OK", 2L));

            db.watch("m");
            other.set("m", "5");
            transaction = db.multi();
            transaction.set("m", "6");
            is(transaction.exec(), null);
            is(db.get("m"), "5");
        }
        // The client with a pool, which speaks RESP3.
        try (RedisClient db = RedisClient.create("127.0.0.1", port)) {
            is(db.get("m"), "5");
            String info = db.info("server");
            var process = Pattern.compile("process_id:(\\d+)").matcher(info);
            process.find();
            ProcessHandle.of(Long.parseLong(process.group(1))).orElseThrow().destroyForcibly();
            String found = null;
            for (int tried = 0; tried < 200 && found == null; tried++) {
                try {
                    Thread.sleep(50);
                    found = db.get("m");
                } catch (JedisConnectionException e) {
                    // No gateway is back.
                }
            }
            is(found, "5");
            is(db.incr("m"), 6L);
        }
    }
}
