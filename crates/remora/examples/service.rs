//! A service on tokio. It answers lines over TCP, and every request is a transaction.
//!
//! ```text
//! get NAME           -> the balance, or "none"
//! pay FROM TO CENTS  -> "ok", or why not
//! ```
//!
//! `cargo run --release -p remora --example service` starts the service, sends it some requests,
//! and ends.

use remora::{Cluster, Db, DynOptions, DynSchema, DynTable, Error, Lengths, WorkerOptions};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

#[derive(Debug, thiserror::Error)]
#[error("{0} has not enough money")]
struct NotEnough(String);

/// Returns the balance that a value of the table encodes.
fn cents(value: &[u8]) -> i64 {
    value.try_into().map_or(0, i64::from_le_bytes)
}

async fn answer(db: &Db, accounts: &DynTable, line: &str) -> Result<String, Error> {
    let accounts = accounts.clone();
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    match &words[..] {
        [get, name] if get == "get" => {
            let name = name.clone();
            let found = db.transact(async move |tx| accounts.get(tx, name.as_bytes()).await).await?;
            Ok(found.map_or("none".to_owned(), |value| cents(&value).to_string()))
        }
        [pay, from, to, amount] if pay == "pay" && amount.parse::<u32>().is_ok() => {
            let (from, to, amount) = (from.clone(), to.clone(), amount.parse::<u32>().map_or(0, i64::from));
            let paid = db.transact(async move |tx| {
                // One round trip brings both accounts.
                let [had, has] = tx.get_many([(&accounts, &from), (&accounts, &to)]).await?;
                let had = cents(&had.ok_or_else(|| accounts.missing(from.as_bytes()))?);
                if had < amount {
                    return Err(Error::user(NotEnough(from.clone())));
                }
                accounts.put(tx, from.as_bytes(), &(had - amount).to_le_bytes()).await?;
                let has = has.map_or(0, |value| cents(&value));
                accounts.put(tx, to.as_bytes(), &(has + amount).to_le_bytes()).await.map(drop)
            });
            paid.await.map(|()| "ok".to_owned())
        }
        _ => Ok("what?".to_owned()),
    }
}

async fn serve(db: Db, accounts: DynTable, client: TcpStream) -> std::io::Result<()> {
    let (reader, mut writer) = client.into_split();
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = answer(&db, &accounts, &line).await.unwrap_or_else(|error| error.to_string());
        writer.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().open()?;
    let schema = DynSchema::new("balance in cents, i64", Lengths::UpTo(40), Lengths::Exactly(8));
    let accounts = cluster.create_dyn_table("accounts", &schema, DynOptions::for_rows(1000))?;
    // A pool of two threads, whose futures run on any executor.
    let db = cluster.db(2, WorkerOptions::default())?;
    let opened = accounts.clone();
    db.transact(async move |tx| opened.insert(tx, b"anna", &1000_i64.to_le_bytes()).await).await?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut client = TcpStream::connect(listener.local_addr()?).await?;
    let (served, _) = listener.accept().await?;
    let server = tokio::spawn(serve(db, accounts, served));
    client.write_all(b"get anna\npay anna eve 400\nget eve\npay eve anna 500\n").await?;
    client.shutdown().await?;
    let mut answers = BufReader::new(client).lines();
    for expected in ["1000", "ok", "400", "eve has not enough money"] {
        let answer = answers.next_line().await?.unwrap_or_default();
        println!("{answer}");
        assert_eq!(answer, expected);
    }
    Ok(server.await??)
}
