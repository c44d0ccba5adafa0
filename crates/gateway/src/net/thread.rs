//! A thread of a gateway: its connections, its poller and its worker. The [module above](super) has
//! the order of a turn, and the rules.

use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;
use std::{io, mem};

use remora::{Cluster, Session, WorkerOptions};
use remora_fabric::poller::{BELL, Interest, Poller};
use remora_fabric::waiting::{WORKER, now};
use remora_fabric::{Nanos, Run, Turn, Turned};
use rustix::net::sockopt;

use super::connection::Connection;
use super::control::{Order, Seat, Shared, add};
use super::error::{ServeError, cannot};
use super::lanes::{Batch, Lanes};
use super::wire::Wire;
use super::{Handler, Next, Origin, READ_BYTES, Tls, UNSENT_MAX};

/// The answer to a client beyond the greatest number of connections.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

/// Connections that are accepted in one turn, at most.
const ACCEPTS: usize = 256;
/// Pause after the system gave no descriptor, or no memory for a connection.
const ACCEPT_PAUSE_NS: Nanos = 100_000_000;
/// Pause between two looks whether there is memory for connections that wait for some.
const MEMORY_PAUSE_NS: Nanos = 10_000_000;
/// Time after which a connection is closed that is to be served next, and finds no memory.
const CRAMMED_NS: Nanos = 1_000_000_000;
/// Pause between two looks for connections that are overdue.
const OVERDUE_PAUSE_NS: Nanos = 1_000_000_000;
/// Bytes that are read at once when memory is short, from a connection that holds none.
const LITTLE_BYTES: usize = 4 << 10;
/// Output buffers of lanes that are longer are not kept.
const OUTPUT_KEPT: usize = UNSENT_MAX;
/// Time after which the kernel asks a silent client whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(300);

/// The token of the first listener. Those of connections are lower.
const LISTENERS: u64 = 1 << 63;
const _: () = assert!(WORKER > LISTENERS && BELL > LISTENERS);

/// What a thread begins with.
pub(super) struct Start {
    pub(super) number: usize,
    pub(super) cluster: Cluster,
    pub(super) shared: Arc<Shared>,
    /// The listeners, if this thread accepts.
    pub(super) listeners: Vec<TcpListener>,
    pub(super) worker: WorkerOptions,
    /// The greatest number of bytes of unfinished input of the thread's connections.
    pub(super) memory_max: usize,
    pub(super) tls: Option<Tls>,
    pub(super) handshake_max: Duration,
    pub(super) stop_patience: Duration,
}

/// Ends the thread's part in the gateway, also by a panic. Then the whole gateway ends: it must not
/// look alive without a part of itself.
struct Part<'s> {
    shared: &'s Shared,
    seat: &'s Seat,
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.seat.close();
        if std::thread::panicking() {
            tracing::error!("a thread of the gateway has panicked: the gateway stops");
        }
        self.shared.end();
    }
}

/// Runs a thread until the gateway stops. Says through `started` whether it serves.
pub(super) fn run<H: Handler>(
    start: Start,
    make_handler: impl FnOnce(usize) -> H,
    started: &Sender<Result<(), ServeError>>,
) {
    let shared = start.shared.clone();
    let _part = Part { shared: &shared, seat: &shared.seats[start.number] };
    if let Err(error) = serve(start, make_handler, started) {
        let _ = started.send(Err(error));
    }
}

fn serve<H: Handler>(
    start: Start,
    make_handler: impl FnOnce(usize) -> H,
    started: &Sender<Result<(), ServeError>>,
) -> Result<(), ServeError> {
    let Start { number, cluster, shared, listeners, worker: options, memory_max, tls, handshake_max, stop_patience } =
        start;
    let mut worker = cluster.worker(options)?;
    let handler = make_handler(number);
    let lanes = Lanes::new(options.coroutines);
    let poller = Poller::new(&shared.seats[number].bell).map_err(cannot("make an epoll"))?;
    for (token, listener) in (LISTENERS..).zip(&listeners) {
        poller.add(listener, token, Interest::IN).map_err(cannot("listen"))?;
    }
    let mut thread = Thread {
        seat: &shared.seats[number],
        shared: &shared,
        handler: &handler,
        lanes: &lanes,
        poller,
        listeners,
        connections: Vec::new(),
        free: Vec::new(),
        idle: (0..options.coroutines).rev().map(Batch::new).collect(),
        lanes_max: options.coroutines,
        memory_max,
        tls,
        handshake_max,
        queue: VecDeque::new(),
        paused: BTreeSet::new(),
        short: VecDeque::new(),
        favoured: None,
        crammed: None,
        output_stalled: 0,
        now: now(),
        accept_at: None,
        memory_at: None,
        overdue_at: now() + OVERDUE_PAUSE_NS,
        stop_at: None,
    };
    let body = async |number: usize, session: &mut Session| lanes.run(number, session, &handler).await;
    let mut run = worker.start(&body);
    run.ring(&thread.seat.bell);
    let _ = started.send(Ok(()));
    thread.run(&mut run, stop_patience);
    Ok(())
}

