// rueidis: every type, a pipeline, MULTI, a WATCH that fails, and a gateway that is killed. PORT is in the environment. A gateway
// refuses CLIENT TRACKING, so the client is opened with DisableCache.
package main

import (
    "context"
    "fmt"
    "os"
    "reflect"
    "regexp"
    "slices"
    "strconv"
    "syscall"
    "time"

    "github.com/redis/rueidis"
)

func is[T any](found T, err error, expected T) {
    if err != nil || !reflect.DeepEqual(found, expected) {
        panic(fmt.Sprintf("found %#v (%v), not %#v", found, err, expected))
    }
}

func main() {
    ctx := context.Background()
    db, err := rueidis.NewClient(rueidis.ClientOption{
        InitAddress: []string{"127.0.0.1:" + os.Getenv("PORT")}, DisableCache: true, ForceSingleClient: true,
    })
    if err != nil {
        panic(err)
    }
    defer db.Close()
    number := func(command rueidis.Completed, expected int64) {
        found, err := db.Do(ctx, command).AsInt64()
        is(found, err, expected)
    }
    text := func(command rueidis.Completed, expected string) {
        found, err := db.Do(ctx, command).ToString()
        is(found, err, expected)
    }
    text(db.B().Flushall().Build(), "OK")

    text(db.B().Set().Key("s").Value("v").Build(), "OK")
    text(db.B().Get().Key("s").Build(), "v")
    number(db.B().Hset().Key("h").FieldValue().FieldValue("a", "1").FieldValue("b", "2").Build(), 2)
    fields, err := db.Do(ctx, db.B().Hgetall().Key("h").Build()).AsStrMap()
    is(fields, err, map[string]string{"a": "1", "b": "2"})
    number(db.B().Rpush().Key("l").Element("x", "y").Build(), 2)
    list, err := db.Do(ctx, db.B().Lrange().Key("l").Start(0).Stop(-1).Build()).AsStrSlice()
    is(list, err, []string{"x", "y"})
    number(db.B().Sadd().Key("t").Member("m", "n").Build(), 2)
    members, err := db.Do(ctx, db.B().Smembers().Key("t").Build()).AsStrSlice()
    slices.Sort(members)
    is(members, err, []string{"m", "n"})
    number(db.B().Zadd().Key("z").ScoreMember().ScoreMember(1, "a").ScoreMember(2.5, "b").Build(), 2)
    scores, err := db.Do(ctx, db.B().Zrange().Key("z").Min("0").Max("-1").Withscores().Build()).AsZScores()
    is(scores, err, []rueidis.ZScore{{Member: "a", Score: 1}, {Member: "b", Score: 2.5}})

    var pipeline rueidis.Commands
    for range 1000 {
        pipeline = append(pipeline, db.B().Incr().Key("n").Build())
    }
    for place, answer := range db.DoMulti(ctx, pipeline...) {
        found, err := answer.AsInt64()
        is(found, err, int64(place+1))
    }

    answers := db.DoMulti(ctx, db.B().Multi().Build(), db.B().Set().Key("m").Value("1").Build(), db.B().Incr().Key("m").Build(),
        db.B().Exec().Build())
    results, err := answers[3].ToArray()
    is(len(results), err, 2)

    err = db.Dedicated(func(watching rueidis.DedicatedClient) error {
        if err := watching.Do(ctx, watching.B().Watch().Key("m").Build()).Error(); err != nil {
            return err
        }
        text(db.B().Set().Key("m").Value("5").Build(), "OK")
        answers := watching.DoMulti(ctx, watching.B().Multi().Build(), watching.B().Set().Key("m").Value("6").Build(),
            watching.B().Exec().Build())
        is(rueidis.IsRedisNil(answers[2].Error()), nil, true)
        return nil
    })
    is(true, err, true)
    text(db.B().Get().Key("m").Build(), "5")

    info, err := db.Do(ctx, db.B().Info().Section("server").Build()).ToString()
    if err != nil {
        panic(err)
    }
    process, err := strconv.Atoi(regexp.MustCompile(`process_id:(\d+)`).FindStringSubmatch(info)[1])
    is(true, err, true)
    is(true, syscall.Kill(process, syscall.SIGKILL), true)
    until := time.Now().Add(10 * time.Second)
    for db.Do(ctx, db.B().Get().Key("m").Build()).Error() != nil && time.Now().Before(until) {
        time.Sleep(50 * time.Millisecond)
    }
    text(db.B().Get().Key("m").Build(), "5")
    number(db.B().Incr().Key("m").Build(), 6)
}
