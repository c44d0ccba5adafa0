//! One thread of a server, with its event loop.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use super::cut::{Cut, Cutting, Whose};
use super::{Order, Running, Seat, Shared};
use crate::address::NodeId;
use crate::ids::Nanos;
use crate::limits::{HANDSHAKE_NS, LAZY_NS, SPARE_CONNECTIONS};
use crate::poller::{BELL, Interest, Poller};
use crate::service::{Progress, thread_cpu_ns};
use crate::shm::monotonic_ns;
use crate::tcp::buffer::{Outbox, Receiver};
use crate::tcp::connection::{Connection, Turn};
use crate::tcp::node::{Node, count};
use crate::tcp::stream::{Stream, set_up};
use crate::tcp::tls::ServerTls;

/// Token of the listener; connections have their places.
const LISTENER: u64 = BELL - 1;
/// Token of the channels that connections share.
const SHARED: u64 = BELL - 2;
/// The shortest time between two steps of the services. A batch costs less than its parts.
const STEP_GAP_NS: Nanos = 50_000;
/// The time until a service that found work is stepped again. Then the time doubles, and so on.
const NAP_MIN_NS: Nanos = 1_000_000;
/// The longest of these times. After it, the service waits to be woken.
const NAP_MAX_NS: Nanos = 64_000_000;
/// The longest of these times while clients have queue pairs. What such clients write is noticed
/// only by looking.
const QUEUE_NAP_MAX_NS: Nanos = 1_000_000;
/// The time until the server accepts connections again, after the system had no room for one.
const ACCEPT_PAUSE_NS: Nanos = 100_000_000;

/// One thread of a server, with its event loop.
pub(super) struct EventLoop {
    shared: Arc<Shared>,
    /// The thread's number. The first thread has number 0, and runs the services.
    number: usize,
    poller: Poller,
    tls: Option<ServerTls>,
    pub(super) node: Node,
    receiver: Receiver,
    spare: Outbox,
    connections: Vec<Option<Box<Connection>>>,
    /// Places of connections whose turn it is because something has come over a queue pair that
    /// they share.
    ready: Vec<usize>,
    free: Vec<usize>,
    serials: u64,
    /// The times by which connections must have shaken hands, or taken the last message. They are
    /// ascending, because all connections have the same time limit.
    deadlines: VecDeque<(Nanos, usize, u64)>,
    /// Connections with answers that no coroutine waits for, and the time at which these are sent.
    deferred: Vec<usize>,
    deferred_until: Nanos,
    /// The listener, if this thread accepts connections.
    listener: Option<TcpListener>,
    /// The time at which to accept connections again, after the system had no room for one.
    accept_at: Option<Nanos>,
    services: Vec<Running>,
    stepped_at: Nanos,
    step_at: Option<Nanos>,
    nap: Nanos,
}

