//! A load of commands of single elements of large collections, for any server of Redis' protocol:
//! one connection, one command at a time. Prints how many microseconds each command takes, and how
//! long it takes to delete a collection.
//!
//! `cargo run --release -p remora-gateway --example elements -- PORT [ELEMENTS] [MILLISECONDS]`

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The number of elements that one command adds when a collection is made.
const ADDED: u64 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|number| number.parse()).collect::<Result<_, _>>()?;
    let port = u16::try_from(*numbers.first().ok_or("usage: elements PORT [ELEMENTS] [MILLISECONDS]")?)?;
    let elements = numbers.get(1).copied().unwrap_or(100_000);
    let time = Duration::from_millis(numbers.get(2).copied().unwrap_or(1000));
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    for key in ["list", "hash", "set", "board"] {
        call(&mut stream, &["DEL".to_owned(), key.to_owned()])?;
        for first in (0..elements).step_by(ADDED as usize) {
            let added = first..elements.min(first + ADDED);
            let element = |number: u64| match key {
                "list" => vec![format!("element:{number:08}")],
                "hash" => vec![format!("field:{number:08}"), format!("value:{number:08}")],
                "set" => vec![format!("member:{number:08}")],
                _ => vec![number.to_string(), format!("member:{number:08}")],
            };
            let command = match key {
                "list" => "RPUSH",
                "hash" => "HSET",
                "set" => "SADD",
                _ => "ZADD",
            };
            let words = [command.to_owned(), key.to_owned()];
            call(&mut stream, &words.into_iter().chain(added.flat_map(element)).collect::<Vec<_>>())?;
        }
    }
    let mut random = 1_u64;
    for form in [
        "LPUSH list ELEMENT",
        "RPOP list",
        "LINDEX list PLACE",
        "LRANGE list 0 9",
        "HSET hash field:NUMBER value:12345678",
        "HGET hash field:NUMBER",
        "HSET hash new:NUMBER value",
        "SADD set new:NUMBER",
        "SISMEMBER set member:NUMBER",
        "ZADD board NUMBER member:NUMBER",
        "ZINCRBY board 1 member:NUMBER",
        "ZREVRANGE board 0 9",
        "ZRANK board member:NUMBER",
    ] {
        let (begun, mut count) = (Instant::now(), 0_u32);
        while begun.elapsed() < time {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (random >> 33) % elements;
            let number = format!("{place:08}");
            let words: Vec<String> = form
                .split(' ')
                .map(|word| {
                    let word = word.replace("NUMBER", &number).replace("PLACE", &(place % (elements / 2)).to_string());
                    word.replace("ELEMENT", "element:12345678")
                })
                .collect();
            call(&mut stream, &words)?;
            count += 1;
        }
        println!("{form:40} {:8.1} us", begun.elapsed().as_secs_f64() * 1e6 / f64::from(count));
    }
    let begun = Instant::now();
    call(&mut stream, &["DEL".to_owned(), "hash".to_owned()])?;
    println!("{:40} {:8.1} ms", "DEL hash", begun.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

/// Sends a command, and reads its answer.
fn call(stream: &mut BufReader<TcpStream>, words: &[String]) -> Result<(), Box<dyn Error>> {
    let mut packet = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| packet += &format!("${}\r\n{word}\r\n", word.len()));
    stream.get_mut().write_all(packet.as_bytes())?;
    read_reply(stream)
}

fn read_reply(stream: &mut BufReader<TcpStream>) -> Result<(), Box<dyn Error>> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let line = line.trim_end();
    match line.as_bytes().first() {
        Some(b'-') | None => return Err(format!("the server answers {line:?}").into()),
        Some(b'$') if !line.starts_with("$-") => {
            let bytes: usize = line[1..].parse()?;
            stream.read_exact(&mut vec![0; bytes + 2])?;
        }
        Some(b'*') if !line.starts_with("*-") => {
            let count: usize = line[1..].parse()?;
            (0..count).try_for_each(|_| read_reply(stream))?;
        }
        _ => {}
    }
    Ok(())
}
