//! A load of transactions for any server of Redis' protocol: each connection sends MULTI, two GETs,
//! two SETs of 64 bytes, and EXEC in one packet, and waits for the answer. All connections have a
//! packet under way at a time. Prints how many transactions a second were answered.
//!
//! `cargo run --release -p remora-gateway --example multi -- PORT [CONNECTIONS] [TRANSACTIONS]`

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

const KEYS: u64 = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|number| number.parse()).collect::<Result<_, _>>()?;
    let port = u16::try_from(*numbers.first().ok_or("usage: multi PORT [CONNECTIONS] [TRANSACTIONS]")?)?;
    let connections = numbers.get(1).copied().unwrap_or(50);
    let transactions = numbers.get(2).copied().unwrap_or(100_000);
    let open = |_| {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(BufReader::new(stream))
    };
    let mut streams = (0..connections).map(open).collect::<std::io::Result<Vec<_>>>()?;
    let mut random = 1;
    let begun = Instant::now();
    for _ in 0..transactions / connections {
        for stream in &mut streams {
            let packet = packet(&mut random);
            stream.get_mut().write_all(&packet)?;
        }
        for stream in &mut streams {
            // MULTI, four commands that are queued, and EXEC.
            for _ in 0..6 {
                read_reply(stream)?;
            }
        }
    }
    let done = transactions / connections * connections;
    println!("{:.0} transactions a second", done as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}

/// Returns the bytes of a transaction of random keys.
fn packet(random: &mut u64) -> Vec<u8> {
    let mut key = || {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("key:{:012}", (*random >> 33) % KEYS)
    };
    let mut packet = Vec::new();
    let mut command = |words: &[&str]| {
        packet.extend(format!("*{}\r\n", words.len()).bytes());
        words.iter().for_each(|word| packet.extend(format!("${}\r\n{word}\r\n", word.len()).bytes()));
    };
    command(&["MULTI"]);
    (0..2).for_each(|_| command(&["GET", &key()]));
    (0..2).for_each(|_| command(&["SET", &key(), &"x".repeat(64)]));
    command(&["EXEC"]);
    packet
}

/// Reads one reply. Fails if it is an error.
fn read_reply(stream: &mut BufReader<TcpStream>) -> Result<(), Box<dyn Error>> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let count = || line[1..].trim_end().parse::<i64>();
    match line.as_bytes().first() {
        Some(b'+' | b':') => {}
        Some(b'$') => {
            let bytes = usize::try_from(count()?).map_or(0, |bytes| bytes + 2);
            stream.read_exact(&mut vec![0; bytes])?;
        }
        Some(b'*') => {
            for _ in 0..count()? {
                read_reply(stream)?;
            }
        }
        _ => return Err(format!("the server answered {line:?}").into()),
    }
    Ok(())
}