impl EventLoop {
    pub(super) fn new(shared: Arc<Shared>, number: usize, node: Node, tls: Option<ServerTls>) -> io::Result<EventLoop> {
        let poller = Poller::new(&shared.threads[number].bell)?;
        Ok(EventLoop {
            shared,
            number,
            poller,
            tls,
            node,
            receiver: Receiver::new(),
            spare: Outbox::default(),
            connections: Vec::new(),
            ready: Vec::new(),
            free: Vec::new(),
            serials: 0,
            deadlines: VecDeque::new(),
            deferred: Vec::new(),
            deferred_until: 0,
            listener: None,
            accept_at: None,
            services: Vec::new(),
            stepped_at: 0,
            step_at: None,
            nap: NAP_MIN_NS,
        })
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    fn seat(&self) -> &Seat {
        &self.shared.threads[self.number]
    }

    pub(super) fn add_service(&mut self, running: Running) {
        self.services.push(running);
        self.step_at = Some(0);
    }

    /// Serves until the server is stopped. Rounds in flight are then cut off. The thread that has
    /// the listener accepts the connections of all threads.
    pub(super) fn run(mut self, listener: Option<TcpListener>) {
        if let Some(listener) = &listener
            && let Err(error) = self.poller.add(listener, LISTENER, Interest::IN)
        {
            return tracing::error!(%error, "a memory node cannot listen");
        }
        self.listener = listener;
        while !self.shared.stop.load(Ordering::Acquire) {
            self.wait();
            let mut arrivals = false;
            for number in 0.. {
                match self.poller.event(number) {
                    None => break,
                    Some((BELL, _)) => self.seat().bell.quiet(),
                    Some((LISTENER, _)) => arrivals = true,
                    Some((SHARED, _)) => self.node.poll(false),
                    Some((place, _)) => self.turn(place as usize),
                }
            }
            let mut ready = std::mem::take(&mut self.ready);
            self.node.ready(&mut ready);
            ready.drain(..).for_each(|place| self.turn(place));
            self.ready = ready;
            // This comes last, so that no event of this batch is taken for one of a new connection
            // that has an old one's place.
            if arrivals {
                self.accept();
            }
            self.obey();
            let now = monotonic_ns();
            if self.accept_at.take_if(|at| *at <= now).is_some()
                && let Some(listener) = &self.listener
            {
                // The call fails only for a socket that the poller does not have.
                let _ = self.poller.modify(listener, LISTENER, Interest::IN);
            }
            self.send_deferred(now);
            self.expire(now);
            self.node.turned_away.tell(now);
            self.step(now);
        }
        if self.number == 0 {
            // A handle that revokes a client asks this thread. So this thread goes last.
            self.shared.end();
            while self.shared.others.load(Ordering::Acquire) > 0 {
                self.obey_cuts();
                thread::yield_now();
            }
        }
    }

    fn wait(&mut self) {
        // What arrived before a channel was armed does not wake it, so look once now.
        self.node.poll(true);
        let timers = [
            self.deadlines.front().map(|(at, ..)| *at),
            (!self.deferred.is_empty()).then_some(self.deferred_until),
            self.accept_at,
            self.step_at,
            self.node.turned_away.due(),
            if self.node.has_ready() { Some(0) } else { self.node.due() },
        ];
        let limit = timers.into_iter().flatten().min().map(|at| match at {
            0 => Duration::ZERO,
            at => Duration::from_nanos(at.saturating_sub(monotonic_ns())),
        });
        if self.seat().bell.sleep() {
            self.poller.wait(limit);
            self.seat().bell.wake_up();
        } else {
            self.poller.wait(Some(Duration::ZERO));
        }
    }

    /// Gives a connection its turn, and does what follows from that.
    fn turn(&mut self, place: usize) {
        let Some(mut connection) = self.connections.get_mut(place).and_then(Option::take) else { return };
        let (was_timed, had_channel) = (connection.is_timed(), connection.channel().is_some());
        let mut turn = connection.turn(&mut self.node, &mut self.receiver, &mut self.spare);
        if let Some(channel) = connection.channel().filter(|_| !had_channel) {
            let added = self.poller.add(channel, place as u64, Interest::IN);
            let poller = &self.poller;
            connection.own(place);
            let added = added.and_then(|()| self.node.watch(|shared| poller.add(shared, SHARED, Interest::IN)));
            turn = match added {
                // The channel wakes for what comes after a look that has found nothing.
                Ok(()) => connection.turn(&mut self.node, &mut self.receiver, &mut self.spare),
                Err(_) => Turn::Close,
            };
        }
        if connection.deferred && !std::mem::replace(&mut connection.listed, true) {
            if self.deferred.is_empty() {
                self.deferred_until = monotonic_ns() + LAZY_NS;
            }
            self.deferred.push(place);
        }
        self.put_back(place, connection, turn, was_timed);
        if (self.evict() | self.forget(place))
            && let Some(mut connection) = self.connections[place].take()
        {
            // Only now is the order carried out, so only now may it be answered.
            let turn = connection.send(&mut self.node, true);
            self.put_back(place, connection, turn, true);
        }
    }

    fn put_back(&mut self, place: usize, mut connection: Box<Connection>, turn: Turn, was_timed: bool) {
        let wanted = connection.wanted();
        let kept = turn == Turn::Keep
            && (wanted == connection.interest || self.poller.modify(connection.socket(), place as u64, wanted).is_ok());
        if !kept {
            if let Some(client) = connection.client() {
                self.node.leave(client);
                self.node.queues -= usize::from(connection.has_queue());
            }
            self.free.push(place);
            self.seat().sockets.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        connection.interest = wanted;
        if connection.is_timed() && !was_timed {
            self.deadlines.push_back((monotonic_ns() + HANDSHAKE_NS, place, connection.serial));
        }
        self.connections[place] = Some(connection);
    }

    /// Closes the connections of clients that have been revoked, on all threads. Returns true if
    /// there were any such clients.
    fn evict(&mut self) -> bool {
        let (mut any, shared) = (false, self.shared.clone());
        while let Some(client) = self.node.evicted() {
            any = true;
            drop(self.cut(&shared, Whose::Client(client), None));
        }
        any
    }

    /// Erases everything, if the connection at this place has ordered that. Returns true if it has.
    fn forget(&mut self, asking: usize) -> bool {
        let Some(order) = self.node.forgetting.take() else { return false };
        let shared = self.shared.clone();
        if let Some(answering) = shared.common.memory.answering(NodeId(0)) {
            // The other threads hold still until the memory is erased.
            let mut held = None;
            answering.forget(&order, &mut || held = Some(self.cut(&shared, Whose::All, Some(asking))));
            drop(held);
        }
        self.node.wrote = true;
        true
    }

    /// Closes connections on all threads, except the one at the place `asking` of this thread. The
    /// order to the other threads is over when the result is dropped.
    fn cut<'s>(&mut self, shared: &'s Shared, whose: Whose, asking: Option<usize>) -> (Cutting, MutexGuard<'s, ()>) {
        // Another thread that cuts waits for this one.
        let alone = loop {
            match shared.cutting.try_lock() {
                Ok(alone) => break alone,
                Err(TryLockError::Poisoned(alone)) => break alone.into_inner(),
                Err(TryLockError::WouldBlock) => self.obey_cuts(),
            }
            thread::yield_now();
        };
        let others = || shared.threads.iter().enumerate().filter(|(number, _)| *number != self.number);
        let (cut, cutting) = Cut::new(whose, others().count());
        for (_, seat) in others() {
            if seat.order(Order::Cut(cut.clone())).is_err() {
                cut.done();
            }
        }
        self.close(whose, asking);
        cutting.until_done();
        (cutting, alone)
    }

    fn close(&mut self, whose: Whose, asking: Option<usize>) {
        for place in (0..self.connections.len()).filter(|place| Some(*place) != asking) {
            let is_meant = |connection: &mut Box<Connection>| match whose {
                Whose::Client(client) => connection.client() == Some(client),
                Whose::All => true,
            };
            let Some(mut connection) = self.connections[place].take_if(is_meant) else { continue };
            let turn = if whose == Whose::All { Turn::Close } else { connection.revoke(&mut self.node) };
            self.put_back(place, connection, turn, false);
        }
    }

    /// Closes the connections that other threads want closed.
    fn obey_cuts(&mut self) {
        loop {
            let next = |orders: &mut VecDeque<Order>| {
                let at = orders.iter().position(|order| matches!(order, Order::Cut(_)))?;
                orders.remove(at)
            };
            let order = self.seat().orders().as_mut().and_then(next);
            let Some(Order::Cut(cut)) = order else { return };
            self.obey_cut(&cut);
        }
    }

    fn obey_cut(&mut self, cut: &Cut) {
        self.close(cut.whose, None);
        cut.done();
        if cut.whose == Whose::All {
            cut.hold_still();
        }
    }

    fn accept(&mut self) {
        loop {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok((stream, peer)) => {
                    let threads = &self.shared.threads;
                    let open: usize = threads.iter().map(Seat::sockets).sum();
                    if open >= self.node.common.connections_max().saturating_add(SPARE_CONNECTIONS) {
                        self.node.turned_away.note(Some(peer), &format_args!("{open} are open already"));
                        continue;
                    }
                    let idlest =
                        threads.iter().min_by_key(|seat| seat.sockets()).filter(|seat| !ptr::eq(*seat, self.seat()));
                    let own = match idlest {
                        Some(other) => other.give(stream).err(),
                        None => Some(stream),
                    };
                    if let Some(stream) = own {
                        self.seat().sockets.fetch_add(1, Ordering::Relaxed);
                        self.take(stream);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    // The process is out of descriptors, most likely. The listener would be
                    // reported as ready all the time.
                    self.node.turned_away.note(None, &format_args!("none can be taken for now: {error}"));
                    if self.poller.modify(listener, LISTENER, Interest::empty()).is_ok() {
                        self.accept_at = Some(monotonic_ns() + ACCEPT_PAUSE_NS);
                    }
                    return;
                }
            }
        }
    }

    /// Serves a connection from now on.
    fn take(&mut self, socket: TcpStream) {
        let peer = socket.peer_addr().ok();
        if let Err(error) = self.welcome(socket) {
            self.seat().sockets.fetch_sub(1, Ordering::Relaxed);
            self.node.turned_away.note(peer, &error);
        }
    }

    fn welcome(&mut self, socket: TcpStream) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        set_up(&socket, Duration::from_secs(30))?;
        let stream = Stream::server(socket, self.tls.as_ref())?;
        self.serials += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if let Err(error) = self.poller.add(stream.socket(), place as u64, Interest::IN) {
            self.free.push(place);
            return Err(error);
        }
        self.deadlines.push_back((monotonic_ns() + HANDSHAKE_NS, place, self.serials));
        self.connections[place] = Some(Box::new(Connection::new(stream, self.serials)));
        Ok(())
    }

