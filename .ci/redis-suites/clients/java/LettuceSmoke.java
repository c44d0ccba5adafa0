import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.ScoredValue;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;

/** Lettuce: every type, a pipeline, MULTI, a WATCH that fails, and a gateway that is killed. PORT is in the environment. */
public class LettuceSmoke {
    static void is(Object found, Object expected) {
        if (!expected.equals(found)) {
            throw new AssertionError("found " + found + ", not " + expected);
        }
    }

    public static void main(String[] arguments) throws Exception {
        RedisClient client = RedisClient.create("redis://127.0.0.1:" + System.getenv("PORT"));
        try (var connection = client.connect(); var second = client.connect()) {
            var db = connection.sync();
            db.flushall();
            is(db.set("s", "v"), "OK");
            is(db.get("s"), "v");
            is(db.hset("h", Map.of("a", "1", "b", "2")), 2L);
            is(db.hgetall("h"), Map.of("a", "1", "b", "2"));
            is(db.rpush("l", "x", "y"), 2L);
            is(db.lrange("l", 0, -1), List.of("x", "y"));
            is(db.sadd("t", "m", "n"), 2L);
            is(db.smembers("t"), Set.of("m", "n"));
            is(db.zadd("z", ScoredValue.just(1, "a"), ScoredValue.just(2.5, "b")), 2L);
            is(db.zrangeWithScores("z", 0, -1), List.of(ScoredValue.just(1, "a"), ScoredValue.just(2.5, "b")));

            List<RedisFuture<Long>> numbers = new ArrayList<>();
            connection.setAutoFlushCommands(false);
            for (int number = 0; number < 1000; number++) {
                numbers.add(connection.async().incr("n"));
            }
            connection.flushCommands();
            connection.setAutoFlushCommands(true);
            is(numbers.get(999).get(10, TimeUnit.SECONDS), 1000L);

            db.multi();
            db.set("m", "1");
            db.incr("m");
            is(db.exec().get(1), 2L);

            db.watch("m");
            second.sync().set("m", "5");
            db.multi();
            db.set("m", "6");
            is(db.exec().wasDiscarded(), true);
            is(db.get("m"), "5");

            var process = Pattern.compile("process_id:(\\d+)").matcher(db.info("server"));
            process.find();
            ProcessHandle.of(Long.parseLong(process.group(1))).orElseThrow().destroyForcibly();
            Thread.sleep(100);
            // The client connects again by itself, and sends what has waited.
            is(db.get("m"), "5");
            is(db.incr("m"), 6L);
        } finally {
            client.shutdown();
        }
    }
}