/// A place for a connection. Its generation rises with each connection, so that events of an
/// earlier one are told apart.
struct Place<C> {
    generation: u32,
    connection: Option<Connection<C>>,
}

/// A connection by its place and generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    place: u32,
    generation: u32,
}

impl Key {
    fn token(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.place)
    }

    fn of(token: u64) -> Key {
        Key { place: token as u32, generation: (token >> 32) as u32 }
    }
}

struct Thread<'t, H: Handler> {
    seat: &'t Seat,
    shared: &'t Shared,
    handler: &'t H,
    lanes: &'t Lanes<H::Connection>,
    poller: Poller,
    listeners: Vec<TcpListener>,
    connections: Vec<Place<H::Connection>>,
    /// Places without a connection.
    free: Vec<u32>,
    /// The batches of lanes that are free. The one that was used last is used next, because its
    /// buffer is in the caches.
    idle: Vec<Box<Batch<H::Connection>>>,
    lanes_max: usize,
    memory_max: usize,
    tls: Option<Tls>,
    handshake_max: Duration,
    /// Connections that wait for a lane.
    queue: VecDeque<Key>,
    /// Connections that are paused, by the end of their pause.
    paused: BTreeSet<(Nanos, Key)>,
    /// Connections that wait for memory.
    short: VecDeque<Key>,
    /// The connection that is served although memory is short.
    favoured: Option<Key>,
    /// Since when the favoured connection has found no room.
    crammed: Option<Nanos>,
    /// The number of connections with too much unsent output.
    output_stalled: usize,
    /// The time of this turn.
    now: Nanos,
    accept_at: Option<Nanos>,
    memory_at: Option<Nanos>,
    overdue_at: Nanos,
    /// When a gateway that stops gives up what is not done. `None` while it serves.
    stop_at: Option<Nanos>,
}

