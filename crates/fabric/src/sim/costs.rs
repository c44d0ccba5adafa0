//! The costs of a profile in the simulator's own unit of time, and the parts of a machine that can
//! be occupied.

use super::profile::{Medium, Profile};
use super::queue::{NS, Picos};

/// Converts nanoseconds to picoseconds.
pub(super) fn picos(ns: f64) -> Picos {
    (ns * NS as f64).round() as Picos
}

/// A time for each byte, in fractions of a picosecond. It is an integer, because floating point
/// would be slow where everything else is integers.
#[derive(Clone, Copy, Debug)]
struct PerByte(u64);

impl PerByte {
    const FRACTION_BITS: u32 = 20;

    /// Returns the time for each byte at `gb_s` gigabytes per second.
    fn at(gb_s: f64) -> PerByte {
        PerByte((NS as f64 / gb_s * f64::from(1u32 << PerByte::FRACTION_BITS)).round() as u64)
    }

    fn times(self, bytes: u64) -> Picos {
        ((u128::from(self.0) * u128::from(bytes)) >> PerByte::FRACTION_BITS) as Picos
    }
}

/// All costs of a profile: see [`Profile`] for the meaning of each.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    link_per_byte: PerByte,
    pcie_per_byte: PerByte,
    pub(super) wire: Picos,
    pub(super) send: Picos,
    pub(super) fetch: Picos,
    pub(super) inline_bytes: u64,
    pub(super) receive: Picos,
    pub(super) dma_read: Picos,
    pub(super) dma_write: Picos,
    pub(super) completion: Picos,
    pub(super) flush: Picos,
    pub(super) request: Picos,
    pub(super) connection: Picos,
    pub(super) read: Picos,
    pub(super) write: Picos,
    pub(super) atomic: Picos,
    header_bytes: u64,
    packet_bytes: u64,
    slot_mask: u64,
    slot_shift: u32,
    pub(super) slot: Picos,
    cached_connections: f64,
    miss: f64,
    pub(super) doorbell: Picos,
    pub(super) post: Picos,
    pub(super) poll: Picos,
    pub(super) switch: Picos,
    /// The work of a client's software for each record, by [`Phase`](crate::probes::Phase).
    pub(super) phases: [Picos; 4],
    pub(super) message: Picos,
    pub(super) call_post: Picos,
    pub(super) call_next: Picos,
    pub(super) call_poll: Picos,
    pub(super) serve: Picos,
    pub(super) serve_word: Picos,
    pub(super) resend: Picos,
    /// The latency to the switch that stands for the last memory node, and the time that the switch
    /// takes for a call.
    pub(super) in_switch: Option<(Picos, Picos)>,
}

impl Costs {
    pub(super) fn of(profile: &Profile) -> Costs {
        let Profile { nic, cpu, calls, switch, .. } = profile;
        Costs {
            link_per_byte: PerByte::at(nic.link_gb_s),
            pcie_per_byte: PerByte::at(nic.pcie_gb_s),
            wire: picos(nic.wire_ns),
            send: picos(nic.send_ns),
            fetch: picos(nic.fetch_ns),
            inline_bytes: nic.inline_bytes.into(),
            receive: picos(nic.receive_ns),
            dma_read: picos(nic.dma_read_ns),
            dma_write: picos(nic.dma_write_ns),
            completion: picos(nic.completion_ns),
            flush: picos(nic.flush_ns),
            request: picos(nic.request_ns),
            connection: picos(nic.connection_ns),
            read: picos(nic.read_ns),
            write: picos(nic.write_ns),
            atomic: picos(nic.atomic_ns),
            header_bytes: nic.header_bytes.into(),
            packet_bytes: u64::from(nic.packet_bytes).max(1),
            slot_mask: u64::from(nic.atomic_slots.max(1)) - 1,
            slot_shift: nic.atomic_slot_shift,
            slot: picos(nic.atomic_slot_ns),
            cached_connections: nic.cached_connections.into(),
            miss: nic.miss_ns * NS as f64,
            doorbell: picos(cpu.doorbell_ns),
            post: picos(cpu.post_ns),
            poll: picos(cpu.poll_ns),
            switch: picos(cpu.switch_ns),
            phases: [cpu.execution_ns, cpu.validation_ns, cpu.logging_ns, cpu.commit_ns].map(picos),
            message: picos(calls.message_ns),
            call_post: picos(calls.post_ns),
            call_next: picos(calls.next_ns),
            call_poll: picos(calls.poll_ns),
            serve: picos(calls.serve_ns),
            serve_word: picos(calls.word_ns),
            resend: picos(calls.resend_ns),
            in_switch: switch.as_ref().map(|switch| (picos(switch.wire_ns), picos(switch.serve_ns))),
        }
    }

    /// Returns the time on the link of a message with `payload` bytes of payload, headers included.
    pub(super) fn link(&self, payload: u64) -> Picos {
        let packets = if payload <= self.packet_bytes { 1 } else { payload.div_ceil(self.packet_bytes) };
        self.link_per_byte.times(payload + packets * self.header_bytes)
    }

    /// Returns the time that `bytes` bytes take between NIC and memory.
    pub(super) fn pcie(&self, bytes: u64) -> Picos {
        self.pcie_per_byte.times(bytes)
    }

