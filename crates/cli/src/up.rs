//! `remora up`: a cluster on this machine, with a gateway for clients of Redis. All of it is in
//! this process, or each part in a process of its own.

mod processes;
mod script;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::Args;
use remora::Cluster;

use crate::gateway::{LOOK, PORT, ServeArgs, listen};
use crate::signals::stop_on_signals;
use crate::{Failure, Verdict, output, value};
use script::Script;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  remora up
  remora up --copies 3
  remora up --processes
  remora up --exec 'redis-cli -p $REMORA_PORT set greeting hello'

Memory nodes and the gateway are in this process, and what they hold is gone when it ends. With --processes, memory nodes, two
controllers and two gateways are processes of their own. Kill any of them: the others go on, and it is started again. If all
memory nodes die at once, what they held is lost, and the command ends.

Prints a few lines when it is ready, and with --processes a line for each process that dies or is back. SIGTERM, SIGINT and
SIGHUP stop it; a second one ends it at once. Exit status: 0 stopped, 2 it cannot serve; with --exec, the command's.")]
pub(crate) struct UpOptions {
    /// Run memory nodes, two controllers and two gateways as processes, and start again what dies.
    #[arg(long)]
    processes: bool,
    /// Memory nodes [default: as many as copies; with --processes 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: Option<u16>,
    /// Copies of each key, at different memory nodes [default: 1; with --processes 3, or as many
    /// as there are memory nodes].
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u8).range(1..=7))]
    copies: Option<u8>,
    /// Bytes of memory of each memory node.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = value::bytes)]
    size: u64,
    /// Where clients of Redis connect [default: 127.0.0.1:6379, or the next port that is free].
    /// With --processes, the second gateway takes the next port that is free.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Run this command of the shell, and stop when it ends. REMORA_PORT is the gateway's port.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    #[command(flatten)]
    serve: ServeArgs,
}

impl UpOptions {
    fn nodes(&self) -> u16 {
        let usual = if self.processes { 3 } else { self.copies.unwrap_or(1).into() };
        self.nodes.unwrap_or(usual)
    }

    fn copies(&self) -> u8 {
        let usual = if self.processes { self.nodes().min(3) as u8 } else { 1 };
        self.copies.unwrap_or(usual)
    }

    /// Listens for clients.
    fn listener(&self) -> Result<(TcpListener, SocketAddr), Failure> {
        let wanted = self.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
        let failed = |error| Failure::new(format!("--listen {wanted}"), error);
        let listener = listen(wanted, self.listen.is_none()).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((listener, address))
    }

    /// Returns the options by which programs of Redis speak TLS, if they have to.
    fn tls_words(&self) -> &'static str {
        match (&self.serve.tls_cert, &self.serve.tls_client_ca) {
            (None, _) => "",
            (_, None) => " --tls --cacert FILE",
            _ => " --tls --cacert FILE --cert FILE --key FILE",
        }
    }

    /// Returns what the first line says of a port that is not the usual one.
    fn taken(&self, port: u16) -> String {
        if self.listen.is_none() && port != PORT { format!(" ({PORT} is taken)") } else { String::new() }
    }
}

pub(crate) fn up(options: &UpOptions) -> Result<Verdict, Failure> {
    let stop = stop_on_signals()?;
    if u16::from(options.copies()) > options.nodes() {
        let why = format!("needs as many memory nodes, and --nodes is {}", options.nodes());
        return Err(Failure::new(format!("--copies {}", options.copies()), why));
    }
    if let Some(path) = options.serve.record.as_ref().filter(|_| options.processes) {
        let why = "records one gateway, and --processes has two: see `remora gateway --record`";
        return Err(Failure::new(format!("--record {}", path.display()), why));
    }
    if options.processes {
        return processes::up(options, &stop);
    }
    let (listener, address) = options.listener()?;
    let cluster = Cluster::embedded()
        .nodes(options.nodes())
        .replicas(options.copies())
        .node_bytes(usize::try_from(options.size).unwrap_or(usize::MAX))
        .open()
        .map_err(|error| Failure::new(format!("--size {}", value::show_bytes(options.size)), error))?
        .with_interrupt(stop.clone());
    let gateway = options.serve.serve(&cluster, listener, options.copies())?;
    let mut script = Script::start(options.exec.as_deref(), address.port())?;
    if script.is_none() {
        output::show(&greeting(options, address))?;
    }
    while !is_over(&mut script, &stop)? {
        thread::sleep(LOOK);
    }
    let verdict = verdict(script);
    let recorded = gateway.end();
    verdict.and_then(|verdict| recorded.map(|()| verdict))
}

/// Returns whether the command is to stop: it was told to, or what `--exec` runs has ended.
fn is_over(script: &mut Option<Script>, stop: &AtomicBool) -> Result<bool, Failure> {
    Ok(stop.load(Ordering::Relaxed) || script.as_mut().map_or(Ok(false), Script::has_ended)?)
}

/// Ends what `--exec` runs, and returns the verdict of the command.
fn verdict(script: Option<Script>) -> Result<Verdict, Failure> {
    script.map_or(Ok(Verdict::Sound), |script| script.end().map(Verdict::Ended))
}

fn copies_of_each_key(copies: u8) -> String {
    if copies == 1 { "1 copy of each key".to_owned() } else { format!("{copies} copies of each key") }
}

/// Returns what the command says when it is ready.
fn greeting(options: &UpOptions, address: SocketAddr) -> String {
    let port = address.port();
    let nodes =
        if options.nodes() == 1 { "1 memory node".to_owned() } else { format!("{} memory nodes", options.nodes()) };
    let (taken, copies) = (options.taken(port), copies_of_each_key(options.copies()));
    let tls = options.tls_words();
    format!(
        "remora up: {address}{taken}, {nodes} in this process, {copies}\n\
         try:  redis-cli -p {port}{tls} set greeting hello\n\
         load: redis-benchmark -p {port}{tls} -t set,get -P 16 -q\n\
         stop: Ctrl-C\n"
    )
}
