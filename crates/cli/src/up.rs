//! `remora up`: a cluster on this machine, with a gateway for clients of Redis.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::Args;
use remora::Cluster;
use remora_gateway::StoreOptions;

use crate::gateway::{LOOK, PORT, ServeArgs, end, listen, until_stopped};
use crate::signals::stop_on_signals;
use crate::{Failure, Verdict, output, value};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  remora up
  remora up --copies 3
  remora up --exec 'redis-cli -p $REMORA_PORT set greeting hello'

Memory nodes and the gateway are in this process, and what they hold is gone when it ends.

Prints four lines when it is ready; SIGTERM, SIGINT and SIGHUP stop it. Exit status: 0 stopped, 2 it cannot serve; with --exec,
the command's.")]
pub(crate) struct UpOptions {
    /// Memory nodes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: u16,
    /// Copies of each key, at different memory nodes.
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=7))]
    copies: u8,
    /// Bytes of memory of each memory node.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = value::bytes)]
    size: u64,
    /// Where clients of Redis connect [default: 127.0.0.1:6379, or the next port that is free].
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Run this command of the shell, and stop when it ends. REMORA_PORT is the port of the
    /// gateway.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    #[command(flatten)]
    serve: ServeArgs,
}

pub(crate) fn up(options: &UpOptions) -> Result<Verdict, Failure> {
    let stop = stop_on_signals()?;
    if u16::from(options.copies) > options.nodes {
        let why = format!("needs as many memory nodes, and --nodes is {}", options.nodes);
        return Err(Failure::new(format!("--copies {}", options.copies), why));
    }
    let wanted = options.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
    let listener =
        listen(wanted, options.listen.is_none()).map_err(|error| Failure::new(format!("--listen {wanted}"), error))?;
    let address = listener.local_addr().map_err(|error| Failure::new("--listen", error))?;
    let cluster = Cluster::embedded()
        .nodes(options.nodes)
        .replicas(options.copies)
        .node_bytes(options.size)
        .open()
        .map_err(|error| Failure::new(format!("--size {}", value::show_bytes(options.size)), error))?
        .with_interrupt(stop.clone());
    let store = StoreOptions { copies: Some(options.copies), ..StoreOptions::default() };
    let gateway = options.serve.serve(&cluster, listener, store)?;
    let Some(command) = &options.exec else {
        output::show(&greeting(options, address))?;
        until_stopped(gateway, &stop);
        return Ok(Verdict::Sound);
    };
    let status = run(command, address.port(), &stop);
    end(gateway);
    Ok(Verdict::Ended(code(status?)))
}

/// Returns what the command says when it is ready.
fn greeting(options: &UpOptions, address: SocketAddr) -> String {
    let (port, nodes) = (address.port(), options.nodes);
    let copies = if options.copies == 1 { "1 copy".to_owned() } else { format!("{} copies", options.copies) };
    let taken = if options.listen.is_none() && port != PORT { format!(" ({PORT} is taken)") } else { String::new() };
    format!(
        "remora up: {address}{taken}, {nodes} memory nodes in this process, {copies} of each key\n\
         try:  redis-cli -p {port} set greeting hello\n\
         load: redis-benchmark -p {port} -t set,get -P 16 -q\n\
         stop: Ctrl-C\n"
    )
}

/// Runs a command of the shell until it ends, or until this process is to stop.
fn run(command: &str, port: u16, stop: &AtomicBool) -> Result<ExitStatus, Failure> {
    let failed = |error| Failure::new(format!("--exec {command}"), error);
    let child = Command::new("/bin/sh").args(["-c", command]).env("REMORA_PORT", port.to_string()).spawn();
    let mut child: Child = child.map_err(failed)?;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) {
            // The signal of the terminal has reached the command, too.
            let _ = child.kill();
            return child.wait().map_err(failed);
        }
        thread::sleep(LOOK);
    }
}

/// Returns the exit status of a command, as the shell has it.
fn code(status: ExitStatus) -> u8 {
    const SIGNALED: i32 = 128;
    let code = status.code().or(status.signal().map(|signal| SIGNALED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