impl<H: Handler> Thread<'_, H> {
    fn run<T>(&mut self, run: &mut Run<'_, T>, stop_patience: Duration) {
        let mut turned = run.turn();
        loop {
            let until = self.wait_until(turned);
            run.wait_in(&mut self.poller, &self.seat.bell, until);
            self.now = now();
            self.note_events();
            self.obey();
            self.keep_time();
            while let Some(mut batch) = self.idle.pop() {
                if !self.fill(&mut batch) {
                    self.idle.push(batch);
                    break;
                }
                self.hand_over(batch, run);
            }
            turned = run.turn();
            while let Some(batch) = self.lanes.done() {
                self.finish(batch);
            }
            self.count();
            match self.stop_at {
                None if self.shared.stop.load(Ordering::Acquire) => {
                    self.stop_at = Some(self.now.saturating_add(stop_patience.as_nanos() as Nanos));
                    self.begin_to_stop();
                }
                Some(stop_at) if self.open() == 0 || self.now >= stop_at => break,
                _ => {}
            }
        }
        self.end_lanes(run);
        for place in 0..self.connections.len() as u32 {
            self.close(place);
        }
    }

    /// Makes the lanes end. A lane whose batch does not end in time is dropped with the run.
    fn end_lanes<T>(&mut self, run: &mut Run<'_, T>) {
        self.lanes.end().for_each(|lane| run.make_ready(lane));
        while let turned @ (Turned::Ready | Turned::Waiting(_)) = run.turn() {
            let stop_at = self.stop_at.unwrap_or(0);
            if now() >= stop_at {
                return tracing::warn!("batches that did not end in time are given up");
            }
            let until = if turned == Turned::Ready { 0 } else { stop_at };
            run.wait_in(&mut self.poller, &self.seat.bell, Some(until));
            while let Some(batch) = self.lanes.done() {
                self.finish(batch);
            }
        }
    }

    fn open(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Returns until when the thread may wait for something to happen.
    fn wait_until(&self, turned: Turned) -> Option<Nanos> {
        if turned == Turned::Ready || !self.queue.is_empty() && !self.idle.is_empty() {
            return Some(0);
        }
        let timers = [
            self.paused.first().map(|(until, _)| *until),
            self.accept_at,
            self.memory_at,
            (self.open() > 0).then_some(self.overdue_at),
            self.stop_at,
        ];
        timers.into_iter().flatten().min()
    }

    fn connection(&mut self, key: Key) -> Option<&mut Connection<H::Connection>> {
        let place = self.connections.get_mut(key.place as usize)?;
        place.connection.as_mut().filter(|_| place.generation == key.generation)
    }

    fn key(&self, place: u32) -> Key {
        Key { place, generation: self.connections[place as usize].generation }
    }

    fn note_events(&mut self) {
        let mut arrivals = false;
        for number in 0.. {
            match self.poller.event(number) {
                None => break,
                Some((WORKER | BELL, _)) => {}
                Some((token, _)) if token >= LISTENERS => arrivals = true,
                Some((token, flags)) => self.note_event(Key::of(token), flags),
            }
        }
        // This comes last, so that no event of this look is taken for one of a new connection.
        if arrivals {
            self.accept();
        }
    }

    fn note_event(&mut self, key: Key, flags: Interest) {
        let Some(connection) = self.connection(key) else { return };
        let gone = Interest::HUP | Interest::ERR;
        connection.ending |= flags.intersects(gone | Interest::RDHUP);
        connection.readable |= flags.intersects(gone | Interest::RDHUP | Interest::IN);
        connection.broken |= flags.intersects(gone) || connection.ending && connection.short_of_memory;
        if flags.intersects(Interest::OUT) && (connection.unsent() > 0 || connection.wire.is_blocked()) {
            let was_stalled = connection.stalled;
            let sent = connection.go_on_sending();
            self.output_stalled -= usize::from(was_stalled && !connection.stalled);
            add(&self.seat.tally.bytes_out, sent);
        }
        self.consider(key);
    }

    /// Closes a connection that is over, or queues one that wants a lane.
    fn consider(&mut self, key: Key) {
        let Some(connection) = self.connection(key) else { return };
        if connection.is_over() {
            return self.close(key.place);
        }
        if connection.wants_lane() {
            connection.queued = true;
            self.queue.push_back(key);
        }
    }

    fn close(&mut self, place: u32) {
        let here = &mut self.connections[place as usize];
        let Some(mut connection) = here.connection.take() else { return };
        // A token has 31 bits for the generation.
        here.generation = (here.generation + 1) & (u32::MAX >> 1);
        self.free.push(place);
        self.output_stalled -= usize::from(connection.stalled);
        if let Some(until) = connection.paused {
            let generation = self.connections[place as usize].generation.wrapping_sub(1) & (u32::MAX >> 1);
            self.paused.remove(&(until, Key { place, generation }));
        }
        self.hold(connection.rest.capacity(), 0);
        if let Some(state) = connection.state.take() {
            self.handler.close(state);
        }
        if self.favoured.is_some_and(|key| key.place == place) {
            self.memory_at = Some(self.now);
        }
        connection.wire.end();
        // The descriptor is closed before others may take its place.
        drop(connection);
        self.seat.connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Fills a batch with what the next connection has for a lane. Returns false if there is none.
    fn fill(&mut self, batch: &mut Batch<H::Connection>) -> bool {
        while let Some(key) = self.queue.pop_front() {
            let Some(connection) = self.connection(key) else { continue };
            connection.queued = false;
            if !connection.wants_lane() {
                continue;
            }
            batch.length = 0;
            if !mem::take(&mut connection.again) && !self.read(key, batch) {
                self.consider(key);
                continue;
            }
            let Some(connection) = self.connection(key) else { continue };
            batch.place = key.place;
            batch.state = connection.state.take();
            batch.rest = mem::take(&mut connection.rest);
            batch.held = batch.rest.capacity();
            return true;
        }
        false
    }

    /// Reads once. Returns whether there is something to serve.
    fn read(&mut self, key: Key, batch: &mut Batch<H::Connection>) -> bool {
        if self.stop_at.is_some() {
            return false;
        }
        let (held, memory_max, favoured, now) = (self.held(), self.memory_max, self.favoured, self.now);
        let place = self.connections.get_mut(key.place as usize);
        let Some(connection) = place.and_then(|place| place.connection.as_mut()) else { return false };
        let is_small = connection.rest.len() < LITTLE_BYTES;
        let is_favoured = favoured == Some(key);
        let is_short = held > memory_max / 2;
        let bytes = if is_short && is_small && !connection.wire.needs_room() { LITTLE_BYTES } else { READ_BYTES };
        // A buffer may grow by a quarter. Little pieces find room when long ones do not.
        let growth = bytes.max(connection.rest.len() / 4);
        let has_room = held + growth <= if is_small { memory_max } else { memory_max / 8 * 7 };
        if !has_room || is_short && !is_small && !is_favoured {
            connection.short_of_memory = true;
            connection.broken |= connection.ending;
            if is_favoured {
                self.short.push_front(key);
                self.make_room(key, now);
            } else {
                self.short.push_back(key);
            }
            self.memory_at.get_or_insert(now + MEMORY_PAUSE_NS);
            return false;
        }
        if is_favoured {
            self.crammed = None;
        }
        match connection.read(&mut batch.input[..bytes]) {
            Ok(Some(0)) => {
                connection.readable = false;
                connection.closing = true;
                false
            }
            Ok(Some(bytes)) => {
                connection.heard = now;
                batch.length = bytes;
                add(&self.seat.tally.bytes_in, bytes);
                true
            }
            Ok(None) => false,
            Err(_) => {
                connection.broken = true;
                false
            }
        }
    }

    /// Closes connections when the favoured one has found no memory for some time. It closes the
    /// connections that hold the most, until there is some room. If none holds more than the
    /// favoured one, it closes the favoured one.
    fn make_room(&mut self, favoured: Key, now: Nanos) {
        self.favoured = None;
        if now < *self.crammed.get_or_insert(now) + CRAMMED_NS {
            return;
        }
        self.crammed = None;
        let bytes = |here: &Place<_>| here.connection.as_ref().map_or(0, |connection| connection.rest.capacity());
        let own = bytes(&self.connections[favoured.place as usize]);
        let places = (0..).zip(&self.connections).map(|(place, here)| (bytes(here), place));
        let mut longest: Vec<(usize, u32)> = places.filter(|(bytes, _)| *bytes > own).collect();
        longest.sort_unstable();
        if longest.is_empty() {
            longest.push((own, favoured.place));
        }
        let mut freed = 0;
        while freed < self.memory_max / 4
            && let Some((bytes, place)) = longest.pop()
        {
            freed += bytes;
            let key = self.key(place);
            if let Some(connection) = self.connection(key) {
                tracing::warn!(id = connection.id, "a connection is closed: unfinished input needs too much memory");
                connection.broken = true;
            }
            self.consider(key);
        }
    }

    fn held(&self) -> usize {
        self.seat.tally.held.load(Ordering::Relaxed)
    }

    /// Counts that a connection holds this much unfinished input after that much.
    fn hold(&self, before: usize, after: usize) {
        self.seat.tally.held.store(self.held() - before + after, Ordering::Relaxed);
    }

    fn hand_over<T>(&mut self, batch: Box<Batch<H::Connection>>, run: &Run<'_, T>) {
        add(&self.seat.tally.batches, 1);
        if let Some(lane) = self.lanes.hand_over(batch) {
            run.make_ready(lane);
        }
    }

    /// Takes back what a lane has done: keeps the unfinished input, and sends the output.
    fn finish(&mut self, mut batch: Box<Batch<H::Connection>>) {
        let key = self.key(batch.place);
        let (stops, now) = (self.stop_at.is_some(), self.now);
        // While the lane had it, the former size of the unfinished input counted.
        let held = batch.rest.capacity();
        self.hold(batch.held, held);
        let Some(connection) = self.connections[batch.place as usize].connection.as_mut() else { return };
        connection.state = batch.state.take();
        connection.rest = mem::take(&mut batch.rest);
        if held == 0 && self.favoured == Some(key) {
            self.memory_at = Some(now);
        }
        match batch.next.take() {
            Some(Next::More) => connection.closing |= stops,
            Some(Next::Again) => connection.again = true,
            Some(Next::Pause(_)) if stops => connection.closing = true,
            Some(Next::Pause(time)) => {
                let until = now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(Nanos::MAX));
                (connection.again, connection.paused) = (true, Some(until));
                self.paused.insert((until, key));
            }
            Some(Next::Close) => connection.closing = true,
            None => {
                tracing::error!(id = connection.id, "a handler has panicked: its connection is closed");
                connection.broken = true;
            }
        }
        if connection.broken {
            batch.output.clear();
        } else if !batch.output.is_empty() {
            let was_stalled = connection.stalled;
            let sent = connection.send(&mut batch.output);
            self.output_stalled += usize::from(connection.stalled && !was_stalled);
            add(&self.seat.tally.bytes_out, sent);
        }
        if batch.output.capacity() > OUTPUT_KEPT {
            batch.output = Vec::new();
        }
        self.idle.push(batch);
        self.consider(key);
    }

    fn obey(&mut self) {
        for order in self.seat.take_orders() {
            match order {
                Order::Serve(socket, origin) => self.begin(socket, &origin),
                Order::Kill(id) => {
                    if let Some(key) = self.find(id)
                        && let Some(connection) = self.connection(key)
                    {
                        connection.broken = true;
                        self.consider(key);
                    }
                }
                Order::Wake(Some(id)) => {
                    if let Some(key) = self.find(id)
                        && let Some(until) = self.connection(key).and_then(|connection| connection.paused)
                    {
                        self.unpause(until, key);
                    }
                }
                Order::Wake(None) => {
                    while let Some((until, key)) = self.paused.first().copied() {
                        self.unpause(until, key);
                    }
                }
            }
        }
    }

    fn find(&self, id: u64) -> Option<Key> {
        let is_it = |place: &Place<_>| place.connection.as_ref().is_some_and(|connection| connection.id == id);
        self.connections.iter().position(is_it).map(|place| self.key(place as u32))
    }

    fn unpause(&mut self, until: Nanos, key: Key) {
        self.paused.remove(&(until, key));
        if let Some(connection) = self.connection(key) {
            connection.paused = None;
        }
        self.consider(key);
    }

    /// Does what is due.
    fn keep_time(&mut self) {
        let now = self.now;
        while let Some((until, key)) = self.paused.first().copied().filter(|(until, _)| *until <= now) {
            self.unpause(until, key);
        }
        if self.accept_at.take_if(|at| *at <= now).is_some() {
            self.watch_listeners(Interest::IN);
        }
        if self.memory_at.is_some_and(|at| at <= now) {
            self.share_memory();
        }
        if self.overdue_at <= now {
            self.overdue_at = now + OVERDUE_PAUSE_NS;
            for place in 0..self.connections.len() as u32 {
                let handler = self.handler;
                let Some(connection) = &mut self.connections[place as usize].connection else { continue };
                let quiet = Duration::from_nanos(now.saturating_sub(connection.heard));
                // Nothing counts as heard before the handshake has ended.
                let is_late = connection.wire.is_shaking_hands() && quiet >= self.handshake_max;
                if is_late || connection.state.as_ref().is_some_and(|state| handler.is_overdue(state, quiet)) {
                    connection.broken = true;
                    self.consider(self.key(place));
                }
            }
        }
    }

    /// Lets connections go on that wait for memory: all, or the oldest if memory is still short.
    fn share_memory(&mut self) {
        let is_short = self.held() > self.memory_max / 2;
        let uses_favour = |connection: &mut Connection<_>| {
            !connection.rest.is_empty() && (connection.readable || connection.queued) || connection.state.is_none()
        };
        if !is_short || !self.favoured.and_then(|key| self.connection(key)).is_some_and(uses_favour) {
            self.favoured = None;
        }
        while self.favoured.is_none()
            && let Some(key) = self.short.pop_front()
        {
            let Some(connection) = self.connection(key) else { continue };
            connection.short_of_memory = false;
            self.favoured = is_short.then_some(key);
            self.consider(key);
        }
        self.memory_at = (!self.short.is_empty()).then_some(self.now + MEMORY_PAUSE_NS);
    }

    fn accept(&mut self) {
        for number in 0..self.listeners.len() {
            for _ in 0..ACCEPTS {
                match self.listeners[number].accept() {
                    Ok((socket, peer)) => self.admit(socket, peer),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(error) => {
                        // The process is out of descriptors, most likely. The listener would be
                        // shown as ready all the time.
                        tracing::warn!(%error, "no connection can be accepted for now");
                        self.watch_listeners(Interest::empty());
                        self.accept_at = Some(self.now + ACCEPT_PAUSE_NS);
                        return;
                    }
                }
            }
        }
    }

    fn watch_listeners(&self, interest: Interest) {
        for (token, listener) in (LISTENERS..).zip(&self.listeners) {
            // The call fails only for a socket that the poller does not have.
            let _ = self.poller.modify(listener, token, interest);
        }
    }

    /// Gives a socket to the thread with the fewest connections, unless there are too many.
    fn admit(&mut self, socket: TcpStream, peer: SocketAddr) {
        let shared = self.shared;
        if shared.connections.load(Ordering::Relaxed) >= shared.connections_max {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            return if self.tls.is_none() {
                refuse(socket)
            };
        }
        let Ok(local) = socket.local_addr() else { return };
        let id = shared.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let origin = Origin { id, peer, local };
        let Some(seat) = shared.seats.iter().min_by_key(|seat| seat.connections.load(Ordering::Relaxed)) else {
            return;
        };
        shared.connections.fetch_add(1, Ordering::Relaxed);
        seat.connections.fetch_add(1, Ordering::Relaxed);
        if std::ptr::eq(seat, self.seat) {
            self.begin(socket, &origin);
        } else if !seat.tell(Order::Serve(socket, origin)) {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Serves a connection from now on.
    fn begin(&mut self, socket: TcpStream, origin: &Origin) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Place { generation: 0, connection: None });
            self.connections.len() as u32 - 1
        });
        let key = self.key(place);
        let set_up = self.set_up(&socket, key);
        let wire = match Wire::new(socket, self.tls.as_ref()) {
            Ok(wire) => wire,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be served");
                self.free.push(place);
                self.seat.connections.fetch_sub(1, Ordering::Relaxed);
                self.shared.connections.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        };
        let mut connection = Connection::new(origin.id, wire, None, self.now);
        match (set_up, self.handler.open(origin)) {
            (Ok(()), Ok(state)) if self.stop_at.is_none() => connection.state = Some(state),
            (Ok(()), Err(mut answer)) => {
                self.shared.refused.fetch_add(1, Ordering::Relaxed);
                connection.closing = true;
                connection.send(&mut answer);
            }
            (set_up, opened) => {
                if let Err(error) = set_up {
                    tracing::warn!(%error, "a connection cannot be served");
                }
                connection.state = opened.ok();
                (connection.closing, connection.broken) = (true, true);
            }
        }
        self.connections[place as usize].connection = Some(connection);
        self.consider(key);
    }

    fn set_up(&self, socket: &TcpStream, key: Key) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, KEEP_ALIVE)?;
        self.poller.add(socket, key.token(), Interest::IN | Interest::OUT | Interest::RDHUP | Interest::ET)
    }

    /// Accepts and reads nothing any more. Connections close when all that was read has been run
    /// and answered.
    fn begin_to_stop(&mut self) {
        self.listeners.clear();
        while let Some((until, key)) = self.paused.first().copied() {
            if let Some(connection) = self.connection(key) {
                connection.again = false;
            }
            self.unpause(until, key);
        }
        for place in 0..self.connections.len() as u32 {
            if let Some(connection) = &mut self.connections[place as usize].connection {
                // One that a lane has closes when the lane is done.
                connection.closing |= connection.state.is_some() && !connection.again;
                self.consider(self.key(place));
            }
        }
    }

    fn count(&self) {
        let tally = &self.seat.tally;
        tally.lanes_busy.store(self.lanes_max - self.idle.len(), Ordering::Relaxed);
        tally.stalled_by_lanes.store(self.queue.len(), Ordering::Relaxed);
        tally.stalled_by_output.store(self.output_stalled, Ordering::Relaxed);
        tally.stalled_by_memory.store(self.short.len(), Ordering::Relaxed);
    }
}

/// Tells a client that there are too many, and closes its connection.
fn refuse(mut socket: TcpStream) {
    if socket.set_nonblocking(true).is_ok() {
        // What has been sent and is not read would make the system discard the answer.
        let _ = socket.read(&mut [0; LITTLE_BYTES]);
        let _ = socket.write(TOO_MANY);
    }
}
