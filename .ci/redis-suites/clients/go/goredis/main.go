// go-redis: every type, a pipeline, MULTI, a WATCH that fails, and a gateway that is killed. PORT and PROTOCOL are in the
// environment.
package main

import (
    "context"
    "errors"
    "fmt"
    "os"
    "reflect"
    "regexp"
    "slices"
    "strconv"
    "syscall"
    "time"

    "github.com/redis/go-redis/v9"
)

func is(found, expected any) {
    if !reflect.DeepEqual(found, expected) {
        panic(fmt.Sprintf("found %#v, not %#v", found, expected))
    }
}

func main() {
    ctx := context.Background()
    protocol, _ := strconv.Atoi(os.Getenv("PROTOCOL"))
    db := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Getenv("PORT"), Protocol: protocol})
    defer db.Close()
    is(db.FlushAll(ctx).Val(), "OK")

    is(db.Set(ctx, "s", "v", 0).Val(), "OK")
    is(db.Get(ctx, "s").Val(), "v")
    is(db.Get(ctx, "none").Err(), redis.Nil)
    is(db.HSet(ctx, "h", "a", 1, "b", 2).Val(), int64(2))
    is(db.HGetAll(ctx, "h").Val(), map[string]string{"a": "1", "b": "2"})
    is(db.RPush(ctx, "l", "x", "y").Val(), int64(2))
    is(db.LRange(ctx, "l", 0, -1).Val(), []string{"x", "y"})
    is(db.SAdd(ctx, "t", "m", "n").Val(), int64(2))
    members := db.SMembers(ctx, "t").Val()
    slices.Sort(members)
    is(members, []string{"m", "n"})
    is(db.ZAdd(ctx, "z", redis.Z{Score: 1, Member: "a"}, redis.Z{Score: 2.5, Member: "b"}).Val(), int64(2))
    is(db.ZRangeWithScores(ctx, "z", 0, -1).Val(), []redis.Z{{Score: 1, Member: "a"}, {Score: 2.5, Member: "b"}})

    pipeline := db.Pipeline()
    var numbers []*redis.IntCmd
    for range 1000 {
        numbers = append(numbers, pipeline.Incr(ctx, "n"))
    }
    _, err := pipeline.Exec(ctx)
    is(err, nil)
    for place, number := range numbers {
        is(number.Val(), int64(place+1))
    }

    transaction := db.TxPipeline()
    transaction.Set(ctx, "m", 1, 0)
    next := transaction.Incr(ctx, "m")
    _, err = transaction.Exec(ctx)
    is(err, nil)
    is(next.Val(), int64(2))

    err = db.Watch(ctx, func(tx *redis.Tx) error {
        is(db.Set(ctx, "m", 5, 0).Err(), nil)
        _, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
            pipe.Set(ctx, "m", 6, 0)
            return nil
        })
        return err
    }, "m")
    is(errors.Is(err, redis.TxFailedErr), true)
    is(db.Get(ctx, "m").Val(), "5")

    process, err := strconv.Atoi(regexp.MustCompile(`process_id:(\d+)`).FindStringSubmatch(db.Info(ctx, "server").Val())[1])
    is(err, nil)
    is(syscall.Kill(process, syscall.SIGKILL), nil)
    until := time.Now().Add(10 * time.Second)
    for db.Get(ctx, "m").Err() != nil && time.Now().Before(until) {
        time.Sleep(50 * time.Millisecond)
    }
    is(db.Get(ctx, "m").Val(), "5")
    is(db.Incr(ctx, "m").Val(), int64(6))
}
