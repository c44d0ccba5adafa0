//! redis-rs: every type, a pipeline, MULTI, a WATCH that fails, and a gateway that is killed. PORT
//! and PROTOCOL are in the environment.

use std::collections::{BTreeSet, HashMap};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use redis::{Client, Commands, Connection, RedisResult, TypedCommands};

fn main() -> RedisResult<()> {
    let [port, protocol] = ["PORT", "PROTOCOL"].map(|name| std::env::var(name).expect("PORT and PROTOCOL"));
    let client = Client::open(format!("redis://127.0.0.1:{port}/?protocol=resp{protocol}"))?;
    let mut db = client.get_connection()?;
    redis::cmd("FLUSHALL").exec(&mut db)?;
    every_type(&mut db)?;

    let mut pipeline = redis::pipe();
    (0..1000).for_each(|_| _ = pipeline.incr("n", 1));
    let numbers: Vec<i64> = pipeline.query(&mut db)?;
    assert_eq!(numbers, (1..=1000).collect::<Vec<_>>());

    let done: (String, i64) = redis::pipe().atomic().set("m", 1).incr("m", 1).query(&mut db)?;
    assert_eq!(done, ("OK".to_owned(), 2));

    redis::cmd("WATCH").arg("m").exec(&mut db)?;
    let mut other = client.get_connection()?;
    TypedCommands::set(&mut other, "m", 5)?;
    let done: Option<(String,)> = redis::pipe().atomic().set("m", 6).query(&mut db)?;
    assert_eq!(done, None);
    assert_eq!(TypedCommands::get_int(&mut db, "m")?, Some(5));

    let info: redis::InfoDict = redis::cmd("INFO").arg("server").query(&mut db)?;
    let process: u32 = info.get("process_id").expect("INFO tells the process");
    assert!(Command::new("kill").arg("-9").arg(process.to_string()).status()?.success());
    assert!(TypedCommands::get_int(&mut db, "m").is_err());
    let mut db = connect_again(&client);
    assert_eq!(TypedCommands::get_int(&mut db, "m")?, Some(5));
    assert_eq!(TypedCommands::incr(&mut db, "m", 1)?, 6);
    Ok(())
}

fn every_type(db: &mut Connection) -> RedisResult<()> {
    let () = Commands::set(db, "s", "v")?;
    assert_eq!(TypedCommands::get(db, "s")?, Some("v".to_owned()));
    let () = Commands::hset_multiple(db, "h", &[("a", 1), ("b", 2)])?;
    let fields: HashMap<String, i64> = Commands::hgetall(db, "h")?;
    assert_eq!(fields, HashMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]));
    assert_eq!(TypedCommands::rpush(db, "l", &["x", "y"])?, 2);
    assert_eq!(TypedCommands::lrange(db, "l", 0, -1)?, ["x", "y"]);
    assert_eq!(TypedCommands::sadd(db, "t", &["m", "n"])?, 2);
    let members: BTreeSet<String> = Commands::smembers(db, "t")?;
    assert_eq!(members.into_iter().collect::<Vec<_>>(), ["m", "n"]);
    assert_eq!(TypedCommands::zadd_multiple(db, "z", &[(1.0, "a"), (2.5, "b")])?, 2);
    let scores: Vec<(String, f64)> = Commands::zrange_withscores(db, "z", 0, -1)?;
    assert_eq!(scores, [("a".to_owned(), 1.0), ("b".to_owned(), 2.5)]);
    Ok(())
}

/// Connects to the gateway that is started in the place of the one that was killed.
fn connect_again(client: &Client) -> Connection {
    for _ in 0..200 {
        if let Ok(db) = client.get_connection() {
            return db;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("no gateway is back")
}
