//! A gateway that knows no data: it parses commands, and answers `GET` with three bytes and
//! everything else with `OK`. With `--read` each command also runs a transaction that reads one
//! record of an embedded cluster; with `--batch` one transaction serves all commands of a batch. It
//! shows what threads, sockets and the codec cost. It ends when its standard input does, and then
//! prints the CPU time that each command took.
//!
//! `cargo run --release -p remora-gateway --example null -- [PORT] [--read | --batch]`

use std::error::Error;
use std::io::{Read, stdin};
use std::net::TcpListener;

use remora::{Cluster, Session, Table, TableOptions};
use remora_gateway::net::{self, Handler, Next, Origin, ServeOptions, UNSENT_MAX};
use remora_resp::{Parser, ReplyWriter, Version};

struct Null {
    work: Option<(Table<u64, u64>, bool)>,
    commands: std::cell::Cell<u64>,
}

impl Drop for Null {
    fn drop(&mut self) {
        println!("commands {}", self.commands.get());
    }
}

impl Handler for Null {
    type Connection = Parser;

    fn open(&self, _: &Origin) -> Result<Parser, Vec<u8>> {
        let mut parser = Parser::new();
        parser.set_authenticated(true);
        Ok(parser)
    }

    async fn serve(
        &self,
        session: &mut Session,
        parser: &mut Parser,
        input: &mut &mut [u8],
        output: &mut Vec<u8>,
    ) -> Next {
        let mut has_read = false;
        loop {
            let command = match parser.next(input) {
                Ok(Some(command)) => command,
                Ok(None) => return Next::More,
                Err(error) => {
                    error.write_reply(output);
                    return Next::Close;
                }
            };
            self.commands.set(self.commands.get() + 1);
            if let Some((table, batches)) = &self.work
                && !std::mem::replace(&mut has_read, *batches)
            {
                let key = command.get(1).map_or(0, |key| key.iter().fold(0, |sum, byte| sum * 7 + u64::from(*byte)));
                let read = session.transact(async |tx| table.get(tx, key % 1000).await).await;
                if let Err(error) = read {
                    ReplyWriter::new(output, Version::Resp2).error(format!("ERR {error}"));
                    continue;
                }
            }
            let mut reply = ReplyWriter::new(output, Version::Resp2);
            match command.name().to_ascii_uppercase().as_slice() {
                b"GET" => reply.bulk("abc"),
                b"PING" => reply.simple("PONG"),
                b"CONFIG" => reply.array(0),
                _ => reply.simple("OK"),
            }
            if output.len() > UNSENT_MAX {
                return Next::Again;
            }
        }
    }

    fn close(&self, _: Parser) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let port = arguments.iter().find_map(|word| word.parse().ok()).unwrap_or(6390);
    let has = |option| arguments.iter().any(|word| word == option);
    let cluster = Cluster::embedded().node_bytes(16 << 20).open()?;
    let table = cluster.create_table::<u64, u64>("numbers", TableOptions::for_rows(1000))?;
    cluster.load(&table, (0..1000).map(|key| (key, key)))?;
    let work = (has("--read") || has("--batch")).then_some((table, has("--batch")));
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let gateway = net::serve(&cluster, vec![listener], ServeOptions::default().threads(1), move |_, _| Null {
        work: work.clone(),
        commands: Default::default(),
    })?;
    println!("serves 127.0.0.1:{port}");
    stdin().read_to_end(&mut Vec::new())?;
    let counts = gateway.control().counts();
    gateway.control().stop();
    gateway.wait();
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    println!("{counts:?}\nseconds of CPU {}.{:09}", cpu.tv_sec, cpu.tv_nsec);
    Ok(())
}