    /// Carries out orders, one after the other. Some of them wait for other threads, and those may
    /// wait for this one to close connections meanwhile.
    fn obey(&mut self) {
        loop {
            let order = self.seat().orders().as_mut().and_then(VecDeque::pop_front);
            match order {
                None => return,
                Some(Order::Revoke(client, confirm)) => {
                    self.node.revoke(client);
                    self.evict();
                    let _ = confirm.send(()); // the thread that asked may have gone
                }
                Some(Order::Serve(running)) => self.add_service(running),
                Some(Order::Wake) => self.node.wrote = true,
                Some(Order::Take(stream)) => self.take(stream),
                Some(Order::Cut(cut)) => self.obey_cut(&cut),
            }
        }
    }

    fn send_deferred(&mut self, now: Nanos) {
        if self.deferred.is_empty() || now < self.deferred_until {
            return;
        }
        for place in std::mem::take(&mut self.deferred) {
            if let Some(mut connection) = self.connections[place].take() {
                connection.listed = false;
                let turn = if connection.deferred { connection.send(&mut self.node, true) } else { Turn::Keep };
                self.put_back(place, connection, turn, true);
            }
        }
    }

    /// Closes connections whose time limit has passed.
    fn expire(&mut self, now: Nanos) {
        while let Some((_, place, serial)) = self.deadlines.pop_front_if(|(at, ..)| *at <= now) {
            let late = |connection: &mut Box<Connection>| connection.serial == serial && connection.is_timed();
            if self.connections[place].take_if(late).is_some() {
                self.free.push(place);
                self.seat().sockets.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Steps the services, if there may be something for them to do.
    fn step(&mut self, now: Nanos) {
        let mut wrote = std::mem::take(&mut self.node.wrote);
        if self.number > 0 {
            // The first thread has the services.
            if wrote && !self.shared.wrote.swap(true, Ordering::AcqRel) {
                self.shared.threads[0].bell.ring();
            }
            return;
        }
        wrote |= self.shared.wrote.load(Ordering::Acquire) && self.shared.wrote.swap(false, Ordering::AcqRel);
        if wrote {
            let soon = (self.stepped_at + STEP_GAP_NS).max(now);
            self.step_at = Some(self.step_at.map_or(soon, |at| at.min(soon)));
        }
        if self.step_at.is_none_or(|at| at > now) {
            return;
        }
        self.services.retain(|running| !running.is_over());
        if self.services.is_empty() {
            self.step_at = None;
            return;
        }
        let mut before = thread_cpu_ns();
        let (mut behind, mut worked) = (false, false);
        for running in &mut self.services {
            // A service that panics is not stepped again, so no code sees its half-changed state.
            match catch_unwind(AssertUnwindSafe(|| running.service.step())) {
                Ok(progress) => {
                    behind |= progress == Progress::Behind;
                    worked |= progress == Progress::Worked;
                }
                Err(_) => {
                    tracing::error!("a memory node's service panicked, and is stepped no more");
                    running.panicked = true;
                }
            }
            let after = thread_cpu_ns();
            count(&self.node.counters().service_cpu_ns, after - before);
            if let Some(stop) = &running.stop {
                stop.add_cpu_ns(after - before);
            }
            before = after;
        }
        self.stepped_at = now;
        // What is written by RDMA wakes no service.
        let (nap_min, nap_max) = match self.node.queues {
            0 => (NAP_MIN_NS, 2 * NAP_MAX_NS),
            _ => (STEP_GAP_NS, QUEUE_NAP_MAX_NS),
        };
        self.nap = if worked || behind { nap_min } else { (self.nap * 2).min(nap_max) };
        self.step_at = match behind {
            true => Some(0),
            false => (self.nap <= NAP_MAX_NS).then_some(now + self.nap),
        };
    }
}

impl Drop for EventLoop {
    /// Makes no other thread wait for this one.
    fn drop(&mut self) {
        let orders = self.seat().orders().take();
        for order in orders.into_iter().flatten() {
            if let Order::Cut(cut) = order {
                cut.done();
            }
        }
        match self.number {
            // Without this thread, no client is accepted and no service runs.
            0 => self.shared.end(),
            _ => _ = self.shared.others.fetch_sub(1, Ordering::Release),
        }
    }
}