    /// Returns the slot of the NIC's table that an atomic at this offset takes.
    pub(super) fn slot_of(&self, offset: u64) -> usize {
        (offset >> self.slot_shift & self.slot_mask) as usize
    }

    pub(super) fn slots(&self) -> usize {
        self.slot_mask as usize + 1
    }

    /// Returns what a verb costs in addition at a NIC that has `connections` connections in use.
    /// The NIC fetches the state of connections that it does not cache.
    fn miss(&self, connections: u32) -> Picos {
        let connections = f64::from(connections);
        if self.cached_connections == 0.0 || connections <= self.cached_connections {
            return 0;
        }
        (self.miss * (1.0 - self.cached_connections / connections)) as Picos
    }
}

/// One NIC. Its times say until when each of its parts is occupied.
#[derive(Clone, Debug)]
pub(super) struct NicState {
    /// The engine, which works for the requests of this machine's clients and for requests to its
    /// memory.
    pub(super) engine: Picos,
    /// The link, in each of its two directions.
    pub(super) sending: Picos,
    pub(super) receiving: Picos,
    pub(super) slots: Box<[Picos]>,
    /// Connections of this machine's clients that use this NIC and have been used.
    connections: u32,
    /// The extra cost of each requested verb, if the NIC cannot cache all connections.
    pub(super) miss: Picos,
}

impl NicState {
    pub(super) fn new(costs: &Costs) -> NicState {
        let slots = vec![0; costs.slots()].into();
        NicState { engine: 0, sending: 0, receiving: 0, slots, connections: 0, miss: 0 }
    }

    /// Counts one more connection that is used.
    pub(super) fn connected(&mut self, costs: &Costs) {
        self.connections += 1;
        self.miss = costs.miss(self.connections);
    }
}

/// Occupies a part of a machine for `time`, for work that arrives at `from`. Returns when that work
/// is done.
///
/// Work that arrives later than now leaves the time until then to other work. So a part is never
/// idle while it has work, although it does not always take its work in the order of arrival.
pub(super) fn occupy(until: &mut Picos, now: Picos, from: Picos, time: Picos) -> Picos {
    *until = now.max(*until) + time;
    (*until).max(from + time)
}

/// A node's memory.
#[derive(Clone, Debug)]
pub(super) struct MediumState {
    pub(super) persistent: bool,
    /// Whether no access occupies the memory.
    free: bool,
    busy: Picos,
    line_shift: u32,
    unit_shift: u32,
    /// Occupancies: for each write, line written, unit written in part, and line read.
    write: Picos,
    line_write: Picos,
    /// Occupancy of each line of a long WRITE.
    bulk_line_write: Picos,
    partial: Picos,
    line_read: Picos,
    /// Further latency of a read.
    read: Picos,
}

impl MediumState {
    pub(super) fn new(medium: &Medium, ddio: bool, cross_socket: bool) -> MediumState {
        let factor = if cross_socket { medium.cross_socket } else { 1.0 };
        let amplification = if ddio { medium.ddio_amplification } else { 1.0 };
        let Medium { write_ns, line_write_ns, partial_ns, line_read_ns, .. } = *medium;
        MediumState {
            persistent: medium.persistent,
            free: [write_ns, line_write_ns, partial_ns, line_read_ns] == [0.0; 4],
            busy: 0,
            line_shift: medium.line_bytes.max(1).ilog2(),
            unit_shift: medium.unit_bytes.max(1).ilog2(),
            write: picos(write_ns * factor),
            line_write: picos(line_write_ns * factor),
            bulk_line_write: picos(line_write_ns * amplification * factor),
            partial: picos(partial_ns * factor),
            line_read: picos(line_read_ns * factor),
            read: picos(medium.read_ns),
        }
    }

    /// Occupies the memory for a write. Returns when the write is done.
    pub(super) fn write(&mut self, now: Picos, from: Picos, offset: u64, bytes: u64) -> Picos {
        if self.free {
            return from;
        }
        let end = offset.saturating_add(bytes);
        let lines = spanned(offset, end, self.line_shift);
        let whole = (end >> self.unit_shift).saturating_sub(up(offset, self.unit_shift));
        let partial = spanned(offset, end, self.unit_shift) - whole;
        let line = if lines > 1 { self.bulk_line_write } else { self.line_write };
        occupy(&mut self.busy, now, from, self.write + lines * line + partial * self.partial)
    }

    /// Occupies the memory for a read. Returns when the read is done.
    pub(super) fn read(&mut self, now: Picos, from: Picos, offset: u64, bytes: u64) -> Picos {
        if self.free {
            return from + self.read;
        }
        let lines = spanned(offset, offset.saturating_add(bytes), self.line_shift);
        occupy(&mut self.busy, now, from, lines * self.line_read) + self.read
    }
}

/// Returns the offset divided by a power of two, and rounded up.
fn up(offset: u64, shift: u32) -> u64 {
    offset.saturating_add((1 << shift) - 1) >> shift
}

/// Returns the number of pieces of this size, a power of two, that have bytes from `offset` to
/// `end`.
fn spanned(offset: u64, end: u64, shift: u32) -> u64 {
    up(end, shift) - (offset >> shift)
}
